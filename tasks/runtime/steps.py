"""Steps: Prefect tasks with one cache policy, made again where what they refer to is gone, and plain calls inline."""

import inspect
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, cast

from prefect import Task
from prefect.cache_policies import CachePolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TagsContext, TaskRunContext
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from storage.errors import FormatVersionError, SecretError, StorageError
from tasks.planning.identity import identity, package_digest, required_versions
from tasks.runtime.progress import OBSERVER
from tasks.runtime.run_logs import name_steps
from tasks.runtime.settings import current_root

PROCESS_TAG = "unitball.process."
"""What a tag begins with that marks a flow run as one of a process (:mod:`tasks.host.interrupted`)."""

# Wherever steps run, their runs' logs name them.
name_steps()


@dataclass
class ByContent(CachePolicy):
    """Key a task by everything its answer depends on.

    Prefect's own policies see neither a changed helper nor another data root, and its default includes the run's
    identity, so that nothing would be reused from run to run. Inputs must be references or plain values.

    Parameters
    ----------
    without : tuple of str
        Inputs on which no answer depends, only whether there is one.
    """

    without: tuple[str, ...] = ()

    def compute_key(
        self, task_ctx: TaskRunContext, inputs: dict[str, Any], flow_parameters: dict[str, Any], **kwargs: Any
    ) -> str | None:
        """Return the key."""
        return identity(
            task=task_ctx.task.task_key,
            source=inspect.getsource(task_ctx.task.fn),
            inputs={name: value for name, value in inputs.items() if name not in self.without},
            code=package_digest("dpalgos", "storage", "tasks", "flows"),
            packages=required_versions(),
            root=str(current_root()),
        )


BY_CONTENT = ByContent()


def is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether a task failed for want of a file system or a database.

    Such a retry is safe, since a release made twice is the same release and is charged once. Refusals for privacy, bad
    input and lost secrets stay failures.
    """
    error = state.result(raise_on_failure=False)
    return isinstance(error, (OSError, StorageError)) and not isinstance(error, (FormatVersionError, SecretError))


RETRIES: dict[str, Any] = {"retries": 2, "retry_delay_seconds": 1, "retry_condition_fn": is_transient}
"""Options of tasks that may be tried again."""


P = ParamSpec("P")
R = TypeVar("R")

_INLINE: ContextVar[bool] = ContextVar("inline", default=False)
_LOCKS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """The result of an inline step.

    Parameters
    ----------
    value : object
    known : bool or None
        Whether what it refers to was stored before; None where nothing is.
    seconds : float
    """

    value: R
    known: bool | None
    seconds: float

    def result(self) -> R:
        """Return the value."""
        return self.value


Future = PrefectFuture[R] | Done[R]


@contextmanager
def inline() -> Iterator[None]:
    """Run the steps of this thread as plain calls."""
    token = _INLINE.set(True)
    try:
        yield
    finally:
        _INLINE.reset(token)


def is_inline() -> bool:
    """Whether the steps of this thread are plain calls."""
    return _INLINE.get()


@contextmanager
def unmarked() -> Iterator[None]:
    """Leave the mark off the task runs begun in the context: of each tag of theirs the server is asked for a limit."""
    kept = {tag for tag in TagsContext.get().current_tags if not tag.startswith(PROCESS_TAG)}
    with TagsContext(current_tags=kept):
        yield


def most_at_once() -> int:
    """Return how many steps run at once on this machine, unless the user has given a number."""
    return min(4, os.cpu_count() or 1)


def threads(at_once: int | None = None) -> TaskRunner[PrefectFuture[object]]:
    """Return what runs a flow's steps in threads. Default: :func:`most_at_once`."""
    return cast("TaskRunner[PrefectFuture[object]]", ThreadPoolTaskRunner(max_workers=at_once or most_at_once()))


class Step(Task[P, R]):
    """A task that answers from the cache only while what its answer refers to is stored.

    Parameters
    ----------
    fn : callable
    stored : callable, optional
        Says from the arguments whether it is.
    whole : callable, optional
        Says so from the answer.
    options
        Of :class:`prefect.Task`.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        stored: Callable[..., bool] | None,
        whole: Callable[[Any], bool] | None,
        **options: Any,
    ) -> None:
        super().__init__(fn, **options)
        self._is_stored, self._is_whole = stored, whole

    def __call__(self, *args: Any) -> R:  # type: ignore[override]  # no keywords: arguments are the cache's key
        """Run the step and wait for it."""
        answer: R
        if is_inline():
            answer = self._now(*args).value
        else:
            with unmarked():
                answer = super().__call__(*args)  # type: ignore[call-overload]  # Prefect overloads by sync and async
                if self._is_whole is not None and not self._is_whole(answer):
                    answer = self.with_options(refresh_cache=True)(*args)  # type: ignore[call-overload]  # Prefect overloads by sync and async
        OBSERVER.get()(self.name)
        return answer

    def submit(self, *args: Any) -> Future[R]:  # type: ignore[override]  # no keywords: arguments are the cache's key
        """Begin the step; arguments may be what other steps' ``submit`` returned."""
        if is_inline():
            return self._now(*args)
        gone = self._is_stored is not None and not self._is_stored(*args)
        chosen: Task[..., R] = self.with_options(refresh_cache=True) if gone else self
        with unmarked():
            return Task.submit(chosen, *[_result(one) for one in args])

    def _now(self, *args: Any) -> Done[R]:
        values = [_result(one) for one in args]
        # Points that share a step wait for whoever was first, and find it done.
        with _LOCKS[identity(step=self.name, arguments=values)]:
            known = None if self._is_stored is None else self._is_stored(*values)
            started = time.monotonic()
            value = self.fn(*values)  # type: ignore[call-arg]  # P is *args alone
            return Done(value, known, time.monotonic() - started)


def step(
    *,
    stored: Callable[..., bool] | None = None,
    whole: Callable[[Any], bool] | None = None,
    cached: bool = True,
    **options: Any,
) -> Callable[[Callable[P, R]], Step[P, R]]:
    """Return a decorator that makes a function a :class:`Step`.

    Parameters
    ----------
    stored, whole : callable, optional
        See :class:`Step`.
    cached : bool
        False for what remembers by itself what was done, as the ledger does.
    options
        Of :class:`prefect.Task`.
    """
    caching = {"cache_policy": BY_CONTENT, "persist_result": True} if cached else {"persist_result": False}
    return lambda fn: Step(fn, stored=stored, whole=whole, **caching, **options)


def served_from_cache(future: Future[Any]) -> bool:
    """Whether a finished step made nothing."""
    return future.known is not False if isinstance(future, Done) else future.state.name == "Cached"


def _result(argument: Any) -> Any:
    if isinstance(argument, Done):
        return argument.value
    return [_result(one) for one in argument] if isinstance(argument, list) else argument
