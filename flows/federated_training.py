"""The main flow: plan a run, charge it, make it (rows, bases, models, their aggregation and evaluation), record it."""

import time
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, cast

from prefect import Flow, flow
from prefect.runtime import flow_run

from dpalgos.models import Statistic
from dpalgos.secure.rounds import Stage, run_rounds
from dpalgos.secure.summation import Masking
from storage.errors import RefusedError
from storage.refs import DatasetRef, ReleaseRef, ShardRef
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import TrainingConfig
from tasks.planning.graph import Node, materialise
from tasks.planning.nights import ArrivedRows, PlannedNight
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.rows import FeatureStep, MappedRows, NormalisedRows, Partition, RowNode, Shards
from tasks.preparation.prepare import (
    AwaitingPartition,
    Prepared,
    PreparedNight,
    PreparedRun,
    is_current,
    prepare,
    prepare_divided,
    record_night,
    whole,
)
from tasks.preparation.tuning import Choice, choose_on
from tasks.records import record
from tasks.release.admission import require_plan_admissible
from tasks.release.metrics import Evaluation
from tasks.releases import (
    aggregate,
    answer,
    charge,
    decide,
    evaluate,
    measure_model,
    open_rounds,
    open_sum,
    reduce_dimension,
    train_model,
)
from tasks.rows import arrive, extract_features, make_public_map, normalise, partition, prepare_rows, resolve_dataset
from tasks.runtime.ending import announcing_failures, one_run_a_dataset, refused
from tasks.runtime.events import dataset_resource
from tasks.runtime.progress import report_progress
from tasks.runtime.steps import Done, Future, Step, inline, is_inline, served_from_cache, threads
from tasks.tracking.artifacts import show_result, showing_progress
from tasks.tracking.reporting import announce_trained
from tasks.tracking.results import Chained, RunResult, summarise
from tasks.tracking.runs import logging_afterwards

_BLOCKS = 8

Answers = list[Future[list[str]]]


def plan(config: TrainingConfig) -> Prepared:
    """Look the data set up, ingest it where it comes along, and return the plan of a run."""
    for name in filter(None, (config.dataset, config.public_dataset, config.tuned_on)):
        resolve_dataset(name)
    return prepare(choose(config).config)


def chain(prepared: Prepared) -> Chained:
    """Charge a plan and make all of it: tasks of the current flow, or plain calls within ``inline()``.

    Parameters
    ----------
    prepared : Prepared
        The plan, made once (:func:`tasks.preparation.prepare.prepare`).

    Raises
    ------
    storage.errors.RefusedError
        If something unproved would read private rows, a cap would be exceeded, or rows come back that may not; nothing
        is released then.
    """
    started = time.monotonic()
    made: dict[str, Any] = {}
    if isinstance(prepared, AwaitingPartition):
        # Only what public rows contain decides whose they are: they are divided before there is a plan.
        made = materialise(prepared.rows, begin)
        prepared = prepare_divided(prepared, made[prepared.partition.key])
    if isinstance(prepared, PreparedNight):
        prepared = _on_record(prepared)
    run, shards = prepared.plan, prepared.shards
    charge(run, shards)
    made |= _made_before(prepared)
    if any(release.deadline is not None for release in run.releases) and prepared.config.horizon is None:
        made |= _in_time(prepared)
    made |= materialise({key: node for key, node in prepared.nodes.items() if key not in made}, begin, made)
    # In order, so that what failed says so itself; the steps after it only say that they never began.
    futures = {key: made[key] for key in prepared.releases}
    references = {}
    for key, future in futures.items():
        references[key] = future.result()
        report_progress("releases", f"{len(references)} of {len(futures)}", len(references) / len(futures))
    models = {name: [references[key] for key in path] for name, path in run.paths().items()}
    before = {release.key: made[release.key].result() for release in run.earlier}
    own = [release.key for release in run.evaluations if release.key not in before]
    measured = {**before, **{key: references.pop(key) for key in own}}
    measurable = prepared.config.evaluation and (prepared.config.horizon is None or shards.held_out is not None)
    evaluation = evaluate(run, models, measured, shards) if measurable else Evaluation()
    rows = shards.training[0].dataset
    result = summarise(run, rows, evaluation, list(references.values()))
    return Chained(rows, run, _timed(result, rows, started, [futures[key] for key in references]), models)


def _on_record(prepared: PreparedNight) -> PreparedRun:
    """Return the plan of a night that is on record: what arrives, and with the first night what the horizon releases.

    It is recorded before its first charge, and after it is known to be admitted: a horizon that is refused is not
    opened, for every later run would have to be a night of it.
    """
    night: PreparedRun = prepared
    while isinstance(night, PreparedNight):
        require_plan_admissible(night.plan, night.shards.all)
        if record_night(night):
            break
        # Rows have arrived since the plan was made.
        night = whole(prepare(night.config))
    return night


