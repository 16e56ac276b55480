"""What a coordinator and parties say to each other, and what each derives from it: the run, its plan, its evidence."""

import base64
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import BaseModel, Field

from dpalgos.algorithms import require_people
from dpalgos.guarantees import Neighbours, Trust
from dpalgos.models import Artefact
from dpalgos.registry import names
from dpalgos.rows import Array, Ints
from dpalgos.secure.summation import Masking
from storage.errors import InputError, RefusedError
from storage.layout import Layout, Secret
from storage.refs import DatasetRef, Labels, ShardRef, Unit, Visibility
from storage.releases import ReleaseStore
from storage.rounds import RoundStore
from tasks.planning.configuration import Json, TrainingConfig, split_features
from tasks.planning.identity import canonical, identity
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedRelease
from tasks.planning.rows import FeatureStep, Shards
from tasks.preparation.partitions import HELD_OUT, held_out_rows, private_fraction
from tasks.preparation.prepare import AllRows, prepare_over
from tasks.preparation.public_maps import plan_features
from tasks.release.door import manifest_of
from tasks.release.rounds import blocks_of, numbers_of, result_of, step_lengths
from tasks.runtime.stores import open_releases

_MOST_MESSAGE = 64 * 2**20
Message = Annotated[str, Field(max_length=_MOST_MESSAGE, description="Of the protocol: JSON, or bytes in base64.")]


class _Model(BaseModel, frozen=True, extra="forbid"):
    """What travels."""


class Ask(StrEnum):
    """What a party is asked to do, in this order."""

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
    """What became of a request."""

    DONE = "done"
    REFUSED = "refused"
    """By what is public, charges included; never by what rows contain."""
    FAILED = "failed"
    """Otherwise; why is for the party's own eyes."""


class Purpose(StrEnum):
    """What a signature is for: one made for one purpose says nothing for another."""

    DESCRIPTION = "description"
    ADVERTISEMENT = "advertisement"
    CHARGE = "charge"
    """That a run is charged to its account: the keys of its releases."""
    RELEASE = "release"
    """That a release is its own: its key, and the digest of its arrays."""
    SUM = "sum"
    """Its noisy sum of a step."""


class Description(_Model):
    """What is public of a party's rows.

    Attributes
    ----------
    party : str
    rows, test_rows, dimension : int
        Records to train on, those that it may hold out of them included; records of a test part of its own; features.
        Rows, or people where these are what is protected, with and without rows.
    classes : tuple of str
    label_range : (float, float) or None
    image_shape : tuple of int or None
    normalisation : str
        What brings its rows into the unit ball.
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
    normalisation: str
    table: str
    relation: Neighbours
    version: str
    person: str = ""
    rows_per_person: Annotated[int, Field(ge=1)] = 1

    @property
    def unit(self) -> Unit:
        """What is protected."""
        return Unit(self.person)

    def written(self) -> str:
        """Return what a party signs; of rows it is what it was before there were people, so that runs go on."""
        return self.model_dump_json(exclude=None if self.person else {"person", "rows_per_person"})


class Signed(_Model):
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
    return canonical(["unitball party", purpose, run, party, body]).encode()


class Floors(_Model):
    """What a party's owner asks of every plan of secure sums: against whom it has to hold.

    The coordinator writes the plan, and the fault model in it says how little noise is enough and which sums may be
    opened; so the owners say what it may not go below.

    Attributes
    ----------
    colluders : int or None
        C, at least; a third of the parties, rounded up, where None.
    survivors : int or None
        N - D, at least, beside 2 (N - D) > N + C, which no server can have two sums of one step opened under.
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
                f"the plan holds against {tolerance.colluders} colluders of {parties} parties and its owner asks for "
                f"{least}; ask with --colluders {least}, or its owner lowers `floors` in its roster"
            )
        if tolerance.quorum < (self.survivors or 0):
            raise RefusedError(
                f"the plan opens sums of {tolerance.quorum} of {parties} parties and its owner asks for "
                f"{self.survivors}; ask with fewer --dropouts, or its owner lowers `floors` in its roster"
            )
        if masking.consistent_survivors and not self.consistent_survivors:
            raise RefusedError(
                "the plan assumes that the server shows every party the same survivors (--consistent-survivors), and "
                "its owner does not consent to that (consistent_survivors under `floors` in its roster)"
            )


