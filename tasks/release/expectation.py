"""Expectations: the memory, passes and charges of a run, told from its plan.

What is told of people's rows follows from how many people there are and from the most rows of each, which are public.
No stored row, no file below ``private/`` and no decision that rests on one has a part in it. So what depends on how
many rows people have is a range: from one row each to the limit each.
"""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dpalgos.algorithms import Work
from dpalgos.features.public_map import RowFeatures
from dpalgos.resources import room_for
from dpalgos.rows import cores
from dpalgos.trainers.tuned import Tuned
from storage.confined import kept_memory
from storage.refs import DatasetRef, ShardRef
from storage.rowfiles import RowFormat
from tasks.accounts.ledger import open_ledger
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import TrainingConfig
from tasks.planning.nights import PlannedNight
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedRelease
from tasks.planning.rows import MappedRows, NormalisedRows
from tasks.preparation.mapped_rows import PublicView, are_kept, has_room, is_worth_keeping, part_of
from tasks.preparation.prepare import PreparedRun, whole
from tasks.preparation.public_maps import are_features_kept, are_made, encoding, found_map, public_maps_of
from tasks.release.preflight import require_feasible
from tasks.release.prices import Price, price_of, with_epsilon
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_releases

_BYTES = 4
# Resident in bytes, measured on runs of a few rows: engine and libraries before rows are read, compiled code, and the
# least that a whole run takes, its records and figures included.
_IMPORTED, _COMPILED, _LEAST_MEMORY = 410 * 2**20, 60 * 2**20, 480 * 2**20
# Releases of several parties that are made at once, and copies of a block while it is read and decoded, or brought into
# the unit ball and written.
_AT_ONCE, _READING, _STORING = 4, 3, 4
# Numbers a class of a test row that is scored, sorted and counted.
_SCORED = 4
# Bytes a row of a partition's positions, sorted and compared; bytes of a group of shards on their way to files.
_POSITION, _PARTITIONED_BYTES = 48, 2 * 2**27


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expected result of a run.

    Attributes
    ----------
    rows, rows_per_person, dimension, parties : int
        Records, and rows of each at most.
    person : str
        The column that names people; empty where records are rows.
    releases : int
        That read rows, those of the evaluation included.
    charged, stored : int
        Of these, how many are already charged and have no further cost, and how many are stored and are not made again.
    candidates : int
        Trainings of which the best is released, where parameters are tuned on private rows; else 1.
    passes : int
        Looks at every row, of the release that has most.
    operations, least_operations : float
        Floating-point operations in matrix products of all releases: at the limit of rows each, and at one row each.
        They differ where people have rows.
    small_operations, least_small_operations : float
        All other floating-point operations; likewise.
    read_bytes, least_read_bytes : int
        Of rows, from disk; likewise.
    memory_bytes : int
        Peak of the process, at the limit of rows each.
    streamed : float
        Share of the rows that are encoded again at every pass because they do not fit the limit on what is kept, at the
        limit of rows each; all are read then.
    mapped_again : bool
        Whether rows pass through a slow public map at every reading, because rows are not kept as it shows them.
    epsilon, delta : float or None
        The budget.
    price : Price or None
        The charge of the run; None where it is free.
    night, nights : int
        Which night of how many; 0 without a horizon. The first is charged for all.
    noise : float
        Noise of a horizon's last running sum, as a multiple of that of one release of all rows; 0 without a horizon.
    measured_by : str
        What measuring by group costs; empty where nothing is measured so.
    """

    rows: int
    rows_per_person: int
    person: str
    dimension: int
    parties: int
    releases: int
    charged: int
    stored: int
    candidates: int
    passes: int
    operations: float
    least_operations: float
    small_operations: float
    least_small_operations: float
    read_bytes: int
    least_read_bytes: int
    memory_bytes: int
    streamed: float
    mapped_again: bool
    epsilon: float | None
    delta: float
    price: Price | None = None
    night: int = 0
    nights: int = 0
    noise: float = 0.0
    measured_by: str = ""


def expect(
    plan: RunPlan,
    dataset: DatasetRef,
    *,
    writes_rows: bool,
    limit: int,
    cores: int,
    mapped: bool = False,
    mapped_again: bool = False,
    charged: int = 0,
    stored: Container[str] = (),
    nights: Sequence[PlannedNight] = (),
    price: Price | None = None,
) -> Expectation:
    """Return what a run of a plan will ask for beyond what there is.

    Parameters
    ----------
    plan : RunPlan
    dataset : DatasetRef
        The rows that are partitioned.
    writes_rows : bool
        Whether rows are written before they are read: mapped, or partitioned, for the first time.
    limit : int
        Bytes of rows that may be kept between passes.
    cores : int
        Over which blocks of rows go.
    mapped : bool
        Whether the rows are kept as the plan's public maps show them; never of people.
    mapped_again : bool
        Whether rows pass through public maps at every reading, for want of room or because they are few.
    charged : int
        How many releases are charged already.
    stored : collection of str
        Keys of releases that are stored: they read nothing again.
    nights : sequence of PlannedNight
        The nights of a horizon that are to be released, tonight's last; of none where there is no horizon.
    price : Price, optional
    """
    training = [one for one in plan.training.values() if isinstance(one, PlannedRelease)]
    reading: Sequence[PlannedRelease] = nights or [release for release in training if release.reads_rows]
    releases = [_tonight(one) for one in reading if one.key not in stored]
    maps = [] if mapped or not releases else [one for one in plan.projections if not one.reads_rows]
    works = [(release, release.build().work(release.setting)) for release in releases]
    room = room_for(sum(work.kept for _, work in works), limit)
    most, least = (_asked([_of(each, one) for one in releases], room) for each in (dataset.rows_per_person, 1))
    return Expectation(
        rows=dataset.rows,
        rows_per_person=dataset.rows_per_person,
        person=dataset.person,
        dimension=dataset.dimension,
        parties=len({party for release in reading for party in release.parties}),
        releases=sum(release.reads_rows for release in plan.releases),
        charged=charged,
        stored=len({one.key for one in (*reading, *plan.releases) if one.reads_rows and one.key in stored}),
        candidates=max((_candidates(release) for release in reading), default=1),
        passes=max((work.passes for _, work in works), default=0),
        operations=most.operations,
        least_operations=least.operations,
        small_operations=most.small_operations,
        least_small_operations=least.small_operations,
        read_bytes=most.read_bytes,
        least_read_bytes=least.read_bytes,
        memory_bytes=_memory(works, maps, dataset, cores, limit, stored_first=writes_rows),
        streamed=most.streamed,
        mapped_again=mapped_again and bool(releases),
        epsilon=plan.epsilon,
        delta=plan.delta,
        price=price,
        night=nights[-1].stream.night if nights else 0,
        nights=nights[-1].stream.nights if nights else 0,
        noise=nights[-1].stream.factor.error_of(nights[-1].stream.nights) if nights else 0.0,
        measured_by=plan.measured_by,
    )


def _tonight(release: PlannedRelease) -> PlannedRelease:
    """Return a release of the rows that it reads: a night's setting is of all that its horizon expects."""
    sizes = tuple(max(size, 1) for size in release.sizes)
    return release.model_copy(update={"setting": replace(release.setting, sizes=sizes)})