def _made_before(prepared: PreparedRun) -> dict[str, Done[ReleaseRef]]:
    """Return the releases that were made before: of earlier nights, counts of columns, counts of all rows."""
    owner = prepared.plan.models[0].owner
    owners = {one.key: one.owner for one in prepared.plan.evaluations}
    return {
        key: Done(ReleaseRef(key=key, kind=Statistic.kind, party=owners.get(key, owner)), known=True, seconds=0.0)
        for key in prepared.released
    }


def _in_time(prepared: PreparedRun) -> dict[str, Any]:
    """Make what private rows are made into, to the clock of their releases' deadline; what is public before it."""
    public = {key: node for key, node in prepared.rows.items() if not _is_of_private_rows(node)}
    made = materialise(public, begin)
    timed = [node for key, node in prepared.rows.items() if key not in public]
    # Where all releases are stored nothing is made, for nothing will be read.
    return {**made, timed[-1].key: prepared.shards, **prepare_rows(prepared.plan, timed)}


def _is_of_private_rows(node: RowNode | ArrivedRows) -> bool:
    return not isinstance(node, FeatureStep | ArrivedRows) and node.rows.private


@singledispatch
def begin(node: Node, inputs: list[Any]) -> Any:
    """Begin a node of a plan, made of what its inputs became: a step of rows, or the future of a release."""
    raise TypeError(f"{type(node).__name__} is not a node of a plan")


@begin.register
def _(node: NormalisedRows, _inputs: list[Any]) -> DatasetRef:
    return normalise(node)


@begin.register
def _(node: FeatureStep, _inputs: list[Any]) -> str:
    return make_public_map(node)


@begin.register
def _(node: MappedRows, _inputs: list[Any]) -> DatasetRef:
    return extract_features(node)


@begin.register
def _(node: Partition, _inputs: list[Any]) -> Shards:
    return partition(node)


@begin.register
def _(node: ArrivedRows, _inputs: list[Any]) -> Shards:
    return arrive(node)


_RELEASING = {"projections": reduce_dimension, "trainers": train_model, "evaluators": measure_model}


@begin.register
def _release(node: PlannedRelease, inputs: list[Any]) -> Future[ReleaseRef]:
    """One task, or those of its rounds where parties and server exchange messages."""
    shards, upstream = (inputs[0].of(node.parties), inputs[1:]) if node.reads_rows else ([], inputs)
    if node.in_rounds and not is_inline():
        return in_rounds(node, shards, upstream)
    return _RELEASING[node.algorithm.kind].submit(node, shards, upstream)


@begin.register
def _(node: PlannedNight, inputs: list[Any]) -> Future[ReleaseRef]:
    begun = _release(node, inputs)
    # A party's sums of this night are frozen before those of the next are formed.
    begun.result()
    return begun


@begin.register
def _(node: PlannedCombination, inputs: list[Any]) -> Future[ReleaseRef]:
    return aggregate.submit(node, inputs)


