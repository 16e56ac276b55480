"""A training run as plain calls in the caller's own thread: what one point of a sweep is made of."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from prefect import Task

from storage.refs import DatasetRef, ReleaseRef
from tasks.planning.identity import identity
from tasks.planning.plans import PlannedCombination, PlannedRelease
from tasks.release.door import is_stored
from tasks.tracking.results import Evaluation

__all__ = ["Directly"]

_R = TypeVar("_R")
_LOCKS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_GUARD = threading.Lock()


@contextmanager
def _alone(key: str) -> Iterator[None]:
    """Let one thread at a time do the work behind a key; the others find it done."""
    with _GUARD:
        lock = _LOCKS[key]
    with lock:
        yield


class Directly:
    """Every step a call of the task's own function, one after another."""

    def __init__(self) -> None:
        self._made: dict[str, ReleaseRef] = {}
        self._seconds: float | None = 0.0
        self._private = True

    def reached(self, stage: str) -> None:
        """Say nothing: the sweep shows whole points."""

    def prepare(self, task: Task[..., _R], arguments: Sequence[Any], is_whole: Callable[[_R], bool]) -> _R:
        """Call the step; it finds by itself what is stored already."""
        del is_whole
        with _alone(identity(task=task.name, arguments=list(arguments))):
            return task.fn(*arguments)

    def pay(self, dataset: DatasetRef, charge: Task[..., dict[str, Any]], *arguments: Any) -> None:
        """Charge."""
        self._private = dataset.private
        charge.fn(*arguments)

    def make(self, task: Task[..., ReleaseRef], planned: PlannedRelease | PlannedCombination, *arguments: Any) -> None:
        """Make the release; points that share it wait for whoever was first."""
        with _alone(planned.key):
            known = is_stored(planned.key)
            started = time.monotonic()
            self._made[planned.key] = task.fn(planned, *arguments)
            spent = time.monotonic() - started
        self._seconds = None if known or self._seconds is None else self._seconds + spent

    def made(self, keys: Sequence[str]) -> list[ReleaseRef]:
        """Return the references."""
        return [self._made[key] for key in keys]

    def references(self) -> dict[str, ReleaseRef]:
        """Return all references."""
        return dict(self._made)

    def measure(self, task: Task[..., Evaluation], *arguments: Any) -> Evaluation:
        """Evaluate."""
        return task.fn(*arguments)

    def notes(self) -> dict[str, Any]:
        """Say how long the releases took, where rows are public and all were made here."""
        seconds = None if self._private or self._seconds is None else round(self._seconds, 4)
        return {"releasing_seconds": seconds, "cached": self._seconds is None}
