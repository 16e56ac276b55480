"""An encoder of one's own: rows run alone, whatever is in them, and models that do not fit are told why."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from dpalgos.features import onnx_sessions
from dpalgos.features._onnx_process import POOLS, resampling
from dpalgos.features.onnx import OnnxEncoder, OnnxFeatures
from dpalgos.features.random_images import drawn_images
from dpalgos.features.whitening import PublicWhitening
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


MIXING: dict[str, list[tuple[str, list[str], list[str], dict[str, Any]]]] = {
    "softmax over the batch": [("Softmax", ["x"], ["y"], {"axis": 0})],
    "less the batch's mean": [("ReduceMean", ["x"], ["m"], {"axes": [0]}), ("Sub", ["x", "m"], ["y"], {})],
    "quantised by the batch's range": [
        ("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"], {}),
        ("DequantizeLinear", ["q", "scale", "zero"], ["y"], {}),
    ],
}


@pytest.mark.parametrize("name", sorted(MIXING))
def test_no_row_has_a_part_in_anothers_features(name: str, random: np.random.Generator) -> None:
    """The model mixes whatever is in one batch; run as a batch, one row would move every other row's features."""
    mixing = model(MIXING[name], PLAIN, {"y": (FLOAT, ["rows", 6])})
    made, rows = encoder(mixing), random.normal(size=(8, 6))
    changed = rows.copy()
    changed[0] += 3.0
    assert np.array_equal(made.transform(rows)[1:], made.transform(changed)[1:])
    session = onnxruntime.InferenceSession(mixing, providers=["CPUExecutionProvider"])
    batched = [session.run(None, {"x": each.astype(np.float32)})[0] for each in (rows, changed)]
    assert not np.allclose(batched[0][1:], batched[1][1:])


def test_any_number_of_processes_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, random: np.random.Generator
) -> None:
    """Also for a row that takes more memory than a further process may have: it runs in the first."""
    large = model(
        [
            ("Slice", ["x", "zero", "one", "axis"], ["n"], {}),
            ("Cast", ["n"], ["count"], {"to": INTEGER}),
            ("Reshape", ["count", "flat"], ["size"], {}),
            ("ConstantOfShape", ["size"], ["many"], {}),
            ("ReduceSum", ["many"], ["sum"], {"keepdims": 1}),
            ("Add", ["x", "sum"], ["y"], {}),
        ],
        PLAIN,
        {"y": (FLOAT, ["rows", 6])},
        {name: np.array([value]) for name, value in (("zero", 0), ("one", 1), ("axis", 1), ("flat", 1))},
    )
    rows = random.normal(size=(70, 6))
    rows[:, 0] = 10.0
    # 192 MB: more than half of 256 MiB, and less than the whole.
    rows[[3, 40, 69], 0] = 48_000_000.0
    monkeypatch.setattr(onnx_sessions, "memory_limit", lambda: 0)
    found = []
    for count in (1, 3):
        onnx_sessions.sessions.cache_clear()
        monkeypatch.setattr(onnx_sessions, "cores", lambda count=count: count)
        found.append(encoder(large).transform(rows))
    assert found[0].any(axis=1).all()
    assert np.array_equal(found[0], found[1])
    onnx_sessions.sessions.cache_clear()


IMAGES: Ports = {"x": (FLOAT, ["rows", 3, 4, 5])}
AS_IS = model([("Flatten", ["x"], ["y"], {})], IMAGES, {"y": (FLOAT, ["rows", 60])})


