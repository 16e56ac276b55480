"""A logged model of rows of numbers as one ONNX graph: from the rows as they came through its maps to the answer.

A model of a table has no such graph. What its cells mean, the schema's encoder alone knows: how numbers and dates are
written, which texts are one value, and which rows are refused. A graph that began behind the encoder would take rows
that its user cannot make.

Post-processing of releases. All numbers are in double precision, as in the pipeline; what is summed in another order
differs in the last bits. A step of a pipeline is a function here that adds its
nodes; another kind registers itself with ``@step_nodes.register`` or ``@map_nodes.register``.
"""

from __future__ import annotations

import importlib.util
import json
from functools import singledispatch
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import Normalizer
from sklearn.svm import LinearSVC

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
ROWS, PREDICTION, SCORES, PROBABILITY = "features", "prediction", "scores", "probability"


class Graph:
    """Nodes and constants of a graph, in order, each result by its own name."""

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
    """Return a logged model as an ONNX file's bytes, for onnxruntime and other programs that run such graphs.

    Parameters
    ----------
    pipeline : sklearn.pipeline.Pipeline
        As it is logged.

    Returns
    -------
    bytes
        Input ``features`` (rows, d), double and finite: rows as they came. Outputs ``prediction`` (rows,),
        the name of a class or a number; of classes ``scores`` (rows, K), one of two classes; ``probability`` (rows,) of
        the second class where the scores are calibrated. Its metadata hold the names of the classes.

    Raises
    ------
    InputError
        If the extra ``unitball[onnx]`` is not installed.
    NotExportableError
        If the model takes a table's columns, or a step has no form here.
    """
    if isinstance(pipeline[0], TableEncoder):
        raise NotExportableError(
            "the model reads a table's raw columns by a schema, and an ONNX graph accepts only numbers. Predict with "
            "unitball predict, or load the logged model with MLflow or skops"
        )
    if importlib.util.find_spec("onnx") is None:
        raise InputError(
            "writing ONNX files needs the package onnx, which is not installed; in a clone of Unitball: "
            "pip install '.[onnx]', with a wheel: pip install 'FILE.whl[onnx]'"
        )
    from onnx import TensorProto, checker, helper

    steps = [step for _, step in pipeline.steps]
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
    classes = [str(name) for name in getattr(pipeline, "classes_", ())]
    helper.set_model_props(model, {"classes": json.dumps(classes)})
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
        f"{type(what).__name__} has no ONNX form; these have one: rows of norm 1, projections, centring, and "
        "linear models"
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
