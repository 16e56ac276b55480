"""What the chains share: how a release begins, and what a run leaves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from prefect.runtime import flow_run

from flows.secure_rounds import in_rounds
from storage.refs import DatasetRef, ReleaseRef, ShardRef
from tasks.planning.plans import PlannedRelease, RunPlan
from tasks.runtime.steps import Done, Future, Step, is_inline, served_from_cache
from tasks.tracking.results import RunResult

__all__ = ["Chained", "submit", "timed"]


class Chained(NamedTuple):
    """What a run leaves: its rows, its plan, its result, and for each model what rows pass through, the model last."""

    dataset: DatasetRef
    plan: RunPlan
    result: RunResult
    models: dict[str, list[ReleaseRef]]


def submit(
    step: Step[..., ReleaseRef],
    release: PlannedRelease,
    shards: Sequence[ShardRef],
    *upstream: list[Future[ReleaseRef]],
) -> Future[ReleaseRef]:
    """Begin a release: one task, or those of its rounds where parties and server exchange messages."""
    if release.in_rounds and not is_inline():
        return in_rounds(release, shards, *upstream)
    return step.submit(release, shards, *upstream)


def timed(result: RunResult, dataset: DatasetRef, started: float, futures: Sequence[Future[Any]]) -> RunResult:
    """Add how long a run on public rows took; time is a side channel of private ones."""
    cached = all(served_from_cache(future) for future in futures)
    releasing = [future.seconds for future in futures if isinstance(future, Done) and not future.known]
    measured = not dataset.private and len(releasing) == len(futures)
    return result.model_copy(
        update={
            "cached": cached,
            "seconds": None if dataset.private else round(time.monotonic() - started, 3),
            "releasing_seconds": round(sum(releasing), 4) if measured else None,
            "prefect_flow_run_id": None if is_inline() else str(flow_run.id),
        }
    )
