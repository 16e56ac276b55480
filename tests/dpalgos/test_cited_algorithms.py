"""PPCA, ADMM-SVM, dual perturbation and the Fourier SVM: closed forms, mutants that must be caught, and the flaws."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ive
from scipy.stats import norm

from dpalgos.guarantees import GaussianMu, Neighbours, PureEpsilon, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.losses import minimise
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.parameters import ParameterError
from dpalgos.projections.ppca import Bingham, Ppca
from dpalgos.published.machines import PublishedDualPerturbation, Smo
from dpalgos.published.minimisers import PublishedConsensusAdmm
from dpalgos.published.projections import PublishedPpca
from dpalgos.rows import ArrayRows, Floats
from dpalgos.testing import blobs
from dpalgos.trainers.hinge_perturbation import SmoLaplaceOutputPerturbation
from dpalgos.trainers.output_perturbation import ConsensusAdmm

DRAWS = 3000


def band(draws: int) -> float:
    """Of the mean of that many numbers in [0, 1] at a false-alarm rate of 1e-9 (Hoeffding)."""
    return math.sqrt(math.log(2 / 1e-9) / (2 * draws))


def keyed(name: str) -> KeyedNoise:
    return KeyedNoise(public_secret(7), name)


def first_squares(exponent: Floats, name: str, draws: int = DRAWS) -> Floats:
    law, noise = Bingham(exponent), keyed(name)
    return np.array([law.sample(noise.stream(str(index), exponent))[0] ** 2 for index in range(draws)])


# ── the Bingham law ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kappa", "draws"),
    [
        pytest.param(0.5, DRAWS, marks=pytest.mark.nightly),
        (3.0, 2000),
        pytest.param(40.0, DRAWS, marks=pytest.mark.nightly),
    ],
)
def test_bingham_on_the_circle_has_its_closed_form(kappa: float, draws: int) -> None:
    """In two dimensions E v₁² = (1 + I₁(κ/2)/I₀(κ/2))/2 for exp(κ v₁²); twice the exponent is told apart.

    Its mean is 0.107 away, where 2,000 draws see 0.073 at a false alarm of 1e-9.
    """
    expected, doubled = (0.5 * (1 + ive(1, k / 2) / ive(0, k / 2)) for k in (kappa, 2 * kappa))
    found = first_squares(np.diag([kappa, 0.0]), f"circle-{kappa}", draws).mean()
    assert abs(found - expected) < band(draws)
    if kappa == 3.0:
        assert abs(found - doubled) > band(draws)


@pytest.mark.nightly
@pytest.mark.parametrize("dimension", [3, 30])
@pytest.mark.parametrize("kappa", [-60.0, 5.0, 200.0])
def test_bingham_in_more_dimensions_has_the_mean_of_its_density(dimension: int, kappa: float) -> None:
    """v₁ = t has density ∝ exp(κt²)(1 − t²)^((q − 3)/2)."""

    def density(t: float) -> float:
        return float(math.exp(kappa * t * t - max(kappa, 0.0)) * (1 - t * t) ** ((dimension - 3) / 2))

    points = np.linspace(0, 1, 9)[1:-1]
    total = quad(density, 0, 1, points=points)[0]
    expected = quad(lambda t: t * t * density(t), 0, 1, points=points)[0] / total
    exponent = np.zeros((dimension, dimension))
    exponent[0, 0] = kappa
    found = first_squares(exponent, f"{dimension}-{kappa}")
    assert abs(found.mean() - expected) < 6.2 * found.std() / math.sqrt(DRAWS)


# ── PPCA ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def setting(sizes: tuple[int, ...], dimension: int, classes: int = 2, **more: Any) -> Setting:
    return Setting(sizes=sizes, dimension=dimension, classes=classes, **more)


@pytest.mark.parametrize("relation", [Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL])
def test_exponent_is_what_epsilon_allows(relation: Neighbours) -> None:
    """At most ε between the largest and the smallest log ratio; the paper's 1/2 is needed where a row is replaced."""
    epsilon, k = 1.2, 3
    place = setting((50,), 6, neighbours=relation)
    algorithm = Ppca(budget=PureEpsilon(epsilon), components=k)
    # The change of vᵀXᵀXv over unit v: from -1 to 1 for two rows, from 0 to 1 for one.
    spread = 2.0 if relation is Neighbours.REPLACE_ONE else 1.0
    assert algorithm.weight(place) * spread == pytest.approx(epsilon / k)
    losses = algorithm.guarantee(place).losses
    assert sum(loss.epsilon for loss in losses if isinstance(loss, PureEpsilon)) == pytest.approx(epsilon)


