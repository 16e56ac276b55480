"""The benchmark of tables: that it runs and goes on where it was, and that its trial pays for what it counts."""

from __future__ import annotations

import importlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.data import REPOSITORY, real_data

BINS = 8


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))


def module(name: str) -> Any:
    return importlib.import_module(name)


def moved(row: tuple[int, ...], other: tuple[int, ...], factor: NDArray[np.float64], numeric: int) -> float:
    """Return the squared distance that replacing a row moves the release by: bins first, categories after them."""
    total = 0.0
    for place, (one, two) in enumerate(zip(row, other, strict=True)):
        counts = np.zeros(len(factor))
        counts[one] += 1.0
        counts[two] -= 1.0
        if place < numeric:
            counts = np.convolve(factor, counts)[: len(factor)]
        total += float(counts @ counts)
    return total


@pytest.mark.parametrize("numeric", [1, 2])
def test_the_sensitivity_of_the_counts_is_that_of_all_pairs_of_rows(numeric: int) -> None:
    trial = module("table_trial")
    rows = list(itertools.product(range(BINS), repeat=numeric))
    rows = [(*bins, category, label) for bins in rows for category in (0, 1) for label in (0, 1)]
    factor = trial.square_root_factor(BINS)
    largest = max(moved(row, other, factor, numeric) for row, other in itertools.combinations(rows, 2))
    stated = numeric * trial.squared_sensitivity(BINS) + 2.0 * (1 + 1)
    assert largest == pytest.approx(stated, rel=1e-12)
    # Without the class's count it would be less than what a row moves.
    assert largest > numeric * trial.squared_sensitivity(BINS) + 2.0 + 1e-9


def test_the_factor_squared_is_the_running_sum() -> None:
    factor = module("table_trial").square_root_factor(BINS)
    np.testing.assert_allclose(np.convolve(factor, factor)[:BINS], np.ones(BINS), rtol=1e-12)


def test_counts_have_the_noise_that_is_paid_for() -> None:
    trial, sets = module("table_trial"), module("table_sets")
    part = sets.Part(np.zeros((50, 1)), np.zeros((50, 1), np.int64), np.zeros(50, np.int64))
    table = sets.Table("made", np.array([[-1.0, 1.0]]), (3,), 2, (-1.0, 1.0), part, part)
    counts = trial.released_counts(table, 0.5, BINS, np.random.default_rng(0))
    expected = math.sqrt(trial.squared_sensitivity(BINS) + 2.0 * 2) / 0.5 / 50
    assert counts.deviation == pytest.approx(expected, rel=1e-12)


def test_a_map_is_monotone_total_and_constant_where_nothing_differs() -> None:
    trial = module("table_trial")
    spread = trial.column_map(np.linspace(1 / BINS, 1.0, BINS))
    assert (np.diff(spread.functions[0]) > 0).all()
    # Two values leave nothing for a square and a cube.
    two = trial.column_map(np.array([0.3] * (BINS - 1) + [1.0]))
    assert two.functions[1] is None
    assert two.functions[2] is None
    alone = trial.column_map(np.ones(BINS))
    assert np.isfinite(alone.linear).all()


@pytest.mark.parametrize(
    ("rows", "numbers", "sizes", "classes", "mu", "level"),
    [
        (30_000, 6, (7, 16, 7, 14, 6, 5, 2, 41), 2, 0.2, "cubic"),
        (4_000, 15, (51, 3, 2, 2), 2, 0.03, "linear"),
        (5_000, 166, (), 2, 0.03, "linear"),
        (15_000, 16, (), 26, 0.03, "linear"),
        (15_000, 16, (), 26, 0.2, "products"),
        (7_000, 256, (), 10, 0.2, "linear"),
        (5_000, 14, (), 1, 0.02, "scores"),
        (18_000, 16, (), 1, 0.2, "cubic"),
        (10_000, 0, (3, 5, 4, 4, 3, 2, 3, 3), 4, 0.03, "linear"),
    ],
)
def test_the_rule_follows_from_public_numbers(
    rows: int, numbers: int, sizes: tuple[int, ...], classes: int, mu: float, level: str
) -> None:
    rules = module("table_rules")
    assert rules.choose(rules.TableFacts(rows, numbers, sizes, classes, mu)).level == level


def test_a_run_measures_each_cell_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITBALL_DATA", str(real_data("tables").parent))
    tables = module("tables")
    output = tmp_path / "found.json"
    given = ["--sets", "banana,wind", "--rows", "300", "--epsilons", "3", "--seeds", "1", "--output", str(output)]
    tables.main([*given, "--systems", "linear,trial"])
    found = json.loads(output.read_text())
    assert {(cell["set"], cell["system"]) for cell in found} == set(
        itertools.product(("banana", "wind"), ("linear", "trial"))
    )
    assert all(0.0 <= cell["auc"] <= 1.0 for cell in found if cell["set"] == "banana")
    assert all(cell["r2"] <= 1.0 for cell in found if cell["set"] == "wind")

    def measured(*_: object) -> None:
        raise AssertionError("a cell was measured again")

    monkeypatch.setattr(tables, "measured", measured)
    tables.main([*given, "--systems", "linear,trial"])
    assert json.loads(output.read_text()) == found
    with pytest.raises(AssertionError, match="again"):
        tables.main([*given, "--systems", "linear,trial", "--seeds", "2"])


def test_an_environment_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITBALL_DATA", str(real_data("tables").parent))
    given = ["--sets", "banana", "--rows", "50", "--systems", "boosting", "--output", str(tmp_path / "found.json")]
    with pytest.raises(SystemExit, match="nowhere/python is not there"):
        module("tables").main([*given, "--peer-python", "nowhere/python"])