class Roster(_Model):
    """Who the parties are, in order: each one's name and the fingerprint of its key.

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
        """Return what a party says, if it is the one in the roster that says so.

        Raises
        ------
        RefusedError
            If it is none of the parties, shows another key, or the signature is not of this.
        """
        pinned = self.parties.get(message.party)
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(message.key))
            key.verify(bytes.fromhex(message.signature), _signed(purpose, run, message.party, message.body))
        except (InvalidSignature, ValueError):
            raise RefusedError(f"the {purpose} of party {message.party!r} does not bear its signature") from None
        if pinned != fingerprint(key):
            raise RefusedError(
                f"the {purpose} of party {message.party!r} is signed with a key ({fingerprint(key)[:16]}…) that is not "
                "the roster's; ask that party, not the coordinator, for its fingerprint"
            )
        return message.body


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of a public key, in hexadecimal."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def identity_key(secret: Secret, purpose: str = "party identity") -> Ed25519PrivateKey:
    """Return the long-term key of a party, or that of another purpose, derived from its root's secret (HKDF-SHA256)."""
    seed = HKDF(algorithm=SHA256(), length=32, salt=None, info=f"unitball {purpose}".encode()).derive(secret)
    return Ed25519PrivateKey.from_private_bytes(seed)


class Sent(_Model):
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


class Request(_Model):
    """What a coordinator asks of a party; the party derives everything else itself.

    Attributes
    ----------
    ask : Ask
    config : TrainingConfig
        The run: algorithm, budget, trust. Its ``dataset`` names the run's subject for people; each party reads its own.
    descriptions : tuple of Signed
        All parties', in the roster's order; none where they are asked for.
    release : int
        Which of the plan's releases, in order.
    block, step : int
        Of a release of several sums: which block of its steps a stage is of; which step a sum is of.
    sum_before : str
        The sum of the step before, little-endian integers; with a party's first look at a step.
    upstream : tuple of Sent
        What the release's rows are seen through and the party does not make by itself, in order.
    message : str
        The server's message of a stage of a secure sum.
    advertisements : tuple of Signed
        For ``share``: the parties' public keys of this session.
    """

    ask: Ask
    config: TrainingConfig
    descriptions: tuple[Signed, ...] = ()
    release: Annotated[int, Field(ge=0)] = 0
    block: Annotated[int, Field(ge=0)] = 0
    step: Annotated[int, Field(ge=0)] = 0
    sum_before: Message = ""
    upstream: tuple[Sent, ...] = ()
    message: Message = ""
    advertisements: tuple[Signed, ...] = ()


