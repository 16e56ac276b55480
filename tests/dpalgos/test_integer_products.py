"""Exact products and sums on several cores: against Python's own integers, whatever the order, blocks and cores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpalgos import _compiled, integer_sums
from dpalgos.guarantees import GaussianMu, Neighbours, Setting
from dpalgos.integer_sums import (
    encode_rows,
    encoded_radius,
    inner_products,
    on_weight_grid,
    outer_products,
    packed_gram,
)
from dpalgos.mechanisms.distributions import pack, to_vector, unpack
from dpalgos.projections.covariance import AnalyzeGauss
from dpalgos.rows import ArrayRows, accumulate
from dpalgos.trainers.discriminant import ClassMeansDiscriminant
from dpalgos.trainers.gradient_descent import NoisyGradientDescent


def integers(seed: int, shape: tuple[int, int], largest: int) -> Any:
    return np.random.default_rng(seed).integers(-largest, largest, shape, endpoint=True)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("rows", "width", "outputs"), [(1, 1, 1), (7, 5, 3), (21, 33, 4), (0, 3, 2), (18, 9, 7)])
def test_products_are_those_of_integers(rows: int, width: int, outputs: int, order: Any, compiled: bool) -> None:
    units, weights = integers(1, (rows + 5, width), 2**16), integers(2, (outputs, width), 2**30)
    slopes, part = integers(3, (outputs, rows), 2**16), slice(3, 3 + rows)
    single, chosen = np.asarray(units, dtype=np.float32, order=order), units[part]
    found = inner_products(weights.astype(np.float64), single, part, compiled=compiled)
    exact = weights.astype(object) @ chosen.T.astype(object)
    assert np.array_equal(found, exact.astype(np.float64).reshape(found.shape))
    total = outer_products(slopes.astype(np.float64), single, part, compiled=compiled)
    assert np.array_equal(total, slopes @ chosen)


@pytest.mark.parametrize("rows", range(1, 10))
def test_products_of_any_number_of_rows_write_nothing_beside(rows: int) -> None:
    random = np.random.default_rng(rows)
    left, right = random.integers(-9, 9, (3, 5)).astype(float), random.integers(-9, 9, (12, 7)).astype(np.float32)
    out = np.full((3, rows + 6), 0.5)
    _compiled.write_dots(left, right, 2, 2 + rows, 1, out)
    assert np.array_equal(out[:, :rows], left @ right[2 : 2 + rows, 1:6].T)
    assert (out[:, rows:] == 0.5).all()


@pytest.mark.parametrize("size", [0.0, 1e-310, 1e-9, 1.0, 3.0, 1e200, 1e308])
@pytest.mark.parametrize("radius", [1.0, 2.0**16])
def test_scores_on_the_weight_grid_stay_exact_and_close(size: float, radius: float) -> None:
    weights = size * np.random.default_rng(4).uniform(-1, 1, (3, 200))
    scored, unit = on_weight_grid(weights, radius)
    assert np.array_equal(scored, np.rint(scored))
    lengths = [math.sqrt(sum(int(entry) ** 2 for entry in row)) for row in scored]
    assert max(lengths) * radius < 2**53
    # The grid is fine: 30 bits and more to a weight row's length.
    error = np.abs(scored / unit - weights).max()
    assert error <= 2.0**-30 * np.abs(weights).max() + 2.0**-1000
    assert not on_weight_grid(np.array([[np.nan, np.inf]]), radius)[0].any()


@pytest.mark.parametrize("cores", [1, 2, 5])
@pytest.mark.parametrize("block", [3, 64, 1000])
def test_a_gram_matrix_does_not_depend_on_blocks_or_cores(
    cores: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpalgos.rows.cores", lambda: cores)
    monkeypatch.setattr(integer_sums, "_PART_ENTRIES", 240)
    features = np.random.default_rng(5).normal(size=(300, 6))
    features[7] = np.nan
    blocks = [(features[start : start + block], np.zeros(block), None) for start in range(0, 300, block)]
    encoded = encode_rows(features, 1.0, 2.0**16).astype(object)
    expected = pack((encoded.T @ encoded).astype(np.int64))
    assert np.array_equal(packed_gram(blocks, lambda rows, _: rows, 6, 2.0**16), expected)


def test_sums_beyond_float64_move_on_to_integers() -> None:
    """600 rows of squared norm 2^44 add up to more than 2^53: the mutant that never moves on would lose bits."""
    rows = np.full((600, 2), 2.0**21 - 1)
    gram = integer_sums._Gram(2, encoded_radius(1.0, 2.0**22))
    gram.add(rows)
    exact = 600 * (2**21 - 1) ** 2
    assert exact > 2**51
    assert gram.packed().tolist() == [exact] * 3
    long = integer_sums._Gram(1, 2.0**26)
    long.add(np.full((5, 1), 2.0**26 - 1))
    assert long.packed().tolist() == [5 * (2**26 - 1) ** 2]
    assert int(np.float64((2**26 - 1) ** 2) * 5) != 5 * (2**26 - 1) ** 2


def test_every_item_is_added_once_and_an_error_comes_out() -> None:
    def add(total: list[int], item: int) -> None:
        if item == 99:
            raise ValueError("block 99")
        total.append(item)

    new: list[int] = []
    totals = accumulate(new.copy, add, range(20))
    assert sorted(item for total in totals for item in total) == [*range(20)]
    with pytest.raises(ValueError, match="99"):
        accumulate(new.copy, add, range(200))


@pytest.mark.parametrize("kind", ["class", "gram", "gradients"])
def test_compiled_sums_of_people_keep_the_bound(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one person's 1,000 or 1,024 rows in float32 add, encoded by compiled code, is no longer than one row's."""
    monkeypatch.setattr(integer_sums, "_GRAM_COMPILED_FROM", 0)
    monkeypatch.setattr(integer_sums, "_COMPILED_FROM", 0)
    setting = Setting(sizes=(40,), dimension=6, classes=3, rows_per_person=1024)
    sums: Any
    if kind == "gradients":
        sums = NoisyGradientDescent(budget=GaussianMu(1.0), iterations=2, clip=0.3)
        limit = sums.sums(setting).sensitivity(Neighbours.REPLACE_SPECIAL)
    elif kind == "gram":
        sums = AnalyzeGauss(budget=GaussianMu(1.0), components=2)
        limit = encoded_radius(1.0, sums._scale(setting)) ** 2
    else:
        sums = ClassMeansDiscriminant(budget=GaussianMu(1.0))
        limit = sums.class_sums(setting).sensitivity(Neighbours.REPLACE_SPECIAL)

    def length(rows: ArrayRows) -> float:
        total = sums.contribution(sums.initial(setting), rows, setting)
        return float(np.linalg.norm(to_vector(unpack(total)) if kind == "gram" else total))

    random = np.random.default_rng(8)
    for count in (1, 7, 1000, 1024):
        for row in (np.eye(6)[0], *random.normal(size=(4, 6))):
            features: Any = np.tile(row, (count, 1)).astype(np.float32)
            labels, shares = np.full(count, 1), np.full(count, count, dtype=np.int32)
            whole = length(ArrayRows(features, labels, 100, shares, 40))
            assert 0.97 * length(ArrayRows(features[:1], labels[:1], 100, shares[:1] // count, 40)) < whole
            assert whole <= limit
