"""What a step is, and the steps of the flows: Prefect tasks with one cache policy, which can run without Prefect."""

import inspect
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from prefect import Task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import CachePolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.futures import PrefectFuture

from dpalgos.guarantees import Neighbours
from dpalgos.secure.rounds import Stage
from storage.atomic import writing
from storage.errors import FormatVersionError, InputError, RefusedError, SecretError, StorageError
from storage.layout import Layout
from storage.refs import DatasetRef, ReleaseRef, ShardRef
from tasks.accounts.budget import (
    BudgetHistory,
    budget_histories,
    budget_page,
    budget_table,
    draw_budgets,
    low_budget,
)
from tasks.auditing.examination import AuditRequest, Chain, Examined, audit_report, examine_system
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import Json, PartitionSettings, TrainingConfig
from tasks.planning.identity import identity, package_digest, required_versions
from tasks.planning.plans import FeatureStep, PlannedCombination, PlannedRelease, RunPlan, Shards
from tasks.preparation.mapped_rows import keep_under
from tasks.preparation.nightly_rows import Night, partition_night
from tasks.preparation.normalisation import is_stored_whole, map_rows, mapped_ref
from tasks.preparation.partitions import are_stored_whole, partition_rows, prepare_rows
from tasks.preparation.public_maps import kept_maps, make_maps, map_features
from tasks.preparation.streams import note_arrival
from tasks.release.door import charge_plan, combine, make_release, prepare_in_time
from tasks.release.metrics import Evaluation, measure
from tasks.release.rounds import Rounds
from tasks.runtime.events import Event, account_resource, announce, log_event
from tasks.runtime.interrupted import unmarked
from tasks.runtime.progress import OBSERVER, say
from tasks.runtime.settings import current_root
from tasks.runtime.stores import open_releases
from tasks.tracking.artifacts import show_budget, show_budgets, show_figure
from tasks.tracking.flavor import predict_file
from tasks.tracking.models import (
    Comparison,
    ModelComparison,
    ScoringRequest,
    chosen_model,
    compare_models,
    find_model,
    load_model,
    note_audit,
    record_comparison,
)
from tasks.tracking.reporting import keep_run
from tasks.tracking.results import Chained, RunResult
from tasks.tracking.runs import RunReport, track_run


@dataclass
class ByContent(CachePolicy):
    """Key a task by everything its answer depends on.

    Prefect's own policies see neither a changed helper nor another data root, and its default includes the run's
    identity, so that nothing would be reused from run to run. Inputs must be references or plain values.
    """

    def compute_key(
        self, task_ctx: TaskRunContext, inputs: dict[str, Any], flow_parameters: dict[str, Any], **kwargs: Any
    ) -> str | None:
        """Return the key."""
        return identity(
            task=task_ctx.task.task_key,
            source=inspect.getsource(task_ctx.task.fn),
            inputs=inputs,
            code=package_digest("dpalgos", "storage", "tasks", "flows"),
            packages=required_versions(),
            root=str(current_root()),
        )


BY_CONTENT = ByContent()


