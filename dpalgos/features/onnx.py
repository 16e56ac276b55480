"""Features from somebody's own frozen encoder: any ONNX model with one input, as a map of one row at a time."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.features import _onnx_process
from dpalgos.features._onnx_process import TYPES
from dpalgos.features.public_map import FileMap, RowFeatures
from dpalgos.models import released_kind
from dpalgos.parameters import ParameterError
from dpalgos.registry import register
from dpalgos.resources import memory_limit
from dpalgos.rows import Floats, Ints, unit_rows
from dpalgos.sentences import coded

_MOST_FEATURES = 2**16
_LEAST_MEMORY = 2**28
_SECONDS = 60
_OURS = ("UNITBALL_", "PREFECT_", "MLFLOW_")
_HALF = np.sqrt(np.finfo(np.float64).max) / 2.0


@released_kind("onnx-features")
@dataclass(frozen=True, slots=True)
class OnnxFeatures(RowFeatures):
    """The map x ↦ f(x)/‖f(x)‖ of an ONNX model f.

    Rows are run one at a time. A model may well mix the rows of a batch (batch normalisation left in training mode, a
    softmax over the first axis): then one row would move every other row's features, and no sensitivity would hold.

    Parameters
    ----------
    model : array of uint8
        The file's bytes.
    shape : array of int
        Of the model's input without the batch axis.
    size : array of 1 int
        Number of features k.
    output : array of uint8
        Name of the output, as UTF-8 bytes.
    """

    model: NDArray[np.uint8]
    shape: Ints
    size: Ints
    output: NDArray[np.uint8]
    packages: ClassVar[tuple[str, ...]] = ("onnxruntime",)

    @property
    def dimension(self) -> int:
        """Number of features k."""
        return int(self.size[0])

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, k), rows of norm 1 (or 0, where the model gives zeros or no finite numbers)."""
        session = _session(self.model.tobytes())
        name, shape = self.output.tobytes().decode(), [int(size) for size in self.shape]
        outputs = np.zeros((len(features), self.dimension))
        with np.errstate(over="ignore", invalid="ignore"):
            rows = np.asarray(features).astype(TYPES[session.inputs[0].type])
        for row, ran in zip(outputs, session.run(name, rows, shape), strict=True):
            if ran.is_number and ran.values.size == self.dimension:
                row[:] = ran.values
        outputs[~np.isfinite(outputs).all(axis=1) | (np.abs(outputs).max(axis=1, initial=0.0) > _HALF)] = 0.0
        return unit_rows(outputs)


