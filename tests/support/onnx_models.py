"""Tiny ONNX models, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

Ports = Mapping[str, tuple[int, Sequence[int | str]]]
FLOAT, DOUBLE, INTEGER = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64


def model(
    nodes: Sequence[tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]],
    inputs: Ports,
    outputs: Ports,
    weights: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> bytes:
    """Return a model's file: nodes (operator, inputs, outputs, attributes), inputs and outputs (type, shape)."""
    graph = helper.make_graph(
        [helper.make_node(kind, list(given), list(made), **attributes) for kind, given, made, attributes in nodes],
        "synthetic",
        [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()],
        [helper.make_tensor_value_info(name, *info) for name, info in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    content: bytes = made.SerializeToString()
    return content


def linear_model(weights: np.ndarray[Any, Any], *, kind: int = FLOAT, batch: int | str = "rows") -> bytes:
    """Return the model x ↦ max(0, x W)."""
    width, size = weights.shape
    return model(
        [("MatMul", ["x", "W"], ["z"], {}), ("Relu", ["z"], ["y"], {})],
        {"x": (kind, [batch, width])},
        {"y": (kind, [batch, size])},
        {"W": weights.astype(np.float64 if kind == DOUBLE else np.float32)},
    )


def with_external_data(content: bytes) -> bytes:
    """Return the model with its weights in another file, which is not there."""
    made = onnx.load_from_string(content)
    convert_model_to_external_data(made, size_threshold=0, location="weights.bin")
    for tensor in made.graph.initializer:
        tensor.ClearField("raw_data")
    moved: bytes = made.SerializeToString()
    return moved
