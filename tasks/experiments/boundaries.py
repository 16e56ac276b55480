"""Public rows of two features and where released models divide them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import dump_svmlight_file

from dpalgos.rows import Floats, Ints
from storage.datasets import open_dataset
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef, ReleaseRef, Visibility
from tasks.datasets.description import find_dataset
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.experiments.figures import Drawing, draw_boundaries
from tasks.experiments.points import PointResult
from tasks.normalisation import normalise
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout

_GRID, _MARGIN = 120, 0.1


def ingest_features(source: str, features: Sequence[int], name: str) -> None:
    """Register some features of a public set as a set of its own.

    Raises
    ------
    RefusedError
        If the set is private: the copy would be a second one outside its account.
    InputError
        If it has no such feature.
    """
    dataset = find_dataset(source)
    if dataset.private:
        raise RefusedError(f"{source} is private; a copy of some of its features would stand outside its account")
    if not features or max(features) >= dataset.dimension:
        raise InputError(f"{source} has features 0 to {dataset.dimension - 1}; {list(features)} are not all there")
    rows, labels = _rows(dataset)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.libsvm")
        dump_svmlight_file(rows[:, list(features)], labels, str(path), zero_based=False)
        ingest(
            IngestRequest(name=name, format="libsvm", path=path, visibility=Visibility.PUBLIC, dimension=len(features))
        )


def _rows(dataset: DatasetRef) -> tuple[Floats, Ints]:
    features, labels = zip(*open_dataset(current_layout(), dataset).blocks(), strict=True)
    return np.concatenate(features), np.concatenate(labels)


def decision_boundaries(results: Sequence[PointResult], title: str) -> Drawing:
    """Draw the rows of a public set of two features as the models saw them, and where each series' first model divides.

    Raises
    ------
    InputError
        If the set is private or has other than two features.
    """
    dataset = find_dataset(results[0].dataset)
    if dataset.private or dataset.dimension != 2:
        raise InputError(f"{dataset.name} has {dataset.dimension} features; the picture is of public rows with two")
    dataset = normalise.fn(dataset, str(results[0].axes.get("normalisation", "unit-norm")))
    rows, labels = _rows(dataset)
    x, y = np.linspace(rows.min(axis=0) - _MARGIN, rows.max(axis=0) + _MARGIN, _GRID).T
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    first = {result.label: result for result in reversed(results)}
    scores = [(one.label, one.status, _scores(one, grid).reshape(_GRID, _GRID)) for one in first.values()]
    return draw_boundaries(rows, labels, (x, y), scores[::-1], title)


def _scores(result: PointResult, grid: Floats) -> Floats:
    """Return a run's scores: through its maps, then its model, which is the last of its releases."""
    *maps, model = (read_release(ReleaseRef(key=key, kind="", party="")) for key in result.releases)
    for one in maps:
        grid = one.transform(grid)
    return np.asarray(model.scores(grid)[:, 0])