@register("encoders", "onnx")
@dataclass(frozen=True, kw_only=True)
class OnnxEncoder(FileMap):
    """A frozen encoder in ONNX format, by onnxruntime (the extra ``unitball[onnx]``).

    Guarantee
    ---------
    Costs nothing for the rows that are trained on: the file looks at none of them, and each row is run through it
    alone. Its rows have norm 1 (or 0). The rows that the encoder itself was trained on are outside the guarantee:
    whatever it has memorised of them, the model may show.

    Parameters
    ----------
    shape : sequence of int, optional
        Of the input without the batch axis, where the model leaves sizes open; rows of images are channel by channel.
    output : str, optional
        Name of the output that holds the features; needed where there are several.

    References
    ----------
    Tramèr, Boneh, ICLR 2021; De, Berrada, Hayes, Smith, Balle 2022; Mehta, Thakurta, Kurakin, Cutkosky 2022 (a frozen
    public encoder and a private linear head); Tramèr, Kamath, Carlini, ICML 2024 (what such a guarantee leaves out).
    """

    shape: Sequence[int] | None = None
    output: str | None = None
    source: ClassVar[str] = "Tramèr, Boneh 2021; De et al. 2022"

    def __post_init__(self) -> None:
        if self.shape is not None and (not self.shape or min(self.shape) < 1):
            raise ParameterError(f"shape is {list(self.shape)}; give the sizes of the model's input, each at least 1")

    def read(self, content: bytes, dimension: int) -> OnnxFeatures:
        """Return the map of a file for rows of ``dimension`` features.

        Raises
        ------
        ParameterError
            If onnxruntime is missing; if the file is no ONNX model, keeps weights in other files, has several inputs or
            outputs, takes other numbers or another number of them, gives something else than one row of features a
            row, or gives different features for the same row.
        """
        session = _session(content)
        shape = self._input_shape(session, dimension)
        name = self._output_name(session)
        features = OnnxFeatures(
            model=np.frombuffer(content, dtype=np.uint8),
            shape=np.array(shape, dtype=np.int64),
            size=np.array([_output_size(session, name, shape)]),
            output=np.frombuffer(name.encode(), dtype=np.uint8),
        )
        row = np.random.default_rng(0).uniform(0.0, 1.0, (1, dimension))
        if not np.array_equal(features.transform(row), features.transform(row)):
            raise ParameterError("the model gives different features for the same row: export it without randomness")
        return features

    def outside(self, content: bytes) -> str:
        """Return what the guarantee does not cover, as a code."""
        digest = hashlib.sha256(content).hexdigest()
        return coded("rows-of-encoder", digest=digest[:16])

    def _input_shape(self, session: _Session, dimension: int) -> tuple[int, ...]:
        inputs = session.inputs
        if len(inputs) != 1:
            names = ", ".join(each.name for each in inputs) or "none"
            raise ParameterError(f"the model has {len(inputs)} inputs ({names}); an encoder of rows has one")
        put = inputs[0]
        if put.type not in TYPES:
            raise ParameterError(
                f"the model's input {put.name} is a {put.type}; rows are {' or '.join(TYPES)}: put a Cast in front"
            )
        batch, *rest = put.shape or (None,)
        if isinstance(batch, int) and batch != 1:
            raise ParameterError(
                f"the model's input {put.name} takes {batch} rows at once; leave the batch axis open or export for 1"
            )
        wanted = tuple(self.shape) if self.shape is not None else tuple(rest)
        if self.shape is None and not all(isinstance(size, int) and size > 0 for size in rest):
            # One open size is whatever the rows have.
            wanted = (dimension,) if len(rest) == 1 else wanted
        fits = len(wanted) == len(rest) and all(
            size == own or not isinstance(own, int) for size, own in zip(wanted, rest, strict=True)
        )
        sizes = tuple(size for size in wanted if isinstance(size, int))
        if len(sizes) < len(wanted) or not fits or math.prod(sizes) != dimension:
            raise ParameterError(
                f"the model's input {put.name} is {_shown(rest)} a row and rows have {dimension} features"
                + (f"; shape={list(wanted)} does not fit both" if self.shape is not None else "")
                + ": give features.shape where sizes are open, or another model"
            )
        if self.shape is None and len(sizes) == 3 and sizes[2] == 3 and sizes[0] not in (1, 3):
            raise ParameterError(
                f"the model's input {put.name} is {_shown(rest)} a row, channels last; rows of images are stored "
                "channel by channel: put a Transpose in front, or give features.shape if that is how these rows are"
            )
        return sizes

    def _output_name(self, session: _Session) -> str:
        names = session.outputs
        if self.output is None and len(names) == 1:
            return str(names[0])
        if self.output is None or self.output not in names:
            wrong = "several outputs" if self.output is None else f"no output {self.output!r}"
            raise ParameterError(f"the model has {wrong}; name one by features.output: {', '.join(names[:20])}")
        return self.output


def _output_size(session: _Session, name: str, shape: tuple[int, ...]) -> int:
    """Return the number of features that a row comes out with, by running one."""
    rows = np.zeros((1, math.prod(shape)), dtype=TYPES[session.inputs[0].type])
    (ran,) = session.run(name, rows, list(shape))
    if ran.failure:
        raise ParameterError(f"the model cannot be run on a row of shape {list(shape)}: {_first_line(ran.failure)}")
    if not ran.is_number:
        raise ParameterError(
            f"the model's output {name} holds no floating-point numbers; name another: features.output"
        )
    size = math.prod(ran.shape)
    if len(ran.shape) < 2 or ran.shape[0] != 1 or not 1 <= size <= _MOST_FEATURES:
        raise ParameterError(
            f"the model's output {name} has shape {list(ran.shape)} for one row; wanted is one row of 1 to "
            f"{_MOST_FEATURES} features"
        )
    return size