def is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether a task failed for want of a file system or a database.

    Such a retry is safe, since a release made twice is the same release and is charged once. Refusals for privacy, bad
    input and lost secrets stay failures.
    """
    error = state.result(raise_on_failure=False)
    return isinstance(error, (OSError, StorageError)) and not isinstance(error, (FormatVersionError, SecretError))


RETRIES: dict[str, Any] = {"retries": 2, "retry_delay_seconds": 1, "retry_condition_fn": is_transient}
"""Options of tasks that may be tried again."""


P = ParamSpec("P")
R = TypeVar("R")

_INLINE: ContextVar[bool] = ContextVar("inline", default=False)
_LOCKS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """What an inline step returned.

    Parameters
    ----------
    value : object
    known : bool or None
        Whether what it refers to was stored before; None where nothing is.
    seconds : float
    """

    value: R
    known: bool | None
    seconds: float

    def result(self) -> R:
        """Return the value."""
        return self.value


Future = PrefectFuture[R] | Done[R]


@contextmanager
def inline() -> Iterator[None]:
    """Run the steps of this thread as plain calls."""
    token = _INLINE.set(True)
    try:
        yield
    finally:
        _INLINE.reset(token)


def is_inline() -> bool:
    """Whether the steps of this thread are plain calls."""
    return _INLINE.get()


class Step(Task[P, R]):
    """A task that answers from the cache only while what its answer refers to is stored.

    Parameters
    ----------
    fn : callable
    stored : callable, optional
        Says from the arguments whether it is.
    whole : callable, optional
        Says so from the answer.
    options
        Of :class:`prefect.Task`.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        stored: Callable[..., bool] | None,
        whole: Callable[[Any], bool] | None,
        **options: Any,
    ) -> None:
        super().__init__(fn, **options)
        self._is_stored, self._is_whole = stored, whole

    def __call__(self, *args: Any) -> R:  # type: ignore[override]  # no keywords: arguments are the cache's key
        """Run the step and wait for it."""
        answer: R
        if is_inline():
            answer = self._now(*args).value
        else:
            with unmarked():
                answer = super().__call__(*args)  # type: ignore[call-overload]  # Prefect overloads by sync and async
                if self._is_whole is not None and not self._is_whole(answer):
                    answer = self.with_options(refresh_cache=True)(*args)  # type: ignore[call-overload]  # Prefect overloads by sync and async
        OBSERVER.get()(self.name)
        return answer

    def submit(self, *args: Any) -> Future[R]:  # type: ignore[override]  # no keywords: arguments are the cache's key
        """Begin the step; arguments may be what other steps' ``submit`` returned."""
        if is_inline():
            return self._now(*args)
        gone = self._is_stored is not None and not self._is_stored(*args)
        chosen: Task[..., R] = self.with_options(refresh_cache=True) if gone else self
        with unmarked():
            return Task.submit(chosen, *[_result(one) for one in args])

    def _now(self, *args: Any) -> Done[R]:
        values = [_result(one) for one in args]
        # Points that share a step wait for whoever was first, and find it done.
        with _LOCKS[identity(step=self.name, arguments=values)]:
            known = None if self._is_stored is None else self._is_stored(*values)
            started = time.monotonic()
            value = self.fn(*values)  # type: ignore[call-arg]  # P is *args alone
            return Done(value, known, time.monotonic() - started)


def step(
    *,
    stored: Callable[..., bool] | None = None,
    whole: Callable[[Any], bool] | None = None,
    cached: bool = True,
    **options: Any,
) -> Callable[[Callable[P, R]], Step[P, R]]:
    """Return a decorator that makes a function a :class:`Step`.

    Parameters
    ----------
    stored, whole : callable, optional
        See :class:`Step`.
    cached : bool
        False for what remembers by itself what was done, as the ledger does.
    options
        Of :class:`prefect.Task`.
    """
    caching = {"cache_policy": BY_CONTENT, "persist_result": True} if cached else {"persist_result": False}
    return lambda fn: Step(fn, stored=stored, whole=whole, **caching, **options)


def served_from_cache(future: Future[Any]) -> bool:
    """Whether a finished step made nothing."""
    return future.known is not False if isinstance(future, Done) else future.state.name == "Cached"


def _result(argument: Any) -> Any:
    if isinstance(argument, Done):
        return argument.value
    return [_result(one) for one in argument] if isinstance(argument, list) else argument


# ── the steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@step(task_run_name="ingest {name}", cached=False)
def ingest(name: str) -> DatasetRef:
    """Return the newest registered version of a data set, registering a set that scikit-learn brings along.

    Never cached: a name means another version once its owner has registered one. Rows of files are brought in by
    :func:`tasks.datasets.registration.ingest`, at the owner's command and not by a run.
    """
    dataset = find_dataset(name)
    say("ingestion", f"{dataset.rows} {dataset.unit.several} of {name}")
    return dataset


@step(task_run_name="normalise {dataset.name}", whole=is_stored_whole)
def normalise(dataset: DatasetRef, name: str) -> DatasetRef:
    """Store a version of a data set whose rows are mapped as a run wants them; a version that is there is reused."""
    result = map_rows(dataset, name)
    say("normalisation", f"{result.rows} {dataset.unit.several} to {name}")
    return result


@step(task_run_name="features of {dataset.name}", whole=is_stored_whole)
def extract_features(dataset: DatasetRef, features: tuple[FeatureStep, ...]) -> DatasetRef:
    """Store a version of a data set whose rows have passed through public maps; a version that is there is reused."""
    result = map_features(dataset, features)
    of, maps = f"{result.rows} {dataset.unit.several}", ", ".join(each.label for each in features)
    say("features", f"{of} to {result.dimension} features: {maps}")
    return result


@step(task_run_name="partition {dataset.name}", whole=are_stored_whole)
def partition(dataset: DatasetRef, config: TrainingConfig) -> Shards:
    """Divide a data set's rows among parties by a rule that is fixed before any row is looked at."""
    shards = partition_rows(dataset, config)
    of = f"{sum(shard.rows for shard in shards.training)} {dataset.unit.several}"
    say("partition", f"{of} to {len(shards.training)} parties")
    return shards


