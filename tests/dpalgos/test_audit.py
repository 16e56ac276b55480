"""Lower bounds on epsilon from experiments: right where the truth is known, and small enough to be believed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpalgos.audit.bounds import Event, bound_of_event, gaussian_lower_bound, learn_event
from dpalgos.audit.experiment import (
    GAUSSIAN_RATIO,
    RATIO,
    Experiment,
    Verdict,
    best_pair,
    examine,
    trade_off_bound,
    verdict_of,
)
from dpalgos.audit.ratios import run_watched, score_of_sums
from dpalgos.guarantees import GaussianMu, Setting, Trust
from dpalgos.keystream import KeyedNoise
from dpalgos.trainers.gradient_descent import NoisyGradientDescent


def laplace(epsilon: float, random: np.random.Generator) -> Experiment:
    """Randomised value 1 against 0, exactly epsilon-DP."""

    def runs(world: bool, first: int, count: int) -> dict[str, np.ndarray]:
        return {"value": float(world) + random.laplace(scale=1 / epsilon, size=(count, 1))}

    return Experiment("one against zero", runs)


def test_the_bound_of_a_laplace_mechanism_is_near_its_epsilon_and_below(random: np.random.Generator) -> None:
    """False alarms have probability 1e-9; half of what is true must be seen."""
    found = examine(laplace(2.0, random), trials=20_000, delta=0.0, confidence=1 - 1e-9)
    assert 1.0 < found.lower_bound <= 2.0


def test_half_the_noise_is_caught(random: np.random.Generator) -> None:
    found = examine(laplace(4.0, random), trials=20_000, delta=0.0, confidence=1 - 1e-9)
    assert found.lower_bound > 2.0
    assert verdict_of(found.lower_bound, None, 2.0) is Verdict.VIOLATES


def test_an_output_without_noise_is_seen_by_its_equality(random: np.random.Generator) -> None:
    """Noise in one observable hides nothing where another one is exact, and rounding errors do not hide that either."""

    def runs(world: bool, first: int, count: int) -> dict[str, np.ndarray]:
        exact = np.full((count, 2), 0.3 if world else 0.31) * (1 + 1e-14 * random.standard_normal((count, 2)))
        return {"noisy": random.standard_normal((count, 3)), "exact": exact}

    found = examine(Experiment("exact", runs), trials=400, delta=1e-5, confidence=0.99)
    assert "exact" in found.event
    assert found.lower_bound > 3.0


def test_an_event_learnt_on_noise_shows_nothing_elsewhere(random: np.random.Generator) -> None:
    """Many events are tried on one half; counted on the other, none of 20 experiments without effect is significant."""
    for _ in range(20):
        halves = [{"noise": random.standard_normal((100, 5))} for _ in range(4)]
        event = learn_event(halves[0], halves[1], 0.0, 0.9)
        assert bound_of_event(event, halves[2], halves[3], 0.0, 1 - 1e-9) == 0.0


def test_the_trade_off_is_counted_at_thresholds_of_other_runs(random: np.random.Generator) -> None:
    """Were the thresholds quantiles of the counted runs, they would lie among them wherever those are."""

    def runs(world: bool, first: int, count: int) -> dict[str, np.ndarray]:
        counted = first + np.arange(count) >= 10**9 + 500
        return {"value": (world + random.standard_normal(count) + 1000.0 * counted)[:, None]}

    # All runs that are counted, batches of 500, lie beyond all that thresholds are made of.
    found = examine(Experiment("moved", runs), trials=1000, delta=0.0, confidence=0.99)
    assert len(found.curve) == 1


@pytest.mark.parametrize("rarer", [False, True])
def test_the_trade_off_holds_at_all_its_points_together(rarer: bool, random: np.random.Generator) -> None:
    """Of two normal laws one apart: at 50 % no more than half of 200 experiments err, at five standard errors.

    A mutant that spends the whole error on each of the 50 bounds errs in nearly all.
    """
    event = Event("value", lambda outputs: outputs["value"][:, 0] * (-1.0 if rarer else 1.0), 0.0, rarer)

    def errs(confidence: float) -> bool:
        tried, left, right = random.standard_normal((3, 1000, 1))
        curve = trade_off_bound(
            event, event.score({"value": tried}), {"value": 1.0 + left}, {"value": right}, confidence=confidence
        )
        return any(misses < norm.cdf(norm.isf(alarms) - 1.0) for alarms, misses in curve)

    assert np.mean([errs(0.5) for _ in range(200)]) <= 0.5 + 5 * math.sqrt(0.25 / 200)
    # 1 − 25 / 1 over 50 bounds is a half for each.
    assert np.mean([errs(-24.0) for _ in range(50)]) > 0.9


def test_one_observable_that_says_all_is_found_among_many(random: np.random.Generator) -> None:
    def experiment(shift: float) -> Experiment:
        def runs(world: bool, first: int, count: int) -> dict[str, np.ndarray]:
            return {"a": random.standard_normal((count, 2)), "b": shift * world + random.standard_normal((count, 1))}

        return Experiment(f"shift {shift}", runs)

    assert best_pair([experiment(0.0), experiment(3.0), experiment(0.5)], trials=60, delta=0.0).pair == "shift 3.0"


def test_of_pairs_that_are_hard_to_tell_apart_the_best_is_found(random: np.random.Generator) -> None:
    """By the spread of the ratio; by the distance of its means, the mutant, the pair that shows less is often taken.

    The spread of 240 ratios is off by 4.6 %, so a pair at 0.13 passes for one at 0.27 less than once in 10⁹ choices.
    """

    def experiment(name: str, mu: float) -> Experiment:
        def runs(world: bool, first: int, count: int) -> dict[str, np.ndarray]:
            return {name: mu * random.standard_normal((count, 1)) + (world - 0.5) * mu**2}

        return Experiment(f"mu {mu}", runs)

    def chosen(name: str) -> list[str]:
        pairs = [experiment(name, mu) for mu in (0.13, 0.27, 0.13, 0.13)]
        return [best_pair(pairs, trials=120, delta=1e-5).pair for _ in range(10)]

    assert set(chosen(GAUSSIAN_RATIO)) == {"mu 0.27"}
    assert "mu 0.13" in chosen(RATIO)


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.nightly)])
def test_the_gaussian_fit_is_right_as_often_as_it_says(count: int, random: np.random.Generator) -> None:
    """At 90 %, the bound exceeds the truth in a tenth of experiments: 400 of them, to within five standard errors."""
    truth, above = 0.5, 0
    for _ in range(400):
        left, right = truth + random.standard_normal(count), random.standard_normal(count)
        above += gaussian_lower_bound(left, right, 0.9) > truth
    assert abs(above / 400 - 0.1) < 5 * math.sqrt(0.09 / 400)


@pytest.mark.parametrize("trials", [300, pytest.param(600, marks=pytest.mark.nightly)])
def test_the_sums_of_a_descent_tell_neighbours_apart_by_its_budget(trials: int) -> None:
    """The log-likelihood ratio of all noisy gradients has mean ±mu²/2 on the worst pair: the whole budget, no more."""
    mu = 1.5
    algorithm = NoisyGradientDescent(budget=GaussianMu(mu), iterations=3)
    setting = Setting(sizes=(4,), dimension=4, classes=2, trust=Trust.CENTRAL)
    pair = algorithm.neighbouring_pair(setting)
    scores = []
    for world, rows, other in ((True, pair.left, pair.right), (False, pair.right, pair.left)):
        found = []
        for trial in range(trials):
            noise = KeyedNoise(bytes(31) + b"\1", f"{world}/{trial}")
            found.append(run_watched(algorithm, setting, noise, [rows], other, world=world).ratio)
        scores.append(np.array(found, dtype=float))
    bound = gaussian_lower_bound(scores[0], scores[1], 1 - 1e-9)
    assert 0.6 * mu < bound <= mu
    # The mean of the ratio is mu²/2 where every gradient moves by as much as it may.
    error = mu / math.sqrt(trials)
    assert float(scores[0].mean()) <= mu**2 / 2 + 6 * error


def test_the_score_of_a_sum_is_its_log_likelihood_ratio(random: np.random.Generator) -> None:
    noisy, left, right = random.standard_normal((3, 4))
    want = (-((noisy - left) ** 2) + (noisy - right) ** 2).sum() / (2 * 0.7**2)
    assert score_of_sums(noisy[None], left, right, 0.7)[0] == pytest.approx(want)


def test_verdicts() -> None:
    assert verdict_of(1.1, None, 1.0) is Verdict.VIOLATES
    assert verdict_of(0.2, 0.85, 1.0) is Verdict.TIGHT
    assert verdict_of(0.2, 1.2, 1.0) is Verdict.TIGHT
    assert verdict_of(0.2, None, 1.0) is Verdict.CONSISTENT
