"""Principal components of released moments: what a release holds, how large its noise is, what is said of variances."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpalgos.column_maps import PrincipalColumns, how_summed
from dpalgos.components import norm_quantile, principal_components, variances_along
from dpalgos.evaluators.second_moments import Moments, SecondMoments
from dpalgos.guarantees import GaussianMu, Setting
from dpalgos.models import LinearModel, Statistic
from dpalgos.parameters import ParameterError
from dpalgos.rows import ArrayRows, Floats
from tests.support.training import fit, noise

MU = GaussianMu(1.0)


def rows_of(count: int, seed: int = 0) -> Floats:
    """Rows in [0, 1]⁴ around (0.7, 0.2, 0.5, 0.5), the last feature a constant."""
    random = np.random.default_rng(seed)
    scores = random.normal(size=(count, 3)) * [0.15, 0.08, 0.03]
    turn, _ = np.linalg.qr(np.random.default_rng(9).normal(size=(3, 3)))
    return np.column_stack([np.clip(scores @ turn + [0.7, 0.2, 0.5], 0.0, 1.0), np.full(count, 0.5)])


def setting_of(count: int, dimension: int = 4) -> Setting:
    return Setting(sizes=(count,), dimension=dimension, classes=1)


ABOUT_THE_MIDDLE = SecondMoments(budget=MU, origin=0.5, varies=(0, 1, 2), mean_radius=0.9, radius=0.6)


@pytest.mark.parametrize("center", [True, False])
def test_moments_are_those_of_clipped_rows_about_the_released_mean_in_the_rows_units(center: bool) -> None:
    count = 200_000
    algorithm, rows = replace(ABOUT_THE_MIDDLE, center=center), rows_of(count)
    found = fit(algorithm, [ArrayRows(rows, np.zeros(count))], setting_of(count), noise(1))
    moments = algorithm.decoded(found.values, setting_of(count))
    exact = rows[:, :3].mean(axis=0) - 0.5
    assert np.abs(moments.mean - (exact if center else 0.0)).max() < 2e-4
    about = rows[:, :3] - 0.5 - moments.mean
    about *= np.minimum(1.0, 0.6 / np.linalg.norm(about, axis=1))[:, None]
    error = moments.covariance - about.T @ about / count
    # Noise of σ off the diagonal, √2 σ on it: six deviations.
    assert np.abs(error).max() < 6.0 * np.sqrt(2.0) * moments.deviation
    assert np.abs(error).max() > 0.0
    assert moments.deviation < 1e-5


def test_the_stated_deviation_is_that_of_the_noise_and_the_mean_gets_its_share_of_the_budget() -> None:
    setting, none = setting_of(50), ArrayRows(np.full((50, 4), 0.5), np.zeros(50))
    # About a released mean the mean's own error is a moment, too.
    algorithm = replace(ABOUT_THE_MIDDLE, center=False)
    releases = [fit(algorithm, [none], setting, noise(seed)) for seed in range(400)]
    decoded = [algorithm.decoded(one.values, setting) for one in releases]
    off = np.array([one.covariance[0, 1] for one in decoded])
    # The standard error of a deviation of 400 draws is 3.5 %.
    assert off.std() == pytest.approx(decoded[0].deviation, rel=0.22)
    assert np.array([one.covariance[0, 0] for one in decoded]).std() == pytest.approx(
        np.sqrt(2.0) * decoded[0].deviation, rel=0.22
    )
    for given, share in ((0.1, 0.1), (None, 12.0 * np.sqrt(3.0) / 50.0), (0.5, 0.5)):
        first, second = replace(ABOUT_THE_MIDDLE, mean_share=given)._moves(setting)
        assert first**2 / (first**2 + second**2) == pytest.approx(share, rel=0.01)


def test_rows_without_variance_have_no_component_however_noisy_their_mean_is() -> None:
    """A mutant whose floor is the squares' noise alone takes the error of the released mean for a component."""
    setting, rows = setting_of(60), ArrayRows(np.tile([0.9, 0.1, 0.8, 0.5], (60, 1)), np.zeros(60))
    algorithm = replace(ABOUT_THE_MIDDLE, mean_share=0.01, radius=0.9)
    found = []
    for seed in range(200):
        moments = algorithm.decoded(fit(algorithm, [rows], setting, noise(seed)).values, setting)
        found.append(principal_components(moments))
    assert sum(one.above > 0 for one in found) <= 30
    assert sum(one.noisy[0] > one.quantile for one in found) > 60


@pytest.mark.parametrize("width", [1, 2, 7, 60])
def test_the_quantile_is_that_of_the_spectral_norm(width: int) -> None:
    random, count = np.random.default_rng(width), 4000
    drawn = random.normal(size=(count, width, width))
    symmetric = (drawn + np.swapaxes(drawn, 1, 2)) / np.sqrt(2.0)
    norms = np.abs(np.linalg.eigvalsh(symmetric)).max(axis=1)
    # Six standard errors of a share of 4,000 and of the 8,192 behind the quantile.
    assert (norms <= norm_quantile(width)).mean() == pytest.approx(0.95, abs=0.025)


def spectrum(width: int, ratio: float) -> Floats:
    values = ratio ** np.arange(width)
    return np.asarray(values / values.sum())


