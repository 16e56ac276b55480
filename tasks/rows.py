"""Steps that prepare rows: ingestion, normalisation, public features, parties, the rows of a night."""

from __future__ import annotations

from storage.refs import DatasetRef, ShardRef
from tasks.datasets.description import find_dataset
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import FeatureStep, PlannedRelease, Shards
from tasks.preparation.dealing import are_stored_whole, deal_rows
from tasks.preparation.features import is_extracted_whole, map_features
from tasks.preparation.mapping import is_stored_whole, map_rows
from tasks.preparation.nights import Night, deal_night
from tasks.release.rows import note_arrival
from tasks.runtime.progress import say
from tasks.runtime.steps import step


@step(task_run_name="ingest {name}", cached=False)
def ingest(name: str) -> DatasetRef:
    """Return the newest registered version of a data set, registering a set that scikit-learn brings along.

    Never cached: a name means another version once its owner has registered one. Rows of files are brought in by
    :func:`tasks.datasets.registration.ingest`, at the owner's command and not by a run.
    """
    dataset = find_dataset(name)
    say("ingestion", f"{dataset.rows} {dataset.unit.several} of {name}")
    return dataset


@step(task_run_name="normalise {dataset.name}", whole=is_stored_whole)
def normalise(dataset: DatasetRef, name: str) -> DatasetRef:
    """Store a version of a data set whose rows are mapped as a run wants them; a version that is there is reused."""
    result = map_rows(dataset, name)
    say("normalisation", f"{result.rows} {dataset.unit.several} to {name}")
    return result


@step(task_run_name="features of {dataset.name}", whole=is_extracted_whole)
def extract_features(dataset: DatasetRef, features: tuple[FeatureStep, ...]) -> DatasetRef:
    """Store a version of a data set whose rows have passed through public maps; a version that is there is reused."""
    result = map_features(dataset, features)
    of, maps = f"{result.rows} {dataset.unit.several}", ", ".join(each.label for each in features)
    say("features", f"{of} to {result.dimension} features: {maps}")
    return result


@step(task_run_name="partition {dataset.name}", whole=are_stored_whole)
def partition(dataset: DatasetRef, config: TrainingConfig) -> Shards:
    """Deal a data set's rows to parties by a rule that is fixed before any row is looked at."""
    shards = deal_rows(dataset, config)
    of = f"{sum(shard.rows for shard in shards.training)} {dataset.unit.several}"
    say("partition", f"{of} to {len(shards.training)} parties")
    return shards


@step(task_run_name="rows of {release.label}", cached=False)
def arrive(config: TrainingConfig, night: Night, release: PlannedRelease) -> tuple[ShardRef, ...]:
    """Write what arrived in a night to the parties' own stores; each notes where, for the nights that follow."""
    shards = deal_night(config, night)
    for shard in shards:
        note_arrival(release.stream_key, night.night, shard)
    say("arrival", f"{sum(shard.rows for shard in shards)} rows, {release.label}")
    return shards
