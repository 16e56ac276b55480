"""The one door of releases: declare, charge, show rows, draw, store, appear when due; and what is made of releases."""

import functools
import io
import itertools
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from threadpoolctl import threadpool_limits

from dpalgos.accounting.composition import whole_promise
from dpalgos.algorithms import Algorithm, Diagnosing, SumAlgorithm, fit, is_sum_algorithm, planned_artefact
from dpalgos.features.public_map import PublicMap, RowFeatures
from dpalgos.keystream import KeyedNoise
from dpalgos.models import Artefact, opened, require_planned
from dpalgos.parameters import ParameterError
from dpalgos.resources import claim, set_memory_limit
from dpalgos.rows import Array, Block, Features, Ints, MappedRows, RowMap, Rows, SpreadRows, fits
from dpalgos.secure.primitives import SecureAggregationError
from storage.atomic import write_bytes
from storage.confined import kept_memory
from storage.errors import RefusedError, StorageError
from storage.kept_rows import KeptRows
from storage.layout import Layout
from storage.refs import ReleaseRef, ShardRef
from storage.rounds import Journal
from storage.rowfiles import StoredRows
from storage.shards import open_shard
from tasks.accounts.ledger import open_ledger
from tasks.planning.configuration import Json
from tasks.planning.nights import PlannedNight, release_of
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.preparation.mapped_rows import PublicView, kept_rows
from tasks.preparation.public_maps import public_map, views_of
from tasks.preparation.streams import (
    Arrived,
    arrival_noted,
    notes_of,
    pack_sum,
    require_current,
    require_positions,
    unpack_sum,
)
from tasks.release.admission import admit, admit_plan, noises_of, require_upstream
from tasks.runtime.cluster import map_over_workers, on_dask_worker
from tasks.runtime.progress import quietly, say
from tasks.runtime.settings import current_layout, current_root
from tasks.runtime.stores import open_releases

# One thread a matrix product: the parties' tasks run side by side already, and results do not depend on the machine's
# number of cores, so that a retry elsewhere meets the same bits and the same noise.
threadpool_limits(limits=1, user_api="blas")


# ── releases on disk ──────────────────────────────────────────────────────────────────────────────────────────────────


_NAME = "sums"


class StoredRecord:
    """The record of one release (a :class:`dpalgos.secure.rounds.SumRecord`).

    Parameters
    ----------
    key : str
        The release's identity.
    parties : sequence of str
        All its parties, in order; each keeps a file of its own in its private store.
    """

    def __init__(self, key: str, parties: Sequence[str]) -> None:
        layout = current_layout()
        self._server = Journal(layout.round(key) / _NAME)
        self._parties = [Journal(layout.party_round(party, key) / _NAME) for party in parties]

    def fix(self, step: str, survivors: tuple[int, ...]) -> tuple[int, ...]:
        """Store whose vectors a sum holds, and return whose were stored first, by whichever run."""
        return tuple(json.loads(self._server.add(step, json.dumps(survivors).encode())))

    def opened(self, party: int, step: str) -> bytes | None:
        """Return what a party has stored of a sum."""
        return self._parties[party].get(step)

    def open(self, party: int, step: str, entry: bytes) -> bytes:
        """Store what a party lets be unmasked, and return what it stored first."""
        return self._parties[party].add(step, entry)


def _nothing(step: str) -> None:
    """Do nothing."""


reached: Callable[[str], None] = _nothing
"""Called at each step of the door and of the rounds; replaced by the crash tests, which kill the process there."""


def stored_release(planned: PlannedRelease | PlannedCombination) -> ReleaseRef | None:
    """Return the reference of a release that is stored: the first stored copy is the release."""
    store, key = open_releases(), planned.key
    if not store.exists(key):
        return None
    manifest, _ = store.read(key)
    owner = planned.owner if isinstance(planned, PlannedRelease) else "server"
    return ReleaseRef(key=key, kind=manifest["artefact"], party=owner)


