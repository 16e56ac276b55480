"""Reproductions: quick ones end to end, and what is missing is said instead of faked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.specs import known_reproductions, load_reproduction
from storage.errors import InputError
from tests.support.command_line import CommandLine

# One a paper in every run, chosen for speed; the others at night.
OFTEN = ("sun2021-fig1", "huang2021-table2", "owusu2021-fig6")
WORKED_OUT = ("wang2024-table1", "huang2021-table2")


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.nightly) for name in known_reproductions()]
)
def test_a_quick_reproduction_writes_rows_figure_verdict_and_page(unitball: CommandLine, name: str) -> None:
    experiment = unitball.succeeds("reproduce", name)
    folder = unitball.root / "experiments" / f"{name}-quick"
    assert experiment["failed"] == []
    page = (folder / "report.html").read_text("utf-8")
    assert experiment["question"].split()[0] in page
    assert f"unitball reproduce {name} --scale quick" in page
    if name in WORKED_OUT:
        assert experiment["tables"][0]["body"]
        return
    rows = pq.read_table(folder / "results.parquet")
    assert rows.num_rows == len(experiment["results"]) > 0
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (folder / "figure.svg").read_bytes()
    assert experiment["verdicts"]
    run = {result["dataset"] for result in experiment["results"]}
    for check, verdict in zip(load_reproduction(name).checks, experiment["verdicts"], strict=True):
        # A check of a set that is run at full scale only has nothing to measure here, and says so.
        assert (verdict["holds"] is None) == (check.where.get("dataset", min(run)) not in run), verdict["says"]
    # Bundled data are not the paper's.
    assert not any(verdict["at_scale"] for verdict in experiment["verdicts"])
    assert "not at the paper's scale" in experiment["title"]
    before = page
    assert unitball("report", f"{name}-quick").code == 0
    assert (folder / "report.html").read_text("utf-8") == before


def test_files_that_are_not_there_are_named(root: Path) -> None:
    from flows.reproduction import _data
    from flows.specs import load_reproduction

    full = load_reproduction("wang2024-fig3").full
    assert full is not None
    with pytest.raises(InputError, match=r"MNIST.*IDX"):
        _data(full, "mnist", None)


def test_some_features_of_a_private_set_are_no_set_of_their_own(root: Path, tmp_path: Path) -> None:
    from storage.errors import RefusedError
    from tasks.datasets.registration import ensure_registered, find_dataset, ingest
    from tasks.datasets.request import IngestRequest
    from tasks.experiments.computed import ingest_features

    ensure_registered("iris")
    ingest_features("iris", [2, 0], "iris-two")
    assert find_dataset("iris-two").dimension == 2
    file = tmp_path / "rows.libsvm"
    file.write_text("".join(f"{row % 2} 1:0.{row % 9} 2:0.1\n" for row in range(300)))
    ingest(
        IngestRequest(
            name="clinic", format="libsvm", path=file, dimension=2, classes=("0", "1"), epsilon_cap=1.0, delta_cap=1e-5
        )
    )
    with pytest.raises(RefusedError, match="private"):
        ingest_features("clinic", [0], "copy")


def test_a_sweep_is_drawn_against_its_first_axis_of_numbers() -> None:
    from flows.reproduction import _plot_of
    from tasks.experiments.specifications import SweepSpec

    def plot_of(**grid: list[object]) -> tuple[str, bool] | None:
        spec = SweepSpec.model_validate({"name": "s", "set": {"dataset": "digits", "epsilon": 1.0}, "grid": grid})
        axes = {name: values[0] for name, values in grid.items()}
        result: Any = SimpleNamespace(value=axes.get)
        plot = _plot_of(spec, [result])
        return None if plot is None else (plot.x, plot.log_x)

    assert plot_of(algorithm=["noisy-gd", "ridge"], epsilon=[0.5, 1, 3]) == ("epsilon", False)
    assert plot_of(seeds=[0, 1], epsilon=[0.1, 1, 3], parties=[2, 3]) == ("epsilon", True)
    assert plot_of(algorithm=["noisy-gd", "ridge"], seeds=[0, 1]) is None
    assert plot_of(parties=[5]) is None
