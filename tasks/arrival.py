"""The step that deals the rows of one night to the parties."""

from __future__ import annotations

from storage.refs import ShardRef
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import PlannedRelease
from tasks.preparation.nights import Night, deal_night
from tasks.release.nights import note_arrival
from tasks.runtime.progress import say
from tasks.runtime.steps import step


@step(task_run_name="rows of {release.label}", cached=False)
def arrive(config: TrainingConfig, night: Night, release: PlannedRelease) -> tuple[ShardRef, ...]:
    """Write what arrived in a night to the parties' own stores; each notes where, for the nights that follow."""
    shards = deal_night(config, night)
    for shard in shards:
        note_arrival(release.stream_key, night.night, shard)
    say("arrival", f"{sum(shard.rows for shard in shards)} rows, {release.label}")
    return shards
