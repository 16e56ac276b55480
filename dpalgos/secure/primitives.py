"""Keys, masks and shares of a secure aggregation: X25519 and HKDF, ChaCha20 streams, Shamir's sharing."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache, reduce
from math import prod

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

from dpalgos.rows import Ints


class SecureAggregationError(Exception):
    """A round of secure aggregation cannot go on; no input was revealed."""


class MessageError(SecureAggregationError):
    """Bytes or fields are not a message of the stated kind."""


class ViolationError(SecureAggregationError):
    """A party (or the server) sent what the protocol does not allow.

    Parameters
    ----------
    party : int or None
        Who sent it; None for the server.
    reason : str
        What is wrong with it.
    """

    def __init__(self, party: int | None, reason: str) -> None:
        super().__init__(f"{'the server' if party is None else f'party {party}'}: {reason}")
        self.party = party


class TooFewPartiesError(SecureAggregationError):
    """Fewer parties remain than the round tolerates; it fails as a whole and says nothing about any one of them."""

    def __init__(self, stage: str, remaining: int, needed: int) -> None:
        super().__init__(
            f"{remaining} parties remain after {stage}, {needed} are needed: the round is over; "
            "start a new one under a new identity"
        )
        self.remaining, self.needed = remaining, needed


class RepeatedUseError(SecureAggregationError):
    """A second, different use of a step's masks was asked for: it would reveal inputs, so it is refused."""


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
    """Return the 32 bytes that a party advertises."""
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


Words = NDArray[np.uint64]

# Little-endian on every machine, so that two parties' streams agree.
_WORD = np.dtype("<u8")
_NONCE = bytes(16)
# Keystream is made and added in pieces that stay in the processor's cache.
_PIECE = 16_384
_ZEROS = bytes(8 * _PIECE)


def keystream(key: bytes, count: int) -> bytes:
    """Return the first ``count`` bytes of ChaCha20's keystream for a key without any other use (nonce zero)."""
    return bytes(Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor().update(bytes(count)))


def _combine(total: Words, key: bytes, operation: np.ufunc) -> None:
    encryptor = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()
    buffer = bytearray(8 * min(_PIECE, len(total)))
    for start in range(0, len(total), _PIECE):
        piece = total[start : start + _PIECE]
        encryptor.update_into(memoryview(_ZEROS)[: 8 * len(piece)], buffer)
        operation(piece, np.frombuffer(buffer, dtype=_WORD, count=len(piece)), out=piece)


def add_stream(total: Words, key: bytes) -> None:
    """Add a key's stream to the words in place, modulo 2^64."""
    _combine(total, key, np.add)


def subtract_stream(total: Words, key: bytes) -> None:
    """Subtract a key's stream from the words in place, modulo 2^64."""
    _combine(total, key, np.subtract)


def to_words(integers: Ints) -> Words:
    """Return a flat copy of signed integers as residues modulo 2^64 (two's complement)."""
    return np.array(integers, dtype=np.int64, copy=True).reshape(-1).view(np.uint64).astype(_WORD, copy=False)


def to_integers(words: Words) -> Ints:
    """Return the representatives from -2^63 to 2^63 - 1 of residues modulo 2^64."""
    return words.astype(np.uint64, copy=True).view(np.int64)


PRIME = 2**256 - 189
"""The largest prime below 2^256; a uniform 256-bit string is a uniform field element up to 2^-248."""
ELEMENT = 32
"""Bytes of an encoded field element, big-endian."""


def to_bytes(value: int) -> bytes:
    """Return the canonical 32 bytes of a field element."""
    return value.to_bytes(ELEMENT, "big")


def split(secret: int, points: Sequence[int], randomness: bytes) -> list[int]:
    """Return one share a point; any ``threshold`` of them determine the secret, fewer say nothing.

    The threshold is one more than the 32-byte pieces of randomness.

    Guarantee
    ---------
    The shares are values of a polynomial of degree threshold - 1 with constant term ``secret`` and otherwise uniform
    coefficients. For any threshold - 1 non-zero points the map from those coefficients to the shares is a bijection
    (Vandermonde), so such shares are uniform and independent of the secret. Coefficients come from 256-bit strings:
    2^-248 each from uniform.

    Parameters
    ----------
    secret : int
        Field element.
    points : sequence of int
        Distinct and not zero.
    randomness : bytes
        32 (threshold - 1) fresh uniform bytes, used for this secret only.

    References
    ----------
    Shamir, "How to share a secret", CACM 22 (1979).
    """
    # Highest coefficient first, as Horner's rule takes them.
    coefficients = [
        int.from_bytes(randomness[start : start + ELEMENT], "big") for start in range(0, len(randomness), ELEMENT)
    ]
    return [
        reduce(lambda value, coefficient: (value * point + coefficient) % PRIME, [*coefficients, secret], 0)
        for point in points
    ]


@lru_cache(maxsize=4096)
def lagrange_weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return the weights w with ``f(0) = sum w_i f(points_i)`` for polynomials of degree below ``len(points)``.

    ``w_i`` is the product over j != i of ``x_j / (x_j - x_i)`` modulo the prime; the points are distinct and none zero.
    """
    # The points are small, so the products are formed over the integers and reduced once.
    whole = prod(points)
    weights = []
    for point in points:
        differences = prod(other - point for other in points if other != point)
        weights.append(whole // point * pow(differences, -1, PRIME) % PRIME)
    return tuple(weights)


def reconstruct(points: tuple[int, ...], shares: Sequence[int]) -> int:
    """Return the secret from as many shares as the threshold, given in the order of their points."""
    return sum(weight * share for weight, share in zip(lagrange_weights(points), shares, strict=True)) % PRIME
