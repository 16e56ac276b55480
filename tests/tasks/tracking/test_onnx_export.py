"""A model of a table as an ONNX graph says what the pipeline says, run by onnxruntime."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from sklearn.pipeline import Pipeline

from dpalgos.features.column_functions import LEVELS, column_functions
from dpalgos.features.public_map import RandomFourier
from dpalgos.models import LinearModel, Projection
from dpalgos.projections.centring import CentredRows
from dpalgos.rows import Floats
from dpalgos.score_curves import Calibration
from storage.errors import InputError
from tasks.tracking.onnx_export import to_onnx
from tasks.tracking.sklearn_export import NotExportableError, to_sklearn
from tests.dpalgos.test_column_functions import CATEGORIES, COLUMNS, counts_of, rows_of
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


def test_a_trained_model_says_the_same(trained: Trained) -> None:
    found = run(to_onnx(trained.pipeline), trained.features)
    rest = trained.pipeline[1:]
    if trained.classes:
        scores = rest.decision_function(trained.features).reshape(len(trained.features), -1)
        assert found["scores"] == pytest.approx(scores, rel=1e-12, abs=1e-12)
        assert found["prediction"].tolist() == trained.released()
    else:
        assert found["prediction"] == pytest.approx(np.array(trained.released()), rel=1e-12)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("counted", [True, False])
def test_each_level_of_functions_has_its_form(level: str, counted: bool) -> None:
    rows = rows_of()
    # Cells beyond the ends, several values at once, at the edges of bins and in single precision.
    rows[:40, :2] *= 1.5
    rows[40:60, 4:7] = 0.5
    rows = np.concatenate([rows, rows.astype(np.float32).astype(np.float64)])
    if level == "categories" or not counted:
        if level != "categories":
            return
        functions = column_functions(CATEGORIES, level, None)
    else:
        functions = column_functions(COLUMNS, level, counts_of(rows_of(), 2.0))
    assert counted is False or level == "categories" or functions.others.any(), "a rare value is among them"
    pipeline = model_of([functions], 8, ("a", "b", "c"))
    found = run(to_onnx(pipeline), rows)
    assert found["scores"] == pytest.approx(pipeline.decision_function(rows), rel=1e-12, abs=1e-12)
    assert found["prediction"].tolist() == pipeline.predict(rows).tolist()


def test_a_graph_with_another_table_is_another_model() -> None:
    """What the comparison would miss if it compared nothing."""
    functions = column_functions(COLUMNS, "products", counts_of(rows_of(), 2.0))
    content = to_onnx(model_of([functions], 8))
    moved = functions.tables.copy()
    moved[:, 1] += 0.01
    other = replace(functions, tables=moved)
    scores = model_of([other], 8).decision_function(rows_of())
    assert np.abs(run(content, rows_of())["scores"][:, 0] - scores).max() > 1e-6


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


def test_it_says_what_its_features_are(trained: Trained) -> None:
    session = onnxruntime.InferenceSession(to_onnx(trained.pipeline), providers=["CPUExecutionProvider"])
    known = session.get_modelmeta().custom_metadata_map
    declared = trained.pipeline[0].declared
    assert json.loads(known["features"]) == list(declared.feature_names)
    assert tuple(json.loads(known["classes"])) == trained.classes
    assert json.loads(known["schema"])["columns"]
    assert session.get_inputs()[0].shape == ["rows", declared.dimension]


@pytest.mark.parametrize("trained", ["two"], indirect=True)
def test_the_command_writes_a_registered_model(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(trained.root))
    commands, out = CommandLine(trained.root, capfd), tmp_path / "visits.onnx"
    written = commands.succeeds("model", "onnx", trained.name, "-o", out)
    assert "-DP for a row" in written["guaranteed"]
    assert run(out.read_bytes(), trained.features)["prediction"].tolist() == trained.released()
    commands("model", "onnx", trained.name, "-o", out).refused(2, "visits.onnx exists")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.tracking.onnx_export.importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="'unitball"):
        to_onnx(model_of([], 8))


def test_what_has_no_form_is_said() -> None:
    fourier = RandomFourier(frequencies=2).map_for(8)
    with pytest.raises(NotExportableError, match=r"ONNX.*FourierFeatures"):
        to_onnx(model_of([fourier], 8))
