"""Bringing rows into the unit ball, one row at a time."""

from __future__ import annotations

import inspect

from dpalgos.registry import AlgorithmSpec, lookup, names
from storage.datasets import open_dataset, transform_dataset
from storage.errors import RefusedError
from storage.refs import DatasetRef
from tasks.config import TrainingConfig
from tasks.identity import identity
from tasks.ingestion import default_normalisation
from tasks.progress import say
from tasks.resolution import resolve_normalisation
from tasks.settings import current_layout

__all__ = ["normalise"]


def normalise(dataset: DatasetRef, config: TrainingConfig) -> DatasetRef:
    """Store a version of a data set whose rows are mapped as a run wants them; a version that is there is reused.

    Raises
    ------
    RefusedError
        If a map that looks at other rows is asked for on private data.
    """
    name = resolve_normalisation(config, default_normalisation(dataset.name))
    cls = lookup("normalisations", name)
    if dataset.private and not cls.row_local:
        local = ", ".join(one for one in names("normalisations") if lookup("normalisations", one).row_local)
        raise RefusedError(f"{name} looks at the rows and {dataset.name} is private; choose --normalisation {local}")
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
