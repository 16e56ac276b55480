"""The released pipeline predicts what the released arrays do, from raw rows, in any process, without pickle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from scipy import sparse
from sklearn.preprocessing import PolynomialFeatures

from dpalgos import pipeline as module
from dpalgos.features.hog import HogFeatures
from dpalgos.features.public_map import FourierFeatures, RowFeatures
from dpalgos.guarantees import Setting
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import KernelModel, LinearModel, Projection
from dpalgos.normalisation import AffineMap, MinMax
from dpalgos.parameters import ParameterError, UnknownNameError
from dpalgos.pipeline import TRUSTED_TYPES, UnitBallClipper
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.rows import Floats
from dpalgos.score_curves import Calibration
from storage.errors import InputError
from tasks.tracking.flavor import TRUSTED
from tasks.tracking.row_scores import scores_of
from tasks.tracking.sklearn_export import to_sklearn
from tests.support.encoders import small_encoder
from tests.support.nights import by_night

NORMALISATIONS = ("unit-norm", "clip", "none")
# Not sorted, so that a classifier that sorts its classes is caught.
NAMES = ("zero", "ten", "9", "eight", "a", "C", "b", "0", "x", "y")


SMALL_SCATTERING = {"scales": 1, "angles": 2, "places": 1}
SMALL_DICTIONARY = {"filters": 4, "side": 3, "images": 20, "mirror": True}
SIDE_BY_SIDE = {"scattering": SMALL_SCATTERING, "dictionary": SMALL_DICTIONARY}
WHITENED = {"feature_parameters": SMALL_SCATTERING, "components": 3, "images": 20, "seed": 4}


def made_of(name: str, dimension: int, **parameters: object) -> RowFeatures:
    """A registered public map, made for rows of so many features."""
    setting = Setting(sizes=(1,), dimension=dimension, classes=3)
    noise = KeyedNoise(public_secret(0), "unused")
    made: RowFeatures = AlgorithmSpec("projections", name, parameters).build().fit([], setting, noise)
    return made


def names(count: int) -> tuple[str, ...]:
    return NAMES[:count]


def rows(rng: np.random.Generator, count: int = 200, dimension: int = 8) -> Floats:
    """Rows short and long, one of zeros."""
    made: Floats = rng.normal(size=(count, dimension)) * rng.choice([0.01, 0.3, 5.0], size=(count, 1))
    made[0] = 0.0
    return made


def expected(normalisation: str, maps: list[Any], model: Any, classes: tuple[str, ...], raw: Any) -> list[str]:
    features = lookup("normalisations", normalisation)().learn([])(raw)
    for item in maps:
        features = item.transform(features)
    return [classes[index] for index in model.predict(features)]


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("projected", [True, False])
def test_predicts_what_the_arrays_do(normalisation: str, count: int, projected: bool) -> None:
    rng = np.random.default_rng([count, projected, len(normalisation)])
    basis = np.linalg.qr(rng.normal(size=(8, 4)))[0]
    maps = [Projection(basis=basis)] if projected else []
    shape = (1 if count == 2 else count, 4 if projected else 8)
    model = LinearModel(rng.normal(size=shape), rng.normal(size=shape[0]) * 0.1)
    raw = rows(rng)
    pipeline = to_sklearn(normalisation=normalisation, maps=maps, model=model, classes=names(count), dimension=8)
    want = expected(normalisation, maps, model, names(count), raw)
    assert pipeline.predict(raw).tolist() == want
    assert pipeline.predict(sparse.csr_matrix(raw)).tolist() == want
    assert len(set(want)) > 1
    assert pipeline.n_features_in_ == 8


@pytest.mark.parametrize("count", [2, 4])
def test_ties_fall_the_same_way(count: int) -> None:
    """On whole numbers, sums are exact and many scores are equal: the first largest, and class 0 at a score of 0."""
    rng = np.random.default_rng(count)
    model = LinearModel(rng.integers(-1, 2, size=(1 if count == 2 else count, 3)).astype(float))
    raw = rng.integers(-2, 3, size=(300, 3)).astype(float)
    scores = model.scores(raw)
    tied = (scores == 0).any() if count == 2 else (np.sort(scores)[:, -1] == np.sort(scores)[:, -2]).any()
    assert tied
    pipeline = to_sklearn(normalisation="none", maps=[], model=model, classes=names(count), dimension=3)
    assert pipeline.predict(raw).tolist() == expected("none", [], model, names(count), raw)


def test_a_calibrated_model_has_probabilities_and_its_threshold() -> None:
    rng = np.random.default_rng(8)
    model, raw = LinearModel(rng.normal(size=(1, 8)), np.array([0.2])), rows(rng)
    plain = to_sklearn(normalisation="clip", maps=[], model=model, classes=names(2), dimension=8)
    asked = Calibration(3.0, -0.5, threshold=0.4)
    aimed = to_sklearn(normalisation="clip", maps=[], model=model, classes=names(2), dimension=8, calibration=asked)
    scores = plain.decision_function(raw)
    np.testing.assert_allclose(aimed.predict_proba(raw)[:, 1], asked.probability(scores), rtol=1e-12)
    assert aimed.predict(raw).tolist() == np.array(names(2))[(scores > 0.4).astype(int)].tolist()
    loaded = skops.io.loads(skops.io.dumps(aimed), trusted=list(TRUSTED))
    np.testing.assert_array_equal(loaded.predict_proba(raw), aimed.predict_proba(raw))
    found = scores_of(aimed, raw, 0.3)
    said = asked.probability(scores) >= 0.3
    assert found["prediction"].tolist() == np.array(names(2))[said.astype(int)].tolist()
    assert f"probability {names(2)[1]}" in found
    with pytest.raises(InputError, match=r"threshold.*0\.3"):
        scores_of(plain, raw, 0.3)


def test_regression() -> None:
    rng = np.random.default_rng(5)
    model = LinearModel(rng.normal(size=(1, 8)), np.array([0.25]))
    raw = rows(rng)
    pipeline = to_sklearn(normalisation="unit-norm", maps=[], model=model, classes=(), dimension=8)
    want = model.scores(lookup("normalisations", "unit-norm")().learn([])(raw))[:, 0]
    np.testing.assert_allclose(pipeline.predict(raw), want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("count", [2, 3])
def test_kernel_model(count: int) -> None:
    rng = np.random.default_rng(count)
    heads = 1 if count == 2 else count
    model = KernelModel(
        0.3 * rng.normal(size=(30, 8)), rng.normal(size=(heads, 30)), np.full(heads, 0.01), np.array([2.0])
    )
    raw = rows(rng)
    pipeline = to_sklearn(normalisation="clip", maps=[], model=model, classes=names(count), dimension=8)
    want = expected("clip", [], model, names(count), raw)
    assert pipeline.predict(raw).tolist() == want
    assert len(set(want)) > 1


def test_learnt_map_of_public_rows() -> None:
    rng = np.random.default_rng(6)
    raw = rows(rng)
    raw[:, 3] = 2.5
    learnt = MinMax().learn([raw])
    assert isinstance(learnt, AffineMap)
    model = LinearModel(rng.normal(size=(3, 8)))
    pipeline = to_sklearn(normalisation=learnt, maps=[], model=model, classes=names(3), dimension=8)
    np.testing.assert_allclose(pipeline[:-1].transform(raw), learnt(raw), atol=1e-14)
    assert pipeline.predict(raw).tolist() == [NAMES[index] for index in model.predict(learnt(raw))]


def test_other_feature_maps_chain() -> None:
    rng = np.random.default_rng(7)
    raw = rows(rng)
    squares = PolynomialFeatures(degree=2).fit(raw)
    squares._n_features_out = squares.n_output_features_
    model = LinearModel(rng.normal(size=(3, squares.n_output_features_)))
    pipeline = to_sklearn(normalisation="clip", maps=[squares], model=model, classes=names(3), dimension=8)
    assert list(pipeline.named_steps) == ["normalise", "polynomialfeatures", "classify"]
    assert pipeline.predict(raw).tolist() == expected("clip", [squares], model, names(3), raw)


@pytest.mark.parametrize(
    ("make", "dimension"),
    [
        (lambda: HogFeatures(np.array([1, 8, 8, 4, 9, 2])), 64),
        (lambda: FourierFeatures(np.random.default_rng(5).normal(size=(8, 6))), 8),
        (lambda: made_of("scattering", 64, **SMALL_SCATTERING), 64),
        (lambda: made_of("public-whitening", 64, **WHITENED), 64),
        (
            lambda: made_of("side-by-side", 64, maps={"scattering": SMALL_SCATTERING, "dictionary": SMALL_DICTIONARY}),
            64,
        ),
        (lambda: made_of("side-by-side", 64, **small_encoder((8, 8), mirror=True)), 64),
        (lambda: made_of("signed-root", 8), 8),
        (lambda: made_of("signed-log", 8), 8),
        (lambda: made_of("patches", 64, filters=3, cells=2), 64),
    ],
    ids=["hog", "fourier", "scattering", "whitened", "side-by-side", "encoder", "root", "log", "patches"],
)
def test_maps_of_our_own_predict_the_same_and_need_no_pickle(make: Callable[[], Any], dimension: int) -> None:
    made = make()
    rng = np.random.default_rng(11)
    raw = rows(rng, count=60, dimension=dimension)
    if made.kind in ("whitened-features", "side-by-side-features"):
        # Images with values below zero are moved to start there: dense ones would all be alike.
        raw = np.where(raw > np.quantile(raw, 0.8), raw, 0.0)
        raw[::9] -= 0.1
    model = LinearModel(rng.normal(size=(3, made.dimension)))
    pipeline = to_sklearn(normalisation="unit-norm", maps=[made], model=model, classes=names(3), dimension=dimension)
    want = expected("unit-norm", [made], model, names(3), raw)
    assert pipeline.predict(raw).tolist() == want
    assert len(set(want)) > 1
    dumped = skops.io.dumps(pipeline)
    assert set(skops.io.get_untrusted_types(data=dumped)) <= set(TRUSTED_TYPES)
    assert skops.io.loads(dumped, trusted=list(TRUSTED_TYPES)).predict(raw).tolist() == want
    with pytest.raises(ValueError, match=f"{dimension} features"):
        pipeline.named_steps[made.kind].transform(raw[:, 1:])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"normalisation": "unitnorm"}, UnknownNameError, "'unitnorm'"),
        ({"normalisation": "minmax"}, ParameterError, "AffineMap"),
        ({"maps": [Projection(basis=np.eye(5)[:, :4])]}, ParameterError, "'project'.*5.*8"),
        ({"maps": []}, ParameterError, "'classify'.*4.*8"),
        ({"classes": ("a", "b")}, ParameterError, "3 rows.*2 classes"),
        ({"classes": ()}, ParameterError, "row.*3"),
        ({"classes": ("a", "b", "a")}, ParameterError, "a, b, a"),
        ({"maps": [object()]}, ParameterError, "register"),
        ({"model": object()}, ParameterError, "register"),
    ],
)
def test_what_does_not_fit_is_said(change: dict[str, Any], error: type[Exception], message: str) -> None:
    parts: dict[str, Any] = {
        "normalisation": "clip",
        "maps": [Projection(basis=np.eye(8)[:, :4])],
        "model": LinearModel(np.ones((3, 4))),
        "classes": names(3),
        "dimension": 8,
    }
    with pytest.raises(error, match=message):
        to_sklearn(**(parts | change))


def test_only_scikit_learn_but_for_classes_of_ours() -> None:
    for normalisation in NORMALISATIONS:
        pipeline = to_sklearn(
            normalisation=normalisation,
            maps=[Projection(basis=np.eye(8)[:, :4])],
            model=LinearModel(np.ones((3, 4))),
            classes=names(3),
            dimension=8,
        )
        untrusted = skops.io.get_untrusted_types(data=skops.io.dumps(pipeline))
        assert set(untrusted) <= set(TRUSTED_TYPES)


def test_clipper_is_a_scikit_learn_transformer() -> None:
    from sklearn.utils.estimator_checks import check_estimator

    check_estimator(UnitBallClipper())


FRESH = """
import io, json, pickle, sys
class Refuse(pickle.Unpickler):
    def __init__(self, *_, **__):
        raise RuntimeError("pickle was used")
