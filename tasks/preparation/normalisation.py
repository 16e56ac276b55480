"""Normalised versions of registered rows: brought into the unit ball, or as a run wants them."""

from typing import cast

import numpy as np

from dpalgos.normalisation import Normalisation, RowMap
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import pieces
from storage.datasets import has_files, is_complete, open_dataset, require_files
from storage.refs import DatasetRef
from storage.transforming import transform_dataset, transformed_ref
from tasks.planning.identity import identity, source_digest
from tasks.planning.resolution import admitted_normalisation
from tasks.planning.rows import NormalisedRows
from tasks.runtime.settings import current_layout


def plan_normalisation(dataset: DatasetRef, name: str) -> NormalisedRows:
    """Return the version of a data set whose rows are mapped as a run wants them; no row is read.

    Raises
    ------
    RefusedError
        If a map that looks at other rows is asked for on private data.
    """
    cls = admitted_normalisation(name, dataset.name, private=dataset.private)
    if name == dataset.normalisation:
        return NormalisedRows(source=dataset, rows=dataset)
    rows = transformed_ref(current_layout(), dataset, normalisation=name, recipe=_recipe(cls), unit_ball=cls.unit_ball)
    return NormalisedRows(source=dataset, rows=rows)


def require_source(node: NormalisedRows) -> NormalisedRows:
    """Return a normalised version that is stored, or can be made as far as that is told without reading rows.

    Raises
    ------
    StorageError
        If a file is missing that it would be made of: what is made is charged before.
    """
    if not has_files(current_layout(), node.rows.version):
        require_files(current_layout(), node.source.version)
    return node


def _recipe(cls: type[Normalisation]) -> str:
    return identity(source=source_digest(cls))


def make_normalised(node: NormalisedRows) -> DatasetRef:
    """Store a normalised version, unless it is there; return its reference."""
    if is_stored_whole(node.rows):
        return node.rows
    name = node.rows.normalisation
    cls = admitted_normalisation(name, node.source.name, private=node.source.private)
    learnt = row_map(node.source, name)
    return transform_dataset(
        current_layout(),
        node.source,
        # What is made on the way is several times as large as the rows: as much as a core's cache holds.
        lambda rows: np.concatenate([learnt(rows[part]) for part in pieces(*rows.shape)]),
        normalisation=name,
        recipe=_recipe(cls),
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
