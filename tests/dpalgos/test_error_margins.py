"""Margins of error quantiles, MAE, RMSE and R² from released errors: coverage, width, and the mutants that break them.

Released vectors are drawn without training: from a population of labels and predictions held-out rows are drawn, and to
their exact sums the noise of the release is added. A margin must hold the population's number in at least the share of
runs that is 0.95 less six standard deviations of that share (false alarm below 10⁻⁹ each where coverage is 0.95), over
all runs, and over those in which the number is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dpalgos import error_margins
from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.error_margins import (
    RANKS,
    ErrorCounts,
    determination_limits,
    error_quantile,
    mean_limits,
    metrics_of_error_counts,
    metrics_of_error_sums,
    quantile_limits,
)
from dpalgos.evaluators.error_distribution import ErrorDistribution, parts_for
from dpalgos.guarantees import GaussianMu, Neighbours, Setting
from dpalgos.rows import Floats
from tests.support.coverage import Held, least

PEOPLE = 4_000
_AT_A_TIME = 1_000
_REPLACE_ONE, _REPLACE_SPECIAL = Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL
Pair = tuple[Floats, Floats, tuple[float, float]]


def populations() -> dict[str, Pair]:
    """Return labels, predictions and a declared range by name."""
    random = np.random.default_rng(1)
    one, other = random.standard_normal((2, PEOPLE))
    positive = {spread: np.exp(spread * random.standard_normal(PEOPLE)) for spread in (1.0, 1.5, 2.0)}
    spikes = np.where(random.random(PEOPLE) < 0.7, 0.0, random.exponential(1.0, PEOPLE))
    rare = np.where(random.random(PEOPLE) < 0.004, one + 1.0, 5.0 + one + 0.01 * other)
    heavy = 10.0 + random.standard_t(2, PEOPLE)
    return {
        "normal": (5.0 + one, 5.0 + 0.8 * one + 0.3 * other, (0.0, 10.0)),
        "lognormal": (positive[1.0], positive[1.0] * np.exp(0.3 * other), (0.0, 50.0)),
        "heavier": (positive[2.0], positive[2.0] * np.exp(0.5 * other), (0.0, 2000.0)),
        "mean": (positive[2.0], np.full(PEOPLE, positive[2.0].mean()), (0.0, 2000.0)),
        "median": (positive[1.5], np.ones(PEOPLE), (0.0, 300.0)),
        "zero": (positive[1.0], np.zeros(PEOPLE), (0.0, 50.0)),
        "spikes": (spikes, np.maximum(0.7 * spikes + 0.1 * other, 0.0), (0.0, 12.0)),
        "rare": (5.0 + one, rare, (0.0, 10.0)),
        "constant": (5.0 + one, np.full(PEOPLE, 5.0), (0.0, 10.0)),
        "perfect": (5.0 + one, 5.0 + one, (0.0, 10.0)),
        "tails": (heavy, heavy + 0.5 * random.standard_t(2, PEOPLE), (0.0, 20.0)),
    }


POPULATIONS = populations()
CONSTANTS = ("mean", "median", "zero", "constant")


@dataclass(frozen=True)
class World:
    """A population's numbers, and what it adds to a release."""

    algorithm: ErrorDistribution
    setting: Setting
    moments: Floats
    lines: Floats
    truth: dict[str, float]


