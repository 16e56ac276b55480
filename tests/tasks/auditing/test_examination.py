"""One algorithm by all audits: what is broken is a violation, what is sound is none, a suspicion is audited again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpalgos.audit.experiment import AuditOptions, AuditReport, Verdict
from dpalgos.guarantees import Neighbours
from flows.federated_training import chain_inline
from tasks.auditing import examination, systems
from tasks.auditing.examination import AuditRequest, Examined, audit_report, examine_system
from tasks.auditing.systems import audit_system

QUICK = AuditRequest(trials=60, canaries=60, chain_trials=0, seed=1)


def examined(name: str, request: AuditRequest = QUICK) -> Examined:
    return examine_system(name, request, epsilon=1.0, delta=1e-5, neighbours=Neighbours.REPLACE_ONE, chain=chain_inline)


@pytest.fixture(scope="module")
def broken() -> Examined:
    """Audited on the fewest features alone: which shape shows most is looked for by tests of systems."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(systems, "_SHAPES", systems._SHAPES[:1])
        # 80 runs are counted: without noise a bound of ln(0.765 / 0.235) = 1.18 at 1 - 1e-9.
        patch.setattr(examination, "_TRIALS_AGAIN", 160)
        return examined("wishart-svm", QUICK.model_copy(update={"trials": 100, "canaries": 200}))


def test_what_is_broken_is_a_violation_at_one_in_a_thousand_million(broken: Examined) -> None:
    assert broken.outcome == "violation"
    assert len(broken.reasons) == 2
    assert broken.mechanism.confidence == 1 - 1e-9
    assert broken.mechanism.lower_bound > 1.0


@pytest.mark.nightly
def test_what_is_sound_is_consistent(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two runs a world noisy counts coincide, so that the chain is audited again: by enough runs to learn on."""
    monkeypatch.setattr(examination, "_CHAIN_TRIALS_AGAIN", 8)
    found = examined("noisy-gd", QUICK.model_copy(update={"chain_trials": 2}))
    assert found.outcome in ("consistent", "warning"), found
    assert found.mechanism.verdict is not Verdict.VIOLATES
    assert found.chain is not None
    assert found.chain.verdict is not Verdict.VIOLATES


@pytest.mark.nightly
def test_a_suspicion_that_does_not_come_again_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a sound system whose first audit alarms."""
    honest = audit_system
    seeds = []

    def alarming(name: str, options: AuditOptions) -> AuditReport:
        report = honest(name, replace(options, trials=40))
        seeds.append(options.seed)
        return replace(report, verdict=Verdict.VIOLATES, lower_bound=2.0) if options.confidence < 0.999 else report

    monkeypatch.setattr(examination, "audit_system", alarming)
    found = examined("noisy-gd", QUICK.model_copy(update={"canaries": 0}))
    assert found.outcome == "warning"
    assert "epsilon is 2 at least, at confidence 0.99" in found.reasons[0]
    assert len(set(seeds)) == 2, "the second audit has noise of its own"


def test_mlflow_is_told_numbers_curves_and_what_was_found(broken: Examined) -> None:
    report = audit_report(broken)
    assert report.tags == {"unitball.audit": "violation"}
    assert report.facts["claim"] == "(1, 1e-05)-DP"
    assert report.metrics["epsilon_lower_bound"] == broken.mechanism.lower_bound
    assert {"trade_off", "trade_off_measured"} == set(report.curves)
    picture = report.files["trade-off.png"]
    assert isinstance(picture, bytes)
    assert picture.startswith(b"\x89PNG")
    kept = json.loads(str(report.files["audit.json"]))
    assert kept["mechanism"]["verdict"] == "violates its claim"
    assert {"mechanism", "one_run"} == set(kept)
    assert all(reason in report.note for reason in broken.reasons)


def test_each_audit_is_a_run_of_its_own(broken: Examined) -> None:
    assert audit_report(broken).run_key != audit_report(broken).run_key
