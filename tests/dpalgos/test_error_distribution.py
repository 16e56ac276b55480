"""The distribution of a regression's errors: exact integers, the sensitivity by enumeration, what is decoded."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from dpalgos.error_margins import ErrorCounts
from dpalgos.evaluators.error_distribution import ErrorDistribution, parts_for
from dpalgos.guarantees import RELATIONS, GaussianMu, Neighbours, Setting
from dpalgos.mechanisms.running_sums import RunningSums
from dpalgos.models import Statistic
from dpalgos.parameters import ParameterError
from dpalgos.rows import Array, ArrayRows, Floats, Ints

RANGE = (-3.0, 5.0)
# Label and prediction at the ends, beyond them, at edges of bins, between them, and everywhere the bound cuts.
PLACES = np.array([-math.inf, -9.0, -3.0, -2.99, -1.0, 0.0, 0.5, 1.0, 1.0 + 8 * 2.0**-9, 1.7, 2.99, 3.0, 4.9, 5.0, 9.0])


def errors(**given: Any) -> ErrorDistribution:
    return ErrorDistribution(**{"budget": GaussianMu(0.5), "label_range": RANGE, **given})


def setting_of(rows: int, relation: Neighbours = Neighbours.REPLACE_ONE, people: int = 1) -> Setting:
    return Setting(sizes=(rows,), dimension=1, classes=1, neighbours=relation, rows_per_person=people)


def moved_by(algorithm: ErrorDistribution, setting: Setting, predictions: Floats, targets: Floats) -> Floats:
    return algorithm.statistic(ArrayRows(predictions[:, None], targets), setting)


def records(algorithm: ErrorDistribution, setting: Setting) -> Floats:
    each = itertools.product(PLACES[1:], PLACES[1:])
    found = [moved_by(algorithm, setting, np.array([p]), np.array([t])) for p, t in each]
    null = moved_by(algorithm, setting, np.array([0.0]), np.array([math.nan]))
    assert not null.any()
    return np.array([*found, null])


def largest(algorithm: ErrorDistribution, relation: Neighbours) -> float:
    """How far two of the records are apart, or one and nothing, in the integers that are released."""
    among = records(algorithm, setting_of(2, relation))
    if relation is Neighbours.REPLACE_ONE:
        squares = np.square(among).sum(axis=1)
        return math.sqrt((squares[:, None] + squares[None] - 2.0 * among @ among.T).max())
    return float(np.linalg.norm(among, axis=1).max())


KINDS = [{}, {"bound": 2.0, "centre": 1.0}, {"bound": 0.01, "centre": -20.0}, {"parts": 8, "bound": 6.0}]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("given", KINDS)
def test_no_two_records_are_farther_apart(given: dict[str, Any], relation: Neighbours) -> None:
    """All pairs of a grid of predictions and labels, the null record, and some that are as far but for 8 %."""
    algorithm = errors(**given)
    assert largest(algorithm, relation) <= algorithm.sensitivity(setting_of(2, relation)) * (1 + 1e-12)
    assert largest(algorithm, relation) >= 0.92 * algorithm.sensitivity(setting_of(2, relation))


def test_one_column_for_two_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant that books ‖ĉ‖ where rows of two signs move both lines: √2 ‖ĉ‖."""
    algorithm, setting = errors(), setting_of(2)
    whole = algorithm.sensitivity(setting)
    longest = RunningSums(bins=algorithm.bins).sensitivity(entered=1)
    assert largest(algorithm, Neighbours.REPLACE_ONE) > math.sqrt(whole**2 - longest**2)


class InBothLines(ErrorDistribution):
    """The mutant that counts each row in both lines."""

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        found = super().of_block(features, labels, parts, setting)
        lines = found[: 2 * self.bins].reshape(2, self.bins)
        return np.concatenate([np.tile(lines.sum(axis=0), 2), found[2 * self.bins :]])


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_row_in_both_lines_is_caught(relation: Neighbours) -> None:
    algorithm = InBothLines(budget=GaussianMu(0.5), label_range=RANGE)
    assert largest(algorithm, relation) > 1.05 * algorithm.sensitivity(setting_of(2, relation))


class BoundOfTheRows(ErrorDistribution):
    """The mutant that takes B from the rows that are measured."""

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        low, high = self.label_range
        own = float(np.subtract(*np.quantile(np.clip(labels.astype(float), low, high), [0.95, 0.05])))
        of_rows = ErrorDistribution(budget=self.budget, label_range=self.label_range, bound=max(own, 1e-6))
        return of_rows.of_block(features, labels, parts, setting)


@pytest.mark.parametrize("cls", [ErrorDistribution, BoundOfTheRows])
def test_the_other_rows_are_counted_alike_whatever_one_of_them_is(cls: type[ErrorDistribution]) -> None:
    """Of 40 rows one decides where their 95 % quantile lies, and with B of the rows moves what all of them add."""
    algorithm, setting = cls(budget=GaussianMu(0.5), label_range=RANGE, bound=2.0), setting_of(40)
    labels = np.concatenate([np.linspace(-0.1, 0.1, 37), [4.0, 4.0, 4.0]])
    one, other = (moved_by(algorithm, setting, np.zeros(40), np.append(labels[:-1], last)) for last in (4.0, 0.0))
    within = np.linalg.norm(one - other) <= algorithm.sensitivity(setting) * (1 + 1e-12)
    assert within == (cls is ErrorDistribution)


