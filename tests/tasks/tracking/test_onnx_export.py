"""A model of rows of numbers as an ONNX graph says what the pipeline says, run by onnxruntime; a table's has none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from sklearn.pipeline import Pipeline

from dpalgos.features.public_map import RandomFourier
from dpalgos.models import LinearModel, Projection
from dpalgos.projections.centring import CentredRows
from dpalgos.rows import Floats
from dpalgos.score_curves import Calibration
from storage.errors import InputError
from tasks.tracking.onnx_export import to_onnx
from tasks.tracking.sklearn_export import NotExportableError, to_sklearn
from tests.dpalgos.test_column_functions import rows_of
from tests.support.command_line import CommandLine
from tests.support.tables import Trained


def run(content: bytes, rows: Floats) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, {"features": rows}), strict=True))


def model_of(maps: list[Any], width: int, classes: tuple[str, ...] = ("well", "ill"), **more: Any) -> Pipeline:
    outputs = 1 if len(classes) <= 2 else len(classes)
    random = np.random.default_rng(3)
    last = maps[-1].dimension if maps else width
    model = LinearModel(random.normal(size=(outputs, last)), random.normal(size=outputs))
    given: dict[str, Any] = {"normalisation": "none", **more}
    return to_sklearn(**given, maps=maps, model=model, classes=classes, dimension=width)


@pytest.mark.parametrize("normalisation", ["unit-norm", "clip"])
def test_linear_tables_and_what_stands_between(normalisation: str) -> None:
    rows = np.concatenate([rows_of(), np.zeros((1, 8))])
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 3)))[0]
    maps = [CentredRows(mean=np.full(8, 0.1)), Projection(basis=basis)]
    calibration = Calibration(1.5, -0.25, 0.125)
    pipeline = model_of(maps, 8, normalisation=normalisation, calibration=calibration)
    found = run(to_onnx(pipeline), rows)
    assert found["scores"][:, 0] == pytest.approx(pipeline.decision_function(rows), abs=1e-12)
    assert found["probability"] == pytest.approx(pipeline.predict_proba(rows)[:, 1], abs=1e-12)
    assert found["prediction"].tolist() == pipeline.predict(rows).tolist()


def test_a_number_stays_in_its_declared_range() -> None:
    rows = 50.0 * rows_of()
    pipeline = model_of([], 8, (), label_range=(-2.0, 3.0))
    found = run(to_onnx(pipeline), rows)["prediction"]
    assert found == pytest.approx(pipeline.predict(rows), rel=1e-12, abs=1e-12)
    assert {found.min(), found.max()} == {-2.0, 3.0}


def test_a_model_with_other_weights_says_something_else() -> None:
    """What the comparisons would miss if they compared nothing."""
    pipeline = model_of([Projection(basis=np.eye(8)[:, :3])], 8)
    content = to_onnx(pipeline)
    pipeline[-1].coef_ = pipeline[-1].coef_ + 0.01
    assert np.abs(run(content, rows_of())["scores"][:, 0] - pipeline.decision_function(rows_of())).max() > 1e-6


@pytest.mark.parametrize("trained", ["two"], indirect=True)
def test_a_table_has_none(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(trained.root))
    out = tmp_path / "visits.onnx"
    CommandLine(trained.root, capfd)("model", "onnx", trained.name, "-o", out).refused(2, "schema")
    assert not out.exists()


def test_the_command_writes_a_registered_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pipeline, out = model_of([], 8), tmp_path / "rows.onnx"
    version = SimpleNamespace(name="rows.erm", version=3)
    answers = {"model_versions.find_model": version, "lineage.guaranteed": "", "model_files.load_model": pipeline}
    for name, answer in answers.items():
        monkeypatch.setattr(f"tasks.tracking.{name}", lambda *_, answer=answer: answer)
    commands = CommandLine(tmp_path, capfd)
    assert commands.succeeds("model", "onnx", "rows.erm", "-o", out)["version"] == 3
    assert run(out.read_bytes(), rows_of())["prediction"].tolist() == pipeline.predict(rows_of()).tolist()
    commands("model", "onnx", "rows.erm", "-o", out).refused(2, "rows.onnx exists")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.tracking.onnx_export.importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"\.\[onnx\]"):
        to_onnx(model_of([], 8))


def test_what_has_no_form_is_said() -> None:
    fourier = RandomFourier(frequencies=2).map_for(8)
    with pytest.raises(NotExportableError, match=r"FourierFeatures.*ONNX"):
        to_onnx(model_of([fourier], 8))
