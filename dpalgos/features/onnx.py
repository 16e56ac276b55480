"""Features from somebody's own frozen encoder: any ONNX model with one input, as a map of one row at a time."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.arrays import Array
from dpalgos.errors import ParameterError
from dpalgos.features.public_map import FileMap, RowFeatures
from dpalgos.models import released_kind
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints

__all__ = ["OnnxEncoder", "OnnxFeatures"]

_MOST_FEATURES = 2**16
_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64}
_HALF = np.sqrt(np.finfo(np.float64).max) / 2.0


@released_kind
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
    kind: ClassVar[str] = "onnx-features"
    packages: ClassVar[tuple[str, ...]] = ("onnxruntime",)

    @property
    def dimension(self) -> int:
        """Number of features k."""
        return int(self.size[0])

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, k), rows of norm 1 (or 0, where the model gives zeros or no finite numbers)."""
        session = _session(self.model.tobytes())
        put = session.get_inputs()[0]
        name, shape = self.output.tobytes().decode(), (1, *(int(size) for size in self.shape))
        found = np.zeros((len(features), self.dimension))
        with np.errstate(over="ignore", invalid="ignore"):
            rows = np.asarray(features).astype(_TYPES[put.type])
        for row, given in zip(found, rows, strict=True):
            try:
                scores = np.asarray(session.run([name], {put.name: given.reshape(shape)})[0], dtype=np.float64).ravel()
            except Exception:
                continue
            if scores.size == self.dimension:
                row[:] = scores
        found[~np.isfinite(found).all(axis=1) | (np.abs(found).max(axis=1, initial=0.0) > _HALF)] = 0.0
        norms = np.linalg.norm(found, axis=1, keepdims=True)
        return found / np.where(norms > 0, norms, 1.0)

    def arrays(self) -> dict[str, Array]:
        """Return the file, the input's shape, the number of features and the output's name."""
        return {"model": self.model, "shape": self.shape, "size": self.size, "output": self.output}


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
        made = OnnxFeatures(
            model=np.frombuffer(content, dtype=np.uint8),
            shape=np.array(shape, dtype=np.int64),
            size=np.array([_output_size(session, name, shape)]),
            output=np.frombuffer(name.encode(), dtype=np.uint8),
        )
        row = np.random.default_rng(0).uniform(0.0, 1.0, (1, dimension))
        if not np.array_equal(made.transform(row), made.transform(row)):
            raise ParameterError("the model gives different features for the same row: export it without randomness")
        return made

    def outside(self, content: bytes) -> str:
        """Return what the guarantee does not cover."""
        digest = hashlib.sha256(content).hexdigest()
        return (
            f"the rows that the encoder (ONNX file, SHA-256 {digest[:16]}…) was trained on are outside the guarantee: "
            "it protects the rows registered here alone"
        )

    def _input_shape(self, session: Any, dimension: int) -> tuple[int, ...]:
        inputs = session.get_inputs()
        if len(inputs) != 1:
            names = ", ".join(each.name for each in inputs) or "none"
            raise ParameterError(f"the model has {len(inputs)} inputs ({names}); an encoder of rows has one")
        put = inputs[0]
        if put.type not in _TYPES:
            raise ParameterError(
                f"the model's input {put.name} is a {put.type}; rows are {' or '.join(_TYPES)}: put a Cast in front"
            )
        batch, *rest = put.shape or [None]
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
        if not all(isinstance(size, int) for size in wanted) or not fits or math.prod(wanted) != dimension:
            raise ParameterError(
                f"the model's input {put.name} is {_shown(rest)} a row and rows have {dimension} features"
                + (f"; shape={list(wanted)} does not fit both" if self.shape is not None else "")
                + ": give features.shape where sizes are open, or another model"
            )
        if self.shape is None and len(wanted) == 3 and wanted[2] == 3 and wanted[0] not in (1, 3):
            raise ParameterError(
                f"the model's input {put.name} is {_shown(rest)} a row, channels last; rows of images are stored "
                "channel by channel: put a Transpose in front, or give features.shape if that is how these rows are"
            )
        return wanted

    def _output_name(self, session: Any) -> str:
        names = [each.name for each in session.get_outputs()]
        if self.output is None and len(names) == 1:
            return str(names[0])
        if self.output is None or self.output not in names:
            wrong = "several outputs" if self.output is None else f"no output {self.output!r}"
            raise ParameterError(f"the model has {wrong}; name one by features.output: {', '.join(names[:20])}")
        return self.output


def _output_size(session: Any, name: str, shape: tuple[int, ...]) -> int:
    """Return the number of features that a row comes out with, by running one."""
    put = session.get_inputs()[0]
    try:
        found = session.run([name], {put.name: np.zeros((1, *shape), dtype=_TYPES[put.type])})[0]
    except Exception as error:  # onnxruntime's own classes derive from Exception directly
        raise ParameterError(f"the model cannot be run on a row of shape {list(shape)}: {_first_line(error)}") from None
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f":
        raise ParameterError(
            f"the model's output {name} holds no floating-point numbers; name another: features.output"
        )
    if found.ndim < 2 or found.shape[0] != 1 or not 1 <= found.size <= _MOST_FEATURES:
        raise ParameterError(
            f"the model's output {name} has shape {list(found.shape)} for one row; wanted is one row of 1 to "
            f"{_MOST_FEATURES} features"
        )
    return int(found.size)


def _shown(sizes: Sequence[object]) -> str:
    return " x ".join(str(size) if isinstance(size, int) else "?" for size in sizes) or "nothing"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


@lru_cache(maxsize=4)
def _session(content: bytes) -> Any:
    """Return a session on one thread, so that a row's features do not depend on the machine's number of cores."""
    try:
        import onnxruntime
    except ImportError:
        raise ParameterError(
            "ONNX models are run by onnxruntime, which is not installed: pip install 'unitball[onnx]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    # Weights in other files would be read from wherever the process runs, and are not in the digest: nothing lies here.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/dev/null")
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes derive from Exception directly
        if "xternal data" in str(error):
            raise ParameterError(
                "the model keeps weights in other files (external data): save it as one file"
            ) from None
        raise ParameterError(f"this is no ONNX model that onnxruntime can read: {_first_line(error)}") from None
