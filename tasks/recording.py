"""The step that records a run: logged to MLflow, appended to the result tables."""

from __future__ import annotations

from storage.refs import DatasetRef, ReleaseRef
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.runtime.progress import say
from tasks.runtime.steps import step
from tasks.tracking.keeping import keep_run
from tasks.tracking.results import RunResult


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
