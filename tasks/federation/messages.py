"""Messages between a coordinator and parties: requests, answers, signed statements, and the roster of keys.

Why the signatures. Public keys of secure sums travel through the coordinator. One that could exchange them would agree
on masks with each party itself and see every vector. So each party has a long-term key (Ed25519), each party keeps the
fingerprints of all others in a *roster* that did not come from the coordinator, and a party signs its statements about
its rows and its public key of a session. What remains assumed of the coordinator is what
:meth:`dpalgos.secure.messages.Tolerance.assumptions` assumes of a server.
"""

import base64
import hashlib
import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import BaseModel, Field

from dpalgos.guarantees import Neighbours
from dpalgos.rows import Array
from dpalgos.secure.summation import Masking
from storage.errors import InputError, RefusedError
from storage.refs import TableColumn, Unit
from storage.releases import ReleaseStore
from storage.secrets import Secret
from tasks.planning.configuration import Json, TrainingConfig
from tasks.planning.identity import identity_json
from tasks.runtime.stores import open_releases

_MOST_MESSAGE = 64 * 2**20
Message = Annotated[str, Field(max_length=_MOST_MESSAGE, description="Of the protocol: JSON, or bytes in base64.")]


class WireModel(BaseModel, frozen=True, extra="forbid"):
    """Base of the messages that travel between coordinator and parties."""


class Ask(StrEnum):
    """The requests to a party, in this order."""

    DESCRIBE = "describe"
    """Say, signed, what is public of its rows."""
    RESERVE = "reserve"
    """Set aside what the run will cost in its own account, or refuse."""
    RETURN = "return"
    """Take back what was set aside: another party has refused."""
    COMMIT = "commit"
    """Charge it. Nothing was drawn before."""
    RELEASE = "release"
    """Make a release of its own rows alone, and send it."""
    SUM = "sum"
    """Trust ``local``: send its own noisy sum of a step."""
    ADVERTISE = "advertise"
    SHARE = "share"
    MASK = "mask"
    UNMASK = "unmask"


class Status(StrEnum):
    """The outcome of a request."""

    DONE = "done"
    REFUSED = "refused"
    """By what is public, charges included; never by what rows contain."""
    FAILED = "failed"
    """Otherwise; why is for the party's own eyes."""


class Purpose(StrEnum):
    """The purpose of a signature: a signature for one purpose is not valid for another."""

    DESCRIPTION = "description"
    ADVERTISEMENT = "advertisement"
    CHARGE = "charge"
    """That a run is charged to its account: the keys of its releases."""
    RELEASE = "release"
    """That a release is its own: its key, and the digest of its arrays."""
    SUM = "sum"
    """Its noisy sum of a step."""


class Description(WireModel):
    """The public description of a party's rows.

    Attributes
    ----------
    party : str
    rows, test_rows, dimension : int
        Records to train on, those that it may hold out of them included; records of its own test part; features.
        Rows, or people where these are what is protected, with and without rows.
    classes : tuple of str
    label_range : (float, float) or None
    image_shape : tuple of int or None
    columns : tuple of TableColumn
        Which of these features are which declared column's; empty where they are not as they were encoded.
    normalisation : str
        What its rows have passed through first.
    table : str
        Digest of the declared schema; empty where there is none.
    relation : Neighbours
        Of its account.
    version : str
        The random name of its rows' version: new rows, another run.
    person : str
        The column that names the people who are the records; empty where each row is one.
    rows_per_person : int
        The most rows of one person that are taken.
    """

    party: str
    rows: Annotated[int, Field(ge=1)]
    test_rows: Annotated[int, Field(ge=0)] = 0
    dimension: Annotated[int, Field(ge=1)]
    classes: tuple[str, ...]
    label_range: tuple[float, float] | None
    image_shape: tuple[int, ...] | None = None
    columns: tuple[TableColumn, ...] = ()
    normalisation: str
    table: str
    relation: Neighbours
    version: str
    person: str = ""
    rows_per_person: Annotated[int, Field(ge=1)] = 1

    @property
    def unit(self) -> Unit:
        """The protected unit."""
        return Unit(self.person)

    def written(self) -> str:
        """Return what a party signs, of which runs' names are digests."""
        return self.model_dump_json()


