"""Running sums by the square-root factor: sensitivities by enumeration, the noise of every count, and its mutants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.stats import chi2

from dpalgos.algorithms import TrustedSummation, attained, moved, of_people, one_row_apart, run_sums
from dpalgos.audit.experiment import AuditOptions, Verdict
from dpalgos.audit.releases import audit_algorithm
from dpalgos.evaluators.confusion import ConfusionMatrix
from dpalgos.evaluators.score_distribution import ScoreDistribution, edges
from dpalgos.guarantees import RELATIONS, GaussianMu, Neighbours, Setting, Trust
from dpalgos.keystream import KeyedNoise
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.mechanisms.running_sums import RunningSums
from dpalgos.parameters import ParameterError
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats, Ints
from dpalgos.score_curves import ScoreSums

BINS, MU = 32, 0.5
HALF = GaussianMu(MU / math.sqrt(2.0))
"""What half of mu^2 buys."""


def setting_of(classes: int = 2, rows: int = 400, relation: Neighbours = Neighbours.REPLACE_ONE) -> Setting:
    return Setting(sizes=(rows,), dimension=1 if classes == 2 else classes, classes=classes, neighbours=relation)


def matrix_of(bins: int) -> Ints:
    """Return the factor's matrix, column by column."""
    return RunningSums(bins=bins).encode(np.eye(bins, dtype=np.int64)).T


# ── the mechanism ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bins", [1, 2, 5, 64])
def test_what_is_decoded_without_noise_are_the_running_sums(bins: int, random: np.random.Generator) -> None:
    counts = random.integers(0, 50, (3, 2, bins))
    sums = RunningSums(bins=bins)
    encoded = sums.encode(counts)
    assert encoded.dtype == np.int64
    assert np.array_equal(encoded[1, 1], matrix_of(bins) @ counts[1, 1]), "a factor a line"
    assert np.allclose(sums.decode(encoded), np.cumsum(counts, axis=-1), atol=1e-9)
    assert np.allclose(sums.covariance(), _running_covariance(bins))


def _running_covariance(bins: int) -> Floats:
    solved = np.tril(np.ones((bins, bins))) @ np.linalg.inv(matrix_of(bins).astype(float))
    return solved @ solved.T


@pytest.mark.parametrize("bins", [0, 3654, 2.5])
def test_bins_out_of_range_are_refused(bins: int) -> None:
    with pytest.raises(ParameterError, match=r"bins|nights"):
        RunningSums(bins=bins)


Place = tuple[int | None, ...]


def _moves(columns: Ints, before: Place, after: Place) -> int:
    """Return how far a record moves lines, squared, from a cell of each line (None: in none of its cells)."""
    total = 0
    for old, new in zip(before, after, strict=True):
        change = sum(sign * columns[:, place] for sign, place in ((-1, old), (1, new)) if place is not None)
        total += int(np.sum(np.square(change)))
    return total


@pytest.mark.parametrize(("bins", "lines"), [(2, 3), (3, 2), (5, 2)])
def test_sensitivities_are_the_largest_moves_of_all_records(bins: int, lines: int) -> None:
    """By enumeration: rows in one cell of each line; against nothing; and where cells may be missing."""
    columns, sums = matrix_of(bins), RunningSums(bins=bins)
    whole = list(itertools.product(range(bins), repeat=lines))
    missing = list(itertools.product([*range(bins), None], repeat=lines))
    nothing: Place = (None,) * lines

    def largest(left: Sequence[Place], right: Sequence[Place]) -> float:
        return math.sqrt(max(_moves(columns, one, other) for one in left for other in right))

    assert largest(whole, [nothing]) == pytest.approx(sums.sensitivity(entered=lines), rel=1e-12)
    assert largest(whole, whole) == pytest.approx(sums.sensitivity(entered=0, moved=lines), rel=1e-12)
    bound = sums.sensitivity(entered=2 * lines)
    assert largest(missing, missing) <= bound
    assert bound == pytest.approx(math.sqrt(2.0) * sums.sensitivity(entered=lines), rel=1e-12)


def test_one_factor_through_all_lines_would_break_the_bound() -> None:
    """Ten columns of 64 bins, a row against one whose cells are all missing: 9.08 where 6.91 would be booked."""
    bins, lines = 64, 10
    through = matrix_of(bins * lines) / 64.0
    row = np.zeros(bins * lines)
    row[bins - 1 :: bins] = 1.0
    found = max(
        float(np.linalg.norm(through[:, places].sum(axis=1)))
        for places in (np.arange(lines) * bins + shift for shift in (0, bins - 1))
    )
    booked = RunningSums(bins=bins).sensitivity(entered=2 * lines) / 64.0
    assert booked == pytest.approx(6.92, abs=0.01)
    assert found > 1.3 * booked
    own = RunningSums(bins=bins).encode(np.eye(bins, dtype=np.int64)[np.zeros(lines, dtype=int)]) / 64.0
    assert np.linalg.norm(own) <= booked / math.sqrt(2.0) * (1 + 1e-12)


