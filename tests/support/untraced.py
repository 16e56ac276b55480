"""Time what runs without the coverage tracer, which makes pure Python several times slower."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def untraced() -> Iterator[None]:
    """Run without the tracer."""
    tracer, of_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)
        threading.settrace(of_threads)


def quickest(work: Callable[[], object], *, times: int = 5) -> float:
    """Return the seconds of the quickest of some repetitions: the others waited for the machine's other work."""
    with untraced():
        seconds = []
        for _ in range(times):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
        return min(seconds)
