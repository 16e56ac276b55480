"""Figures of one run: the confusion matrix and the ROC, of what was measured and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, cast

import numpy as np
import pytest
from matplotlib.image import imread

from dpalgos.measured import SHARE, Metrics, Scale
from storage.refs import DatasetRef
from tasks.planning.plans import RunIdentity
from tasks.runtime.plots import draw_measured
from tasks.tracking import reporting
from tasks.tracking.reporting import figure_files
from tasks.tracking.results import RunResult


@pytest.fixture(autouse=True)
def _drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "draw_measured", draw_measured)


def a_result(**more: Any) -> RunResult:
    known: dict[str, Any] = {name: None for name, field in RunResult.model_fields.items() if field.is_required()}
    known |= {"algorithm": "noisy-gd", "dataset": "clinic", "trust": "central", "run_key": "x", "releases": ()}
    known |= {"identity": cast(Any, RunIdentity).model_construct(dataset=cast(Any, DatasetRef).model_construct())}
    known |= {"metrics": {}, "by_party": {}, "split": {}}
    return RunResult(**{**known, **more, "metrics": decided(more.get("metrics", {}))})


def decided(numbers: Mapping[str, float], largest: float = 1.0) -> Metrics:
    """Return numbers with margins as what measures them makes them; an error's largest value is given."""
    found = Metrics()
    for name, value in numbers.items():
        low, high = numbers.get(f"{name}_low"), numbers.get(f"{name}_high")
        if low is not None and high is not None:
            error = Scale(guess=largest, perfect=0.0, most=largest, whole=largest)
            found.measure(name, value, (low, high), error if name == "mae" else SHARE)
        elif name in ("r2", "mse") and "mae" in found.reasons:
            found.refuse(name, found.reasons["mae"], (-np.inf, 1.0))
        elif name not in found:
            found[name] = value
    return found


def test_files_are_those_of_what_was_measured() -> None:
    assert figure_files(a_result()) == {}
    measured = a_result(
        classes=("no", "yes"), confusion=((30.0, -1.5), (4.0, 20.0)), measured_on="held-out rows, noisy"
    )
    assert list(figure_files(measured)) == ["confusion_matrix.png"]
    curve = ((0.0, 0.0), (0.2, 0.8), (1.0, 1.0))
    files = figure_files(measured.model_copy(update={"roc": (curve,)}))
    assert list(files) == ["confusion_matrix.png", "roc.png"]
    for content in files.values():
        assert imread(BytesIO(content)).shape[0] > 300
    assert files == figure_files(measured.model_copy(update={"roc": (curve,)})), "the same run, the same bytes"


@pytest.mark.parametrize("classes", [2, 15, 50])
def test_many_classes_can_be_drawn(classes: int) -> None:
    names = [f"class {number}" for number in range(classes)]
    counts = np.eye(classes).tolist()
    curves = [[(0.0, 0.0), (1.0, 1.0)]] * (1 if classes == 2 else classes)
    assert draw_measured(names, counts, curves, "test rows").startswith(b"\x89PNG")
