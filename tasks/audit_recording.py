"""The step that keeps an audit: on record in the root, as a run in MLflow, as a tag on the versions it speaks of."""

from __future__ import annotations

from tasks.auditing.examination import Examined
from tasks.auditing.recording import audit_report
from tasks.runtime.settings import current_root
from tasks.runtime.steps import step
from tasks.tracking.artifacts import show_figure
from tasks.tracking.promotion import note_audit
from tasks.tracking.runs import track_run


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
