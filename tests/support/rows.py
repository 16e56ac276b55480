"""Rows made without a plan around them: normalised, and divided among parties."""

from __future__ import annotations

from storage.refs import DatasetRef
from tasks.planning.configuration import TrainingConfig
from tasks.planning.rows import Shards
from tasks.preparation.normalisation import make_normalised, plan_normalisation
from tasks.preparation.partitions import make_partition, plan_partition


def normalised(dataset: DatasetRef, name: str) -> DatasetRef:
    return make_normalised(plan_normalisation(dataset, name))


def divided(dataset: DatasetRef, config: TrainingConfig) -> Shards:
    return make_partition(plan_partition(dataset, config))
