"""The exact path: encoding, integer clipping, exact sums, and the sensitivities derived for them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from dpalgos.guarantees import Neighbours, Setting
from dpalgos.integer_sums import (
    GradientSums,
    encode_into,
    encode_rows,
    encoded_radius,
    gram_sensitivity,
    outer_sensitivity,
    squared_limit,
    sum_sensitivity,
)
from dpalgos.linear import LinearTask
from dpalgos.losses import Softmax
from dpalgos.parameters import ParameterError
from dpalgos.rows import clip_to_unit_ball

ANY_FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=64)
GRIDS = st.sampled_from([(1.0, 1.0), (1.0, 7.0), (1.0, 1000.0), (0.3, 2.0**16), (2.5, 2.0**20), (1.0, 2.0**26 - 1)])
BOTH = [Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL]


def squared_norms(integers: Any) -> list[int]:
    return [sum(int(entry) ** 2 for entry in row) for row in integers]


def outer_sum(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of outer products, in integers."""
    return left.T @ right


class TestEncoding:
    @settings(deadline=None)
    @given(npst.arrays(np.float64, st.tuples(st.integers(0, 5), st.integers(1, 6)), elements=ANY_FLOATS), GRIDS)
    def test_every_row_is_within_the_radius_in_integers(self, rows: Any, grid: tuple[float, float]) -> None:
        radius, scale = grid
        encoded = encode_rows(rows, radius, scale)
        assert encoded.dtype == np.int64
        assert encoded.shape == rows.shape
        limit = (Fraction(radius) * Fraction(scale)) ** 2
        assert all(norm <= limit for norm in squared_norms(encoded))
        assert all(math.sqrt(norm) <= encoded_radius(radius, scale) for norm in squared_norms(encoded))
        bad = ~np.isfinite(rows).all(axis=1)
        assert not encoded[bad].any()

    @settings(deadline=None)
    @given(npst.arrays(np.float64, (4, 3), elements=st.floats(-2, 2)), GRIDS)
    def test_each_row_is_encoded_by_itself(self, rows: Any, grid: tuple[float, float]) -> None:
        alone = np.concatenate([encode_rows(row[None], *grid) for row in rows])
        assert np.array_equal(encode_rows(rows, *grid), alone)

    @pytest.mark.parametrize("dimension", [1, 3, 784, 20_000])
    @pytest.mark.parametrize("scale", [1.0, 33.0, 2.0**16, 2.0**26 - 1])
    def test_unit_rows_stay_close_and_inside(self, dimension: int, scale: float) -> None:
        rows = np.random.default_rng(1).normal(size=(30, dimension))
        rows /= np.linalg.norm(rows, axis=1)[:, None]
        encoded = encode_rows(rows, 1.0, scale)
        assert max(squared_norms(encoded)) <= scale**2
        # Truncation and the float64 shrinking cost at most a little more than one grid unit.
        assert np.abs(encoded - rows * scale).max() <= 1.0 + scale * 1e-9
        # The mutant, rounding without the second clip, leaves the ball.
        if dimension == 784 and scale == 2.0**16:
            assert max(squared_norms(np.rint(rows * scale).astype(np.int64))) > scale**2

    def test_rows_inside_are_rounded_to_nearest(self) -> None:
        rows = np.random.default_rng(2).normal(size=(50, 8)) * 0.1
        encoded = encode_rows(rows, 1.0, 1000.0)
        assert np.array_equal(encoded, np.rint(rows * 1000.0))
        assert np.allclose(encoded / 1000.0, rows, atol=0.5e-3)

    def test_the_smallest_grid_still_has_its_bound(self) -> None:
        rows = np.full((1, 100), 0.1)
        assert squared_norms(encode_rows(rows, 1.0, 1.0)) == [0]
        # 100 coordinates that each round up to 1 would have norm 10.
        assert squared_norms(encode_rows(np.full((1, 100), 0.1), 1.0, 5.0001))[0] <= 25

    @pytest.mark.parametrize(
        ("radius", "scale", "message"),
        [(1.0, 2.0**26, "coarser"), (1.0, 0.5, "finer"), (0.0, 1.0, "radius"), (1.0, math.nan, "scale")],
    )
    def test_grids_out_of_range_are_refused(self, radius: float, scale: float, message: str) -> None:
        with pytest.raises(ParameterError, match=message):
            encode_rows(np.zeros((1, 1)), radius, scale)


