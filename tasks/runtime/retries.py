"""Which failures are worth another try: the outside world's, never a refusal."""

from __future__ import annotations

from typing import Any

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun

from storage.errors import FormatVersionError, SecretError, StorageError


def is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether a task failed for want of a file system or a database.

    Such a retry is safe, since a release made twice is the same release and is charged once. Refusals for privacy, bad
    input and lost secrets stay failures.
    """
    error = state.result(raise_on_failure=False)
    return isinstance(error, (OSError, StorageError)) and not isinstance(error, (FormatVersionError, SecretError))


RETRIES: dict[str, Any] = {"retries": 2, "retry_delay_seconds": 1, "retry_condition_fn": is_transient}
"""Options of tasks that may be tried again."""
