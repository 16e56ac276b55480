"""The step that pays: one plan, one transaction, before any noise exists."""

from __future__ import annotations

from tasks.accounts.budget import low_budget
from tasks.planning.fields import Json
from tasks.planning.plans import RunPlan, Shards
from tasks.release.door import charge_plan
from tasks.runtime.events import Event, account_resource, announce, log_event
from tasks.runtime.progress import say
from tasks.runtime.steps import is_inline, step
from tasks.tracking.artifacts import show_budget


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
