"""The process in which ONNX models are loaded and run: bounded in memory and, for each row, in time.

A model is a program of somebody else's: one node of a few bytes can ask for more memory than there is. The connection
whose descriptor is the argument brings messages of bytes: the bounds, the model, and for each block of rows what is
asked and the rows. Answers are JSON: what the model is, then for each row what became of it, and its numbers.
"""

import contextlib
import json
import resource
import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64}


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


def _described(session: Any) -> dict[str, Any]:
    return {
        "inputs": [[each.name, each.type, list(each.shape or [])] for each in session.get_inputs()],
        "outputs": [each.name for each in session.get_outputs()],
    }


def _failure(error: Exception) -> dict[str, Any]:
    out_of_memory = isinstance(error, MemoryError) or "alloc" in str(error)
    return {"failure": str(error) or "it fails", "out_of_memory": out_of_memory}


def _ran(session: Any, name: str, row: Any, most: int) -> tuple[dict[str, Any], bytes]:
    try:
        output = session.run([name], {session.get_inputs()[0].name: row})[0]
        is_number = isinstance(output, np.ndarray) and output.dtype.kind == "f"
        kept = np.asarray(output, dtype="<f8").tobytes() if is_number and output.size <= most else b""
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
        session = _opened(content)
    except Exception as error:  # onnxruntime's own classes derive from Exception directly
        connection.send_bytes(json.dumps(_failure(error)).encode())
        return
    connection.send_bytes(json.dumps(_described(session)).encode())
    kind = TYPES.get(session.get_inputs()[0].type, np.float32) if session.get_inputs() else np.float32
    while True:
        request = json.loads(connection.recv_bytes())
        rows = np.frombuffer(connection.recv_bytes(), dtype=kind).reshape(-1, *request["shape"])
        for row in rows:
            _renew(bounds["seconds"])
            answer, values = _ran(session, request["output"], row[np.newaxis], request["most"])
            connection.send_bytes(json.dumps(answer).encode())
            connection.send_bytes(values)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):
        _main()
