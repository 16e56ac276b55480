"""What a run will ask of this machine, from its plan, before it starts: passes, operations, memory, seconds."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dpalgos.parallel import cores
from dpalgos.resources import Work
from dpalgos.trainers.tuned import Tuned
from storage.refs import DatasetRef
from storage.rowfiles import RowFormat
from tasks.planning.configuration import Json
from tasks.planning.plans import PlannedRelease, RunPlan

_BYTES = 4
# What was measured on two cores that did nothing else, in seconds; a machine's own speed scales it.
_REFERENCE_LOOP = 0.0105
_START = 7.5
_NEW_ROOT = 5.5
_RECORD = 1.5
_TASK = 0.06
_RELEASE = 0.02
_READ = 1.5e-9
_ENCODE = 5e-9
_SMALL = 45e-9
_STORE = 30e-9
# Resident in bytes, measured on runs of a few rows: engine and libraries before rows are read, compiled code, and the
# least that a whole run takes, its records and figures included.
_IMPORTED, _COMPILED, _LEAST = 410 * 2**20, 60 * 2**20, 480 * 2**20
# Releases of several parties that are made at once, and copies of a block while it is read and decoded, or brought into
# the unit ball and written.
_AT_ONCE, _READING, _STORING = 4, 3, 4
# Numbers a class of a test row that is scored, sorted and counted.
_SCORED = 4
# Bytes a row of a partition's positions, sorted and compared; bytes of a group of shards on their way to files.
_POSITION, _PARTITIONED_BYTES = 48, 2 * 2**27


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """How fast this machine is just now, its other work included.

    Parameters
    ----------
    operations : float
        Floating-point operations a second in products of matrices, on one core.
    interpreted : float
        Times that the interpreter is as fast as the reference machine.
    cores : int
    """

    operations: float
    interpreted: float
    cores: int


def measure_speeds() -> Speeds:
    """Measure the machine for a fifth of a second."""
    matrix = np.ones((400, 400))

    def loop() -> None:
        total = 0
        for number in range(500_000):
            total += number

    product = _quickest(lambda: matrix @ matrix)
    return Speeds(operations=2 * 400**3 / product, interpreted=_REFERENCE_LOOP / _quickest(loop), cores=cores())


def _quickest(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


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
    charged : int
        Of these, how many are charged already and cost nothing more.
    candidates : int
        Trainings of which the best is released, where parameters are tuned on private rows; else 1.
    passes : int
        Looks at every row, of the release that has most.
    operations : float
        Floating-point operations of all releases.
    read_bytes : int
        Of rows, from disk.
    memory_bytes : int
        Peak of the process.
    streamed : bool
        Whether rows are read again at every pass, because they do not fit the limit on what is kept.
    epsilon, delta : float or None
        The budget.
    seconds : float
    """

    rows: int
    rows_per_person: int
    person: str
    dimension: int
    parties: int
    releases: int
    charged: int
    candidates: int
    passes: int
    operations: float
    read_bytes: int
    memory_bytes: int
    streamed: bool
    epsilon: float | None
    delta: float
    seconds: float

    def to_json(self) -> Json:
        """Return a JSON object."""
        return asdict(self)


def expect(
    plan: RunPlan,
    dataset: DatasetRef,
    speeds: Speeds,
    *,
    to_store: int,
    limit: int,
    new_root: bool = False,
    mapped: bool = False,
    charged: int = 0,
) -> Expectation:
    """Return what a run of a plan will ask for, if none of its releases is stored.

    Seconds are meant to be right within a factor of two where nothing else keeps the machine busy.

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
        Whether the rows are kept as the plan's public maps show them.
    charged : int
        How many releases are charged already.
    """
    releases = [release for release in (*plan.projections, *plan.models) if release.reads_rows]
    works = [(release, release.build().work(release.setting)) for release in releases]
    kept = sum(work.kept for _, work in works)
    streamed = kept > limit
    numbers = dataset.most_rows * dataset.dimension
    read = sum(_numbers(release) * (work.passes if streamed and work.kept else 1) for release, work in works)
    start = _START + (_NEW_ROOT if new_root else 0.0)
    seconds = (start + _RECORD + _TASK * len(releases)) / speeds.interpreted
    seconds += numbers * _STORE * to_store / speeds.interpreted
    seconds += dataset.test_rows * dataset.rows_per_person * dataset.dimension * _ENCODE / speeds.interpreted
    seconds += sum(_seconds(release, work, speeds, streamed) for release, work in works)
    maps = [] if mapped else [release for release in plan.projections if not release.reads_rows]
    tested = 1.0 + dataset.test_rows / max(dataset.rows, 1)
    seconds += tested * sum(_seconds(release, release.build().work(release.setting), speeds, False) for release in maps)
    return Expectation(
        rows=dataset.rows,
        rows_per_person=dataset.rows_per_person,
        person=dataset.person,
        dimension=dataset.dimension,
        parties=len({party for release in releases for party in release.parties}),
        releases=sum(release.reads_rows for release in plan.releases),
        charged=charged,
        candidates=max((_candidates(release) for release in releases), default=1),
        passes=max((work.passes for _, work in works), default=0),
        operations=sum(work.operations for _, work in works),
        read_bytes=_BYTES * read,
        memory_bytes=_memory(works, maps, dataset, speeds.cores, limit, stored_first=to_store > 0),
        streamed=streamed,
        epsilon=plan.epsilon,
        delta=plan.delta,
        seconds=round(seconds, 1),
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
            # Blocks of rows that are held come one by one; sums have as many on their way as there are cores, and two.
            reading + work.sums * cores + 8 * block * release.setting.dimension * 2 * (1 if work.held else cores + 1)
            for release, work in side_by_side
        ]
        held = sorted(work.held for _, work in side_by_side)[-_AT_ONCE:]
        kept = min(sum(work.kept for _, work in side_by_side), limit)
        stages.append(sum(sorted(summing)[-_AT_ONCE:]) + kept + min(sum(held), max(limit, *held)))
    return max(_LEAST, _IMPORTED + _COMPILED + max(stages))


def _candidates(release: PlannedRelease) -> int:
    algorithm = release.build()
    return algorithm.count if isinstance(algorithm, Tuned) else 1


def _numbers(release: PlannedRelease) -> int:
    return release.setting.most_rows * release.setting.dimension


def _seconds(release: PlannedRelease, work: Work, speeds: Speeds, streamed: bool) -> float:
    """Return the seconds of one release; its blocks go over the cores."""
    reads = work.passes if streamed and work.kept else 1
    interpreted = _numbers(release) * reads * (_READ + _ENCODE) + work.small_operations * _SMALL
    # Products of few columns reach about half the speed of square ones.
    busy = interpreted / speeds.interpreted + 2.0 * work.operations / speeds.operations
    return _RELEASE + busy / speeds.cores
