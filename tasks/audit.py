"""The step that audits: one system, on synthetic rows, in memory and in roots of its own."""

from __future__ import annotations

from dpalgos.guarantees import Neighbours
from tasks.auditing.chain import Chain
from tasks.auditing.examination import AuditRequest, Examined, examine_system
from tasks.runtime.steps import step


@step(task_run_name="audit {name}", cached=False)
def audit(
    name: str, request: AuditRequest, epsilon: float, delta: float, neighbours: Neighbours, chain: Chain
) -> Examined:
    """Examine a system by all audits; nothing private is read and nothing is charged."""
    return examine_system(name, request, epsilon=epsilon, delta=delta, neighbours=neighbours, chain=chain)
