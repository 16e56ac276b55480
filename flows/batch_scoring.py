"""Batch scoring: what a released model says of a file's rows, by hand, on a schedule or after a training."""

from prefect import flow

from tasks.records import score
from tasks.runtime.ending import announcing_failures
from tasks.tracking.scoring import ScoringRequest


@flow(name="batch-scoring", flow_run_name="score with {request.model}", persist_result=False)
def batch_scoring(request: ScoringRequest) -> str:
    """Predict the rows of a file with a registered model; post-processing, so it costs no budget.

    Parameters
    ----------
    request : ScoringRequest

    Returns
    -------
    str
        Name of the file below ``private/predictions``.
    """
    with announcing_failures(f"unitball.model.{request.model}"):
        return score(request)
