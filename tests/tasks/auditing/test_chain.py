"""The whole chain observed: what lies beside the releases is the same on neighbours, and a leak there is seen."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
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
from storage.kept_rows import KeptRows
from storage.refs import ShardRef
from storage.rowfiles import StoredRows
from tasks.auditing.chain import ChainReport, Tables, audit_chain, chain_config, run_once, synthetic_tables
from tasks.auditing.traces import told_before
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.preparation import mapped_rows, public_maps
from tasks.release import expectation, seen_rows
from tasks.release.door import OpenRelease
from tasks.runtime.progress import listen
from tasks.runtime.settings import isolated_root
from tasks.tracking.results import Chained
from tests.support.command_line import CommandLine
from tests.support.noise import differing_each_time
from tests.support.stating import stating

honest_fit, honest_kept, honest_encoding = OpenRelease.fit, mapped_rows.kept_rows, public_maps.encoding


OTHERS = ("fed-dpdr-dpml", "dppca-dpsvm", "smo-output-perturbation", "dpml")


class Told(mapped_rows.PublicView):
    """A view that says how many rows pass."""

    def __call__(self, rows: Any) -> Any:
        return public_maps._counted(super().__call__, 100)(rows)


def assert_nothing_differs(name: str, options: AuditOptions) -> ChainReport:
    """Assert that no field of a system's runs tells neighbours apart each time, and that no audit refutes it."""
    reports: list[ChainReport] = []

    def compared() -> tuple[str, ...]:
        reports.append(audit_chain(name, options, chain=chain_inline))
        return reports[-1].differing

    assert differing_each_time(compared) == []
    assert {report.verdict for report in reports} == {Verdict.CONSISTENT}
    return reports[0]


@pytest.mark.nightly
@pytest.mark.parametrize("neighbours", list(Neighbours)[:2])
def test_nothing_beside_the_releases_of_a_sound_system_differs(neighbours: Neighbours, root: Path) -> None:
    """Two runs a world show every field without noise; what is measured with noise is for the nightly test."""
    report = assert_nothing_differs("noisy-gd", AuditOptions(trials=2, neighbours=neighbours, confidence=1 - 1e-9))
    assert report.fields > 400


