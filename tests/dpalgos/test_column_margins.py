"""Margins of histograms, quartiles, means, shares and counts: that they hold, on hard tables, and what is not said."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from dpalgos import column_margins
from dpalgos.column_margins import Margins
from dpalgos.evaluators.column_histograms import ColumnHistograms, rank_error
from dpalgos.guarantees import GaussianMu, Setting
from dpalgos.histograms import ColumnCounts
from dpalgos.parameters import ParameterError
from dpalgos.rows import ArrayRows, Floats

ROWS, NUMBERS = 600, 7
# Seven numbers, the fourth, fifth and sixth with an indicator; categories of four values and of one.
COLUMNS: list[dict[str, int]] = [
    *({"at": at} for at in range(3)),
    *({"at": at, "missing": at + 4} for at in (3, 4, 5)),
    {"at": 6},
    {"at": 10, "values": 4},
    {"at": 14, "values": 1},
]


@cache
def table() -> tuple[Floats, Floats]:
    """Even cells; nine in ten at 0; two values of a half each; a third missing; all missing; few there; all at 1."""
    random = np.random.default_rng(8)
    rows = np.zeros((ROWS, 15))
    rows[:, 0] = random.random(ROWS)
    rows[:, 1] = random.random(ROWS) * (random.random(ROWS) < 0.1)
    rows[:, 2] = np.where(np.arange(ROWS) % 2, 0.3, 0.8)
    rows[:, 3] = np.clip(random.normal(0.5, 0.1, ROWS), 0, 1)
    rows[:, 7] = random.random(ROWS) < 1 / 3
    rows[:, 4], rows[:, 8] = 0.5, 1.0
    rows[:, 5], rows[:, 9] = random.random(ROWS), random.random(ROWS) < 0.98
    rows[:, 6] = 1.0
    drawn = random.choice(5, ROWS, p=[0.5, 0.3, 0.15, 0.01, 0.04])
    rows[drawn < 4, 10 + drawn[drawn < 4]] = 1.0
    rows[:, 14] = random.random(ROWS) < 0.5
    return rows, (random.random(ROWS) < 0.07).astype(np.float64)


def noisy(runs: int, mu: float, stated: float | None = None, seed: int = 0, **changed: Any) -> Iterator[ColumnCounts]:
    """Yield the counts of so many releases, whose noise is drawn here; ``stated`` is the μ of what is said of it."""
    rows, labels = table()
    setting = Setting(sizes=(ROWS,), dimension=15, classes=2)
    parameters: dict[str, Any] = {"columns": COLUMNS, "bins": 64} | changed
    drawn, said = (ColumnHistograms(budget=GaussianMu(one), **parameters) for one in (mu, stated or mu))
    exact = drawn.contribution(drawn.initial(setting), ArrayRows(rows, labels.astype(np.int64)), setting)
    random, sigma = np.random.default_rng(seed), drawn.distribution(setting).sigma
    for _ in range(runs):
        noise = np.rint(sigma * random.standard_normal(exact.size)).astype(np.int64)
        yield ColumnCounts.of_release(drawn.result(exact + noise, setting).values, said, setting)


@cache
def truth(bins: int = 64) -> dict[str, Floats]:
    """Return what margins are of, counted from the rows."""
    rows, labels = table()
    cells = [
        rows[rows[:, column["missing"]] < 0.5, column["at"]] if "missing" in column else rows[:, column["at"]]
        for column in COLUMNS[:NUMBERS]
    ]
    # The value of rank ⌈p N⌉; of no cells any.
    of_ranks = [
        [np.sort(one)[math.ceil(p * len(one)) - 1] if len(one) else 0.5 for p in (0.25, 0.5, 0.75)] for one in cells
    ]
    return {
        "bars": np.array([np.histogram(one, bins, (0, 1))[0] for one in cells], dtype=np.float64),
        "quartiles": np.array(of_ranks),
        "means": np.array([one.mean() if len(one) else 0.5 for one in cells]),
        "missing": np.array([1 - len(one) / ROWS for one in cells]),
        "category": np.append(rows[:, 10:14].sum(axis=0), ROWS - rows[:, 10:14].sum()),
        "classes": np.array([1 - labels.mean(), labels.mean()]),
    }


def said(counts: ColumnCounts) -> dict[str, Margins]:
    return {
        "bars": column_margins.bars(counts),
        "quartiles": column_margins.quartiles(counts),
        "means": column_margins.means(counts),
        "missing": column_margins.missing_shares(counts),
        "category": column_margins.category_counts(counts)[0],
        "classes": column_margins.class_shares(counts),
    }


def least(runs: int) -> int:
    """Return in how many of so many runs a margin of 95 % holds at least: a false alarm of 1e-9."""
    return int(binom.ppf(1e-9, runs, 0.95))


def coverage(runs: int, mu: float, **changed: Any) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return in how many runs each margin held, and in how many it was measured."""
    held: dict[str, Any] = {}
    measured: dict[str, Any] = {}
    for counts in noisy(runs, mu, **changed):
        for name, margins in said(counts).items():
            held[name] = held.get(name, 0) + margins.holds(truth(counts.bins)[name])
            measured[name] = measured.get(name, 0) + margins.measured
    return held, measured


