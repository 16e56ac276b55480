"""An encoder of one's own: rows run alone, whatever is in them, and models that do not fit are told why."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnxruntime
import pytest

from dpalgos.features import onnx as module
from dpalgos.features.onnx import OnnxEncoder, OnnxFeatures
from dpalgos.models import decode
from dpalgos.parameters import ParameterError
from dpalgos.sentences import sentence
from dpalgos.testing import hostile_rows
from tests.support.onnx_models import DOUBLE, FLOAT, INTEGER, Ports, linear_model, model, with_external_data

WEIGHTS = np.random.default_rng(0).normal(size=(6, 4))
PLAIN: Ports = {"x": (FLOAT, ["rows", 6])}


def encoder(content: bytes, dimension: int = 6, **parameters: Any) -> OnnxFeatures:
    return OnnxEncoder(**parameters).read(content, dimension)


def unit(features: Any) -> Any:
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(norms > 0, norms, 1.0)


@pytest.mark.parametrize("kind", [FLOAT, DOUBLE])
@pytest.mark.parametrize("batch", ["rows", 1])
def test_gives_what_the_model_gives(kind: int, batch: int | str, random: np.random.Generator) -> None:
    made, rows = encoder(linear_model(WEIGHTS, kind=kind, batch=batch)), random.normal(size=(9, 6))
    np.testing.assert_allclose(made.transform(rows), unit(np.maximum(rows @ WEIGHTS, 0.0)), atol=1e-6)
    assert made.dimension == 4
    again = decode(made.kind, made.arrays())
    assert np.array_equal(again.transform(rows), made.transform(rows))
    assert made.transform(rows[:0]).shape == (0, 4)


def test_no_row_has_a_part_in_anothers_features(random: np.random.Generator) -> None:
    """The model mixes whatever is in one batch; run as a batch, one row would move every other row's features."""
    mixing = model([("Softmax", ["x"], ["y"], {"axis": 0})], PLAIN, {"y": (FLOAT, ["rows", 6])})
    made, rows = encoder(mixing), random.normal(size=(8, 6))
    changed = rows.copy()
    changed[0] += 3.0
    assert np.array_equal(made.transform(rows)[1:], made.transform(changed)[1:])
    session = onnxruntime.InferenceSession(mixing, providers=["CPUExecutionProvider"])
    batched = [session.run(None, {"x": each.astype(np.float32)})[0] for each in (rows, changed)]
    assert not np.allclose(batched[0][1:], batched[1][1:])


def test_images_keep_their_shape(random: np.random.Generator) -> None:
    """Sums over the two axes of an image differ, so that a wrong order of pixels would show."""
    sums = model(
        [("ReduceSum", ["x", "axes"], ["y"], {"keepdims": 0})],
        {"x": (FLOAT, ["rows", 1, "height", "width"])},
        {"y": (FLOAT, ["rows", 1, "height"])},
        {"axes": np.array([3])},
    )
    made, rows = encoder(sums, shape=[1, 2, 3]), random.uniform(size=(5, 6))
    np.testing.assert_allclose(made.transform(rows), unit(rows.reshape(5, 2, 3).sum(axis=2)), atol=1e-6)


def test_total_whatever_rows_hold() -> None:
    """A model that looks up a place that a row names fails where there is none; its row becomes zero, and no other."""
    lookup = model(
        [
            ("Cast", ["x"], ["i"], {"to": INTEGER}),
            ("Gather", ["table", "i"], ["y"], {}),
        ],
        PLAIN,
        {"y": (FLOAT, ["rows", 6])},
        {"table": np.arange(1.0, 4.0, dtype=np.float32)},
    )
    made, rows = encoder(lookup), np.zeros((3, 6))
    rows[1] = 7.0
    assert (made.transform(rows).any(axis=1) == [True, False, True]).all()
    root = encoder(model([("Log", ["x"], ["y"], {})], PLAIN, {"y": (FLOAT, ["rows", 6])}))
    for name, hostile in hostile_rows(6).items():
        found = root.transform(hostile.features)
        assert np.isfinite(found).all(), name
        assert (np.linalg.norm(found, axis=1) <= 1.0 + 1e-12).all(), name


