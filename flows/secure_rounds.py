"""The chain of the rounds of one secure sum: advertise, share, mask, unmask, each a task a party."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import Task
from prefect.futures import PrefectFuture

from storage.refs import ShardRef
from tasks.planning.plans import PlannedRelease
from tasks.release.door import is_stored
from tasks.runtime.caching import submit
from tasks.secure_rounds import (
    advertise,
    agree,
    decode,
    fix_survivors,
    introduce,
    mask,
    open_rounds,
    share,
    unmask,
)

__all__ = ["blocks_of", "in_rounds"]

_BLOCKS = 8


def blocks_of(parties: Sequence[int]) -> list[list[int]]:
    """Return the parties in at most eight blocks of neighbours: each a task in every round."""
    size = max(1, -(-len(parties) // _BLOCKS))
    return [list(parties[start : start + size]) for start in range(0, len(parties), size)]


def in_rounds(release: PlannedRelease, shards: Sequence[ShardRef], upstream: Sequence[Any]) -> list[PrefectFuture[Any]]:
    """Submit the rounds of a release of one secure sum; return what stands for each step, the release itself last.

    Parameters
    ----------
    release : PlannedRelease
    shards : sequence of ShardRef
        Of all parties, in their order; each party's tasks are given its own.
    upstream : sequence of futures
        The artefacts that rows are seen through.
    """
    made, absences = is_stored(release.key), release.absences()
    submitted: list[PrefectFuture[Any]] = []

    def run(task: Task[..., Any], *arguments: Any) -> PrefectFuture[Any]:
        submitted.append(submit(task, [release, *arguments], stored=made))
        return submitted[-1]

    def present(*rounds: str) -> list[list[int]]:
        gone = absences.after(*rounds)
        return blocks_of([party for party in range(len(shards)) if party not in gone])

    opened = run(open_rounds, list(shards))
    introduced = run(introduce, opened, [run(advertise, block, opened) for block in present("advertise")])
    shared = present("advertise", "share")
    agreed = run(agree, introduced, [run(share, block, introduced) for block in shared])
    masking = present("advertise", "share", "mask")
    vectors = [run(mask, block, [shards[party] for party in block], list(upstream), agreed) for block in masking]
    fixed = run(fix_survivors, agreed, vectors)
    remaining = present("advertise", "share", "mask", "unmask")
    run(decode, agreed, fixed, [run(unmask, block, fixed) for block in remaining])
    return submitted
