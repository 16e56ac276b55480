"""Audits on real rows, which are public: canaries among them, and whose rows were trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpalgos.audit.experiment import AuditOptions, Verdict
from dpalgos.guarantees import Neighbours
from dpalgos.parameters import ParameterError
from dpalgos.rows import NULL_LABEL
from storage.errors import InputError, RefusedError
from tasks.auditing.figures import draw_membership
from tasks.auditing.public_rows import audit_on_public_rows, canary_pairs, infer_membership, public_sample
from tasks.datasets.registration import ensure_registered
from tests.support.chains import ingest_private
from tests.support.command_line import CommandLine

RELATIONS = list(Neighbours)[:2]


@pytest.fixture(autouse=True)
def _bundled(root: Path) -> None:
    ensure_registered("digits", "iris", "diabetes")


@pytest.mark.parametrize("neighbours", RELATIONS)
def test_canaries_differ_in_one_row_of_one_party(neighbours: Neighbours, root: Path) -> None:
    sample = public_sample("digits", 40, 0)
    assert np.linalg.norm(sample.features, axis=1) == pytest.approx(1.0)
    pairs = canary_pairs(sample, neighbours)
    assert [word for word in ("farthest", "other label", "support vector") if word in " ".join(p.name for p in pairs)]
    for pair in pairs:
        assert pair.left["1"] is pair.right["1"]
        left, right = pair.left["0"], pair.right["0"]
        changed = (left.features != right.features).any(axis=1) | (left.labels != right.labels)
        assert changed.sum() == 1, pair.name
        if neighbours is Neighbours.REPLACE_SPECIAL:
            assert right.labels[changed] == NULL_LABEL
            assert not right.features[changed].any()
        else:
            assert set(right.labels) <= {0, 1}


def test_private_rows_are_never_audited(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input")
    for audit in (audit_on_public_rows, infer_membership):
        with pytest.raises(RefusedError, match=r"^clinic is private"):
            audit("noisy-gd", "clinic")
    with pytest.raises(InputError, match="needs 160"):
        public_sample("iris", 80, 0)
    with pytest.raises(InputError, match="numeric labels"):
        public_sample("diabetes", 40, 0)
    with pytest.raises(ParameterError, match="even number"):
        infer_membership("noisy-gd", "iris", rows=3)


def test_a_model_without_noise_is_told_from_real_rows(root: Path) -> None:
    report = audit_on_public_rows("wishart-svm", "iris", AuditOptions(trials=80), rows=20)
    assert report.verdict is Verdict.VIOLATES, report
    assert "iris" in report.pair


def test_a_sound_model_is_not(root: Path) -> None:
    """At 1 − 10⁻⁹, never by chance."""
    report = audit_on_public_rows(
        "sufficient-statistics", "iris", AuditOptions(trials=40, confidence=1 - 1e-9), rows=20
    )
    assert report.verdict is not Verdict.VIOLATES, report


def test_members_of_an_exact_model_are_recognised_and_of_a_noisy_one_hardly(root: Path) -> None:
    """4,000 pairs of model and row a system: rates to within 6 standard errors of what the guarantee leaves."""
    exact = infer_membership(
        "non-private", "iris", AuditOptions(trials=100, neighbours=Neighbours.REPLACE_SPECIAL), rows=40
    )
    noisy = infer_membership(
        "sufficient-statistics", "iris", AuditOptions(trials=100, neighbours=Neighbours.REPLACE_SPECIAL), rows=40
    )
    error = 6 * np.sqrt(0.25 / 2000)
    assert exact.advantage > 0.15
    assert exact.advantage_bound == 1.0
    assert noisy.proved_epsilon == pytest.approx(1.0)
    assert noisy.advantage <= noisy.advantage_bound + error
    assert noisy.area <= noisy.area_bound + error
    assert [level for level, *_ in noisy.rates] == [0.001, 0.01, 0.1]
    assert draw_membership(noisy).startswith(b"\x89PNG")


def test_the_commands(commands: CommandLine, tmp_path: Path) -> None:
    out = tmp_path / "roc.png"
    found = commands.succeeds("audit", "sufficient-statistics", "--membership", "digits", "--trials", 16, "--out", out)
    assert {"advantage", "advantage_bound", "area", "area_bound", "rates", "proved_mu"} <= set(found)
    assert out.read_bytes().startswith(b"\x89PNG")
    found = commands.succeeds("audit", "wishart-svm", "--dataset", "iris", "--trials", 16)
    assert {"lower_bound", "pair", "event"} <= set(found)
    commands("audit", "noisy-gd", "--dataset", "iris", "--chain").refused(2, "give one of them")


@pytest.mark.nightly
@pytest.mark.parametrize("neighbours", RELATIONS)
def test_no_attack_on_a_sound_system_exceeds_its_bound(neighbours: Neighbours, root: Path) -> None:
    for name, epsilon in (("noisy-gd", 4.0), ("fed-dpdr-dpml", 4.0), ("smo-output-perturbation", 1.0)):
        found = infer_membership(
            name, "digits", AuditOptions(epsilon=epsilon, trials=64, neighbours=neighbours), rows=100
        )
        error = 6 * np.sqrt(0.25 / 3200)
        assert found.advantage <= found.advantage_bound + error, found
        assert found.area <= found.area_bound + error, found
