"""The step that releases a model, from one party's rows or from all, through the door."""

from __future__ import annotations

from storage.refs import ReleaseRef, ShardRef
from tasks.planning.plans import PlannedRelease
from tasks.release.door import make_release
from tasks.release.storing import is_stored
from tasks.runtime.progress import say
from tasks.runtime.retries import RETRIES
from tasks.runtime.steps import step


def _stored(release: PlannedRelease, *_: object) -> bool:
    return is_stored(release.key)


@step(task_run_name="{release.label}", stored=_stored, **RETRIES)
def train_model(release: PlannedRelease, shards: list[ShardRef], upstream: list[ReleaseRef]) -> ReleaseRef:
    """Train on rows, seen through a released basis where there is one, and release the model."""
    reference = make_release(release, shards, upstream)
    say("training", release.label)
    return reference
