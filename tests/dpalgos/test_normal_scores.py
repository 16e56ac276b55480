"""Normal scores of released counts and functions of them: oracles, totality, each row by itself, what is public."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.polynomial import hermite_e

from dpalgos.algorithms import TrustedSummation, run_sums
from dpalgos.evaluators.column_histograms import ColumnHistograms
from dpalgos.features.normal_scores import ColumnFunctions, ScoreRule
from dpalgos.guarantees import GaussianMu, Setting
from dpalgos.histograms import ColumnCounts
from dpalgos.keystream import KeyedNoise
from dpalgos.models import decode, opened
from dpalgos.parameters import ParameterError
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats, sanitise

# Two numbers, one that may be missing (feature 3 says so), categories of three values and of one.
COLUMNS: list[dict[str, int]] = [
    {"at": 0},
    {"at": 1},
    {"at": 2, "missing": 3},
    {"at": 4, "values": 3},
    {"at": 7, "values": 1},
]
RULES = [
    ScoreRule(degree=1),
    ScoreRule(degree=2, centred=True),
    ScoreRule(degree=3, linear=1.0, inside=0.7, centred=True),
    ScoreRule(degree=3, most_products=3, seed=4),
    ScoreRule(degree=2, most_products=0, bound=1.0),
]


def rows_of(count: int = 500, seed: int = 3) -> Floats:
    """Multiples of 1/64 with a spike at 0, a column of two values, missing cells, and a rare value of a category."""
    random = np.random.default_rng(seed)
    rows = np.zeros((count, 8))
    rows[:, 0] = np.floor(64 * random.beta(2, 5, count)) / 64 * (random.random(count) < 0.6)
    rows[:, 1] = random.random(count) < 0.2
    rows[:, 2] = random.random(count)
    rows[:, 3] = random.random(count) < 0.3
    rows[np.arange(count), 4 + random.choice(4, count, p=[0.6, 0.37, 0.01, 0.02])] = 1.0
    return rows


def counts_of(rows: Floats, mu: float | None = None, bins: int = 64, run: int = 0) -> ColumnCounts:
    """Return released counts; without noise where no μ is given."""
    setting = Setting(sizes=(len(rows),), dimension=8, classes=2)
    algorithm = ColumnHistograms(budget=GaussianMu(mu or 1e6), bins=bins, columns=COLUMNS)
    party = ArrayRows(rows, np.zeros(len(rows), dtype=np.int64))
    if mu is None:
        values = algorithm.result(algorithm.contribution(algorithm.initial(setting), party, setting), setting).values
    else:
        values = run_sums(algorithm, [party], setting, TrustedSummation(KeyedNoise(bytes(32), str(run)))).values
    return ColumnCounts.of_release(values, algorithm, setting)


def test_scores_of_exact_counts_are_those_of_mid_ranks_by_scipy() -> None:
    """Each value has a bin of its own: ties have the score of their mid-rank, wherever they lie."""
    rows = rows_of()
    made = ScoreRule(degree=1).made(counts_of(rows))
    scores, there = made.normal_scores(rows)
    for column in (0, 1):
        ranks = (scipy.stats.rankdata(rows[:, column]) - 0.5) / len(rows)
        assert scores[:, column] == pytest.approx(np.clip(scipy.stats.norm.ppf(ranks), -2.75, 2.75), abs=1e-9)
    assert np.array_equal(there[:, 2], 1.0 - rows[:, 3])
    # In bins, of those that are not missing.
    known = rows[:, 3] == 0
    ranks = (scipy.stats.rankdata(np.floor(64 * rows[known, 2])) - 0.5) / known.sum()
    assert scores[known, 2] == pytest.approx(np.clip(scipy.stats.norm.ppf(ranks), -2.75, 2.75), abs=1e-9)


def test_ranks_that_rise_inside_bins_are_those_of_a_distribution_function() -> None:
    """Of evenly spread cells the score is the quantile function, as closely as a bin's end bends."""
    rows = np.zeros((4096, 8))
    rows[:, 0] = rows[:, 1] = rows[:, 2] = (np.arange(4096) + 0.5) / 4096
    inside = ScoreRule(degree=1, inside=1.0).made(counts_of(rows)).normal_scores(rows)[0]
    expected = np.clip(scipy.stats.norm.ppf(rows[:, :1]), -2.75, 2.75)
    middle = np.abs(rows[:, 0] - 0.5) < 0.4
    assert inside[middle] == pytest.approx(np.repeat(expected[middle], 3, axis=1), abs=2e-3)
    flat = ScoreRule(degree=1).made(counts_of(rows)).normal_scores(rows)[0]
    assert len(np.unique(flat[:, 0])) == 64
    assert len(np.unique(inside[:, 0])) > 4000
    # A mutant: by position in a bin, a spike at its lower edge would be the lowest rank.
    spike = rows.copy()
    spike[:3000, 0] = 0.0
    by_mid_rank, by_position = (
        ScoreRule(degree=1, inside=part).made(counts_of(spike)).normal_scores(spike[:1])[0][0, 0] for part in (0.0, 1.0)
    )
    ranks = (scipy.stats.rankdata(np.floor(64 * spike[:, 0])) - 0.5)[0] / 4096
    assert by_mid_rank == pytest.approx(scipy.stats.norm.ppf(ranks), abs=1e-9)
    assert by_position == -2.75