def blocks_of(parties: Sequence[int]) -> list[list[int]]:
    """Return the parties in at most eight blocks of neighbours: each a task in every round."""
    size = max(1, -(-len(parties) // _BLOCKS))
    return [list(parties[start : start + size]) for start in range(0, len(parties), size)]


class _Tasks:
    """Messages that travel through tasks (a :class:`dpalgos.secure.rounds.Transport`)."""

    def __init__(
        self, release: PlannedRelease, shards: Sequence[ShardRef], upstream: Sequence[Future[ReleaseRef]]
    ) -> None:
        self.begun: list[Future[Any]] = []
        self._release, self._shards, self._upstream = release, list(shards), list(upstream)
        self._absences = cast(Masking, release.masking).absences
        self._past: list[str] = []
        self._asked = self._begin(open_rounds, self._shards)

    def ask(self, stage: Stage) -> Answers:
        """Begin a task a block of those parties that are still there."""
        self._past.append(stage)
        gone = {party for past in self._past for party in self._absences.get(past, frozenset())}
        blocks = blocks_of([party for party in range(len(self._shards)) if party not in gone])
        return [
            self._begin(
                answer,
                stage,
                block,
                # Rows are read where they are masked, and nowhere else.
                [self._shards[party] for party in block] if stage is Stage.MASK else [],
                self._upstream if stage is Stage.MASK else [],
                self._asked,
            )
            for block in blocks
        ]

    def decide(self, stage: Stage, answers: Answers) -> Future[Any]:
        """Begin the server's task."""
        if stage is Stage.UNMASK:
            return self._begin(open_sum, answers)
        self._asked = self._begin(decide, stage, answers)
        return self._asked

    def _begin(self, task: Step[..., Any], *arguments: Any) -> Future[Any]:
        self.begun.append(task.submit(self._release, *arguments))
        return self.begun[-1]


def in_rounds(
    release: PlannedRelease, shards: Sequence[ShardRef], upstream: Sequence[Future[ReleaseRef]] = ()
) -> Future[ReleaseRef]:
    """Run the rounds of a release of one secure sum; return what stands for the release.

    Parameters
    ----------
    release : PlannedRelease
    shards : sequence of ShardRef
        Of all parties, in their order; each party's tasks are given its own.
    upstream : sequence of futures
        The artefacts that rows are seen through.
    """
    tasks = _Tasks(release, shards, upstream)
    opened = run_rounds(tasks)
    for one in tasks.begun:
        # In order, so that what failed says so itself.
        one.result()
    return opened


def _timed(result: RunResult, dataset: DatasetRef, started: float, futures: Sequence[Future[Any]]) -> RunResult:
    """Add how long a run on public rows took; time is a side channel of private ones."""
    cached = all(served_from_cache(future) for future in futures)
    releasing = [future.seconds for future in futures if isinstance(future, Done) and not future.known]
    measured = not dataset.private and len(releasing) == len(futures)
    return result.model_copy(
        update={
            "cached": cached,
            "seconds": None if dataset.private else round(time.monotonic() - started, 3),
            "releasing_seconds": round(sum(releasing), 4) if measured else None,
            "prefect_flow_run_id": None if is_inline() else str(flow_run.id),
        }
    )


def chain_inline(config: TrainingConfig) -> Chained:
    """Plan and run the chain in the caller's own thread, without an engine: a point of a sweep."""
    with inline():
        return chain(plan(config))


def choose(config: TrainingConfig) -> Choice:
    """Return a configuration whose parameters are chosen on the synthetic or public rows that it names, if it does.

    Candidates are runs on these rows: their releases are stored, and made once.

    Raises
    ------
    ParameterError, InputError, RefusedError
        As :func:`tasks.preparation.tuning.choose_on` does.
    """
    return choose_on(config, lambda candidate: chain_inline(candidate).result.metrics.known())


def _as_flow(function: Callable[[TrainingConfig], RunResult]) -> Flow[[TrainingConfig], RunResult]:
    return flow(
        name="federated-training",
        flow_run_name="{config.system} on {config.dataset}",
        task_runner=threads(4),
    )(function)


@_as_flow
def train(config: TrainingConfig) -> RunResult:
    """Train a model over the parties' rows, charge what it costs, evaluate it and log it.

    Parameters
    ----------
    config : TrainingConfig

    Returns
    -------
    RunResult
        Also logged to MLflow and appended to the results.

    Raises
    ------
    storage.errors.RefusedError
        If something unproved would read private rows, or a cap would be exceeded; nothing is released then.
    """
    return _trained(config, plan)


def training(prepared: Prepared) -> Flow[[TrainingConfig], RunResult]:
    """Return the flow :func:`train` for a plan that was made and checked before the engine was started.

    It carries that plan out, whose price was shown. Where histograms of the columns were released since, it makes
    another of the same rows: then they cost the run nothing. A plan of a version that came since is not taken instead:
    the price that was shown is not its price.
    """

    @_as_flow
    def train(config: TrainingConfig) -> RunResult:
        return _trained(config, shown)

    def shown(config: TrainingConfig) -> Prepared:
        # A night is looked at once more when it is recorded.
        if isinstance(prepared, AwaitingPartition | PreparedNight) or is_current(prepared):
            return prepared
        again = whole(plan(config))
        return again if again.looked_up.version == prepared.looked_up.version else prepared

    return train


def _trained(config: TrainingConfig, planned: Callable[[TrainingConfig], Prepared]) -> RunResult:
    try:
        with (
            announcing_failures(dataset_resource(config.dataset)),
            one_run_a_dataset(config.dataset),
            showing_progress(),
        ):
            prepared = planned(config)
            with logging_afterwards(find_dataset(config.dataset)):
                recorded = record(prepared.config, *chain(prepared))
    except RefusedError as refusal:
        # Prefect takes a returned state as the run's own, and raises its exception for who called the flow.
        return cast(RunResult, refused(refusal))
    show_result(recorded)
    announce_trained(recorded)
    return recorded
