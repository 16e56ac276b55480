"""Tables over pairs of columns: least squares with one-way counts, margins that hold, Cramér's V that holds 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy
from scipy.stats import binom

from dpalgos import pair_tables
from dpalgos.column_margins import Margins
from dpalgos.columns import Column
from dpalgos.evaluators.column_histograms import ColumnHistograms
from dpalgos.guarantees import GaussianMu, Setting
from dpalgos.histograms import ColumnCounts
from dpalgos.pair_tables import (
    OneWay,
    PairTable,
    edges_of_equal_mass,
    one_way_of_number,
    one_way_of_values,
    parts_for,
)
from dpalgos.rows import ArrayRows, Floats, Ints

SIGMA = 12.0
ROWS = 3000
# Of 400 margins of 95 % fewer hold with a probability below 1e-9.
FEWEST = int(binom.ppf(1e-9, 400, 0.95))


def shares_of(association: float) -> Floats:
    """Return a table of independent columns, with so much of the mass on a diagonal."""
    alone = np.outer([0.5, 0.3, 0.2], [0.4, 0.3, 0.2, 0.1])
    return (1 - association) * alone + association * np.pad(np.eye(3) / 3, ((0, 0), (0, 1)))


def strength_of(shares: Floats) -> float:
    alone = np.outer(shares.sum(axis=1), shares.sum(axis=0))
    return float(np.sqrt((np.square(shares - alone) / alone).sum() / (min(shares.shape) - 1)))


def released(exact: Floats | Ints, random: np.random.Generator, *, one_way: bool = True) -> PairTable:
    noise = [SIGMA / 2 * random.standard_normal(side) for side in exact.shape]
    sides = [
        OneWay(exact.sum(axis=1 - axis) + noise[axis], (SIGMA / 2) ** 2 * np.eye(exact.shape[axis])) for axis in (0, 1)
    ]
    noisy = np.asarray(exact, dtype=np.float64) + np.rint(SIGMA * random.standard_normal(exact.shape))
    return PairTable.consistent(noisy, SIGMA, round(exact.sum()), (sides[0], sides[1]) if one_way else (None, None))


def test_a_table_is_the_least_squares_solution_over_both_releases(random: np.random.Generator) -> None:
    """Against whitened equations solved by another routine; less noise than either release alone."""
    counts, sides = random.normal(50, 20, (3, 4)), [random.normal(200, 20, size) for size in (3, 4)]
    factor = random.normal(size=(3, 3))
    one_way = (OneWay(sides[0], factor @ factor.T + np.eye(3)), OneWay(sides[1], 9.0 * np.eye(4)))
    sums = (np.kron(np.eye(3), np.ones(4)), np.kron(np.ones(3), np.eye(4)))
    equations = [np.eye(12) / SIGMA]
    values = [counts.ravel() / SIGMA]
    for looks, one in zip(sums, one_way, strict=True):
        white = np.linalg.inv(np.linalg.cholesky(one.covariance))
        equations.append(white @ looks)
        values.append(white @ one.counts)
    every = np.concatenate(equations)
    table = PairTable.consistent(counts, SIGMA, 600, one_way)
    assert table.counts.ravel() == pytest.approx(np.linalg.lstsq(every, np.concatenate(values), rcond=None)[0])
    assert table.covariance == pytest.approx(np.linalg.inv(every.T @ every))
    assert (np.diagonal(table.covariance) < SIGMA**2).all()
    assert table.turned.turned.counts.tobytes() == table.counts.tobytes()
    assert table.turned.of([1], [0, 2]).covariance == pytest.approx(table.of([0, 2], [1]).covariance)


@pytest.mark.parametrize("one_way", [True, False])
def test_margins_of_counts_shares_and_differences_hold(one_way: bool, random: np.random.Generator) -> None:
    """In 400 releases of one table, cell by cell; halved they do not."""
    exact = np.rint(ROWS * shares_of(0.3))
    shares = exact / exact.sum(axis=1, keepdims=True)
    rest = (exact.sum(axis=0) - exact) / (exact.sum() - exact.sum(axis=1, keepdims=True))
    held = {name: np.zeros(exact.shape) for name in ("cells", "shares", "differences")}
    halved = np.zeros(exact.shape)
    totals = np.zeros(3)
    for _ in range(400):
        table = released(exact, random, one_way=one_way)
        for name, truth in (("cells", exact), ("shares", shares), ("differences", shares - rest)):
            margins: Margins = getattr(table, name)()
            assert margins.measured.all()
            held[name] += margins.holds(truth)
        totals += table.totals().holds(exact.sum(axis=1))
        narrow = table.differences()
        halved += np.abs(narrow.values - (shares - rest)) <= (narrow.high - narrow.low) / 4
    for name, times in held.items():
        assert times.min() >= FEWEST, name
    assert totals.min() >= FEWEST
    assert halved.max() < FEWEST


def test_differences_of_two_rows_need_both_totals_to_be_known() -> None:
    """What remains of two rows without one is the other, so that both are measured from the same noise on."""
    for rare, measured in ((85.0, True), (65.0, False)):
        table = PairTable.consistent(np.array([[6000.0, 4000.0], [rare, rare]]), 10.0, 10_200)
        assert (table.differences().measured == measured).all()


def test_little_is_said_where_the_noise_is_large(random: np.random.Generator) -> None:
    noisy = PairTable.consistent(np.full((2, 2), 10.0), 40.0, 40)
    for margins in (noisy.cells(), noisy.shares(), noisy.differences(), noisy.association()):
        assert not margins.measured.any()


@pytest.mark.parametrize("one_way", [True, False])
def test_independent_columns_have_a_v_whose_margin_holds_0(
    one_way: bool, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 97.5 % of releases; with a probability below 1e-9 in fewer of 120 than the bound, at 96.5 %."""
    monkeypatch.setattr(pair_tables, "_MOST", 300)
    runs, shares = 120, shares_of(0.0)
    tables = [
        released(random.multinomial(ROWS, shares.ravel()).reshape(3, 4), random, one_way=one_way) for _ in range(runs)
    ]
    margins = [table.association() for table in tables]
    assert sum(one.low[0] == 0.0 for one in margins) >= binom.ppf(1e-9, runs, 0.965)
    assert float(np.mean([one.values[0] for one in margins])) < 0.03