class TestSensitivities:
    def test_closed_forms(self) -> None:
        replace, add = BOTH
        assert gram_sensitivity(10.0, replace) == pytest.approx(100 * math.sqrt(2))
        assert gram_sensitivity(10.0, add) == pytest.approx(100)
        assert outer_sensitivity(10.0, 3.0, replace) == pytest.approx(60)
        assert outer_sensitivity(10.0, 3.0, add) == pytest.approx(30)
        assert sum_sensitivity(10.0, replace) == pytest.approx(20)
        assert sum_sensitivity(10.0, add) == pytest.approx(10)
        assert sum_sensitivity(0.0, add) == 0.0
        assert gram_sensitivity(10.0, replace) >= 100 * math.sqrt(2)
        assert Fraction(outer_sensitivity(0.1, 0.3, replace)) >= 2 * Fraction(0.1) * Fraction(0.3)

    @settings(deadline=None)
    @given(st.integers(0, 10_000), GRIDS.filter(lambda grid: grid[0] * grid[1] < 2**21))
    def test_no_pair_of_encoded_rows_moves_a_sum_further(self, seed: int, grid: tuple[float, float]) -> None:
        generator = np.random.default_rng(seed)
        radius, scale = grid
        rows = encode_rows(generator.normal(size=(6, 4)) * 2, radius, scale)
        slopes = encode_rows(generator.normal(size=(6, 3)) * 2, radius, scale)
        bound = encoded_radius(radius, scale)
        replaced = rows.copy(), slopes.copy()
        replaced[0][0] = encode_rows(generator.normal(size=(1, 4)) * 5, radius, scale)[0]
        replaced[1][0] = encode_rows(generator.normal(size=(1, 3)) * 5, radius, scale)[0]
        squares = {relation: gram_sensitivity(bound, relation) for relation in BOTH}
        products = {relation: outer_sensitivity(bound, bound, relation) for relation in BOTH}
        for left, right, other, claimed in (
            (rows, rows, (replaced[0], replaced[0]), squares),
            (rows, slopes, replaced, products),
        ):
            whole = outer_sum(left, right)
            moved = np.linalg.norm((whole - outer_sum(*other)).astype(np.float64))
            removed = np.linalg.norm((whole - outer_sum(left[1:], right[1:])).astype(np.float64))
            assert moved <= claimed[Neighbours.REPLACE_ONE] * (1 + 1e-12)
            assert removed <= claimed[Neighbours.REPLACE_SPECIAL] * (1 + 1e-12)

    def test_the_worst_pairs_attain_them(self) -> None:
        # So a smaller claim (a missing sqrt(2), a missing 2) would be false.
        scale = 1000.0
        bound = encoded_radius(1.0, scale)
        first, second = encode_rows(np.array([[1.0, 0.0]]), 1.0, scale), encode_rows(np.array([[0.0, 1.0]]), 1.0, scale)
        moved = np.linalg.norm(outer_sum(first, first) - outer_sum(second, second))
        assert moved == pytest.approx(gram_sensitivity(bound, Neighbours.REPLACE_ONE))
        assert moved > 1.4 * gram_sensitivity(bound, Neighbours.REPLACE_SPECIAL)
        slope = encode_rows(np.array([[0.6, 0.8, 0.0]]), 1.0, scale)
        moved = np.linalg.norm(outer_sum(first, slope) - outer_sum(first, -slope))
        assert moved == pytest.approx(outer_sensitivity(bound, bound, Neighbours.REPLACE_ONE))

    def test_rounding_the_sum_instead_of_the_rows_breaks_the_bound(self) -> None:
        # One row that moves every coordinate of the real sum across a rounding boundary moves its rounding by
        # sqrt(d), whatever the row's norm; encoded row by row it moves it by no more than the row's norm.
        dimension, scale = 400, 4.0
        neighbours = np.full((1, dimension), 1e-3), np.full((1, dimension), -1e-3)
        others = np.full((25, dimension), 0.005)
        claimed = sum_sensitivity(encoded_radius(1.0, scale), Neighbours.REPLACE_ONE)
        sums, mutants = [], []
        for row in neighbours:
            rows = np.concatenate([others, row])
            sums.append(encode_rows(rows, 1.0, scale).sum(axis=0))
            mutants.append(np.rint(rows.sum(axis=0) * scale))
        assert np.linalg.norm(sums[0] - sums[1]) <= claimed
        assert np.linalg.norm(mutants[0] - mutants[1]) == math.sqrt(dimension) > 2 * claimed


HARD = np.array(
    [
        [0.6, 0.8, 0.0, 0.0],
        [3e38, 3e38, 1.0, -3e38],
        [1e-40, 0.0, 0.0, 0.0],
        [np.nan, 0.1, 0.1, 0.1],
        [np.inf, 0.0, 0.0, 0.0],
        [0.5, 0.5, 0.5, 0.5],
        [0.0, 0.0, 0.0, 0.0],
    ],
    dtype=np.float32,
)


