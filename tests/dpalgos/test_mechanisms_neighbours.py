"""Each mechanism on its worst pair of neighbours: epsilon bounded from below by experiment must not exceed the claim.

Every bound holds at confidence 1 - 1e-9. Every case comes with a mutant (half the noise, unless it says otherwise)
that the same experiment must convict, so that passing means something.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dpalgos.accounting.profiles import epsilon_of_mu
from dpalgos.audit.bounds import epsilon_lower_bound
from dpalgos.guarantees import Neighbours
from dpalgos.integer_sums import (
    encode_rows,
    encoded_radius,
    gram_sensitivity,
    outer_sensitivity,
    sum_sensitivity,
)
from dpalgos.mechanisms.distributions import (
    DiscreteGaussian,
    DiscreteLaplace,
    GaussianNoise,
    Laplace,
    RadialLaplace,
    RoundedGaussian,
    SymmetricDiscreteGaussian,
    SymmetricRoundedGaussian,
    packed_size,
)
from tests.support.statistics import ERROR
from tests.support.streams import seeded

MANY, FEW = 200_000, 8_000
DELTA = 0.01
MU = 1.0


@dataclass(frozen=True)
class Experiment:
    """``draw(on_first, mutant, seed)`` returns many values of a statistic that is larger on the first neighbour."""

    draw: Callable[[bool, bool, int], Any]
    threshold: float
    claimed: float
    delta: float
    found: float
    """What the sound mechanism's bound must reach at least, so that the experiment is known to see something."""

    def bound(self, *, mutant: bool) -> float:
        hits = [self.draw(first, mutant, seed) > self.threshold for first, seed in ((True, 1), (False, 2))]
        return epsilon_lower_bound(
            int(hits[0].sum()), len(hits[0]), int(hits[1].sum()), len(hits[1]), self.delta, 1 - ERROR
        )


def from_rho(rho: float) -> float:
    """Return the epsilon that rho-zCDP is worth at DELTA (Bun, Steinke 2016, Proposition 1.3)."""
    return rho + 2 * math.sqrt(rho * math.log(1 / DELTA))


def scalar(law: Callable[[float], Any], shift: float) -> Callable[[bool, bool, int], Any]:
    """Return the experiment of adding noise to ``shift`` or to 0; ``law`` takes the factor on the noise."""

    def draw(first: bool, mutant: bool, seed: int) -> Any:
        return (shift if first else 0) + law(0.5 if mutant else 1.0).sample(MANY, seeded(seed))

    return draw


def radial(first: bool, mutant: bool, seed: int) -> Any:
    law, stream = RadialLaplace(0.5 if mutant else 1.0), seeded(seed)
    return np.array([law.sample(3, stream)[0] for _ in range(FEW)]) + (3.0 if first else 0.0)


def laplace_for_l2(first: bool, mutant: bool, seed: int) -> Any:
    """Laplace noise in 50 dimensions; the mutant takes the l2 sensitivity for the l1 sensitivity."""
    shift = np.full(50, 1 / math.sqrt(50))
    scale = 1.0 if mutant else math.sqrt(50)
    noisy = Laplace(scale).sample(50 * 20_000, seeded(seed)).reshape(-1, 50) + (shift if first else 0.0)
    return (np.abs(noisy) - np.abs(noisy - shift)).sum(axis=1) / scale


SCALE = 2.0**10
RADIUS = encoded_radius(1.0, SCALE)
PAIR = np.array([[1.0, 1.0]]) / math.sqrt(2), np.array([[1.0, -1.0]]) / math.sqrt(2)
DIMENSION = 600


def covariance(law: Callable[[float], Any], wrong: Neighbours | None) -> Callable[[bool, bool, int], Any]:
    """Return the whole exact path on rows that differ off the diagonal; a mutant has the other relation's bound."""

    def draw(first: bool, mutant: bool, seed: int) -> Any:
        encoded = encode_rows(PAIR[0 if first else 1], 1.0, SCALE)
        total = (encoded.T @ encoded)[0, 1]
        relation = wrong if mutant and wrong else Neighbours.REPLACE_ONE
        factor = 0.5 if mutant and not wrong else 1.0
        noise, stream = law(factor * gram_sensitivity(RADIUS, relation) / MU), seeded(seed)
        # The noise of each entry beside the diagonal of one large matrix serves as one replicate.
        draws = noise.sample(packed_size(DIMENSION), stream)[~np.equal(*np.triu_indices(DIMENSION))]
        return (total + draws) / gram_sensitivity(RADIUS, Neighbours.REPLACE_ONE)

    return draw