class _Asked(NamedTuple):
    """Amounts of work that depend on how many rows each person has."""

    operations: float
    small_operations: float
    read_bytes: int
    streamed: float


def _of(each: int, release: PlannedRelease) -> PlannedRelease:
    """Return a release as it would be planned if nobody had more than so many rows."""
    return release.model_copy(update={"setting": replace(release.setting, rows_per_person=each)})


def _asked(releases: Sequence[PlannedRelease], room: int) -> _Asked:
    """Return what is asked for where each person has so many rows; how much room is for them is decided before."""
    works = [(release, release.build().work(release.setting)) for release in releases]
    kept = sum(work.kept for _, work in works)
    streamed = 1.0 - room / kept if kept > room else 0.0
    read = sum(_numbers(release) * (work.passes if streamed and work.kept else 1) for release, work in works)
    return _Asked(
        operations=sum(work.operations for _, work in works),
        small_operations=sum(work.small_operations for _, work in works),
        read_bytes=_BYTES * read,
        streamed=streamed,
    )


def _memory(
    works: Sequence[tuple[PlannedRelease, Work]],
    maps: Sequence[PlannedRelease],
    dataset: DatasetRef,
    cores: int,
    limit: int,
    *,
    stored_first: bool,
) -> int:
    """Return the peak of the process: the most of its stages, each what it holds above the libraries.

    Rows are mapped and partitioned; public maps are made; releases read blocks, keep rows or hold them, and add up;
    test rows are scored.
    """
    block = min(dataset.most_rows, RowFormat(dataset.dimension, dataset.labels).block_rows)
    mapping = [one.build().work(one.setting) for one in maps]
    reading = block * (4 * _READING * dataset.dimension + max((work.row for work in mapping), default=0))
    tested = (dataset.test_rows or dataset.rows // 5) * dataset.rows_per_person
    scores = 8 * _SCORED * tested * max(len(dataset.classes), 1)
    stages = [reading + scores, *(work.held for work in mapping)]
    if stored_first:
        partitioned = min(_PARTITIONED_BYTES, 8 * dataset.most_rows * dataset.dimension)
        stages.append(8 * _STORING * block * dataset.dimension + _POSITION * dataset.most_rows + partitioned)
    for level in {release.upstream for release, _ in works}:
        side_by_side = [(release, work) for release, work in works if release.upstream == level]
        summing = [
            # Blocks of held rows come one by one; sums have as many on their way as there are cores, and three.
            reading + work.sums * cores + 8 * block * release.setting.dimension * 2 * (1 if work.held else cores + 2)
            for release, work in side_by_side
        ]
        held = sorted(work.held for _, work in side_by_side)[-_AT_ONCE:]
        kept = room_for(sum(work.kept for _, work in side_by_side), limit)
        stages.append(sum(sorted(summing)[-_AT_ONCE:]) + kept + min(sum(held), max(limit, *held)))
    return max(_LEAST_MEMORY, _IMPORTED + _COMPILED + max(stages))


def _candidates(release: PlannedRelease) -> int:
    algorithm = release.build()
    return algorithm.count if isinstance(algorithm, Tuned) else 1


def _numbers(release: PlannedRelease) -> int:
    return release.setting.most_rows * release.setting.dimension


def expect_run(config: TrainingConfig) -> Expectation:
    """Return what a run will ask of this machine, from its plan; no row is read.

    Parameters
    ----------
    config : TrainingConfig
        Where it states no epsilon and the run draws noise, the run that :func:`~tasks.release.prices.with_epsilon`
        proposes.

    Raises
    ------
    InputError, ParameterError, RefusedError
        As :func:`~tasks.release.preflight.require_feasible` does, and where only the rows' content decides what would
        run.
    """
    prepared = whole(require_feasible(with_epsilon(config, find_dataset(config.dataset))))
    plan, releases = prepared.plan, open_releases()
    reading = [node for node in prepared.nodes.values() if isinstance(node, PlannedRelease) and node.reads_rows]
    # What measures is no work of training's, and is stored like the rest.
    keys = {release.key for release in (*reading, *plan.releases) if release.reads_rows}
    before = _before_releases(prepared)
    return expect(
        plan,
        prepared.shards.all[0].dataset,
        writes_rows=before.written,
        limit=kept_memory(),
        cores=cores(),
        mapped=before.kept,
        mapped_again=before.anew,
        charged=len(open_ledger().charged(release.key for release in plan.releases if release.reads_rows)),
        stored={key for key in keys if releases.exists(key)},
        nights=[release for release in reading if isinstance(release, PlannedNight)],
        price=price_of([prepared]),
    )


class _Before(NamedTuple):
    """Steps of a run's rows before its releases read them.

    Attributes
    ----------
    written : bool
        Whether rows are written: normalised, mapped or partitioned.
    kept : bool
        Whether they are kept as the plan's public maps show them.
    anew : bool
        Whether they are mapped anew whenever they are read.
    """

    written: bool
    kept: bool
    anew: bool


def _before_releases(prepared: PreparedRun) -> _Before:
    """Return what becomes of a run's rows before its releases, from what is stored and which room there is."""
    shards = prepared.shards.all
    views = _views(prepared.plan, shards)
    nodes = [node for node in prepared.rows.values() if isinstance(node, NormalisedRows | MappedRows)]
    missing = [node for node in nodes if node.rows.name == prepared.config.dataset and not _is_stored(node)]
    without_room = [node for node in missing if isinstance(node, MappedRows) and not _has_room(node)]
    return _Before(
        written=len(missing) > len(without_room) or not all(map(_is_written, shards)),
        kept=views.kept,
        anew=views.anew or any(node.maps for node in without_room),
    )


def _is_written(shard: ShardRef) -> bool:
    return current_layout().shard(shard.party, shard.partition, shard.dataset.version).exists()


def _is_stored(node: NormalisedRows | MappedRows) -> bool:
    """Whether a version is there, or its rows as public maps show them; of people's the latter is not looked at."""
    if isinstance(node, NormalisedRows):
        return current_layout().dataset(node.rows.version).exists()
    return not node.source.person and are_features_kept(node)


def _has_room(node: MappedRows) -> bool:
    """Whether rows may be kept as public maps show them; of people's rows this rests on the disk, and is not told."""
    parts = ["train", *(["test"] if node.source.test_rows else [])]
    return bool(node.source.person) or all(has_room(node.source, part, node.rows.dimension) for part in parts)


class _Views(NamedTuple):
    """Views of rows through a plan's public maps: as they are kept, or mapped again at each reading."""

    kept: bool
    anew: bool


def _views(plan: RunPlan, shards: Sequence[ShardRef]) -> _Views:
    """Return whether the shards' rows are kept as the plan's public maps show them, or will not be.

    Of people's rows nothing is said that rests on what lies in ``private/``: room on the disk, a copy that was removed.
    """
    dataset, maps = shards[0].dataset, public_maps_of(plan)
    assigned = Counter[str]()
    for shard in shards:
        assigned[part_of(shard)] += shard.rows
    worth = all(is_worth_keeping(dataset, part, records) for part, records in assigned.items())
    if dataset.person:
        return _Views(kept=False, anew=bool(maps) and not worth)
    made = [found_map(release, one) for release, one in maps]
    # Of a basis there is nothing to keep.
    slow = [(one, found) for (_, one), found in zip(maps, made, strict=True) if getattr(found, "kept", True)]
    made_all = all(found is not None for _, found in slow) and are_made(dataset.maps)
    first = encoding(dataset.maps) if dataset.maps and slow and made_all else None
    views = [_view(first, found) for _, found in slow] if made_all else [None]
    kept = bool(slow) and all(view is not None and are_kept(shards, view) for view in views)
    sizes = [one.output_dimension(dataset.dimension) for one, _ in slow]
    room = all(has_room(dataset, part, size) for part in assigned for size in sizes)
    return _Views(kept, bool(slow) and not kept and not (worth and room))


def _view(first: PublicView | None, found: object) -> PublicView | None:
    """Return the view of a public map behind those that come before everything; None of one that is not made."""
    if not isinstance(found, RowFeatures):
        return None
    return PublicView((found,)) if first is None else first.then(PublicView((found,)))