def world(name: str, rows: int, epsilon: float, **given: Any) -> World:
    """Return a population as it is held out: ``wider`` times its range, of people with so many rows ``each``.

    Unless it is ``counted``, nothing is known of the label but its range.
    """
    wider, each, relation = given.get("wider", 1.0), given.get("each", 1), given.get("relation", _REPLACE_ONE)
    labels, predictions, (low, high) = POPULATIONS[name]
    more = (wider - 1.0) * (high - low)
    low, high = low - 0.3 * more, high + 0.7 * more
    mu = mu_from_epsilon_delta(epsilon, 1e-6)
    algorithm = ErrorDistribution(
        budget=GaussianMu(mu), label_range=(low, high), parts=given.get("parts", parts_for(rows, mu))
    )
    labels, predictions = np.clip(labels, low, high), np.clip(predictions, low, high)
    bound = float(np.subtract(*np.quantile(labels, [0.95, 0.05])))
    step = (high - low) / 1024
    if given.get("counted", True) and bound >= 8 * step:
        middles = low + step * (np.arange(1024) + 0.5)
        centre, share = best(labels, bound, middles)
        algorithm = replace(algorithm, bound=bound, centre=centre, share=share)
    bound = algorithm.largest_error
    errors = labels - predictions
    setting = Setting(sizes=(rows,), dimension=1, classes=1, neighbours=relation, rows_per_person=each)
    a, v = np.minimum(np.abs(errors) / bound, 1.0), np.clip((labels - algorithm.middle) / bound, -1.0, 1.0)
    h, g = a**2, v**2
    moments = np.stack([h, a, g, h * h, g * g, h * g, np.where(np.abs(v) < 1, v, 0.0)], axis=1)
    place = np.searchsorted(-algorithm.edges(), -np.abs(errors) / (high - low)) + algorithm.bins * (errors < 0)
    lines = np.zeros((PEOPLE, 2 * algorithm.bins))
    lines[np.arange(PEOPLE), place] = 1.0
    weights = np.full(PEOPLE, 1.0 / PEOPLE)
    if each > 1:
        theirs = np.random.default_rng(3).integers(0, PEOPLE, (PEOPLE, each))
        moments, lines = moments[theirs].mean(axis=1), lines[theirs].mean(axis=1)
        weights = np.bincount(theirs.ravel(), minlength=PEOPLE) / theirs.size
    near = algorithm.middle + bound * np.linspace(-1.0, 1.0, 801)
    low, high = (float(np.quantile(labels, rank)) for rank in (0.005, 0.995))
    anywhere = np.concatenate([near, np.linspace(low, high, 801)])
    _, least = best(labels, bound, anywhere, weights)
    ranks = np.cumsum(weights[np.argsort(errors)])
    truth = {
        "mae": bound * float(weights @ a),
        "rmse": bound * math.sqrt(float(weights @ h)),
        "r2": 1.0 - float(weights @ h) / least,
        **{
            f"error_q{round(100 * rank):02d}": float(np.sort(errors)[np.searchsorted(ranks, rank - 1e-12)])
            for rank in (0.05, 0.5, 0.95)
        },
    }
    return World(algorithm, setting, moments, lines, truth)


def best(labels: Floats, bound: float, places: Floats, weights: Floats | None = None) -> tuple[float, float]:
    """Return the best constant of these places with errors counted up to a bound, and its mean squared one over B²."""
    losses = [
        float(np.average(np.minimum((labels - place) ** 2, bound**2), weights=weights)) / bound**2 for place in places
    ]
    return float(places[int(np.argmin(losses))]), min(losses)


def releases(of: World, runs: int, seed: int, *, quantiles: bool = False) -> list[ErrorCounts]:
    """Return what is released of rows that are drawn anew each time, with new noise; its lines only where asked for."""
    random = np.random.default_rng(seed)
    entry = of.algorithm.deviation(of.setting)
    deviations = entry * of.algorithm.units(of.setting) / of.algorithm.weights(of.setting)
    covariance = of.algorithm.sums().covariance()
    root = entry * np.linalg.cholesky(covariance).T
    low, high = of.algorithm.label_range
    counts = ErrorCounts(
        label_range=(low, high),
        rows=of.setting.rows,
        edges=(high - low) * of.algorithm.edges(),
        sums=np.zeros((2, of.algorithm.bins)),
        covariance=entry**2 * covariance,
        total=0.0,
        total_deviation=float(deviations[0]),
        bound=of.algorithm.largest_error,
        centre=of.algorithm.middle,
        share=of.algorithm.share or 0.0,
        moments=np.zeros(7),
        deviations=deviations[1:],
    )
    found = []
    for start in range(0, runs, _AT_A_TIME):
        several = min(_AT_A_TIME, runs - start)
        drawn = random.multinomial(of.setting.rows, np.full(PEOPLE, 1.0 / PEOPLE), size=several).astype(np.float64)
        totals = drawn.sum(axis=1) + deviations[0] * random.standard_normal(several)
        moments = drawn @ of.moments + deviations[1:] * random.standard_normal((several, 7))
        sums = [counts.sums] * several
        if quantiles:
            lines = np.cumsum((drawn @ of.lines).reshape(several, 2, -1), axis=2)
            sums = list(lines + random.standard_normal(lines.shape) @ root)
        found += [
            replace(counts, sums=lines, total=float(total), moments=each)
            for lines, total, each in zip(sums, totals, moments, strict=True)
        ]
    return found


