"""What travels in a round, and the public parameters it is bound to: plain values with one byte form each."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from functools import lru_cache
from typing import ClassVar

from dpalgos.errors import ParameterError
from dpalgos.parameters import COUNT, Bounded
from dpalgos.secure.primitives import ELEMENT, KEY, MessageError
from dpalgos.secure.tolerance import SparseGraph, Tolerance
from dpalgos.secure.wire import Wire

SELF, ESCROW = 0, 1
"""The two secrets a party shares out for each step: the key of its own mask, and the lock of its pair masks' keys."""
KINDS = {SELF: "self-mask", ESCROW: "escrow"}

_TAG = 16


def point(holder: int) -> int:
    """Return the place at which a holder's shares are taken; zero is the secret's."""
    return holder + 1


def numbers_digest(survivors: tuple[int, ...]) -> bytes:
    """Return the digest of who the survivors of a sum are, whatever they sent and whatever masked it."""
    return hashlib.sha256(repr(survivors).encode()).digest()


PAIR = len(KINDS) * ELEMENT
"""Bytes of one holder's two shares for one step."""
LOCKED = KEY + _TAG
"""Bytes of one pair mask key under the escrow lock."""


def SEALED(steps: int) -> int:
    """Return the bytes of all shares that one party sends to one other, encrypted."""
    return PAIR * steps + _TAG


def _ascending(name: str, parties: tuple[int, ...]) -> None:
    if type(parties) is not tuple or any(type(party) is not int for party in parties):
        raise MessageError(f"{name} must be a tuple of whole numbers")
    if any(first >= second for first, second in itertools.pairwise(parties)):
        raise MessageError(f"{name} must be in increasing order, each party once")


def _size(name: str, value: bytes, expected: int) -> None:
    if type(value) is not bytes or len(value) != expected:
        raise MessageError(f"{name} must be {expected} bytes, not {len(value)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundParameters(Wire, Bounded):
    """What everybody knows before a session starts; its digest enters every key, so nothing carries over.

    A session is one key agreement and a fixed number of sums (steps) of equal length under it.

    Parameters
    ----------
    identity : str
        Names the release (and, within it, the session). A round that has to be repeated gets a new one.
    tolerance : Tolerance
    length : int
        Numbers in every vector.
    steps : int
        Sums under this key agreement.
    graph : SparseGraph or None
        None: everybody masks with everybody.
    """

    identity: str
    tolerance: Tolerance
    length: int = field(metadata=COUNT)
    steps: int = field(default=1, metadata=COUNT)
    graph: SparseGraph | None = None

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if not self.identity:
            raise ParameterError("identity is empty; name the release the round belongs to")
        if self.graph is not None and self.graph.degree >= self.tolerance.quorum:
            raise ParameterError(
                f"degree {self.graph.degree} is not below the {self.tolerance.quorum} parties that must remain; "
                "leave the graph out: with so few parties everybody masks with everybody"
            )

    @property
    def session(self) -> bytes:
        """The digest that stands for these parameters in every message."""
        return _session(self)

    @property
    def threshold(self) -> int:
        """Shares that open a secret."""
        return self.graph.threshold if self.graph is not None else self.tolerance.quorum


@lru_cache(maxsize=64)
def _session(parameters: RoundParameters) -> bytes:
    return hashlib.sha256(parameters.encode()).digest()


_OF_32_BYTES = ("session", "survivor_set", "numbers", "public_key")
_NEIGHBOURS = ("neighbours", "recipients", "survivors", "dropped")


class Message(Wire):
    """A message of a session: digests and keys have their length, and lists of parties are in increasing order."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[Mapping[str, Field[object]]]

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name in _OF_32_BYTES:
                _size(name, getattr(self, name), KEY)
            elif name in _NEIGHBOURS:
                _ascending(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertisement(Message):
    """Round 1, party to server: a public key."""

    session: bytes
    sender: int
    public_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction(Message):
    """Round 1, server to party: the neighbours it will mask with, and their keys (32 bytes each, in their order)."""

    session: bytes
    recipient: int
    neighbours: tuple[int, ...]
    public_keys: bytes

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        _size("public_keys", self.public_keys, KEY * len(self.neighbours))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBundle(Message):
    """Round 2, party to server: encrypted shares for its neighbours, and what the server keeps.

    Parameters
    ----------
    session : bytes
    sender : int
    recipients : tuple of int
        The sender's neighbours, in increasing order.
    ciphertexts : bytes
        For each recipient, its shares of all steps, encrypted for it.
    commitments : bytes
        For each step and kind, the digest of the secret and of the share of each holder: the sender and its recipients,
        in increasing order.
    escrow : bytes
        For each step and recipient, the key of the pair's mask, encrypted under the step's escrow secret.
    """

    session: bytes
    sender: int
    recipients: tuple[int, ...]
    ciphertexts: bytes
    commitments: bytes
    escrow: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Message):
    """Round 2, server to party: the shares its neighbours sent it, with their commitments.

    Parameters
    ----------
    session : bytes
    recipient : int
    owners : tuple of int
        The recipient's neighbours that take part, in increasing order.
    ciphertexts : bytes
        From each owner.
    commitments : bytes
        For each owner, step and kind, the digest of the recipient's share.
    """

    session: bytes
    recipient: int
    owners: tuple[int, ...]
    ciphertexts: bytes
    commitments: bytes

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        _ascending("owners", self.owners)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRequest(Message):
    """Round 3, server to party: send the vector of a step.

    Parameters
    ----------
    session : bytes
    recipient : int
    step : int
    delivery : Delivery or None
        The neighbours' shares, with the session's first step.
    """

    session: bytes
    recipient: int
    step: int
    delivery: Delivery | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedVector(Message):
    """Round 3, party to server: contribution plus noise share plus masks, modulo 2^bits, little-endian words."""

    session: bytes
    sender: int
    step: int
    bits: int
    words: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskRequest(Message):
    """Round 4, server to party: who survived the step, as far as this party is concerned.

    Parameters
    ----------
    session : bytes
    recipient : int
    step : int
    survivor_set : bytes
        Digest of the whole survivor set, the same for everybody.
    count : int
        Its size.
    numbers : bytes
        Digest of the survivors' numbers alone (:func:`numbers_digest`): equal in a repetition under fresh masks.
    survivors, dropped : tuple of int
        The recipient and its neighbours, divided: whose own masks are to be opened, and whose pair masks.
    """

    session: bytes
    recipient: int
    step: int
    survivor_set: bytes
    count: int
    numbers: bytes
    survivors: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskResponse(Message):
    """Round 4, party to server: one share for each owner, of the kind that the survivor set asks for.

    Parameters
    ----------
    session : bytes
    sender : int
    step : int
    survivor_set : bytes
    owners : tuple of int
    kinds : bytes
        One byte an owner, SELF or ESCROW.
    shares : bytes
        32 bytes an owner.
    """

    session: bytes
    sender: int
    step: int
    survivor_set: bytes
    owners: tuple[int, ...]
    kinds: bytes
    shares: bytes

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if type(self.owners) is not tuple or any(type(owner) is not int for owner in self.owners):
            raise MessageError("owners must be a tuple of whole numbers")
        _size("kinds", self.kinds, len(self.owners))
        _size("shares", self.shares, ELEMENT * len(self.owners))
