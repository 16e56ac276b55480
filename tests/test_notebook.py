"""The notebook of the documentation runs from its first cell to its last, in order, in one namespace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_the_notebook_runs(tracked_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain Python and no kernel: the cells hold no magic."""
    cells = json.loads(Path("docs/notebook.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    namespace: dict[str, object] = {}
    for number, source in enumerate(code):
        source = source.replace("tempfile.mkdtemp()", repr(str(tracked_root)))
        exec(compile(source, f"cell {number}", "exec"), namespace)
    assert len(code) > 6
    assert namespace["public"].score(namespace["X_test"], namespace["y_test"]) > 0.85  # type: ignore[attr-defined]  # of any type
    said = capsys.readouterr().out
    assert "above the cap" in said
    assert "standardscaler (StandardScaler): it is not known to learn nothing from the rows" in said
