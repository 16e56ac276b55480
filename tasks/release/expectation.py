"""Expectations: the time, memory and passes that a run will ask of this machine, told from its plan.

What is told of people's rows follows from how many people there are and from the most rows of each, which are public.
No stored row, no file below ``private/`` and no decision that rests on one has a part in it. So what depends on how
many rows people have is a range: from one row each to the limit each.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
from threadpoolctl import threadpool_limits

from dpalgos.algorithms import Work
from dpalgos.features.public_map import PublicMap, RowFeatures
from dpalgos.guarantees import Setting
from dpalgos.resources import room_for
from dpalgos.rows import cores
from dpalgos.trainers.tuned import Tuned
from storage.confined import kept_memory
from storage.errors import InputError
from storage.refs import DatasetRef, ShardRef
from storage.rowfiles import RowFormat
from tasks.accounts.ledger import open_ledger
from tasks.planning.configuration import TrainingConfig
from tasks.planning.nights import PlannedNight
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedRelease
from tasks.planning.rows import FeatureStep, MappedRows, NormalisedRows
from tasks.preparation.mapped_rows import PublicView, are_kept, has_room, is_worth_keeping, part_of
from tasks.preparation.public_maps import (
    are_features_kept,
    are_made,
    encoding,
    found_map,
    public_maps_of,
    stored_map,
)
from tasks.release.preflight import require_feasible
from tasks.runtime.engine import has_databases
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_releases

_BYTES = 4
# What was measured in seconds of a processor; a machine's own speed scales it.
_REFERENCE_LOOP = 0.0105
# Synthetic rows that a public map is timed on, and up to so many operations it is made for that.
_TIMED_ROWS, _MADE_TO_BE_TIMED = 64, 1e8
# How often each piece of work is timed, and how many of a run's processes are at work at once while the engine starts.
_REPEATS, _STARTING = 10, 1.4
_START = 7.0
_NEW_ROOT = 5.5
_RECORD = 1.5
_COMPILING = 2.0
_TASK = 0.06
_RELEASE = 0.02
_READ = 1.5e-9
_ENCODE = 5e-9
_SMALL = 45e-9
_STORE = 30e-9
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
class Speeds:
    """How fast this machine is, and what else it does just now.

    Parameters
    ----------
    operations : float
        Floating-point operations in products of matrices, in a second of one core's processor time.
    interpreted : float
        Times that the interpreter is as fast as the reference machine, in processor time.
    cores : int
    others : float
        How many threads of other work want the cores; 0 on a machine that does nothing else.
    """

    operations: float
    interpreted: float
    cores: int
    others: float = 0.0

    def share(self, threads: float) -> float:
        """Return how many cores' time so many threads have beside the others; at most the cores there are."""
        return min(self.cores, threads, self.cores * threads / (threads + self.others))


def measure_speeds() -> Speeds:
    """Measure the machine for a tenth of a second of processor time; products on one thread, as the door has them.

    Speeds are those of processor time, which other work hardly changes. How much other work there is both the system's
    load and the share that this measurement had of a core say; the smaller counts, since a container's load is that of
    its host, and a moment's share that of a moment.
    """
    matrix = np.ones((400, 400))

    def loop() -> None:
        total = 0
        for number in range(500_000):
            total += number

    started = time.perf_counter(), time.process_time()
    with threadpool_limits(limits=1, user_api="blas"):
        product, looped = (_quickest(work) for work in (lambda: matrix @ matrix, loop))
    wall, spent = time.perf_counter() - started[0], time.process_time() - started[1]
    wanting = cores() * wall / spent - 1.0
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else wanting
    return Speeds(
        operations=2 * 400**3 / product,
        interpreted=_REFERENCE_LOOP / looped,
        cores=cores(),
        others=max(0.0, min(wanting, load)),
    )