# q of the four is 0.03, 0.09, 0.15 and 0.6: known, hardly known, some of it known, unknown.
CASES = [
    (mu, running, mean_weight)
    for mu in (0.6, 0.2, 0.12, 0.03)
    for running, mean_weight in ((True, 0.0), (True, 2.0), (False, 1.0))
]


def _check(runs: int, mu: float, running: bool, mean_weight: float) -> None:
    held, _ = coverage(runs, mu, running=running, mean_weight=mean_weight)
    for name, times in held.items():
        assert times.min() >= least(runs), (name, times)


# By day every other one: each μ, and each kind of sums under two of them.
@pytest.mark.parametrize(("mu", "running", "mean_weight"), CASES[::2])
def test_each_margin_holds(mu: float, running: bool, mean_weight: float) -> None:
    _check(250, mu, running, mean_weight)


@pytest.mark.nightly
@pytest.mark.parametrize(("mu", "running", "mean_weight"), CASES)
def test_each_margin_holds_in_904_of_1000_runs(mu: float, running: bool, mean_weight: float) -> None:
    assert least(1000) == 904
    _check(1000, mu, running, mean_weight)


def narrowest(runs: int = 60) -> float:
    """Return the least width of a margin of a count or share that is measured, in the half margin that noise makes."""
    least_of_all = math.inf
    for counts in noisy(runs, 0.12):
        found, half = said(counts), 1.96 * counts.deviation
        # Of a cell of many the noise of the ratio is that of the cell, to first order.
        by_noise = {
            "bars": np.broadcast_to(1.96 * counts.count_deviations(), found["bars"].values.shape),
            "category": np.full(5, half),
            "classes": np.full(2, 0.5 * half / ROWS),
        }
        for name, noise in by_noise.items():
            width = (found[name].high - found[name].low) / noise
            least_of_all = min(least_of_all, float(width[found[name].measured].min(initial=math.inf)))
    return least_of_all


def test_no_margin_is_narrower_than_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.000000 [0, 0] was said of 15.9 people: a count far below 0 was cut, and its margin with it.

    Exact: the same in each of 60 releases. The mutant is the margin as it was, cut at both ends.
    """
    assert narrowest() >= 1.0

    def cut(values: Floats, deviation: Floats | float, rows: int) -> Margins:
        half = 1.96 * np.broadcast_to(np.asarray(deviation, dtype=np.float64), values.shape)
        low, high = np.clip(values - half, 0.0, rows), np.clip(values + half, 0.0, rows)
        return Margins(np.clip(values, 0.0, rows), low, high, 2.0 * half <= column_margins.WIDEST * rows)

    monkeypatch.setattr(column_margins, "of_counts", cut)
    assert narrowest() < 0.5


def means_of_exponentials(runs: int, *, width: bool = True) -> int:
    """Return in how many runs the margin of the mean of 100 ** cell held, of the first column's even cells."""
    exact, held, edges = float(np.mean(100.0 ** table()[0][:, 0])), 0, 100.0 ** np.linspace(0.0, 1.0, 9)
    if not width:
        # A mutant: each cell as in the middle of its bin.
        middle = (edges[:-1] + edges[1:]) / 2
        edges = np.append(middle, middle[-1] * (1 + 1e-9))
    for counts in noisy(runs, 2.0, bins=8):
        found = column_margins.means_on(counts, 0, edges)
        held += bool(found.low[0] <= exact <= found.high[0])
    return held


