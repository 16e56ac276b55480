"""The chain of the rounds of one secure sum: advertise, share, mask, unmask, each a task a party."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from dpalgos.trust.secagg import SecureAggregation
from storage.refs import ReleaseRef, ShardRef
from tasks.planning.plans import PlannedRelease
from tasks.runtime.steps import Future, Step
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


def in_rounds(
    release: PlannedRelease, shards: Sequence[ShardRef], upstream: Sequence[Future[ReleaseRef]] = ()
) -> Future[ReleaseRef]:
    """Run the rounds of a release of one secure sum; return what stands for the release.

    Parameters
    ----------
    release : PlannedRelease
    shards : sequence of ShardRef
        Of all parties, in their order; each party's tasks are given its own.
    upstream : sequence of futures
        The artefacts that rows are seen through.
    """
    begun: list[Future[Any]] = []

    def run(task: Step[..., Any], *arguments: Any) -> Future[Any]:
        begun.append(task.submit(release, *arguments))
        return begun[-1]

    absences = cast(SecureAggregation, release.trust_model()).absences(len(shards))

    def present(*rounds: str) -> list[list[int]]:
        gone = absences.after(*rounds)
        return blocks_of([party for party in range(len(shards)) if party not in gone])

    opened = run(open_rounds, list(shards))
    introduced = run(introduce, opened, [run(advertise, block, opened) for block in present("advertise")])
    agreed = run(agree, introduced, [run(share, block, introduced) for block in present("advertise", "share")])
    masking = present("advertise", "share", "mask")
    vectors = [run(mask, block, [shards[party] for party in block], list(upstream), agreed) for block in masking]
    fixed = run(fix_survivors, agreed, vectors)
    remaining = present("advertise", "share", "mask", "unmask")
    decoded = run(decode, agreed, fixed, [run(unmask, block, fixed) for block in remaining])
    for one in begun:
        # In order, so that what failed says so itself.
        one.result()
    return decoded
