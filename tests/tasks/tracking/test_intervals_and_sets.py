"""Intervals of numbers and sets of classes: the same of a pipeline, a file, MLflow's model and over HTTP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.pipeline import Pipeline

from dpalgos.conformal import HeldOut, HeldOutErrors, HeldOutScores, Paid, UnreachableError
from dpalgos.evaluators.score_distribution import edges
from dpalgos.mechanisms.running_sums import RunningSums
from dpalgos.models import LinearModel
from dpalgos.score_curves import Calibration
from storage.encoder import TableEncoder
from storage.errors import InputError
from storage.names import SCORED, WRITTEN
from tasks.tracking.coverings import Covering, counts_in, promised
from tasks.tracking.flavor import load_pipeline, signature_of
from tasks.tracking.predicted_files import predict_file
from tasks.tracking.row_scores import scores_of
from tasks.tracking.sklearn_export import to_sklearn
from tests.tasks.tracking.test_flavor import CLINIC, saved
from unitball.training import covered

ROWS = CLINIC / "clinic.csv"
RANGE = (100.0, 300.0)
_BINS = 16 * 4 + 1


def errors(rows: int = 4_000, noise: float = 0.01, **more: Any) -> HeldOutErrors:
    """Return errors of which 96 % are below an eighth of the range, to either side."""
    ends = np.concatenate([2.0 ** (-np.arange(1, _BINS) / 4), [0.0]])
    place = int(np.flatnonzero(ends < 0.124)[0])
    counts = np.zeros((2, _BINS))
    counts[:, 1], counts[:, place] = 0.02 * rows, 0.48 * rows
    return HeldOutErrors(
        sums=np.cumsum(counts, axis=1),
        noise=noise,
        edges=(RANGE[1] - RANGE[0]) * ends,
        total=float(rows),
        total_noise=0.01,
        label_range=RANGE,
        held_out=HeldOut(count=rows),
        paid=Paid(mu=0.2, delta=1e-6),
        **more,
    )


def scores(classes: int, **more: Any) -> HeldOutScores:
    known, size = edges(32, 1.0), 1 if classes == 2 else classes
    counts = np.zeros((size, 2, 32))
    counts[:, 1, 12], counts[:, 0, 20] = 2_000.0, 2_000.0
    covariance = 1e-4 * RunningSums(bins=32).covariance()
    return HeldOutScores(
        sums=np.cumsum(counts, axis=2),
        covariance=np.stack([covariance, covariance]),
        edges=known,
        held_out=HeldOut(count=4_000),
        **more,
    )


def pipeline_of(classes: tuple[str, ...] = (), scale: float = 1.0, **more: Any) -> Pipeline:
    encoder = TableEncoder({"columns": yaml.safe_load((CLINIC / "clinic.yaml").read_text())["columns"]})
    width = encoder.declared.dimension
    random = np.random.default_rng(0)
    model = LinearModel(scale * random.normal(size=(max(len(classes), 1) if len(classes) != 2 else 1, width)))
    given: dict[str, Any] = {} if classes else {"label_range": RANGE}
    return to_sklearn(
        normalisation="unit-norm",
        maps=[],
        model=model,
        classes=classes,
        dimension=width,
        encoder=encoder,
        **{**given, **more},
    )


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.read_csv(ROWS)


def test_a_number_stays_in_its_declared_range_wherever_it_is_asked(rows: pd.DataFrame, tmp_path: Path) -> None:
    import mlflow.pyfunc

    pipeline = pipeline_of(scale=676_051.0)
    found = pipeline.predict(rows)
    assert set(found) == set(RANGE), "all are beyond"
    again = load_pipeline(saved(tmp_path, pipeline, ()))
    assert again.predict(rows).tolist() == found.tolist()
    asked = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(rows)
    assert asked["prediction"].tolist() == found.tolist()
    predict_file(pipeline, ROWS, tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet")["prediction"].to_pylist() == found.tolist()


def test_intervals_are_the_same_wherever_they_are_asked(rows: pd.DataFrame, tmp_path: Path) -> None:
    import mlflow.pyfunc
    from mlflow.pyfunc.scoring_server import init
    from starlette.testclient import TestClient

    pipeline = pipeline_of(scale=400.0, held_out=errors())
    found = scores_of(pipeline, rows, covering=Covering(interval=0.9))
    assert list(found.columns) == ["prediction", "prediction_low", "prediction_high"]
    below, above = errors().distances(0.9)
    assert below == above == 0.125 * 200.0
    np.testing.assert_allclose(found["prediction_low"], np.maximum(found["prediction"] - below, RANGE[0]))
    np.testing.assert_allclose(found["prediction_high"], np.minimum(found["prediction"] + above, RANGE[1]))
    path = saved(tmp_path, pipeline, ())
    pd.testing.assert_frame_equal(covered(load_pipeline(path), rows, interval=0.9), found)
    loaded = mlflow.pyfunc.load_model(path)
    pd.testing.assert_frame_equal(loaded.predict(rows, params={"interval": 0.9}), found)
    assert list(loaded.predict(rows).columns) == ["prediction"]
    body = {"dataframe_split": rows.head(3).to_dict("split"), "params": {"interval": 0.9}}
    answer = TestClient(init(loaded)).post("/invocations", json=body).json()["predictions"]
    pd.testing.assert_frame_equal(pd.DataFrame(answer), found.head(3))
    predict_file(pipeline, ROWS, tmp_path / "out.parquet", covering=Covering(interval=0.9))
    written = pq.read_table(tmp_path / "out.parquet").to_pandas()
    pd.testing.assert_frame_equal(written[list(found.columns)], found)


@pytest.mark.parametrize("classes", [("well", "readmitted"), ("a", "b", "c")])
def test_sets_are_the_same_wherever_they_are_asked(
    classes: tuple[str, ...], rows: pd.DataFrame, tmp_path: Path
) -> None:
    import mlflow.pyfunc
    from mlflow.pyfunc.scoring_server import init
    from starlette.testclient import TestClient

    calibration = Calibration(1.5, -0.2, 0.3) if len(classes) == 2 else None
    pipeline = pipeline_of(classes, 2.0, calibration=calibration, held_out=scores(len(classes)))
    found = scores_of(pipeline, rows, covering=Covering(sets=0.9))
    raw = pipeline_of(classes, 2.0).decision_function(rows)
    known = edges(32, 1.0)
    if len(classes) == 2:
        # Rows of the second class have scores in bin 12, of the first in bin 20; the threshold moves nothing.
        expected = [[name for name, there in zip(classes, (s <= known[20], s > known[11]), strict=True) if there]
                    for s in raw]  # fmt: skip
    else:
        expected = [[name for name, s in zip(classes, row, strict=True) if s > known[11]] for row in raw]
    assert found["prediction_set"].tolist() == expected
    assert {len(one) for one in expected} >= {1, 2}
    path = saved(tmp_path, pipeline, classes)
    loaded = mlflow.pyfunc.load_model(path)
    asked = loaded.predict(rows, params={"set": 0.9})
    assert [list(one) for one in asked["prediction_set"]] == expected
    body = {"dataframe_split": rows.head(3).to_dict("split"), "params": {"set": 0.9}}
    answer = TestClient(init(loaded)).post("/invocations", json=body).json()["predictions"]
    assert [one["prediction_set"] for one in answer] == expected[:3]
    assert "prediction_set" not in loaded.predict(rows)
    lines = ROWS.read_text().splitlines()
    lines[2] = "300,120,5,no,north,well"
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    predict_file(pipeline, tmp_path / "new.csv", tmp_path / "out.parquet", covering=Covering(sets=0.9))
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.schema.field("prediction_set").type == pa.list_(pa.string())
    assert written["prediction_set"].to_pylist() == [expected[0], None, *expected[2:]]


def test_a_file_without_rows_has_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(ROWS.read_text().splitlines()[0] + "\n")
    for name, pipeline, covering in (
        ("numbers", pipeline_of(held_out=errors()), Covering(interval=0.9)),
        ("classes", pipeline_of(("a", "b", "c"), held_out=scores(3)), Covering(sets=0.9)),
    ):
        predict_file(pipeline, tmp_path / "new.csv", tmp_path / f"{name}.parquet", covering=covering)
        predict_file(pipeline, ROWS, tmp_path / f"{name}-all.parquet", covering=covering)
        none, every = (pq.read_schema(tmp_path / f"{name}{end}.parquet") for end in ("", "-all"))
        assert none.equals(every)


@pytest.mark.parametrize(
    "name",
    ["prediction", "Prediction", "prediction_low", "prediction_set", "row", "refusal", "score b", "probability b"],
)
def test_no_column_of_the_input_is_overwritten(name: str, tmp_path: Path) -> None:
    """Whatever is asked of the model: another night may ask for intervals."""
    pd.read_csv(ROWS).assign(**{name: 1}).to_csv(tmp_path / "new.csv", index=False)
    for pipeline, covering in (
        (pipeline_of(held_out=errors()), Covering(interval=0.9)),
        (pipeline_of(("a", "b"), held_out=scores(2)), Covering(sets=0.9)),
        (pipeline_of(("a", "b")), Covering()),
    ):
        written = set(scores_of(pipeline, pd.read_csv(ROWS), covering=covering).columns)
        assert all(one in WRITTEN or one.startswith(SCORED) for one in written)
        with pytest.raises(InputError, match=name):
            predict_file(pipeline, tmp_path / "new.csv", tmp_path / "out.parquet", id_column=name, covering=covering)
    assert not (tmp_path / "out.parquet").exists()


def test_what_a_model_has_no_counts_for_is_refused(rows: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="--roc"):
        scores_of(pipeline_of(("a", "b")), rows, covering=Covering(sets=0.9))
    with pytest.raises(InputError, match="--test-fraction"):
        scores_of(pipeline_of(), rows, covering=Covering(interval=0.9))
    with pytest.raises(InputError, match="give set"):
        scores_of(pipeline_of(("a", "b"), held_out=scores(2)), rows, covering=Covering(interval=0.9))
    with pytest.raises(InputError, match="give interval"):
        scores_of(pipeline_of(held_out=errors()), rows, covering=Covering(sets=0.9))
    with pytest.raises(InputError, match=r"0\.9.*0\.8"):
        Covering(0.9, 0.8)
    with pytest.raises(UnreachableError, match="ε = "):
        scores_of(pipeline_of(held_out=errors(rows=400, noise=3_000.0)), rows, covering=Covering(interval=0.9))


def test_the_signature_asks_for_a_coverage_only_where_there_are_counts() -> None:
    assert signature_of(pipeline_of(), (), 0).params is None
    assert [one.name for one in signature_of(pipeline_of(held_out=errors()), (), 0).params] == ["interval"]
    of_classes = signature_of(pipeline_of(("a", "b", "c"), held_out=scores(3)), ("a", "b", "c"), 0)
    assert [one.name for one in of_classes.params] == ["set"]
    assert of_classes.outputs.input_names()[-1] == "prediction_set"


def test_what_is_claimed_names_its_conditions() -> None:
    for reread in (False, True):
        (first, *more) = promised(errors(reread=reread), 0.9)
        assert "4,000 held-out rows" in first
        assert bool(more) is reread
    counts = counts_in(pipeline_of(("a", "b"), held_out=scores(2, reread=True)), Covering(sets=0.9))
    assert counts.reread
    assert len(promised(counts, 0.9, ("a", "b"))) == 2


def test_a_class_that_is_in_every_set_is_named() -> None:
    few = scores(3)
    sums = few.sums.copy()
    sums[2, 1] = 3.0
    found = promised(replace(few, sums=sums), 0.9, ("a", "b", "c"))
    assert [("c" in line.split(";")[0].split(": ")[-1].split(", ")) for line in found[1:]] == [True]
