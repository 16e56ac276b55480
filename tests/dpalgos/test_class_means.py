"""Shrunk class means: the estimate of their spread in closed form, what is kept of them, and what noise counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpalgos.algorithms import fit
from dpalgos.class_means import ClassMeans, Shrinkage, blocks
from dpalgos.guarantees import GaussianMu, Setting, Trust
from dpalgos.integer_sums import ClassSums
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.registry import lookup
from dpalgos.rows import ArrayRows, Floats
from dpalgos.trainers.continual import ContinualClassMeans
from dpalgos.trainers.discriminant import ClassMeansDiscriminant, DiscriminantDescent
from tests.support.training import blobs, fitted, parties_of, setting_of

DRAWS, WIDTH, WHOLE = 2000, 64, slice(0, 64)


def drawn(random: np.random.Generator, counts: Any, tau: float, noise: float, width: int = WIDTH) -> ClassMeans:
    """Return noisy means of classes that lie apart by ``tau`` around 0.3, with sums' noise of deviation ``noise``."""
    counts = np.asarray(counts, dtype=np.float64)
    deviation = noise / counts
    means = 0.3 + tau * random.standard_normal((len(counts), width))
    means += deviation[:, None] * random.standard_normal(means.shape)
    return ClassMeans(means, deviation**2, counts, counts)


@pytest.mark.parametrize(
    ("counts", "noise"),
    [([500] * 10, 50.0), ([950, 50], 30.0), ([500, 500], 100.0), ([900, 450, 300, 225, 180, 20], 15.0)],
    ids=["balanced", "950 : 50", "two equal classes", "unequal"],
)
def test_the_spread_of_the_means_is_estimated_without_bias(
    random: np.random.Generator, counts: list[int], noise: float
) -> None:
    """The mean of 2,000 estimates is within five standard errors of τ², which are below a twentieth of it.

    What is caught is 0.5 τ² or less: no divisor with two equal classes, v_c instead of (1 − w_c) v_c with 950 : 50.
    """
    tau = 0.2
    found = [drawn(random, counts, tau, noise).spread(WHOLE) for _ in range(DRAWS)]
    error = float(np.std(found)) / DRAWS**0.5
    assert error < tau**2 / 20
    assert abs(float(np.mean(found)) - tau**2) < 5 * error


def test_noise_alone_is_no_difference(random: np.random.Generator) -> None:
    """Of means that do not differ a half exceed what noise is expected to do, within five standard errors.

    Of unequal classes few pass, and little is kept of those.
    """
    means = [drawn(random, [900, 300, 100, 30], 0.0, 20.0) for _ in range(DRAWS)]
    assert abs(float(np.mean([one.differ(Shrinkage(sure=0.0)) for one in means])) - 0.5) < 0.06
    assert float(np.mean([one.differ() for one in means])) < 0.15
    assert float(np.mean([one.kept().mean() for one in means])) < 0.15


def test_equal_classes_need_no_more_than_what_noise_is_expected_to_do(random: np.random.Generator) -> None:
    """Their noisy counts are equal here: the number of deviations is 0, whatever the constant."""
    means = [drawn(random, [300] * 4, 0.0, 20.0) for _ in range(200)]
    assert [one.differ() for one in means] == [one.differ(Shrinkage(sure=0.0)) for one in means]


def test_blocks_cover_all_coordinates_once_in_their_order() -> None:
    parts = list(blocks(200, 16))
    assert [part.stop - part.start for part in parts] == [16, 16, 32, 64, 72]
    assert np.concatenate([np.arange(200)[part] for part in parts]).tolist() == list(range(200))


def test_what_is_kept_of_a_block_depends_on_its_own_coordinates(random: np.random.Generator) -> None:
    """An order of coordinates that is fitted to the noisy means would move with any of them."""
    means = drawn(random, [900, 300, 100, 30], 0.1, 20.0, width=128)
    other = replace(means, means=means.means * np.where(np.arange(128) < 64, 1.0, 3.0))
    assert means.differ()
    assert other.differ()
    np.testing.assert_array_equal(means.kept()[:, :64], other.kept()[:, :64])
    assert not np.array_equal(means.kept()[:, 64:], other.kept()[:, 64:])


