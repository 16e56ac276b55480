"""Normalised versions of registered rows: brought into the unit ball, or as a run wants them."""

from typing import cast

import numpy as np

from dpalgos.normalisation import RowMap
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import pieces
from storage.datasets import is_complete, open_dataset, transform_dataset, transformed_ref
from storage.refs import DatasetRef
from tasks.planning.identity import identity, source_digest
from tasks.planning.resolution import admitted_normalisation
from tasks.runtime.settings import current_layout


def mapped_ref(dataset: DatasetRef, name: str) -> DatasetRef:
    """Return the reference that :func:`map_rows` would return; no row is read.

    Raises
    ------
    RefusedError
        If a map that looks at other rows is asked for on private data.
    """
    cls = admitted_normalisation(name, dataset.name, private=dataset.private)
    recipe = identity(source=source_digest(cls))
    return transformed_ref(current_layout(), dataset, normalisation=name, recipe=recipe, unit_ball=cls.unit_ball)


def map_rows(dataset: DatasetRef, name: str) -> DatasetRef:
    """Store a version of a data set whose rows are mapped as a run wants them; a version that is there is reused.

    Raises
    ------
    RefusedError
        If a map that looks at other rows is asked for on private data.
    """
    cls = admitted_normalisation(name, dataset.name, private=dataset.private)
    learnt = row_map(dataset, name)
    return transform_dataset(
        current_layout(),
        dataset,
        # What is made on the way is several times as large as the rows: as much as a core's cache holds.
        lambda rows: np.concatenate([learnt(rows[part]) for part in pieces(*rows.shape)]),
        normalisation=name,
        recipe=identity(source=source_digest(cls)),
        unit_ball=cls.unit_ball,
    )


def row_map(dataset: DatasetRef, name: str) -> RowMap:
    """Return the map of a normalisation; one that looks at rows learns it from the data set's."""
    stored = open_dataset(current_layout(), dataset)
    learner, blocks = AlgorithmSpec("normalisations", name).build(), stored.blocks()
    return cast(RowMap, learner.learn(np.asarray(features, dtype=np.float64) for features, *_ in blocks))


def is_stored_whole(dataset: DatasetRef) -> bool:
    """Whether a version is there."""
    return is_complete(current_layout(), dataset.version)
