"""States in which runs end by our own decision, and the limit of one deployed run a data set at a time."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import partial

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.context import FlowRunContext
from prefect.exceptions import MissingContextError, ObjectAlreadyExists
from prefect.logging import get_run_logger
from prefect.runtime import deployment
from prefect.states import Failed

from storage.errors import OverspendError, RefusedError
from tasks.runtime.events import Event, announce
from tasks.runtime.standing import stands

AT_WORK = "unitball.at-work"
"""Name of the server's concurrency limit for all data sets together; who serves sets how many."""

LEASE_SECONDS = 60
"""A run that dies holds up the next one of its data set for this long at most, and a few seconds more."""


def limit_name(dataset: str) -> str:
    """Return the name of the server's concurrency limit for a data set."""
    return f"unitball.dataset.{dataset}"


def _is_deployed() -> bool:
    """Whether a deployment started this run, or the run that it is a part of."""
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    # Prefect's accessor asks the server about each run that names no deployment, its own or its parent's.
    if run is not None and run.deployment_id is None and run.parent_task_run_id is None:
        return False
    return bool(deployment.id)


@contextmanager
def one_run_a_dataset(dataset: str) -> Iterator[None]:
    """Let the deployed runs of one data set go one after the other; other data sets' runs are not held up by who waits.

    This saves work and keeps the order of charges readable. It protects no budget: the ledger does, for any runs at
    once. So a lease that cannot be renewed does not end a run. Runs that no deployment started do not wait.
    """
    if not _is_deployed():
        yield
        return
    name = limit_name(dataset)
    # Another run may just have made it.
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.upsert_global_concurrency_limit_by_name(name, 1)
    leased = partial(concurrency, lease_duration=LEASE_SECONDS, raise_on_lease_renewal_failure=False)
    # The data set first: who waits for it holds none of the machine's slots.
    with leased(name, strict=True), leased(AT_WORK):
        yield


class EndState(StrEnum):
    """Names of states; those of failures come from a run that ended in order, so that it is not taken for a crash."""

    BUDGET_EXHAUSTED = "BudgetExhausted"
    """Failed: a cap would be exceeded."""
    INADMISSIBLE = "Inadmissible"
    """Failed: no budget would admit it, as an unproved algorithm on private rows."""
    VIOLATION = "Violation"
    """Failed: an audit has refuted the statement of an algorithm."""
    WARNING = "Warning"
    """Completed: an audit suspects an algorithm, at a confidence that refutes nothing."""


def refused(error: RefusedError) -> State[RefusedError]:
    """Return the final state of a run that was refused for privacy: failed, and named by :class:`EndState`.

    A flow that returns it is not retried; who called the flow directly still gets the exception.
    """
    name = EndState.BUDGET_EXHAUSTED if isinstance(error, OverspendError) else EndState.INADMISSIBLE
    return Failed(name=str(name), message=f"Refused for privacy: {error}", data=error)


@contextmanager
def announcing_failures(resource: str) -> Iterator[None]:
    """Announce why what is within fails, before the run's end is known: ``prefect deployment run --watch`` prints it.

    What is stopped from outside says in its log what it has charged.

    Parameters
    ----------
    resource : str
        What the run is about.
    """
    try:
        yield
    except Exception as error:
        event = Event.REFUSED if isinstance(error, RefusedError) else Event.FAILED
        reason = " ".join(str(error).split()) or type(error).__name__
        announce(event, resource, {"reason": reason}, labels={"prefect.resource.name": reason})
        raise
    except BaseException:
        # Cancelled, or its process is ended: the run's own log says what stands.
        with suppress(MissingContextError):
            get_run_logger().warning("stopped: %s", stands())
        raise