def test_a_mean_on_another_scale_has_a_margin_with_the_width_of_its_bins() -> None:
    """200 runs; the same noise with cells in the middle of their bins is told apart."""
    assert means_of_exponentials(200) >= least(200)
    assert means_of_exponentials(200, width=False) < least(200)


def test_q_of_the_cases_is_below_and_above_a_tenth() -> None:
    found = [rank_error(ROWS, 10, mu, 64) for mu in (0.6, 0.2, 0.12, 0.03)]
    assert found == pytest.approx([0.03, 0.09, 0.15, 0.59], abs=0.01)


def test_margins_of_half_the_noise_are_told_apart() -> None:
    """A mutant: the noise is twice what is stated; 250 runs tell it in each kind of margin."""
    held, _ = coverage(250, 0.2, stated=0.4, running=True, mean_weight=1.0)
    assert set(held) == {"bars", "quartiles", "means", "missing", "category", "classes"}
    for name, times in held.items():
        assert times.min() < least(250), name


def test_what_is_measured_at_a_fair_budget_and_what_is_not_without_one() -> None:
    """A large budget measures everything that there is; a tiny one says so of everything that noise decides."""
    _, much = coverage(40, 5.0, mean_weight=1.0)
    for name, times in much.items():
        # Nothing is known of a column that is always missing, and little of one that is there twelve times.
        there = times[[0, 1, 2, 3, 6]] if name in ("quartiles", "means") else times
        if name == "quartiles":
            # Of two values with half of the rows each the noise decides which one is the median.
            assert there[2, 1] < 40
            there[2, 1] = 40
        assert there.min() == 40, name
    assert much["quartiles"][4].max() == much["means"][4] == 0
    _, little = coverage(40, 0.005, mean_weight=1.0)
    assert little["bars"].max() == little["category"].max() == 0
    assert little["means"].max() <= 4
    assert little["quartiles"].max() <= 4
    assert little["classes"].max() <= 4
    assert little["missing"][[0, 1, 2, 6]].min() == 40, "where nothing can be missing that is known"


def test_quartiles_in_end_bins_are_open_to_that_side() -> None:
    (counts,) = noisy(1, 50.0)
    found = column_margins.quartiles(counts)
    assert found.low[1].tolist() == [-np.inf] * 3
    assert found.high[1].tolist() == [1 / 64] * 3
    assert found.low[6].tolist() == [63 / 64] * 3
    assert found.high[6].tolist() == [np.inf] * 3
    assert np.isfinite(found.low[0]).all()
    assert np.all((found.low <= found.values) & (found.values <= found.high))
    (real,) = noisy(1, 50.0, bins=256)
    assert column_margins.quartiles(real, [0.5]).values[0] == pytest.approx(truth()["quartiles"][0, 1], abs=0.02)
    with pytest.raises(ParameterError, match=r"^ranks.*\[1\.0\]"):
        column_margins.quartiles(counts, [1.0])


def test_bars_are_as_many_as_can_be_told_from_noise() -> None:
    shown = [column_margins.most_bars(next(noisy(1, mu))) for mu in (50.0, 2.0, 0.3, 0.1, 0.01)]
    assert shown[0] == 32
    assert shown[-1] == 0
    assert shown == sorted(shown, reverse=True)
    # From public numbers: the same whatever was drawn.
    assert len({column_margins.most_bars(counts) for counts in noisy(20, 0.3)}) == 1


def test_nothing_depends_on_more_than_noisy_counts() -> None:
    """Two releases of equal noisy counts say the same, to the bit."""
    (counts,) = noisy(1, 0.3)
    again = replace(counts, sums=counts.sums.copy())
    for name, margins in said(counts).items():
        assert np.array_equal(margins.low, said(again)[name].low)


