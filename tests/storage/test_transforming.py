"""Versions made of another by a map of each row: their names, rows and what a bad map may do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from storage import documents
from storage.datasets import MANIFEST, dataset_ref, open_dataset
from storage.errors import StorageError
from storage.layout import Layout
from storage.secrets import root_secret
from storage.transforming import transform_dataset
from tests.support.data import gathered, source_of, stored, synthetic, temporaries


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def _wide(rows: int, seed: int, dimension: int = 3000) -> tuple[Any, NDArray[np.int64]]:
    matrix = sparse.random(rows, dimension, density=0.004, format="csr", dtype=np.float32, rng=seed)
    return matrix, np.arange(rows) % 2


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


def test_a_derived_version_is_named_by_its_recipe(layout: Layout, tmp_path: Path) -> None:
    train, test = synthetic(60, 4, seed=34), synthetic(10, 4, seed=35)
    ref = stored(layout, source_of(train, test))
    calls: list[int] = []

    def counted(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        calls.append(len(rows))
        return _unit(rows)

    first = transform_dataset(layout, ref, counted, normalisation="unit-norm")
    assert (first.normalisation, first.rows, first.test_rows) == ("unit-norm", 60, 10)
    assert calls == [60, 10]
    assert transform_dataset(layout, ref, counted, normalisation="unit-norm") == first
    assert calls == [60, 10]
    other = Layout(tmp_path / "other").prepare()
    elsewhere = transform_dataset(other, stored(other, source_of(train, test)), _unit, normalisation="unit-norm")
    assert elsewhere == first
    assert dataset_ref(layout, first.version) == first
    body = documents.load_manifest(layout.dataset(first.version) / MANIFEST, version=1)
    assert (body["parent"], body["recipe"]) == (ref.version, "")
    versions = {
        first.version,
        transform_dataset(layout, ref, _unit, normalisation="clip").version,
        transform_dataset(layout, ref, _unit, normalisation="unit-norm", recipe="2").version,
        transform_dataset(layout, ref, _unit, normalisation="unit-norm", unit_ball=False).version,
        transform_dataset(layout, first, _unit, normalisation="unit-norm").version,
    }
    assert len(versions) == 5


def test_a_derived_private_version_repeats_in_its_root_and_nowhere_else(layout: Layout, tmp_path: Path) -> None:
    train = synthetic(60, 4, seed=36)
    ref = stored(layout, source_of(train), private=True)
    first = transform_dataset(layout, ref, _unit, normalisation="unit-norm")
    shutil.rmtree(layout.dataset(first.version))
    assert transform_dataset(layout, ref, _unit, normalisation="unit-norm") == first
    other = Layout(tmp_path / "other").prepare()
    root_secret(other)
    shutil.copytree(layout.dataset(ref.version), other.dataset(ref.version))
    assert transform_dataset(other, ref, _unit, normalisation="unit-norm").version != first.version


def test_a_map_may_misbehave(layout: Layout) -> None:
    features, labels = synthetic(60, 4, seed=37)
    ref = stored(layout, source_of((features, labels)), private=True)

    def broken(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        rows = rows * 100
        rows[3] = np.nan
        rows[4, 1] = np.inf
        rows[5, 0] = 1e300
        return rows

    # Behind the door nothing raises because of what rows hold.
    for unit_ball in (True, False):
        got = gathered(
            open_dataset(layout, transform_dataset(layout, ref, broken, normalisation="x", unit_ball=unit_ball))
        )
        assert not got[0][[3, 4]].any()
        assert np.isfinite(got[0]).all()
        assert np.array_equal(got[1], labels)
    with pytest.raises(StorageError, match=r"'wrong'.*shape \(60, 3\).*\(60, 4\)"):
        transform_dataset(layout, ref, lambda rows: rows[:, :3], normalisation="wrong")
    assert not temporaries(layout.root)


def test_sparse_sets_are_mapped_and_stay_sparse(layout: Layout) -> None:
    matrix, labels = _wide(100, seed=38)
    ref = stored(layout, source_of((matrix, labels), sparse=True), private=True)
    derived = transform_dataset(layout, ref, _unit, normalisation="unit-norm")
    rows = open_dataset(layout, derived)
    assert rows.format.sparse
    assert np.allclose(gathered(rows)[0], _unit(matrix.toarray().astype(np.float64)), atol=1e-6)
