"""Functions of columns by released counts: oracles, what is public, totality, each row by itself, label ranges."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import scipy

from dpalgos.algorithms import TrustedSummation, fit, run_sums
from dpalgos.columns import Column
from dpalgos.evaluators.column_histograms import ColumnHistograms
from dpalgos.features import label_range as label_range_module
from dpalgos.features.column_functions import (
    CONSTANT,
    LEVELS,
    ColumnFunctions,
    Term,
    column_functions,
    functions_of,
    terms,
)
from dpalgos.features.label_range import LabelRange, label_range_of_counts
from dpalgos.guarantees import GaussianMu, Setting
from dpalgos.histograms import ColumnCounts
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import Statistic, decode, opened, require_planned
from dpalgos.parameters import ParameterError
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats, sanitise

# Two numbers, one that may be missing (feature 3 says so), categories of three values and of one; ends of all kinds.
COLUMNS = (
    Column(at=0, low=-1.0, high=1.0),
    Column(at=1),
    Column(at=2, missing=3, low=-0.25, high=0.5),
    Column(at=4, values=3, high=0.5),
    Column(at=7, values=1),
)
NUMBERS, CATEGORIES = COLUMNS[:3], COLUMNS[3:]
COUNTED = tuple(level for level in LEVELS if level != "categories")


def rows_of(count: int = 500, seed: int = 3) -> Floats:
    """Cells at multiples of 1/64: a spike at 0, two values, missing cells, and a rare value of a category."""
    random = np.random.default_rng(seed)
    cells = np.zeros((count, 8))
    cells[:, 0] = np.floor(64 * random.beta(2, 5, count)) / 64 * (random.random(count) < 0.6)
    cells[:, 1] = random.random(count) < 0.2
    cells[:, 2] = random.random(count)
    cells[:, 3] = random.random(count) < 0.3
    cells[np.arange(count), 4 + random.choice(4, count, p=[0.6, 0.37, 0.01, 0.02])] = 1.0
    return featured(cells)


def featured(cells: Floats) -> Floats:
    """Return the features of cells between 0 and 1."""
    rows = np.array(cells)
    for column in COLUMNS:
        places = list(column.features[: column.values or 1])
        rows[:, places] = column.low * column.is_number + cells[:, places] * (
            column.high - column.low * column.is_number
        )
    return rows


def counts_of(
    rows: Floats, mu: float | None = None, bins: int = 64, run: int = 0, labels: Floats | None = None
) -> ColumnCounts:
    """Return released counts; without noise where no μ is given."""
    setting = Setting(sizes=(len(rows),), dimension=8, classes=2 if labels is None else 1)
    algorithm = ColumnHistograms(budget=GaussianMu(mu or 1e6), bins=bins, columns=COLUMNS, label_range=(0.0, 100.0))
    party = ArrayRows(rows, np.zeros(len(rows), dtype=np.int64) if labels is None else labels)
    if mu is None:
        values = algorithm.result(algorithm.contribution(algorithm.initial(setting), party, setting), setting).values
    else:
        values = run_sums(algorithm, [party], setting, TrustedSummation(KeyedNoise(bytes(32), str(run)))).values
    return ColumnCounts.of_release(values, algorithm, setting)


def made_of(level: str, counts: ColumnCounts) -> ColumnFunctions:
    return column_functions(COLUMNS, level, counts)


def raw(made: ColumnFunctions, rows: Floats) -> dict[Term, Floats]:
    """Return the features of rows before they are brought to norm 1: a constant of 0.1 says by how much they were."""
    mapped = made.transform(rows)
    return dict(zip(made.terms(), (mapped / mapped[:, -1:] * CONSTANT / made.weights).T, strict=True))


def masses_of(counts: ColumnCounts) -> Floats:
    return np.diff(counts.shares_below(), axis=1)


def test_scores_of_exact_counts_are_those_of_mid_ranks_by_scipy() -> None:
    """Before anything is made orthonormal: the function of degree 1 is the score, centred and scaled by its masses."""
    rows = rows_of()
    counts = counts_of(rows)
    found = raw(made_of("scores", counts), rows)
    for column in (0, 1):
        ranks = (scipy.stats.rankdata(rows[:, column]) - 0.5) / len(rows)
        scores = np.clip(scipy.stats.norm.ppf(ranks), -2.75, 2.75)
        expected = (scores - scores.mean()) / max(scores.std(), math.sqrt(0.3))
        assert found[Term("score", (column,))] == pytest.approx(np.clip(expected, -4, 4), abs=1e-8)
    # A mutant: ranks by position, and not the mid-rank of ties, are others.
    ordinal = (scipy.stats.rankdata(rows[:, 0], method="ordinal") - 0.5) / len(rows)
    assert np.abs(scipy.stats.norm.ppf(ordinal) - found[Term("score", (0,))]).max() > 0.1


def test_the_linear_function_is_centred_and_scaled_by_released_quantiles() -> None:
    rows = featured(np.linspace(0, 1, 4096)[:, None] ** 2 * np.array([1.0, 1, 1, 0, 0, 0, 0, 0]))
    found = raw(made_of("scores", counts_of(rows, bins=1024)), rows)[Term("linear", (1,))]
    cells = rows[:, 1]
    low, median, high = np.quantile(cells, [0.05, 0.5, 0.95])
    assert found == pytest.approx(np.clip((cells - median) / ((high - low) / 3.29), -3, 3), abs=0.01)


@pytest.mark.parametrize("mu", [None, 5.0, 0.5, 0.05])
def test_functions_are_orthonormal_under_the_released_masses(mu: float | None) -> None:
    """All that are there, but for what is clipped or not scaled up to 1; not under those of the rows."""
    rows = rows_of(2000)
    counts, exact = counts_of(rows, mu), counts_of(rows)
    tables, masses, others = functions_of(counts.shares_below()), masses_of(counts), masses_of(exact)
    apart = 0.0
    for table, mass, other in zip(tables, masses, others, strict=True):
        kept = [one for one in table[1:] if one.any()]
        for column in kept:
            bounded = np.abs(column).max() >= 4.0
            assert bounded or abs(mass @ column) < 1e-9
            assert mass @ column**2 <= 1 + 1e-9
            assert bounded or mass @ column**2 >= 0.02 / 0.3 - 1e-9
            apart = max(apart, 0.0 if bounded else abs(other @ column))
        for one, two in itertools.combinations(kept, 2):
            assert max(np.abs(one).max(), np.abs(two).max()) >= 4.0 or abs(mass @ (one * two)) < 1e-9
    # What a map from exact counts would be: a mutant that the released masses tell apart.
    assert (apart > 1e-3) == (mu is not None)


def test_what_has_no_variance_of_its_own_is_left_out_and_keeps_its_place() -> None:
    """Two values have no square and no cube, one value has nothing; the number of features is public all the same."""
    shares = np.array([np.linspace(0, 1, 65), np.repeat([0.0, 0.8, 1.0], [1, 40, 24]), np.repeat([0.0, 1.0], [1, 64])])
    tables = functions_of(shares)
    assert [[bool(one.any()) for one in table[1:]] for table in tables] == [
        [True, True, True],
        [True, False, False],
        [False, False, False],
    ]
    assert np.diff(tables[0, 1]).min() > 0
    # A spike of 97 %: too little varies for the score to be scaled up to 1.
    spike = functions_of(np.array([np.repeat([0.0, 0.97, 1.0], [1, 40, 24])]))[0, 1]
    low, high = scipy.stats.norm.ppf([0.485, 0.985])
    assert [spike[0], spike[40]] == pytest.approx([-0.03 * (high - low) / 0.3**0.5, 0.97 * (high - low) / 0.3**0.5])
    for name in ("rows_of", "spread"):
        rows = rows_of() if name == "rows_of" else featured(np.random.default_rng(0).random((500, 8)))
        for level in COUNTED:
            made = made_of(level, counts_of(rows, 1.0))
            assert made.dimension == len(terms(NUMBERS, CATEGORIES, level, counted=True))
            shapes = {key: value.shape for key, value in made.arrays().items()}
            assert shapes == {key: value.shape for key, value in made_of(level, counts_of(rows)).arrays().items()}


@pytest.mark.parametrize("level", COUNTED)
def test_blocks_have_their_shares_of_the_norm(level: str) -> None:
    """Weights squared add up to the block's share over those that are kept: of a category's values one is said."""
    made = made_of(level, counts_of(rows_of(), 2.0))
    for name, share in LEVELS[level].items():
        own = [weight for weight, term in zip(made.weights, made.terms(), strict=True) if term.function == name]
        if name == "value":
            assert own == pytest.approx([math.sqrt(share / 2)] * 4)
            continue
        mapped = raw(made, rows_of())
        kept = sum(bool(mapped[term].any()) for term in made.terms() if term.function == name)
        assert own == pytest.approx([math.sqrt(share / kept)] * len(own))
    assert made.weights[-1] == CONSTANT


def test_products_are_of_two_numbers_and_clipped() -> None:
    rows = rows_of(3000)
    found = raw(made_of("cubic", counts_of(rows, 5.0)), rows)
    pairs = [term for term in found if "product" in term.function]
    assert [term.columns for term in pairs if term.function == "product"] == [(0, 1), (0, 2), (1, 2)]
    assert len(pairs) == 9
    clipped = 0
    for term in pairs:
        one, other = term.columns
        left = found[Term("score" if term.function == "product" else "square", (one,))]
        product = left * found[Term("score", (other,))]
        clipped += int((np.abs(product) > 4.0).sum())
        assert found[term] == pytest.approx(np.clip(product, -4, 4), abs=1e-7)
    assert clipped > 0


@pytest.mark.parametrize("level", COUNTED)
@pytest.mark.parametrize("mu", [None, 2.0, 0.05, 0.001])
def test_the_map_is_total_monotone_and_into_the_unit_ball(level: str, mu: float | None) -> None:
    """Of any counts: with noise that is all there is, functions are bounded and the first two rise with the cell."""
    rows = rows_of()
    made = made_of(level, counts_of(rows, mu))
    assert np.isfinite(made.tables).all()
    assert np.abs(made.tables).max() <= 4.0
    assert np.abs(made.tables[:, 0]).max() <= 3.0
    assert (np.diff(made.tables[:, :2], axis=2) >= -1e-12).all()
    hostile = rows.copy()
    hostile[0, 0], hostile[1, 5], hostile[2], hostile[3] = np.nan, np.inf, 1e308, -1e300
    mapped = made.transform(hostile)
    assert mapped.shape == (len(rows), made.dimension)
    assert np.isnan(mapped[:2]).all()
    norms = np.linalg.norm(mapped[2:], axis=1)
    assert norms == pytest.approx(np.ones(len(norms)), abs=1e-12)
    assert sanitise(mapped[2:], np.zeros(len(norms)), 2)[0].tobytes() == mapped[2:].tobytes(), "no clip moves a row"


@pytest.mark.parametrize("level", LEVELS)
def test_each_row_is_mapped_by_itself_to_the_bit(level: str) -> None:
    rows = rows_of(600)
    made = column_functions(CATEGORIES, level) if level == "categories" else made_of(level, counts_of(rows, 0.5))
    whole = made.apply(rows)
    assert np.array_equal(whole, np.concatenate([made.apply(rows[place : place + 1]) for place in range(600)]))
    order = np.random.default_rng(1).permutation(600)
    for size in (7, 64, 512, 599):
        parts = [made.apply(rows[order][start : start + size]) for start in range(0, 600, size)]
        assert np.array_equal(np.concatenate(parts), whole[order])
    assert np.array_equal(made.apply(np.asfortranarray(rows)), whole)
    assert np.array_equal(made.apply(rows.astype(np.float32)), made.apply(rows.astype(np.float32).astype(np.float64)))
    beside = rows.copy()
    beside[::3] = np.nan
    assert np.array_equal(made.apply(beside)[1::3], whole[1::3]), "null records beside it change no row"


@pytest.mark.parametrize("level", LEVELS)
def test_it_is_made_again_from_its_arrays(level: str) -> None:
    rows = rows_of()
    made = column_functions(CATEGORIES, level) if level == "categories" else made_of(level, counts_of(rows, 0.5))
    arrays = made.arrays()
    kind = "column-functions"
    for again in (decode(kind, arrays), opened(kind, arrays), require_planned(kind, arrays, made)):
        assert isinstance(again, ColumnFunctions)
        assert np.array_equal(again.transform(rows), made.transform(rows))
        assert again.terms() == made.terms()
    with pytest.raises(ParameterError, match=r"^13 weights|^[0-9]* weights|^weights"):
        opened(kind, {**arrays, "weights": made.weights[1:]})
    with pytest.raises(ParameterError, match="arrays"):
        opened(kind, {**arrays, "level": np.array([99, 1])})


def test_null_records_stay_null_and_missing_cells_are_a_constant() -> None:
    rows = rows_of()
    made = made_of("cubic", counts_of(rows))
    null = rows[:2].copy()
    null[0, 7] = np.nan
    features, labels = sanitise(made.transform(null), np.array([1, 1]), 2)
    assert labels.tolist() == [NULL_LABEL, 1]
    assert not features[0].any()
    # Whatever lies in the cell.
    missing = np.tile(rows[4], (2, 1))
    missing[:, 3], missing[:, 2] = 1.0, [-0.1, 0.4]
    one, other = made.transform(missing)
    assert np.array_equal(one, other)
    for term, value in raw(made, missing).items():
        if 2 in term.columns and term.function not in ("missing", "value", "other"):
            assert not value.any()
        if term.function == "missing":
            assert value == pytest.approx([1.0, 1.0])


def test_rare_values_are_other_and_missing_ones_nothing() -> None:
    rows = rows_of()
    counts = replace(counts_of(rows), deviation=5.0)
    made = made_of("scores", counts)
    cells = np.zeros((5, 8))
    cells[[0, 1, 2], [4, 5, 6]] = 1.0
    cells[3, 4:7] = cells[4, 7] = 1.0
    found = raw(made, featured(cells))
    said = [np.round(found[Term("value", (0,), (value,))]).tolist() for value in range(3)]
    assert said == [[1, 0, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert np.round(found[Term("other", (0,))]).tolist() == [0, 0, 1, 0, 0]
    assert np.round(found[Term("other", (1,))]).tolist() == [0, 0, 0, 0, 1]


def test_pairs_of_values_stand_beside_where_nothing_is_counted() -> None:
    made = column_functions(CATEGORIES, "categories")
    assert [term.values for term in made.terms() if term.function == "value-pair"] == [(0, 0), (1, 0), (2, 0)]
    assert not any(term.function == "other" for term in made.terms())
    cells = np.zeros((4, 8))
    cells[0, [5, 7]] = cells[1, 5] = cells[3, 7] = 1.0
    found = raw(made, featured(cells))
    assert found[Term("value-pair", (0, 1), (1, 0))] == pytest.approx([1.0, 0.0, 0.0, 0.0])
    assert not found[Term("value-pair", (0, 1), (0, 0))].any(), "a missing one has no pair"
    assert np.flatnonzero(made.transform(featured(cells))[3]).tolist() == [3, 7], "the value and the constant"
    assert made.transform(featured(cells))[2].tolist() == pytest.approx([0.0] * 7 + [1.0]), "the constant is left"


def test_levels_and_counts_that_do_not_fit_are_refused() -> None:
    counts = counts_of(rows_of())
    with pytest.raises(ParameterError, match="'quartic'"):
        column_functions(COLUMNS, "quartic", counts)
    with pytest.raises(ParameterError, match=r"^3 numeric"):
        column_functions(COLUMNS, "scores")
    with pytest.raises(ParameterError, match=r"^the counts"):
        column_functions(COLUMNS[1:], "scores", counts)


def label_rows(count: int = 4000) -> tuple[Floats, Floats]:
    """Labels near 30 of a declared range of 0 to 100, one in two hundred at 100."""
    random = np.random.default_rng(5)
    labels = np.clip(random.normal(30, 2, count), 0, 100)
    labels[: count // 200] = 100.0
    return rows_of(count), labels


def test_a_label_is_clipped_where_the_released_distribution_says() -> None:
    """By hand from the definition, on exact counts; and nothing that noise hides is said."""
    rows = rows_of(4000)
    labels = np.random.default_rng(5).normal(30, 2, 4000)
    low, high = label_range_of_counts(counts_of(rows, labels=labels, bins=1024)).ends
    edges, best = np.linspace(0, 100, 1025), (0.0, 100.0)
    middles = np.clip(np.floor(labels / 100 * 1024), 0, 1023) / 1024 * 100 + 50 / 1024
    for tail in (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05):
        ends = [edges[edges <= np.quantile(labels, tail, method="inverted_cdf")].max()]
        ends.append(edges[edges >= np.quantile(labels, 1 - tail, method="inverted_cdf")].min())
        if ((middles - np.clip(middles, *ends)) ** 2).mean() <= 0.03 * middles.var():
            best = ends[0], ends[1]
    assert (low, high) == pytest.approx(best)
    assert 24 < low < 28
    assert 32 < high < 36
    # One in two hundred labels holds nearly all of the variance: no tail is cut.
    assert label_range_of_counts(counts_of(*label_rows()[:1], labels=label_rows()[1], bins=1024)).ends[1] == 100.0
    # Nor where as many lie at either end.
    both = np.where(np.arange(4000) < 20, np.arange(4000) % 2 * 100.0, 20.0 + labels)
    assert label_range_of_counts(counts_of(rows, labels=both, bins=1024)).ends == (0.0, 100.0)
    assert label_range_of_counts(counts_of(rows, mu=0.001, labels=labels)).ends == (0.0, 100.0), "noise is all there is"
    with pytest.raises(ParameterError, match="numeric label"):
        label_range_of_counts(counts_of(rows))


def test_the_range_is_from_released_counts_and_no_row() -> None:
    """Two draws of noise give two ranges; a mutant that takes it from rows gives one."""
    rows = rows_of(4000)
    labels = np.random.default_rng(5).normal(30, 2, 4000)
    counts = [counts_of(rows, 0.3, 1024, run, labels) for run in range(5)]
    ranges = [tuple(column_functions(COLUMNS, "scores", one).label_range) for one in counts]
    assert len(set(ranges)) > 1
    assert ranges == [label_range_of_counts(one).ends for one in counts]
    assert made_of("scores", counts_of(rows)).label_range.shape == (0,)


def test_a_label_s_range_that_is_far_too_wide_is_cut_to_where_labels_are() -> None:
    """Noise in the tails of a loose range must not outweigh the labels; a range that fits is left to its quantiles."""
    random = np.random.default_rng(3)
    labels = np.clip(random.normal(0.0, 1.0, 20_000), -3.0, 3.0)
    for reach, most in ((3.0, 6.0), (300.0, 30.0)):
        for low, high in ranges_of(labels, reach, 0.3, 5):
            assert -most / 2.0 <= low < -0.5
            assert 0.5 < high <= most / 2.0


def found_of(labels: Floats, reach: float, mu: float, runs: int, bins: int = 1024) -> list[LabelRange]:
    """Return what so many releases of counts say of labels of a declared range from −reach to reach."""
    algorithm = ColumnHistograms(budget=GaussianMu(mu), bins=bins, label_range=(-reach, reach))
    setting, rows = Setting(sizes=(len(labels),), dimension=1, classes=1), np.zeros((len(labels), 1))
    found = []
    for seed in range(runs):
        released = fit(algorithm, [ArrayRows(rows, labels)], setting, KeyedNoise(public_secret(seed), "counts"))
        counts = ColumnCounts.of_release(cast(Statistic, released).values, algorithm, setting)
        found.append(label_range_of_counts(counts))
    return found


def ranges_of(labels: Floats, reach: float, mu: float, runs: int, bins: int = 1024) -> list[tuple[float, float]]:
    """Return the ranges that they give."""
    return [one.ends for one in found_of(labels, reach, mu, runs, bins)]


@pytest.mark.parametrize("mu", [0.03, 0.008])
def test_a_label_s_range_is_cut_by_a_fitted_distribution_where_noise_hides_its_tails(mu: float) -> None:
    """Running sums are off by 10 % and 40 % of 2,000 labels: tails alone, the mutant, tell nothing in most runs.

    B, which errors count up to, follows from the same distribution: it is of the order of the labels' spread, and not
    of the declared range.
    """
    labels = np.clip(np.random.default_rng(3).normal(0.0, 1.0, 2_000), -3.0, 3.0)
    found = found_of(labels, 100.0, mu, 6, 256)
    good = [one for one in found if -20.0 <= one.ends[0] < -1.0 and 1.0 < one.ends[1] <= 20.0]
    assert len(good) >= (5 if mu == 0.03 else 3)
    for one in good:
        centre, bound, share = one.spread
        assert one.ends[0] < centre < one.ends[1]
        assert 0.0 < bound < 40.0
        assert share == pytest.approx(1 / 3.29**2, abs=0.001)
    with patch.object(label_range_module, "_by_normal", lambda *_: None):
        tails = ranges_of(labels, 100.0, mu, 6, 256)
    assert sum(high - low < 40.0 for low, high in tails) < len(good)


def test_a_label_s_range_stays_where_it_fits_or_labels_lie_apart() -> None:
    """A range that is four times too wide; labels mostly at one end, or of which 30 % lie apart and noise shows it."""
    random = np.random.default_rng(3)
    labels, mu = np.clip(random.normal(0.0, 1.0, 2_000), -3.0, 3.0), 0.03
    assert sum(found == (-12.0, 12.0) for found in ranges_of(labels, 12.0, mu, 6, 256)) >= 5
    ends = np.where(random.random(2_000) < 0.3, 0.0, 97.0) + random.normal(0.0, 1.0, 2_000)
    assert sum(high - low > 90.0 for low, high in ranges_of(ends, 100.0, mu, 6, 256)) >= 5
    with patch.object(label_range_module, "_apart", lambda *_: (0, 0.0)):
        assert sum(high - low > 90.0 for low, high in ranges_of(ends, 100.0, mu, 6, 256)) < 3
    claims = np.where(random.random(2_000) < 0.9, -100.0, random.uniform(-100.0, 100.0, 2_000))
    assert all(found == (-100.0, 100.0) for found in ranges_of(claims, 100.0, mu, 6, 256))


def sums_of_normal(deviation: float, rows: int, noise: float, bins: int = 128) -> Any:
    """Return counts, with independent noise, whose sums are those of a normal label about the middle, without noise."""
    below = scipy.special.ndtr((np.arange(1.0, bins + 1) - bins / 2.0) / deviation)
    below[-1] = 1.0
    given = {"bins": bins, "rows": rows, "covariance": noise**2 * np.eye(bins), "sums": rows * below[None]}
    return SimpleNamespace(**given, layout=SimpleNamespace(label_range=(0.0, float(bins))))


def test_a_label_s_range_is_too_wide_where_98_percent_of_the_weight_says_it() -> None:
    """A deviation of a 30th of the range or more is none that is narrow; one below is, where noise lets it be seen."""
    assert label_range_module._posterior(sums_of_normal(8.0, 10_000, 300.0)) is None
    seen, unsure = sums_of_normal(2.83, 10_000, 300.0), sums_of_normal(2.83, 10_000, 2_500.0)
    known = label_range_module._posterior(seen)
    assert known is not None
    assert known.deviations.max() < 128 / 30
    assert label_range_module._posterior(unsure) is None
    with patch.object(label_range_module, "_SURE", 0.5):
        assert label_range_module._posterior(unsure) is not None, "more than half of the weight is on it"


@pytest.mark.parametrize("deviation", [2.0, 4.0, 9.0])
def test_a_label_s_range_loses_least_by_hand(deviation: float) -> None:
    """L of the module's text, integrated: of labels three times as long, and a model's noise of 1/40 of the width."""
    bins, counts = 256, sums_of_normal(deviation, 1_000, 300.0, 256)
    best = counts.sums[0] / 1_000
    known = label_range_module._Posterior(
        np.array([128.0]), np.array([deviation]), np.ones(1), best, np.linalg.inv(counts.covariance)
    )
    places = np.linspace(-60.0, 60.0, 240_001)
    density = np.exp(-((places / 3.0) ** 2) / 2.0) / (3.0 * np.sqrt(2.0 * np.pi)) * (places[1] - places[0])

    def lost(first: float, last: float) -> float:
        low, high = (first - 128.0) / deviation, (last - 128.0) / deviation
        clipped = (places - np.clip(places, low, high)) ** 2
        return float(clipped @ density) + ((last - first) / 40.0 / deviation) ** 2

    halves = [4.0 * 2.0 ** (power / 2.0) for power in range(20)]
    ends = [(np.floor(128.0 - half), np.ceil(128.0 + half)) for half in halves if 2.0 * half <= 0.3 * bins]
    first, last = min([*ends, (0.0, 256.0)], key=lambda one: lost(*one))
    with patch.object(label_range_module, "_posterior", lambda _: known):
        found = label_range_module._by_normal(counts)
    assert (first, last) == pytest.approx((0.0, 256.0) if found is None else found.ends, abs=1.0)
    assert (found is None) == (deviation == 9.0)
