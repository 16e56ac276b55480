"""Bringing rows into the unit ball, one row at a time."""

from __future__ import annotations

import inspect

from prefect import task

from dpalgos.registry import AlgorithmSpec
from storage.datasets import is_complete, open_dataset, transform_dataset
from storage.refs import DatasetRef
from tasks.caching import BY_CONTENT
from tasks.identity import identity
from tasks.progress import say
from tasks.resolution import admitted_normalisation
from tasks.settings import current_layout

__all__ = ["is_stored_whole", "normalise"]


@task(task_run_name="normalise {dataset.name}", cache_policy=BY_CONTENT, persist_result=True)
def normalise(dataset: DatasetRef, name: str) -> DatasetRef:
    """Store a version of a data set whose rows are mapped as a run wants them; a version that is there is reused.

    Raises
    ------
    RefusedError
        If a map that looks at other rows is asked for on private data.
    """
    cls = admitted_normalisation(name, dataset.name, private=dataset.private)
    layout = current_layout()
    stored = open_dataset(layout, dataset)
    row_map = AlgorithmSpec("normalisations", name).build().learn(features for features, _ in stored.blocks())
    result = transform_dataset(
        layout,
        dataset,
        row_map,
        normalisation=name,
        recipe=identity(source=inspect.getsource(cls)),
        unit_ball=cls.unit_ball,
    )
    say("normalisation", f"{result.rows} rows to {name}")
    return result


def is_stored_whole(dataset: DatasetRef) -> bool:
    """Whether a version is there."""
    return is_complete(current_layout(), dataset)
