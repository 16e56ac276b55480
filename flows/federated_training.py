"""The main flow: ingest, normalise, partition, plan, charge, reduce, aggregate, train, aggregate, evaluate, record."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from prefect import flow
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from dpalgos.models import Statistic
from dpalgos.secure.rounds import Stage
from dpalgos.secure.rounds import carry_out as carry_out_rounds
from dpalgos.secure.summation import Masking
from storage.errors import RefusedError
from storage.refs import DatasetRef, ReleaseRef, ShardRef
from tasks.accounts.budget import relation_of
from tasks.datasets.registration import default_normalisation
from tasks.planning.configuration import TrainingConfig
from tasks.planning.nights import plan_night, planned_night
from tasks.planning.plans import (
    FeatureStep,
    Node,
    PlannedCombination,
    PlannedRelease,
    RunPlan,
    Shards,
    carry_out,
    plan_run,
)
from tasks.planning.resolution import resolve_normalisation
from tasks.preparation.deltas import settled
from tasks.preparation.nightly_rows import begin_nights, partition_test_rows
from tasks.preparation.partitions import planned_rows
from tasks.preparation.public_maps import plan_features
from tasks.release.metrics import Evaluation
from tasks.runtime.ending import announcing_failures, one_run_a_dataset, refused
from tasks.runtime.events import dataset_resource
from tasks.runtime.progress import say
from tasks.steps import (
    Done,
    Future,
    Step,
    aggregate,
    answer,
    arrive,
    charge,
    decide,
    evaluate,
    extract_features,
    ingest,
    inline,
    is_inline,
    normalise,
    open_rounds,
    open_sum,
    partition,
    prepare,
    record,
    reduce_dimension,
    served_from_cache,
    train_model,
)
from tasks.tracking.artifacts import show_result, showing_progress
from tasks.tracking.reporting import announce_trained
from tasks.tracking.results import Chained, RunResult, summarise

_BLOCKS = 8

Answers = list[Future[list[str]]]


class _Arranged(NamedTuple):
    """A plan with its rows: what is to be made, the shards that each release reads, and what was released before.

    Rows that are not ``prepared`` are to be, after the charge.
    """

    plan: RunPlan
    nodes: dict[str, Node]
    shards: Shards
    rows: Mapping[str, Sequence[ShardRef]]
    stored: Mapping[str, Future[ReleaseRef]]
    prepared: bool = True


def chain(config: TrainingConfig) -> Chained:
    """Run the steps from ingestion to evaluation: tasks of the current flow, or plain calls within ``inline()``.

    Raises
    ------
    storage.errors.RefusedError
        If something unproved would read private rows, a cap would be exceeded, or rows come back that may not; nothing
        is released then.
    """
    config = settled(config)
    started = time.monotonic()
    registered = ingest(config.dataset)
    run = _all_rows(config, registered) if config.horizon is None else _nights(config, registered)
    charge(run.plan, run.shards, run.prepared)
    if not run.prepared:
        prepare(config, registered, run.plan, run.shards)
    releases = carry_out(run.nodes, lambda key, node, inputs: _begin(node, run.rows.get(key, ()), inputs), run.stored)
    # In order, so that what failed says so itself; the steps after it only say that they never began.
    references = {}
    for key, future in releases.items():
        references[key] = future.result()
        say("releases", f"{len(references)} of {len(releases)}", len(references) / len(releases))
    models = {name: [references[key] for key in path] for name, path in run.plan.paths().items()}
    measurable = config.evaluation and (config.horizon is None or run.shards.held_out is not None)
    measured = evaluate(run.plan, models, run.shards) if measurable else Evaluation()
    rows = run.shards.training[0].dataset
    result = summarise(run.plan, rows, measured, list(references.values()))
    return Chained(rows, run.plan, _timed(result, rows, started, list(releases.values())), models)


def prepared(config: TrainingConfig, registered: DatasetRef) -> tuple[tuple[FeatureStep, ...], Shards]:
    """Normalise and map all rows and partition them; return the maps and the parties' shards."""
    dataset = normalise(registered, resolve_normalisation(config, default_normalisation(config.dataset)))
    features = plan_features(dataset, config)
    return features, partition(extract_features(dataset, features) if features else dataset, config)


