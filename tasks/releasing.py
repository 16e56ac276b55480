"""Steps that release: bases and models through the door, rounds of secure sums, what the server makes of them."""

from __future__ import annotations

from dpalgos.secure.rounds import Stage
from storage.refs import ReleaseRef, ShardRef
from storage.rounds import MessageRef
from tasks.planning.plans import PlannedCombination, PlannedRelease
from tasks.release.combining import combine
from tasks.release.door import make_release
from tasks.release.rounds import Rounds
from tasks.release.storing import is_stored
from tasks.runtime.progress import say
from tasks.runtime.steps import RETRIES, step


def _stored(release: PlannedRelease, *_: object) -> bool:
    return is_stored(release.key)


@step(task_run_name="{release.label}", stored=_stored, **RETRIES)
def reduce_dimension(release: PlannedRelease, shards: list[ShardRef]) -> ReleaseRef:
    """Learn a basis from rows and release it."""
    reference = make_release(release, shards)
    say("reduction", release.label)
    return reference


@step(task_run_name="{release.label}", stored=_stored, **RETRIES)
def train_model(release: PlannedRelease, shards: list[ShardRef], upstream: list[ReleaseRef]) -> ReleaseRef:
    """Train on rows, seen through a released basis where there is one, and release the model."""
    reference = make_release(release, shards, upstream)
    say("training", release.label)
    return reference


@step(task_run_name="{release.label}: open the rounds", stored=_stored, **RETRIES)
def open_rounds(release: PlannedRelease, shards: list[ShardRef]) -> MessageRef:
    """Declare and charge, then fix what everybody knows before the session."""
    return Rounds(release).open(shards)


@step(task_run_name="{release.label}: {stage} {block}", stored=_stored, **RETRIES)
def answer(
    release: PlannedRelease,
    stage: Stage,
    block: list[int],
    shards: list[ShardRef],
    upstream: list[ReleaseRef],
    asked: MessageRef,
) -> list[MessageRef]:
    """Parties: answer what the server asks in a stage; their own shards are given to the stage that masks alone."""
    return Rounds(release).answer(stage, block, shards, upstream)


@step(task_run_name="{release.label}: decide on {stage}", stored=_stored, **RETRIES)
def decide(release: PlannedRelease, stage: Stage, sent: list[list[MessageRef]]) -> MessageRef:
    """Server: decide once and for all on the answers of a stage, and ask the next."""
    return Rounds(release).decide(stage, sent)


@step(task_run_name="{release.label}", stored=_stored, **RETRIES)
def open_sum(release: PlannedRelease, sent: list[list[MessageRef]]) -> ReleaseRef:
    """Server: open the sum, make the artefact of it and store that as the release."""
    reference = Rounds(release).release(sent)
    say("secure sum", release.label)
    return reference


@step(task_run_name="{combination.label}", stored=_stored)
def aggregate(combination: PlannedCombination, releases: list[ReleaseRef]) -> ReleaseRef:
    """Combine releases into one; takes releases and returns a release, and gets no shard."""
    reference = combine(combination, releases)
    say("aggregation", combination.label)
    return reference
