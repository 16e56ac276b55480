"""Tables under the recommended system: columns counted within the plan, the map made of that, and what is charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command_line import CommandLine

ROWS = 3000
COLUMNS: list[dict[str, Any]] = [
    {"name": "a", "type": "numeric", "range": [-4, 4]},
    # Declared ten times too wide.
    {"name": "b", "type": "numeric", "range": [-40, 40], "missing": "indicator"},
    {"name": "c", "type": "category", "values": ["x", "y", "z"]},
]
LABELS = {
    "classes": {"name": "label", "type": "label", "classes": ["no", "yes"]},
    "real": {"name": "label", "type": "label", "range": [-20, 20]},
}
LABEL_OF_SCORES = "score-distribution of held-out rows"
MEASURED = {"classes": "accuracy", "real": "r2"}
TERMS = ("--account", "made-up", "--epsilon-cap", 9, "--delta-cap", 1e-5)


@pytest.fixture(params=["classes", "real"])
def table(request: pytest.FixtureRequest, tmp_path: Path, called: CommandLine) -> str:
    """Bring in a table whose label is of the product of two columns, which no line tells; return the label's kind."""
    kind = str(request.param)
    random = np.random.default_rng(48)
    a, b = random.standard_normal((2, ROWS))
    product = a * b
    label = np.where(product > 0, "yes", "no") if kind == "classes" else product.round(4).astype(str)
    b_text = np.where(random.random(ROWS) < 0.02, "", b.round(4).astype(str))
    c = random.choice(["x", "y", "z"], ROWS)
    lines = [f"{one:.4f},{two},{three},{four}" for one, two, three, four in zip(a, b_text, c, label, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,label", *lines]))
    (tmp_path / "schema.yaml").write_text(json.dumps({"columns": [*COLUMNS, LABELS[kind]]}))
    files = ("--path", tmp_path / "table.csv", "--schema", tmp_path / "schema.yaml")
    # Errors of numeric labels are in units of the declared range, which is too wide here to measure them privately.
    terms = TERMS if kind == "classes" else ("--public",)
    called.succeeds("ingest", "made-up", "--format", "csv", *files, *terms)
    return kind


def charged(called: CommandLine) -> set[tuple[int, str]]:
    """Return each charged release's plan and label."""
    parties = called.succeeds("budget", "made-up")["parties"]
    return {(one["plan"], one["label"]) for party in parties for one in party["charges"]}


def test_what_no_line_tells_is_learnt_from_functions_of_columns(table: str, called: CommandLine) -> None:
    asked = ("train", "--dataset", "made-up", "--epsilon", 4, "--parties", 2)
    result = called.succeeds(*asked)
    measured = MEASURED[table]
    assert result["metrics"][measured] > {"classes": 0.8, "real": 0.6}[table]
    linear = called.succeeds(*asked, "--normalisation", "unit-norm")
    assert linear["metrics"][measured] < {"classes": 0.65, "real": 0.2}[table]
    assert result["proved"]["epsilon"] == pytest.approx(4.0, rel=1e-3)
    assert result["proved"]["epsilon"] <= 4.0


@pytest.mark.parametrize("table", ["classes"], indirect=True)
def test_counts_are_charged_with_the_model_and_once(table: str, called: CommandLine) -> None:
    """And stay those of the model, whatever is counted later."""
    asked = ("train", "--dataset", "made-up", "--epsilon", 1, "--parties", 2)
    first = called.succeeds(*asked)
    once = charged(called)
    assert len({plan for plan, _ in once}) == 1
    assert {"columns of all parties", "model of all parties"} <= {label for _, label in once}
    assert called.succeeds(*asked)["releases"] == first["releases"]
    assert charged(called) == once
    assert called.succeeds("budget", "made-up")["epsilon_spent"] <= 1.0
    # Another replicate pays its own counts.
    called.succeeds(*asked, "--replicate", 1)
    twice = charged(called)
    assert sum(label == "columns of all parties" for _, label in twice) == 2
    called.succeeds("describe", "made-up", "--epsilon", 2)
    assert called.succeeds(*asked)["releases"] == first["releases"]
    assert {label for _, label in charged(called) - twice} == {"histograms of the columns"}


@pytest.mark.parametrize("table", ["classes"], indirect=True)
def test_described_columns_are_used_again_and_later_ones_change_nothing(table: str, called: CommandLine) -> None:
    asked = ("train", "--dataset", "made-up", "--epsilon", 1, "--parties", 2)
    called.succeeds("describe", "made-up", "--epsilon", 0.5)
    first = called.succeeds(*asked)
    once = charged(called)
    assert "columns of all parties" not in {label for _, label in once}
    # What the model guarantees composes the counts that it rests on, and the account has spent no more than that.
    assert first["proved"]["epsilon"] > 1.0
    assert called.succeeds("budget", "made-up")["epsilon_spent"] <= first["proved"]["epsilon"]
    # Counts that come later are better, and neither change the model nor charge it again.
    called.succeeds("describe", "made-up", "--epsilon", 2)
    again = called.succeeds(*asked)
    assert again["releases"] == first["releases"]
    measured = called.succeeds(*asked, "--roc", "--yes")
    assert measured["releases"] == first["releases"]
    labels = {label for _, label in charged(called) - once}
    assert labels <= {"histograms of the columns", "confusion-matrix of held-out rows", LABEL_OF_SCORES}
    # Another run takes all that there are by then.
    other = called.succeeds(*asked, "--replicate", 1)
    assert other["proved"]["epsilon"] > first["proved"]["epsilon"]


@pytest.mark.parametrize("table", ["classes"], indirect=True)
def test_counts_that_are_too_noisy_are_paid_anew(table: str, called: CommandLine) -> None:
    called.succeeds("describe", "made-up", "--epsilon", 0.05)
    result = called.succeeds("train", "--dataset", "made-up", "--epsilon", 2, "--parties", 2)
    assert "columns of all parties" in {label for _, label in charged(called)}
    assert result["proved"]["epsilon"] <= 2.0
    called("train", "--dataset", "made-up", "--epsilon", 2, "--counts-of", "0" * 32).refused(2, "holds no histograms")