def _quickest(work: Callable[[], object]) -> float:
    """Return the processor time that some work takes, undisturbed."""
    best = np.inf
    for _ in range(_REPEATS):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What is expected of a run.

    Attributes
    ----------
    rows, rows_per_person, dimension, parties : int
        Records, and rows of each at most.
    person : str
        The column that names people; empty where records are rows.
    releases : int
        That read rows, those of the evaluation included.
    charged, stored : int
        Of these, how many are charged already and cost nothing more, and how many are stored and are not made again.
    candidates : int
        Trainings of which the best is released, where parameters are tuned on private rows; else 1.
    passes : int
        Looks at every row, of the release that has most.
    operations, least_operations : float
        Floating-point operations of all releases: at the limit of rows each, and at one row each. They differ where
        people have rows.
    read_bytes, least_read_bytes : int
        Of rows, from disk; likewise.
    memory_bytes : int
        Peak of the process, at the limit of rows each.
    streamed : float
        Share of the rows that are encoded again at every pass because they do not fit the limit on what is kept, at the
        limit of rows each; all are read then.
    epsilon, delta : float or None
        The budget.
    seconds, least_seconds : float
        On this machine beside the other work that it does just now, at the limit of rows each, and at one row each.
    processor_seconds, least_processor_seconds : float
        Of all cores together, however busy they are; likewise.
    night, nights : int
        Which night of how many; 0 without a horizon. The first is charged for all.
    mapping_seconds : float
        Of these, what each reading of all rows takes because they pass through a slow public map anew, at the limit of
        rows each; 0 where they are kept as it shows them, or will be.
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
    read_bytes: int
    least_read_bytes: int
    memory_bytes: int
    streamed: float
    epsilon: float | None
    delta: float
    seconds: float
    least_seconds: float
    processor_seconds: float
    least_processor_seconds: float
    mapping_seconds: float
    night: int = 0
    nights: int = 0
    measured_by: str = ""


def expect(
    plan: RunPlan,
    dataset: DatasetRef,
    speeds: Speeds,
    *,
    to_store: int,
    limit: int,
    new_root: bool = False,
    mapped: bool = False,
    anew: bool = False,
    encoded: Sequence[FeatureStep] = (),
    charged: int = 0,
    stored: Container[str] = (),
    made: Container[str] = (),
    first: Sequence[FeatureStep] = (),
    nights: Sequence[PlannedNight] = (),
    timed: Mapping[str, float] | None = None,
) -> Expectation:
    """Return what a run of a plan will ask for beyond what there is.

    Processor seconds are meant to be right within a factor of two. So are the seconds that pass, where the other work
    on the machine stays what it was when its speeds were measured.

    Parameters
    ----------
    plan : RunPlan
    dataset : DatasetRef
        The rows that are partitioned.
    speeds : Speeds
    to_store : int
        How many times all rows are written on the way: mapped, or partitioned, for the first time.
    limit : int
        Bytes of rows that may be kept between passes.
    new_root : bool
        Whether the engine's databases are made first.
    mapped : bool
        Whether the rows are kept as the plan's public maps show them; never of people.
    anew : bool
        Whether rows pass through these maps at every reading, for want of room or because they are few.
    encoded : sequence of FeatureStep
        Maps before everything else that rows pass through at every reading, for want of room.
    charged : int
        How many releases are charged already.
    stored : collection of str
        Keys of releases that are stored: they read nothing again.
    made : collection of str
        Keys of public maps among the projections that are stored: what is left is to map rows.
    first : sequence of FeatureStep
        Maps before everything else that all rows pass through once, to be kept as they show them.
    nights : sequence of PlannedNight
        The nights of a horizon that are to be released, tonight's last; of none where there is no horizon.
    timed : mapping of key to float, optional
        Processor seconds that one row takes through public maps, where they were tried on this machine; of the others
        it is reckoned from what they say of their work.
    """
    timed = timed or {}
    training = [one for one in plan.training.values() if isinstance(one, PlannedRelease)]
    reading: Sequence[PlannedRelease] = nights or [release for release in training if release.reads_rows]
    releases = [_tonight(one) for one in reading if one.key not in stored]
    maps = [] if mapped or not releases else [one for one in plan.projections if not one.reads_rows]
    works = [(release, release.build().work(release.setting)) for release in releases]
    room = room_for(sum(work.kept for _, work in works), limit)
    once = (_NEW_ROOT if new_root else 0.0) + (_COMPILING if plan.counts else 0.0)
    fixed = (_START + once + _RECORD + _TASK * len(reading)) / speeds.interpreted
    most, least = (
        _asked(
            [_of(each, one) for one in releases],
            [(_of(each, one), one.key in made) for one in maps],
            dataset,
            each,
            speeds,
            to_store,
            room,
            anew,
            encoded,
            first,
            timed,
        )
        for each in (dataset.rows_per_person, 1)
    )

    def passing(asked: _Asked) -> float:
        # The start is one chain of imports and answers, whichever process is at it.
        start = fixed / min(1.0, speeds.share(_STARTING))
        return round(start + asked.seconds / speeds.share(speeds.cores), 1)

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
        read_bytes=most.read_bytes,
        least_read_bytes=least.read_bytes,
        memory_bytes=_memory(works, maps, dataset, speeds.cores, limit, stored_first=to_store > 0),
        streamed=most.streamed,
        epsilon=plan.epsilon,
        delta=plan.delta,
        seconds=passing(most),
        least_seconds=passing(least),
        processor_seconds=round(fixed + most.seconds, 1),
        least_processor_seconds=round(fixed + least.seconds, 1),
        mapping_seconds=round(most.mapping / speeds.share(speeds.cores), 1),
        night=nights[-1].stream.night if nights else 0,
        nights=nights[-1].stream.nights if nights else 0,
        measured_by=plan.measured_by,
    )


