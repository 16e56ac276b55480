"""Bringing rows into the unit ball, one row at a time."""

from __future__ import annotations

from typing import Any

from prefect import task

from dpalgos.registry import AlgorithmSpec
from storage.datasets import is_complete, open_dataset, transform_dataset
from storage.refs import DatasetRef
from tasks.planning.identity import identity, source_of
from tasks.planning.resolution import admitted_normalisation
from tasks.runtime.caching import BY_CONTENT
from tasks.runtime.progress import say
from tasks.runtime.settings import current_layout

__all__ = ["is_stored_whole", "normalise", "row_map"]


@task(task_run_name="normalise {dataset.name}", cache_policy=BY_CONTENT, persist_result=True)
def normalise(dataset: DatasetRef, name: str) -> DatasetRef:
    """Store a version of a data set whose rows are mapped as a run wants them; a version that is there is reused.

    Raises
    ------
    RefusedError
        If a map that looks at other rows is asked for on private data.
    """
    cls = admitted_normalisation(name, dataset.name, private=dataset.private)
    result = transform_dataset(
        current_layout(),
        dataset,
        row_map(dataset, name),
        normalisation=name,
        recipe=identity(source=source_of(cls)),
        unit_ball=cls.unit_ball,
    )
    say("normalisation", f"{result.rows} rows to {name}")
    return result


def row_map(dataset: DatasetRef, name: str) -> Any:
    """Return the map of a normalisation; one that looks at rows learns it from the data set's."""
    stored = open_dataset(current_layout(), dataset)
    return AlgorithmSpec("normalisations", name).build().learn(features for features, _ in stored.blocks())


def is_stored_whole(dataset: DatasetRef) -> bool:
    """Whether a version is there."""
    return is_complete(current_layout(), dataset)