class Signed(WireModel):
    """Something that a party says, with its signature.

    Attributes
    ----------
    party : str
    body : str
    key : str
        The public key, hexadecimal.
    signature : str
        Hexadecimal, of purpose, run, party and body.
    """

    party: str
    body: Message
    key: str
    signature: str

    @classmethod
    def by(cls, key: Ed25519PrivateKey, purpose: Purpose, run: str, party: str, body: str) -> Self:
        """Sign something."""
        signature = key.sign(_signed(purpose, run, party, body))
        return cls(party=party, body=body, key=key.public_key().public_bytes_raw().hex(), signature=signature.hex())


def _signed(purpose: Purpose, run: str, party: str, body: str) -> bytes:
    return identity_json(["unitball party", purpose, run, party, body]).encode()


class Floors(WireModel):
    """The owner's requirements on every plan of secure sums: the adversaries that it must withstand.

    The coordinator writes the plan, and the fault model in it says how little noise is enough and which sums may be
    opened; so the owners say what it may not go below.

    Attributes
    ----------
    colluders : int or None
        C, at least; a third of the parties, rounded up, where None.
    survivors : int or None
        N - D, at least. In addition 2 (N - D) > N + C, under which no server can open two sums of one step.
    consistent_survivors : bool
        The owner's consent to plans that assume that of the server instead.
    """

    colluders: Annotated[int, Field(ge=0)] | None = None
    survivors: Annotated[int, Field(ge=1)] | None = None
    consistent_survivors: bool = False

    def colluders_of(self, parties: int) -> int:
        """Return how many of so many parties must be tolerated to pool what they know."""
        return math.ceil(parties / 3) if self.colluders is None else self.colluders

    def require(self, masking: Masking) -> None:
        """Refuse a fault model that is below the floors.

        Raises
        ------
        RefusedError
            Naming value and floor.
        """
        tolerance, parties = masking.tolerance, masking.tolerance.parties
        least = self.colluders_of(parties)
        if tolerance.colluders < least:
            raise RefusedError(
                f"the plan tolerates {tolerance.colluders} colluders of {parties} parties, and its owner requires "
                f"{least}; give --colluders {least}, or let its owner lower `floors` in its roster"
            )
        if tolerance.quorum < (self.survivors or 0):
            raise RefusedError(
                f"the plan opens sums of {tolerance.quorum} of {parties} parties, and its owner requires "
                f"{self.survivors}; give fewer --dropouts, or let its owner lower `floors` in its roster"
            )
        if masking.consistent_survivors and not self.consistent_survivors:
            raise RefusedError(
                "the plan assumes that the server shows every party the same survivors (--consistent-survivors), and "
                "its owner does not consent; omit the option, or let the owner set consistent_survivors under "
                "`floors` in its roster"
            )


class Roster(WireModel):
    """The parties, in order: each one's name and the fingerprint of its key.

    Attributes
    ----------
    parties : dict of str to str
        SHA-256 of the public key, hexadecimal, as ``unitball party show`` prints it at the party.
    floors : Floors
        Of the owner whose file this is.
    """

    floors: Floors = Floors()
    parties: Annotated[dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]], Field(min_length=2)]

    @property
    def names(self) -> tuple[str, ...]:
        """The parties in order."""
        return tuple(self.parties)

    def check(self, message: Signed, purpose: Purpose, run: str) -> str:
        """Return a party's statement, if the party of the roster has signed it.

        Raises
        ------
        RefusedError
            If the sender is not one of the parties, shows another key, or did not sign this message.
        """
        pinned = self.parties.get(message.party)
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(message.key))
            key.verify(bytes.fromhex(message.signature), _signed(purpose, run, message.party, message.body))
        except (InvalidSignature, ValueError):
            raise RefusedError(f"the {purpose} of party {message.party!r} lacks its signature") from None
        if pinned != fingerprint(key):
            raise RefusedError(
                f"the {purpose} of party {message.party!r} is signed with a key ({fingerprint(key)[:16]}…) that is "
                "not in the roster; ask that party (not the coordinator) for its fingerprint"
            )
        return message.body


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of a public key, in hexadecimal."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def identity_key(secret: Secret, purpose: str = "party identity") -> Ed25519PrivateKey:
    """Return the long-term key of a party, or that of another purpose, derived from its root's secret (HKDF-SHA256)."""
    seed = HKDF(algorithm=SHA256(), length=32, salt=None, info=f"unitball {purpose}".encode()).derive(secret)
    return Ed25519PrivateKey.from_private_bytes(seed)


