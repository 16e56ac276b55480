"""The step that shows budgets: a picture and a table in Prefect, a run in MLflow, an event for each that is low."""

from __future__ import annotations

from datetime import UTC, datetime

from tasks.accounts.budget import low_budget
from tasks.accounts.drawing import budget_page, budget_table, draw_budgets
from tasks.accounts.history import BudgetHistory, budget_histories
from tasks.runtime.events import Event, account_resource, announce
from tasks.runtime.settings import current_root
from tasks.runtime.steps import step
from tasks.tracking.artifacts import show_budgets
from tasks.tracking.runs import RunReport, track_run

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
