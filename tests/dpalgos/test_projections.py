"""Covariance projections: sensitivities against worst pairs, bases against scikit-learn, and broken copies."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpalgos.accounting.profiles import sigma_classical
from dpalgos.guarantees import ApproximateDP, GaussianMu, Neighbours, Numerics, PureEpsilon, ZeroConcentrated
from dpalgos.mechanisms.distributions import SymmetricRoundedGaussian, to_vector, unpack
from dpalgos.parameters import ParameterError
from dpalgos.projections.centring import Identity
from dpalgos.projections.covariance import AnalyzeGauss
from dpalgos.projections.principal import PrincipalComponents, leading_basis
from dpalgos.published.projections import PublishedAnalyzeGauss
from dpalgos.rows import ArrayRows
from tests.support.training import blobs, fitted, noise, parties_of, setting_of

Array = NDArray[np.float64]
MU = GaussianMu(0.5)


def subspace_distance(first: Array, second: Array) -> float:
    return float(np.linalg.norm(first @ first.T - second @ second.T))


def rows_of(features: Array) -> ArrayRows:
    return ArrayRows(features, np.zeros(len(features), dtype=np.int64))


def worst_pairs(dimension: int) -> list[tuple[ArrayRows, ArrayRows]]:
    """Neighbours by replacement that move XᵀX most, and some at random."""
    random = np.random.default_rng(1)
    others = random.normal(size=(6, dimension))
    pairs = [(np.eye(dimension)[0], np.eye(dimension)[1])]
    for _ in range(20):
        turned = np.linalg.qr(random.normal(size=(dimension, dimension)))[0]
        pairs.append((turned[0], turned[1]))
        pairs.append((random.normal(size=dimension), random.normal(size=dimension)))
        pairs.append((1e300 * random.normal(size=dimension), np.full(dimension, np.nan)))
    return [(rows_of(np.vstack([others, one])), rows_of(np.vstack([others, two]))) for one, two in pairs]


def spent(algorithm: Any, first: ArrayRows, second: ArrayRows, neighbours: Neighbours) -> float:
    """Return the mu that an adversary who knows both neighbours really gets."""
    setting = dataclasses.replace(setting_of([first], 2), neighbours=neighbours)
    state = algorithm.initial(setting)
    change = algorithm.contribution(state, first, setting) - algorithm.contribution(state, second, setting)
    return float(np.linalg.norm(to_vector(unpack(change.astype(np.float64))))) / float(
        algorithm.distribution(setting).sigma
    )


def largest_spent(algorithm: Any, dimension: int = 7) -> float:
    return max(spent(algorithm, *pair, Neighbours.REPLACE_ONE) for pair in worst_pairs(dimension))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityOne(AnalyzeGauss):
    """The published mistake: 1 instead of √2."""

    def distribution(self, setting: Any) -> SymmetricRoundedGaussian:
        right = AnalyzeGauss.distribution(self, setting)
        return SymmetricRoundedGaussian(right.sigma / math.sqrt(2.0), right.dimension)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NotClipped(AnalyzeGauss):
    """Rows of norm 1.01 let in."""

    def contribution(self, state: Any, rows: Any, setting: Any) -> Any:
        scale = self._scale(setting)
        encoded = np.rint(np.clip(np.nan_to_num(rows.features), -1e6, 1e6) * scale).astype(np.int64)
        norms = np.linalg.norm(encoded, axis=1, keepdims=True)
        kept = np.rint(encoded * np.minimum(1.0, 1.01 * scale / np.maximum(norms, 1.0))).astype(np.int64)
        total = kept.T @ kept
        return total[np.triu_indices(len(total))]


@pytest.mark.parametrize("budget", [MU, ZeroConcentrated(0.02), GaussianMu(1e-4), GaussianMu(30.0)])
def test_the_worst_neighbours_spend_the_budget_and_no_more(budget: Any) -> None:
    algorithm = AnalyzeGauss(budget=budget, components=3)
    mu = budget.mu if isinstance(budget, GaussianMu) else math.sqrt(2 * budget.rho)
    largest = largest_spent(algorithm)
    assert largest <= mu
    # A coarse grid, where the noise needs the room, loses a little.
    assert largest >= 0.98 * mu


@pytest.mark.parametrize("mutant", [SensitivityOne, NotClipped])
def test_mutants_overspend(mutant: Any) -> None:
    assert largest_spent(mutant(budget=MU, components=3)) > MU.mu


def test_add_remove_needs_less_noise_and_is_spent_by_a_unit_row() -> None:
    algorithm = AnalyzeGauss(budget=MU, components=2)
    row = rows_of(np.vstack([0.3 * np.eye(4)[:2], np.eye(4)[2]]))
    without = rows_of(row.features[:2])
    largest = spent(algorithm, row, without, Neighbours.REPLACE_SPECIAL)
    assert 0.999 * MU.mu <= largest <= MU.mu


def test_guarantees_say_what_is_paid() -> None:
    rows = blobs(50, 6, 3, 0)
    sound = AnalyzeGauss(budget=MU, components=2).guarantee(setting_of([rows], 3))
    assert sound.losses == (MU,)
    assert sound.numerics is Numerics.EXACT
    published = PublishedAnalyzeGauss(budget=ApproximateDP(0.1, 1e-4), components=2)
    assert not published.guarantee(setting_of([rows], 3)).proved
    assert "sqrt(2)" in str(published.guarantee(setting_of([rows], 3)).reason)
    assert not PrincipalComponents(components=2).guarantee(setting_of([rows], 3)).proved
    assert Identity().guarantee(setting_of([rows], 3)).losses == ()


def test_pca_is_scikit_learns_uncentred() -> None:
    from sklearn.decomposition import TruncatedSVD

    rows = blobs(200, 9, 3, 1)
    ours = fitted(PrincipalComponents(components=4), [rows], 3)
    peer = TruncatedSVD(4, algorithm="arpack").fit(rows.features)
    assert subspace_distance(ours.basis, peer.components_.T) < 1e-6
    np.testing.assert_allclose(ours.spectrum[:4], peer.singular_values_**2 / 200, rtol=1e-6)
    np.testing.assert_allclose(ours.basis.T @ ours.basis, np.eye(4), atol=1e-12)


def test_large_budgets_give_the_exact_basis() -> None:
    rows = blobs(200, 9, 3, 2)
    exact = fitted(PrincipalComponents(components=3), [rows], 3)
    sound = fitted(AnalyzeGauss(budget=GaussianMu(1e5), components=3), [rows], 3)
    published = fitted(PublishedAnalyzeGauss(budget=ApproximateDP(1e5, 1e-5), components=3), [rows], 3)
    assert subspace_distance(exact.basis, sound.basis) < 1e-3
    assert subspace_distance(exact.basis, published.basis) < 1e-2
    np.testing.assert_allclose(sound.spectrum, exact.spectrum, atol=1e-4)


def test_sums_do_not_see_the_order_of_rows_or_parties() -> None:
    rows = blobs(60, 5, 3, 3)
    algorithm = AnalyzeGauss(budget=MU, components=2)
    shuffled = ArrayRows(rows.features[::-1].copy(), rows.labels[::-1].copy(), block=7)
    first = fitted(algorithm, parties_of(rows, 3), 3)
    np.testing.assert_array_equal(first.basis, fitted(algorithm, parties_of(rows, 3)[::-1], 3).basis)
    one, other = fitted(algorithm, [rows], 3), fitted(algorithm, [shuffled], 3)
    np.testing.assert_array_equal(one.basis, other.basis)


def test_published_noise_is_the_papers() -> None:
    """One draw of 5,050 entries: the sample deviation is within 6.2 % of σ but for 1e-9 (chi-square tails)."""
    empty = rows_of(np.zeros((4, 100)))
    algorithm = PublishedAnalyzeGauss(budget=ApproximateDP(0.5, 1e-4), components=100)
    released = fitted(algorithm, [empty], 2)
    noisy = 4 * (released.basis * released.spectrum) @ released.basis.T
    upper = noisy[np.triu_indices(100)]
    sigma = sigma_classical(0.5, 1e-4, 1.0)
    assert abs(upper.std() / sigma - 1) < 0.062
    # What must not pass: the isometry's smaller off-diagonal noise, or sensitivity √2.
    assert abs(upper.std() * math.sqrt(2) / sigma - 1) > 0.062


def test_share_of_the_variance_chooses_directions_and_keeps_the_shape() -> None:
    matrix = np.diag([6.0, 3.0, 0.9, 0.1])
    for share, kept in ((0.5, 1), (0.6, 1), (0.61, 2), (0.9, 2), (0.95, 3), (1.0, 4)):
        basis = leading_basis(matrix, 4, share).basis
        assert basis.shape == (4, 4)
        assert int((np.abs(basis).sum(axis=0) > 0).sum()) == kept
    assert int((np.abs(leading_basis(-matrix, 4, 0.9).basis).sum(axis=0) > 0).sum()) == 1


def test_signs_are_fixed() -> None:
    matrix = np.array([[2.0, -1.0], [-1.0, 2.0]])
    basis = leading_basis(matrix, 2).basis
    assert (basis[np.abs(basis).argmax(axis=0), [0, 1]] > 0).all()


def test_parameters_are_validated() -> None:
    rows = blobs(10, 4, 2, 5)
    for make in (
        lambda: AnalyzeGauss(budget=MU, components=0),
        lambda: AnalyzeGauss(budget=MU, variance_share=1.5),
        lambda: AnalyzeGauss(budget=PureEpsilon(1.0)),
        lambda: AnalyzeGauss(budget=GaussianMu(0.0)),
        lambda: PublishedAnalyzeGauss(budget=ApproximateDP(1.0, 0.0)),
        lambda: AnalyzeGauss(budget=MU, components=5).guarantee(setting_of([rows], 2)),
        lambda: PrincipalComponents(components=5).fit([rows], setting_of([rows], 2), noise()),
    ):
        with pytest.raises(ParameterError):
            make()
