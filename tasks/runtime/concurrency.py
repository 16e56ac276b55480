"""What differs where a run was started by a deployment: one run a data set at a time, and a refusal with its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists
from prefect.runtime import deployment
from prefect.states import Failed

from storage.errors import OverspendError, RefusedError

__all__ = ["LEASE_SECONDS", "EndState", "limit_name", "one_run_a_dataset", "refused"]


class EndState(StrEnum):
    """Names of the failed states in which a run ends by our own decision; every other failure bears Prefect's name."""

    BUDGET_EXHAUSTED = "BudgetExhausted"
    """A cap would be exceeded."""
    REFUSED = "Refused"
    """Something else that would break a promise: an unproved algorithm on private rows, say."""


LEASE_SECONDS = 60
"""A run that dies holds up the next one of its data set for this long at most, and a few seconds more."""


def limit_name(dataset: str) -> str:
    """Return the name of the server's concurrency limit for a data set."""
    return f"unitball.dataset.{dataset}"


@contextmanager
def one_run_a_dataset(dataset: str) -> Iterator[None]:
    """Let the deployed runs of one data set go one after the other; other data sets' runs are not held up.

    This saves work and keeps the order of charges readable. It protects no budget: the ledger does, whatever runs at
    once. So a lease that cannot be renewed does not end a run. Runs that no deployment started do not wait.
    """
    if not deployment.id:
        yield
        return
    name = limit_name(dataset)
    # Another run may just have made it.
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.upsert_global_concurrency_limit_by_name(name, 1)
    with concurrency(name, strict=True, lease_duration=LEASE_SECONDS, raise_on_lease_renewal_failure=False):
        yield


def refused(error: RefusedError) -> State[RefusedError]:
    """Return the final state of a run that was refused for privacy: failed, and named by :class:`EndState`.

    A flow that returns it is not retried; who called the flow directly still gets the exception.
    """
    name = EndState.BUDGET_EXHAUSTED if isinstance(error, OverspendError) else EndState.REFUSED
    return Failed(name=str(name), message=f"Refused for privacy: {error}", data=error)
