"""The step that says how well released models do: exactly on public rows, by charged releases on private ones."""

from __future__ import annotations

from storage.refs import ReleaseRef
from tasks.planning.plans import RunPlan, Shards
from tasks.release.metrics import Evaluation, measure
from tasks.runtime.progress import say
from tasks.runtime.steps import step


@step(task_run_name="evaluate {plan.system}")
def evaluate(plan: RunPlan, models: dict[str, list[ReleaseRef]], shards: Shards) -> Evaluation:
    """Measure the released models, each given by name with the releases that its rows pass through."""
    measured = measure(plan, models, shards)
    say("evaluation", plan.system)
    return measured
