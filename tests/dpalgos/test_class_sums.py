"""Sums of the rows of each class: sensitivities in closed form, what null records add, what becomes of the noise."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from dpalgos.guarantees import GaussianMu, Neighbours, Setting, Trust
from dpalgos.integer_sums import ClassSums, encoded_radius, row_weights
from dpalgos.rows import ArrayRows
from dpalgos.trainers.discriminant import ClassMeansDiscriminant, DiscriminantDescent, linear_model
from tests.support.training import blobs, fitted, parties_of, setting_of

CLASSES, DIMENSION = 3, 4
SETTING = Setting(sizes=(1,), dimension=DIMENSION, classes=CLASSES, trust=Trust.CENTRAL)


def sums_of(sums: ClassSums, features: object, label: int) -> np.ndarray:
    return sums.total(ArrayRows(np.asarray([features], dtype=np.float64), np.array([label])), SETTING)


def supremum(sums: ClassSums, relation: Neighbours) -> float:
    """Search records for the pair that moves the sums most: corners, antipodes, two classes, null."""
    corners = [sign * np.eye(DIMENSION)[axis] for sign, axis in product((1.0, -1.0), range(2))]
    records = [(row, label) for row in (*corners, np.full(DIMENSION, -0.5), np.zeros(DIMENSION)) for label in (0, 1)]
    null = (np.zeros(DIMENSION), -1)
    others = [null] if relation is Neighbours.REPLACE_SPECIAL else [*records, null]
    return max(
        float(np.linalg.norm(sums_of(sums, *one) - sums_of(sums, *other))) for one in records for other in others
    )


@pytest.mark.parametrize("constant", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("relation", [Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL])
def test_the_sensitivity_is_the_supremum(relation: Neighbours, constant: float) -> None:
    sums = ClassSums(scale=2.0**12, constant=constant)
    found = supremum(sums, relation)
    assert found <= sums.sensitivity(relation) <= found * (1 + 1e-9)


def test_the_root_of_two_is_too_small_under_replace_one() -> None:
    """Rows of two classes move the sums by √2, and a proof that looks at them alone misses antipodal rows of one."""
    sums = ClassSums(scale=2.0**12, constant=0.0)
    mutant = math.sqrt(2.0) * encoded_radius(1.0, sums.scale)
    assert supremum(sums, Neighbours.REPLACE_ONE) > mutant * 1.4


def test_counts_are_free_up_to_the_radius() -> None:
    free, without = ClassSums(scale=2.0**10, constant=1.0), ClassSums(scale=2.0**10, constant=0.0)
    assert free.sensitivity(Neighbours.REPLACE_ONE) == pytest.approx(without.sensitivity(Neighbours.REPLACE_ONE))
    assert free.sensitivity(Neighbours.REPLACE_SPECIAL) == pytest.approx(
        math.sqrt(2.0) * without.sensitivity(Neighbours.REPLACE_SPECIAL)
    )


def test_null_records_add_nothing() -> None:
    sums = ClassSums(scale=2.0**10, constant=1.0)
    features = np.array([[1.0, 0, 0, 0], [np.nan, 0, 0, 0], [0, 1.0, 0, 0]])
    total = sums.total(ArrayRows(features, np.array([0, 0, -1])), SETTING)
    np.testing.assert_array_equal(total, sums_of(sums, features[0], 0))


def test_counts_of_pure_noise_are_even() -> None:
    sums = ClassSums(scale=1.0, constant=1.0)
    setting = Setting(sizes=(3000,), dimension=1, classes=3, trust=Trust.CENTRAL)
    noisy = np.array([[0, 1010], [0, 995], [0, 990]])
    np.testing.assert_allclose(sums.means(noisy, 50.0, setting).counts, 1000.0)
    far = np.array([[0, 2000], [0, 500], [0, 500]])
    np.testing.assert_allclose(sums.means(far, 1.0, setting).counts, [2000, 500, 500], rtol=1e-3)


def test_two_classes_have_one_score() -> None:
    weights, intercept = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.5, 0.0])
    model = linear_model(weights, intercept)
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.4, 0.7]])
    np.testing.assert_array_equal(model.predict(rows), (rows @ weights.T + intercept).argmax(axis=1))


@pytest.mark.parametrize("classes", [2, 3])
def test_with_little_noise_it_is_the_nearest_mean(classes: int) -> None:
    rows = blobs(400, DIMENSION, classes, seed=classes)
    model = fitted(ClassMeansDiscriminant(budget=GaussianMu(1e6)), parties_of(rows, 2), classes)
    means = np.stack([rows.features[rows.labels == label].mean(axis=0) for label in range(classes)])
    nearest = ((rows.features[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(model.predict(rows.features), nearest)


@pytest.mark.parametrize("classes", [2, 3])
def test_descent_goes_on_where_the_means_end(classes: int) -> None:
    """Classes that are no balls: one mean each is not enough, and descent finds what separates them."""
    random = np.random.default_rng(5)
    labels = random.integers(0, classes, 900)
    features = np.zeros((900, DIMENSION))
    features[np.arange(900), labels] = 0.15
    features[:, -1] = random.choice([-0.9, 0.9], 900) + 0.05 * random.standard_normal(900)
    features += 0.08 * random.standard_normal(features.shape) * np.array([1.0, 1.0, 1.0, 3.0])
    rows = ArrayRows(features / np.linalg.norm(features, axis=1).max(), labels)
    parties = parties_of(rows, 2)
    first = fitted(DiscriminantDescent(budget=GaussianMu(1e6), iterations=0), parties, classes)
    later = fitted(DiscriminantDescent(budget=GaussianMu(1e6), iterations=150, step_size=8.0), parties, classes)
    accuracy = [float((model.predict(rows.features) == labels).mean()) for model in (first, later)]
    assert accuracy[1] >= accuracy[0]
    assert accuracy[1] > 0.8


def test_all_sums_together_cost_the_budget() -> None:
    """√(Δ₀² + TΔ²)/σ is the budget's μ, from below and within a billionth."""
    for relation in (Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL):
        trainer = DiscriminantDescent(budget=GaussianMu(0.7), iterations=9, first_share=0.4)
        setting = Setting(
            sizes=(500, 500), dimension=DIMENSION, classes=CLASSES, trust=Trust.CENTRAL, neighbours=relation
        )
        means, gradients = trainer.sensitivities(setting)
        spent = math.hypot(means, 3.0 * gradients) / trainer.distribution(setting).sigma
        assert 0.7 * (1 - 1e-9) <= spent <= 0.7
        assert means**2 / (means**2 + 9 * gradients**2) == pytest.approx(0.4, rel=1e-3)