def _tonight(release: PlannedRelease) -> PlannedRelease:
    """Return a release of the rows that it reads: a night's setting is of all that its horizon expects."""
    sizes = tuple(max(size, 1) for size in release.sizes)
    return release.model_copy(update={"setting": replace(release.setting, sizes=sizes)})


class _Asked(NamedTuple):
    """What depends on how many rows each person has; seconds are those of processors."""

    operations: float
    read_bytes: int
    seconds: float
    mapping: float
    streamed: float


def _of(each: int, release: PlannedRelease) -> PlannedRelease:
    """Return a release as it would be planned if nobody had more than so many rows."""
    return release.model_copy(update={"setting": replace(release.setting, rows_per_person=each)})


def _asked(
    releases: Sequence[PlannedRelease],
    maps: Sequence[tuple[PlannedRelease, bool]],
    dataset: DatasetRef,
    each: int,
    speeds: Speeds,
    to_store: int,
    room: int,
    anew: bool,
    encoded: Sequence[FeatureStep],
    kept_first: Sequence[FeatureStep],
    timed: Mapping[str, float],
) -> _Asked:
    """Return what is asked for where each person has so many rows; how much room is for them is decided before.

    Of each public map among the projections it is said whether it is made.
    """
    works = [(release, release.build().work(release.setting)) for release in releases]
    kept = sum(work.kept for _, work in works)
    streamed = 1.0 - room / kept if kept > room else 0.0
    read = sum(_numbers(release) * (work.passes if streamed and work.kept else 1) for release, work in works)
    numbers = dataset.rows * each * dataset.dimension
    seconds = numbers * _STORE * to_store / speeds.interpreted
    seconds += dataset.test_rows * each * dataset.dimension * _ENCODE / speeds.interpreted
    seconds += sum(_seconds(release, work, speeds, streamed) for release, work in works)
    tested = 1.0 + dataset.test_rows / max(dataset.rows, 1)
    through = sum(_mapping(release, speeds, timed) for release, _ in maps)
    seconds += tested * through + sum(_making(release, speeds) for release, made in maps if not made)
    seconds += sum(_encoding(step, (dataset.rows + dataset.test_rows) * each, speeds, timed) for step in kept_first)
    mapping = through if anew else 0.0
    first = sum(_encoding(step, dataset.rows * each, speeds, timed) for step in encoded)
    mapping, seconds = mapping + first, seconds + first
    readings = sum(release.setting.rows * _encodings(work, streamed) for release, work in works)
    seconds += max(0.0, readings / max(dataset.rows, 1) - 1.0) * mapping
    return _Asked(sum(work.operations for _, work in works), _BYTES * read, seconds, mapping, streamed)


def _encoding(step: FeatureStep, rows: int, speeds: Speeds, timed: Mapping[str, float]) -> float:
    """Return the seconds that rows take through a map before everything else; of a file's, those of one product."""
    if step.key in timed:
        return rows * timed[step.key]
    if step.algorithm is None or step.public is not None:
        return 2.0 * rows * step.takes * step.dimension / speeds.operations
    algorithm = step.algorithm.build()
    works = [
        algorithm.work(Setting(sizes=(size,), dimension=step.takes, classes=step.classes)) for size in (rows + 1, 1)
    ]
    operations, small = (
        works[0].operations - works[1].operations,
        works[0].small_operations - works[1].small_operations,
    )
    return float(operations / speeds.operations + small * _SMALL / speeds.interpreted)


def _mapping(release: PlannedRelease, speeds: Speeds, timed: Mapping[str, float]) -> float:
    """Return the seconds that all rows take through a public map, without those that making it takes."""
    if release.key in timed:
        return release.setting.most_rows * timed[release.key]
    whole = _seconds(release, release.build().work(release.setting), speeds, 0.0)
    return max(0.0, whole - _making(release, speeds))


def _making(release: PlannedRelease, speeds: Speeds) -> float:
    """Return the seconds that making a public map takes, with those of one row."""
    made = release.model_copy(update={"setting": replace(release.setting, sizes=(1,))})
    return _seconds(made, made.build().work(made.setting), speeds, 0.0)


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