def require_sent(
    planned: PlannedRelease | PlannedCombination,
    parts: Sequence[PlannedRelease],
    key: str,
    sent: tuple[Json, Mapping[str, Array]],
) -> Any:
    """Return the artefact of a release that somebody else has sent, if it is what is planned.

    The kind, the names, shapes and types of its arrays are those that the plan makes of no rows; its numbers are finite
    and bounded; and its manifest says that it is the one of this key. No row is read.

    Parameters
    ----------
    planned : PlannedRelease or PlannedCombination
        As whoever checks has derived it.
    parts : sequence of PlannedRelease
        What a combination is made of; of a release, itself.
    key : str
        The sender's key of it.
    sent : (dict, dict)
        Its manifest and its arrays.

    Raises
    ------
    RefusedError
        Naming what differs.
    """
    manifest, arrays = sent
    try:
        if manifest.get("key") != key:
            raise ParameterError(f"its manifest is that of release {manifest.get('key')}, not of {key}")
        made = [planned_artefact(one.build(), one.setting) for one in parts]
        wanted = planned.combine(made) if isinstance(planned, PlannedCombination) else made[0]
        return require_planned(str(manifest.get("artefact")), arrays, wanted)
    except ParameterError as error:
        raise RefusedError(f"what was sent as {planned.label} is not what is planned: {error}") from None


def recorded_key(manifest: Json) -> str:
    """Return the key of the release that a manifest describes, derived from what it says.

    Raises
    ------
    ParameterError
        If it describes none.
    """
    fields = {name: manifest[name] for name in PlannedNight.model_fields if name in manifest}
    try:
        return release_of({**fields, "seed": manifest.get("public_seed"), "account": "", "delta": 0.0}).key
    except ValidationError as error:
        raise ParameterError(f"it is no manifest of a release ({' '.join(str(error).split())[:200]})") from None


def read_release(reference: ReleaseRef) -> Any:
    """Return the artefact behind a reference, its digest verified."""
    manifest, arrays = open_releases().read(reference.key)
    return opened(manifest["artefact"], arrays)


def diagnostics_of(reference: ReleaseRef) -> dict[str, float]:
    """Return what a solver said of its own work; empty for private data and for algorithms that say nothing."""
    manifest, _ = open_releases().read(reference.key)
    return dict(manifest.get("diagnostics", {}))


def store_release(release: PlannedRelease, artefact: Artefact, diagnostics: Mapping[str, float]) -> ReleaseRef:
    """Record a drawn release in the ledger and store it: the door's last step."""
    reached("drawn")
    store, key = open_releases(), release.key
    manifest = manifest_of(release, artefact.kind, diagnostics)
    arrays = artefact.arrays()
    if release.reads_rows:
        open_ledger().record_output(key, store.digest_of(manifest, arrays))
        reached("recorded")
    store.write(key, manifest, arrays)
    reached("stored")
    return ReleaseRef(key=key, kind=artefact.kind, party=release.owner)


def store_combination(combination: PlannedCombination, artefact: Artefact) -> ReleaseRef:
    """Store what the server made out of releases: post-processing, free."""
    store, key = open_releases(), combination.key
    if not store.exists(key):
        store.write(key, manifest_of(combination, artefact.kind), artefact.arrays())
    return ReleaseRef(key=key, kind=artefact.kind, party="server")


def manifest_of(
    planned: PlannedRelease | PlannedCombination, kind: str, diagnostics: Mapping[str, float] | None = None
) -> Json:
    """Return what a release says of itself: all of it follows from what was planned, but what a solver said.

    It holds all that the identity is made of, so that whoever reads the manifest can derive it once more and compare.

    Parameters
    ----------
    planned : PlannedRelease or PlannedCombination
    kind : str
        Of the artefact.
    diagnostics : mapping, optional
        What a solver said of its own work.
    """
    manifest: Json = {"format_version": 1, "key": planned.key, "artefact": kind}
    if isinstance(planned, PlannedCombination):
        parts = planned.model_dump(mode="json", exclude={"label", "code"})
        return {**manifest, "label": planned.label, "post_processing": parts, "code": planned.code}
    algorithm, guarantee = planned.build(), planned.guarantee()
    claim = algorithm.claim
    return {
        **manifest,
        "reads_rows": planned.reads_rows,
        **planned.model_dump(mode="json", exclude={"account", "delta", "seed"}),
        "guarantee": guarantee.to_json(),
        **whole_promise(guarantee.losses),
        "claim": None
        if claim is None
        else {"statement": claim.statement, "theorem": claim.theorem, "flaw": claim.flaw},
        "source": algorithm.source,
        "public_seed": planned.seed,
        "diagnostics": dict(diagnostics or {}),
    }