def test_the_guarantee_leaves_the_encoders_rows_out() -> None:
    said = OnnxEncoder().outside(b"content")
    assert "ed7002b439e9ac84" in said
    assert "outside the guarantee" in sentence(said)


TWO_INPUTS = model([("Add", ["x", "z"], ["y"], {})], {**PLAIN, "z": (FLOAT, ["rows", 6])}, {"y": (FLOAT, ["rows", 6])})
TWO_OUTPUTS = model(
    [("Relu", ["x"], ["y"], {}), ("Abs", ["x"], ["z"], {})],
    PLAIN,
    {"y": (FLOAT, ["rows", 6]), "z": (FLOAT, ["rows", 6])},
)
BAD: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "no model": (b"GIF89a, surely", {}, "no ONNX model"),
    "nothing": (b"", {}, r"no ONNX model"),
    "cut short": (linear_model(WEIGHTS)[:60], {}, r"no ONNX model"),
    "two inputs": (TWO_INPUTS, {}, r"2 inputs \(x, z\)"),
    "two outputs": (TWO_OUTPUTS, {}, r"features\.output: y, z"),
    "unknown output": (TWO_OUTPUTS, {"output": "w"}, "output 'w'"),
    "other rows": (linear_model(np.ones((5, 2))), {}, "input x.*5.*6 features"),
    "open sizes": (
        model([("Relu", ["x"], ["y"], {})], {"x": (FLOAT, ["n", 1, "h", "w"])}, {"y": (FLOAT, ["n", 1, "h", "w"])}),
        {},
        "1.*6.*features.shape",
    ),
    "shape that does not fit": (linear_model(WEIGHTS), {"shape": [2, 3]}, r"shape=\[2, 3\]"),
    "several rows at once": (linear_model(WEIGHTS, batch=8), {}, "input x.*8 rows"),
    "whole numbers": (
        model([("Cast", ["x"], ["y"], {"to": FLOAT})], {"x": (INTEGER, ["n", 6])}, {"y": (FLOAT, ["n", 6])}),
        {},
        r"tensor\(int64\).*Cast",
    ),
    "whole numbers out": (
        model([("Cast", ["x"], ["y"], {"to": INTEGER})], PLAIN, {"y": (INTEGER, ["rows", 6])}),
        {},
        "output y.*floating-point",
    ),
    "one number": (
        model([("ReduceSum", ["x"], ["y"], {"keepdims": 0})], PLAIN, {"y": (FLOAT, [])}),
        {},
        r"output y.*shape \[\]",
    ),
    "too many features": (
        model(
            [("Expand", ["x", "size"], ["y"], {})],
            PLAIN,
            {"y": (FLOAT, ["a", "b", "c"])},
            {"size": np.array([20000, 1, 6])},
        ),
        {},
        r"shape \[20000, 1, 6\].*65536",
    ),
    "randomness": (
        model([("RandomNormalLike", ["x"], ["y"], {})], PLAIN, {"y": (FLOAT, ["rows", 6])}),
        {},
        "randomness",
    ),
    "external data": (with_external_data(linear_model(WEIGHTS)), {}, "external data"),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_models_that_do_not_fit(name: str) -> None:
    content, parameters, message = BAD[name]
    with pytest.raises(ParameterError, match=message) as raised:
        encoder(content, **parameters)
    assert "\n" not in str(raised.value)


def test_channels_last_are_not_taken_for_channels_first() -> None:
    shape: Ports = {"x": (FLOAT, ["n", 2, 2, 3])}
    last = model([("Relu", ["x"], ["y"], {})], shape, {"y": (FLOAT, ["n", 2, 2, 3])})
    with pytest.raises(ParameterError, match=r"2 x 2 x 3.*channels last"):
        encoder(last, dimension=12)


def test_external_data_is_not_read_even_where_it_is(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in another file is not in the digest, and a model could name any file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.astype(np.float32).tobytes())
    with pytest.raises(ParameterError, match="external data"):
        encoder(BAD["external data"][0])


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module._session.cache_clear()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ParameterError, match=r"'unitball\[onnx\]'"):
        encoder(linear_model(WEIGHTS))
