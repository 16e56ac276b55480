"""Audits from one training run: published systems that release without noise are refuted, sound ones are not."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from dpalgos import integer_sums
from dpalgos.algorithms import TrustedSummation
from dpalgos.audit.experiment import AuditOptions, Verdict
from dpalgos.guarantees import Neighbours
from dpalgos.parameters import ParameterError
from dpalgos.rows import Ints
from tasks.auditing.one_run import audit_in_one_run
from tests.support.command_line import CommandLine

RELATIONS = list(Neighbours)[:2]


@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize("name", ["ag-svm", "dpwss", "wishart-svm"])
def test_models_without_noise_are_refuted_in_one_run(name: str, neighbours: Neighbours) -> None:
    report = audit_in_one_run(name, AuditOptions(neighbours=neighbours), canaries=120)
    assert report.verdict is Verdict.VIOLATES, report
    assert report.lower_bound > 1.0
    assert report.proved_epsilon is None


@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize("name", ["noisy-gd", "dpdr-dpml", "smo-output-perturbation"])
def test_sound_runs_are_consistent(name: str, neighbours: Neighbours) -> None:
    """At 1 − 10⁻⁹, so never by chance, at a budget that lets something be seen."""
    report = audit_in_one_run(name, AuditOptions(epsilon=4.0, neighbours=neighbours, confidence=1 - 1e-9), canaries=200)
    assert report.verdict is Verdict.CONSISTENT, report
    assert report.proved_epsilon is not None
    assert report.lower_bound <= report.proved_epsilon


def test_forgotten_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: sums are formed as ever and released as they are."""

    def release(self: TrustedSummation, step: str, contributions: list[Ints], law: object) -> Ints:
        return cast(Ints, np.sum(contributions, axis=0))

    monkeypatch.setattr(TrustedSummation, "release", release)
    report = audit_in_one_run("noisy-gd", AuditOptions(confidence=1 - 1e-9), canaries=400)
    assert report.verdict is Verdict.VIOLATES, report
    assert report.correct >= 0.95 * report.guesses


def test_people_are_canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of up to 50 rows each; where a row weighs as much as a person, a person weighs as many rows."""
    options = AuditOptions(epsilon=4.0, confidence=1 - 1e-9)
    for name in ("noisy-gd", "sufficient-statistics"):
        assert audit_in_one_run(name, options, canaries=100, rows_per_person=50).verdict is Verdict.CONSISTENT
    with pytest.raises(ParameterError, match="people"):
        audit_in_one_run("wishart-svm", options, canaries=100, rows_per_person=50)
    forgotten = lambda shares, limit, *_: (np.ones(len(shares)), np.full(len(shares), float(limit)))  # noqa: E731
    monkeypatch.setattr(integer_sums, "row_weights", forgotten)
    # Noise depends on the versions of libraries: with half as many canaries some noise hid the fault.
    report = audit_in_one_run(
        "noisy-gd", AuditOptions(epsilon=0.3, confidence=1 - 1e-4), canaries=400, rows_per_person=50
    )
    assert report.verdict is Verdict.VIOLATES, report


def test_nothing_to_audit_and_too_few_canaries() -> None:
    with pytest.raises(ParameterError, match=r"audit$"):
        audit_in_one_run("non-private", canaries=20)
    with pytest.raises(ParameterError, match="canaries"):
        audit_in_one_run("noisy-gd", canaries=5)


def test_the_command(commands: CommandLine) -> None:
    found = commands("audit", "wishart-svm", "--canaries", "200", "--json")
    report = found.json
    assert found.code == 1, "a violation"
    assert report["verdict"] == "violates its claim"
    assert {"lower_bound", "lower_mu", "p_value", "correct", "guesses", "canaries", "seed"} <= set(report)
    commands("audit", "noisy-gd", "--chain", "--canaries", "20").refused(2, "give one of them")
    commands("audit", "noisy-gd", "--rows-per-person", "20").refused(2, "add --canaries")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_canaries_refute_nothing_sound(seed: int) -> None:
    for name in ("noisy-gd", "sufficient-statistics", "fed-dpdr-dpml", "dppca-dpsvm"):
        report = audit_in_one_run(name, AuditOptions(epsilon=4.0, confidence=1 - 1e-9, seed=seed), canaries=1000)
        assert report.verdict is Verdict.CONSISTENT, report
