"""What work costs: its time without the coverage tracer, which makes Python several times slower, and its calls."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

from dpalgos.rows import cores


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


def ratio(ours: Callable[[], object], other: Callable[[], object], *, bound: float) -> float:
    """Return the least wall time of ours over that of the other.

    Ours runs as the door runs it, one thread a matrix product and blocks on all cores; the other at default threads.
    They run in turn after a warm-up, five times each, and up to thirty while the ratio is above the bound: what else
    the machine does only adds to a time, so that the least of more turns says more.
    """
    least = [math.inf, math.inf]
    for turn in range(31):
        # Whatever ran in this process before may have set the libraries' threads.
        for side, (work, threads) in enumerate(((ours, 1), (other, cores()))):
            with untraced(), threadpool_limits(threads, user_api="blas"):
                started = time.perf_counter()
                work()
                taken = time.perf_counter() - started
            if turn:
                least[side] = min(least[side], taken)
        if turn >= 5 and least[0] / least[1] <= bound:
            break
    return least[0] / least[1]


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions, Python's and C's, this thread calls: a count that no other process changes."""
    calls = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    work()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
