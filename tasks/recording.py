"""Steps that keep what was found: a run, an audit, the accounts' budgets."""

from __future__ import annotations

from datetime import UTC, datetime

from storage.refs import DatasetRef, ReleaseRef
from tasks.accounts.budget import low_budget
from tasks.accounts.history import BudgetHistory, budget_histories, budget_page, budget_table, draw_budgets
from tasks.auditing.examination import Examined, audit_report
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.runtime.events import Event, account_resource, announce
from tasks.runtime.progress import say
from tasks.runtime.settings import current_root
from tasks.runtime.steps import step
from tasks.tracking.artifacts import show_budgets, show_figure
from tasks.tracking.promotion import note_audit
from tasks.tracking.reporting import keep_run
from tasks.tracking.results import RunResult
from tasks.tracking.runs import RunReport, track_run


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
    logged = keep_run(config, dataset, plan, result, models)
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
