"""Confusion matrices by group: how far one record moves them, to which group a row belongs, and what margins hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from dpalgos import group_margins, margins, testing
from dpalgos.algorithms import attained
from dpalgos.audit.experiment import AuditOptions, Verdict
from dpalgos.audit.releases import audit_algorithm
from dpalgos.evaluators.by_group import ConfusionByGroup, LaplaceConfusionByGroup
from dpalgos.evaluators.confusion import ConfusionMatrix
from dpalgos.features.column_groups import ColumnGroups
from dpalgos.group_margins import (
    SHOWN_FROM,
    GroupEstimates,
    Rates,
    RatesOfGroup,
    metrics_of_noisy_group,
    rates_of_noisy_group,
)
from dpalgos.guarantees import RELATIONS, GaussianMu, Neighbours, PureEpsilon, Setting
from dpalgos.integer_sums import portions
from dpalgos.margins import metrics_of_noisy_confusion, of_sum, simulated
from dpalgos.measured import Metrics
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.metrics import rates_of_group
from dpalgos.normalisation import Clip, UnitNorm
from dpalgos.parameters import ParameterError
from dpalgos.rows import NULL_LABEL, Array, ArrayRows, Floats, Ints, Shares
from tests.dpalgos.parameters import PARAMETERS
from tests.support.coverage import Held

ONE, PURE = GaussianMu(1.0), PureEpsilon(1.0)
ALGORITHMS: list[Any] = [
    ConfusionByGroup(budget=ONE, groups=3),
    ConfusionByGroup(budget=ONE, groups=3, alone=True),
    LaplaceConfusionByGroup(budget=PURE, groups=3),
]


def setting_of(
    relation: Neighbours = Neighbours.REPLACE_ONE, classes: int = 2, people: int = 1, rows: int = 1
) -> Setting:
    dimension = 2 if classes == 2 else 1 + classes
    return Setting(sizes=(rows,), dimension=dimension, classes=classes, neighbours=relation, rows_per_person=people)


def records(classes: int, groups: int = 3) -> list[tuple[Floats, int]]:
    """Return a row of each group, true and predicted class."""
    scores = [[-1.0], [1.0]] if classes == 2 else np.eye(classes).tolist()
    whole = itertools.product(range(groups), scores, range(classes))
    return [(np.array([group, *of_classes]), label) for group, of_classes, label in whole]


def moved(values: list[Floats], others: list[Floats], norm: int) -> float:
    return max(float(np.linalg.norm(one - other, ord=norm)) for one in values for other in others)


# ── sensitivity ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["gaussian", "alone", "laplace"])
def test_one_record_moves_the_matrices_of_all_groups_as_far_as_one_matrix(
    algorithm: Any, classes: int, relation: Neighbours
) -> None:
    """By enumeration of every pair of rows, of the same and of different groups, and of null records."""
    setting = setting_of(relation, classes)
    values = [
        algorithm.statistic(ArrayRows(row[None], np.array([label])), setting).ravel() for row, label in records(classes)
    ]
    assert len({tuple(value) for value in values}) == 3 * classes**2, "each cell of each group is a count of its own"
    nothing = np.zeros_like(values[0])
    found = moved(values, [nothing, *(values if relation is Neighbours.REPLACE_ONE else [])], algorithm.norm)
    assert found == pytest.approx(algorithm.sensitivity(setting), rel=1e-12)
    assert found == pytest.approx(algorithm.times * ConfusionMatrix(budget=ONE).sensitivity(setting)) or (
        algorithm.norm == 1
    )
    assert attained(algorithm, setting) == pytest.approx(1.0, abs=1e-12)


class OneGroupOnly(ConfusionByGroup):
    """A mutant: what the group that loses the row is moved by, and not the one that gains it."""

    def sensitivity(self, setting: Setting) -> float:
        return 1.0


class EachGroup(ConfusionByGroup):
    """A mutant: as if a row were in a cell of every group."""

    def sensitivity(self, setting: Setting) -> float:
        return math.sqrt(self.groups) * super().sensitivity(setting)


class Everywhere(ConfusionByGroup):
    """A mutant: rows are counted in their own group and in the last, as if that were of all rows."""

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        counts = super().of_block(features, labels, parts, setting)
        counts[-1] += counts[:-1].sum(axis=0)
        return counts


class WithoutAllRows(ConfusionByGroup):
    """A mutant: as if the matrix of all rows cost nothing."""

    def sensitivity(self, setting: Setting) -> float:
        return 2.0 * math.sqrt(setting.neighbours.records)


@pytest.mark.parametrize(
    ("mutant", "low", "high"), [(OneGroupOnly, 3.1, 3.2), (WithoutAllRows, 1.11, 1.12), (EachGroup, 0.5, 0.6)]
)
def test_another_price_than_that_of_one_matrix_is_caught(
    mutant: type[ConfusionByGroup], low: float, high: float
) -> None:
    assert low < attained(mutant(budget=ONE, groups=3), setting_of()) < high


def test_a_row_that_is_counted_in_two_groups_is_caught() -> None:
    mutant, setting = Everywhere(budget=ONE, groups=3), setting_of()
    values = [mutant.statistic(ArrayRows(row[None], np.array([label])), setting).ravel() for row, label in records(2)]
    assert moved(values, values, 2) > 1.3 * mutant.sensitivity(setting)


class HalfTheNoise(ConfusionByGroup):
    """A mutant."""

    def distribution(self, setting: Setting) -> RoundedGaussian:
        return RoundedGaussian(super().distribution(setting).sigma / 2.0)


@pytest.mark.parametrize(
    ("cls", "verdict"),
    [
        (ConfusionByGroup, Verdict.TIGHT),
        (OneGroupOnly, Verdict.VIOLATES),
        (HalfTheNoise, Verdict.VIOLATES),
        (EachGroup, Verdict.CONSISTENT),
    ],
)
def test_the_audit_is_tight_and_catches_what_books_one_group_only(
    cls: type[ConfusionByGroup], verdict: Verdict
) -> None:
    """At a confidence of 1 - 1e-9, from 100,000 runs whose sums have a known likelihood ratio."""
    report = audit_algorithm(
        [(cls(budget=ONE, groups=3), setting_of(rows=16))],
        AuditOptions(delta=0.05, trials=100_000, confidence=1 - 1e-9),
        name=cls.__name__,
        kind="evaluators",
    )
    assert report.verdict is verdict, report


def people(algorithm: ConfusionByGroup, most: int, relation: Neighbours) -> float:
    """Return how far a person with any rows moves the matrices, in units of what a row moves them by at most."""
    setting = setting_of(relation, people=most)
    each, values = records(2, 2), []
    for held in range(1, most + 1):
        for chosen in itertools.combinations_with_replacement(each, held):
            features, labels = np.array([row for row, _ in chosen]), np.array([label for _, label in chosen])
            rows = ArrayRows(features, labels, shares=np.full(held, held))
            values.append(algorithm.statistic(rows, setting).ravel())
    nothing = np.zeros_like(values[0])
    others = [nothing, *(values if relation is Neighbours.REPLACE_ONE else [])]
    return moved(values, others, algorithm.norm) / algorithm.sensitivity(setting)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("algorithm", [ConfusionByGroup(budget=ONE), LaplaceConfusionByGroup(budget=PURE)])
def test_a_person_with_rows_of_several_groups_moves_them_no_further_than_a_row(
    algorithm: ConfusionByGroup, relation: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every person of up to three rows, against every other one; the mutant rounds a row's part up."""
    assert people(algorithm, 3, relation) == pytest.approx(1.0, abs=1e-12)

    def up(unit: int, shares: Shares | None, count: int) -> Ints:
        return np.full(count, unit) if shares is None else -(-unit // shares.astype(np.int64))

    monkeypatch.setattr("dpalgos.evaluators.noisy_sums.portions", up)
    assert people(algorithm, 3, relation) > 1.0 + 1e-6


def test_the_contract_catches_a_persons_rows_that_each_count_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    case = testing._Case("evaluators", "confusion-by-group", PARAMETERS["evaluators", "confusion-by-group"][0])
    testing._moves_by_people_as_by_records(case)
    monkeypatch.setattr("dpalgos.evaluators.noisy_sums.portions", lambda unit, _, count: portions(unit, None, count))
    with pytest.raises(AssertionError, match="statistic"):
        testing._moves_by_people_as_by_records(case)


def test_every_row_is_counted_once_whatever_its_group_is_said_to_be() -> None:
    features = np.array([[-7.0, 1.0], [0.4, 1.0], [1.0, -1.0], [1e308, -1.0], [2.0, 1.0], [1.0, 1.0], [np.nan, 1.0]])
    labels = np.array([0, 1, 1, 0, 1, NULL_LABEL, 0])
    counts = ALGORITHMS[0].statistic(ArrayRows(features, labels), setting_of(rows=7))
    expected = np.zeros((3, 2, 2))
    expected[0, 0, 1] = expected[0, 1, 1] = expected[1, 1, 0] = expected[2, 0, 0] = expected[2, 1, 1] = 1.0
    np.testing.assert_array_equal(counts, [*2 * expected, expected.sum(axis=0)])


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def groups_of(rows: Any, **column: Any) -> list[float]:
    mapped = ColumnGroups(**column).map_for(np.shape(rows)[1]).apply(np.asarray(rows, dtype=np.float64))
    assert mapped.shape == (len(rows), 1)
    return [float(group) for group in mapped[:, 0]]


def test_a_category_is_told_whatever_its_row_was_divided_by_and_none_of_its_values_is_missing() -> None:
    rows = np.array([[0.3, 0.7, 0, 0], [0.3, 0, 0.7, 0], [0.3, 0, 0, 0.7], [0.3, 0, 0, 0], [0.3, 0.7, 0, 0.7]])
    column = {"at": 1, "values": 3, "names": ["a", "b", "c", "missing"]}
    for scaled in (rows, UnitNorm()(rows), 1e-3 * rows):
        assert groups_of(scaled.astype(np.float32), **column) == [0, 1, 2, 3, 0]
    assert np.isnan(groups_of([[0.3, np.inf, 0, 0]], **column)).all()


@pytest.mark.parametrize("normalise", [None, UnitNorm(), Clip()])
def test_a_number_is_told_by_its_ratio_to_the_constant_feature(normalise: Any) -> None:
    """Values on an edge lie in the part above it, after rounding to float32 and division by the row's norm."""
    values = np.repeat(np.arange(0.0, 80.0 + 1e-9, 2.5), 40)
    random = np.random.default_rng(0)
    rows = np.stack(
        [1.7 * (values / 40.0 - 1.0), random.normal(size=len(values)), np.full(len(values), 0.0995)], axis=1
    )
    rows = np.append(rows, np.zeros((len(rows), 1)), axis=1)
    rows[:7, 3] = 0.6
    seen = rows.astype(np.float32).astype(np.float64)
    if normalise is not None:
        seen = normalise(seen).astype(np.float32).astype(np.float64)
    width = 2 * 1.7
    edges = [-1.7 + width * (part / 8 - 2.0**-20) for part in range(1, 8)]
    names = [*map(str, range(8)), "missing"]
    found = groups_of(seen, at=0, names=names, edges=edges, missing=3, scale=2, unit=0.0995)
    expected = np.minimum(values // 10, 7)
    expected[:7] = 8
    assert found == expected.tolist()
    if normalise is not None:
        # The mutant takes the feature as it is.
        assert groups_of(seen, at=0, names=names, edges=edges, missing=3) != expected.tolist()


def test_columns_that_do_not_fit_are_refused() -> None:
    for column, told in (
        ({"names": ["a"], "edges": [0.5]}, "^1 names"),
        ({"names": ["a", "b"], "edges": [0.5], "values": 2}, "edges, missing.*scale"),
        ({"names": ["a", "b", "c"], "edges": [0.5, 0.5]}, r"edges.*\[0\.5, 0\.5\]"),
        ({"names": ["a", "b"], "values": 0}, "^values.*1"),
    ):
        with pytest.raises(ParameterError, match=told):
            ColumnGroups(**column)  # type: ignore[arg-type]  # as parameters come
    with pytest.raises(ParameterError, match="feature 4"):
        ColumnGroups(at=3, values=2, names=("a", "b")).map_for(4)


# ── margins ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_FALSE_ALARM = 1e-9
_RUNS = 200


def held(
    counts: Any, sigma: float, stated: float | None = None, runs: int = _RUNS
) -> tuple[dict[str, int], dict[str, int]]:
    """Return how often the margin of each rate of a group held, and how often it was measured.

    Rates are the population's; the number of rows and shares predicted are of the rows themselves.
    """
    random, table = np.random.default_rng([11, int(10 * sigma)]), np.asarray(counts, dtype=np.float64)
    classes = [f"class {place}" for place in range(len(table))]
    population = rates_of_group(table, classes)
    right, measured = dict.fromkeys(population, 0), dict.fromkeys(population, 0)

    def noise(generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return np.rint(generator.standard_normal(shape) * (stated or sigma))

    for _ in range(runs):
        drawn = random.multinomial(int(table.sum()), (table / table.sum()).ravel()).reshape(table.shape).astype(float)
        own = rates_of_group(drawn, classes)
        noisy = drawn + np.rint(random.standard_normal(table.shape) * sigma)
        found = metrics_of_noisy_group(noisy, stated or sigma, noise, classes)
        for name in population:
            true = own[name] if name == "rows" or name.startswith("predicted_") else population[name]
            right[name] += found[f"{name}_low"] - 1e-9 <= true <= found[f"{name}_high"] + 1e-9
            measured[name] += found.is_known(name)
    return right, measured


@pytest.mark.parametrize(
    ("counts", "sigma"),
    [
        ([[2, 1], [0, 1]], 5.0),
        pytest.param([[8, 3], [1, 3]], 15.0, marks=pytest.mark.nightly),
        ([[300, 60], [30, 210]], 5.0),
        ([[5, 1, 0], [1, 4, 1], [0, 0, 3]], 3.0),
    ],
)
def test_margins_of_groups_hold_however_small_they_are(
    counts: Any, sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 runs a case: a coverage of 93 % fails with 1e-9 a number. A quarter of the noise is caught in 60 runs."""
    monkeypatch.setattr(margins, "_MOST", 1000)
    right, measured = held(counts, sigma)
    assert min(right.values()) >= binom.ppf(_FALSE_ALARM, _RUNS, 0.93), right
    if np.sum(counts) > 100:
        assert min(measured.values()) == _RUNS
        quartered, _ = held(counts, sigma, sigma / 4, 60)
        assert min(quartered.values()) < binom.ppf(_FALSE_ALARM, 60, 0.93)
    else:
        # Of such a group a rate is seldom said.
        assert max(of for name, of in measured.items() if name != "rows") < _RUNS // 2, measured


def shown_rates(hits: int, misses: int, sigma: float, runs: int, classes: int = 2) -> tuple[Rates, NDArray[np.bool_]]:
    """Return as many noisy copies of one rate as are shown of so many runs, and which of those runs these are."""
    random = np.random.default_rng([hits, misses, runs])
    rows, parts = hits + misses, (1, classes - 1)

    def noise(shape: tuple[int, ...], part: int) -> Floats:
        return np.rint(random.standard_normal(shape) * sigma * math.sqrt(part))

    right = random.binomial(rows, hits / rows, runs).astype(float)
    found = right + noise((runs,), 1), rows - right + noise((runs,), classes - 1)
    kept = found[0] + found[1] >= SHOWN_FROM * math.sqrt(classes) * sigma
    of, others = (one[kept] for one in found)
    drawn = margins.drawn_rates(random, of - noise((1000, len(of)), 1), others - noise((1000, len(of)), classes - 1))
    variances = (parts[0] * sigma**2, parts[1] * sigma**2, 0.0)
    return Rates(hits=of, misses=others, drawn=drawn, noise=variances), kept


@pytest.mark.parametrize(("hits", "misses"), [(0, 60), (60, 0), (1, 59), (30, 30), (0, 45)])
def test_margins_of_rates_that_are_shown_hold(hits: int, misses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 6,000 runs those that are shown, 170 to 800: a coverage of 95 % fails with 1e-9.

    The mutant asks for the same rows and takes the margins of all runs: of a rate of 0 of 60 rows 16 % of those that
    are shown do not hold it, more than 1e-9 of 800 runs allow.
    """
    rates, kept = shown_rates(hits, misses, 15.0, 6000)
    rate = hits / (hits + misses)

    def held_by(found: Rates) -> int:
        low, high = found.limits().T
        return int(((low - 1e-9 <= rate) & (rate <= high + 1e-9)).sum())

    least = binom.ppf(_FALSE_ALARM, kept.sum(), 0.95)
    assert rates.shown.all()
    assert held_by(rates) >= least
    if (hits, misses) == (0, 60):
        monkeypatch.setattr(Rates, "room", np.full(len(rates.hits), 1e9))
        assert held_by(rates) < least


GROUPS = {
    "0 and 1": [[60, 0], [60, 0]],
    "halves": [[40, 40], [40, 40]],
    "perfect": [[90, 0], [0, 90]],
    "rare": [[600, 3], [20, 3]],
    "1,226 people": [[1200, 0], [26, 0]],
}


RELEASES = ("Gaussian", "Gaussian, after a matrix", "Laplace")
"""Of groups: with all rows, after a release of all rows at the same budget, and of groups alone."""


def released(of: str) -> tuple[Any, GroupEstimates, Callable[[np.random.Generator, Floats], Floats], Any]:
    """Return a release of two groups under noise of some 15, its estimates, what draws them, and a group's noise."""
    sigma, setting = 15.0, setting_of(rows=1000)
    algorithm: Any = LaplaceConfusionByGroup(budget=PureEpsilon(math.sqrt(8) / sigma), groups=2)
    if of != "Laplace":
        algorithm = ConfusionByGroup(budget=GaussianMu(math.sqrt(2) / sigma), groups=2, alone=of != "Gaussian")
    noise, deviation = simulated(algorithm, setting), algorithm.deviation(setting)
    matrix = ConfusionMatrix(budget=GaussianMu(math.sqrt(2) / sigma))
    before, of_before = simulated(matrix, setting), matrix.deviation(setting)
    after = of == "Gaussian, after a matrix"
    estimates = GroupEstimates.of_release(algorithm, deviation, of_before if after else None)

    def drawn(random: np.random.Generator, groups: Floats) -> Floats:
        whole = groups.sum(axis=0)
        counted = [*(algorithm.each * groups), *([whole] if algorithm.whole else [])]
        values = np.stack(counted) + noise(random, (len(counted), *whole.shape))
        all_rows = values[2] if algorithm.whole else whole + before(random, whole.shape) if after else None
        return estimates.counts(values[:2] / algorithm.each, all_rows)[0]

    def of_one(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return np.asarray(noise(random, shape) / algorithm.each)

    return algorithm, estimates, drawn, estimates.noise(of_one, before if after else None)[0]


def examined(counts: list[list[int]], runs: int, *, of: str) -> dict[str, Held]:
    """Return of each rate of a group how often its margin held; rows and predictions are those of the rows drawn."""
    random, table = np.random.default_rng(3), np.array(counts, dtype=float)
    _, estimates, estimated, noise = released(of)
    deviation, _ = estimates.deviations
    population = rates_of_group(table, ("a", "b"))
    drawn = random.multinomial(int(table.sum()), (table / table.sum()).ravel(), runs).reshape(runs, *table.shape)
    found = []
    for run, one in enumerate(drawn):
        # Draws of their own: with one seed all runs would share the error of limits that few draws have.
        with patch.object(group_margins, "PUBLIC_SEED", run):
            noisy = estimated(random, np.stack([one, table]))[0]
            found.append(metrics_of_noisy_group(noisy, deviation, noise, ("a", "b")))
    own = [rates_of_group(one.astype(float), ("a", "b")) for one in drawn]
    return {name: held_of(name, of_all, own, found) for name, of_all in population.items()}


def held_of(name: str, population: float, own: list[dict[str, float]], found: list[Metrics]) -> Held:
    """Return how often margins held the population's number, or the drawn rows' own where that is what it is of."""
    of_rows = name == "rows" or name.startswith("predicted_")
    truth = np.array([one[name] for one in own]) if of_rows else population
    shown = np.array([one.is_known(name) for one in found])
    limits = np.array([one.limits(name) for one in found])
    return Held.of(truth, limits, shown, np.array([one[name] for one in found])[shown])


PAIRS = {
    "alike": ([[120, 40], [40, 120]], [[120, 40], [40, 120]]),
    "perfect and half": ([[90, 0], [0, 90]], [[60, 60], [60, 60]]),
    "both perfect": ([[90, 0], [0, 90]], [[90, 0], [0, 90]]),
    "small and large": ([[50, 10], [20, 40]], [[3000, 300], [500, 1200]]),
    "rare": ([[600, 3], [20, 3]], [[400, 30], [10, 40]]),
    "rates of 0 and 1": ([[80, 0], [80, 0]], [[0, 80], [0, 80]]),
}


def examined_differences(
    counts: tuple[list[list[int]], list[list[int]]], runs: int, *, of: str, correlation: float | None = None
) -> dict[str, Held]:
    """Return of each rate how often the margin of its difference between two groups held, in as many runs."""
    random, tables = np.random.default_rng(5), np.array(counts, dtype=float)
    _, estimates, estimated, noise = released(of)
    deviation, _ = estimates.deviations
    rho = estimates.correlation if correlation is None else correlation
    drawn = np.stack(
        [random.multinomial(int(one.sum()), (one / one.sum()).ravel(), runs).reshape(runs, 2, 2) for one in tables],
        axis=1,
    ).astype(float)

    def of_rows(both: Floats) -> dict[str, float]:
        one, other = (rates_of_group(of_group, ("a", "b")) for of_group in both)
        return {name: value - other[name] for name, value in one.items()}

    population, found = of_rows(tables), []
    for run, both in enumerate(drawn):
        rates: list[RatesOfGroup] = []
        for place, noisy in enumerate(estimated(random, both)):
            with patch.object(group_margins, "PUBLIC_SEED", 2 * run + place):
                rates.append(rates_of_noisy_group(noisy, deviation, noise, ("a", "b")))
        found.append(rates[0].less(rates[1], rho))
    own = [of_rows(one) for one in drawn]
    return {name: held_of(name, population[name], own, found) for name in found[0].names()}


@pytest.mark.nightly
@pytest.mark.parametrize("of", RELEASES)
@pytest.mark.parametrize("pair", PAIRS)
def test_margins_of_differences_hold_in_10_000_runs_and_among_those_shown(
    pair: str, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of rates do."""
    monkeypatch.setattr(margins, "_MOST", 1000)
    for rate, found in examined_differences(PAIRS[pair], 10_000, of=of).items():
        assert found.enough, (rate, found)


def test_noise_has_its_share_of_a_rate_s_variance() -> None:
    """Of T = (1 − p) A − p B with p = 9/10 of 1,000 rows: noise 0.1² · 400 + 0.9² · 400, rows 1000 · 0.9 · 0.1."""
    drawn = np.zeros((2, 1)), np.zeros((2, 1))
    rates = Rates(hits=np.array([900.0]), misses=np.array([100.0]), drawn=drawn, noise=(400.0, 400.0, 0.0))
    assert rates.of_noise == pytest.approx(328.0 / (328.0 + 90.0))
    assert replace(rates, sampled=False).of_noise == pytest.approx(1.0)


def test_margins_of_differences_hold_and_need_the_noise_that_groups_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 300 runs a coverage of 95 % fails with 1e-9 a number; the mutant, in 100, takes half of the noise."""
    monkeypatch.setattr(margins, "_MOST", 500)
    for found in examined_differences(PAIRS["alike"], 300, of="Gaussian, after a matrix").values():
        assert found.held >= binom.ppf(_FALSE_ALARM, 300, 0.95)
        assert found.shown == 300
    monkeypatch.setattr(RatesOfGroup, "less", lambda one, other, _: _one_margin_alone(one, other))
    found_alone = examined_differences(PAIRS["alike"], 100, of="Gaussian, after a matrix")
    assert found_alone["accuracy"].held < binom.ppf(_FALSE_ALARM, 100, 0.95)


def _one_margin_alone(one: RatesOfGroup, other: RatesOfGroup) -> Metrics:
    """The mutant: as if the other group's rate were exact, and half of its margin this one's."""
    found = Metrics()
    for name in one.of_noise:
        low, high = one.metrics.limits(name) or (0.0, 0.0)
        value, half = one.metrics[name] - other.metrics[name], (high - low) / 4.0
        found.update({name: value, f"{name}_low": value - half, f"{name}_high": value + half})
    return found


def test_differences_use_the_covariance_that_estimates_of_two_groups_have() -> None:
    """By closed form: of two groups alike without rows drawn, limits lie √2 as far at β = 0, farther above it."""
    wide = {"accuracy": 0.5, "accuracy_low": 0.4, "accuracy_high": 0.6}
    one = RatesOfGroup(Metrics(wide), {"accuracy": 1.0})
    assert one.less(one, 0.0).limits("accuracy") == pytest.approx((-0.1 * math.sqrt(2), 0.1 * math.sqrt(2)))
    assert one.less(one, -0.5).limits("accuracy") == pytest.approx((-0.1 * math.sqrt(3), 0.1 * math.sqrt(3)))
    # A limit at 1 is nearer than the noise goes: the distances are added.
    at_end = RatesOfGroup(Metrics({**wide, "accuracy_high": 1.0}), {"accuracy": 1.0})
    assert at_end.less(one, 0.0).limits("accuracy") == pytest.approx((-0.1 * math.sqrt(2), 0.5 + 0.1))
    assert one.less(at_end, 0.0).limits("accuracy") == pytest.approx((-0.1 - 0.5, 0.1 * math.sqrt(2)))
    unknown = Metrics()
    unknown.refuse("accuracy", "few rows", (0.0, 1.0))
    refused = one.less(RatesOfGroup(unknown, {"accuracy": 1.0}), 0.0)
    assert refused.limits("accuracy") == (-1.0, 1.0)
    assert refused.reasons == {"accuracy": "few rows"}


@pytest.mark.nightly
@pytest.mark.parametrize("of", RELEASES)
@pytest.mark.parametrize("name", GROUPS)
def test_margins_of_groups_hold_in_10_000_runs_and_among_those_shown(
    name: str, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least 9,369 of 10,000, 0.95 less six standard deviations; of those that are shown likewise of their number."""
    monkeypatch.setattr(margins, "_MOST", 1000)
    for rate, found in examined(GROUPS[name], 10_000, of=of).items():
        assert found.enough, (rate, found)


@pytest.mark.parametrize(
    ("groups", "before", "together", "each"),
    [
        (5, False, 1.67, 1.05),
        (9, False, 1.86, 1.07),
        (1, False, 1.0, 1.0),
        (5, True, 0.913, 0.913),
        (9, True, 0.949, 0.949),
    ],
)
def test_estimates_are_the_least_squares_of_groups_and_all_rows(
    groups: int, before: bool, together: float, each: float
) -> None:
    """By the normal equations; noise in multiples of one matrix's, that of the sum of groups alone would be √G."""
    algorithm = ConfusionByGroup(budget=ONE, groups=groups, alone=before)
    estimates = GroupEstimates.of_release(algorithm, algorithm.times, 1.0 if before else None)
    weights = np.array([*[1.0 / estimates.deviation] * groups, 1.0 / (estimates.whole or np.inf)])
    design = np.concatenate([np.eye(groups), np.ones((1, groups))])
    solved = np.linalg.pinv(weights[:, None] * design) * weights
    values = np.random.default_rng(1).normal(size=(groups + 1, 3, 3))
    of_groups, of_all = estimates.counts(values[:groups], values[groups])
    np.testing.assert_allclose(of_groups, np.tensordot(solved, values, 1), atol=1e-12)
    np.testing.assert_allclose(of_all, of_groups.sum(axis=0), atol=1e-12)
    covariance = (solved / weights**2) @ solved.T
    found = estimates.deviations
    assert found == pytest.approx((math.sqrt(covariance[0, 0]), math.sqrt(covariance.sum())), rel=1e-12)
    if groups > 1:
        assert estimates.correlation == pytest.approx(covariance[0, 1] / covariance[0, 0])
    assert found[1] == pytest.approx(together, abs=0.005)
    assert found[0] == pytest.approx(each, abs=0.005)


def test_the_sum_of_the_groups_has_the_root_of_their_number_times_the_noise() -> None:
    """Of Laplace noise; of Gaussian noise less. Over 200,000 draws each; that of one matrix would be caught at once."""
    random, setting = np.random.default_rng(4), setting_of(rows=1000)
    for algorithm, before in (
        (ConfusionByGroup(budget=GaussianMu(0.3), groups=7), False),
        (ConfusionByGroup(budget=GaussianMu(0.3), groups=7, alone=True), True),
        (LaplaceConfusionByGroup(budget=PURE, groups=7), False),
    ):
        noise, deviation = simulated(algorithm, setting), algorithm.deviation(setting)
        estimates = GroupEstimates.of_release(algorithm, deviation, 2.0 * deviation if before else None)
        whole = (lambda random, shape, noise=noise: 2.0 * noise(random, shape)) if before else noise

        def of_group(random: np.random.Generator, shape: tuple[int, ...], of: Any = (noise, algorithm.each)) -> Floats:
            return np.asarray(of[0](random, shape) / of[1])

        of_estimates = estimates.noise(of_group, None if estimates.whole is None else whole)
        for of, stated in zip(of_estimates, estimates.deviations, strict=True):
            drawn = of(random, (200_000,))
            # A sample's deviation is off by some 0.2 % (Laplace 0.2 %); six times that has 1e-9.
            assert drawn.std() == pytest.approx(stated, rel=0.012)
            assert abs(drawn.mean()) < 6.2 * stated / math.sqrt(200_000)
    one = metrics_of_noisy_confusion(np.diag([400.0, 600.0]), 1000, 5.0, noise)
    all_of_them = metrics_of_noisy_confusion(np.diag([400.0, 600.0]), 1000, 5.0 * math.sqrt(7), of_sum(noise, 7))
    assert all_of_them["accuracy_noise"] == pytest.approx(math.sqrt(7) * one["accuracy_noise"])


def test_whether_a_group_is_measured_is_decided_by_noise_and_noisy_counts_alone() -> None:
    """The same noisy counts say the same, of whatever rows they are; no number of rows is asked for."""
    noise = simulated(ConfusionByGroup(budget=GaussianMu(0.3)), setting_of(rows=1000))
    small = metrics_of_noisy_group(np.array([[3.0, -4.0], [2.0, 5.0]]), 4.7, noise, ("no", "yes"))
    assert "held_out_rows" not in small
    assert small["rows_low"] == 0.0
    assert not any(
        small.is_known(name) for name in small.names() if name.startswith(("predicted", "recall", "accuracy"))
    )
