"""Results of an experiment's points, all of them as one table, and how its columns are called."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Self

import pandas as pd
from pydantic import BaseModel

from tasks.experiments.specifications import Point
from tasks.tracking.results import RunResult

WHO = ("algorithm", "trainer", "projection", "aggregation", "trust")
_FACTS = ("label", "dataset", "algorithm", "trust", "status")
Status = Literal["proved", "unproved", "non-private"]


class PointResult(BaseModel, frozen=True):
    """One finished point.

    Attributes
    ----------
    label : str
        Its series.
    status : {"proved", "unproved", "non-private"}
        Unproved: noise is drawn, or a claim is made, and nothing is proved.
    axes : dict
        What was set or varied.
    """

    label: str
    dataset: str
    algorithm: str
    trust: str
    status: Status
    axes: dict[str, object]
    metrics: dict[str, float]
    proved: str | None = None
    numerics: str | None = None
    claim: str | None = None
    flaw: str | None = None
    sound_counterpart: str | None = None
    releases: tuple[str, ...] = ()

    def value(self, axis: str) -> object:
        """Return where the result is on an axis; None where the axis does not concern it."""
        return getattr(self, axis) if axis in _FACTS else self.axes.get(axis)

    def with_metric(self, name: str, value: float) -> Self:
        """Return the result with one more metric."""
        return self.model_copy(update={"metrics": {**self.metrics, name: value}})


def _status(result: RunResult) -> Status:
    if result.proved is not None:
        return "proved"
    return "unproved" if result.claim is not None or result.split else "non-private"


def point_result(point: Point, result: RunResult) -> PointResult:
    """Return a finished point as a result."""
    proved, claim = result.proved, result.claim or {}
    measured = {
        "epsilon_spent": result.epsilon_spent,
        "delta_spent": result.delta_spent,
        "seconds": result.seconds,
        "releasing_seconds": result.releasing_seconds,
    }
    return PointResult(
        label=point.label,
        dataset=result.dataset,
        algorithm=result.algorithm,
        trust=result.trust,
        status=_status(result),
        axes=point.axes,
        metrics={
            **{name: value for name, value in measured.items() if value is not None},
            **result.metrics.known(),
        },
        proved=proved.summary() if proved else None,
        numerics=proved.numerics if proved else None,
        claim=claim.get("statement"),
        flaw=claim.get("flaw"),
        sound_counterpart=result.sound_counterpart,
        releases=result.releases,
    )


def column(axis: str) -> str:
    """Return the column of :func:`table_of` that holds an axis, or a fact that is asked for like one."""
    return axis if axis in _FACTS or axis.startswith("axis_") else f"axis_{axis}"


def table_of(results: Sequence[PointResult]) -> pd.DataFrame:
    """Return results as one table, a line each: facts, then ``axis_NAME``, then ``metric_NAME``; missing is none."""
    lines = [
        {
            **result.model_dump(mode="json", exclude={"axes", "metrics", "releases"}),
            **{f"axis_{name}": _cell(value) for name, value in result.axes.items()},
            **{f"metric_{name}": value for name, value in result.metrics.items()},
        }
        for result in results
    ]
    names = list(dict.fromkeys([*_FACTS, *(name for line in lines for name in line)]))
    # Axes keep their own kinds of values: a whole number gets no point because another result has none.
    table = pd.DataFrame(lines, columns=names, dtype=object)
    return table.astype({name: float for name in names if name.startswith("metric_")})


def _cell(value: object) -> object:
    """Return what stands in a table for the value of an axis: lists as text, as people write them."""
    return json.dumps(value).strip("[]") if isinstance(value, (list, tuple, dict)) else value


def lines_at(table: pd.DataFrame, where: Mapping[str, object], *, or_none: bool = False) -> pd.DataFrame:
    """Return the lines at these values of their axes; with ``or_none`` those too that an axis does not concern."""
    for name, value in where.items():
        cells = table.get(column(name), pd.Series(None, table.index, dtype=object))
        table = table[(cells == _cell(value)) | (or_none & cells.isna())]
    return table


def values_of(table: pd.DataFrame, metric: str) -> pd.Series:
    """Return a metric where it was measured."""
    return table.get(f"metric_{metric}", pd.Series(dtype=float)).dropna()


_AXIS_LABELS = MappingProxyType(
    {
        "accuracy": "accuracy",
        "auc": "area under the ROC curve",
        "delta": "δ",
        "dimension": "target dimension k",
        "epsilon": "privacy budget ε",
        "iterations": "iterations",
        "accuracy_change": "accuracy − the optimum's",
        "objective": "objective",
        "optimality_gap": "objective − the optimum's",
        "objective_error": "|objective − WSS 2's|",
        "iteration_ratio": "iterations / WSS 2's",
        "releasing_seconds": "seconds to train",
        "rows_per_party": "rows per party n",
        "parties": "parties N",
        "sizes": "rows of each party",
    }
)


def axis_label(name: str) -> str:
    """Return how an axis or a metric is called for people."""
    return _AXIS_LABELS.get(name, name.removeprefix("param.").replace("_", " "))