def _shown(sizes: Sequence[object]) -> str:
    return " x ".join(str(size) if isinstance(size, int) else "?" for size in sizes) or "nothing"


def _first_line(text: str) -> str:
    return (text.splitlines() or ["no reason"])[0][:300]


@dataclass(frozen=True, slots=True)
class _Input:
    """An input of a model; sizes that it leaves open are no numbers."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class _Ran:
    """What became of a row; ``values`` are empty where there are more than features may be."""

    is_number: bool = False
    shape: Sequence[int] = ()
    failure: str = ""
    out_of_memory: bool = False
    values: Floats = field(default_factory=lambda: np.zeros(0))


class _Session:
    """A model in a process of its own (:mod:`dpalgos.features._onnx_process`), begun again where that did not survive.

    Parameters
    ----------
    content : bytes
        The model's file.

    Raises
    ------
    ParameterError
        If onnxruntime is missing, or it is no model that can be loaded within the bounds.
    """

    def __init__(self, content: bytes) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise ParameterError(
                "ONNX models are run by onnxruntime, which is not installed: pip install 'unitball[onnx]'"
            )
        self._content, self._lock = content, threading.Lock()
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
                # It is somebody else's program that runs there: no secret of ours is around it.
                env={name: value for name, value in os.environ.items() if not name.startswith(_OURS)},
            )
        self._owner, self._fresh = os.getpid(), True
        self._end = weakref.finalize(self, _ended, self._process, self._connection)
        memory = max(memory_limit(), _LEAST_MEMORY) + 4 * len(self._content)
        try:
            self._connection.send_bytes(json.dumps({"memory": memory, "seconds": _SECONDS}).encode())
            self._connection.send_bytes(self._content)
            answer = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            answer = {"failure": f"loading it takes more than {memory >> 20} MiB or {_SECONDS} s, or crashes"}
        if "failure" in answer:
            reason = _first_line(answer["failure"])
            if "xternal data" in answer["failure"]:
                raise ParameterError("the model keeps weights in other files (external data): save it as one file")
            raise ParameterError(f"this is no ONNX model that onnxruntime can read: {reason}")
        self.inputs = tuple(_Input(name, kind, tuple(shape)) for name, kind, shape in answer["inputs"])
        self.outputs = [str(name) for name in answer["outputs"]]

    def run(self, output: str, rows: NDArray[Any], shape: Sequence[int]) -> list[_Ran]:
        """Run rows (m, d) one by one.

        A row that takes too much memory or time, or ends the process, is run once more in a new one: what becomes of
        it is its own doing, whatever rows came before.
        """
        outputs: list[_Ran] = []
        with self._lock:
            while len(outputs) < len(rows):
                if self._owner != os.getpid() or self._process.poll() is not None:
                    self._start()
                request = json.dumps({"output": output, "shape": list(shape), "most": _MOST_FEATURES}).encode()
                try:
                    self._connection.send_bytes(request)
                    self._connection.send_bytes(rows[len(outputs) :].tobytes())
                    while len(outputs) < len(rows):
                        answer, values = json.loads(self._connection.recv_bytes()), self._connection.recv_bytes()
                        ran = _Ran(**answer, values=np.frombuffer(values, dtype="<f8"))
                        if ran.out_of_memory:
                            raise EOFError
                        outputs.append(ran)
                        self._fresh = False
                except (EOFError, OSError):
                    if self._fresh:
                        outputs.append(_Ran(failure=f"it takes too much memory or more than {_SECONDS} s, or crashes"))
                    self._start()
        return outputs


def _ended(process: subprocess.Popen[bytes], connection: Connection) -> None:
    process.kill()
    process.wait()
    connection.close()


_session = lru_cache(maxsize=4)(_Session)