def test_v_of_dependent_columns_is_held_and_excludes_0(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_tables, "_MOST", 300)
    runs, shares = 60, shares_of(0.3)
    exact = strength_of(shares)
    tables = [released(random.multinomial(ROWS, shares.ravel()).reshape(3, 4), random) for _ in range(runs)]
    margins = [table.association() for table in tables]
    assert sum(one.low[0] <= exact <= one.high[0] for one in margins) >= binom.ppf(1e-9, runs, 0.93)
    assert all(one.low[0] > 0.1 for one in margins)
    assert float(np.mean([one.values[0] for one in margins])) == pytest.approx(exact, abs=0.02)
    turned = [table.turned.association() for table in tables[:3]]
    assert [one.values[0] for one in turned] == pytest.approx([one.values[0] for one in margins[:3]])


def test_uncorrected_v_of_independent_columns_is_far_from_0(random: np.random.Generator) -> None:
    """What the correction is for: on average φ² is 0, and its two parts apart are not."""
    shares = np.outer(np.full(10, 0.1), np.full(10, 0.1))
    corrected, plain, without_noise = [], [], []
    for _ in range(200):
        exact = random.multinomial(ROWS, shares.ravel()).reshape(10, 10)
        table = PairTable.consistent(exact + SIGMA * random.standard_normal((10, 10)), SIGMA, ROWS)
        squared = float(table._squared(table.counts[None])[0])
        total = float(table.counts.sum())
        expected = np.outer(table.counts.sum(axis=1), table.counts.sum(axis=0)) / total
        noise = float((table._of_noise / expected).sum()) / total
        corrected.append(squared)
        without_noise.append(squared + noise)
        plain.append(squared + noise + 81 / (total - 1))
    deviation = np.std(corrected) / np.sqrt(200)
    assert abs(np.mean(corrected)) < 6.0 * deviation
    assert np.mean(without_noise) > 6.0 * deviation
    assert np.sqrt(np.mean(plain) / 9) > 0.12


def test_rare_rows_are_put_together_before_v_is_computed() -> None:
    counts = np.array([[900.0, 600.0], [3.0, -4.0], [500.0, 800.0], [6.0, 1.0]])
    table = PairTable.consistent(counts, 10.0, 2800)
    assert table.pooled().counts.tolist() == [[900.0, 600.0], [509.0, 797.0]]
    assert table.pooled().covariance[2, 2] == pytest.approx(3 * 100.0)
    assert table.association().measured.all()


def test_one_way_counts_are_brought_to_the_cells_of_a_table(random: np.random.Generator) -> None:
    columns = [Column(at=0), Column(at=1, missing=2)]
    algorithm = ColumnHistograms(budget=GaussianMu(1.0), columns=columns, bins=16)
    setting = Setting(sizes=(400,), dimension=3, classes=2)
    features = random.random((400, 3))
    features[:, 2] = random.random(400) < 0.2
    rows = ArrayRows(features, random.integers(0, 2, 400))
    exact = algorithm.result(algorithm.contribution(algorithm.initial(setting), rows, setting), setting)
    counts = ColumnCounts.of_release(exact.values, algorithm, setting)
    one = one_way_of_number(counts, 1, (0.25, 0.5))
    assert one is not None
    there = features[:, 2] == 0
    parts = np.bincount(np.searchsorted([0.25, 0.5], features[there, 1]), minlength=3)
    assert one.counts == pytest.approx([*parts, (~there).sum()], abs=1e-6)
    looks = np.zeros((3, 16))
    for part, (start, stop) in enumerate(((0, 4), (4, 8), (8, 16))):
        looks[part, stop - 1] = 1.0
        if start:
            looks[part, start - 1] = -1.0
    assert one.covariance[:3, :3] == pytest.approx(looks @ counts.covariance @ looks.T)
    assert one.covariance[3].tolist() == [0.0, 0.0, 0.0, pytest.approx(counts.deviation**2)]
    assert one_way_of_number(counts, 0, (0.3,)) is None
    edges = edges_of_equal_mass(counts, 0, 4)
    assert edges == pytest.approx([0.25, 0.5, 0.75], abs=1 / 16)
    spike = replace(counts, sums=np.tile(np.append(np.full(15, 400.0), 400.0), (2, 1)))
    assert edges_of_equal_mass(spike, 0, 4) == ()
    grouped = one_way_of_values(np.array([5.0, 1.0, 2.0, 9.0]), 2.0, (0, 1, 1))
    assert grouped.counts.tolist() == [5.0, 3.0, 9.0]
    assert np.diagonal(grouped.covariance).tolist() == [4.0, 8.0, 4.0]
    assert [parts_for(rows, 20.0) for rows in (10, 1000, 10**6)] == [2, 5, 12]
    assert scipy.linalg.issymmetric(one.covariance, rtol=1e-9)