def test_compiled_encoding_keeps_the_bound_and_is_total() -> None:
    """Every row within the radius, in Python's integers, and within one unit of what is not compiled."""
    drawn = np.random.default_rng(8).normal(size=(300, 4)).astype(np.float32)
    rows = np.vstack([HARD, drawn, drawn * np.float32(1e-3)])
    for radius, scale in ((1.0, 2.0**14), (0.5, 5.0001), (1.0, 1.0)):
        plain = encode_rows(rows, radius, scale)
        made = encode_into(np.empty(rows.shape), rows, radius, scale, compiled=True)
        assert max(squared_norms(made.astype(np.int64))) <= squared_limit(radius, scale)
        assert np.abs(made - plain).max() <= 1


@pytest.mark.parametrize(("constant", "mean_weight"), [(0.0, 1.0), (0.0, 0.25), (1.5, 1.0), (0.7, 0.25)])
def test_compiled_unit_rows_are_those_of_numpy(constant: float, mean_weight: float) -> None:
    """Units within one grid unit of the array code's, norms within float32's rounding, null records zero."""
    sums = GradientSums(
        task=LinearTask(loss=Softmax(), intercept_scaling=constant), clip=0.5, scale=2.0**14, mean_weight=mean_weight
    )
    drawn = np.random.default_rng(9).normal(size=(600, 4)).astype(np.float32)
    rows = np.vstack([HARD, drawn, drawn * np.float32(1e-3)])
    labels = np.resize(np.arange(4), len(rows))
    labels[-5:] = -1
    setting = Setting(sizes=(10**8,), dimension=4, classes=4)
    made = sums._encoded((rows, labels, None), 10**8, setting)
    plain = sums._encoded((rows.astype(np.float64), labels, None), 10**8, setting)
    assert np.abs(made.units - plain.units).max() <= 1
    np.testing.assert_allclose(made.norms, plain.norms, rtol=1e-6)
    np.testing.assert_array_equal(made.targets, plain.targets)
    assert not made.units[-5:].any()
    assert not made.norms[-5:].any()
    assert max(squared_norms(made.units.astype(np.int64))) <= 2**28
    alone = [
        sums._encoded((rows[at : at + 1], labels[at : at + 1], None), 10**8, setting) for at in range(0, len(rows), 97)
    ]
    assert all(
        np.array_equal(one.units[0], made.units[at]) for one, at in zip(alone, range(0, len(rows), 97), strict=True)
    )


@pytest.mark.parametrize(("radius", "scale"), [(1.0, 2.0**14), (0.5, 2.0**15), (0.3, 7.0001), (1.0, 1.0)])
def test_compiled_columns_keep_the_bound_and_are_total(radius: float, scale: float) -> None:
    """Rows below each other, most of them clipped, so that rounding alone leaves the ball for about half of them."""
    from dpalgos import _compiled

    drawn = np.random.default_rng(10).normal(size=(700, 4))
    rows = np.vstack([HARD.astype(np.float64), drawn, drawn * 1e-3, [[1e200, 0, 0, 1e-200]], [[1e-300] * 4]])
    norms = np.random.default_rng(11).uniform(0, 1, len(rows)).astype(np.float32)
    weights = np.where(np.arange(len(rows)) % 3 == 0, np.float32(0.4), np.float32(1.0))
    columns, limit = np.ascontiguousarray(rows.T), squared_limit(radius, scale)
    _compiled.encode_columns(columns, norms, weights, radius, scale, np.full(len(rows), limit))
    made = columns.T
    assert np.array_equal(made, np.rint(made))
    assert max(squared_norms(made.astype(np.int64))) <= limit
    scaled = clip_to_unit_ball(rows * norms[:, None], radius) * weights[:, None]
    assert np.abs(made - encode_rows(scaled, radius, scale)).max() <= 1
    alone = np.ascontiguousarray(rows[100:101].T)
    _compiled.encode_columns(alone, norms[100:101], weights[100:101], radius, scale, np.full(1, limit))
    assert np.array_equal(alone.T[0], made[100])
    # The mutant that only rounds leaves the ball.
    if scale > 100:
        assert max(squared_norms(np.rint(scaled * scale).astype(np.int64))) > limit


def test_compiled_slopes_of_softmax_are_the_losss_own() -> None:
    """To within a few units in the last place, for scores of any size; rows by themselves give the same bits."""
    random, loss = np.random.default_rng(12), Softmax()
    scores = random.normal(size=(600, 5)) * 10.0 ** random.uniform(-3, 4, (600, 1))
    targets = np.asfortranarray(np.eye(5, dtype=np.float32)[random.integers(0, 5, 603)])
    made = np.ascontiguousarray(scores.T)
    loss.write_slopes(made, targets.T, 3)
    np.testing.assert_allclose(made.T, loss.slope(scores, targets[3:].astype(np.float64)), rtol=1e-14, atol=1e-15)
    for at in range(0, 600, 97):
        alone = np.ascontiguousarray(scores[at : at + 1].T)
        loss.write_slopes(alone, targets.T, 3 + at)
        assert np.array_equal(alone[:, 0], made[:, at])
