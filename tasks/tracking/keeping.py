"""What is kept of a finished run: an MLflow run, and a row in the result tables."""

from __future__ import annotations

from storage.refs import DatasetRef, ReleaseRef
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.runtime.settings import current_root
from tasks.tracking.reporting import Columns, run_report
from tasks.tracking.results import RunResult, append_result
from tasks.tracking.runs import track_run


def keep_run(
    config: TrainingConfig,
    dataset: DatasetRef,
    plan: RunPlan,
    result: RunResult,
    models: dict[str, list[ReleaseRef]],
    columns: Columns | None = None,
) -> RunResult:
    """Log a run to MLflow and append it to the results; a run that was logged before is found again.

    Parameters
    ----------
    models : dict
        For each released model what rows pass through, the model last.
    columns : Columns, optional
        Of rows that are registered elsewhere.
    """
    run_id = track_run(current_root(), run_report(config, dataset, plan, result, models, columns))
    logged = result.model_copy(update={"mlflow_run_id": run_id})
    append_result(config, logged)
    return logged