def test_the_class_sums_move_by_no_more_than_said() -> None:
    """The first sum of the descent, multiplied, on antipodal rows of one class."""
    trainer = DiscriminantDescent(budget=GaussianMu(0.7), iterations=9)
    rows = blobs(20, DIMENSION, CLASSES, seed=1)
    setting = setting_of([rows], CLASSES, Trust.CENTRAL)
    pair = trainer.neighbouring_pair(setting)
    state = trainer.initial(setting)
    moved = trainer.contribution(state, pair.left, setting) - trainer.contribution(state, pair.right, setting)
    bound = trainer.sensitivities(setting)[0]
    assert bound * (1 - 1e-3) <= np.linalg.norm(moved) <= bound


def test_more_rows_or_budget_mean_more_steps() -> None:
    def iterations(rows: int, mu: float) -> int:
        setting = Setting(sizes=(rows,), dimension=DIMENSION, classes=10, trust=Trust.CENTRAL)
        return DiscriminantDescent(budget=GaussianMu(mu)).schedule(setting).iterations

    counts = [iterations(1000, 0.03), iterations(50_000, 0.03), iterations(50_000, 0.3), iterations(50_000, 1.0)]
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[-1]


@pytest.mark.parametrize("rows", [1, 3, 7, 31, 1000])
def test_what_all_rows_of_a_person_may_be_long_is_rounded_down(rows: int) -> None:
    """k rows of the longest norm are no longer than one: k² ⌊L²/k²⌋ ≤ L², and no less than that allows."""
    factors, limits = row_weights(np.array([rows, 0]), 1000.0)
    assert factors == pytest.approx([1.0 / rows, 0.0])
    assert limits.tolist() == [1000 // rows**2, 0.0]
