"""Children of tests that may be killed: forked from a process with one thread, never from the tests' own.

A child of a process with threads has whatever locks and memory those threads held at that moment, and now and then
dies of it. So the children's parent is a server (multiprocessing's) that has imported what they need, keeps the
libraries from starting threads while they are imported, and refuses to serve if one was started all the same.
What a child does is sent to it, with the environment and folder of the moment: patches of the tests' own process are
not there, and a body makes those it needs itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from tests.support import forked_from

_FORKS = multiprocessing.get_context("forkserver")
# Before all others what keeps threads away; then what Arrow and our packages import only where they need it.
_EXTRA = ["tests.support.without_polars", "duckdb", "pandas", "pyarrow.compute"]
# OpenBLAS and Arrow's allocator start threads as they are loaded.
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}

Pipe = _FORKS.Pipe
Value = _FORKS.Value


def preload(module: str) -> None:
    """Let the server import a module that no test module imports, before those that start children."""
    _EXTRA.append(module)


def _preloaded() -> list[str]:
    """Return what the server imports, since a child would spend most of its time on it: the callers of this module."""
    ours = {id(sys.modules[__name__]), *map(id, (start, killed, in_child, race))}
    loaded = [(name, module) for name, module in sys.modules.items() if name.startswith("tests.")]
    users = [name for name, module in loaded if not ours.isdisjoint(map(id, vars(module).values()))]
    # They take half a second of a core: more than what else most children do.
    digests = ["tests.support.warm"] if "tasks.planning.identity" in sys.modules else []
    return [*_EXTRA, *users, *digests, forked_from.__name__]


def start(body: Callable[..., Any], *arguments: Any) -> ForkServerProcess:
    """Start a child that calls ``body``; what multiprocessing shares (pipes, locks) is an argument."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _NO_THREADS.items():
            patch.setenv(name, value)
        _FORKS.set_forkserver_preload(_preloaded())
        forkserver.ensure_running()
    child = _FORKS.Process(target=_run, args=(cloudpickle.dumps(body), dict(os.environ), Path.cwd(), arguments))
    child.start()
    return child


def _run(body: bytes, environment: Mapping[str, str], folder: Path, arguments: tuple[Any, ...]) -> None:
    assert (os.getppid(), 1) == (forked_from.PROCESS, forked_from.THREADS), "forked from a process with threads"
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    cloudpickle.loads(body)(*arguments)


def die(*arguments: Any, **options: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(body: Callable[[], Any]) -> None:
    """Run in a child that must die of SIGKILL."""
    child = start(body)
    child.join(300)
    assert child.exitcode == -signal.SIGKILL, f"the child ended with {child.exitcode} instead of being killed"


def in_child(body: Callable[[], Any], *, user: int | None = None) -> Any:
    """Run in a child (as another user, if asked), and return what it returned or raise what it raised."""
    receiver, sender = Pipe(duplex=False)
    child = start(partial(_answer, body, user), sender)
    sender.close()
    try:
        answer, error = receiver.recv()
    except EOFError:
        child.join()
        raise AssertionError(f"the child ended with {child.exitcode} and said nothing") from None
    child.join()
    if error is not None:
        raise error
    return answer


def _answer(body: Callable[[], Any], user: int | None, sender: Any) -> None:
    try:
        if user is not None:
            os.setgid(user)
            os.setuid(user)
        sender.send((body(), None))
    except Exception as error:
        sender.send((None, error))


def race(count: int, body: Callable[[int], Any]) -> list[Any]:
    """Start processes that wait for each other and then run ``body(number)`` at once; return the answers by number.

    An exception is answered by its type's name.
    """
    barrier = _FORKS.Barrier(count)
    queue: Any = _FORKS.Queue()
    children = [start(partial(_racer, body, number), barrier, queue) for number in range(count)]
    answers: Mapping[int, Any] = dict(queue.get(timeout=300) for _ in children)
    for child in children:
        child.join()
    return [answers[number] for number in range(count)]


def _racer(body: Callable[[int], Any], number: int, barrier: Any, queue: Any) -> None:
    barrier.wait()
    try:
        queue.put((number, body(number)))
    except Exception as error:
        queue.put((number, type(error).__name__))
