"""The key schedule: X25519 and HKDF-SHA256, every key bound to the round, the parties, the purpose and the step."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from dpalgos.secure.errors import ViolationError
from dpalgos.secure.secret_sharing import PRIME

_VERSION = b"unitball-secagg-1 "
KEY = 32
"""Bytes of every key, digest and seed."""


def context(label: str, *parts: int | bytes) -> bytes:
    """Return an unambiguous byte string of a label and its parts, for HKDF's ``info`` and associated data.

    A label holds no zero byte and always has parts of the same kinds in the same order: numbers of 8 bytes, and byte
    strings of 32. So different labels or parts give different strings.
    """
    return b"".join(
        [
            _VERSION,
            label.encode(),
            b"\0",
            *[part.to_bytes(8, "big") if isinstance(part, int) else part for part in parts],
        ]
    )


def party_key(seed: bytes, session: bytes, party: int, label: str, *parts: int) -> bytes:
    """Return a key that only this party knows: HKDF-SHA256 of its seed, salted with the session."""
    return bytes(HKDF(SHA256(), KEY, session, context(label, party, *parts)).derive(seed))


def step_secret(seed: bytes, session: bytes, party: int, label: str, step: int) -> int:
    """Return the field element that a party shares out for one step; independent of every other step's."""
    return int.from_bytes(party_key(seed, session, party, label, step), "big") % PRIME


def private_key(seed: bytes, session: bytes, party: int) -> X25519PrivateKey:
    """Return a party's key-agreement key of one session."""
    return X25519PrivateKey.from_private_bytes(party_key(seed, session, party, "x25519"))


def public_key(seed: bytes, session: bytes, party: int) -> bytes:
    """Return the 32 bytes a party advertises."""
    return bytes(private_key(seed, session, party).public_key().public_bytes_raw())


def pair_root(
    own: X25519PrivateKey, session: bytes, party: int, peer: int, own_public: bytes, peer_public: bytes
) -> bytes:
    """Return the key that two parties share in one session; equal on both sides.

    Raises
    ------
    ViolationError
        If the peer's public key is one of the few that give no secret.
    """
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(peer_public))
    except ValueError as error:
        raise ViolationError(peer, "advertised a degenerate public key") from error
    (low, low_public), (high, high_public) = sorted(((party, own_public), (peer, peer_public)))
    return bytes(HKDF(SHA256(), KEY, session, context("pair", low, high, low_public, high_public)).derive(shared))


def _expand(key: bytes, label: str, *parts: int) -> bytes:
    return bytes(HKDFExpand(SHA256(), KEY, context(label, *parts)).derive(key))


def channel_key(root: bytes, sender: int, recipient: int) -> bytes:
    """Return the key under which one party's shares travel to another; used for one message."""
    return _expand(root, "channel", sender, recipient)


def mask_key(root: bytes, step: int) -> bytes:
    """Return the key of two parties' common mask in one step."""
    return _expand(root, "mask", step)


def escrow_key(secret: bytes, step: int) -> bytes:
    """Return the key that locks a party's pair mask keys of one step, from the secret it shares out for that."""
    return _expand(secret, "escrow", step)


def commitment(session: bytes, owner: int, step: int, kind: int, point: int, share: bytes) -> bytes:
    """Return the digest by which a share is recognised; hiding, because every share is a uniform 256-bit number."""
    return hashlib.sha256(context("commitment", session, owner, step, kind, point, share)).digest()
