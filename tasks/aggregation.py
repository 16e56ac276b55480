"""The server's step: putting released bases and models together, which costs nothing."""

from __future__ import annotations

from storage.refs import ReleaseRef
from tasks.planning.plans import PlannedCombination
from tasks.release.combining import combine
from tasks.release.storing import is_stored
from tasks.runtime.progress import say
from tasks.runtime.steps import step


def _stored(combination: PlannedCombination, *_: object) -> bool:
    return is_stored(combination.key)


@step(task_run_name="{combination.label}", stored=_stored)
def aggregate(combination: PlannedCombination, releases: list[ReleaseRef]) -> ReleaseRef:
    """Combine releases into one; takes releases and returns a release, and gets no shard."""
    reference = combine(combination, releases)
    say("aggregation", combination.label)
    return reference