def test_a_persons_rows_move_no_more_than_a_row() -> None:
    """A person with k rows anywhere, against another with others, drawn 300 times: at most the sensitivity."""
    random, most = np.random.default_rng(5), 7
    for relation in RELATIONS:
        algorithm, setting = errors(bound=2.0, centre=1.0), setting_of(2, relation, most)
        for _ in range(150):
            sides = []
            for _ in range(2):
                count = int(random.integers(1, most + 1))
                predictions, targets = random.choice(PLACES[1:], (2, count))
                if random.random() < 0.5:
                    predictions, targets = np.full((2, count), [[predictions[0]], [targets[0]]])
                rows = ArrayRows(
                    predictions[:, None],
                    targets,
                    shares=np.full(count, count),
                    people=1,
                    places=np.zeros(count, dtype=np.int64),
                )
                sides.append(algorithm.statistic(rows, setting))
            other = sides[1] if relation is Neighbours.REPLACE_ONE else 0.0 * sides[1]
            assert np.linalg.norm(sides[0] - other) <= algorithm.sensitivity(setting) * (1 + 1e-12)


def released(algorithm: ErrorDistribution, setting: Setting, predictions: Floats, targets: Floats) -> ErrorCounts:
    """What would be released without noise."""
    rows = ArrayRows(predictions[:, None], targets)
    found = algorithm.result(algorithm.contribution(algorithm.initial(setting), rows, setting), setting)
    assert isinstance(found, Statistic)
    return ErrorCounts.of_release(found.values, algorithm, setting)


def test_counts_are_those_of_clipped_errors() -> None:
    random = np.random.default_rng(1)
    targets, predictions = random.normal(1, 3, (2, 3000))
    targets[:3], predictions[:3] = [1.0, 5.0, -3.0], [1.0, -3.0, 5.0]
    algorithm, setting = errors(bound=2.5, centre=0.7), setting_of(3000)
    found = released(algorithm, setting, predictions, targets)
    truth, said = np.clip(targets, *RANGE), np.clip(predictions, *RANGE)
    error = truth - said
    assert found.edges[0] == pytest.approx(8 * 2**-0.25)
    assert found.edges[-2:].tolist() == [8 * 2.0**-16, 0.0]
    above = [(error >= edge).sum() for edge in found.edges]
    below = [((error < 0) & (-error >= edge)).sum() for edge in found.edges]
    assert np.allclose(found.sums, [above, below], atol=1e-6)
    assert found.total == 3000
    assert found.sums[:, -1].sum() == pytest.approx(3000)
    cut, apart = np.minimum(np.abs(error) / 2.5, 1.0), (truth - 0.7) / 2.5
    # Rounded to 2^-13 or finer, each row by half of that.
    near = 3000 * 2.0**-14
    h, g = np.square(cut), np.minimum(apart**2, 1.0)
    inside = np.where(np.abs(apart) < 1, apart, 0.0)
    expected = [one.sum() for one in (h, cut, g, h * h, g * g, h * g, inside)]
    assert found.moments == pytest.approx(expected, abs=near)


@pytest.mark.parametrize("relation", RELATIONS)
def test_noise_is_as_large_as_it_is_said_to_be(relation: Neighbours) -> None:
    """2,000 releases of nothing: each variance within 6.5 standard errors (false alarm below 10⁻⁷), half is caught."""
    algorithm, setting = errors(budget=GaussianMu(0.3)), setting_of(50, relation)
    random, size = np.random.default_rng(7), algorithm.sum_shape(setting)[0]
    sigma = algorithm.distribution(setting).sigma
    noise = np.rint(random.standard_normal((2000, size)) * sigma).astype(np.int64)
    found = [ErrorCounts.of_release(algorithm.result(one, setting).values, algorithm, setting) for one in noise]
    room = 6.5 * math.sqrt(2 / 2000)
    lines = np.stack([one.sums for one in found]).var(axis=0) / found[0].deviations_of_sums ** 2
    assert np.abs(lines - 1).max() < room
    sums = np.array([one.moments for one in found])
    assert np.abs(sums.var(axis=0) / found[0].deviations ** 2 - 1).max() < room
    assert np.var([one.total for one in found]) / found[0].total_deviation ** 2 == pytest.approx(1, abs=room)
    assert found[0].covariance.shape == (algorithm.bins,) * 2


def test_wider_ranges_leave_the_noise_as_it_is() -> None:
    setting = setting_of(100)
    one, wide = (
        released(errors(label_range=(0.0, width), bound=2.0, centre=1.0), setting, np.zeros(100), np.ones(100))
        for width in (8.0, 800.0)
    )
    assert np.array_equal(one.covariance, wide.covariance)
    assert np.array_equal(one.deviations, wide.deviations)


def test_how_many_bins_there_are_is_decided_by_public_numbers() -> None:
    assert [parts_for(rows, 0.27) for rows in (300, 500, 600, 100_000)] == [4, 4, 8, 8]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"label_range": (1.0, 1.0)}, "label_range"),
        ({"label_range": (-1e308, 1e308)}, "label_range"),
        ({"bound": 0.0}, "bound"),
        ({"bound": math.nan}, "bound"),
        ({"centre": math.inf}, "centre"),
        ({"share": -0.01}, "share"),
        ({"share": 1.01}, "share"),
        ({"parts": 9}, "parts"),
    ],
)
def test_what_is_no_range_bound_or_number_of_bins_is_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        errors(**given)