# ── rows, seen through released artefacts ─────────────────────────────────────────────────────────────────────────────


class RedactedError(Exception):
    """An algorithm failed on private rows; its message and traceback are beside the rows, for their owner alone."""


@contextmanager
def redacted(key: str, label: str, *, private: bool) -> Iterator[None]:
    """Replace what is raised on private rows by an error without their values.

    Algorithms are total, so this is for their faults.

    Parameters
    ----------
    key, label : str
        Of the release that is being made.
    private : bool
        False lets everything through.

    Raises
    ------
    RedactedError
        In place of whatever was raised, except errors of storage, of secrets and of secure sums, which name no row.
    """
    try:
        yield
    except (StorageError, RefusedError, SecureAggregationError):
        raise
    except Exception:
        if not private:
            raise
        place = current_layout().private / "errors" / f"{key}.txt"
        write_bytes(place, traceback.format_exc().encode(), mode=0o600)
        raise RedactedError(
            f"{label} failed on private rows; the error may hold their values and is kept for their owner in {place}"
        ) from None


RowMaps = Sequence[RowMap]


def maps_of(upstream: Sequence[ReleaseRef], branches: Sequence[int] = ()) -> RowMaps:
    """Open the released artefacts that rows pass through, in turn, or in several branches side by side.

    Parameters
    ----------
    upstream : sequence of ReleaseRef
    branches : sequence of int
        Lengths of the branches that ``upstream`` is made of; what comes out of each stands beside the others. None: all
        in turn.
    """
    artefacts = [read_release(reference) for reference in upstream]
    maps = [PublicView((one,)) if isinstance(one, RowFeatures) else one.apply for one in artefacts]
    if not branches:
        return maps
    ends = list(itertools.accumulate(branches))
    return [_Beside([maps[end - length : end] for end, length in zip(ends, branches, strict=True)])]


@dataclass(frozen=True, slots=True)
class _Beside:
    """What comes out of several branches, side by side."""

    branches: Sequence[RowMaps]

    def __call__(self, features: Features) -> Features:
        beside = [
            functools.reduce(lambda seen, one: one(np.asarray(seen, dtype=np.float64)), branch, features)
            for branch in self.branches
        ]
        return np.asarray(np.hstack(beside), dtype=np.float64)


def fitting_maps(planned: PlannedRelease, shards: Sequence[ShardRef], upstream: Sequence[ReleaseRef]) -> RowMaps:
    """Open what a release's rows are seen through, and refuse what does not fit them; no row is read.

    Raises
    ------
    RefusedError
        If the artefacts do not map rows of the shards' features to what the release is planned for.
    dpalgos.parameters.ParameterError
        If they hold numbers that are not finite.
    """
    maps = maps_of(upstream, planned.branches)
    for dimension in {shard.dataset.dimension for shard in shards}:
        if not fits(maps, dimension, planned.setting.dimension):
            raise RefusedError(
                f"{planned.label} reads {planned.setting.dimension} features, and rows of {dimension} seen through "
                f"{', '.join(reference.key[:12] for reference in upstream) or 'nothing'} do not have them"
            )
    return maps


