"""Cells that a model does not know: whoever asks for predictions sees them, and nothing that is kept does."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

from flows.batch_scoring import batch_scoring
from storage.layout import Layout
from tasks.tracking.scoring import ScoringRequest
from tests.support.command_line import CommandLine
from tests.support.engines import Engine
from tests.support.leaks import found_in

SCHEMA = """
columns:
  - {name: race, type: category, values: {Caucasian: white, "Afr*": black, Asian: other}}
  - {name: age, type: numeric, ordered: ["[60-70)", "[70-80)", "[80-90)"]}
  - {name: drugs, type: numeric, range: [0, 80]}
  - {names: "diag_*", type: category, first: 3, values: ["250", "428"]}
  - {name: back, type: label, classes: {"<30": early, ">30": rest, "NO": rest}}
"""
UNKNOWN, MANY, BRACKET = "Zyxqvn7713", "9917731", "7517.731"


def _rows(path: Path, count: int, *more: str) -> Path:
    draw = random.Random(3)
    lines = [
        f"{draw.choice(('Caucasian', 'AfricanAmerican', 'Asian'))},{draw.choice(('[60-70)', '[70-80)'))},"
        f"{draw.randrange(80)},{draw.choice(('250.1', '428'))},{draw.choice(('250', '428.9'))},"
        f"{draw.choice(('<30', '>30', 'NO'))}"
        for _ in range(count)
    ]
    path.write_text("race,age,drugs,diag_1,diag_2,back\n" + "\n".join([*lines, *more]) + "\n")
    return path


def test_what_a_model_does_not_know_is_on_one_screen_alone(
    unitball: CommandLine, engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "schema.yaml").write_text(SCHEMA)
    declared = ("--format", "csv", "--path", _rows(folder / "rows.csv", 400), "--schema", folder / "schema.yaml")
    cap = ("--epsilon-cap", 3, "--delta-cap", 1e-4, "--on-violation", "clip")
    assert unitball("ingest", "clinic", *declared, *cap).code == 0
    unitball.trained("--dataset", "clinic", "--algorithm", "noisy-gd", "--epsilon", 1, "--param", "iterations=2")
    odd = (f"{UNKNOWN},[60-70),{MANY},250,250,NO", f"{UNKNOWN},{BRACKET},1,250,250,NO", "Asian,[70-80),5,41,250,NO")
    new = _rows(folder / "new.csv", 20, *odd)
    asked = ("--model", "clinic.noisy-gd", "--input", new)
    said = unitball("predict", *asked, "--output", folder / "out.parquet").out
    assert "23 rows by clinic.noisy-gd version 1, 1 refused" in said
    # The second row with it is refused for its age.
    assert f"column race: 1 cell is outside the schema and clipped, the first '{UNKNOWN}' (row 22)" in said
    assert f"column drugs: 1 cell is outside the schema and clipped, the first '{MANY}' (row 22)" in said
    assert "column diag_1: 1 cell is outside the schema and clipped, the first '41' (row 24)" in said
    machine = unitball.succeeds("predict", *asked, "--output", folder / "json.parquet")
    assert machine["clipped"]["race"] == {"cells": 1, "row": 22, "value": UNKNOWN}
    name = batch_scoring(ScoringRequest(model="clinic.noisy-gd", input=str(new)))
    APILogWorker.drain_all(timeout=60)
    EventsWorker.drain_all(timeout=60)
    kept = [path for folder in (unitball.root, engine.root) for path in folder.rglob("*") if path.is_file()]
    assert Layout(unitball.root).private / "predictions" / name in kept
    assert {"prefect.db", "mlflow.db"} <= {path.name for path in kept}
    needles = [UNKNOWN.encode(), MANY.encode()]
    assert len(found_in([new], needles)) == 2
    assert found_in([*kept, folder / "out.parquet", folder / "json.parquet"], needles) == []
    assert {path.name for path in folder.iterdir()} == {
        "rows.csv", "schema.yaml", "new.csv", "out.parquet", "json.parquet",
    }  # fmt: skip
    # Why a row has no prediction is in the output, for its owner, and nowhere else.
    assert found_in([folder / "out.parquet"], [BRACKET.encode()])
    private = Layout(unitball.root).private
    assert found_in([path for path in kept if private not in path.parents], [BRACKET.encode()]) == []
    messages = [record.getMessage() for record in caplog.records]
    assert messages
    for text in (UNKNOWN, MANY, BRACKET):
        assert not [message for message in messages if text in message]
