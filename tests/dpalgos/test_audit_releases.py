"""Audits of single registered releases: what is proved stands, what is tight is seen, what is broken is caught."""

from __future__ import annotations

import math

import pytest

from dpalgos.accounting.profiles import epsilon_of_mu, sigma_classical
from dpalgos.audit.experiment import AuditOptions, Effort, Verdict
from dpalgos.audit.releases import audit_candidates, audit_release, audited
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup, names
from dpalgos.testing import KINDS

ALL = [(kind, name) for kind in KINDS for name in names(kind) if audited(kind, name)]
SMALL = Effort(runs=300, gaussian_runs=300, numbers=1_000_000, most=100_000, pilot=20)
LARGE = Effort(numbers=4_000_000, most=400_000)


def test_gaussian_sums_are_tight_and_below_what_is_proved() -> None:
    """At 99 % and one fixed seed, so always or never."""
    for epsilon in (1.0, 4.0):
        report = audit_release("trainers", "class-means", AuditOptions(epsilon=epsilon, effort=LARGE))
        assert report.verdict is Verdict.TIGHT, report
        assert report.gaussian_bound is not None
        assert 0.9 * epsilon < report.gaussian_bound <= epsilon
        assert 0.4 * epsilon < report.lower_bound <= report.gaussian_bound


@pytest.mark.nightly
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
@pytest.mark.parametrize(
    "name", ["output-perturbation", "smo-output-perturbation", "sufficient-statistics", "noisy-gd", "truex"]
)
def test_gaussian_releases_reach_most_of_their_epsilon(name: str, epsilon: float) -> None:
    report = audit_release("trainers", name, AuditOptions(epsilon=epsilon))
    assert report.verdict is Verdict.TIGHT, report


def test_the_published_covariance_noise_is_too_small_at_four_and_by_how_much() -> None:
    mu = math.sqrt(2.0) / sigma_classical(4.0, 1e-4, 1.0)
    report = audit_release("projections", "analyze-gauss-published", AuditOptions(effort=Effort(pilot=20)))
    assert (report.claimed_epsilon, report.delta) == (4.0, 1e-4)
    assert report.verdict is Verdict.VIOLATES, report
    assert 4.0 < report.lower_bound < epsilon_of_mu(mu, 1e-4) < 5.23
    assert 0.9 * mu < report.lower_mu < mu


def test_it_is_enough_at_a_half() -> None:
    """By the same formula: 0.726 is where claim and truth meet at δ = 10⁻⁴."""
    assert epsilon_of_mu(math.sqrt(2.0) / sigma_classical(0.72, 1e-4, 1.0), 1e-4) < 0.72
    report = audit_release(
        "projections", "analyze-gauss-published", AuditOptions(epsilon=0.5, delta=1e-4, effort=SMALL)
    )
    assert report.verdict is not Verdict.VIOLATES, report


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_what_an_audit_builds_has_a_guarantee_in_each_of_its_settings(kind: str, name: str) -> None:
    """Bins were to be counted of columns that are described; their audit ended with a TypeError."""
    candidates = audit_candidates(kind, name, AuditOptions())
    assert candidates
    for algorithm, setting in candidates:
        assert algorithm.guarantee(setting).losses


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "name"), ALL)
def test_what_is_proved_is_not_refuted(kind: str, name: str) -> None:
    report = audit_release(kind, name, AuditOptions(confidence=1 - 1e-9, effort=SMALL))
    assert (report.proved_epsilon is None) == (lookup(kind, name).sound_counterpart is not None)
    assert report.proved_epsilon is None or report.verdict is not Verdict.VIOLATES, report


def test_what_draws_no_noise_has_nothing_to_audit() -> None:
    with pytest.raises(ParameterError, match=r"audit$"):
        audit_release("trainers", "erm")
    with pytest.raises(ParameterError, match=r"trials.*3"):
        audit_release("trainers", "class-means", AuditOptions(trials=3))