# ── the release ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _records(algorithm: ScoreDistribution, classes: int) -> list[tuple[Floats, int]]:
    """Return a record for every choice of bins and label."""
    known = edges(algorithm.bins, algorithm.scale)
    middles = np.concatenate([[known[0] - 1.0], (known[:-1] + known[1:]) / 2.0, [known[-1] + 1.0]])
    scores = itertools.product(middles, repeat=1 if classes == 2 else classes)
    return [(np.array(row), label) for row in scores for label in range(classes)]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("classes", "bins"), [(2, 2), (2, 6), (3, 4)])
def test_the_sensitivity_is_attained_and_exceeded_by_no_pair_of_records(
    classes: int, bins: int, relation: Neighbours
) -> None:
    algorithm, setting = ScoreDistribution(budget=HALF, bins=bins), setting_of(classes, 1, relation)
    assert attained(algorithm, setting) == pytest.approx(1.0, abs=1e-12)
    records = _records(algorithm, classes)
    values = [algorithm.statistic(ArrayRows(row[None], np.array([label])), setting).ravel() for row, label in records]
    nothing = np.zeros_like(values[0])
    others = [nothing, *(values if relation is Neighbours.REPLACE_ONE else [])]
    found = max(float(np.linalg.norm(one - other)) for one in values for other in others)
    assert found == pytest.approx(algorithm.sensitivity(setting), rel=1e-12)


class ThroughBoth(ScoreDistribution):
    """A mutant: one factor through the lines of both labels."""

    def contribution(self, state: Ints, rows: ArrayRows, setting: Setting) -> Ints:  # type: ignore[override]
        counts = super(ScoreDistribution, self).contribution(state, rows, setting)
        flat = RunningSums(bins=counts.size).encode(counts.ravel())
        return flat.reshape(counts.shape)


class NoRootOfTwo(ScoreDistribution):
    """A mutant: the move of one line, where two move."""

    def sensitivity(self, setting: Setting) -> float:
        return self.sums().sensitivity(entered=self._scores(setting))


class HalfTheNoise(ScoreDistribution):
    """A mutant."""

    def distribution(self, setting: Setting) -> RoundedGaussian:
        return RoundedGaussian(super().distribution(setting).sigma / 2.0)


class WithinOneLine(ScoreDistribution):
    """A mutant: as if both rows had one label."""

    def sensitivity(self, setting: Setting) -> float:
        return self.sums().sensitivity(entered=0, moved=self._scores(setting))


@pytest.mark.parametrize("mutant", [NoRootOfTwo, WithinOneLine])
def test_a_sensitivity_that_is_too_small_is_exceeded(mutant: type[ScoreDistribution]) -> None:
    assert attained(mutant(budget=HALF), setting_of()) > 1.15
    assert attained(ScoreDistribution(budget=HALF), setting_of()) <= 1.0


def test_one_factor_through_both_labels_moves_by_more_than_is_booked_where_a_row_may_be_null() -> None:
    """The first bins of a line then have a column of twice the length; against a null record it is longer."""
    setting = setting_of(relation=Neighbours.REPLACE_SPECIAL)
    assert attained(ThroughBoth(budget=HALF), setting) > 1.04


@pytest.mark.parametrize(
    ("cls", "verdict"),
    [
        (ScoreDistribution, Verdict.TIGHT),
        (HalfTheNoise, Verdict.VIOLATES),
        (NoRootOfTwo, Verdict.VIOLATES),
    ],
)
def test_the_audit_is_tight_and_catches_the_mutants(cls: type[ScoreDistribution], verdict: Verdict) -> None:
    """At a confidence of 1 - 1e-9, from 100,000 runs whose sums have a known likelihood ratio."""
    report = audit_algorithm(
        [(cls(budget=GaussianMu(1.0), bins=8), setting_of(rows=16))],
        AuditOptions(delta=0.05, trials=100_000, confidence=1 - 1e-9),
        name=cls.__name__,
        kind="evaluators",
    )
    assert report.verdict is verdict, report


