"""The daily report: where every account's budget stands, how it got there, and how long it will last."""

from prefect import flow

from tasks.accounts.history import BudgetHistory
from tasks.records import record_budgets
from tasks.runtime.ending import announcing_failures


@flow(
    name="budget-report",
    description="Draw the spending of every account against its cap. It reads only charges and is free.",
    flow_run_name="budgets of all accounts",
    persist_result=False,
)
def budget_report() -> list[BudgetHistory]:
    """Draw every account's spending against its cap; reads the ledger's charges alone, so it costs no budget.

    Returns
    -------
    list of BudgetHistory
    """
    with announcing_failures("unitball.budgets"):
        return record_budgets()
