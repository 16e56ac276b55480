"""The tasks that release: a basis or a model from one party's rows, or from all, through the door."""

from __future__ import annotations

from prefect import task

from storage.refs import ReleaseRef, ShardRef
from tasks.planning.plans import PlannedRelease
from tasks.release.door import make_release
from tasks.runtime.caching import BY_CONTENT
from tasks.runtime.progress import say
from tasks.runtime.retries import RETRIES

__all__ = ["reduce_dimension", "train_model"]


@task(task_run_name="{release.label}", cache_policy=BY_CONTENT, persist_result=True, **RETRIES)
def reduce_dimension(release: PlannedRelease, shards: list[ShardRef]) -> ReleaseRef:
    """Learn a basis from rows and release it."""
    reference = make_release(release, shards)
    say("reduction", release.label)
    return reference


@task(task_run_name="{release.label}", cache_policy=BY_CONTENT, persist_result=True, **RETRIES)
def train_model(release: PlannedRelease, shards: list[ShardRef], basis: ReleaseRef | None = None) -> ReleaseRef:
    """Train on rows, seen through a released basis where there is one, and release the model."""
    reference = make_release(release, shards, [basis] if basis else [])
    say("training", release.label)
    return reference