class Sent(WireModel):
    """A release as it travels: its two files.

    Attributes
    ----------
    manifest, arrays : str
    """

    manifest: Message
    arrays: Message

    def opened(self, sender: str) -> tuple[Json, dict[str, Array]]:
        """Return manifest and arrays.

        Raises
        ------
        storage.errors.DamagedError
            If its digests do not match.
        """
        files = {"manifest.json": unpacked(self.manifest), "arrays.npz": unpacked(self.arrays)}
        return ReleaseStore.decode(files, Path(sender))

    @classmethod
    def stored(cls, key: str) -> Self:
        """Return a release of the current root."""
        files = open_releases().files(key)
        return cls(manifest=packed(files["manifest.json"]), arrays=packed(files["arrays.npz"]))


class Counted(WireModel):
    """The counts of a run that describes the parties' rows and makes no model; its configuration has the budget.

    Attributes
    ----------
    pairs : tuple of str
        Pairs of columns, two names with a comma each.
    by : str or None
        A column with which all others are paired. Without it and without pairs, single columns are counted.
    table : str
        How all parties' raw rows become features: JSON, whose digest each of them has signed; empty where the parties
        are asked what is public of their rows.
    """

    pairs: tuple[str, ...] = ()
    by: str | None = None
    table: Message = ""


class Request(WireModel):
    """The request of a coordinator to a party, which derives everything else itself.

    Attributes
    ----------
    ask : Ask
    config : TrainingConfig
        The run: algorithm, budget, trust. Its ``dataset`` names the run's subject for people; each party reads its own.
    counted : Counted or None
        What is counted instead of training a model.
    descriptions : tuple of Signed
        All parties', in the roster's order; none where they are asked for.
    release : int
        Which of the plan's releases, in order.
    block, step : int
        Of a release of several sums: which block of its steps a stage is of; which step a sum is of.
    sum_before : str
        The sum of the step before, little-endian integers; with a party's first look at a step.
    upstream : tuple of Sent
        What the release's rows are seen through, or made of that, and the party does not make by itself, in order.
    message : str
        The server's message of a stage of a secure sum.
    advertisements : tuple of Signed
        For ``share``: the parties' public keys of this session.
    """

    ask: Ask
    config: TrainingConfig
    counted: Counted | None = None
    descriptions: tuple[Signed, ...] = ()
    release: Annotated[int, Field(ge=0)] = 0
    block: Annotated[int, Field(ge=0)] = 0
    step: Annotated[int, Field(ge=0)] = 0
    sum_before: Message = ""
    upstream: tuple[Sent, ...] = ()
    message: Message = ""
    advertisements: tuple[Signed, ...] = ()


CHARGED_BEFORE = "charged before"


class Answer(WireModel):
    """The answer of a party.

    Attributes
    ----------
    party : str
    status : Status
    reason : str
        Where it is not done; of what is reserved, that it was charged before.
    message : str
        A message of the protocol, or what else was asked for.
    sent : Sent or None
        A release.
    signed : Signed or None
    """

    party: str
    status: Status = Status.DONE
    reason: str = ""
    message: Message = ""
    sent: Sent | None = None
    signed: Signed | None = None


def packed(data: bytes) -> str:
    """Return bytes as text."""
    return base64.b64encode(data).decode()


def unpacked(text: str) -> bytes:
    """Return text as bytes again.

    Raises
    ------
    InputError
        If it is none.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InputError(f"a message is not base64: {error}") from None