def _all_rows(config: TrainingConfig, registered: DatasetRef) -> _Arranged:
    """Prepare all rows, and plan what is released of them; under a deadline, plan without having read any.

    How long private rows take before their releases would show, too: so they wait until what is released is charged,
    and with it the misses of their own clock.
    """
    late = config.deadline is not None and registered.private
    if late:
        normalisation = resolve_normalisation(config, default_normalisation(config.dataset))
        features, planned = planned_rows(config, registered, normalisation)
        assert planned is not None, "a partition of private rows does not depend on what they contain"
        shards = planned
    else:
        features, shards = prepared(config, registered)
    plan = plan_run(config, shards.training, shards.held_out, relation=relation_of(config.dataset), features=features)
    nodes = plan.training
    rows = {key: shards.of(node.parties) for key, node in nodes.items() if isinstance(node, PlannedRelease)}
    return _Arranged(plan, nodes, shards, rows, {}, prepared=not late)


def _nights(config: TrainingConfig, registered: DatasetRef) -> _Arranged:
    """Let the rows of tonight arrive, and those of nights of which nobody made a release; plan the running sum."""
    normalisation = resolve_normalisation(config, default_normalisation(config.dataset))
    nights = begin_nights(config, registered, normalisation)
    tonight = nights.unreleased[-1]
    plan = plan_night(
        nights.terms, config, tonight.night, tonight.shards, tonight.versions, nights.arrived, tonight.features
    )
    *maps, (last, _), (model, running_sum) = plan.training.items()
    nodes, rows = dict(maps), {}
    for night in nights.unreleased:
        release = planned_night(nights.terms, night.night, night.shards, night.versions)
        mapped = normalise(night.registered, normalisation)
        if night.features:
            extract_features(mapped, night.features)
        nodes[release.key], rows[release.key] = release, arrive(config, night, release)
    # A public map looks at no rows, whichever night's they are.
    rows |= {key: rows[last] for key, _ in maps}
    shards = Shards(training=rows[last], held_out=partition_test_rows(tonight))
    owner = plan.models[0].owner
    stored = {
        key: Done(ReleaseRef(key=key, kind=Statistic.kind, party=owner), known=True, seconds=0.0)
        for key in running_sum.upstream
    }
    return _Arranged(plan, {**nodes, model: running_sum}, shards, rows, stored)


def _begin(node: Node, shards: Sequence[ShardRef], inputs: list[Future[ReleaseRef]]) -> Future[ReleaseRef]:
    """Begin a node of the plan: one task, or those of its rounds where parties and server exchange messages."""
    if isinstance(node, PlannedCombination):
        return aggregate.submit(node, inputs)
    if node.in_rounds and not is_inline():
        begun = in_rounds(node, shards, inputs)
    elif node.algorithm.kind == "projections":
        begun = reduce_dimension.submit(node, list(shards))
    else:
        begun = train_model.submit(node, list(shards), inputs)
    if node.stream is not None:
        # A party's sums of this night are frozen before those of the next are formed.
        begun.result()
    return begun


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
    opened = carry_out_rounds(tasks)
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
    """Run the chain in the caller's own thread, without an engine: a point of a sweep."""
    with inline():
        return chain(config)


@flow(
    name="federated-training",
    flow_run_name="{config.system} on {config.dataset}",
    task_runner=cast(TaskRunner[PrefectFuture[Any]], ThreadPoolTaskRunner(max_workers=4)),
)
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
    try:
        with (
            announcing_failures(dataset_resource(config.dataset)),
            one_run_a_dataset(config.dataset),
            showing_progress(),
        ):
            config = settled(config)
            recorded = record(config, *chain(config))
    except RefusedError as refusal:
        # Prefect takes a returned state as the run's own, and raises its exception for who called the flow.
        return cast(RunResult, refused(refusal))
    show_result(recorded)
    announce_trained(recorded)
    return recorded
