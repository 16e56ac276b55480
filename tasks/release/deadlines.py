"""The public instant at which a release of private rows appears, however long the work on the rows took."""

from __future__ import annotations

import time
from pathlib import Path

from storage.atomic import write_bytes
from storage.errors import RefusedError
from tasks.planning.plans import PlannedRelease
from tasks.runtime.settings import current_layout


class OverrunError(RefusedError):
    """Work on private rows took longer than the declared deadline; nothing is released, and the charge stands."""


def _error(planned: PlannedRelease) -> OverrunError:
    assert planned.deadline is not None
    return OverrunError(
        f"{planned.label} was not made within the deadline of {planned.deadline.seconds:g} s and is not released; its "
        "charge stands and everything else is kept. It is not tried again, since how long it takes may tell of the "
        "rows: choose a larger --deadline, a new release with a charge of its own"
    )


def require_no_overrun(planned: PlannedRelease) -> None:
    """Refuse to make a release whose deadline passed before: another attempt would be timed anew and uncharged.

    Raises
    ------
    OverrunError
    """
    if planned.deadline is not None and _mark(planned).exists():
        raise _error(planned)


def _mark(planned: PlannedRelease) -> Path:
    return current_layout().private / "overruns" / planned.key


class DeadlineClock:
    """The deadline of a release whose making begins now.

    Guarantee
    ---------
    What happens after :meth:`wait` begins at ``begin + seconds`` whatever the rows, but for overruns, whose probability
    is declared and charged (:func:`dpalgos.accounting.overruns.loss_of_overruns`). Idealised: how soon a sleeping
    process is woken does not depend on what it did before, and neither do the processor's caches and clock, the free
    memory and the other processes that it left. What observes the processor or the memory meanwhile is not covered.

    Parameters
    ----------
    planned : PlannedRelease
    """

    def __init__(self, planned: PlannedRelease) -> None:
        self._planned, self._begin = planned, time.monotonic()

    def wait(self) -> None:
        """Wait for the deadline; nothing where none was declared.

        Raises
        ------
        OverrunError
            If it has passed.
        """
        deadline = self._planned.deadline
        if deadline is None:
            return
        left = self._begin + deadline.seconds - time.monotonic()
        if left < 0:
            write_bytes(_mark(self._planned), b"", mode=0o600)
            raise _error(self._planned)
        time.sleep(left)
