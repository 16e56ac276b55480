"""The task that pays: one plan, one transaction, before any noise exists."""

from __future__ import annotations

from typing import Any

from prefect import task

from tasks.partitioning import Shards
from tasks.planning.plans import RunPlan
from tasks.release.door import charge_plan
from tasks.runtime.progress import say

__all__ = ["charge"]


@task(task_run_name="charge {plan.system}", persist_result=False)
def charge(plan: RunPlan, shards: Shards) -> dict[str, Any]:
    """Charge a run's releases; asked again, it charges nothing. Never cached: the ledger itself remembers."""
    outcome = charge_plan(plan, shards.training)
    say("budget", f"{outcome['charged']} releases charged, {outcome['already_charged']} charged before")
    return outcome
