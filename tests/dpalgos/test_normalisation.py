"""Normalisations: the unit ball, row by row, whatever the rows hold."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.preprocessing import MinMaxScaler, normalize

from dpalgos.normalisation import AffineMap
from dpalgos.registry import lookup, names

Array = NDArray[np.float64]
ROW_LOCAL = [name for name in names("normalisations") if lookup("normalisations", name).row_local]


def made(name: str, features: Array) -> Array:
    return np.asarray(lookup("normalisations", name)().learn([features])(features))


def test_unit_norm_is_scikit_learns() -> None:
    features = np.random.default_rng(1).normal(size=(50, 7))
    features[3] = 0.0
    np.testing.assert_allclose(made("unit-norm", features), normalize(features), atol=1e-15)


def test_minmax_is_scikit_learns_and_constant_columns_become_zero() -> None:
    features = np.random.default_rng(2).normal(size=(50, 7))
    expected = MinMaxScaler((-1, 1)).fit_transform(features)
    blocks = [features[:20], features[20:]]
    learnt = lookup("normalisations", "minmax")().learn(blocks)
    np.testing.assert_allclose(learnt(features), expected, atol=1e-12)
    features[:, 2] = 5.0
    assert (made("minmax", features)[:, 2] == 0).all()


def test_clip_leaves_short_rows_alone() -> None:
    features = np.array([[0.3, 0.4], [3.0, 4.0]])
    np.testing.assert_allclose(made("clip", features), [[0.3, 0.4], [0.6, 0.8]])


@pytest.mark.parametrize("name", [name for name in names("normalisations") if lookup("normalisations", name).unit_ball])
@pytest.mark.parametrize("value", [0.0, 1e-320, 1e-160, 1.0, 1e200, 1e308, np.nan, np.inf])
def test_the_unit_ball_holds_for_every_row_and_survives_float32(name: str, value: float) -> None:
    features = np.random.default_rng(3).normal(size=(20, 9))
    features[:, 4] = value
    result = made(name, features)
    assert np.isfinite(result).all()
    assert np.linalg.norm(result, axis=1).max() <= 1.0 + 1e-15
    assert np.linalg.norm(result.astype(np.float32).astype(np.float64), axis=1).max() <= 1.0 + 1e-7
    if name == "unit-norm" and np.isfinite(value):
        np.testing.assert_allclose(np.linalg.norm(result, axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize("name", ROW_LOCAL)
def test_row_local_maps_look_at_one_row(name: str) -> None:
    random = np.random.default_rng(4)
    features = 3.0 * random.normal(size=(30, 5))
    together = made(name, features)
    for row in range(30):
        np.testing.assert_array_equal(made(name, features[row : row + 1])[0], together[row])


def test_minmax_is_marked_as_looking_at_all_rows() -> None:
    assert "minmax" not in ROW_LOCAL
    random = np.random.default_rng(5)
    features = random.normal(size=(30, 5))
    assert not np.array_equal(made("minmax", features)[0], made("minmax", features[:10])[0])


def test_minmax_ignores_missing_numbers() -> None:
    learnt = lookup("normalisations", "minmax")().learn([np.array([[1.0, np.nan], [3.0, 2.0], [2.0, 4.0]])])
    assert isinstance(learnt, AffineMap)
    np.testing.assert_array_equal(learnt(np.array([[2.0, 3.0]])), [[0.0, 0.0]])
