"""DP-SGD: rows are drawn, each by itself, from the holder's secret; batch sizes stay secret; replace-one is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from dpalgos.accounting.composition import noise_multiplier
from dpalgos.algorithms import fit
from dpalgos.guarantees import ApproximateDP, GaussianMu, Neighbours, Setting, SlackGaussian, Trust
from dpalgos.integer_sums import GradientSums, encoded_radius
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import LinearModel
from dpalgos.parameters import ParameterError
from dpalgos.resources import Reserved
from dpalgos.rows import ArrayRows
from dpalgos.testing import blobs
from dpalgos.trainers.gradient_descent import SampledDescent

pytestmark = pytest.mark.usefixtures("coarse_accounting")
ROWS = 400
RATE = 0.25


def setting(dimension: int = ROWS, classes: int = 2, **more: Any) -> Setting:
    given = {"neighbours": Neighbours.REPLACE_SPECIAL, "trust": Trust.CENTRAL, **more}
    return Setting(sizes=(ROWS,), dimension=dimension, classes=classes, **given)


def trainer(**changed: Any) -> SampledDescent:
    # Hardly any noise, so that a row's weight shows whether it took part.
    given = {"budget": ApproximateDP(1000.0, 1e-5), "sampling_rate": RATE, "iterations": 1, "step_size": 1.0}
    return SampledDescent(**{**given, "loss": "logistic", "momentum": 0.0, **changed})


def taking_part(seed: int, rows: ArrayRows, **changed: Any) -> Any:
    made = fit(trainer(**changed), [rows], setting(), KeyedNoise(public_secret(seed), "draws"))
    assert isinstance(made, LinearModel)
    return np.abs(made.weights[0]) > 0.5 * 0.5 / (RATE * ROWS)


@pytest.fixture(scope="module")
def orthogonal() -> ArrayRows:
    """One row a direction: the weight in it is the row's own gradient."""
    return ArrayRows(np.eye(ROWS), np.arange(ROWS) % 2)


def test_each_row_takes_part_with_the_stated_probability(orthogonal: ArrayRows) -> None:
    """Over 60 secrets, all rows together and each alone are within binomial bounds of 10⁻⁹; half the rate is not."""
    drawn = np.array([taking_part(seed, orthogonal) for seed in range(60)])
    low, high = binom.interval(1 - 1e-9, drawn.size, RATE)
    assert low <= drawn.sum() <= high
    assert drawn.sum() > binom.interval(1 - 1e-9, drawn.size, RATE / 2)[1]
    low, high = binom.interval(1 - 1e-9 / ROWS, 60, RATE)
    assert ((low <= drawn.sum(axis=0)) & (drawn.sum(axis=0) <= high)).all()
    assert len({int(row.sum()) for row in drawn}) > 5, "Poisson draws: batches differ in size"
    pairs = (drawn[:, :-1] & drawn[:, 1:]).sum()
    low, high = binom.interval(1 - 1e-9, 60 * (ROWS - 1), RATE**2)
    assert low <= pairs <= high, "neighbouring rows are drawn independently"


def test_draws_are_the_secrets(orthogonal: ArrayRows) -> None:
    first = taking_part(1, orthogonal)
    assert (first == taking_part(1, orthogonal)).all()
    assert (first != taking_part(2, orthogonal)).any()
    later = ArrayRows(orthogonal.features, 1 - orthogonal.labels)
    assert (first != taking_part(1, later)).any(), "other rows are drawn anew"


def test_steps_draw_anew(orthogonal: ArrayRows) -> None:
    """Were the same rows drawn at each of 40 steps, a quarter would have moved; of all, hardly one has not."""
    moved = taking_part(1, orthogonal, iterations=40, step_size=0.1)
    assert moved.mean() > 0.5
    assert not moved.all() or moved.mean() == 1.0


@pytest.mark.parametrize("some", [0, 150])
def test_rows_too_many_to_keep_are_drawn_alike(
    some: int, orthogonal: ArrayRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = fit(trainer(iterations=40), [orthogonal], setting(), KeyedNoise(public_secret(0), "draws"))
    held = Reserved()
    monkeypatch.setattr(GradientSums, "_room", lambda *_: (held, some) if some else (None, 0))
    streamed = ArrayRows(orthogonal.features, orthogonal.labels, block=64)
    again = fit(trainer(iterations=40), [streamed], setting(), KeyedNoise(public_secret(0), "draws"))
    assert np.array_equal(kept.arrays()["weights"], again.arrays()["weights"])


def test_noise_is_calibrated_to_the_sampled_steps() -> None:
    made = SampledDescent(budget=ApproximateDP(8.0, 1e-5), sampling_rate=0.5, iterations=20)
    (loss,) = made.guarantee(setting()).losses
    assert isinstance(loss, SlackGaussian)
    assert loss.slack == pytest.approx(1e-6)
    sums, law = made.sums(setting()), made.distribution(setting())
    radius = encoded_radius(made.clip, sums.scale / made.clip) * encoded_radius(1.0, sums.scale)
    assert law.sigma == pytest.approx(noise_multiplier(0.5, 20, loss.slack, loss.mu) * radius, rel=1e-9)
    whole = SampledDescent(budget=ApproximateDP(8.0, 1e-5), sampling_rate=1.0, iterations=20)
    assert law.sigma < 0.8 * whole.distribution(setting()).sigma


def test_learns_and_releases_nothing_but_a_model(random: np.random.Generator) -> None:
    rows = blobs(ROWS, 6, 3, 1)
    made = SampledDescent(budget=ApproximateDP(8.0, 1e-5), sampling_rate=0.5, iterations=20)
    model = fit(made, [rows], setting(dimension=6, classes=3), KeyedNoise(public_secret(0), "draws"))
    assert isinstance(model, LinearModel)
    assert set(model.arrays()) == {"weights", "intercept"}
    assert (model.predict(rows.features) == rows.labels).mean() > 0.8


def test_replace_one_is_refused_with_the_reason() -> None:
    with pytest.raises(ParameterError, match="Lebeda, Regehr, Kamath, Steinke 2024"):
        trainer().guarantee(setting(neighbours=Neighbours.REPLACE_ONE))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": 1.5}, "sampling_rate"),
        ({"slack_share": 1.0}, "slack_share.*1.0"),
        ({"budget": ApproximateDP(1.0, 0.0)}, "delta"),
        ({"budget": GaussianMu(1.0)}, "budget"),
        ({"iterations": 0}, "iterations"),
    ],
)
def test_parameters_out_of_range(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        trainer(**changed)
