"""The steps of what is kept of runs: comparisons, predictions, audits, budgets, and their records in MLflow."""

from datetime import UTC, datetime
from pathlib import Path

from prefect.artifacts import create_markdown_artifact

from dpalgos.guarantees import Neighbours
from storage.atomic import writing
from storage.cells import column_name
from storage.errors import InputError
from storage.layout import Layout
from storage.names import require_kept
from storage.refs import DatasetRef, ReleaseRef
from tasks.accounts.history import BudgetHistory
from tasks.accounts.pages import budget_page, budget_table, draw_budgets
from tasks.accounts.reports import low_budget
from tasks.auditing.chain import Chain
from tasks.auditing.examination import AuditRequest, Examined, audit_report, examine_system
from tasks.experiments.description_figure import draw_description
from tasks.experiments.pair_figure import draw_pairs
from tasks.planning.column_statistics import DescriptionRequest, ReductionPlan, SynthesisPlan
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.planning.rows import FeatureStep, Shards
from tasks.release.column_pairs import PairsPlan
from tasks.release.descriptions import Description, description_of
from tasks.release.drawn_rows import SyntheticRows
from tasks.release.forecasts import budget_histories
from tasks.release.pair_descriptions import PairsDescription, pairs_description_of, plan_of
from tasks.runtime.events import Event, account_resource, announce
from tasks.runtime.progress import report_progress
from tasks.runtime.settings import current_root
from tasks.runtime.steps import step
from tasks.tracking.artifacts import show_budgets, show_figure
from tasks.tracking.audits import note_audit
from tasks.tracking.champion_comparison import ComparisonOutcome, ModelComparison, compare_models, record_comparison
from tasks.tracking.coverings import Covering, promised_by
from tasks.tracking.descriptions import record_description
from tasks.tracking.model_files import load_model
from tasks.tracking.model_versions import find_model
from tasks.tracking.predicted_files import predict_file
from tasks.tracking.reductions import Reduction, recorded
from tasks.tracking.reporting import keep_run
from tasks.tracking.results import Chained, RunResult
from tasks.tracking.runs import RunReport, track_run
from tasks.tracking.scoring import ScoringRequest, chosen_model
from tasks.tracking.synthesis_report import synthesis_report
from tasks.tracking.synthesis_tables import fidelity_of


@step(task_run_name="compare {model_comparison.challenger.name} with its champion", cached=False)
def compare_with_champion(
    model_comparison: ModelComparison, shards: Shards, features: list[FeatureStep], epsilon: float | None
) -> ComparisonOutcome:
    """Compare on the held-out rows and note the outcome on the version. A repetition is free."""
    compared = compare_models(current_root(), model_comparison, shards.held_out, features, epsilon)
    record_comparison(current_root(), compared)
    report_progress("comparison", compared.statement)
    return compared


@step(task_run_name="score with {request.model}", cached=False)
def score(request: ScoringRequest) -> str:
    """Predict a file's rows and return the name of the file that was written; of the rows it says nothing, not a count.

    Raises
    ------
    InputError
        If there is no such model, or the rows cannot be read: the reason may quote them, and is for their owner at
        ``unitball predict`` alone. If the model has no released counts for the coverage that is asked for.
    dpalgos.conformal.UnreachableError
        If they do not admit it.
    """
    if request.id_column is not None:
        require_kept(column_name(request.id_column))
    root = current_root()
    model = find_model(root, chosen_model(root, request))
    folder = Layout(root).private / "predictions"
    with writing(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    output = folder / f"{model.name}-v{model.version}-{stamp}.parquet"
    pipeline = load_model(root, model)
    covering = Covering.of(pipeline, request.coverage)
    # What there is to say against a coverage is public, and so it is said before rows are read.
    claims = promised_by(pipeline, covering)
    try:
        predict_file(pipeline, Path(request.input), output, id_column=request.id_column, covering=covering)
    except Exception as error:
        raise InputError(
            f"the rows could not be predicted ({type(error).__name__}); only their owner may see the reason: unitball "
            f"predict --model {model.name}/{model.version} --input … --output …"
        ) from None
    report_progress("scoring", f"{model.name} version {model.version}")
    # What is in the file is for its owner alone.
    create_markdown_artifact(
        f"Scored with {model.name} version {model.version}: `private/predictions/{output.name}` below the root."
        + "".join(f"\n\n{claim}." for claim in claims),
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
    report_progress("log", f"MLflow run {str(logged.mlflow_run_id)[:8]}")
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


@step(task_run_name="record the synthesis of {found.dataset}", cached=False)
def record_synthesis(plan: SynthesisPlan, found: SyntheticRows) -> SyntheticRows:
    """Log a synthesis to MLflow, once, with drawn and released tables, and return it."""
    track_run(current_root(), synthesis_report(plan, found, fidelity_of(plan, found)))
    return found


@step(task_run_name="record the description of {request.dataset}", cached=False)
def record_counts(request: DescriptionRequest, paid: bool) -> Description | PairsDescription:
    """Report the stored counts of a description, log them to MLflow, once, and return it."""
    plan = plan_of(request)
    if isinstance(plan, PairsPlan):
        pairs = pairs_description_of(plan, paid=paid)
        record_description(plan, pairs, draw_pairs)
        return pairs
    found = description_of(plan, paid=paid)
    record_description(plan, found, draw_description)
    return found


@step(task_run_name="record the components of {plan.dataset.name}", cached=False)
def record_reduction(plan: ReductionPlan, components: int | None, paid: bool) -> Reduction:
    """Find the components of a stored reduction, log them to MLflow, once, and return them."""
    return recorded(plan, components, paid=paid)