def rows_of(shard: ShardRef, maps: RowMaps, dimension: int) -> Rows:
    """Open a shard, seen through released artefacts in turn; ``dimension`` features come out.

    On a Dask worker, a shard of several files is summed by all workers, a file at a time. A public map that comes first
    and is slow is applied once for the shard's version, and what it gives is kept; on a worker it is used where it is.
    """
    # Nothing is to be made for reading, and this is asked for each of many thousand parties.
    rows = open_shard(Layout(current_root()), shard)
    spread = on_dask_worker()
    views, left = views_of(shard, maps)
    source: StoredRows | KeptRows = rows
    for passed, view in zip(range(len(views), 0, -1), views, strict=True):
        kept = kept_rows(shard, rows, view, make=not spread)
        if kept is not None:
            source, left = kept, left[passed:]
            break
    if spread and len(rows.files) > 1:
        return SpreadRows(
            [_seen(part, left, dimension) for part in source.by_file()],
            lambda contribution, parts: map_over_workers(functools.partial(_contribution, shard, contribution), parts),
        )
    return _seen(source, left, dimension)


def _seen(rows: Rows, maps: RowMaps, dimension: int) -> Rows:
    return MappedRows(rows, maps, dimension) if maps else rows


def _contribution(shard: ShardRef, contribution: Callable[[Rows], Ints], part: Rows) -> Ints:
    # A worker logs what is raised on it.
    with redacted(
        f"{shard.partition}-{shard.party}", f"a sum over rows of {shard.party}", private=shard.dataset.private
    ):
        return contribution(part)


class NightRows:
    """A party's rows of one night of a stream (:class:`~dpalgos.rows.Rows`), and its nights before.

    A night's sum is kept write-once in the party's private folder: what a night has added to one release it adds to all
    later ones, whatever becomes of the rows and of libraries. It is bound to the rows that it was formed of: one of
    other rows than the plan names is refused (:mod:`tasks.preparation.streams`). A night that the party missed is
    formed when it is next asked for. Where the factor has fewer bands than the horizon nights, sums that no later night
    asks for are removed.

    Parameters
    ----------
    planned : PlannedNight
    shard : ShardRef
        Of tonight.
    maps : sequence of callable
        What rows pass through.
    """

    def __init__(self, planned: PlannedNight, shard: ShardRef, maps: RowMaps) -> None:
        self._night, self._dimension, self._maps = planned.stream.night, planned.setting.dimension, maps
        self._planned, self._shard = planned, shard
        self._notes = notes_of(planned, shard.party)
        self._before = planned.night_keys[: planned.stream.night - 1]
        # The night before was the last that asked for it, and is released.
        self._expired = planned.stream.night - planned.stream.factor.kept_nights

    @cached_property
    def _rows(self) -> Rows:
        return rows_of(self._shard, self._maps, self._dimension)

    @property
    def count(self) -> int:
        """Rows of tonight."""
        return self._shard.rows

    @property
    def dimension(self) -> int:
        """Features a row."""
        return self._dimension

    def blocks(self) -> Iterator[Block]:
        """Yield tonight's rows."""
        yield from self._rows.blocks()

    def fingerprint(self) -> NDArray[np.uint8]:
        """Return the digest of tonight's rows."""
        return self._rows.fingerprint()

    def released(self) -> list[Ints]:
        """Return what is stored of the nights before.

        Raises
        ------
        StorageError
            If one of them is not stored.
        """
        store = open_releases()
        return [store.read(key)[1]["values"] for key in self._before]

    def sum_of(self, night: int, form: Callable[[Rows], Ints]) -> Ints:
        """Return the sum of a night as it was frozen; where it was not, form it of that night's rows and freeze it.

        Raises
        ------
        StorageError
            If a night was neither frozen nor are its rows stored.
        RefusedError
            If it was frozen, or came, with other rows than the plan names.
        """
        noted, kept = self._noted(night), self._notes.get(f"sum-{night}")
        if kept is None:
            require_positions(self._planned, noted, night)
            data = io.BytesIO()
            rows = self._rows if night == self._night else rows_of(noted.shard, self._maps, self._dimension)
            np.save(data, form(rows), allow_pickle=False)
            kept = self._notes.put(f"sum-{night}", pack_sum(noted, data.getvalue()))
            if night == self._night:
                self._notes.discard(f"sum-{self._expired}")
        frozen = unpack_sum(self._planned, night, noted, kept)
        return cast(Ints, np.load(io.BytesIO(frozen), allow_pickle=False))

    def _noted(self, night: int) -> Arrived:
        noted = arrival_noted(self._notes, self._planned, self._shard, night)
        if noted is None:
            raise StorageError(
                f"party {self._shard.party} has no note of which rows are those of night {night}, and so no sum of "
                "them: restore its private folder from a back-up; if they were removed for good, the horizon ends "
                "here, and the next one begins with the versions after its last night"
            )
        return noted


