"""The cache policy of every task: inputs, the task's own source, the packages it calls, and the storage root."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass
from typing import Any

from prefect.cache_policies import CachePolicy
from prefect.context import TaskRunContext

from tasks.planning.identity import canonical, package_digest, required_versions
from tasks.runtime.settings import current_root


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
                "packages": required_versions(),
                "root": str(current_root()),
            }
        )
        return hashlib.sha256(text.encode()).hexdigest()


BY_CONTENT = ByContent()
