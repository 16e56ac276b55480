"""ONNX models in separate processes, one row per call: as many processes as cores, the same numbers from each."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpalgos.features import _onnx_process
from dpalgos.parameters import ParameterError
from dpalgos.resources import memory_limit
from dpalgos.rows import Floats, cores

_LEAST_MEMORY = 2**28
_SECONDS = 60
# Rows that a process is handed at a time.
_AT_ONCE = 16
_OURS = ("UNITBALL_", "PREFECT_", "MLFLOW_")
Sizes = tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class Port:
    """An input, an output or a layer of a model; open sizes are strings.

    Attributes
    ----------
    name : str
    kind : str
        The type of an input, the operator of a layer, empty of an output.
    shape : tuple
        The batch axis included; empty where it is not known.
    """

    name: str
    kind: str
    shape: Sizes


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of a network on a row; ``values`` are empty if there are more than the largest number of features.

    Attributes
    ----------
    is_number : bool
        Whether the output holds floating-point numbers.
    shape : sequence of int
    failure : str
        Empty where it ran.
    out_of_memory : bool
    ended : bool
        Whether it took more memory or time than a process may have.
    values : array
    """

    is_number: bool = False
    shape: Sequence[int] = ()
    failure: str = ""
    out_of_memory: bool = False
    ended: bool = False
    values: Floats = field(default_factory=lambda: np.zeros(0))


class _Session:
    """A model in one process (:mod:`dpalgos.features._onnx_process`), started again where that did not survive.

    Parameters
    ----------
    content : bytes
        The model's file.
    layer : str
        Where the model is cut; empty for its own outputs.
    memory : int
        Bytes that the process may take besides the model's.
    layers : bool
        Whether the model's layers are listed.

    Raises
    ------
    ParameterError
        If onnxruntime is missing, or the file is not a model that can be loaded within the bounds.
    """

    def __init__(self, content: bytes, layer: str, memory: int, *, layers: bool = False) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise ParameterError(
                "ONNX models need onnxruntime, which is not installed; in a clone of Unitball: pip install '.[onnx]', "
                "with a wheel: pip install 'FILE.whl[onnx]'"
            )
        self._content, self._lock = content, threading.Lock()
        self._memory = memory + 4 * len(content)
        self._bounds = {"memory": self._memory, "seconds": _SECONDS, "layer": layer, "layers": layers}
        self._end: Callable[[], object] = lambda: None
        self._start()

    def _start(self) -> None:
        self._end()
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", _onnx_process.__file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # It runs a program from elsewhere: no secret of ours is in its environment. An image is resized by one
                # thread, so that the order of summation does not depend on the number of cores.
                env={
                    **{name: value for name, value in os.environ.items() if not name.startswith(_OURS)},
                    "OPENBLAS_NUM_THREADS": "1",
                },
            )
        self._owner, self._fresh = os.getpid(), True
        self._end = weakref.finalize(self, _ended, self._process, self._connection)
        try:
            self._connection.send_bytes(json.dumps(self._bounds).encode())
            self._connection.send_bytes(self._content)
            answer = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            answer = {"failure": f"loading it takes more than {self._memory >> 20} MiB or {_SECONDS} s, or crashes"}
        if "failure" in answer:
            reason = first_line(answer["failure"])
            if "xternal data" in answer["failure"]:
                raise ParameterError("the model stores weights in other files (external data): save it as one file")
            if reason.startswith("the model has no layer"):
                raise ParameterError(reason)
            raise ParameterError(f"onnxruntime cannot read this ONNX model: {reason}")
        self.inputs = tuple(Port(name, kind, tuple(shape)) for name, kind, shape in answer["inputs"])
        self.outputs = tuple(Port(str(name), "", tuple(shape)) for name, shape in answer["outputs"])
        self.layers = tuple(Port(name, kind, tuple(shape or ())) for name, kind, shape in answer.get("layers", ()))

    def run(self, rows: NDArray[Any], wanted: Mapping[str, object]) -> list[Ran]:
        """Run rows (m, d) one by one.

        A row that takes too much memory or time, or ends the process, is run once more in a new one: the rows before
        it have no part in what becomes of it.
        """
        outputs: list[Ran] = []
        with self._lock:
            while len(outputs) < len(rows):
                if self._owner != os.getpid() or self._process.poll() is not None:
                    self._start()
                request = json.dumps({**wanted, "width": rows.shape[1]}).encode()
                try:
                    self._connection.send_bytes(request)
                    self._connection.send_bytes(rows[len(outputs) :].tobytes())
                    while len(outputs) < len(rows):
                        answer, values = json.loads(self._connection.recv_bytes()), self._connection.recv_bytes()
                        ran = Ran(**answer, values=np.frombuffer(values, dtype="<f8"))
                        if ran.out_of_memory:
                            raise EOFError
                        outputs.append(ran)
                        self._fresh = False
                except (EOFError, OSError):
                    if self._fresh:
                        failure = f"it takes too much memory or more than {_SECONDS} s, or crashes"
                        outputs.append(Ran(failure=failure, ended=True))
                    self._start()
        return outputs


