"""The benchmark of tables: that it runs, goes on where it was, and chooses nothing by test rows."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.columns import numbers_of, value_of
from tests.support.data import REPOSITORY, real_data


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))


def module(name: str) -> Any:
    return importlib.import_module(name)


def test_what_is_chosen_on_held_out_rows_is_of_training_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITBALL_DATA", str(real_data("tables").parent))
    table = module("table_sets").load("banana")
    held_out = table.held_out()
    assert len(held_out.train) + len(held_out.test) == len(table.train)
    rows = {tuple(row) for row in table.train.numbers}
    assert {tuple(row) for row in held_out.test.numbers} <= rows


def test_cells_are_read_from_the_rows_that_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of the declared ranges, and one value of each category."""
    monkeypatch.setenv("UNITBALL_DATA", str(real_data("tables").parent))
    tables, table = module("tables"), module("table_sets").load("churn")
    columns, cells = tables.of_table(table)
    numbers = [column for column in columns if column.is_number]
    rows = cells(table.test)
    found, missing = numbers_of(rows, numbers)
    low, high = table.ranges.T
    assert found == pytest.approx(np.clip((table.test.numbers - low) / (high - low), 0, 1))
    assert not missing.any()
    for column, codes in zip(columns[len(numbers) :], table.test.codes.T, strict=True):
        assert np.array_equal(value_of(rows, column), codes)


def test_a_run_measures_each_cell_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITBALL_DATA", str(real_data("tables").parent))
    tables = module("tables")
    output = tmp_path / "found.json"
    given = ["--sets", "banana,wind", "--rows", "300", "--epsilons", "3", "--seeds", "1", "--output", str(output)]
    tables.main([*given, "--systems", "linear,trial"])
    found = json.loads(output.read_text())["cells"]
    assert {(cell["set"], cell["system"]) for cell in found} == set(
        itertools.product(("banana", "wind"), ("linear", "trial"))
    )
    assert all(0.0 <= cell["auc"] <= 1.0 for cell in found if cell["set"] == "banana")
    assert all(cell["r2"] <= 1.0 for cell in found if cell["set"] == "wind")

    def measured(*_: object) -> None:
        raise AssertionError("a cell was measured again")

    monkeypatch.setattr(tables, "measured", measured)
    tables.main([*given, "--systems", "linear,trial"])
    assert json.loads(output.read_text())["cells"] == found
    with pytest.raises(AssertionError, match="again"):
        tables.main([*given, "--systems", "linear,trial", "--seeds", "2"])


def test_an_environment_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITBALL_DATA", str(real_data("tables").parent))
    given = ["--sets", "banana", "--rows", "50", "--systems", "boosting", "--output", str(tmp_path / "found.json")]
    with pytest.raises(SystemExit, match="nowhere/python"):
        module("tables").main([*given, "--peer-python", "nowhere/python"])