class Answer(_Model):
    """What a party answers.

    Attributes
    ----------
    party : str
    status : Status
    reason : str
        Where it is not done.
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


# ── what follows from what was said ───────────────────────────────────────────────────────────────────────────────────

_SHARED = (
    "unit",
    "rows_per_person",
    "dimension",
    "classes",
    "label_range",
    "image_shape",
    "normalisation",
    "table",
    "relation",
)
_NOT_HERE = (
    "seed", "public_dataset", "partition", "partition_seed", "sizes", "rows_per_party", "horizon", "deadline", "tune",
)  # fmt: skip


def described(roster: Roster, messages: Sequence[Signed]) -> tuple[Description, ...]:
    """Return what the parties have said of their rows, each signed by the roster's key, in the roster's order.

    Raises
    ------
    RefusedError
        If one is missing, is signed by another key, or their rows do not fit together, naming what differs.
    """
    descriptions = tuple(
        Description.model_validate_json(roster.check(one, Purpose.DESCRIPTION, "")) for one in messages
    )
    if tuple(one.party for one in descriptions) != roster.names or any(
        one.party != by.party for one, by in zip(descriptions, messages, strict=True)
    ):
        raise RefusedError(
            f"rows were described by {[one.party for one in descriptions]}, the roster names {roster.names}"
        )
    for name in _SHARED:
        values = {str(getattr(one, name)): one.party for one in descriptions}
        if len(values) > 1:
            differing = "; ".join(f"{party}: {value[:60]}" for value, party in values.items())
            raise RefusedError(f"the parties' rows differ in {name} ({differing}); ingest them under one schema")
    return descriptions


def run_name(config: TrainingConfig, messages: Sequence[Signed]) -> str:
    """Return the identity of a run: of its configuration, and of who brings which rows."""
    return identity(federated=config, descriptions=[[one.party, one.body, one.key] for one in messages])


def test_fraction(config: TrainingConfig, descriptions: Sequence[Description]) -> float:
    """Return the share of its rows that each party holds out, by the rule of one root over all rows; public.

    Nothing of a party that has a test part of its own, which is held out instead.
    """
    rows = sum(one.rows for one in descriptions if not one.test_rows)
    return private_fraction(config, rows, len(descriptions[0].classes))


def _partitioned(config: TrainingConfig, descriptions: Sequence[Description]) -> Iterator[tuple[str, int, int]]:
    """Yield each party, how many of its rows train and how many are held out."""
    fraction = test_fraction(config, descriptions)
    for one in descriptions:
        held = 0 if one.test_rows else held_out_rows(one.party, one.rows, fraction, config.partition_seed)
        if fraction and not one.test_rows and not 0 < held < one.rows:
            raise RefusedError(
                f"party {one.party} would hold out {held} of its {one.rows} {one.unit.several}; choose another "
                "--test-fraction, or --no-evaluation"
            )
        yield one.party, one.rows - held, one.test_rows or held


def shared_rows(
    config: TrainingConfig, descriptions: Sequence[Description], run: str, features: Sequence[FeatureStep] = ()
) -> DatasetRef:
    """Return a reference that stands for all parties' rows together, as public maps show them; nobody holds them."""
    first = descriptions[0]
    return DatasetRef(
        name=config.dataset,
        version=run[:32],
        account=config.dataset,
        visibility=Visibility.PRIVATE,
        rows=sum(one.rows for one in descriptions),
        test_rows=0,
        dimension=features[-1].dimension if features else first.dimension,
        labels=Labels.CLASSES if first.classes else Labels.REAL,
        classes=first.classes,
        label_range=first.label_range,
        image_shape=None if features else first.image_shape,
        normalisation=first.normalisation,
        person=first.person,
        rows_per_person=first.rows_per_person,
        maps=tuple(one.key for one in features),
    )