def refuse(*_, **__):
    raise RuntimeError("pickle was used")
import numpy as np, cloudpickle, joblib, skops.io
if sys.argv[3] == "mlflow":
    import mlflow.pyfunc, mlflow.sklearn
pickle.Unpickler, pickle.load, pickle.loads = Refuse, refuse, refuse
cloudpickle.load = cloudpickle.loads = joblib.load = refuse
raw = np.load(sys.argv[2], allow_pickle=False)
if sys.argv[3] == "mlflow":
    models = mlflow.sklearn.load_model(sys.argv[1]), mlflow.pyfunc.load_model(sys.argv[1])
else:
    models = (skops.io.load(sys.argv[1], trusted=json.loads(sys.argv[4])),)
print(json.dumps([list(map(str, model.predict(raw))) for model in models]))
"""


@pytest.mark.parametrize("by", by_night(["skops", "mlflow"], {"mlflow"}))
def test_loads_in_a_fresh_process_without_pickle(by: str, tmp_path: Path) -> None:
    """By day without MLflow, which takes most of the time."""
    rng = np.random.default_rng(8)
    raw = rows(rng, count=40)
    pipeline = to_sklearn(
        normalisation="clip",
        maps=[Projection(basis=np.linalg.qr(rng.normal(size=(8, 4)))[0])],
        model=LinearModel(rng.normal(size=(3, 4))),
        classes=names(3),
        dimension=8,
    )
    if by == "mlflow":
        import mlflow.sklearn

        mlflow.sklearn.save_model(
            pipeline,
            str(tmp_path / "model"),
            serialization_format="skops",
            skops_trusted_types=list(TRUSTED_TYPES),
            pip_requirements=["scikit-learn"],
        )
    else:
        skops.io.dump(pipeline, tmp_path / "model")
    np.save(tmp_path / "raw.npy", raw)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            FRESH,
            str(tmp_path / "model"),
            str(tmp_path / "raw.npy"),
            by,
            json.dumps(TRUSTED_TYPES),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[1]), "MLFLOW_DISABLE_TELEMETRY": "true"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    want = pipeline.predict(raw).tolist()
    assert json.loads(done.stdout) == [want] * (2 if by == "mlflow" else 1)
