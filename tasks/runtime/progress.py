"""Progress of long work: the code that works reports how much of its total is done, and listeners show it."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

Listener = Callable[[str, str, float | None], None]
"""Called with a stage, a label of public text, and the share of the stage that is done, where it is known."""

WAITING = "waiting"
"""The stage of what nobody here can hasten: it is said where no progress is shown, too."""

WORKERS = "workers"
"""The stage that says on how many workers a run begins; it is said and stays, where no progress is shown, too."""

OBSERVER: ContextVar[Callable[[str], None]] = ContextVar("observer", default=lambda name: None)
"""Called with the name of each step of the thread that is done."""

_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
_LISTENERS: list[Listener] = []
_LOCK = threading.Lock()
_T = TypeVar("_T")


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Call ``listener`` for every piece of work that finishes while the context is open."""
    with _LOCK:
        _LISTENERS.append(listener)
    try:
        yield
    finally:
        with _LOCK:
            _LISTENERS.remove(listener)


@contextmanager
def quietly() -> Iterator[None]:
    """Say nothing of what this thread does: where nothing may show before a deadline."""
    token = _QUIET.set(True)
    try:
        yield
    finally:
        _QUIET.reset(token)


@contextmanager
def observed_by(observer: Callable[[str], None]) -> Iterator[None]:
    """Tell an observer the name of each step that this thread calls, when the step is done."""
    token = OBSERVER.set(observer)
    try:
        yield
    finally:
        OBSERVER.reset(token)


def report_progress(stage: str, label: str, share: float | None = None) -> None:
    """Tell the listeners that a piece of work is done; public text and numbers only.

    Parameters
    ----------
    stage, label : str
    share : float, optional
        How much of the stage is done, 0 to 1; estimates are cut off there.
    """
    if _QUIET.get():
        return
    with _LOCK:
        listeners = list(_LISTENERS)
    share = None if share is None else min(max(share, 0.0), 1.0)
    for listener in listeners:
        listener(stage, label, share)


def report_runs(done: int, of: int) -> None:
    """Tell the listeners how many of how many runs are done."""
    report_progress("runs", f"{done:,} of {of:,}", done / of)


@dataclass(frozen=True)
class Counted(Iterable[_T]):
    """Blocks of rows that are counted whenever they are read.

    Parameters
    ----------
    blocks : iterable
        Readable again where a second reading is asked for.
    size : callable
        Rows of a block.
    stage : str
    rows : int, optional
        How many there are, or about so many.
    """

    blocks: Iterable[_T]
    size: Callable[[_T], int]
    stage: str
    rows: int | None = None

    def __iter__(self) -> Iterator[_T]:
        done = 0
        for block in self.blocks:
            yield block
            done += self.size(block)
            report_progress(self.stage, f"{done:,} rows", done / self.rows if self.rows else None)
