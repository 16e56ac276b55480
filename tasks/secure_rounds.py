"""The rounds of secure aggregation as tasks.

A block is a few parties that one task simulates one after another; the server's tasks are handed references to
messages, never to shards.
"""

from __future__ import annotations

from storage.refs import ReleaseRef, ShardRef
from storage.rounds import MessageRef
from tasks.planning.plans import PlannedRelease
from tasks.release.rounds import Rounds
from tasks.release.storing import is_stored
from tasks.runtime.progress import say
from tasks.runtime.retries import RETRIES
from tasks.runtime.steps import step

__all__ = [
    "advertise",
    "agree",
    "decode",
    "fix_survivors",
    "introduce",
    "mask",
    "open_rounds",
    "share",
    "unmask",
]


def _stored(release: PlannedRelease, *_: object) -> bool:
    return is_stored(release.key)


@step(task_run_name="{release.label}: open the rounds", stored=_stored, **RETRIES)
def open_rounds(release: PlannedRelease, shards: list[ShardRef]) -> MessageRef:
    """Declare and charge, then fix what everybody knows before the session."""
    return Rounds(release).open(shards)


@step(task_run_name="{release.label}: advertise {block}", stored=_stored, **RETRIES)
def advertise(release: PlannedRelease, block: list[int], opened: MessageRef) -> list[MessageRef]:
    """Round 1, parties: draw a seed, once, and send a public key."""
    return Rounds(release).advertise(block, opened)


@step(task_run_name="{release.label}: introduce", stored=_stored, **RETRIES)
def introduce(release: PlannedRelease, opened: MessageRef, sent: list[list[MessageRef]]) -> MessageRef:
    """Round 1, server: fix who takes part, and tell everybody of its neighbours."""
    return Rounds(release).introduce(opened, sent)


@step(task_run_name="{release.label}: share {block}", stored=_stored, **RETRIES)
def share(release: PlannedRelease, block: list[int], introduced: MessageRef) -> list[MessageRef]:
    """Round 2, parties: agree on keys with the neighbours and share the secrets of all masks."""
    del introduced
    return Rounds(release).share(block)


@step(task_run_name="{release.label}: agree", stored=_stored, **RETRIES)
def agree(release: PlannedRelease, introduced: MessageRef, sent: list[list[MessageRef]]) -> MessageRef:
    """Round 2, server: fix the agreement and deliver everybody's shares."""
    return Rounds(release).agree(introduced, sent)


@step(task_run_name="{release.label}: mask {block}", stored=_stored, **RETRIES)
def mask(
    release: PlannedRelease,
    block: list[int],
    shards: list[ShardRef],
    upstream: list[ReleaseRef],
    agreed: MessageRef,
) -> list[MessageRef]:
    """Round 3, parties: each adds its noise share to what its own rows contribute, masks that and sends it."""
    del agreed
    return Rounds(release).mask(block, shards, upstream)


@step(task_run_name="{release.label}: fix survivors", stored=_stored, **RETRIES)
def fix_survivors(release: PlannedRelease, agreed: MessageRef, sent: list[list[MessageRef]]) -> MessageRef:
    """Round 3, server: add up, and decide once and for all whose vectors the sum holds, before anything is unmasked."""
    return Rounds(release).fix_survivors(agreed, sent)


@step(task_run_name="{release.label}: unmask {block}", stored=_stored, **RETRIES)
def unmask(release: PlannedRelease, block: list[int], fixed: MessageRef) -> list[MessageRef]:
    """Round 4, parties: open own masks of the survivors and pair masks of the lost, for one survivor set only."""
    del fixed
    return Rounds(release).unmask(block)


@step(task_run_name="{release.label}", stored=_stored, **RETRIES)
def decode(release: PlannedRelease, agreed: MessageRef, fixed: MessageRef, sent: list[list[MessageRef]]) -> ReleaseRef:
    """Round 4, server: open the sum, make the artefact of it and store that as the release."""
    reference = Rounds(release).decode(agreed, fixed, sent)
    say("secure sum", release.label)
    return reference
