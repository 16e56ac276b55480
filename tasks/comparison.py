"""The step that compares a version of a model with the champion of its name."""

from __future__ import annotations

from tasks.planning.plans import FeatureStep, Shards
from tasks.runtime.progress import say
from tasks.runtime.settings import current_root
from tasks.runtime.steps import step
from tasks.tracking.comparison import Comparison, Contest, compare_models, record_comparison


@step(task_run_name="compare {contest.challenger.name} with its champion", cached=False)
def compare_with_champion(
    contest: Contest, shards: Shards, features: list[FeatureStep], epsilon: float | None
) -> Comparison:
    """Compare on the held-out rows and note the outcome on the version. Asked again, it charges nothing."""
    compared = compare_models(current_root(), contest, shards.held_out, features, epsilon)
    record_comparison(current_root(), compared)
    say("comparison", compared.statement)
    return compared