class Sessions:
    """One model in as many processes as there are cores, which begin when there are rows enough for them.

    A row's numbers do not depend on the process that runs it: each runs one row per call, on one thread. A further
    process may take a share of the memory only; a row that does not fit there is run once more in the first.

    Parameters
    ----------
    content : bytes
        The model's file.
    layer : str
        Where the model is cut; empty for its own outputs.

    Raises
    ------
    ParameterError
        If onnxruntime is missing, or the file is not a model that can be loaded within the bounds.
    """

    def __init__(self, content: bytes, layer: str = "") -> None:
        self._content, self._layer = content, layer
        self._memory = max(memory_limit(), _LEAST_MEMORY)
        self._first = _Session(content, layer, self._memory)
        self._further: list[_Session] = []
        self._most = cores()
        self._lock = threading.Lock()
        self.inputs, self.outputs = self._first.inputs, self._first.outputs

    def run(self, rows: NDArray[Any], wanted: Mapping[str, object]) -> list[Ran]:
        """Run rows (m, d) one by one; ``wanted`` is what :mod:`dpalgos.features._onnx_process` is asked for.

        Returns
        -------
        list of Ran
            In the order of the rows.
        """
        parts = [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]
        sessions = [self._first, *self._others(min(self._most, len(parts)) - 1)]
        found: list[list[Ran]] = [[] for _ in parts]
        places = iter(range(len(parts)))
        lock = threading.Lock()

        def work(session: _Session) -> None:
            while True:
                with lock:
                    place = next(places, None)
                if place is None:
                    return
                found[place] = session.run(parts[place], wanted)
                if session is not self._first:
                    for number, ran in enumerate(found[place]):
                        if ran.ended:
                            (found[place][number],) = self._first.run(parts[place][number : number + 1], wanted)

        with ThreadPoolExecutor(len(sessions)) as pool:
            for outcome in [pool.submit(work, session) for session in sessions]:
                outcome.result()
        return [ran for part in found for ran in part]

    def _others(self, count: int) -> list[_Session]:
        """Return so many further sessions, fewer where a share of the memory is too little for the model."""
        with self._lock:
            try:
                while len(self._further) < count:
                    self._further.append(_Session(self._content, self._layer, self._memory // (count + 1)))
            except ParameterError:
                # Not tried again for every block of rows.
                self._most = 1 + len(self._further)
            return self._further[:count]


def _ended(process: subprocess.Popen[bytes], connection: Connection) -> None:
    process.kill()
    process.wait()
    connection.close()


sessions = lru_cache(maxsize=4)(Sessions)


def listed_layers(content: bytes) -> tuple[Port, tuple[Port, ...], tuple[Port, ...]]:
    """Return the input, the outputs and the layers of a model's file; it is read in a separate process.

    Raises
    ------
    ParameterError
        If onnxruntime or onnx is missing, or the file is not an ONNX model with one input.
    """
    if importlib.util.find_spec("onnx") is None:
        raise ParameterError(
            "listing layers needs the package onnx, which is not installed; in a clone of Unitball: "
            "pip install '.[onnx]', with a wheel: pip install 'FILE.whl[onnx]'"
        )
    session = _Session(content, "", max(memory_limit(), _LEAST_MEMORY), layers=True)
    return one_input(session.inputs), session.outputs, session.layers


def one_input(inputs: Sequence[Port]) -> Port:
    """Return the one input of a model.

    Raises
    ------
    ParameterError
        If it has several, or none.
    """
    if len(inputs) != 1:
        names = ", ".join(each.name for each in inputs) or "none"
        raise ParameterError(f"the model has {len(inputs)} inputs ({names}); an encoder must have one")
    return inputs[0]


def shown(sizes: Sequence[object]) -> str:
    """Return the sizes of a tensor for people; an open one is a question mark."""
    return " x ".join(str(size) if isinstance(size, int) else "?" for size in sizes) or "nothing"


def first_line(text: str) -> str:
    """Return the first line of a message, 300 characters at most."""
    return (text.splitlines() or ["no reason"])[0][:300]
