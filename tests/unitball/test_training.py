"""Training, predicting and reading results from a notebook."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import unitball
from dpalgos.measured import in_places
from storage.errors import OverspendError, RefusedError
from tests.support.chains import ingest_private


def test_names_are_imported_when_they_are_used() -> None:
    import subprocess

    code = (
        "import sys, unitball; dir(unitball); print([n for n in ('prefect', 'mlflow', 'sklearn') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(unitball.__all__) == set(dir(unitball))
    assert all(getattr(unitball, name) is not None for name in unitball.__all__)
    with pytest.raises(AttributeError, match="nothing_here"):
        getattr(unitball, "nothing_here")  # noqa: B009 - what a typo does


def test_a_private_run_from_a_notebook(tracked_root: Path, tmp_path: Path) -> None:
    rows = ingest_private(tmp_path / "input", count=600, epsilon_cap=1.2)
    model = unitball.train("clinic", algorithm="noisy-gd", epsilon=1.0, parties=2)
    assert str(model.guarantee) == "(1, 8.3e-05)-DP for a row under replace-one, exact numerics"
    frame = model.to_frame()
    title, measured, proved, left_over = repr(model).split("\n")
    assert title == "noisy-gd on clinic, central"
    # So few held-out rows leave a wide margin.
    low, high = (in_places(frame.loc[0, f"accuracy_{end}"], 3, way) for end, way in (("low", -1), ("high", 1)))
    assert measured == f"accuracy {frame.loc[0, 'accuracy']:.3f} ({low} to {high}) on held-out rows, noisy"
    assert proved == f"proved: {model.guarantee}"
    assert left_over == repr(model.budget).split("\n")[0]
    assert {"accuracy", "accuracy_low", "accuracy_high", "balanced_accuracy", "majority_rate"} <= set(frame.columns)
    assert frame.loc[0, "measured_on"] == "held-out rows, noisy"
    predictions = model.predict(rows.features)
    assert set(predictions) <= {"-1", "1"}
    assert np.array_equal(np.asarray(unitball.predict("clinic.noisy-gd", rows.features)).ravel()[:5], predictions[:5])
    budget = unitball.budget("clinic")
    assert set(budget.parties["party"]) == {"0", "1", "test"}
    assert (budget.epsilon_cap, budget.datasets) == (1.2, ("clinic",))
    (charge,) = budget.charges
    assert set(charge.parties) == {"0", "1", "test"}
    assert charge.epsilon == pytest.approx(1.0, rel=1e-3)
    assert charge.name.endswith("confusion-matrix of held-out rows")
    # The run that was made leaves what it says.
    assert model.budget.charges == budget.charges
    left = budget.left_epsilon
    assert left is not None
    assert left == model.budget.left_epsilon
    assert 0 < left < 1.2
    assert list(unitball.results("SELECT algorithm FROM runs")["algorithm"]) == ["noisy-gd"]
    with pytest.raises(OverspendError):
        unitball.train("clinic", algorithm="noisy-gd", epsilon=1.0, parties=2, replicate=1)


def test_another_root_is_named(root: Path, tmp_path: Path) -> None:
    assert list(unitball.results("SELECT 1 AS one", root=tmp_path / "another")["one"]) == [1]
    assert (tmp_path / "another").exists()
    assert not root.exists()


def test_a_frontier_and_its_figure(root: Path, tmp_path: Path) -> None:
    algorithms = ("noisy-gd", "non-private")
    runs = unitball.frontier("iris", algorithms=algorithms, epsilons=(0.5, 4.0), seeds=1, parties=2)
    assert runs["algorithm"].tolist().count("noisy-gd") == 2
    assert runs["epsilon"].isna().sum() == 1
    axes = unitball.plot(runs)
    assert axes.get_xscale() == "log"
    assert axes.get_legend_handles_labels()[1] == ["noisy-gd", "non-private"]
    ingest_private(tmp_path / "input")
    with pytest.raises(RefusedError, match="private"):
        unitball.frontier("clinic")