@step(task_run_name="prepare {registered.name}", cached=False)
def prepare(config: TrainingConfig, registered: DatasetRef, plan: RunPlan, shards: Shards) -> None:
    """Normalise, map and partition private rows whose releases have a deadline, after the charge and to a clock.

    Never cached: whether anything is to be done follows from which releases are stored.
    """
    normalisation = plan.normalisation
    make_maps(mapped_ref(registered, normalisation), plan.features)
    maps = kept_maps(plan)
    what = f"the partition of {registered.name}"
    made = prepare_in_time(
        plan, what, lambda: keep_under(prepare_rows(config, registered, normalisation, plan.features), maps)
    )
    if made is not None and made != shards:
        raise RefusedError(f"{what} is another one than was planned and charged; it is not read")
    say("preparation", f"{registered.rows} {registered.unit.several} of {registered.name}")


@step(task_run_name="rows of {release.label}", cached=False)
def arrive(config: PartitionSettings, night: Night, release: PlannedRelease) -> tuple[ShardRef, ...]:
    """Write what arrived in a night to the parties' own stores; each notes what and where, for later nights."""
    shards = partition_night(config, night)
    for shard in shards:
        note_arrival(release, shard)
    unit = night.registered.unit.several
    say("arrival", f"{sum(shard.rows for shard in shards)} {unit}, {release.label}")
    return shards


@step(task_run_name="charge {plan.system}", cached=False)
def charge(plan: RunPlan, shards: Shards, prepared: bool = True) -> Json:
    """Charge a run's releases; asked again, it charges nothing. Never cached: the ledger itself remembers.

    Not ``prepared``: the shards are stored later.
    """
    outcome = charge_plan(plan, shards.all, prepared=prepared)
    say("budget", f"{outcome['charged']} releases charged, {outcome['already_charged']} charged before")
    dataset, account = shards.training[0].dataset, shards.training[0].dataset.account
    paid = {what: str(outcome[what]) for what in ("charged", "already_charged")}
    log_event("unitball.plan.charged", dataset=dataset.name, account=account, details={"system": plan.system, **paid})
    if not is_inline():
        show_budget(dataset, outcome)
        if outcome["charged"] and (low := low_budget(account)):
            announce(Event.BUDGET_LOW, account_resource(account), low)
    return outcome


def _stored(release: PlannedRelease, *_: object) -> bool:
    return open_releases().exists(release.key)


@step(task_run_name="{release.label}", stored=_stored, **RETRIES)
def reduce_dimension(release: PlannedRelease, shards: list[ShardRef]) -> ReleaseRef:
    """Learn a basis from rows and release it."""
    reference = make_release(release, shards)
    say("reduction", release.label)
    return reference


@step(task_run_name="{release.label}", stored=_stored, **RETRIES)
def train_model(release: PlannedRelease, shards: list[ShardRef], upstream: list[ReleaseRef]) -> ReleaseRef:
    """Train on rows, seen through a released basis where there is one, and release the model."""
    reference = make_release(release, shards, upstream)
    say("training", release.label)
    return reference


@step(task_run_name="{release.label}: open the rounds", stored=_stored, **RETRIES)
def open_rounds(release: PlannedRelease, shards: list[ShardRef]) -> str:
    """Declare and charge, then fix what everybody knows before the session."""
    return Rounds(release).open(shards)


@step(task_run_name="{release.label}: {stage} {block}", stored=_stored, **RETRIES)
def answer(
    release: PlannedRelease,
    stage: Stage,
    block: list[int],
    shards: list[ShardRef],
    upstream: list[ReleaseRef],
    message: str,
) -> list[str]:
    """Parties: answer what the server asks in a stage; their own shards are given to the stage that masks alone."""
    return Rounds(release).answer(stage, block, shards, upstream)


@step(task_run_name="{release.label}: decide on {stage}", stored=_stored, **RETRIES)
def decide(release: PlannedRelease, stage: Stage, sent: list[list[str]]) -> str:
    """Server: decide once and for all on the answers of a stage, and ask the next."""
    return Rounds(release).decide(stage, sent)


@step(task_run_name="{release.label}", stored=_stored, **RETRIES)
def open_sum(release: PlannedRelease, sent: list[list[str]]) -> ReleaseRef:
    """Server: open the sum, make the artefact of it and store that as the release."""
    reference = Rounds(release).release(sent)
    say("secure sum", release.label)
    return reference


@step(task_run_name="{combination.label}", stored=_stored)
def aggregate(combination: PlannedCombination, releases: list[ReleaseRef]) -> ReleaseRef:
    """Combine releases into one; takes releases and returns a release, and gets no shard."""
    reference = combine(combination, releases)
    say("aggregation", combination.label)
    return reference


