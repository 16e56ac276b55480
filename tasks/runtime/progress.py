"""Progress of long work: tasks say what they finished, whoever listens in this process shows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Listener", "listen", "say"]

Listener = Callable[[str, str], None]
"""Called with a stage and a label of public words."""

_LISTENERS: list[Listener] = []
_LOCK = threading.Lock()


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


def say(stage: str, label: str) -> None:
    """Tell the listeners that a piece of work is done; public words only."""
    with _LOCK:
        listeners = list(_LISTENERS)
    for listener in listeners:
        listener(stage, label)