def test_rare_classes_are_shrunk_most_and_sure_means_stay() -> None:
    random = np.random.default_rng(3)
    unsure = drawn(random, [900, 90, 9], 0.1, 3.0)
    kept = unsure.kept()[:, 0]
    assert 1 > kept[0] > kept[1] > kept[2] > 0
    expected = unsure.spread(slice(0, 32)) / (unsure.spread(slice(0, 32)) + unsure.variance)
    np.testing.assert_allclose(kept, expected, rtol=1e-12)
    sure = drawn(random, [900, 90, 9], 0.1, 0.01)
    np.testing.assert_array_equal(sure.kept(), 1.0)
    np.testing.assert_array_less(sure.kept(Shrinkage(plain_from=1e9)), 1.0)


def test_the_spread_goes_by_noisy_counts() -> None:
    """The exact counts are in no argument: a noisy count alone changes what is kept of its class."""
    sums, setting = ClassSums(scale=1000.0, constant=1.0), Setting(sizes=(1000,), dimension=1, classes=3)
    noisy = np.array([[300_000, 500_000], [-100_000, 300_000], [20_000, 200_000]])
    changed = noisy.copy()
    changed[2, 1] = 100_000
    one, other = (sums.means(each, 60_000.0, setting) for each in (noisy, changed))
    np.testing.assert_allclose(one.variance, (60.0 / one.counts) ** 2)
    assert other.counts[2] < one.counts[2]
    assert other.kept()[2, 0] < one.kept()[2, 0]


def test_where_nothing_is_seen_all_rows_are_of_the_largest_noisy_class(random: np.random.Generator) -> None:
    """By the noisy counts as they are: the floor may make equals of the largest ones."""
    means = np.full((3, 5), 0.2)
    weights, scores = ClassMeans(means, np.full(3, 0.1), np.full(3, 100.0), np.array([-5.0, 7.0, 6.0])).discriminant()
    assert not weights.any()
    assert int(scores.argmax()) == 1


def test_the_noise_is_that_of_all_parties_and_of_the_night(monkeypatch: pytest.MonkeyPatch) -> None:
    """What shrinks is told the deviation of the noise that was drawn: of the released sums less the exact ones.

    9 parties under local trust draw 3 times a curator's noise, and the running sum of the last of 30 nights has more
    than one night's. 120 numbers show a deviation to within a third: neither a third of it nor a half.
    """
    seen: list[tuple[float, Floats]] = []
    honest = ClassSums.means

    def means(self: ClassSums, noisy_sums: Any, sigma: float, setting: Setting) -> ClassMeans:
        seen.append((sigma / self.scale, np.asarray(noisy_sums) / self.scale))
        return honest(self, noisy_sums, sigma, setting)

    monkeypatch.setattr(ClassSums, "means", means)
    rows = blobs(900, 40, 3, seed=2)
    parties, trust = parties_of(rows, 9), lookup("trusts", Trust.LOCAL)()
    setting = replace(setting_of(parties, 3, Trust.LOCAL), noise_factor=trust.noise_factor(9))
    noises = [KeyedNoise(public_secret(party), "test") for party in range(9)]
    trainers: list[Any] = [
        ClassMeansDiscriminant(budget=GaussianMu(0.5)),
        DiscriminantDescent(budget=GaussianMu(0.5), iterations=2),
        ContinualClassMeans(budget=GaussianMu(0.5), nights=30),
    ]
    for trainer in trainers:
        fit(trainer, parties, setting, noises[0], trust.summation(trainer, setting, noises, "test", None))
        (told, released), sums = seen[-1], trainer.class_sums(setting)
        drawn_noise = (released - sums.total(rows, setting) / sums.scale)[:, :-1]
        assert told == pytest.approx(float(np.std(drawn_noise)), rel=0.33)


def test_rare_classes_do_not_take_all_rows() -> None:
    """With much noise the frequent class, 0.85 of the rows, keeps them: mean accuracy over six seeds.

    What is caught: the noise's part subtracted from ‖m_c‖², by which rows are nearest to the rare classes' means, 0.48.
    """
    random = np.random.default_rng(4)
    labels = np.repeat(np.arange(4), [4000, 400, 200, 100])
    features = np.eye(4, 30)[labels] * 0.5 + 0.1 * random.standard_normal((len(labels), 30))
    trainer, rows = ClassMeansDiscriminant(budget=GaussianMu(0.02)), ArrayRows(features, labels)
    models = [fitted(trainer, [rows], 4, seed) for seed in range(6)]
    assert float(np.mean([model.predict(features) == labels for model in models])) > 0.8