@pytest.mark.parametrize("most", [1, 7])
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_persons_rows_together_move_the_sums_by_no_more(most: int, relation: Neighbours) -> None:
    random, algorithm = np.random.default_rng(most), ScoreDistribution(budget=HALF, bins=8)
    setting = Setting(
        sizes=(4,), dimension=3, classes=3, neighbours=relation, trust=Trust.CENTRAL, rows_per_person=most
    )
    single = one_row_apart(setting, -9.0 * np.ones(3), 9.0 * np.ones(3), labels=(0, 1))
    assert moved(algorithm, setting, of_people(single, most)) <= algorithm.sensitivity(setting) * (1 + 1e-12)

    def person(count: int) -> Floats:
        rows = ArrayRows(
            random.normal(0, 3, (count, 3)), random.integers(0, 3, count), 100, np.full(count, count), people=4
        )
        return algorithm.statistic(rows, setting).ravel()

    for _ in range(50):
        one, other = (person(int(random.integers(1, most + 1))) for _ in range(2))
        other = other if relation is Neighbours.REPLACE_ONE else np.zeros_like(one)
        assert np.linalg.norm(one - other) <= algorithm.sensitivity(setting) * (1 + 1e-12)


def test_a_score_on_an_edge_lies_below_it_as_it_is_predicted() -> None:
    """A threshold predicts the second class above it; a model of zeros gives every row a score of 0."""
    algorithm, setting = ScoreDistribution(budget=HALF, bins=4, scale=2.0), setting_of(rows=5)
    known = edges(4, 2.0)
    assert known[1] == 0.0
    scores = np.array([known[0], 0.0, np.nextafter(0.0, 1.0), known[2], np.nan])
    counts = algorithm.statistic(ArrayRows(scores[:, None], np.ones(5, dtype=np.int64)), setting)
    exact = RunningSums(bins=4).decode(counts)
    assert np.allclose(exact[0], [[0, 0, 0, 0], [1, 2, 4, 4]]), "what is no number is a null record"
    matrix = ConfusionMatrix(budget=HALF).statistic(ArrayRows(scores[:, None], np.ones(5, dtype=np.int64)), setting)
    assert matrix[1].tolist() == [2.0, 2.0]
    assert known == pytest.approx(-known[::-1])
    with pytest.raises(ParameterError, match=r"^bins.*5.*even"):
        ScoreDistribution(budget=HALF, bins=5)
    assert NULL_LABEL < 0


# ── its noise ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _deviations(scores: ScoreSums) -> tuple[Floats, Floats, float]:
    """Return the deviations of counts below and above each inner edge, of the worse label, and of all of them."""
    below = np.sqrt(np.diagonal(scores.covariance, axis1=1, axis2=2))
    looks = np.eye(scores.sums.shape[1])
    above = np.sqrt([[(looks[-1] - look) @ of @ (looks[-1] - look) for look in looks[:-1]] for of in scores.covariance])
    return below[:, :-1].max(axis=0), above.max(axis=0), float(below[:, -1].max())


