"""Names of the states in which runs end by our own decision; every other end bears Prefect's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from prefect.client.schemas.objects import State
from prefect.states import Failed

from storage.errors import OverspendError, RefusedError
from tasks.runtime.events import Event, announce


class EndState(StrEnum):
    """Names of states; those of failures come from a run that ended in order, so that nobody takes it for a crash."""

    BUDGET_EXHAUSTED = "BudgetExhausted"
    """Failed: a cap would be exceeded."""
    INADMISSIBLE = "Inadmissible"
    """Failed: no budget would admit it, as an unproved algorithm on private rows."""
    VIOLATION = "Violation"
    """Failed: an audit has refuted what is stated of an algorithm."""
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