def federated_plan(
    config: TrainingConfig,
    descriptions: Sequence[Description],
    run: str,
    own: tuple[int, Shards] | None = None,
) -> RunPlan:
    """Return the plan of a run over the parties' rows.

    Parameters
    ----------
    config : TrainingConfig
    descriptions : sequence of Description
    run : str
        Its identity, see :func:`run_name`.
    own : (int, Shards), optional
        A party's number and its own shards, which its part of the releases is bound to. Without them the plan is the
        one that everybody shares: its keys name the session. Both have the same releases in the same order.

    Raises
    ------
    RefusedError
        For what is not carried out over parties of their own, naming it.
    ParameterError, UnknownNameError
        For names and parameters that do not fit.
    """
    require_carried(config)
    features = plan_features(shared_rows(config, descriptions, run), config)
    rows = shared_rows(config, descriptions, run, features)
    number, partition = -1, run[:32]
    if own is not None:
        number, shards = own
        (shard,) = shards.training
        rows, partition = shard.dataset.model_copy(update={"rows": rows.rows}), shard.partition
    training, held_out = [], []
    for index, (party, trained, held) in enumerate(_partitioned(config, descriptions)):
        # A party's held-out rows are rows of nobody else's, in its own partition and in the shared one.
        apart = HELD_OUT if index == number else f"{party}.{HELD_OUT}"
        training.append(ShardRef(dataset=rows, partition=partition, party=party, rows=trained))
        if held:
            held_out.append(ShardRef(dataset=rows, partition=partition, party=apart, rows=held))
    if len({shard.party for shard in (*training, *held_out)}) < len(training) + len(held_out):
        raise RefusedError(f"a party is called as another's held-out rows are ({HELD_OUT!r} or 'NAME.{HELD_OUT}')")
    if 0 < len(held_out) < len(training):
        raise RefusedError("some parties have a test part of their own and others hold out nothing: --no-evaluation")
    references = AllRows(
        training=training, held_out=held_out, relation=Neighbours(descriptions[0].relation), features=features
    )
    plan = prepare_over(config, references).whole
    for release in plan.releases:
        if rows.person and release.reads_rows:
            require_people(type(release.build()))
        if len(release.parties) > 1 and release.reads_rows and not release.travels:
            raise RefusedError(
                f"{plan.system} under trust {plan.trust} over {len(release.parties)} parties is not made of what each "
                "of them sends by itself: that are sums (under secagg of up to 64 parties), and what each trains alone "
                "(--trainer output-perturbation --trust local)"
            )
    return plan


def require_carried(config: TrainingConfig) -> None:
    """Refuse what is not carried out over parties of their own.

    Raises
    ------
    RefusedError
        Naming it.
    """
    defaults = TrainingConfig.model_fields
    given = {name: getattr(config, name) != defaults[name].default for name in _NOT_HERE} | {
        f"trust {config.trust or 'that is not named'}": config.trust in (None, Trust.CENTRAL),
        "absent": bool(config.secure.absent),
        "an encoder's file": config.features is not None and split_features(config.features)[0] in names("encoders"),
    }
    if options := [name for name, is_given in given.items() if is_given]:
        raise RefusedError(f"{', '.join(options)}: not carried out over parties of their own (docs/parties.md)")


def own_releases(plan: RunPlan, shards: Shards) -> tuple[PlannedRelease, ...]:
    """Return the releases of a party's own plan that read its rows."""
    own = {shard.party for shard in shards.all}
    return tuple(release for release in plan.releases if release.reads_rows and own & set(release.parties))


_NAME = "evidence"


def keys_of(releases: Iterable[PlannedRelease]) -> str:
    """Return what a party signs where it has charged releases."""
    return ",".join(release.key for release in releases)


def release_body(key: str, artefact: Artefact) -> str:
    """Return what a party signs of its own release."""
    return f"{key} {ReleaseStore.digest_of({}, artefact.arrays())}"


def federated_manifest(release: PlannedRelease, kind: str, took_part: Sequence[str]) -> Json:
    """Return what a release says of itself that parties of their own have made, charged and signed."""
    own = {"charged_by": "each party, in its own account", "took_part": list(took_part)}
    return {**manifest_of(release, kind), **own}


def session_name(run: str, key: str, number: int) -> str:
    """Return what messages about a step, or a block of steps, of a release are signed for."""
    return f"{run}/{key}/{number}"


def sent_numbers(body: str, length: int, party: str) -> Ints:
    """Return the numbers of a party's noisy sum.

    Raises
    ------
    RefusedError
        If there are others than so many.
    """
    sent = unpacked(body)
    if len(sent) != 8 * length:
        raise RefusedError(f"party {party} has sent {len(sent) / 8:g} numbers in a sum of {length}")
    return numbers_of(sent)


