"""A logged model of a table as one ONNX graph: from encoded rows through the map of columns to classes or numbers.

Post-processing of releases. All numbers are in double precision, as in the pipeline, so that no cell lies in another
bin; what is summed in another order differs in the last bits. A step of a pipeline is a function here that adds its
nodes; another kind registers itself with ``@step_nodes.register`` or ``@map_nodes.register``.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Sequence
from functools import singledispatch
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import Normalizer
from sklearn.svm import LinearSVC

from dpalgos.features.column_functions import FUNCTION_BOUND, ColumnFunctions
from dpalgos.models import decode
from dpalgos.pipeline import BoundedRegressor, CalibratedClassifier, ReleasedMap, UnitBallClipper
from dpalgos.projections.centring import CentredRows
from storage.encoder import TableEncoder
from storage.errors import InputError
from tasks.tracking.sklearn_export import NotExportableError

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

# An output's name, its type and its shape.
_Output = tuple[str, str, list[object]]
_OPSET, _IR = 17, 9
# By how much of its range a cell is moved up before it is put into a bin, as dpalgos.columns has it.
_UP = 2.0**-21
ROWS, PREDICTION, SCORES, PROBABILITY = "features", "prediction", "scores", "probability"


class Graph:
    """Nodes and constants of a graph, in order, each result by a name of its own."""

    def __init__(self) -> None:
        self.nodes: list[object] = []
        self.constants: list[object] = []

    def op(self, kind: str, *inputs: str, name: str | None = None, **attributes: object) -> str:
        """Add a node and return the name of its result."""
        from onnx import helper

        made = name or f"{kind.lower()}-{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [made], **attributes))
        return made

    def constant(self, value: ArrayLike) -> str:
        """Add a constant and return its name."""
        from onnx import numpy_helper

        made = f"constant-{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), made))
        return made

    def columns(self, rows: str, places: Sequence[int] | NDArray[np.int64]) -> str:
        """Return some columns of rows."""
        return self.op("Gather", rows, self.constant(np.asarray(places, dtype=np.int64)), axis=1)

    def number(self, truth: str) -> str:
        """Return truth values as 1 and 0."""
        from onnx import TensorProto

        return self.op("Cast", truth, to=TensorProto.DOUBLE)

    def whole(self, numbers: str) -> str:
        """Return numbers as integers, cut towards 0."""
        from onnx import TensorProto

        return self.op("Cast", numbers, to=TensorProto.INT64)

    def squares(self, rows: str) -> str:
        """Return the sum of the squares of each row, (m, 1)."""
        return self.op("ReduceSum", self.op("Mul", rows, rows), self.constant(np.array([1])), keepdims=1)


def to_onnx(pipeline: Pipeline) -> bytes:
    """Return a logged model as an ONNX file's bytes, for onnxruntime and whatever else runs such graphs.

    Parameters
    ----------
    pipeline : sklearn.pipeline.Pipeline
        As it is logged. Where it takes a table's columns, the graph begins behind the encoder.

    Returns
    -------
    bytes
        Input ``features`` (rows, d), double and finite: rows as the encoder makes them. Outputs ``prediction`` (rows,),
        the name of a class or a number; of classes ``scores`` (rows, K), one of two classes; ``probability`` (rows,) of
        the second class where the scores are calibrated. Its metadata hold the names of the features, of the classes,
        and the schema.

    Raises
    ------
    InputError
        If the extra ``unitball[onnx]`` is not installed.
    NotExportableError
        If a step has no form here.
    """
    if importlib.util.find_spec("onnx") is None:
        raise InputError(
            "an ONNX file is made by the package onnx, which is not installed: pip install 'unitball[onnx]'"
        )
    from onnx import TensorProto, checker, helper

    encoder = pipeline[0] if isinstance(pipeline[0], TableEncoder) else None
    steps = [step for _, step in pipeline.steps[encoder is not None :]]
    width = int(steps[0].n_features_in_)
    graph, rows = Graph(), ROWS
    for step in steps[:-1]:
        rows = step_nodes(step, graph, rows)
    outputs = _outputs(steps[-1], graph, rows)
    made = helper.make_graph(
        graph.nodes,
        "unitball",
        [helper.make_tensor_value_info(ROWS, TensorProto.DOUBLE, ["rows", width])],
        [helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape) for name, kind, shape in outputs],
        graph.constants,
    )
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR, producer_name="unitball"
    )
    known: dict[str, object] = {"classes": [str(name) for name in getattr(pipeline, "classes_", ())]}
    if encoder is not None:
        known |= {"features": list(encoder.declared.feature_names), "schema": encoder.schema}
        known |= {"on_violation": str(encoder.on_violation)}
    helper.set_model_props(model, {name: json.dumps(value) for name, value in known.items()})
    checker.check_model(model)
    return bytes(model.SerializeToString())


def _outputs(step: BaseEstimator, graph: Graph, rows: str) -> list[_Output]:
    """Add the last step, and return the outputs: name, type, shape."""
    if isinstance(step, BoundedRegressor):
        weights = np.asarray(step.coef_, dtype=np.float64)[:, None]
        scores = _linear(graph, rows, weights, np.asarray(step.intercept_, dtype=np.float64))
        only = graph.op("Squeeze", scores, graph.constant(np.array([1])))
        graph.op("Clip", only, *(graph.constant(np.float64(end)) for end in (step.low_, step.high_)), name=PREDICTION)
        return [(PREDICTION, "DOUBLE", ["rows"])]
    if not isinstance(step, LinearSVC):
        raise _unknown(step)
    names = graph.constant(np.array([str(name) for name in step.classes_], dtype=object))
    scores = _linear(graph, rows, step.coef_.T, step.intercept_, name=SCORES)
    if len(step.coef_) == 1:
        only = graph.op("Squeeze", scores, graph.constant(np.array([1])))
        place = graph.whole(graph.number(graph.op("Greater", only, graph.constant(0.0))))
    else:
        place = graph.op("ArgMax", scores, axis=1, keepdims=0)
    graph.op("Gather", names, place, name=PREDICTION)
    outputs: list[_Output] = [(PREDICTION, "STRING", ["rows"]), (SCORES, "DOUBLE", ["rows", len(step.coef_)])]
    if isinstance(step, CalibratedClassifier):
        # Sigmoid by its definition: in double precision, which runtimes need not have of it.
        moved = graph.op("Mul", only, graph.constant(-float(step.slope_)))
        moved = graph.op("Sub", moved, graph.constant(float(step.offset_)))
        one = graph.constant(1.0)
        graph.op("Div", one, graph.op("Add", one, graph.op("Exp", moved)), name=PROBABILITY)
        outputs.append((PROBABILITY, "DOUBLE", ["rows"]))
    return outputs


def _linear(graph: Graph, rows: str, weights: ArrayLike, intercept: ArrayLike, name: str | None = None) -> str:
    product = graph.op("MatMul", rows, graph.constant(np.ascontiguousarray(weights, dtype=np.float64)))
    return graph.op("Add", product, graph.constant(np.asarray(intercept, dtype=np.float64)), name=name)


def _unknown(what: object) -> NotExportableError:
    return NotExportableError(
        f"no ONNX form is known for {type(what).__name__}; what has one: maps of a table's columns, rows of norm 1, "
        "projections, centring, and linear models"
    )


@singledispatch
def step_nodes(step: object, graph: Graph, rows: str) -> str:
    """Add the nodes of a pipeline's step, and return the name of what comes out.

    Raises
    ------
    NotExportableError
        If no form is known for this kind.
    """
    raise _unknown(step)


@step_nodes.register
def _(step: Normalizer, graph: Graph, rows: str) -> str:
    norm = graph.op("Sqrt", graph.squares(rows))
    zero = graph.op("Equal", norm, graph.constant(0.0))
    return graph.op("Div", rows, graph.op("Where", zero, graph.constant(1.0), norm))


@step_nodes.register
def _(step: UnitBallClipper, graph: Graph, rows: str) -> str:
    norm = graph.op("Sqrt", graph.squares(rows))
    longer = graph.op("Greater", norm, graph.constant(1.0))
    return graph.op("Div", rows, graph.op("Where", longer, norm, graph.constant(1.0)))


@step_nodes.register
def _(step: TruncatedSVD, graph: Graph, rows: str) -> str:
    return graph.op("MatMul", rows, graph.constant(np.ascontiguousarray(step.components_.T, dtype=np.float64)))


@step_nodes.register
def _(step: ReleasedMap, graph: Graph, rows: str) -> str:
    return map_nodes(decode(step.kind, dict(step.arrays or {})), graph, rows)


@singledispatch
def map_nodes(artefact: object, graph: Graph, rows: str) -> str:
    """Add the nodes of a released map, and return the name of what comes out.

    Raises
    ------
    NotExportableError
        If no form is known for this kind.
    """
    raise _unknown(artefact)


@map_nodes.register
def _(artefact: CentredRows, graph: Graph, rows: str) -> str:
    return graph.op("Div", graph.op("Sub", rows, graph.constant(artefact.mean)), graph.constant(2.0))


@map_nodes.register
def _(artefact: ColumnFunctions, graph: Graph, rows: str) -> str:
    parts = [*_of_numbers(artefact, graph, rows), *_of_categories(artefact, graph, rows)]
    count = graph.op("Slice", graph.op("Shape", rows), *map(graph.constant, ([0], [1])))
    shape = graph.op("Concat", count, graph.constant(np.array([1])), axis=0)
    parts.append(graph.op("Expand", graph.constant(np.ones((1, 1))), shape))
    features = graph.op("Mul", graph.op("Concat", *parts, axis=1), graph.constant(artefact.weights))
    norm = graph.op("Sqrt", graph.squares(features))
    longer = graph.constant(1.0 + (8 + artefact.dimension) * 2.0**-53)
    return graph.op("Div", features, graph.op("Mul", norm, longer))


def _of_numbers(artefact: ColumnFunctions, graph: Graph, rows: str) -> list[str]:
    """Return functions of numbers before they are weighed, and what says that a cell is missing."""
    numbers, _ = artefact.described()
    if not numbers:
        return []
    blocks, count, bins = artefact.blocks, len(numbers), artefact.bins
    low, high = np.array([[number.low, number.high] for number in numbers]).T
    moved = graph.op("Sub", graph.columns(rows, [number.at for number in numbers]), graph.constant(low))
    cells = graph.op(
        "Clip", graph.op("Div", moved, graph.constant(high - low)), *map(graph.constant, (np.float64(0), np.float64(1)))
    )
    raised = graph.op("Mul", graph.op("Add", cells, graph.constant(_UP)), graph.constant(float(bins)))
    places = graph.op("Min", graph.whole(raised), graph.constant(np.array(bins - 1)))
    places = graph.op("Add", places, graph.constant(np.arange(count) * bins))
    lacking = [place for place, number in enumerate(numbers) if number.missing is not None]
    there, missing = None, []
    if lacking:
        said = graph.columns(rows, [int(numbers[place].missing or 0) for place in lacking])
        missing = [graph.number(graph.op("Greater", said, graph.constant(0.0)))]
        # One column a number again, 0 of those that cannot be missing.
        spread = np.zeros((len(lacking), count))
        spread[np.arange(len(lacking)), lacking] = 1.0
        there = graph.op("Sub", graph.constant(1.0), graph.op("MatMul", missing[0], graph.constant(spread)))
    of_one = {}
    for kind, name in enumerate(("linear", "score", "square", "cube")):
        found = graph.op("Gather", graph.constant(artefact.tables[:, kind].ravel()), places, axis=0)
        of_one[name] = found if there is None else graph.op("Mul", found, there)
    parts = [of_one[name] for name in of_one if name in blocks]
    for block, functions, pairs in (
        ("product", ("score", "score"), list(itertools.combinations(range(count), 2))),
        ("cubic-product", ("square", "score"), list(itertools.permutations(range(count), 2))),
    ):
        if block in blocks and pairs:
            sides = zip(functions, zip(*pairs, strict=True), strict=True)
            product = graph.op("Mul", *(graph.columns(of_one[name], places) for name, places in sides))
            ends = (np.float64(-FUNCTION_BOUND), np.float64(FUNCTION_BOUND))
            parts.append(graph.op("Clip", product, *map(graph.constant, ends)))
    return parts + missing


def _of_categories(artefact: ColumnFunctions, graph: Graph, rows: str) -> list[str]:
    """Return of each category its values, and "other" where columns are counted, and then pairs of values."""
    _, categories = artefact.described()
    parts, encoded, used = [], [], 0
    for category in categories:
        size = int(category.values or 0)
        others = artefact.others[used : used + size]
        used += size
        cells = graph.columns(rows, np.arange(category.at, category.at + size))
        said = graph.number(graph.op("Greater", cells, graph.constant(category.high / 2.0)))
        first = graph.op("ArgMax", said, axis=1, keepdims=1)
        chosen = graph.number(graph.op("Equal", first, graph.constant(np.arange(size)[None])))
        # None where no feature says a value, and the first where several do.
        value = graph.op("Mul", chosen, said)
        known = graph.op("Mul", value, graph.constant(1.0 - others))
        parts.append(known)
        encoded.append((size, known))
        if artefact.counted:
            parts.append(graph.op("MatMul", value, graph.constant(others[:, None].copy())))
    if "value-pair" in artefact.blocks:
        for (size, one), (other_size, other) in itertools.combinations(encoded, 2):
            sides = (np.repeat(np.arange(size), other_size), np.tile(np.arange(other_size), size))
            parts.append(graph.op("Mul", graph.columns(one, sides[0]), graph.columns(other, sides[1])))
    return parts