def test_nothing_beside_the_releases_of_a_run_that_counts_columns_differs(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By day of a large table alone: its map is of columns, and traces name it by its role."""
    seen: set[str] = set()

    def noted(*given: Any) -> Any:
        observed, proved = run_once(*given)
        seen.update(observed)
        return observed, proved

    monkeypatch.setattr("tasks.auditing.chain.run_once", noted)
    report = assert_nothing_differs("unitball", AuditOptions(trials=2, confidence=1 - 1e-9))
    assert report.fields > 400
    assert os.environ["UNITBALL_ROOT"] == str(root)
    assert not root.exists(), "the user's root is not touched"
    assert any(name.endswith("arrays.npz tables") for name in seen), sorted(seen)


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
            patch.setattr(public_maps, "encoding", lambda keys: Told(honest_encoding(keys).maps, len(keys)))
            told = [lines_of_progress(config, tables) for tables in pair]
        assert told[0] != told[1]


WHITENED: dict[str, Any] = {
    "dataset": "visits",
    "epsilon": 1.0,
    "parties": 1,
    "projection": "public-whitening",
    "trainer": "class-means",
    "dimension": 2,
    "evaluation": False,
    "parameters": {"projection.images": 40, "projection.feature_parameters": {"scales": 1}},
}
PEOPLE, PIXELS = 70, 64


def told_of(folder: Path, rows: int) -> list[dict[str, object]]:
    """Return what ``--plan`` says before and after a run on people's images, of whom the first has so many rows."""
    random, names = np.random.default_rng(0), [f"x{number}" for number in range(PIXELS)]
    columns = [f"{{name: {name}, type: numeric, range: [0, 1]}}" for name in names]
    schema = ["{name: p, type: person}", *columns, '{name: y, type: label, classes: ["0", "1"]}']
    whose = np.repeat(np.arange(PEOPLE), [rows] + [1] * (PEOPLE - 1))
    with isolated_root(folder / "root"):
        (folder / "schema.yaml").write_text("\n  - ".join(["scaling: unit-interval\ncolumns:", *schema]))
        images = random.random((len(whose), PIXELS)).round(2)
        lines = [f"{who},{','.join(map(str, image))},{who % 2}" for who, image in zip(whose, images, strict=True)]
        (folder / "rows.csv").write_text("\n".join([",".join(["p", *names, "y"]), *lines]))
        ingest(
            IngestRequest(
                name="visits",
                format="csv",
                path=folder / "rows.csv",
                schema_path=folder / "schema.yaml",
                epsilon_cap=3.0,
                delta_cap=1e-4,
            )
        )
        config = TrainingConfig.model_validate(WHITENED)
        before = told_before(config)
        chain_inline(config)
        # The same again, of which everything is stored, and another run, which finds the map made.
        return [before, told_before(config), told_before(config.model_copy(update={"replicate": 1}))]


@pytest.mark.parametrize("mutant", [False, True])
def test_no_plan_says_how_many_rows_a_person_has(
    mutant: bool, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: rows behind a slow map are kept from so many on, and rows that are not kept are mapped again.

    One of 70 people has 1 row or 64, and copies are made from 100 on. The mutant counts stored rows, and looks whether
    there is a copy.
    """
    monkeypatch.setattr(mapped_rows, "_FEWEST_ROWS", 100)
    if mutant:
        monkeypatch.setattr(seen_rows, "kept_rows", kept_by_their_number)
        monkeypatch.setattr(expectation, "_views", views_on_disk)
    for rows in (1, 64):
        (tmp_path / str(rows)).mkdir()
    few, many = (told_of(tmp_path / str(rows), rows) for rows in (1, 64))
    assert (few == many) is not mutant
    assert 0 < cast(float, few[0]["least_read_bytes"]) < cast(float, few[0]["read_bytes"])


def kept_by_their_number(shard: ShardRef, rows: StoredRows, view: Any, **more: Any) -> KeptRows | None:
    return None if rows.stored < 100 else honest_kept(shard, rows, view, **more)


def views_on_disk(plan: RunPlan, shards: Sequence[ShardRef]) -> Any:
    (release,) = plan.projections
    found = public_maps.find_public_map(release.algorithm, release.setting)
    kept = found is not None and mapped_rows.are_kept(shards, mapped_rows.PublicView((found,)))
    return SimpleNamespace(kept=kept, anew=not kept)


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
    with pytest.raises(RefusedError, match="not proved", check=stating(value="wishart-svm", bound="proved")):
        audit_chain("wishart-svm", AuditOptions(trials=2), chain=chain_inline)


def test_the_command(commands: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs in each world of three pairs, which are one run here: what differs is looked for above."""
    asked: list[Any] = []
    first = cache(lambda: run_once(*asked[0]))

    def again(*given: Any) -> Any:
        asked.append(given)
        return first()

    monkeypatch.setattr("tasks.auditing.chain.run_once", again)
    report = commands.succeeds("audit", "noisy-gd", "--chain", "--trials", "2")
    assert len(asked) == 12
    assert {config.algorithm for config, *_ in asked} == {"noisy-gd"}
    fields = ("algorithm", "proved_epsilon", "delta", "lower_bound", "ceiling", "confidence", "verdict", "trials")
    assert set(fields) <= set(report)
    assert report["fields"] > 400
    commands("audit", "noisy-gd", "--chain", "--trials", "1").refused(2, "trials is 1")


@pytest.mark.nightly
@pytest.mark.parametrize("neighbours", list(Neighbours)[:2])
@pytest.mark.parametrize("name", ["noisy-gd", "unitball", *OTHERS])
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