class Evidence(_Model):
    """What was signed for one release.

    Attributes
    ----------
    config : TrainingConfig
    roster : Roster
    descriptions, charges : tuple of Signed
        One of each party, in the roster's order.
    messages : tuple of tuple of Signed
        A party's own release; or the noisy sums, step by step; or the public keys, block by block.
    took_part : tuple of str
    """

    config: TrainingConfig
    roster: Roster
    descriptions: tuple[Signed, ...]
    charges: tuple[Signed, ...]
    messages: tuple[tuple[Signed, ...], ...]
    took_part: tuple[str, ...]

    @classmethod
    def stored(cls, layout: Layout, key: str) -> bytes | None:
        """Return what is kept of a release, as JSON; None where nothing is."""
        return RoundStore(layout.round(key)).get(_NAME)

    def store(self, layout: Layout, key: str) -> None:
        """Keep it with the coordinator; what was stored first stays."""
        # An export holds it, which is verified by other versions, too.
        RoundStore(layout.round(key)).put(_NAME, self.model_dump_json(by_alias=True).encode())

    def run(self) -> tuple[str, RunPlan]:
        """Return the run's name and its plan, derived from what the parties say of their rows.

        Raises
        ------
        RefusedError
            If a description does not bear its party's signature, or nothing is planned of them.
        """
        described_parties = described(self.roster, self.descriptions)
        name = run_name(self.config, self.descriptions)
        return name, federated_plan(self.config, described_parties, name)

    def require(self, run: str, releases: Sequence[PlannedRelease], one: PlannedRelease, artefact: Artefact) -> None:
        """Check what the parties have signed of one of the run's releases.

        Parameters
        ----------
        run : str
        releases : sequence of PlannedRelease
            All of them, as they were charged.
        one : PlannedRelease
        artefact : Artefact
            What was made of the parties' messages.

        Raises
        ------
        RefusedError
            Naming the party whose word is missing or says something else.
        """
        for party, body in self._said(self.charges, Purpose.CHARGE, run, self.roster.names).items():
            if body != keys_of(releases):
                raise RefusedError(f"party {party} has charged other releases than these")
        if len(one.parties) == 1:
            (message,) = self.messages
            body = self._said(message, Purpose.RELEASE, run, one.parties)[one.parties[0]]
            if body != release_body(one.key, artefact) or self.took_part != one.parties:
                raise RefusedError(f"party {one.parties[0]} has signed another release than this {one.label}")
        elif one.masking is not None:
            for number, (message, _) in enumerate(zip(self.messages, blocks_of(one), strict=True)):
                self._said(message, Purpose.ADVERTISEMENT, session_name(run, one.key, number), self.took_part)
        else:
            self._require_sums(run, one, artefact)

    def _require_sums(self, run: str, one: PlannedRelease, artefact: Artefact) -> None:
        sums = []
        for step, (message, length) in enumerate(zip(self.messages, step_lengths(one), strict=True)):
            parts = self._said(message, Purpose.SUM, session_name(run, one.key, step), self.roster.names)
            numbers = [sent_numbers(body, length, party) for party, body in parts.items()]
            sums.append(np.asarray(np.sum(numbers, axis=0, dtype=np.int64)))
        again = result_of(one, sums).arrays()
        same = {name: np.allclose(array, again[name], rtol=1e-6) for name, array in artefact.arrays().items()}
        if not all(same.values()) or self.took_part != self.roster.names:
            raise RefusedError(f"{one.label} is not made of the sums that the parties have signed")

    def _said(self, signed: Sequence[Signed], purpose: Purpose, run: str, parties: Sequence[str]) -> Mapping[str, str]:
        """Return what some parties have signed, by party; others may have, too."""
        descriptions = {one.party: self.roster.check(one, purpose, run) for one in signed}
        missing = [party for party in parties if party not in descriptions]
        if missing or len(descriptions) != len(signed):
            raise RefusedError(f"a {purpose} is signed twice, or not at all: by {', '.join(missing or descriptions)}")
        return descriptions
