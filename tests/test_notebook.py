"""The notebooks of the documentation run from their first cells to their last, in order, each in one namespace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def run(name: str, root: Path) -> dict[str, Any]:
    """Run a notebook and return its namespace: plain Python and no kernel, for the cells hold no magic."""
    cells = json.loads(Path("docs", name).read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    namespace: dict[str, Any] = {}
    for number, source in enumerate(code):
        source = source.replace("tempfile.mkdtemp()", repr(str(root)))
        exec(compile(source, f"cell {number}", "exec"), namespace)
    assert len(code) > 5
    return namespace


def test_the_notebook_runs(tracked_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace = run("notebook.ipynb", tracked_root)
    assert namespace["public"].score(namespace["X_test"], namespace["y_test"]) > 0.85
    said = capsys.readouterr().out
    assert "above the cap" in said
    assert "standardscaler (StandardScaler): it may learn from the rows" in said


def test_components_are_released_trained_on_and_explained(tracked_root: Path) -> None:
    namespace = run("components-and-reasons.ipynb", tracked_root)
    components, why = namespace["components"], namespace["why"]
    assert (components["low"] <= components["noisy"]).all()
    assert namespace["model"].result.accuracy > 0.8
    # High pulse and pressure are why the first row is ill, and low ones why the second is well.
    values = why.pivot_table(index="row", columns="column", values="value")
    assert (values.loc[values.index[0], ["pulse", "pressure"]] > 0).all()
    assert (values.loc[values.index[1], ["pulse", "pressure"]] < 0).all()


def test_the_notebook_of_synthetic_rows_runs(tracked_root: Path) -> None:
    """Four charges; what synthetic rows say of the models, the charged run confirms.

    Its accuracy is 0.85 and that of guessing 0.5, at 600 held-out rows.
    """
    namespace = run("synthetic-notebook.ipynb", tracked_root)
    scores = namespace["scores"]
    assert scores["DecisionTreeClassifier"] > scores["LogisticRegression"] + 0.1
    assert namespace["drawn"].attrs["epsilon"] > 1.0
    assert len(namespace["spent"].charges) == 4
    assert namespace["model"].to_frame()["accuracy"].iloc[0] > 0.65