def test_every_count_has_the_noise_that_is_stated() -> None:
    """In units of 1/mu, mu that of the measured release, of which these sums have half of mu^2.

    Plain bins had 8/mu in the middle and up to 11/mu at the ends.
    """
    algorithm, setting = ScoreDistribution(budget=HALF), setting_of()
    (scores,) = ScoreSums.of_release(np.zeros((1, 2, BINS)), algorithm, setting)
    below, above, total = _deviations(scores)
    assert max(below.max(), total) * MU <= 4.4
    assert above.max() * MU <= 5.3
    # Given that both labels' totals add up to a known number.
    (line, _), ends = scores.covariance, np.ones(BINS)
    looks = ends[None, :] * (np.arange(BINS) == BINS - 1) - np.eye(BINS)[:-1]
    known = np.einsum("ti,ij,tj->t", looks, line, looks) - (looks @ line[:, -1]) ** 2 / (2.0 * line[-1, -1])
    assert math.sqrt(known.max()) * MU <= 4.61

    matrix = ConfusionMatrix(budget=HALF)
    tau = matrix.deviation(setting)
    assert tau * MU == pytest.approx(2.0, rel=0.01)
    assert math.sqrt(2.0) * tau * MU <= 2.84
    below, above, total = _deviations(scores.combined(np.zeros((2, 2)), tau))
    assert below.max() * MU <= 3.91
    assert above.max() * MU <= 4.12
    assert max(below[BINS // 2 - 1], above[BINS // 2 - 1]) * MU <= 1.83
    assert total * MU <= 2.36


def _standardised(cls: type[ScoreDistribution], matrix: bool, runs: int = 400) -> Floats:
    """Return errors of released sums over the deviations stated for the sound class, (runs, 2, T)."""
    random, algorithm, setting = np.random.default_rng(1), cls(budget=HALF), setting_of()
    rows = ArrayRows(random.normal(0, 2, (400, 1)), random.integers(0, 2, 400))
    exact = RunningSums(bins=BINS).decode(algorithm.statistic(rows, setting))[0]
    evaluator = ConfusionMatrix(budget=HALF)
    errors = []
    for run in range(runs):
        noise = KeyedNoise(bytes(32), str(run))
        values = run_sums(algorithm, [rows], setting, TrustedSummation(noise)).values
        (scores,) = ScoreSums.of_release(values, ScoreDistribution(budget=HALF), setting)
        if matrix:
            counts = run_sums(evaluator, [rows], setting, TrustedSummation(KeyedNoise(bytes(32), f"m{run}")))
            scores = scores.combined(counts.values, evaluator.deviation(setting))
        root = np.linalg.cholesky(scores.covariance)
        errors.append(np.linalg.solve(root, (scores.sums - exact)[..., None])[..., 0])
    return np.array(errors)


def _rejected(errors: Floats) -> bool:
    """Whether the stated covariance is refuted: of white errors the sum of squares is chi-squared; 1e-9."""
    share = chi2.cdf(float(np.square(errors).sum()), errors.size)
    return not 5e-10 < share < 1 - 5e-10


@pytest.mark.parametrize("matrix", [False, True])
def test_the_noise_of_released_sums_has_the_covariance_that_is_stated(matrix: bool) -> None:
    """12,800 or more whitened errors, a false alarm of 1e-9: five per cent of noise more or less are told apart."""
    errors = _standardised(ScoreDistribution, matrix)
    assert not _rejected(errors)
    assert _rejected(errors * 1.05)
    assert _rejected(errors / 1.05)


def test_half_the_noise_is_told_apart() -> None:
    assert _rejected(_standardised(HalfTheNoise, matrix=False, runs=100))


def test_least_squares_is_the_conditional_mean_of_gaussians(random: np.random.Generator) -> None:
    """The same in the other form: the inverse of what both releases say, by precision."""
    algorithm, setting = ScoreDistribution(budget=HALF, bins=6), setting_of()
    values = random.normal(50, 10, (1, 2, 6)).cumsum(axis=2)
    (scores,) = ScoreSums.of_release(values, algorithm, setting)
    matrix, tau = random.normal(150, 20, (2, 2)), 4.0
    found = scores.combined(matrix, tau)
    looks = np.array([[0, 0, 1, 0, 0, 0], [0, 0, -1, 0, 0, 1.0]])
    for label in range(2):
        precise = np.linalg.inv(scores.covariance[label])
        together = np.linalg.inv(precise + looks.T @ looks / tau**2)
        assert np.allclose(found.covariance[label], together)
        mean = together @ (precise @ values[0, label] + looks.T @ matrix[label] / tau**2)
        assert np.allclose(found.sums[label], mean)


@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.CENTRAL, "secagg"])
def test_noise_of_several_parties_is_stated(trust: str) -> None:
    """The factor of the trust model's noise multiplies every deviation."""
    algorithm: ScoreDistribution = ScoreDistribution(budget=HALF)
    plain, louder = setting_of(), Setting(sizes=(200, 200), dimension=1, classes=2, trust=trust, noise_factor=1.5)
    one, other = (ScoreSums.of_release(np.zeros((1, 2, BINS)), algorithm, of)[0] for of in (plain, louder))
    assert np.allclose(other.covariance, 2.25 * one.covariance)


def test_two_parties_sums_are_the_sum_of_theirs() -> None:
    random, algorithm = np.random.default_rng(3), ScoreDistribution(budget=HALF)
    setting = Setting(sizes=(20, 30), dimension=1, classes=2, trust=Trust.CENTRAL)
    parties = [ArrayRows(random.normal(0, 2, (rows, 1)), random.integers(0, 2, rows)) for rows in (20, 30)]
    apart: list[Ints] = [algorithm.contribution(algorithm.initial(setting), rows, setting) for rows in parties]
    both = ArrayRows(
        np.concatenate([rows.features for rows in parties]), np.concatenate([rows.labels for rows in parties])
    )
    together: Callable[[ArrayRows], Ints] = lambda rows: algorithm.contribution(  # noqa: E731
        algorithm.initial(setting), rows, setting
    )
    assert np.array_equal(sum(apart), together(both))