def test_functions_are_orthonormal_under_normal_scores() -> None:
    """By Gauss-Hermite quadrature, and against NumPy's polynomials."""
    rule = ScoreRule(degree=3)
    nodes, weights = hermite_e.hermegauss(12)
    weights = weights / weights.sum()
    # Scores that are the nodes: each in a bin of its own, wide enough for none to be clipped.
    made = replace(
        ScoreRule(degree=3, bound=10.0).made(counts_of(rows_of(), bins=16)),
        scores=np.repeat(np.tile(np.append(nodes, [nodes[-1]] * 4), (3, 1))[:, :, None], 2, axis=2),
    )
    grid = np.array(list(itertools.product(range(12), repeat=2)))
    rows = np.zeros((len(grid), 8))
    rows[:, :2] = grid / 16
    rows[:, 3] = 1.0
    functions = made.functions(rows)
    names = [(term.function, term.columns) for term in made.terms()]
    kept = [place for place, (name, columns) in enumerate(names) if name[0] in "hp" and 2 not in columns]
    assert len(kept) == 6 + 1 + 2
    both = weights[grid[:, 0]] * weights[grid[:, 1]]
    assert (functions[:, kept] * both[:, None]).T @ functions[:, kept] == pytest.approx(np.eye(9), abs=1e-9)
    assert both @ functions[:, kept] == pytest.approx(np.zeros(9), abs=1e-9)
    for degree in (1, 2, 3):
        polynomial = hermite_e.hermeval(nodes[grid[:, 1]], np.eye(4)[degree]) / math.sqrt(math.factorial(degree))
        assert functions[:, names.index((f"h{degree}", (1,)))] == pytest.approx(polynomial, abs=1e-9)
    h2_of_second = functions[:, names.index(("h2", (1,)))] * functions[:, names.index(("h1", (0,)))]
    assert functions[:, names.index(("h2-product", (1, 0)))] == pytest.approx(h2_of_second)
    assert rule.terms(counts_of(rows_of()).layout) == made.terms()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mu", [None, 2.0, 0.05, 0.001])
def test_the_map_is_total_monotone_and_into_the_unit_ball(rule: ScoreRule, mu: float | None) -> None:
    """Of any counts: with noise that is all there is, scores rise with the cell and shapes are the planned ones."""
    rows = rows_of()
    counts = counts_of(rows, mu)
    made = rule.made(counts)
    assert made.dimension == rule.dimension(counts.layout) == len(made.terms())
    assert np.isfinite(made.scores).all()
    assert np.abs(made.scores).max() <= rule.bound
    cells = np.zeros((5001, 8))
    cells[:, 0] = cells[:, 1] = cells[:, 2] = np.linspace(-1.0, 2.0, 5001)
    assert np.all(np.diff(made.normal_scores(cells)[0], axis=0) >= 0)
    hostile = rows.copy()
    hostile[0, 0], hostile[1, 5], hostile[2], hostile[3] = np.nan, np.inf, 1e308, -1e300
    mapped = made.transform(hostile)
    assert mapped.shape == (len(rows), made.dimension)
    assert np.isnan(mapped[:2]).all()
    assert np.isfinite(mapped[2:]).all()
    assert np.linalg.norm(mapped[2:], axis=1).max() <= 1 + 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_each_row_is_mapped_by_itself_to_the_bit(rule: ScoreRule) -> None:
    rows = rows_of(1500)
    made = rule.made(counts_of(rows, 0.5))
    whole = made.apply(rows)
    assert np.array_equal(whole, np.concatenate([made.apply(rows[place : place + 1]) for place in range(1500)]))
    order = np.random.default_rng(1).permutation(1500)
    for size in (7, 512, 1499):
        parts = [made.apply(rows[order][start : start + size]) for start in range(0, 1500, size)]
        assert np.array_equal(np.concatenate(parts), whole[order])
    assert np.array_equal(made.apply(np.asfortranarray(rows)), whole)
    assert np.array_equal(made.apply(rows.astype(np.float32)), made.apply(rows.astype(np.float32).astype(np.float64)))


@pytest.mark.parametrize("rule", RULES)
def test_it_is_made_again_from_its_arrays(rule: ScoreRule) -> None:
    rows = rows_of()
    made = rule.made(counts_of(rows, 0.5))
    for again in (decode("column-functions", made.arrays()), opened("column-functions", made.arrays())):
        assert isinstance(again, ColumnFunctions)
        assert np.array_equal(again.transform(rows), made.transform(rows))
        assert again.terms() == made.terms()


