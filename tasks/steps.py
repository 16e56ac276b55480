"""Steps of the flows as Prefect tasks: rows, charges, releases, measurements, and what is kept of them."""

from datetime import UTC, datetime
from pathlib import Path

from prefect.artifacts import create_markdown_artifact

from dpalgos.guarantees import Neighbours
from dpalgos.secure.rounds import Stage
from storage.atomic import writing
from storage.errors import InputError
from storage.layout import Layout
from storage.refs import DatasetRef, ReleaseRef, ShardRef
from tasks.accounts.budget import low_budget
from tasks.accounts.history import BudgetHistory, budget_histories, budget_page, budget_table, draw_budgets
from tasks.auditing.chain import Chain
from tasks.auditing.examination import AuditRequest, Examined, audit_report, examine_system
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import Json, PartitionSettings, TrainingConfig
from tasks.planning.plans import FeatureStep, PlannedCombination, PlannedRelease, RunPlan, Shards
from tasks.preparation.mapping import is_stored_whole, map_features, map_rows
from tasks.preparation.partitioning import Night, are_stored_whole, partition_night, partition_rows
from tasks.release.door import charge_plan, combine, make_release, note_arrival
from tasks.release.metrics import Evaluation, measure
from tasks.release.rounds import Rounds
from tasks.runtime.events import Event, account_resource, announce, log_event
from tasks.runtime.progress import say
from tasks.runtime.settings import current_root
from tasks.runtime.steps import RETRIES, is_inline, step
from tasks.runtime.stores import open_releases
from tasks.tracking.artifacts import show_budget, show_budgets, show_figure
from tasks.tracking.comparison import Comparison, ModelComparison, compare_models, record_comparison
from tasks.tracking.models import find_model, load_model, note_audit
from tasks.tracking.prediction import ScoringRequest, chosen_model, predict_file
from tasks.tracking.reporting import keep_run
from tasks.tracking.results import Chained, RunResult
from tasks.tracking.runs import RunReport, track_run


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


@step(task_run_name="rows of {release.label}", cached=False)
def arrive(config: PartitionSettings, night: Night, release: PlannedRelease) -> tuple[ShardRef, ...]:
    """Write what arrived in a night to the parties' own stores; each notes where, for the nights that follow."""
    shards = partition_night(config, night)
    for shard in shards:
        note_arrival(release.stream_key, night.night, shard)
    unit = night.registered.unit.several
    say("arrival", f"{sum(shard.rows for shard in shards)} {unit}, {release.label}")
    return shards


@step(task_run_name="charge {plan.system}", cached=False)
def charge(plan: RunPlan, shards: Shards) -> Json:
    """Charge a run's releases; asked again, it charges nothing. Never cached: the ledger itself remembers."""
    outcome = charge_plan(plan, shards.all)
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
