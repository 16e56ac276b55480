"""The whole chain observed: what lies beside the releases is the same on neighbours, and a leak there is seen."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dpalgos.audit.bounds import compare
from dpalgos.audit.experiment import AuditOptions, Verdict
from dpalgos.guarantees import Neighbours
from dpalgos.models import Artefact
from dpalgos.rows import sanitise
from flows.federated_training import chain_inline
from storage.errors import RefusedError
from tasks.auditing.examination import ChainReport, Tables, audit_chain, chain_config, run_once, synthetic_tables
from tasks.planning.configuration import TrainingConfig
from tasks.preparation import rows as mapping
from tasks.release.door import OpenRelease
from tasks.runtime.progress import listen
from tasks.tracking.results import Chained
from tests.support.command_line import CommandLine
from tests.support.nights import by_night

honest_fit = OpenRelease.fit


def without_noise(report: ChainReport) -> list[str]:
    """Return what differs and is not computed from noisy counts, which are clipped and coincide in a few runs."""
    return [name for name in report.differing if not re.search("metrics|accuracy|by_party|precision|recall", name)]


@pytest.mark.parametrize("neighbours", by_night(list(Neighbours)[:2], {Neighbours.REPLACE_SPECIAL}))
def test_nothing_beside_the_releases_of_a_sound_system_differs(neighbours: Neighbours, root: Path) -> None:
    """Two runs a world show every field without noise; what is measured with noise is for the nightly test."""
    report = audit_chain(
        "noisy-gd", AuditOptions(trials=2, neighbours=neighbours, confidence=1 - 1e-9), chain=chain_inline
    )
    assert without_noise(report) == []
    assert report.verdict is Verdict.CONSISTENT
    assert report.fields > 400
    assert os.environ["UNITBALL_ROOT"] == str(root)
    assert not root.exists(), "the user's root is not touched"


def lines_of_progress(config: TrainingConfig, tables: Tables) -> list[tuple[str, str, float | None]]:
    """Return what is said while a run over these rows goes on, but not while they are ingested."""
    heard: list[tuple[str, str, float | None]] = []

    def chain(asked: TrainingConfig) -> Chained:
        with listen(lambda stage, label, share: heard.append((stage, re.sub("[0-9a-f]{16,}", "…", label), share))):
            return chain_inline(asked)

    run_once(config, tables, chain)
    return heard


@pytest.mark.parametrize("public", [{}, {"features": "random-fourier", "parameters": {"features.frequencies": 3}}])
def test_no_line_of_progress_says_how_many_rows_a_person_has(public: dict[str, Any], root: Path) -> None:
    """A person with 50 rows against one with 1, and the mutant: a line that counts the rows that pass."""
    pair = synthetic_tables(Neighbours.REPLACE_ONE, "person")
    assert len(pair[0]["train"]) == len(pair[1]["train"]) + 49
    assert len(set(pair[0]["train"]["person"])) == len(set(pair[1]["train"]["person"]))
    config = chain_config("noisy-gd", 1.0, 1e-5, Neighbours.REPLACE_ONE).model_copy(update=public)
    said = [lines_of_progress(config, tables) for tables in pair]
    assert said[0] == said[1]
    assert len(said[0]) > 5
    if public:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mapping, "_through", lambda maps: mapping._counted(through(maps), 100))
            told = [lines_of_progress(config, tables) for tables in pair]
        assert told[0] != told[1]


def through(maps: Any) -> Any:
    return lambda rows: functools.reduce(lambda seen, each: each.apply(seen), maps, rows)


def leaking_fit(opened: OpenRelease) -> Artefact:
    """Train as ever, and write down exact statistics: a norm, the count of a class, the number of rows, a spectrum."""
    blocks = [sanitise(features, labels, 2) for rows in opened.rows for features, labels, _ in rows.blocks()]
    features, labels = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    opened._diagnostics = {
        "norm": float(np.linalg.norm(features.sum(axis=0))),
        "positives": float((labels == 1).sum()),
        "present": float((labels >= 0).sum()),
    }
    fitted: Any = honest_fit(opened)
    if fitted.kind == "projection":
        object.__setattr__(fitted, "spectrum", np.linalg.eigvalsh(features.T @ features))
    return cast(Artefact, fitted)


@pytest.mark.nightly
def test_exact_statistics_beside_a_release_are_caught(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm, a class's count, how many rows are no null records, and a spectrum: each is named."""
    monkeypatch.setattr(OpenRelease, "fit", leaking_fit)
    report = audit_chain("ag-dpsvm", AuditOptions(trials=2, neighbours=Neighbours.REPLACE_SPECIAL), chain=chain_inline)
    for name in ("diagnostics norm", "diagnostics positives", "diagnostics present", "spectrum"):
        assert any(field.startswith("train: releases/") and name in field for field in report.differing), name


def test_a_set_of_another_size_is_told_apart(root: Path) -> None:
    """Why add-remove-one is no relation here: n is public, and every number that follows from it."""
    config = chain_config("noisy-gd", 1.0, 1e-5, Neighbours.REPLACE_ONE)
    more, _ = synthetic_tables(Neighbours.REPLACE_ONE, "train")
    fewer = {**more, "train": more["train"][1:]}
    seen = [[run_once(config, tables, chain_inline)[0] for _ in range(2)] for tables in (more, fewer)]
    differing = compare(*seen, delta=1e-5, confidence=0.99).differing
    assert "reference rows" in differing
    assert any("sizes" in field for field in differing)


def test_what_is_not_proved_does_not_run_on_private_rows(root: Path) -> None:
    with pytest.raises(RefusedError, match="not proved"):
        audit_chain("wishart-svm", AuditOptions(trials=2), chain=chain_inline)


def test_the_command(commands: CommandLine) -> None:
    report = commands.succeeds("audit", "noisy-gd", "--chain", "--trials", "2")
    fields = ("algorithm", "proved_epsilon", "delta", "lower_bound", "ceiling", "confidence", "verdict", "trials")
    assert set(fields) <= set(report)
    assert report["fields"] > 400
    commands("audit", "noisy-gd", "--chain", "--trials", "1").refused(2, "two at the least")


@pytest.mark.nightly
@pytest.mark.parametrize("neighbours", list(Neighbours)[:2])
@pytest.mark.parametrize("name", ["noisy-gd", "fed-dpdr-dpml", "dppca-dpsvm", "smo-output-perturbation", "dpml"])
def test_chains_of_sound_systems_are_consistent(name: str, neighbours: Neighbours, root: Path) -> None:
    report = audit_chain(name, AuditOptions(trials=40, neighbours=neighbours, confidence=1 - 1e-9), chain=chain_inline)
    assert report.verdict is Verdict.CONSISTENT, report
    assert report.differing == (), report


@pytest.mark.nightly
def test_a_leak_beside_the_release_refutes_the_guarantee(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenRelease, "fit", leaking_fit)
    report = audit_chain("noisy-gd", AuditOptions(trials=48), chain=chain_inline)
    assert report.verdict is Verdict.VIOLATES, report
    assert report.lower_bound == pytest.approx(report.ceiling)
