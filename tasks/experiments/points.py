"""Results of an experiment's points as figures, tables and checks see them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel

from tasks.experiments.specification import Check, Derived, PaperValue, Point
from tasks.tracking.results import RunResult

__all__ = ["Compared", "PointResult", "Verdict", "compare_with_paper", "derive", "point_result", "verdicts"]

NOISE_AXES = ("seeds", "seed", "partition_seed", "repetition")
"""Axes that repeat a point rather than ask another question."""

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

    def asks(self, where: Mapping[str, object]) -> bool:
        """Whether the result is at these values of its axes (or of label, data set, algorithm, trust)."""
        return all(self.value(name) == value for name, value in where.items())

    def value(self, axis: str) -> object:
        """Return where the result is on an axis; None where the axis does not concern it."""
        if axis in ("label", "dataset", "algorithm", "trust", "status"):
            return getattr(self, axis)
        return self.axes.get(axis)

    def question(self, ignoring: Sequence[str] = ()) -> str:
        """Return what is asked without who answers: equal for the results that are compared with each other."""
        own = ("algorithm", "trainer", "projection", "aggregation", "trust", *NOISE_AXES, *ignoring)
        asked = {name: value for name, value in self.axes.items() if name not in own}
        return json.dumps([self.dataset, asked], sort_keys=True, default=str)


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
        metrics={**{name: value for name, value in measured.items() if value is not None}, **result.metrics},
        proved=proved.summary() if proved else None,
        numerics=proved.numerics if proved else None,
        claim=claim.get("statement"),
        flaw=claim.get("flaw"),
        sound_counterpart=result.sound_counterpart,
        releases=result.releases,
    )


_HOW: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {
        "value": lambda one, other: one,
        "difference": lambda one, other: one - other,
        "absolute-difference": lambda one, other: abs(one - other),
        "ratio": lambda one, other: one / other if other else float("inf"),
    }
)


def derive(results: Sequence[PointResult], wanted: Sequence[Derived]) -> list[PointResult]:
    """Add metrics that compare each result with the mean of its reference's; without a reference there is none."""
    found = list(results)
    for one in wanted:
        references: dict[tuple[object, ...], list[float]] = {}
        for result in found:
            if result.asks(one.against) and one.metric in result.metrics:
                place = tuple(str(result.value(name)) for name in one.match)
                references.setdefault(place, []).append(result.metrics[one.metric])
        for number, result in enumerate(found):
            known = references.get(tuple(str(result.value(name)) for name in one.match))
            if known and one.metric in result.metrics:
                value = _HOW[one.how](result.metrics[one.metric], fmean(known))
                found[number] = result.model_copy(update={"metrics": {**result.metrics, one.name: value}})
    return found


class Verdict(BaseModel, frozen=True):
    """A sentence of the paper beside the number measured here.

    Attributes
    ----------
    holds : bool or None
        None where there was nothing to measure it on.
    at_scale : bool
        Whether it was measured on the paper's data at the paper's sizes; anywhere else the paper is neither confirmed
        nor refuted.
    """

    says: str
    measured: float | None
    wanted: str
    holds: bool | None
    points: int
    at_scale: bool = True

    @property
    def summary(self) -> str:
        """The verdict in a few words."""
        found = {True: "holds", False: "does not hold", None: "not measured"}[self.holds]
        return found if self.at_scale or self.holds is None else f"not tested at the paper's scale (here it {found})"


def verdicts(results: Sequence[PointResult], checks: Sequence[Check], *, at_scale: bool = True) -> list[Verdict]:
    """Return the verdict of each check, measured at the paper's scale or elsewhere."""
    return [_verdict(results, check).model_copy(update={"at_scale": at_scale}) for check in checks]


def _verdict(results: Sequence[PointResult], check: Check) -> Verdict:
    mine = _means([result for result in results if result.label == check.of and result.asks(check.where)], check)
    if check.against is None:
        values = [value for _, value in mine.items()]
    else:
        others = [result for result in results if result.label == check.against]
        theirs = _means([result for result in others if _fits(result, check.where)], check)
        # A reference without the axis (no noise, hence no epsilon) stands beside every point of its data set.
        values = [
            _HOW[check.how](value, other)
            for question, value in mine.items()
            if (other := _other(theirs, others, question, check)) is not None
        ]
    bounds = [(">= ", check.at_least), ("<= ", check.at_most)]
    wanted = " and ".join(f"{sign}{bound:g}" for sign, bound in bounds if bound is not None)
    if not values:
        return Verdict(says=check.says, measured=None, wanted=wanted, holds=None, points=0)
    worst = min if check.at_least is not None else max
    measured = fmean(values) if check.over == "mean" else worst(values)
    holds = (check.at_least is None or measured >= check.at_least) and (
        check.at_most is None or measured <= check.at_most
    )
    return Verdict(says=check.says, measured=measured, wanted=wanted, holds=holds, points=len(values))


def _fits(result: PointResult, where: Mapping[str, object]) -> bool:
    return all(result.value(name) in (None, value) for name, value in where.items())


def _means(results: Sequence[PointResult], check: Check) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for result in results:
        if check.metric in result.metrics:
            found.setdefault(result.question(check.ignoring), []).append(result.metrics[check.metric])
    return {question: fmean(values) for question, values in found.items()}


def _other(theirs: Mapping[str, float], others: Sequence[PointResult], question: str, check: Check) -> float | None:
    if question in theirs:
        return theirs[question]
    dataset, asked = json.loads(question)
    near = [
        result.metrics[check.metric]
        for result in others
        if result.dataset == dataset
        and check.metric in result.metrics
        and all(
            json.loads(json.dumps(value, default=str)) == asked.get(name)
            for name, value in result.axes.items()
            if name in asked and value is not None
        )
    ]
    return fmean(near) if near else None


class Compared(BaseModel, frozen=True):
    """A number printed in the paper beside the one measured here."""

    where: dict[str, object]
    metric: str
    paper: float
    measured: float


def compare_with_paper(results: Sequence[PointResult], values: Sequence[PaperValue]) -> list[Compared]:
    """Return what the paper prints beside what was measured, where there is anything to compare."""
    found = []
    for value in values:
        asked = [result.metrics for result in results if result.asks(value.where)]
        same = [metrics[value.metric] for metrics in asked if value.metric in metrics]
        if same:
            found.append(Compared(where=value.where, metric=value.metric, paper=value.value, measured=fmean(same)))
    return found
