"""The process in which ONNX models are loaded and run: bounded in memory and, for each row, in time.

A model is a program from elsewhere: one node of a few bytes can ask for more memory than there is. The connection whose
descriptor is the argument brings messages of bytes: the bounds, the model, and for each block of rows what is asked and
the rows. Answers are JSON: what the model is, then for each row what became of it, and its numbers.
"""

import contextlib
import json
import resource
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64}
_Numbers = NDArray[np.float64]


def _positions(output: _Numbers) -> tuple[int, ...]:
    """Return the axes of the positions in an output of one row: (1, C, H, W, …) or, of a transformer, (1, T, C)."""
    if output.ndim < 3:
        raise ValueError(f"an output of shape {list(output.shape)} has no positions to pool; omit pool")
    return (1,) if output.ndim == 3 else tuple(range(2, output.ndim))


def _first(output: _Numbers) -> _Numbers:
    if output.ndim != 3:
        raise ValueError(f"an output of shape {list(output.shape)} has no first token; it needs three axes")
    return output[:, 0]


POOLS: dict[str, Callable[[_Numbers], _Numbers]] = {
    "mean": lambda output: output.mean(axis=_positions(output)),
    "max": lambda output: output.max(axis=_positions(output)),
    "first": _first,
}
"""What makes one vector of an output with positions: of images (1, C, H, W), of tokens (1, T, C)."""