@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (2.0, False)])
def test_log_ratio_of_neighbours_comes_near_epsilon_and_twice_the_exponent_exceeds_it(
    factor: float, holds: bool
) -> None:
    """On the circle, by quadrature: many rows at e₂, and one that is e₁ or e₂."""
    epsilon = 1.0
    weight = factor * Ppca(budget=PureEpsilon(epsilon), components=1).weight(setting((50,), 2))
    angles = np.linspace(0, np.pi, 20_001)

    def log_density(exponent: Floats) -> Floats:
        values = weight * (exponent[0] * np.cos(angles) ** 2 + exponent[1] * np.sin(angles) ** 2)
        return np.asarray(values - np.log(np.mean(np.exp(values - values.max()))) - values.max())

    ratio = np.abs(log_density(np.array([1.0, 99.0])) - log_density(np.array([0.0, 100.0]))).max()
    assert (ratio <= epsilon) == holds
    assert ratio > 0.9 * epsilon


def test_ppca_finds_the_directions_of_many_rows_and_none_of_few() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(20_000, 8)) * np.array([3, 2, 1.5, 0.3, 0.2, 0.2, 0.1, 0.1])
    rows /= np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
    algorithm = Ppca(budget=PureEpsilon(1.0), components=3)

    def captured(count: int) -> float:
        data = ArrayRows(rows[:count], np.zeros(count, dtype=np.int64))
        basis = algorithm.fit([data], setting((count,), 8), keyed("pca")).basis
        assert np.allclose(basis.T @ basis, np.eye(3))
        top = np.linalg.eigvalsh(rows.T @ rows)[-3:].sum()
        return float(np.linalg.norm(rows @ basis) ** 2 / top)

    assert captured(20_000) > 0.99
    assert captured(10) < 0.9


@pytest.mark.nightly
def test_gibbs_sampling_of_one_direction_is_the_exact_law_and_of_several_is_not_claimed() -> None:
    kappa = 3.0
    rows = ArrayRows(np.tile([[1.0, 0.0]], (3, 1)), np.zeros(3, dtype=np.int64))
    place = setting((3,), 2)
    published = PublishedPpca(budget=PureEpsilon(2.0), components=1, sweeps=1)
    squares = [published.fit([rows], place, keyed(str(draw))).basis[0, 0] ** 2 for draw in range(DRAWS)]
    expected = 0.5 * (1 + ive(1, kappa / 2) / ive(0, kappa / 2))
    assert abs(np.mean(squares) - expected) < band(DRAWS)
    assert not published.guarantee(place).proved


# ── ADMM ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def three_parties(classes: int) -> tuple[list[ArrayRows], Setting]:
    rows = blobs(300, 5, classes, 3)
    bounds = (0, 60, 150, 300)
    parties = [ArrayRows(rows.features[a:b], rows.labels[a:b]) for a, b in itertools.pairwise(bounds)]
    return parties, setting((60, 90, 150), 5, classes, trust=Trust.CENTRAL)


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_admm_without_noise_comes_to_the_minimum_of_all_rows_together(classes: int) -> None:
    parties, place = three_parties(classes)
    admm = ConsensusAdmm(budget=GaussianMu(1e6), iterations=200, penalty=0.1, regularisation=0.05)
    model = admm.fit(parties, place, keyed("admm"))
    problem = admm.task.problem(parties, place, 0.05)
    assert np.abs(model.weights - minimise(problem, 1e-10)).max() < 2e-4


def test_admm_pays_for_every_step_and_a_mutant_that_pays_once_is_caught() -> None:
    """The noise of one step, as drawn: its deviation is that of a μ/√T mechanism, not of a μ one."""
    steps, mu, count = 16, 0.7, 400
    place = setting((count,), 40, trust=Trust.CENTRAL)
    admm = ConsensusAdmm(budget=GaussianMu(mu), iterations=steps, penalty=0.5)
    law = admm.distribution(place)
    needed = admm.sensitivity(place) * math.sqrt(steps) / mu
    unit = admm._unit(place)
    assert needed <= law.sigma * unit <= needed * (1 + 1e-4)
    once = RoundedGaussian.calibrated(GaussianMu(mu), admm.sensitivity(place) / unit, 1)
    assert once.sigma < law.sigma / 3.9