def noisy(values: Floats, deviation: float, random: np.random.Generator) -> Moments:
    drawn = random.normal(size=(len(values), len(values)))
    covariance = np.diag(values) + deviation * (drawn + drawn.T) / np.sqrt(2.0)
    return Moments(mean=np.zeros(len(values)), covariance=covariance, deviation=deviation)


def coverage(width: int, ratio: float, share: float, runs: int, seed: int = 0) -> tuple[float, float, float]:
    """Return how often all margins hold, and the mean error of estimates and of noisy eigenvalues over the largest."""
    random, values = np.random.default_rng(seed), spectrum(width, ratio)
    deviation = share * values[0] / (2.0 * np.sqrt(width))
    held, errors = 0, []
    for _ in range(runs):
        found = principal_components(noisy(values, deviation, random), min(5, width))
        true = np.einsum("ij,i,ij->j", found.directions, values, found.directions)
        held += bool(((found.low <= true) & (true <= found.high)).all())
        errors.append([(found.variances - true).mean(), (found.noisy[: len(true)] - true).mean()])
    estimate, raw = np.mean(errors, axis=0) / values[0]
    return held / runs, float(estimate), float(raw)


@pytest.mark.parametrize(
    ("width", "ratio", "share"), [(30, 0.7, 0.3), (100, 0.97, 0.3), (100, 0.97, 2.0), (8, 0.5, 0.1), (8, 0.5, 2.0)]
)
def test_margins_hold_and_estimates_are_far_nearer_than_noisy_eigenvalues(
    width: int, ratio: float, share: float
) -> None:
    held, estimate, raw = coverage(width, ratio, share, runs=400)
    # 0.95 less six standard errors of 400 runs.
    assert held >= 0.885
    if share == 0.3:
        # A mutant that prints noisy eigenvalues as variances is a tenth of the largest variance off.
        assert abs(estimate) < 0.02
        assert raw > 0.08


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "ratio"), [(20, 0.6), (20, 0.97)])
@pytest.mark.parametrize("share", [0.1, 1.0, 5.0])
def test_margins_hold_in_ten_thousand_runs(width: int, ratio: float, share: float) -> None:
    assert coverage(width, ratio, share, runs=10_000)[0] >= 0.9369


def test_one_spike_has_the_closed_form_and_below_the_edge_is_nothing() -> None:
    width, deviation, spike = 400, 0.01, 1.0
    random = np.random.default_rng(2)
    values = np.append(spike, np.zeros(width - 1))
    found = principal_components(noisy(values, deviation, random), 2)
    closed = np.sqrt(found.noisy[0] ** 2 - 4 * width * deviation**2)
    assert found.variances[0] == pytest.approx(closed, rel=0.01)
    assert found.above == 1
    assert variances_along(np.array([1.99, -1.0]) * deviation * np.sqrt(2.0), deviation).tolist() == [0.0, 0.0]
    # Ten times less noise for a tenth of the total.
    assert found.floor == found.quantile
    assert found.less_noise == pytest.approx(found.quantile / (0.1 * found.noisy.sum()), rel=1e-6)


def test_the_map_is_undone_and_linear_models_pass_before_it() -> None:
    count, setting = 5000, setting_of(5000)
    rows = rows_of(count)
    released = fit(ABOUT_THE_MIDDLE, [ArrayRows(rows, np.zeros(count))], setting, noise(3))
    spec = PrincipalColumns(components=3, release=how_summed(ABOUT_THE_MIDDLE, setting))
    made = spec.combine([released], np.ones(1))
    assert made.basis.shape == (4, 3)
    assert not made.basis[3].any()
    np.testing.assert_allclose(made.undone(made.transform(rows)), rows, atol=1e-12)
    np.testing.assert_allclose(made.apply(rows[:9]), made.transform(rows[:9]), atol=1e-12)
    # Scores in standard deviations, at the upper ends of their margins, and no longer than the rows' radius.
    spread = replace(spec, deviations=3.0).combine([released], np.ones(1))
    high = principal_components(ABOUT_THE_MIDDLE.decoded(released.values, setting), 3).high
    np.testing.assert_allclose(spread.apply(rows[:9]), made.apply(rows[:9]) * 0.6 / np.minimum(3 * np.sqrt(high), 0.6))
    np.testing.assert_allclose(spread.undone(spread.transform(rows)), rows, atol=1e-12)
    model = LinearModel(weights=np.ones((2, 3)), intercept=np.array([0.5, -1.0]))
    np.testing.assert_allclose(made.before(model).scores(rows), model.scores(made.transform(rows)), atol=1e-10)
    for wrong in (0, 4):
        with pytest.raises(ParameterError, match=f"components is {wrong}"):
            PrincipalColumns(components=wrong, release=how_summed(ABOUT_THE_MIDDLE, setting))
    with pytest.raises(ParameterError, match="2 releases"):
        spec.combine([released, released], np.ones(2))
    with pytest.raises(ParameterError, match="shape"):
        spec.combine([Statistic(values=np.zeros(4))], np.ones(1))


@pytest.mark.parametrize(
    ("given", "named"),
    [({"varies": (0, 0)}, "varies"), ({"varies": (4,)}, "varies"), ({"origin": (0.0, 1.0)}, "origin")],
)
def test_what_does_not_fit_rows_is_refused(given: dict[str, tuple[float, ...]], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        SecondMoments(budget=MU, **given).guarantee(setting_of(10))  # type: ignore[arg-type]
