"""Audits of named systems: broken ones are caught, sound ones are not."""

from __future__ import annotations

import pytest

from dpalgos.audit.experiment import AuditOptions, Verdict
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup, names
from tasks.auditing.systems import audit_system, draws_noise
from tests.support.command_line import CommandLine

WITHOUT_NOISE = [
    "wishart-svm",
    *(
        pytest.param(name, marks=pytest.mark.nightly)
        for name in ("dpwss", "dppca-svm", "pca-dpsvm", "ag-svm", "mod-sulq-svm", "dpsvd-svm", "dual-perturbation")
    ),
]
SOUND = [
    "smo-output-perturbation",
    *(
        pytest.param(name, marks=pytest.mark.nightly)
        for name in names("systems")
        if draws_noise(name) and name != "smo-output-perturbation"
    ),
]


@pytest.mark.parametrize("name", WITHOUT_NOISE)
def test_what_leaves_without_noise_is_caught(name: str) -> None:
    # Without noise 40 counted runs bound epsilon by ln(0.876 / 0.124) = 1.95 at 99 %.
    report = audit_system(name, AuditOptions(trials=80))
    assert report.verdict is Verdict.VIOLATES, report
    assert report.proved_epsilon is None
    assert report.claimed_epsilon == 1.0
    assert 1.0 < report.lower_bound <= report.ceiling
    assert report.lower_mu > 1.0


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "trials"), [("mpc-op", 20_000), ("pathak", 40_000)])
def test_laplace_noise_for_an_l2_sensitivity_is_caught(name: str, trials: int) -> None:
    report = audit_system(name, AuditOptions(trials=trials))
    assert report.verdict is Verdict.VIOLATES, report
    assert report.lower_bound > 1.5
    assert "alone" in report.pair


@pytest.mark.parametrize("name", SOUND)
def test_what_is_proved_is_not_violated(name: str) -> None:
    """At 1 − 10⁻⁹, so never by chance."""
    report = audit_system(name, AuditOptions(trials=80, confidence=1 - 1e-9))
    if lookup("systems", name).sound_counterpart is not None:
        # Nothing is proved of what has one; what it claims is audited where its flaw shows.
        assert report.proved_epsilon is None
        return
    assert report.proved_epsilon is not None
    assert report.verdict is not Verdict.VIOLATES, report
    assert report.proved_epsilon <= 1.0 + 1e-9
    assert report.stated_curve[0][1] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["noisy-gd", "sufficient-statistics"])
def test_gaussian_sums_are_tight(name: str) -> None:
    report = audit_system(name, AuditOptions(epsilon=4.0, trials=6000))
    assert report.verdict is Verdict.TIGHT, report
    assert report.gaussian_bound is not None
    assert report.gaussian_bound <= 4.0 * 1.01


def test_what_draws_no_noise_has_nothing_to_audit() -> None:
    with pytest.raises(ParameterError, match=r"audit$"):
        audit_system("non-private", AuditOptions(trials=10))


@pytest.mark.nightly
def test_the_command(commands: CommandLine) -> None:
    found = commands("audit", "wishart-svm", "--trials", "120", "--json")
    report = found.json
    assert found.code == 1, "a violation"
    fields = ("algorithm", "claimed_epsilon", "proved_epsilon", "delta", "lower_bound", "confidence", "verdict")
    assert set(fields) <= set(report)
    assert report["verdict"] == "violates its claim"