def test_admm_steps_are_told_apart_no_better_than_their_mu() -> None:
    """The worst pair of one step, seen through its noise, has the trade-off of μ/√T; half the noise has not."""
    mu, steps = 1.5, 4
    place = setting((20,), 4, trust=Trust.CENTRAL)
    admm = ConsensusAdmm(budget=GaussianMu(mu), iterations=steps, penalty=0.5)
    pair = admm.neighbouring_pair(place)
    left, right = (admm.statistic(rows, place).ravel() for rows in (pair.left, pair.right))
    distance, sigma = np.linalg.norm(left - right), admm.distribution(place).sigma * admm._unit(place)
    assert distance / sigma <= mu / math.sqrt(steps)
    assert distance / sigma > 0.97 * mu / math.sqrt(steps)
    assert norm.cdf(distance / (sigma / 2)) > norm.cdf(mu / math.sqrt(steps))


def test_admm_refuses_a_loss_without_bound_and_weights_off_the_grid() -> None:
    with pytest.raises(ParameterError, match="'squared'"):
        ConsensusAdmm(budget=GaussianMu(1.0), loss="squared")
    with pytest.raises(ParameterError, match=r"1e-20.*grid"):
        ConsensusAdmm(budget=GaussianMu(1.0), regularisation=1e-20).guarantee(setting((10**7,), 5))


def test_published_admm_counts_one_of_its_releases() -> None:
    parties, place = three_parties(2)
    published = PublishedConsensusAdmm(budget=PureEpsilon(1.0), iterations=2)
    assert not published.guarantee(place).proved
    assert np.isfinite(published.fit(parties, place, keyed("published")).weights).all()


# ── dual variables ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_dual_perturbation_releases_what_lies_in_the_span_of_the_rows() -> None:
    """Noise or not, no weight leaves the span: rows without a feature give it weight zero, one row with it another.

    That row's dual variable is cut to zero in nearly half of all releases, so there are forty.
    """
    rows = blobs(40, 6, 2, 1)
    left = rows.features.copy()
    left[:, 5] = 0.0
    right = left.copy()
    right[0] = np.eye(6)[5]
    algorithm, place = PublishedDualPerturbation(budget=PureEpsilon(0.1)), setting((40,), 6)

    def weights(side: Floats) -> list[float]:
        made = [algorithm.fit([ArrayRows(side, rows.labels)], place, keyed(f"dual-{number}")) for number in range(40)]
        return [float(one.weights[0, 5]) for one in made]

    assert set(weights(left)) == {0.0}
    # The variable is about 0.85 before the noise of scale 10.
    assert sum(weight != 0.0 for weight in weights(right)) == pytest.approx(40 * (1 - math.exp(-0.085) / 2), abs=13)


def test_dual_perturbation_without_noise_is_the_machine() -> None:
    rows, place = blobs(60, 4, 3, 2), setting((60,), 4, 3)
    exact = Smo().fit([rows], place, keyed("exact"))
    noisy = PublishedDualPerturbation(budget=PureEpsilon(1e12)).fit([rows], place, keyed("dual"))
    assert np.allclose(noisy.arrays()["weights"], exact.arrays()["weights"], atol=1e-9)
    assert np.allclose(noisy.intercept, exact.arrays()["intercept"])


# ── Laplace noise on the weights ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("classes", [2, 4])
def test_laplace_scale_covers_the_l1_norm_and_is_half_the_papers(classes: int) -> None:
    place, machines = setting((100,), 9, classes), 1 if classes == 2 else classes
    algorithm = SmoLaplaceOutputPerturbation(budget=PureEpsilon(0.5), C=0.3)
    papers = 4 * 0.3 * math.sqrt(10) / 0.5
    assert machines * papers / 2 <= algorithm.scale(place) <= machines * papers / 2 * 1.02
    special = algorithm.scale(replace(place, neighbours=Neighbours.REPLACE_SPECIAL))
    assert special == pytest.approx(algorithm.scale(place) / 2, rel=0.02)


def test_laplace_noise_is_there() -> None:
    rows, place = blobs(50, 400, 2, 4), setting((50,), 400)
    algorithm = SmoLaplaceOutputPerturbation(budget=PureEpsilon(1.0), C=0.1)
    weights = algorithm.fit([rows], place, keyed("one")).weights
    weights = weights - algorithm.fit([rows], place, keyed("two")).weights
    # The difference of two Laplace variables has mean size 3/2 of the scale and standard deviation √7/2.
    expected = 1.5 * algorithm.scale(place)
    assert abs(np.abs(weights).mean() - expected) < 6.2 * math.sqrt(7) / 2 * algorithm.scale(place) / math.sqrt(400)