def examined(of: World, runs: int, seed: int) -> dict[str, Held]:
    """Return of each metric how often its margin held; quantiles themselves are estimated in a tenth of the runs."""
    found = releases(of, runs, seed, quantiles=True)
    known = [metrics_of_error_sums(one) for one in found]
    held = {}
    for name in ("mae", "rmse", "r2"):
        shown = np.array([one.is_known(name) for one in known])
        limits = np.array([one.limits(name) for one in known])
        held[name] = Held.of(of.truth[name], limits, shown, np.array([one[name] for one in known])[shown])
    totals, sums = np.array([one.total for one in found]), np.stack([one.sums for one in found])
    noise = (np.diagonal(found[0].covariance), found[0].total_deviation)
    for rank in RANKS:
        name = f"error_q{round(100 * rank):02d}"
        limits = np.stack(quantile_limits(totals, sums, found[0].edges, noise, rank), axis=1)
        shown = np.isfinite(limits).all(axis=1)
        values = [
            error_quantile(one, rank)[0] for one, is_shown in zip(found[: runs // 10], shown, strict=False) if is_shown
        ]
        held[name] = Held.of(of.truth[name], limits, shown, np.array(values))
    return held


DAY = [
    ("normal", 1600, 1.0, {}),
    ("heavier", 300, 1.0, {"wider": 10.0}),
    ("mean", 5000, 1.0, {}),
    ("rare", 300, 30.0, {"relation": _REPLACE_SPECIAL}),
    ("spikes", 2000, 0.3, {"each": 5}),
    ("tails", 100_000, 1.0, {"wider": 100.0}),
]


@pytest.mark.parametrize(("name", "rows", "epsilon", "given"), DAY)
def test_margins_hold_what_they_say(name: str, rows: int, epsilon: float, given: dict[str, Any]) -> None:
    """300 runs each; the night's test has 10,000, and all of the conditions."""
    for metric, found in examined(world(name, rows, epsilon, **given), 300, seed=2).items():
        assert found.enough, (metric, found)


NIGHT: list[tuple[str, int, float, dict[str, Any]]] = [
    # About where R² begins to be shown.
    *((name, 11_000, 1.0, {"counted": False}) for name in ("normal", "constant", "tails", "spikes")),
    *(
        (name, rows, epsilon, {"wider": wider, "each": each, "relation": relation})
        for name in POPULATIONS
        for rows, epsilon, wider, each, relation in (
            (300, 1.0, 1.0, 1, _REPLACE_ONE),
            (300, 10.0, 10.0, 1, _REPLACE_SPECIAL),
            (1600, 0.1, 1.0, 1, _REPLACE_ONE),
            (1600, 1.0, 10.0, 5, _REPLACE_ONE),
            (5000, 1.0, 100.0, 1, _REPLACE_SPECIAL),
            (100_000, 1.0, 1.0, 1, _REPLACE_ONE),
        )
    ),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "rows", "epsilon", "given"), NIGHT)
def test_margins_hold_in_ten_thousand_runs(name: str, rows: int, epsilon: float, given: dict[str, Any]) -> None:
    """At least 9,369 of 10,000, over all runs and over those in which the number is shown."""
    for metric, found in examined(world(name, rows, epsilon, **given), 10_000, seed=4).items():
        assert found.enough, (metric, found)


@pytest.mark.nightly
@pytest.mark.parametrize("name", POPULATIONS)
def test_margins_are_not_wider_than_they_must_be(name: str) -> None:
    """The median margin is at most 1.5 times the range that holds 95 % of the estimates, at ε = 1.

    Of R² above 0.7 it is at most 700 over the number of rows. Quantiles have the width of bins, too.
    """
    for rows in (1_300, 5_000, 100_000):
        of = world(name, rows, 1.0)
        found = examined(of, 2_000, seed=6)
        for metric in ("mae", "rmse", "r2"):
            assert found[metric].width <= 1.5 * found[metric].spread, (rows, metric, found[metric])
        if of.truth["r2"] > 0.7 and rows <= 5_000:
            assert found["r2"].width <= 700.0 / rows, (rows, found["r2"])


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.parametrize(("rows", "epsilon"), [(5000, 1.0), (1600, 10.0)])
@pytest.mark.parametrize("runs", [200, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_a_constant_has_no_r2_above_0_by_more_than_the_margin(name: str, rows: int, epsilon: float, runs: int) -> None:
    """Its lower limit is above 0 in no more than 2.5 % and six standard deviations of the runs."""
    found = [metrics_of_error_sums(one) for one in releases(world(name, rows, epsilon), runs, seed=8)]
    wrong = sum(one["r2_low"] > 0.0 for one in found)
    assert wrong <= runs * 0.025 + 6.0 * math.sqrt(runs * 0.025)


# ── mutants ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def missed(limits: Callable[[ErrorCounts], tuple[float, float]], of: World, metric: str, runs: int = 300) -> int:
    """In how many of the runs limits do not hold the number of the population."""
    ends = [limits(one) for one in releases(of, runs, seed=9)]
    return sum(not low <= of.truth[metric] <= high for low, high in ends)


def _of_public_rows(counts: ErrorCounts) -> tuple[float, float]:
    """The mutant that divides by the public number of rows, null records among them."""
    numbers = (np.array(float(counts.rows)), np.array(counts.moments[1]), np.array(counts.moments[0]))
    _, low, high = mean_limits(*numbers, (0.0, float(counts.deviations[1]), float(counts.deviations[0])))
    return counts.bound * float(low), counts.bound * float(high)


def test_r2_has_the_noise_of_a_centre_that_is_off() -> None:
    """The deviation of the label's sum from the centre alone is noisy, with 100 rows; in 4,000 runs both limits hold.

    All errors are alike, so that nothing else is uncertain.
    """
    rows, off = 10_000.0, 3_500.0
    moments = np.tile([400.0, 0.0, 2_000.0, 16.0, 400.0, 80.0, off], (4_000, 1))
    moments[:, -1] += 100.0 * np.random.default_rng(5).standard_normal(len(moments))
    deviations = np.array([0.0] * 6 + [100.0])
    _, low, high = determination_limits(np.full(len(moments), rows), moments, deviations, 0.0)
    exact = 1.0 - 400.0 / (2_000.0 - off**2 / rows)
    assert ((low <= exact) & (exact <= high)).sum() >= least(len(moments))


def test_quantiles_of_errors_with_the_other_sign_have_the_mirrored_margins() -> None:
    """With a total whose noise is the larger part of the margin."""
    edges, rows = np.linspace(5.0, 0.0, 51), 10_000.0
    above, below = rows * norm.sf(edges, loc=0.1), rows * norm.cdf(-edges, loc=0.1)
    noise = np.ones(len(edges)), 1_000.0
    for rank in (0.05, 0.95):
        low, high = quantile_limits(np.array(rows), np.stack([above, below]), edges, noise, rank)
        mirrored = quantile_limits(np.array(rows), np.stack([below, above]), edges, noise, 1.0 - rank)
        assert (low, high) == (-mirrored[1], -mirrored[0])
        assert low < norm.ppf(rank, loc=0.1) < high


def test_division_by_the_public_number_of_rows_is_caught() -> None:
    """A quarter of the held-out rows are null records, which add nothing."""
    of = world("normal", 4000, 1.0)
    planned = replace(of, setting=replace(of.setting, sizes=(3000,)))

    def with_null_records(counts: ErrorCounts) -> ErrorCounts:
        return replace(counts, rows=4000)

    def ours(counts: ErrorCounts) -> tuple[float, float]:
        low, high = metrics_of_error_counts(with_null_records(counts)).limits("mae") or (0.0, 0.0)
        return low, high

    assert missed(ours, planned, "mae") <= 300 - least(300)
    assert missed(lambda counts: _of_public_rows(with_null_records(counts)), planned, "mae") > 250


def _numerator_alone(counts: ErrorCounts, of: World) -> tuple[float, float]:
    """The mutant that counts errors up to B in the numerator, and the label's deviations in full."""
    labels, _, _ = POPULATIONS["mean"]
    whole = float(np.var(np.clip(labels, of.algorithm.label_range[0], of.algorithm.label_range[1])))
    low, high = metrics_of_error_counts(counts).limits("rmse") or (0.0, 0.0)
    return 1.0 - high**2 / whole, 1.0 - low**2 / whole


def test_a_bound_in_the_numerator_alone_is_caught() -> None:
    """Predicting the mean of a lognormal label would have an R² far above 0."""
    of = world("mean", 5000, 1.0)
    assert missed(lambda counts: _numerator_alone(counts, of), of, "r2") > 250
    found = [_numerator_alone(one, of) for one in releases(of, 20, seed=3)]
    assert min(low for low, _ in found) > 0.3


def test_b_does_not_depend_on_the_rows_that_are_measured() -> None:
    """The mutant that takes B from the held-out rows says another B of other rows; ours says the same of any."""
    algorithm = ErrorDistribution(budget=GaussianMu(0.5), label_range=(0.0, 10.0), bound=3.0, centre=4.0, share=0.1)
    setting = Setting(sizes=(50,), dimension=1, classes=1)
    state = np.zeros(algorithm.sum_shape(setting), dtype=np.int64)
    said = [
        ErrorCounts.of_release(algorithm.result(one, setting).values, algorithm, setting)
        for one in (state, state + 10_000)
    ]
    assert {(one.bound, one.centre, one.share) for one in said} == {(3.0, 4.0, 0.1)}


def test_r2_that_its_own_noise_has_decided_to_show_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant decides by the numbers that it makes margins of: R² is shown where noise has made the variance large.

    Shown is about one of 50 of 2,000 runs.
    """
    of = world("constant", 6_500, 1.0, counted=False)
    found = releases(of, 2_000, seed=6)

    def enough() -> bool:
        each = [one for one in map(metrics_of_error_sums, found) if one.is_known("r2")]
        return sum(one["r2_low"] <= of.truth["r2"] <= one["r2_high"] for one in each) >= least(len(each))

    assert enough()
    monkeypatch.setattr(error_margins, "_SPLIT", ())
    assert not enough()