def test_null_records_stay_null_and_missing_cells_are_a_constant() -> None:
    rows = rows_of()
    made = ScoreRule(degree=3, linear=1.0).made(counts_of(rows))
    null = rows[:2].copy()
    null[0, 7] = np.nan
    features, labels = sanitise(made.transform(null), np.array([1, 1]), 2)
    assert labels.tolist() == [NULL_LABEL, 1]
    assert not features[0].any()
    # Whatever lies in the cell.
    missing = np.tile(rows[4], (2, 1))
    missing[:, 3], missing[:, 2] = 1.0, [0.1, 0.9]
    one, other = made.functions(missing)
    assert np.array_equal(one, other)
    for term, value in zip(made.terms(), one, strict=True):
        if 2 in term.columns and term.function not in ("missing", "value", "other"):
            assert value == 0.0
        if term.function == "missing":
            assert value == 1.0


def test_rare_values_are_other_and_missing_ones_nothing() -> None:
    rows = rows_of()
    counts = replace(counts_of(rows), deviation=5.0)
    assert [one.tolist() for one in counts.rare()] == [[0.0, 0.0, 1.0], [1.0]]
    made = ScoreRule(degree=1).made(counts)
    places = {(term.function, term.columns, term.value): place for place, term in enumerate(made.terms())}
    values = np.zeros((5, 8))
    values[[0, 1, 2], [4, 5, 6]] = 1.0
    values[3, 4:7] = values[4, 7] = 1.0
    found = made.functions(values)
    chosen = [
        places[key] for key in [("value", (0,), 0), ("value", (0,), 1), ("value", (0,), 2), ("other", (0,), None)]
    ]
    assert found[:, chosen].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert found[:, places["other", (1,), None]].tolist() == [0, 0, 0, 0, 1]


def test_means_are_those_of_the_rows_where_counts_are_exact() -> None:
    """Of single columns' functions; products are left for a paid mean; and of nothing where counts say nothing."""
    rows = rows_of()
    counts = replace(counts_of(rows), deviation=1e-9)
    made = ScoreRule(degree=3, linear=1.0, centred=True).made(counts)
    means = made.functions(rows).mean(axis=0)
    for place, term in enumerate(made.terms()):
        if "product" in term.function:
            assert made.means[place] == 0.0
        else:
            assert made.means[place] == pytest.approx(
                made.weights[place] * means[place], abs=1 / 64 if term.function == "linear" else 1e-9
            )
    silent = ScoreRule(degree=1, centred=True).made(replace(counts, deviation=1e4))
    for term, mean in zip(silent.terms(), silent.means, strict=True):
        assert mean == 0.0 or term.function == "h1"


def test_products_beyond_the_limit_are_of_sums_with_public_signs() -> None:
    rule = ScoreRule(degree=2, most_products=20)
    assert [rule.mixed(numbers) for numbers in (0, 1, 2, 6, 7, 500)] == [0, 0, 2, 6, 6, 6]
    assert ScoreRule(degree=3, most_products=20).mixed(500) == 4
    assert ScoreRule(degree=1).mixed(500) == 0
    matrix = rule.mixing(500)
    assert matrix.shape == (500, 6)
    assert np.array_equal(matrix, rule.mixing(500))
    assert not np.array_equal(matrix, replace(rule, seed=1).mixing(500))
    assert np.square(matrix).sum(axis=0) == pytest.approx(np.ones(6)), "sums of normal scores are normal"
    assert ((matrix != 0).sum(axis=1) == 1).all()
    assert np.array_equal(rule.mixing(6), np.eye(6))


@pytest.mark.parametrize(
    ("given", "said"),
    [({"degree": 4}, "at most 3"), ({"degree": 0}, "degree"), ({"inside": 1.5}, "inside"), ({"bound": 0.0}, "bound")],
)
def test_wrong_rules_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        ScoreRule(**given)


def test_columns_of_one_kind_alone_have_maps() -> None:
    setting = Setting(sizes=(9,), dimension=3, classes=2)
    rows = np.random.default_rng(0).random((9, 3))
    for columns in ([{"at": 0}], [{"at": 0, "values": 3}]):
        algorithm = ColumnHistograms(budget=GaussianMu(1.0), bins=4, columns=columns)
        party = ArrayRows(rows, np.zeros(9, dtype=np.int64))
        values = run_sums(algorithm, [party], setting, TrustedSummation(KeyedNoise(bytes(32), "alone"))).values
        counts = ColumnCounts.of_release(values, algorithm, setting)
        for rule in RULES:
            mapped = rule.made(counts).transform(rows)
            assert mapped.shape == (9, rule.dimension(counts.layout))
            assert np.isfinite(mapped).all()