# ── deadlines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


_Made = TypeVar("_Made")


class DeadlineMissError(RefusedError):
    """Work on private rows took longer than the declared deadline; nothing is released, and the charge stands."""


def wait_for_deadline(planned: PlannedRelease, begun: float | None = None) -> None:
    """Wait until what was made of rows may show; nothing where no deadline was declared.

    Guarantee
    ---------
    What happens afterwards begins at ``begun + seconds`` whatever the rows, but for misses, whose probability is
    declared and charged (:func:`dpalgos.accounting.costs.loss_of_deadline_misses`). Idealised: how soon a sleeping
    process is woken does not depend on what it did before, and neither do the processor's caches and clock, the free
    memory and the other processes that it left. What observes the processor or the memory meanwhile is not covered.

    Parameters
    ----------
    planned : PlannedRelease
    begun : float, optional
        By the monotonic clock. None before it is begun: nothing is waited for, and a release whose deadline passed
        before is refused, since another attempt would be timed anew and uncharged.

    Raises
    ------
    DeadlineMissError
        If it has passed.
    """
    _await([planned], planned.label, begun)


def prepare_in_time(plan: RunPlan, what: str, prepare: Callable[[], _Made]) -> _Made | None:
    """Do what a charged plan's releases need of private rows before they read them; it shows at its own instant.

    Its clock is the deadline of the releases, which have paid for a miss of it
    (:meth:`tasks.planning.plans.Deadline.misses`). Whoever has been late once is late for good: the releases of the
    plan are refused from then on, so that nothing is timed again under the same charge. Where all of them are stored
    nothing is done, for nothing will be read.

    Parameters
    ----------
    plan : RunPlan
        Charged, with a deadline.
    what : str
        For people: what is prepared.
    prepare : callable
        Says nothing while it works.

    Returns
    -------
    object or None
        What was prepared; None where nothing was to be done.

    Raises
    ------
    DeadlineMissError
        If it takes longer than the deadline, or one of the releases was late before.
    RedactedError
        If something else goes wrong on private rows.
    """
    timed = [release for release in plan.releases if release.deadline is not None]
    if all(open_releases().exists(release.key) for release in timed):
        return None
    _await(timed, what, None)
    begun = time.monotonic()
    with redacted(plan.run_key, what, private=True), quietly():
        prepared = prepare()
    _await(timed, what, begun)
    return prepared


def _await(timed: Sequence[PlannedRelease], what: str, begun: float | None) -> None:
    """Wait until what was made for some releases of one deadline may show; see :func:`wait_for_deadline`."""
    deadline = timed[0].deadline
    if deadline is None:
        return
    # As roots have called the folder from the first: what was missed there is not tried again.
    missed = [current_layout().private / "overruns" / release.key for release in timed]
    left = 0.0 if begun is None else begun + deadline.seconds - time.monotonic()
    if left < 0:
        for mark in missed:
            write_bytes(mark, b"", mode=0o600)
    if left < 0 or (begun is None and any(mark.exists() for mark in missed)):
        raise DeadlineMissError(
            f"{what} was not made within the deadline of {deadline.seconds:g} s and is not released; "
            "its charge stands and everything else is kept. It is not tried again, since how long it takes may tell of "
            "the rows: choose a larger --deadline, a new release with a charge of its own"
        )
    time.sleep(left)


