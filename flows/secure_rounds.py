"""The rounds of one secure sum as tasks: in each stage one a block of parties, and one of the server."""

from collections.abc import Sequence
from typing import Any, cast

from dpalgos.secure.rounds import Stage, carry_out
from dpalgos.secure.summation import Masking
from storage.refs import ReleaseRef, ShardRef
from tasks.planning.plans import PlannedRelease
from tasks.steps import Future, Step, answer, decide, open_rounds, open_sum

_BLOCKS = 8

Answers = list[Future[list[str]]]


def blocks_of(parties: Sequence[int]) -> list[list[int]]:
    """Return the parties in at most eight blocks of neighbours: each a task in every round."""
    size = max(1, -(-len(parties) // _BLOCKS))
    return [list(parties[start : start + size]) for start in range(0, len(parties), size)]


class _Tasks:
    """Messages that travel through tasks (a :class:`dpalgos.secure.rounds.Transport`)."""

    def __init__(
        self, release: PlannedRelease, shards: Sequence[ShardRef], upstream: Sequence[Future[ReleaseRef]]
    ) -> None:
        self.begun: list[Future[Any]] = []
        self._release, self._shards, self._upstream = release, list(shards), list(upstream)
        self._absences = cast(Masking, release.masking).absences
        self._past: list[str] = []
        self._asked = self._begin(open_rounds, self._shards)

    def ask(self, stage: Stage) -> Answers:
        """Begin a task a block of those parties that are still there."""
        self._past.append(stage)
        gone = {party for past in self._past for party in self._absences.get(past, frozenset())}
        blocks = blocks_of([party for party in range(len(self._shards)) if party not in gone])
        return [
            self._begin(
                answer,
                stage,
                block,
                # Rows are read where they are masked, and nowhere else.
                [self._shards[party] for party in block] if stage is Stage.MASK else [],
                self._upstream if stage is Stage.MASK else [],
                self._asked,
            )
            for block in blocks
        ]

    def decide(self, stage: Stage, answers: Answers) -> Future[Any]:
        """Begin the server's task."""
        if stage is Stage.UNMASK:
            return self._begin(open_sum, answers)
        self._asked = self._begin(decide, stage, answers)
        return self._asked

    def _begin(self, task: Step[..., Any], *arguments: Any) -> Future[Any]:
        self.begun.append(task.submit(self._release, *arguments))
        return self.begun[-1]


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
    tasks = _Tasks(release, shards, upstream)
    opened = carry_out(tasks)
    for one in tasks.begun:
        # In order, so that what failed says so itself.
        one.result()
    return opened
