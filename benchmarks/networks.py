"""Images per second through a frozen network, one row per call, compared with onnxruntime in batches.

    python benchmarks/networks.py

The network has random weights: four strided convolutions and a mean over the positions. Both sides use all cores.
"""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from shared import keep

from dpalgos.features.onnx import OnnxEncoder

WIDTHS, SIDE, BATCH = (3, 64, 128, 256, 256), 64, 64


def network() -> bytes:
    """Return the network's file: images (n, 3, 64, 64) to (n, 256)."""
    random, nodes, weights, put = np.random.default_rng(0), [], [], "x"
    for number, (narrow, wide) in enumerate(itertools.pairwise(WIDTHS)):
        kernel = random.normal(0.0, (2.0 / (9 * narrow)) ** 0.5, (wide, narrow, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{number}"))
        step = 1 if number == 0 else 2
        nodes.append(helper.make_node("Conv", [put, f"w{number}"], [f"c{number}"], strides=[step] * 2, pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        put = f"r{number}"
    nodes += [helper.make_node("GlobalAveragePool", [put], ["p"]), helper.make_node("Flatten", ["p"], ["y"])]
    shapes = (("x", ["n", 3, SIDE, SIDE]), ("y", ["n", WIDTHS[-1]]))
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes)
    graph = helper.make_graph(nodes, "network", [given], [made], weights)
    content: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()
    return content


def seconds(work: Any, turns: int = 3) -> float:
    """Return the least wall time of some turns, after one that is not counted."""
    work()
    found = []
    for _ in range(turns):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def main(images: int = 1024) -> None:
    """Measure, print and store the table."""
    content = network()
    rows = np.random.default_rng(1).uniform(size=(images, 3 * SIDE**2))
    features = OnnxEncoder(whiten=False).read(content, rows.shape[1])
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    pixels = rows.astype(np.float32).reshape(images, 3, SIDE, SIDE)
    ours = images / seconds(lambda: features.transform(rows))
    table = [["Unitball, one row per call", ours, 1.0]]
    for batch in (1, BATCH):
        parts = [pixels[start : start + batch] for start in range(0, images, batch)]
        theirs = images / seconds(lambda parts=parts: [session.run(None, {"x": part}) for part in parts])
        table.append([f"onnxruntime, batches of {batch}", theirs, ours / theirs])
    columns = [
        "side",
        {"title": "images per second", "digits": 0, "align": "right"},
        {"title": "ours to theirs", "digits": 2, "align": "right"},
    ]
    keep(Path(__file__).parent / "results" / "networks.json", {"columns": columns, "rows": table}, "none")
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
