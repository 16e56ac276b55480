"""The cache policy of every task: inputs, the task's own source, the packages it calls, and the storage root."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from prefect import Task
from prefect.cache_policies import CachePolicy
from prefect.context import TaskRunContext
from prefect.futures import PrefectFuture

from tasks.planning.identity import canonical, code_version, package_digest
from tasks.runtime.settings import current_root

__all__ = ["BY_CONTENT", "ByContent", "checked", "served_from_cache", "submit"]


@dataclass
class ByContent(CachePolicy):
    """Key a task by everything its answer depends on.

    Prefect's own policies see neither a changed helper nor another data root, and its default includes the run's
    identity, so that nothing would be reused from run to run. Inputs must be references or plain values.
    """

    def compute_key(
        self, task_ctx: TaskRunContext, inputs: dict[str, Any], flow_parameters: dict[str, Any], **kwargs: Any
    ) -> str | None:
        """Return the key."""
        source = inspect.getsource(task_ctx.task.fn)
        text = canonical(
            {
                "task": task_ctx.task.task_key,
                "source": source,
                "inputs": inputs,
                "code": package_digest("dpalgos", "storage", "tasks", "flows"),
                "packages": code_version(),
                "root": str(current_root()),
            }
        )
        return hashlib.sha256(text.encode()).hexdigest()


BY_CONTENT = ByContent()

_R = TypeVar("_R")


def submit(task: Task[..., _R], arguments: Sequence[Any], *, stored: bool) -> PrefectFuture[_R]:
    """Submit a task, made to run again where what its cached reference points to is no longer stored."""
    chosen = task if stored else task.with_options(refresh_cache=True)
    return chosen.submit(*arguments)


def checked(task: Task[..., _R], arguments: Sequence[Any], is_whole: Callable[[_R], bool]) -> _R:
    """Call a task, once more where what its cached reference points to is no longer stored."""
    result = task(*arguments)
    return result if is_whole(result) else task.with_options(refresh_cache=True)(*arguments)


def served_from_cache(future: PrefectFuture[Any]) -> bool:
    """Whether a finished task was answered from the cache."""
    return future.state.name == "Cached"