def _encodings(work: Work, streamed: float) -> float:
    """Return how many times a release encodes its rows, where so large a share of them is not kept."""
    return 1.0 + (work.passes - 1) * streamed if work.kept else 1.0


def _seconds(release: PlannedRelease, work: Work, speeds: Speeds, streamed: float) -> float:
    """Return the processor seconds of one release; its blocks go over the cores."""
    reads = work.passes if streamed and work.kept else 1
    handled = _numbers(release) * (reads * _READ + _encodings(work, streamed) * _ENCODE)
    interpreted = handled + work.small_operations * _SMALL
    busy = interpreted / speeds.interpreted + work.operations / speeds.operations
    return _RELEASE + busy


def expect_run(config: TrainingConfig, speeds: Speeds | None = None) -> Expectation:
    """Return what a run will ask of this machine, from its plan; no row is read.

    Parameters
    ----------
    config : TrainingConfig
    speeds : Speeds, optional
        Of the machine; measured where nobody says.

    Raises
    ------
    InputError, ParameterError, RefusedError
        As :func:`~tasks.release.preflight.require_feasible` does, and where only the rows' content decides what would
        run.
    """
    prepared = require_feasible(config)
    if prepared.plan is None:
        raise InputError(
            f"partition {config.partition} depends on what rows contain: the plan is known only at the run"
        )
    plan, shards, layout = prepared.plan, prepared.shards.all, current_layout()
    nodes = [one for one in prepared.nodes.values() if isinstance(one, NormalisedRows | MappedRows)]
    missing = [one for one in nodes if one.rows.name == config.dataset and not _is_stored(one)]
    seen = [one for one in missing if isinstance(one, MappedRows) and not _has_room(one)]
    undealt = not all(layout.shard(shard.party, shard.partition, shard.dataset.version).exists() for shard in shards)
    views = _views(plan, shards)
    reading = [one for one in prepared.nodes.values() if isinstance(one, PlannedRelease) and one.reads_rows]
    store = open_releases()
    return expect(
        plan,
        shards[0].dataset,
        speeds or measure_speeds(),
        to_store=len(missing) - len(seen) + undealt,
        limit=kept_memory(),
        new_root=not has_databases(layout.root),
        mapped=views.kept,
        anew=views.anew,
        encoded=[step for one in seen for step in one.maps],
        charged=len(open_ledger().charged(release.key for release in plan.releases if release.reads_rows)),
        # What measures is no work of training's, and is stored like the rest.
        stored={one.key for one in (*reading, *plan.releases) if one.reads_rows and store.exists(one.key)},
        made={release.key for release, one in public_maps_of(plan) if found_map(release, one) is not None},
        first=[step for one in missing if isinstance(one, MappedRows) and one not in seen for step in one.maps],
        nights=[one for one in reading if isinstance(one, PlannedNight)],
        # A machine whose speeds are given is not tried.
        timed=dict(_timed_maps(plan, [step for one in missing if isinstance(one, MappedRows) for step in one.maps]))
        if speeds is None
        else None,
    )


def _timed_maps(plan: RunPlan, steps: Sequence[FeatureStep]) -> Iterator[tuple[str, float]]:
    """Yield what a row takes through the public maps that there are, or that are made at once, on synthetic rows."""
    for step in steps:
        if are_made([step.key]):
            yield step.key, _seconds_a_row(stored_map(step.key), step.takes)
        elif step.algorithm is not None and step.public is None:
            setting = Setting(sizes=(1,), dimension=step.takes, classes=step.classes)
            algorithm = step.algorithm.build()
            if isinstance(algorithm, PublicMap) and _is_made_at_once(algorithm, setting):
                yield step.key, _seconds_a_row(algorithm.map_for(step.takes), step.takes)
    for release, algorithm in public_maps_of(plan):
        found = found_map(release, algorithm)
        if found is not None:
            yield release.key, _seconds_a_row(found, release.setting.dimension)


def _is_made_at_once(algorithm: PublicMap, setting: Setting) -> bool:
    work = algorithm.work(setting)
    by_itself = type(algorithm).map_for is not PublicMap.map_for
    return by_itself and work.operations + work.small_operations < _MADE_TO_BE_TIMED


def _seconds_a_row(one: object, dimension: int) -> float:
    """Return the processor time of one row through a map; what it compiles at its first rows is not counted."""
    rows = np.random.default_rng(0).random((_TIMED_ROWS, dimension))
    apply = cast(RowFeatures, one).apply
    apply(rows[:1])
    started = time.process_time()
    apply(rows)
    return (time.process_time() - started) / _TIMED_ROWS


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
    """How rows are seen through a plan's public maps: as they are kept, or mapped anew whenever they are read."""

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
