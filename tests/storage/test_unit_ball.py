"""Rounding to float32 leaves no row outside the unit ball."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from dpalgos.normalisation import UnitNorm
from dpalgos.rows import clip_to_unit_ball, unit_rows
from storage.datasets import open_dataset
from storage.layout import Layout
from storage.transforming import transform_dataset
from storage.unit_ball import into_unit_ball
from tests.support.data import gathered, source_of, stored, synthetic


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


def _exact_square(row: NDArray[np.float32]) -> float:
    """Return the squared norm: squares of float32 are exact in float64 and fsum adds exactly."""
    return math.fsum(float(value) ** 2 for value in row)


def test_rounding_to_float32_does_not_leave_the_unit_ball(layout: Layout) -> None:
    features, labels = synthetic(3000, 20, seed=33)
    plain = _unit(features).astype(np.float32)
    # Without the check about half of the rows are outside after rounding: the test would see it.
    assert np.mean([_exact_square(row) > 1 for row in plain]) > 0.2
    ref = transform_dataset(layout, stored(layout, source_of((features, labels))), _unit, normalisation="unit-norm")
    rows, _ = gathered(open_dataset(layout, ref))
    assert np.linalg.norm(rows, axis=1).max() <= 1
    squares = np.array([_exact_square(row) for row in rows.astype(np.float32)])
    assert squares.max() <= 1 + 1e-15
    assert squares.min() > 1 - 1e-6
    assert np.abs(rows - _unit(features)).max() < 3e-7


@pytest.mark.parametrize("width", [7, 8192, 8193, 20_000])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("row_map", [into_unit_ball, UnitNorm(), clip_to_unit_ball, unit_rows])
def test_a_row_is_mapped_alike_at_any_place(
    row_map: Any, order: Literal["C", "F"], width: int, random: np.random.Generator
) -> None:
    """Where a person has more rows, those of all after stand elsewhere; bits of theirs would follow."""
    rows = random.normal(size=(12, width))
    whole = row_map(rows.copy(order=order))
    for size in (1, 2, 5):
        pieces = [row_map(rows[start : start + size].copy(order=order)) for start in range(0, len(rows), size)]
        assert np.concatenate(pieces).tobytes() == whole.tobytes()


@settings(max_examples=200, deadline=None)
@given(arrays(np.float64, some.tuples(some.integers(1, 4), some.integers(1, 6)), elements=some.floats()))
def test_into_unit_ball_is_total(rows: NDArray[np.float64]) -> None:
    kept = rows.copy()
    stored_rows = into_unit_ball(rows)
    assert np.array_equal(rows, kept, equal_nan=True)
    assert stored_rows.dtype == np.float32
    assert np.isfinite(stored_rows).all()
    back = stored_rows.astype(np.float64)
    assert (np.linalg.norm(back, axis=1) <= 1 + 1e-15).all()
    for given_row, row in zip(rows, back, strict=True):
        if not np.isfinite(given_row).all():
            assert not row.any()
        elif math.hypot(*given_row) <= 1 - 1e-6:
            assert np.array_equal(row, given_row.astype(np.float32).astype(np.float64))
        elif np.abs(given_row).max() < 1e150:
            assert np.allclose(row, given_row / max(1.0, math.hypot(*given_row)), atol=1e-6)


def test_unit_vectors_stay_as_they_are() -> None:
    assert np.array_equal(into_unit_ball(np.eye(5)), np.eye(5, dtype=np.float32))