@pytest.mark.parametrize("runs", [250, pytest.param(1000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("mu", [0.6, 0.2])
def test_differences_of_two_versions_hold(runs: int, mu: float) -> None:
    """Of the same rows twice, in bins of different number and with other noise: every exact difference is 0."""
    held: dict[str, Any] = {}
    left, measured = 0, 0
    pairs = zip(noisy(runs, mu, mean_weight=1.0), noisy(runs, 2 * mu, seed=9, bins=32, running=False), strict=True)
    for pair, other in pairs:
        of_shares = column_margins.share_differences(pair, other)
        assert of_shares.values.shape == (NUMBERS, 32)
        for name, margins in {
            "shares": of_shares,
            "means": column_margins.difference(column_margins.means(pair), column_margins.means(other)),
            "quartiles": column_margins.difference(column_margins.quartiles(pair), column_margins.quartiles(other)),
        }.items():
            held[name] = held.get(name, 0) + margins.holds(np.zeros(margins.values.shape))
        left += int((~of_shares.holds(np.zeros((NUMBERS, 32)))).sum())
        measured += int(of_shares.measured.sum())
    for name, times in held.items():
        assert times.min() >= least(runs), (name, times)
    # About one in twenty leaves its margin where nothing differs, of those that are measured.
    assert left == pytest.approx(column_margins.by_chance(measured), rel=0.2)


def test_versions_of_other_columns_are_refused() -> None:
    (one,) = noisy(1, 1.0)
    other = replace(one, sums=one.sums[:2])
    with pytest.raises(ParameterError, match=r"^one version has 7.*2"):
        column_margins.share_differences(one, other)


def test_ratios_are_fiellers() -> None:
    """The ends solve (p - r q)^2 = 1.96^2 times its variance."""
    found = column_margins.ratios(
        np.array([30.0]), np.array([100.0]), np.array([16.0]), np.array([25.0]), np.array([5.0]), (0.0, 1.0)
    )
    for end in (found.low[0], found.high[0]):
        assert (30 - end * 100) ** 2 == pytest.approx(1.96**2 * (16 - 2 * end * 5 + end**2 * 25))
    assert found.low[0] < 0.3 < found.high[0]


def test_margins_of_shares_are_those_of_their_gradients() -> None:
    """By the covariance of all numbers that a share is made of, differentiated numerically; no sign is lost."""
    (counts, other) = noisy(2, 2.0, bins=4)
    wider = 1.0 + 0.5 / (1.96 * counts.deviation)
    found = column_margins.share_differences(counts, other)

    def gradient(of: Any, at: Floats) -> Floats:
        return np.array([(of(at + step) - of(at - step)) / 2e-4 for step in 1e-4 * np.eye(len(at))])

    for line in (0, 1, 3):
        for place in range(4):
            squares = 0.0
            for each in (counts, other):
                slope = gradient(
                    lambda sums, place=place: np.diff(sums, prepend=0.0)[place] / sums[-1], each.sums[line]
                )
                squares += wider**2 * float(slope @ each.covariance @ slope)
            half = found.high[line, place] - found.values[line, place]
            assert half == pytest.approx(1.96 * math.sqrt(squares), rel=1e-4)
    # A share of missing cells to first order: Fieller's ends lie about as far out where there is little noise.
    (quiet,) = noisy(1, 100.0, bins=4)
    wider = 1.0 + 0.5 / (1.96 * quiet.deviation)
    both = np.diag([quiet.deviation**2, float(quiet.covariance[-1, -1])])
    for line in (3, 5):
        at = np.array([quiet.missing[line], quiet.totals[line]])
        slope = gradient(lambda numbers: numbers[0] / numbers.sum(), at)
        missing = column_margins.missing_shares(quiet)
        half = (missing.high[line] - missing.low[line]) / 2.0
        assert half == pytest.approx(1.96 * wider * math.sqrt(float(slope @ both @ slope)), rel=2e-3)


def test_margins_of_means_are_wider_by_what_rounding_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a margin is a multiple of the deviations that rounding widens, but for the width of a bin."""
    counts = next(noisy(1, 2.0))
    halves = []
    for wider in (1.0, 2.0, 3.0):
        monkeypatch.setattr(column_margins, "_wider", lambda counts, wider=wider: wider)
        found = column_margins.means(counts)
        halves.append(float(found.high[0] - found.low[0]))
    assert halves[1] > halves[0]
    assert halves[2] - halves[1] == pytest.approx(halves[1] - halves[0], rel=0.02)


def test_bars_that_end_where_whole_numbers_do_hold() -> None:
    """250 runs of seven bars of unequal numbers of bins; half the noise is told apart."""
    last = [4, 20, 21, 30, 47, 50, 63]
    cells = np.minimum((table()[0][:, 0] * 64).astype(int), 63)
    exact = np.histogram(cells, [0, *(one + 1 for one in last)])[0]

    def held(stated: float) -> int:
        found = [column_margins.bars_up_to(one, 0, last).holds(exact) for one in noisy(250, 0.2, stated)]
        return int(np.sum(found, axis=0).min())

    assert held(0.2) >= least(250)
    assert held(0.4) < least(250)