@pytest.mark.parametrize(("size", "wanted"), [(8, 20), (20, 8), (7, 7), (1, 3), (28, 224)])
def test_images_are_resized_as_pillow_does(size: int, wanted: int, random: np.random.Generator) -> None:
    pixels = random.uniform(size=(size, size)).astype(np.float32)
    found = resampling(size, wanted) @ pixels @ resampling(size, wanted).T
    expected = np.asarray(Image.fromarray(pixels).resize((wanted, wanted), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_images_are_resized_copied_and_scaled_by_channel(random: np.random.Generator) -> None:
    given = {"resize": [4, 5], "mean": [0.1, 0.2, 0.3], "deviation": [0.5, 1.0, 2.0], "whiten": False}
    grey, colour = random.uniform(size=(5, 36)), random.uniform(size=(5, 108))
    for rows, channels in ((grey, 1), (colour, 3)):
        pixels = rows.reshape(5, channels, 6, 6)
        small = resampling(6, 4) @ pixels @ resampling(6, 5).T
        scaled = (small - np.array([0.1, 0.2, 0.3])[:, None, None]) / np.array([0.5, 1.0, 2.0])[:, None, None]
        found = encoder(AS_IS, rows.shape[1], **given).transform(rows)
        np.testing.assert_allclose(found, unit(scaled.reshape(5, 60)), atol=1e-6)
    one = encoder(AS_IS, 36, resize=[4, 5], mean=[0.5], deviation=[0.25], whiten=False).transform(grey)
    plain = encoder(AS_IS, 36, resize=[4, 5], whiten=False).transform(grey)
    assert not np.allclose(one, plain)


NETWORK = model(
    [
        ("Conv", ["x", "W"], ["z"], {"name": "conv", "pads": [1, 1, 1, 1]}),
        ("Relu", ["z"], ["r"], {"name": "relu"}),
        ("NoSuchOperator", ["r"], ["y"], {"name": "head"}),
    ],
    IMAGES,
    {"y": (FLOAT, ["rows", 10])},
    {"W": np.random.default_rng(1).normal(size=(6, 3, 3, 3)).astype(np.float32)},
)
"""Its last operator is known to nothing, so that the model runs only where it is cut before."""


@pytest.mark.parametrize(("layer", "pool", "size"), [("relu", "mean", 6), ("r", "max", 6), ("z", None, 120)])
def test_a_model_is_cut_behind_a_layer_and_pooled(
    layer: str, pool: str | None, size: int, random: np.random.Generator
) -> None:
    rows = random.uniform(size=(4, 60))
    made = encoder(NETWORK, 60, layer=layer, pool=pool, whiten=False)
    ends = model(
        [("Conv", ["x", "W"], ["z"], {"pads": [1, 1, 1, 1]}), ("Relu", ["z"], ["r"], {})],
        IMAGES,
        {"z": (FLOAT, ["rows", 6, 4, 5]), "r": (FLOAT, ["rows", 6, 4, 5])},
        {"W": np.random.default_rng(1).normal(size=(6, 3, 3, 3)).astype(np.float32)},
    )
    session = onnxruntime.InferenceSession(ends, providers=["CPUExecutionProvider"])
    whole = session.run(["z" if layer == "z" else "r"], {"x": rows.reshape(4, 3, 4, 5).astype(np.float32)})[0]
    expected = whole.reshape(4, -1) if pool is None else getattr(whole, pool)(axis=(2, 3))
    assert made.dimension == size
    np.testing.assert_allclose(made.transform(rows), unit(expected), atol=1e-6)
    again = decode(made.kind, made.arrays())
    assert np.array_equal(again.transform(rows), made.transform(rows))


def test_tokens_are_pooled_over_their_axis(random: np.random.Generator) -> None:
    tokens = random.normal(size=(1, 5, 3))
    assert np.array_equal(POOLS["first"](tokens), tokens[:, 0])
    np.testing.assert_allclose(POOLS["mean"](tokens), tokens.mean(axis=1))
    for name, shape in (("first", (1, 3, 2, 2)), ("mean", (1, 3))):
        with pytest.raises(ValueError, match="shape"):
            POOLS[name](np.zeros(shape))


def test_layers_are_listed_with_their_shapes() -> None:
    put, outputs, layers = onnx_sessions.listed_layers(AS_IS)
    assert (put.name, put.shape[1:]) == ("x", (3, 4, 5))
    assert [each.name for each in outputs] == ["y"]
    assert [(each.name, each.kind, each.shape[1:]) for each in layers] == [("y", "Flatten", (60,))]


def test_features_are_whitened_by_synthetic_images_alone(random: np.random.Generator) -> None:
    """As the registered whitening does it; without a row, the same each time; off where it is said."""
    given: dict[str, Any] = {"layer": "r", "image": [3, 4, 5]}
    rows = random.uniform(size=(6, 60))
    whitening = {"images": 300, "components": 7, "seed": 3}
    built = OnnxEncoder(**given, whitening=whitening)
    plain = built.read(NETWORK, 60)
    assert (plain.dimension, built.output_dimension(plain, 60)) == (120, 7)
    made = built.finished(plain, 60)
    assert made.dimension == 7
    pairs = drawn_images(("dead-leaves",), 300, (3, 4, 5), np.random.default_rng(3))
    pixels = [tuple(np.clip(images, 0, 1).reshape(len(images), -1) for images in pair) for pair in pairs]
    whitener = PublicWhitening(components=7, images=300)
    mean, basis = whitener.directions(plain.transform, pixels, [120])  # type: ignore[arg-type]  # pairs
    np.testing.assert_allclose(made.transform(rows), unit((plain.transform(rows) - mean) @ basis), atol=1e-9)
    assert np.array_equal(made.transform(rows), built.finished(built.read(NETWORK, 60), 60).transform(rows))
    again = decode(made.kind, made.arrays())
    assert np.array_equal(again.transform(rows), made.transform(rows))
    off = OnnxEncoder(**given, whiten=False)
    assert off.finished(off.read(NETWORK, 60), 60).dimension == off.output_dimension(plain, 60) == 120
    flat = OnnxEncoder()
    read = flat.read(linear_model(WEIGHTS), 6)
    assert flat.finished(read, 6) is read, "rows that are no images are not whitened"


def test_a_row_that_fails_stays_zero_behind_the_whitening() -> None:
    root = model([("Log", ["x"], ["l"], {}), ("Flatten", ["l"], ["y"], {})], IMAGES, {"y": (FLOAT, ["rows", 60])})
    built = OnnxEncoder(whitening={"images": 100, "components": 3})
    made, rows = built.finished(built.read(root, 60), 60), np.full((2, 60), 0.5)
    rows[0, 0], rows[1] = -1.0, np.linspace(0.1, 0.9, 60)
    assert (made.transform(rows).any(axis=1) == [False, True]).all()


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
    "no model": (b"GIF89a, surely", {}, "read this ONNX model"),
    "nothing": (b"", {}, r"read this ONNX model"),
    "cut short": (linear_model(WEIGHTS)[:60], {}, r"read this ONNX model"),
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
    "an unknown layer": (linear_model(WEIGHTS), {"layer": "w"}, "no layer 'w'"),
    "a layer and an output": (linear_model(WEIGHTS), {"layer": "z", "output": "y"}, "layer and output"),
    "an unknown pool": (linear_model(WEIGHTS), {"pool": "median"}, "'median'.*mean"),
    "nothing to pool": (linear_model(WEIGHTS), {"pool": "mean"}, r"\[1, 4\].*no positions"),
    "no image": (linear_model(WEIGHTS), {"resize": [2, 2]}, "6 per row: image, resize"),
    "a size of nothing": (linear_model(WEIGHTS), {"resize": [0, 2]}, r"resize is \[0, 2\]"),
    "no deviation": (linear_model(WEIGHTS), {"deviation": [0.0]}, r"deviation is \[0.0\]"),
    "not whitened and how": (linear_model(WEIGHTS), {"whiten": False, "whitening": {"seed": 1}}, "whiten is false"),
    "an unknown whitening": (linear_model(WEIGHTS), {"whiten": True, "whitening": {"k": 1}}, "parameter k"),
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
    onnx_sessions.sessions.cache_clear()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ParameterError, match=r"'\.\[onnx\]'"):
        encoder(linear_model(WEIGHTS))
