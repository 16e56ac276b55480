"""Membership inference: perfect where nothing hides, blind where all is hidden, bounded by the trade-off curve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from dpalgos.audit.bounds import attack, bound_of, likelihood_ratios
from dpalgos.guarantees import GaussianMu, NoGuarantee, PureEpsilon
from dpalgos.parameters import ParameterError


def shadow_models(mu: float, models: int, rows: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of models in which membership of a row shifts its score by mu standard deviations."""
    members = random.random((models, rows)) < 0.5
    easy = random.standard_normal(rows) * 3
    return easy + mu * members + random.standard_normal((models, rows)), members


def test_the_attack_is_as_good_as_gaussian_noise_allows_and_no_better(random: np.random.Generator) -> None:
    """64 models of 200 rows: rates of 6,400 pairs, to within 6 standard errors; the law is the worst under mu-GDP."""
    mu = 1.0
    scores, members = shadow_models(mu, 64, 200, random)
    found, most = attack(likelihood_ratios(scores, members), members), bound_of([[GaussianMu(mu)]])
    error = 6 * math.sqrt(0.25 / 6400)
    exact = 2 * ndtr(mu / 2) - 1
    assert exact - 0.05 < found.advantage < most.advantage + error
    assert ndtr(mu / math.sqrt(2)) - 0.03 < found.area < most.area + error
    for level in (0.01, 0.1, 0.3):
        assert found.rate_at(level) < ndtr(ndtri(level) + mu) + error


def test_nothing_is_seen_where_nothing_shows(random: np.random.Generator) -> None:
    scores, members = shadow_models(0.0, 64, 200, random)
    found = attack(likelihood_ratios(scores, members), members)
    assert found.advantage < 0.05
    assert found.area == pytest.approx(0.5, abs=0.04)


def test_all_is_seen_where_nothing_hides(random: np.random.Generator) -> None:
    members = random.random((16, 50)) < 0.5
    found = attack(likelihood_ratios(members.astype(float), members), members)
    assert found.advantage == 1.0
    assert found.area == 1.0
    assert found.rate_at(0.001) == 1.0


def test_a_model_is_not_judged_by_itself(random: np.random.Generator) -> None:
    """Its own score moves no mean that it is compared with: of pure noise with few models, nothing is recognised."""
    scores, members = shadow_models(0.0, 8, 4000, random)
    kept = np.minimum(members.sum(axis=0), (~members).sum(axis=0)) >= 3
    found = attack(likelihood_ratios(scores[:, kept], members[:, kept]), members[:, kept])
    assert found.area < 0.53


def test_the_bound_is_the_trade_off_curve_seen_from_above() -> None:
    most = bound_of([[GaussianMu(1.0)]])
    exact = 2 * ndtr(0.5) - 1
    assert exact <= most.advantage <= exact + 0.01
    assert ndtr(1 / math.sqrt(2)) <= most.area <= ndtr(1 / math.sqrt(2)) + 0.01
    assert most.rate_at(0.01) >= ndtr(ndtri(0.01) + 1.0)
    # Pure epsilon leaves (e^ε − 1) / (e^ε + 1), and the party that pays most decides.
    pure = bound_of([[PureEpsilon(0.1)], [PureEpsilon(1.0)]])
    exact = (math.e - 1) / (math.e + 1)
    assert exact <= pure.advantage <= exact + 0.02
    assert bound_of([[NoGuarantee("made up")]]).advantage == pytest.approx(1.0, abs=1e-3)


def test_too_few_models_are_refused(random: np.random.Generator) -> None:
    scores, members = shadow_models(1.0, 7, 10, random)
    with pytest.raises(ParameterError, match="7 shadow"):
        likelihood_ratios(scores, members)
    with pytest.raises(ParameterError, match="shadow"):
        likelihood_ratios(np.zeros((8, 2)), np.zeros((8, 2), dtype=bool))