# ── the door ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def charge_plan(plan: RunPlan, shards: Sequence[ShardRef]) -> Json:
    """Charge all releases of a run together, before any of its rows is read and any noise exists.

    Raises
    ------
    RefusedError
        If something may not read these rows, or the cap would be exceeded; nothing is charged then.
    """
    return admit_plan(plan, shards)


class OpenRelease:
    """A release that was admitted and charged: hands out rows and noise, takes one artefact and stores it once.

    Made by :func:`open_release`.

    Attributes
    ----------
    planned : PlannedRelease
    key : str
    stored : ReleaseRef or None
        Where it is stored already, that is the release, and nothing is to be made.
    """

    def __init__(
        self,
        planned: PlannedRelease,
        key: str,
        shards: Sequence[ShardRef],
        maps: RowMaps,
        stored: ReleaseRef | None,
    ) -> None:
        self.planned, self.key, self.stored = planned, key, stored
        self._shards, self._maps = shards, maps
        self._diagnostics: dict[str, float] = {}
        self._begun = time.monotonic() if shards and stored is None else None

    @cached_property
    def rows(self) -> list[Rows]:
        """The shards' rows, seen through the upstream artefacts."""
        self._require_unmade()
        if isinstance(self.planned, PlannedNight):
            return [NightRows(self.planned, shard, self._maps) for shard in self._shards]
        return [rows_of(shard, self._maps, self.planned.setting.dimension) for shard in self._shards]

    @cached_property
    def noises(self) -> list[KeyedNoise]:
        """The noise, one source a maker; a part of the parties gets its own."""
        self._require_unmade()
        contributors = self.planned.noise_contributors
        own = contributors if self._whole else tuple(shard.party for shard in self._shards)
        if not set(own) <= set(contributors):
            raise RefusedError(
                f"{self.planned.label} is drawn by {contributors[0]!r} for all its parties, not by one of them"
            )
        return noises_of(self.planned, self.key, own, open_ledger())

    @property
    def _whole(self) -> bool:
        # What reads no rows is given none.
        return not self.planned.reads_rows or tuple(shard.party for shard in self._shards) == self.planned.parties

    def _require_unmade(self) -> None:
        # What is stored was not admitted again: there is nothing to make, so nothing is handed out.
        if self.stored is not None:
            raise RefusedError(f"{self.planned.label} is stored already; a release is made and stored once")

    def _require_whole(self) -> None:
        if not self._whole:
            parties = ", ".join(shard.party for shard in self._shards) or "none"
            raise RefusedError(
                f"{self.planned.label} reads the rows of the parties {', '.join(self.planned.parties)}, in this order, "
                f"and is given those of {parties}"
            )

    def fit(self) -> Artefact:
        """Run the planned algorithm over the rows; numbers about its work are kept where the rows are public."""
        planned, setting = self.planned, self.planned.setting
        self._require_whole()
        algorithm = planned.build()
        if isinstance(algorithm, PublicMap) and algorithm.kept:
            return public_map(planned.algorithm, setting)
        # Parties' releases are made side by side; those that hold their rows take turns where not all fit.
        with claim(algorithm.work(setting).held):
            return self._fitted(algorithm)

    def _fitted(self, algorithm: Algorithm) -> Artefact:
        planned, setting = self.planned, self.planned.setting
        if isinstance(algorithm, Diagnosing) and self._shards and not self._shards[0].dataset.private:
            diagnosed, self._diagnostics = algorithm.diagnostics(self.rows, setting, self.noises[0])
            return diagnosed
        summation = None
        if is_sum_algorithm(algorithm):
            sums, record = cast(SumAlgorithm, algorithm), StoredRecord(self.key, planned.parties)
            summation = planned.trust_model().summation(sums, setting, self.noises, self.key, record)
        return fit(algorithm, self.rows, setting, self.noises[0], summation, self._say_step)

    def _say_step(self, done: int, steps: int) -> None:
        """Say which of the planned steps is done; not where nothing may show before a deadline."""
        if steps > 1 and self.planned.deadline is None:
            say("steps", f"{self.planned.label}, {done} of {steps}", done / steps)

    def await_deadline(self) -> None:
        """Wait, once, until what was made of rows may show: in the store, in a message or as the end of a task.

        Raises
        ------
        DeadlineMissError
            If the planned deadline has passed.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            wait_for_deadline(self.planned, begun)

    def store(self, artefact: Artefact) -> ReleaseRef:
        """Store the artefact as the release.

        Raises
        ------
        RefusedError
            If one was stored, only some of the parties' rows were handed out, or the deadline has passed.
        """
        self._require_unmade()
        if self._shards:
            self._require_whole()
        self.await_deadline()
        self.stored = store_release(self.planned, artefact, self._diagnostics)
        return self.stored


@contextmanager
def open_release(
    planned: PlannedRelease, shards: Sequence[ShardRef] = (), upstream: Sequence[ReleaseRef] = ()
) -> Iterator[OpenRelease]:
    """Declare and charge a release, and hand out what it is made of; exactly once, whatever crashed before.

    The first stored copy is the release. Where none is stored it is made; the charge is on disk before any row is read
    and any noise exists, and the noise is keyed by the party's secret, the identity and the value it hides, so that a
    retry repeats the bytes.

    Parameters
    ----------
    planned : PlannedRelease
    shards : sequence of ShardRef
        The shards it reads, in the order of its parties. Those of some of its parties only: these do their part, where
        the whole was charged before. None: the server, which stores what parties have sent.
    upstream : sequence of ReleaseRef
        The artefacts its rows are seen through, in turn: a projection, and for an evaluation the model.

    Raises
    ------
    RefusedError
        If it may not read these rows, or was not charged and the cap does not admit it.
    SecretError
        If it was charged under a secret that is gone: noise is never drawn anew for a charged release.
    DeadlineMissError
        If it was not made within its deadline, now or before.
    RedactedError
        If something else goes wrong on private rows: the error may hold their values.
    """
    stored = stored_release(planned)
    set_memory_limit(kept_memory())
    maps: RowMaps = ()
    if stored is None:
        # Declare: from public facts alone.
        planned.guarantee()
        reached("declared")
        wait_for_deadline(planned)
        if shards:
            require_upstream(planned, upstream)
            maps = fitting_maps(planned, shards, upstream)
        if isinstance(planned, PlannedNight) and shards:
            require_current(planned, shards[0].dataset)
        admit([planned], shards, run=planned.name)
        reached("charged")
    with redacted(planned.key, planned.label, private=any(shard.dataset.private for shard in shards)):
        # The clock starts when rows can be read and not before: waiting for the ledger is no work on rows.
        release = OpenRelease(planned, planned.key, shards, maps, stored)
        yield release
        release.await_deadline()


def make_release(
    planned: PlannedRelease, shards: Sequence[ShardRef], upstream: Sequence[ReleaseRef] = ()
) -> ReleaseRef:
    """Make one release by running its algorithm; return it where it is stored already."""
    with open_release(planned, shards, upstream) as release:
        return release.stored or release.store(release.fit())


def combine(combination: PlannedCombination, releases: Sequence[ReleaseRef]) -> ReleaseRef:
    """Combine releases into one and store it.

    Raises
    ------
    RefusedError
        If the releases are not those that the combination was planned of.
    ParameterError
        If the releases are of a kind that the aggregator does not combine.
    """
    require_upstream(combination, releases)
    combines, artefacts = combination.build().combines, [read_release(release) for release in releases]
    if other := {artefact.kind for artefact in artefacts} - {combines}:
        raise ParameterError(
            f"{combination.algorithm.name} combines releases of kind {combines}, and the parties' are of kind "
            f"{', '.join(sorted(other))}; train a linear kernel (--param kernel=linear), or all rows together "
            "(--trust central)"
        )
    return store_combination(combination, combination.combine(artefacts))
