"""The other covariance mechanisms: l1 sensitivities against worst pairs, published scales, and what is not private."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import gamma, norm

from dpalgos.accounting.profiles import delta_of_mu
from dpalgos.guarantees import ApproximateDP, GaussianMu, Neighbours, Numerics, PureEpsilon, Setting
from dpalgos.mechanisms.distributions import DiscreteLaplace, unpack
from dpalgos.projections.covariance import (
    LaplaceCovariance,
    ModSulq,
    PublishedLaplaceCovariance,
    RadialCovariance,
    triangle_sensitivity,
)
from dpalgos.projections.principal import PrincipalComponents
from dpalgos.published.projections import PublishedSvd, PublishedWishart
from dpalgos.rows import ArrayRows
from tests.support.statistics import rejects_law
from tests.support.training import blobs, fitted, parties_of, setting_of

Array = NDArray[np.float64]
EPSILON, APPROXIMATE = PureEpsilon(1.0), ApproximateDP(1.0, 1e-4)


def rows_of(features: Array) -> ArrayRows:
    return ArrayRows(features, np.zeros(len(features), dtype=np.int64))


def hard_rows(dimension: int) -> list[Array]:
    """Flat rows in all signs and on parts of the coordinates, and random ones; all of norm 1."""
    random = np.random.default_rng(dimension)
    found = [np.eye(dimension)[0]]
    for _ in range(60):
        kept = random.random(dimension) < random.uniform(0.3, 1.0)
        row = np.where(kept, random.choice([-1.0, 1.0], dimension), 0.0)
        found.append(row / max(np.linalg.norm(row), 1e-9))
        draw = random.normal(size=dimension)
        found.append(draw / np.linalg.norm(draw))
    return found


def triangle(matrix: Array) -> float:
    return float(np.abs(matrix[np.triu_indices(len(matrix))]).sum())


@pytest.mark.parametrize("dimension", [1, 2, 3, 6, 20])
def test_triangle_sensitivity_bounds_every_pair_and_is_near_the_worst(dimension: int) -> None:
    rows = hard_rows(dimension)
    triangles = np.array([np.outer(x, x)[np.triu_indices(dimension)] for x in rows])
    replaced = cdist(triangles, triangles, "cityblock").max()
    added = max(triangle(np.outer(x, x)) for x in rows)
    bound = triangle_sensitivity(dimension, 1.0, Neighbours.REPLACE_ONE)
    assert replaced <= bound * (1 + 1e-12)
    assert replaced >= 0.5 * bound
    assert added <= triangle_sensitivity(dimension, 1.0, Neighbours.REPLACE_SPECIAL) * (1 + 1e-12)
    if dimension > 1:
        assert added >= 0.99 * triangle_sensitivity(dimension, 1.0, Neighbours.REPLACE_SPECIAL)
    # The published 2d is enough, and so is (d + 1).
    assert bound <= dimension + 1.0 <= 2.0 * dimension or dimension == 1


def largest_change(algorithm: Any, dimension: int, length: Callable[[Array], float]) -> float:
    """Return the largest change of the integer sum over pairs of hard rows, in the given norm of packed matrices."""
    largest = 0.0
    for x, z in itertools.product(hard_rows(dimension)[:40], repeat=2):
        first, second = rows_of(np.vstack([np.eye(dimension), 3 * x])), rows_of(np.vstack([np.eye(dimension), z]))
        known = setting_of([first], 2)
        state = algorithm.initial(known)
        change = algorithm.contribution(state, first, known) - algorithm.contribution(state, second, known)
        largest = max(largest, length(change.astype(np.float64)))
    return largest


def spent(algorithm: Any, dimension: int) -> float:
    change = largest_change(algorithm, dimension, lambda moved: float(np.abs(moved).sum()))
    known = setting_of([rows_of(np.zeros((dimension + 1, dimension)))], 2)
    return change / float(algorithm.distribution(known).scale)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class L2Noise(LaplaceCovariance):
    """The mistake of calibrating Laplace noise to the Frobenius sensitivity."""

    def distribution(self, setting: Setting) -> DiscreteLaplace:
        right = LaplaceCovariance.distribution(self, setting)
        return DiscreteLaplace(
            right.scale * math.sqrt(2.0) / triangle_sensitivity(setting.dimension, 1.0, setting.neighbours)
        )


def test_laplace_noise_hides_every_pair() -> None:
    assert 0.5 <= spent(LaplaceCovariance(budget=EPSILON, components=2), 6) <= 1.0
    assert spent(L2Noise(budget=EPSILON, components=2), 6) > 1.0
    known = setting_of([blobs(20, 6, 2, 0)], 2)
    guarantee = LaplaceCovariance(budget=EPSILON, components=2).guarantee(known)
    assert guarantee.losses == (EPSILON,)
    assert guarantee.numerics is Numerics.EXACT


@pytest.mark.parametrize(
    "algorithm",
    [
        LaplaceCovariance(budget=PureEpsilon(1e6), components=3),
        PublishedLaplaceCovariance(budget=PureEpsilon(1e6), components=3),
        RadialCovariance(budget=PureEpsilon(1e6), components=3),
        ModSulq(budget=ApproximateDP(1e6, 1e-4), components=3),
        PublishedSvd(budget=ApproximateDP(1e6, 1e-4), components=3),
        PublishedWishart(budget=PureEpsilon(1e6), components=3),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_large_budgets_give_the_exact_basis(algorithm: Any) -> None:
    rows = blobs(300, 8, 3, 1)
    exact = fitted(PrincipalComponents(components=3), [rows], 3)
    for parties in ([rows], parties_of(rows, 3)):
        basis = fitted(algorithm, parties, 3).basis
        assert np.linalg.norm(basis @ basis.T - exact.basis @ exact.basis.T) < 0.01


def released(algorithm: Any, rows: ArrayRows, seed: int) -> Array:
    found = fitted(algorithm, [rows], 2, seed)
    return np.asarray((found.basis * found.spectrum) @ found.basis.T)


def test_published_scales() -> None:
    known = Setting(sizes=(58509,), dimension=48, classes=2)
    assert PublishedLaplaceCovariance(budget=PureEpsilon(0.1)).noise_scale(known) == pytest.approx(
        2 * 48 / (58509 * 0.1)
    )
    beta = 49 / (58509 * 0.5) * math.sqrt(2 * math.log((48**2 + 48) / (1e-6 * 2 * math.sqrt(2 * math.pi))))
    assert ModSulq(budget=ApproximateDP(0.5, 1e-6)).deviation(known) == pytest.approx(
        beta + 1 / (58509 * math.sqrt(0.5))
    )


def test_published_laplace_noise_has_its_law() -> None:
    """A zero covariance of 80 features: 3,240 entries; DKW notices 0.115 at a false alarm of 1e-9."""
    rows = rows_of(np.zeros((10, 80)))
    algorithm = PublishedLaplaceCovariance(budget=EPSILON, components=80)
    scale = algorithm.noise_scale(setting_of([rows], 2))
    sample = np.abs(released(algorithm, rows, 0)[np.triu_indices(80)])
    law = gamma(1, scale=scale)
    assert not rejects_law(sample, law.cdf)
    assert rejects_law(sample / 2, law.cdf)


def test_radial_noise_has_its_length() -> None:
    """300 Frobenius norms of noise in 6 dimensions: DKW notices 0.38 at a false alarm of 1e-9."""
    rows = rows_of(np.zeros((5, 3)))
    algorithm = RadialCovariance(budget=EPSILON, components=3)
    lengths = np.array([np.linalg.norm(released(algorithm, rows, seed)) for seed in range(300)]) * 5
    law = gamma(6, scale=math.sqrt(2.0))
    assert not rejects_law(lengths, law.cdf)
    assert rejects_law(lengths / 2, law.cdf)
    # One dimension for each of nine entries instead of six.
    assert rejects_law(lengths, gamma(9, scale=math.sqrt(2.0)).cdf)


def test_mod_sulq_costs_far_less_than_it_claims() -> None:
    for dimension, rows in ((2, 50), (48, 58509)):
        known = Setting(sizes=(rows,), dimension=dimension, classes=2)
        (loss,) = ModSulq(budget=APPROXIMATE, components=1).guarantee(known).losses
        assert isinstance(loss, GaussianMu)
        assert delta_of_mu(loss.mu, APPROXIMATE.epsilon) <= APPROXIMATE.delta
        assert loss.mu <= 1.01 * math.sqrt(2.0) * APPROXIMATE.epsilon / (dimension + 1)


def test_integer_sums_move_by_no_more_than_is_charged() -> None:
    """The radial covariance in the Frobenius norm, MOD-SuLQ in that of the triangle; both near their bounds."""
    known = Setting(sizes=(7,), dimension=6, classes=2)
    radial = RadialCovariance(budget=EPSILON, components=2)
    moved = largest_change(radial, 6, lambda change: float(np.linalg.norm(unpack(change))))
    assert 0.9 <= moved / radial.distribution(known).scale <= 1.0
    sulq = ModSulq(budget=APPROXIMATE, components=2)
    (loss,) = sulq.guarantee(known).losses
    assert isinstance(loss, GaussianMu)
    moved = largest_change(sulq, 6, lambda change: float(np.linalg.norm(change)))
    assert 0.65 * loss.mu <= moved / sulq.distribution(known).sigma <= loss.mu


def test_mod_sulq_adds_the_published_noise_to_every_entry() -> None:
    """A zero covariance of 80 features: DKW notices 2.6 per cent off the diagonals of five, 17 on them."""
    rows = rows_of(np.zeros((10, 80)))
    algorithm = ModSulq(budget=APPROXIMATE, components=80)
    known = setting_of([rows], 2)
    law = norm(scale=algorithm.deviation(known))
    matrices = [released(algorithm, rows, seed) for seed in range(5)]
    entries = np.concatenate([matrix[np.triu_indices(80, 1)] for matrix in matrices])
    diagonal = np.concatenate([np.diag(matrix) for matrix in matrices])
    for sample in (entries, diagonal):
        assert not rejects_law(sample, law.cdf)
        assert rejects_law(sample / 2, law.cdf)
    assert rejects_law(entries / math.sqrt(2), law.cdf), "noise by the isometry would be smaller off the diagonal"
    assert algorithm.guarantee(known).numerics is Numerics.EXACT


def test_wishart_noise_makes_outputs_of_a_neighbour_impossible() -> None:
    """The counterexample: without the unit row, a share 1 − e^{−ε/3} of outputs lies below what the row leaves behind.

    600 releases: the share is within 12 points of 0.283 but for 1e-9; a private mechanism would give 0.
    """
    empty, full = np.zeros((4, 1)), np.zeros((4, 1))
    full[0] = 1.0
    algorithm = PublishedWishart(budget=EPSILON, components=1)
    # In one dimension W = 3/(2nε) χ²₂: below 1/n with probability 1 − e^{−ε/3}; with the unit row never.
    without = np.array([float(released(algorithm, rows_of(empty), seed)[0, 0]) for seed in range(600)])
    with_row = np.array([float(released(algorithm, rows_of(full), seed)[0, 0]) for seed in range(600)])
    assert with_row.min() >= 1 / 4
    share = float((without < 1 / 4).mean())
    assert abs(share - (1 - math.exp(-1 / 3))) < 0.12
    assert share > 0.0


def test_the_unproved_say_so() -> None:
    known = setting_of([blobs(20, 6, 2, 0)], 2)
    for algorithm in (PublishedSvd(budget=APPROXIMATE, components=2), PublishedWishart(budget=EPSILON, components=2)):
        assert not algorithm.guarantee(known).proved
        assert algorithm.claim is not None
        assert algorithm.claim.flaw
