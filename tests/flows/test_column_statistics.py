"""`unitball synthesise` and `reduce` as flows: each ends, is charged once, and logs only what is released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flows import column_statistics as chained
from tasks.planning.column_statistics import DescriptionRequest, ReductionRequest, StatisticsRequest, SynthesisRequest
from tasks.runtime.progress import observed_by
from tasks.tracking.results import stated
from tasks.tracking.runs import tracking_client
from tests.support.called import runs_called
from tests.support.command_line import CommandLine

ROWS = 1200
SCHEMA = """\
delimiter: ";"
decimal: ","
columns:
  - {name: age, type: numeric, range: [18, 98], whole: true}
  - {name: weight, type: numeric, range: [40, 140]}
  - {name: note, type: ignore}
  - {name: town, type: category, values: ["Basel; Stadt", Chur]}
  - {name: outcome, type: label, classes: [well, ill]}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[object, ...]:
    """Write a table of another delimiter and decimal mark, and return how it is ingested."""
    random = np.random.default_rng(3)
    age = random.integers(18, 98, ROWS)
    columns: dict[str, Any] = {
        "age": age,
        "weight": np.full(ROWS, 71.123457),
        "note": "x",
        "town": random.choice(["Basel; Stadt", "Chur"], ROWS),
        "outcome": np.where(age + random.normal(0, 15, ROWS) > 60, "ill", "well"),
    }
    pd.DataFrame(columns).to_csv(tmp_path / "ward.csv", index=False, sep=";", decimal=",")
    (tmp_path / "ward.yaml").write_text(SCHEMA)
    return ("--format", "csv", "--schema", tmp_path / "ward.yaml")


def _ingested(unitball: CommandLine, files: tuple[object, ...], tmp_path: Path) -> None:
    terms = ("--account", "ward", "--epsilon-cap", 9, "--delta-cap", 1e-5)
    unitball.succeeds("ingest", "ward", *files, "--path", tmp_path / "ward.csv", *terms)


def test_the_command_ends_and_is_charged_and_recorded_once(
    unitball: CommandLine, files: tuple[object, ...], tmp_path: Path
) -> None:
    """The file has the form that the schema declares, so that what reads it reads the owner's file too."""
    _ingested(unitball, files, tmp_path)
    asked = ("synthesise", "ward", "--epsilon", 4)
    found = unitball.succeeds(*asked, "--output", tmp_path / "rows.csv")
    charges = unitball.succeeds("budget", "ward")["parties"]
    # The others need no flow of Prefect's.
    with runs_called():
        again = unitball.succeeds(*asked, "--rows", 50, "--seed", 2, "--name", "few")
        said = unitball(*asked).out
        assert unitball.succeeds("budget", "ward")["parties"] == charges
    assert (again["synthesis"], again["rows"]) == (found["synthesis"], 50)
    assert (
        unitball.succeeds("ingest", "back", *files, "--path", tmp_path / "rows.csv", "--public")["rows"]
        == found["rows"]
    )
    assert "epsilon 4" in said
    with tracking_client(unitball.root) as client:
        (experiment,) = [one for one in client.search_experiments() if one.name == "ward"]
        logged = client.search_runs([experiment.experiment_id])
        assert {one.data.params["rows"] for one in logged} == {str(found["rows"]), "50"}
        assert {one.data.params["dataset"] for one in logged} == {"ward"}
        assert len({one.info.run_name for one in logged}) == 2
        distances = {"distance_columns", "distance_tables", "distance_pairs"}
        assert all(one.data.metrics.keys() == {"epsilon_spent", "delta_spent", "edges", *distances} for one in logged)
        # MLflow's search for what is proved finds it, as it finds a training.
        assert {one.data.tags["proved"] for one in logged} == {stated(found["epsilon"], found["delta"])}
        run = logged[0].info.run_id
        logged_files = {one.path for one in client.list_artifacts(run)}
        tables = json.loads(Path(client.download_artifacts(run, "tables.json", str(tmp_path))).read_text())
        page = Path(client.download_artifacts(run, "report.md", str(tmp_path))).read_text()
    assert logged_files == {"lineage.json", "report.md", "tables.json", "columns.png", "tables.png"}
    _assert_reported(tables, page)
    assert json.loads((tmp_path / "rows.csv.lineage.json").read_text())["rests_on"] == found["rests_on"]
    with runs_called():
        tuned = unitball(
            "train", "--dataset", "ward", "--algorithm", "noisy-gd", "--trust", "central", "--epsilon", 1,
            "--tune", "clip=0.1,0.5", "--on", "ward-synthetic", "--no-evaluation",
        )  # fmt: skip
    assert "synthetic rows of ward-synthetic" in tuned.err
    assert "synthetic rows of ward-synthetic" in tuned.out


def _assert_reported(tables: dict[str, list[dict[str, Any]]], page: str) -> None:
    """Each column that is written is reported, by declared values and ends of parts, released ones with margins."""
    by_name = {one["columns"][0]: one for one in tables["columns"]}
    assert by_name.keys() == {"age", "weight", "town", "outcome"}
    assert by_name["town"]["cells"][0][:2] == ["Basel; Stadt", "Chur"]
    assert by_name["outcome"]["cells"] == [["well", "ill"]]
    for one in (*tables["columns"], *tables["tables"], *tables["pairs"]):
        assert np.sum(one["drawn"]) == pytest.approx(1.0)
        assert np.sum(one["released"]) == pytest.approx(1.0, abs=0.2)
        assert np.min(one["margins"]) > 0.0
    assert {tuple(one["columns"]) for one in tables["pairs"]} == {
        ("age", "weight"),
        ("age", "town"),
        ("weight", "town"),
    }
    for needed in ("three or more columns", "significance", "Rare combinations", "age × weight"):
        assert needed in page


def test_each_step_has_a_place_in_the_progress(called: CommandLine, files: tuple[object, ...], tmp_path: Path) -> None:
    _ingested(called, files, tmp_path)
    kinds: tuple[tuple[chained.Statistics[Any, Any, Any], StatisticsRequest], ...] = (
        (chained.DESCRIPTION, DescriptionRequest(dataset="ward", epsilon=0.5)),
        (chained.DESCRIPTION, DescriptionRequest(dataset="ward", epsilon=0.5, by="town")),
        (chained.SYNTHESIS, SynthesisRequest(dataset="ward", epsilon=4.0)),
        (chained.REDUCTION, ReductionRequest(dataset="ward", epsilon=4.0, components=1, score_counts=True)),
    )
    for kind, request in kinds:
        names = list[str]()
        with observed_by(names.append):
            kind.chain_inline(kind.plan(request), request)
        assert tuple(name.replace("-", "_") for name in names) == kind.stages