def gradient(first: bool, mutant: bool, seed: int) -> Any:
    """A sum of outer products whose second factor changes sign; the mutant forgets that replacing costs twice."""
    row = encode_rows(np.array([[1.0, 0.0]]), 1.0, SCALE)
    slope = encode_rows(np.array([[1.0 if first else -1.0]]), 1.0, SCALE)
    relation = Neighbours.REPLACE_SPECIAL if mutant else Neighbours.REPLACE_ONE
    noise = RoundedGaussian(outer_sensitivity(RADIUS, RADIUS, relation) / MU)
    moved = outer_sensitivity(RADIUS, RADIUS, Neighbours.REPLACE_ONE)
    return ((row.T @ slope)[0, 0] + noise.sample(MANY, seeded(seed))) / moved + 0.5


def rounded_sum(first: bool, mutant: bool, seed: int) -> Any:
    """Rows that sum to just beside a rounding boundary in 400 coordinates; the mutant rounds the sum, not the rows."""
    dimension, scale, trials = 400, 4.0, 5_000
    row = np.full((1, dimension), 1e-3 if first else -1e-3)
    rows = np.concatenate([np.full((25, dimension), 0.005), row])
    total = np.rint(rows.sum(axis=0) * scale) if mutant else encode_rows(rows, 1.0, scale).sum(axis=0)
    sensitivity = sum_sensitivity(encoded_radius(1.0, scale), Neighbours.REPLACE_ONE)
    noise = RoundedGaussian(sensitivity / MU).sample(trials * dimension, seeded(seed)).reshape(trials, dimension)
    # Along the direction in which the mutant moves, whose length there is sqrt(dimension).
    return (total + noise).sum(axis=1) / math.sqrt(dimension) / sensitivity


GAUSSIAN = epsilon_of_mu(MU, DELTA)
EXPERIMENTS = {
    "rounded Gaussian": Experiment(scalar(lambda f: RoundedGaussian(4.0 * f), 4), 5, GAUSSIAN, DELTA, 1.0),
    "rounded Gaussian, coarse": Experiment(scalar(lambda f: RoundedGaussian(1.0 * f), 1), 1, GAUSSIAN, DELTA, 0.5),
    "rounded Gaussian, huge": Experiment(
        scalar(lambda f: RoundedGaussian(2.0**40 * f), 2**40), 1.25 * 2**40, GAUSSIAN, DELTA, 1.0
    ),
    "Gaussian": Experiment(scalar(GaussianNoise, 1.0), 1.25, GAUSSIAN, DELTA, 1.0),
    "discrete Gaussian": Experiment(
        scalar(lambda f: DiscreteGaussian(4.0 * f), 4), 6, from_rho(DiscreteGaussian(4.0).rho(4.0)), DELTA, 1.0
    ),
    "discrete Gaussian, large": Experiment(
        scalar(lambda f: DiscreteGaussian(4e6 * f), 4_000_000), 6e6, from_rho(0.5), DELTA, 1.0
    ),
    "discrete Laplace": Experiment(
        scalar(lambda f: DiscreteLaplace(5.0 * f), 5), 4, DiscreteLaplace(5.0).epsilon(5.0), 0.0, 0.9
    ),
    "Laplace": Experiment(scalar(Laplace, 1.0), 1.0, Laplace(1.0).epsilon(1.0), 0.0, 0.9),
    "Laplace, l1 and l2": Experiment(laplace_for_l2, 2.0, 1.0, 0.0, 0.0),
    "radial": Experiment(radial, 3.0, RadialLaplace(1.0).epsilon(3.0), 0.0, 1.5),
    "covariance": Experiment(
        covariance(lambda s: SymmetricRoundedGaussian(s, DIMENSION), None), 0.75, GAUSSIAN, DELTA, 0.8
    ),
    "covariance, missing root of two": Experiment(
        covariance(lambda s: SymmetricRoundedGaussian(s, DIMENSION), Neighbours.REPLACE_SPECIAL),
        1.0,
        GAUSSIAN,
        DELTA,
        0.8,
    ),
    "covariance, discrete": Experiment(
        covariance(lambda s: SymmetricDiscreteGaussian(s, DIMENSION), None), 1.0, from_rho(0.5), DELTA, 0.8
    ),
    "gradient": Experiment(gradient, 1.5, GAUSSIAN, DELTA, 1.0),
    "sum rounded after summing": Experiment(rounded_sum, 2.0, GAUSSIAN, DELTA, 0.0),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_experiment_refutes_the_claim_and_each_refutes_its_mutant(name: str) -> None:
    experiment = EXPERIMENTS[name]
    sound, broken = experiment.bound(mutant=False), experiment.bound(mutant=True)
    assert sound <= experiment.claimed
    assert sound >= experiment.found
    assert broken > experiment.claimed