@step(task_run_name="evaluate {plan.system}")
def evaluate(plan: RunPlan, models: dict[str, list[ReleaseRef]], shards: Shards) -> Evaluation:
    """Measure the released models, each given by name with the releases that its rows pass through."""
    measured = measure(plan, models, shards)
    say("evaluation", plan.system)
    return measured


@step(task_run_name="compare {model_comparison.challenger.name} with its champion", cached=False)
def compare_with_champion(
    model_comparison: ModelComparison, shards: Shards, features: list[FeatureStep], epsilon: float | None
) -> Comparison:
    """Compare on the held-out rows and note the outcome on the version. Asked again, it charges nothing."""
    compared = compare_models(current_root(), model_comparison, shards.held_out, features, epsilon)
    record_comparison(current_root(), compared)
    say("comparison", compared.statement)
    return compared


@step(task_run_name="score with {request.model}", cached=False)
def score(request: ScoringRequest) -> str:
    """Predict a file's rows and return the name of the file that was written; of the rows it says nothing, not a count.

    Raises
    ------
    InputError
        If there is no such model, or the rows cannot be read: the reason may quote them, and is for their owner at
        ``unitball predict`` alone.
    """
    root = current_root()
    model = find_model(root, chosen_model(root, request))
    folder = Layout(root).private / "predictions"
    with writing(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    output = folder / f"{model.name}-v{model.version}-{stamp}.parquet"
    pipeline = load_model(root, model)
    try:
        predict_file(pipeline, Path(request.input), output, id_column=request.id_column)
    except Exception as error:
        raise InputError(
            f"the rows could not be predicted ({type(error).__name__}); what is wrong with them is for their owner: "
            f"unitball predict --model {model.name}/{model.version} --input … --output …"
        ) from None
    say("scoring", f"{model.name} version {model.version}")
    # What is in the file is for its owner alone.
    create_markdown_artifact(
        f"Scored with {model.name} version {model.version}: `private/predictions/{output.name}` below the root.",
        key="scoring",
        description="Scoring",
    )
    return output.name


@step(task_run_name="audit {name}", cached=False)
def audit(
    name: str, request: AuditRequest, epsilon: float, delta: float, neighbours: Neighbours, chain: Chain
) -> Examined:
    """Examine a system by all audits; nothing private is read and nothing is charged."""
    return examine_system(name, request, epsilon=epsilon, delta=delta, neighbours=neighbours, chain=chain)


@step(task_run_name="record {result.algorithm}", cached=False)
def record(
    config: TrainingConfig,
    dataset: DatasetRef,
    plan: RunPlan,
    result: RunResult,
    models: dict[str, list[ReleaseRef]],
) -> RunResult:
    """Log a run to MLflow and append it to the results; a run that was logged before is found again.

    ``models`` gives for each released model what rows pass through, the model last.
    """
    logged = keep_run(config, Chained(dataset, plan, result, models))
    say("log", f"MLflow run {str(logged.mlflow_run_id)[:8]}")
    return logged


@step(task_run_name="record the audit of {examined.algorithm}", cached=False)
def record_audit(examined: Examined) -> Examined:
    """Log an audit, put it on record, show it on the versions, and return it with MLflow's id of the run."""
    root, report = current_root(), audit_report(examined)
    run_id = track_run(root, report)
    reason = "; ".join(examined.reasons) or f"audited in run {run_id}"
    note_audit(root, examined.algorithm, examined.outcome, reason, run=run_id, numbers=report.metrics)
    picture = report.files["trade-off.png"]
    assert isinstance(picture, bytes)
    show_figure(f"audit-{examined.algorithm}", f"Audit of {examined.algorithm}", picture, report.note)
    return examined.model_copy(update={"mlflow_run_id": run_id})


# MLflow's experiment of budget reports.
_BUDGETS = "budgets"


@step(task_run_name="record the budgets", cached=False)
def record_budgets() -> list[BudgetHistory]:
    """Show and log where every account stands now; return their histories."""
    histories = budget_histories()
    picture, lines = draw_budgets(histories), budget_table(histories)
    now = datetime.now(UTC)
    track_run(
        current_root(),
        RunReport(
            experiment=_BUDGETS,
            run_key=f"budgets-{now.isoformat()}",
            name=f"budgets on {now:%Y-%m-%d}",
            params={"accounts": len(histories)},
            metrics={"accounts_low": float(sum(one.low for one in histories))},
            files={"budgets.png": picture, "budgets.html": budget_page(histories, picture)},
            note="\n".join(f"- {line['account']}: ε = {line['epsilon spent']} of {line['cap']}" for line in lines),
        ),
    )
    show_budgets(lines, picture)
    for one in histories:
        if low := low_budget(one.account):
            announce(Event.BUDGET_LOW, account_resource(one.account), low)
    return histories
