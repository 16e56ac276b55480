"""Private centring: what one record moves, what is released, and the linear model before the map."""

from __future__ import annotations

import numpy as np
import pytest

from dpalgos.guarantees import GaussianMu, Neighbours, Setting
from dpalgos.models import LinearModel, decode
from dpalgos.projections.centring import CentredRows, PrivateCentring
from dpalgos.rows import ArrayRows, clip_to_unit_ball
from tests.support.training import fit, noise

MU = GaussianMu(1.0)


def rows_of(count: int, dimension: int = 5, offset: float = 0.3) -> ArrayRows:
    random = np.random.default_rng(3)
    features = clip_to_unit_ball(offset + 0.1 * random.normal(size=(count, dimension)))
    return ArrayRows(features, random.integers(0, 2, count))


@pytest.mark.parametrize(("neighbours", "moved"), [(Neighbours.REPLACE_ONE, 2.0), (Neighbours.REPLACE_SPECIAL, 1.0)])
def test_antipodal_rows_or_a_null_record_move_the_sum_by_what_the_noise_is_for(
    neighbours: Neighbours, moved: float
) -> None:
    setting = Setting(sizes=(9,), dimension=4, classes=2, neighbours=neighbours)
    algorithm = PrivateCentring(budget=MU)
    pair = algorithm.neighbouring_pair(setting)
    change = algorithm.statistic(pair.left, setting) - algorithm.statistic(pair.right, setting)
    assert np.linalg.norm(change) == pytest.approx(moved, rel=1e-4)
    exact = np.linalg.norm(
        algorithm.contribution(algorithm.initial(setting), pair.left, setting)
        - algorithm.contribution(algorithm.initial(setting), pair.right, setting)
    )
    # The noise is calibrated to no less, and to hardly more.
    assert 1.0 <= algorithm.distribution(setting).sigma * MU.mu / exact < 1.0 + 1e-3


def test_with_many_rows_the_mean_is_found_and_with_few_rows_stay_where_they_are() -> None:
    algorithm = PrivateCentring(budget=MU)
    many, few = rows_of(5000), rows_of(2)
    found = fit(algorithm, [many], Setting(sizes=(5000,), dimension=5, classes=2), noise(1))
    assert np.linalg.norm(found.mean - many.features.mean(axis=0)) < 0.01
    unknown = fit(algorithm, [few], Setting(sizes=(2,), dimension=5, classes=2), noise(1))
    # The noise has a root mean square length of 2 √5: as a rule all of a mean that is no longer is taken for noise.
    assert np.linalg.norm(unknown.mean) <= 1.0


def test_mapped_rows_stay_in_the_unit_ball_and_parties_add_up() -> None:
    setting = Setting(sizes=(30, 20), dimension=5, classes=2)
    rows = rows_of(50)
    parts = [ArrayRows(rows.features[part], rows.labels[part]) for part in (slice(30), slice(30, None))]
    algorithm = PrivateCentring(budget=MU)
    together = sum(algorithm.contribution(algorithm.initial(setting), part, setting) for part in parts)
    assert np.array_equal(together, algorithm.contribution(algorithm.initial(setting), rows, setting))
    made = CentredRows(mean=np.array([0.0, -1.0]))
    assert np.linalg.norm(made.transform(np.array([[0.0, 1.0]]))) == 1.0
    assert np.array_equal(decode("centred-rows", made.arrays()).mean, made.mean)


def test_the_linear_model_before_the_map_scores_alike() -> None:
    random = np.random.default_rng(4)
    made = CentredRows(mean=random.normal(size=3))
    model = LinearModel(weights=random.normal(size=(4, 3)), intercept=random.normal(size=4))
    rows = random.normal(size=(6, 3))
    np.testing.assert_allclose(made.before(model).scores(rows), model.scores(made.transform(rows)), atol=1e-12)


def test_null_records_add_nothing_and_are_counted() -> None:
    setting = Setting(sizes=(4,), dimension=2, classes=2)
    features = np.array([[0.6, 0.0], [0.6, 0.0], [9.0, 9.0], [np.nan, 0.0]])
    algorithm = PrivateCentring(budget=MU)
    total = algorithm.statistic(ArrayRows(features, np.array([0, 1, -1, 1])), setting)
    np.testing.assert_allclose(total, [1.2, 0.0], atol=1e-3)
