"""Figures of one run: the confusion matrix and the ROC, of what was measured and of nothing else."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from io import BytesIO
from typing import Any, cast

import numpy as np
import pytest
from matplotlib.font_manager import FontProperties, findfont, fontManager
from matplotlib.image import imread

from dpalgos.measured import SHARE, Metrics, Scale
from storage.refs import DatasetRef
from tasks.experiments.figures import draw_boundaries
from tasks.planning.plans import RunIdentity
from tasks.runtime import plots
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
    named = {"system": "noisy-gd", "dataset": cast(Any, DatasetRef).model_construct()}
    known |= {"identity": cast(Any, RunIdentity).model_construct(**named)}
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


NAMES = ("病院", "राज्य", "한국어", "$\\frac{", "a$b$c", "$x_", "😀", "עברית", "\ue123")


def test_names_of_any_script_are_drawn_without_a_word_on_stderr(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A dollar once ended a run, or was taken for mathematics, of whose letters each was missed on stderr."""
    counts, grid = np.eye(len(NAMES)).tolist(), (np.arange(3.0), np.arange(3.0))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert draw_measured(NAMES, counts, [[(0.0, 0.0), (1.0, 1.0)]] * len(NAMES), NAMES[0])
        draw_boundaries(np.zeros((2, 2)), np.array([0, 1]), grid, [], " ".join(NAMES))
    assert [str(one.message) for one in warned] == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert tuple(capfd.readouterr()) == ("", "")


def test_a_letter_that_our_font_lacks_is_drawn_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = plots._letters_in(findfont(FontProperties(family="DejaVu Sans")))
    other = next(font for font in fontManager.ttflist if font.name == "STIXGeneral" and font.style == "normal")
    letter = chr(min(plots._letters_in(other.fname) - ours))
    monkeypatch.setattr(
        fontManager, "ttflist", [one for one in fontManager.ttflist if one.name in ("STIXGeneral", "DejaVu Sans")]
    )
    plots._fonts_of.cache_clear()
    assert plots._fonts_of(frozenset("aε病")) == ()
    assert plots._fonts_of(frozenset(f"aε{letter}")) == ("STIXGeneral",)
    drawn = png_of_text(letter)
    monkeypatch.setattr(plots, "_fonts_of", lambda letters: ())
    assert png_of_text(letter) != drawn, "the box of what no font has"


def png_of_text(text: str) -> bytes:
    with plots.styled_figure(1, 1) as figure:
        figure.text(0.1, 0.5, text)
        return plots.png_of(figure, 50)
