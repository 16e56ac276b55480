"""Tables on pages are what files of results say, and each file says what made it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.data import REPOSITORY

RESULTS = sorted((REPOSITORY / "benchmarks" / "results").glob("*.json"))


@pytest.fixture
def render(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    return importlib.import_module("render")


def test_marked_tables_are_the_files_of_results(render: Any) -> None:
    marked = {page: page.read_text("utf-8") for page in render.pages()}
    stale = [page.name for page, text in marked.items() if render.rendered(text) != text]
    assert stale == [], "write them anew: python benchmarks/render.py"
    assert sum(text.count("<!-- table:") for text in marked.values()) == sum(
        len(render.names(t)) for t in marked.values()
    )


def test_each_file_of_results_says_what_made_it_and_is_shown_or_named(render: Any) -> None:
    marked = [name for page in render.pages() for name in render.names(page.read_text("utf-8"))]
    shown = {file for name in marked for file in render.MADE.get(name, ((name,), None))[0]}
    rules = (REPOSITORY / "dpalgos" / "systems" / "tables.py").read_text("utf-8")
    for path in RESULTS:
        assert render.load(path.stem)["source"] == "measured" or "transcribed from" in render.load(path.stem)["source"]
        assert path.stem in shown or f"results/{path.name}" in rules, path.name


def test_a_number_that_was_changed_is_found(render: Any, tmp_path: Path) -> None:
    """By hand on a page, or in a file: either differs from the other."""
    found = {
        "command": "python benchmarks/some.py", "made": "2026-01-01, abc", "machine": "2 cores", "seeds": "3, means",
        "source": "measured", "columns": ["what", {"title": "s", "digits": 2, "align": "right"}],
        "rows": [["a", 1.5], ["b", [0.1, 2000]], ["c", None], ["d", {"mean": -1, "spread": 0.25}]],
    }  # fmt: skip
    (tmp_path / "some.json").write_text(json.dumps(found))
    page = render.rendered("before\n<!-- table: some -->\n<!-- end -->\nafter\n", tmp_path)
    assert "| a | 1.50 |\n| b | 0.10–2,000.00 |\n| c | – |\n| d | −1.00 ± 0.25 |\n" in page
    assert "| --- | --: |" in page
    assert "*Measured on 2026-01-01 by `python benchmarks/some.py`: 2 cores; 3, means.*" in page
    assert render.rendered(page, tmp_path) == page
    assert render.rendered(page.replace("1.50", "1.40"), tmp_path) == page
    (tmp_path / "some.json").write_text(json.dumps(found | {"command": "not recorded"}))
    with pytest.raises(ValueError, match=r"some\.json.*command"):
        render.rendered(page, tmp_path)
    (tmp_path / "some.json").write_text(json.dumps(found | {"rows": [["a", 1.6]]}))
    assert render.rendered(page, tmp_path) != page
    (tmp_path / "some.json").write_text(json.dumps(found | {"rows": [["a"]]}))
    with pytest.raises(ValueError, match=r"1 cells.*2 columns"):
        render.rendered(page, tmp_path)
    (tmp_path / "some.json").write_text(json.dumps({key: value for key, value in found.items() if key != "seeds"}))
    with pytest.raises(ValueError, match="seeds"):
        render.rendered(page, tmp_path)


def test_the_line_below_readmes_table_names_no_other_set(render: Any) -> None:
    """It said of Adult's line that ijcnn1, letter, usps and krkopt have one seed."""
    line = next(one for one in render.table("what-to-expect").splitlines() if one.startswith("*Measured"))
    sets = {one["set"] for one in render.load("tables")["cells"]} - {"adult"}
    assert [name for name in sets if name in line] == []
    assert "mean of 3 seeds" in line


def test_what_a_benchmark_keeps_is_rendered(render: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = importlib.import_module("shared")
    monkeypatch.setattr("sys.argv", ["benchmarks/some.py", "errors", "--output", "here.json", "--nights", "3"])
    shared.head("what", "s")
    shared.line("before", 1)
    shared.head("what", "s")
    shared.line("this | that", 2.5)
    shared.keep_table(tmp_path / "some.json", "none")
    found = render.load("some", tmp_path)
    assert found["command"] == "python benchmarks/some.py errors --nights 3"
    assert (found["columns"], found["rows"]) == (["what", "s"], [["this | that", "2.5"]])
    assert "| this \\| that | 2.5 |\n" in render.table("some", tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "account-recorded", "delta-of-runs", "group-charges", "tuning-left", "tuning-curve", "roc-noise",
        pytest.param("random-batches", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_tables_of_accounting_are_what_is_computed_now(name: str, render: Any) -> None:
    """Where a price, a filter or a plan changes, the page does: nothing of it was measured."""
    computed = importlib.import_module("accounting").TABLES[name]()
    found = render.load(name)
    assert (found["columns"], found["rows"]) == (computed["columns"], computed["rows"]), (
        "write them anew: python benchmarks/accounting.py && python benchmarks/render.py"
    )
