"""The scheduled audit: what the algorithms in use leak, measured on synthetic rows, against what is stated of them."""

from typing import cast

from prefect import flow, get_run_logger
from prefect.states import Completed, Failed

from dpalgos.guarantees import Neighbours
from flows.federated_training import chain_inline
from tasks.auditing.examination import CONSISTENT, AuditRequest, Examined
from tasks.records import audit, record_audit
from tasks.runtime.ending import EndState
from tasks.runtime.events import Event, announce
from tasks.runtime.settings import current_root
from tasks.tracking.audits import VIOLATION, InUse, algorithms_in_use


class PrivacyViolationError(Exception):
    """A stated guarantee of an algorithm was refuted at confidence 1 − 10⁻⁹."""


@flow(name="privacy-audit", persist_result=False)
def privacy_audit(request: AuditRequest | None = None) -> list[Examined]:
    """Audit an algorithm, or those of all registered models, log each and tag the model versions.

    Rows are synthetic: nothing private is read, and nothing is charged.

    Parameters
    ----------
    request : AuditRequest, optional

    Returns
    -------
    list of Examined

    Raises
    ------
    PrivacyViolationError
        If one is refuted at confidence 1 − 10⁻⁹; all are logged and tagged before. A suspicion at 99 % ends the run as
        completed, with the name ``Warning``.
    """
    subject = request or AuditRequest()
    outcomes = [
        record_audit(audit(one.algorithm, subject, one.epsilon, one.delta, _relation(one), chain_inline))
        for one in _in_use(subject)
    ]
    for one in outcomes:
        if one.outcome != CONSISTENT:
            get_run_logger().warning("audit of %s: %s: %s", one.algorithm, one.outcome, "; ".join(one.reasons))
    refuted = [one for one in outcomes if one.outcome == VIOLATION]
    for one in refuted:
        announce(Event.VIOLATED, f"unitball.algorithm.{one.algorithm}", {"reasons": "; ".join(one.reasons)})
    if refuted:
        reasons = "; ".join(f"{one.algorithm}: {', '.join(one.reasons)}" for one in refuted)
        error = PrivacyViolationError(reasons)
        return cast(list[Examined], Failed(name=str(EndState.VIOLATION), message=reasons, data=error))
    if any(one.outcome != CONSISTENT for one in outcomes):
        return cast(list[Examined], Completed(name=str(EndState.WARNING), message="suspected at 99 %", data=outcomes))
    return outcomes


def _in_use(request: AuditRequest) -> list[InUse]:
    """Return what to audit, with what the request leaves out taken from the newest model."""
    used = algorithms_in_use(current_root())
    if request.algorithm is not None:
        usual = InUse(algorithm=request.algorithm, epsilon=1.0, delta=1e-5, neighbours=Neighbours.REPLACE_ONE)
        used = [next((one for one in used if one.algorithm == request.algorithm), usual)]
    settings = {name: getattr(request, name) for name in ("epsilon", "delta", "neighbours")}
    return [
        one.model_copy(update={name: value for name, value in settings.items() if value is not None}) for one in used
    ]


def _relation(one: InUse) -> Neighbours:
    """Return the neighbouring relation of a model in use; that of new accounts where its model names none."""
    return Neighbours(one.neighbours) if one.neighbours in set(Neighbours) else Neighbours.REPLACE_ONE
