"""The step that releases a basis, from one party's rows or from all, through the door."""

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
def reduce_dimension(release: PlannedRelease, shards: list[ShardRef]) -> ReleaseRef:
    """Learn a basis from rows and release it."""
    reference = make_release(release, shards)
    say("reduction", release.label)
    return reference