@lru_cache(maxsize=8)
def resampling(size: int, wanted: int) -> _Numbers:
    """Return the matrix (wanted, size) of linear interpolation with a triangle filter, which is wider where it shrinks.

    It is what Pillow's ``BILINEAR`` and torchvision's ``antialias=True`` compute.
    """
    scale = size / wanted
    centres = (np.arange(wanted) + 0.5) * scale
    distances = np.abs(np.arange(size) + 0.5 - centres[:, None]) / max(scale, 1.0)
    weights: _Numbers = np.maximum(1.0 - distances, 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def prepared(row: NDArray[Any], wanted: dict[str, Any]) -> NDArray[Any]:
    """Return one row as the model takes it: of an image, resized, grey copied to each channel, scaled by channel."""
    shape, image = wanted["shape"], wanted["image"]
    if not image:
        return row.reshape(shape)
    pixels = row.reshape(image).astype(np.float64)
    for axis in (1, 2):
        if image[axis] != shape[axis]:
            pixels = np.moveaxis(resampling(image[axis], shape[axis]) @ np.moveaxis(pixels, axis, 1), 1, axis)
    pixels = np.broadcast_to(pixels, shape)
    mean, deviation = (np.asarray(wanted[name], dtype=np.float64)[:, None, None] for name in ("mean", "deviation"))
    return ((pixels - mean) / deviation).astype(row.dtype)


def _bound(memory: int) -> None:
    """Bound this process's address space: what libraries have taken, and ``memory`` bytes."""
    taken = 0
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as file:  # noqa: PTH123 - no pathlib here
        taken = int(file.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = taken + memory if hard == resource.RLIM_INFINITY else min(taken + memory, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _renew(seconds: int) -> None:
    """Allow so many more seconds of processor time; beyond them the system ends this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))


def _opened(content: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # One thread, so that a row's features do not depend on the machine's number of cores.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    # What a row took is given back after it, so that no row finds less memory for those before it.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    # Weights in other files would be read from wherever the process runs, and are not in the digest: nothing lies here.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/dev/null")
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _read_by(nodes: Iterable[Any]) -> Iterable[str]:
    """Yield the tensors that nodes read, those inside of their branches and loops included."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _read_by(graph.node)


def _ending_at(content: bytes, layer: str) -> bytes:
    """Return the model cut behind a layer: its tensor is the one output, and only what leads to it is left."""
    import onnx

    model = onnx.load_from_string(content)
    graph = model.graph
    by_name = {node.name: node.output[0] for node in graph.node if node.name and node.output}
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    tensor = layer if layer in makers else by_name.get(layer, "")
    if tensor not in makers:
        raise ValueError(f"the model has no layer {layer!r}: `unitball model layers FILE` lists them")
    kept, open_names = set[int](), [tensor]
    while open_names:
        place = makers.get(open_names.pop())
        if place is not None and place not in kept:
            kept.add(place)
            open_names.extend(_read_by([graph.node[place]]))
    nodes = [graph.node[place] for place in sorted(kept)]
    read = {*_read_by(nodes), tensor}
    used = [each for each in graph.initializer if each.name in read]
    known = [each for each in (*graph.value_info, *graph.output) if each.name == tensor]
    output = known[0] if known else onnx.ValueInfoProto(name=tensor)
    for field, values in (("node", nodes), ("initializer", used), ("output", [output])):
        copies = [type(each).FromString(each.SerializeToString()) for each in values]
        graph.ClearField(field)
        getattr(graph, field).extend(copies)
    found: bytes = model.SerializeToString()
    return found


def _layers(content: bytes) -> list[list[Any]]:
    """Return name, operator and shape of what each node puts out; sizes that are not known are None."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(content)).graph
    shapes = {
        each.name: [size.dim_value or None for size in each.type.tensor_type.shape.dim]
        for each in (*graph.value_info, *graph.output)
        if each.type.tensor_type.HasField("shape")
    }
    return [[name, node.op_type, shapes.get(name)] for node in graph.node for name in node.output[:1] if name]


def _described(session: Any) -> dict[str, Any]:
    return {
        "inputs": [[each.name, each.type, list(each.shape or [])] for each in session.get_inputs()],
        "outputs": [[each.name, list(each.shape or [])] for each in session.get_outputs()],
    }


def _failure(error: Exception) -> dict[str, Any]:
    out_of_memory = isinstance(error, MemoryError) or "alloc" in str(error)
    return {"failure": str(error) or "it fails", "out_of_memory": out_of_memory}


def _ran(session: Any, row: Any, wanted: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    try:
        given = {session.get_inputs()[0].name: prepared(row, wanted)[np.newaxis]}
        output = session.run([wanted["output"]], given)[0]
        is_number = isinstance(output, np.ndarray) and output.dtype.kind == "f"
        if is_number and wanted["pool"]:
            output = POOLS[wanted["pool"]](np.asarray(output, dtype=np.float64))
        kept = np.asarray(output, dtype="<f8").tobytes() if is_number and output.size <= wanted["most"] else b""
        return {"is_number": is_number, "shape": getattr(output, "shape", ())}, kept
    except Exception as error:  # onnxruntime's own classes derive from Exception directly
        return _failure(error), b""


def _main() -> None:
    import onnxruntime  # noqa: F401 - its own size is not the model's

    connection = Connection(int(sys.argv[1]))
    bounds, content = json.loads(connection.recv_bytes()), connection.recv_bytes()
    _bound(bounds["memory"])
    _renew(bounds["seconds"])
    try:
        if bounds["layers"]:
            layers = _layers(content)
        session = _opened(_ending_at(content, bounds["layer"]) if bounds["layer"] else content)
    except Exception as error:  # onnxruntime's own classes derive from Exception directly
        connection.send_bytes(json.dumps(_failure(error)).encode())
        return
    described = _described(session)
    connection.send_bytes(json.dumps({**described, "layers": layers} if bounds["layers"] else described).encode())
    kind = TYPES.get(session.get_inputs()[0].type, np.float32) if session.get_inputs() else np.float32
    while True:
        wanted = json.loads(connection.recv_bytes())
        rows = np.frombuffer(connection.recv_bytes(), dtype=kind).reshape(-1, wanted["width"])
        for row in rows:
            _renew(bounds["seconds"])
            answer, values = _ran(session, row, wanted)
            connection.send_bytes(json.dumps(answer).encode())
            connection.send_bytes(values)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):
        _main()
