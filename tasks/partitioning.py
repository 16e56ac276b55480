"""The step that deals rows to simulated parties and holds rows out."""

from __future__ import annotations

from storage.refs import DatasetRef
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import Shards
from tasks.preparation.dealing import are_stored_whole, deal_rows
from tasks.runtime.progress import say
from tasks.runtime.steps import step


@step(task_run_name="partition {dataset.name}", whole=are_stored_whole)
def partition(dataset: DatasetRef, config: TrainingConfig) -> Shards:
    """Deal a data set's rows to parties by a rule that is fixed before any row is looked at."""
    shards = deal_rows(dataset, config)
    say("partition", f"{sum(shard.rows for shard in shards.training)} rows to {len(shards.training)} parties")
    return shards
