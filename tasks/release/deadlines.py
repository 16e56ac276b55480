"""Public deadlines: work on private rows shows at its own instant, and its misses are charged."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from storage.atomic import write_bytes
from storage.errors import RefusedError
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedRelease
from tasks.release.redaction import redacted
from tasks.runtime.progress import quietly
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_releases

_Made = TypeVar("_Made")


class DeadlineMissError(RefusedError):
    """Work on private rows took longer than the declared deadline; nothing is released, and the charge stands."""


def wait_for_deadline(planned: PlannedRelease, begun: float | None = None) -> None:
    """Wait until what was made of rows may show; nothing where no deadline was declared.

    Guarantee
    ---------
    What happens afterwards begins at ``begun + seconds`` for any rows, except after misses, whose probability is
    declared and charged (:func:`dpalgos.accounting.costs.loss_of_deadline_misses`). Idealised: how soon a sleeping
    process is woken does not depend on what it did before, and neither do the processor's caches and clock, the free
    memory and the other processes that it left. What observes the processor or the memory meanwhile is not covered.

    Parameters
    ----------
    planned : PlannedRelease
    begun : float, optional
        By the monotonic clock. None before it is begun: there is no wait, and a release whose deadline passed before is
        refused, since another attempt would have another, uncharged duration.

    Raises
    ------
    DeadlineMissError
        If it has passed.
    """
    _await([planned], planned.label, begun)


def prepare_in_time(plan: RunPlan, what: str, prepare: Callable[[], _Made]) -> _Made | None:
    """Do what a charged plan's releases need of private rows before they read them; it shows at its own instant.

    Its clock is the deadline of the releases, which have paid for a miss of it
    (:meth:`tasks.planning.plans.Deadline.misses`). A plan that missed its deadline stays late: its releases are refused
    from then on, so that no attempt is timed again under the same charge. Where all of them are stored, nothing is
    done, because no rows will be read.

    Parameters
    ----------
    plan : RunPlan
        Charged, with a deadline.
    what : str
        For people: what is prepared.
    prepare : callable
        Says nothing while it works.

    Returns
    -------
    object or None
        What was prepared; None where nothing was to be done.

    Raises
    ------
    DeadlineMissError
        If it takes longer than the deadline, or one of the releases was late before.
    RedactedError
        If something else goes wrong on private rows.
    """
    timed = [release for release in plan.releases if release.deadline is not None]
    if all(open_releases().exists(release.key) for release in timed):
        return None
    _await(timed, what, None)
    begun = time.monotonic()
    with redacted(plan.run_key, what, private=True), quietly():
        prepared = prepare()
    _await(timed, what, begun)
    return prepared


def _await(timed: Sequence[PlannedRelease], what: str, begun: float | None) -> None:
    """Wait until what was made for some releases of one deadline may show; see :func:`wait_for_deadline`."""
    deadline = timed[0].deadline
    if deadline is None:
        return
    missed = [current_layout().private / "deadline-misses" / release.key for release in timed]
    left = 0.0 if begun is None else begun + deadline.seconds - time.monotonic()
    if left < 0:
        for mark in missed:
            write_bytes(mark, b"", mode=0o600)
    if left < 0 or (begun is None and any(mark.exists() for mark in missed)):
        raise DeadlineMissError(
            f"{what} missed the deadline of {deadline.seconds:g} s and is not released; its charge remains, and all "
            "other releases are kept. Unitball does not repeat it, because its duration may depend on the rows: "
            "choose a larger --deadline, which makes a new, charged release"
        )
    time.sleep(left)
