"""Comparisons of an experiment's results: with a reference, with claims (a verdict each), with a paper's numbers."""

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import pandas as pd
from pydantic import BaseModel

from tasks.experiments.point_results import WHO, PointResult, column, lines_at, table_of, values_of
from tasks.experiments.specifications import NOISE_AXES, Check, Derived, PaperValue

_HOW: Mapping[str, Callable[[pd.Series, pd.Series], pd.Series]] = MappingProxyType(
    {
        "value": lambda one, other: one,
        "difference": operator.sub,
        "absolute-difference": lambda one, other: abs(one - other),
        "ratio": operator.truediv,
    }
)


def derive(results: Sequence[PointResult], wanted: Sequence[Derived]) -> list[PointResult]:
    """Add metrics that compare each result with the mean of its reference's; without a reference there is none."""
    derived = list(results)
    for comparison in wanted:
        match, metric = [column(name) for name in comparison.match], f"metric_{comparison.metric}"
        table = table_of(derived)
        table = table.reindex(columns=list(dict.fromkeys([*table, *match, metric])))
        references = lines_at(table, comparison.against).groupby(match, dropna=False)[metric].mean().rename("reference")
        values = _HOW[comparison.how](table[metric], table.merge(references, how="left", on=match)["reference"])
        derived = [
            result if pd.isna(value) else result.with_metric(comparison.name, float(value))
            for result, value in zip(derived, values, strict=True)
        ]
    return derived


class Verdict(BaseModel, frozen=True):
    """A sentence of the paper next to the number measured here.

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
    def shown(self) -> str:
        """The measurement, for people."""
        return "–" if self.measured is None else f"{self.measured:.4g}"

    @property
    def summary(self) -> str:
        """The verdict in a few words."""
        outcome = {True: "holds", False: "does not hold", None: "not measured"}[self.holds]
        return (
            outcome if self.at_scale or self.holds is None else f"not tested at the paper's scale (here it {outcome})"
        )


def verdicts(results: Sequence[PointResult], checks: Sequence[Check], *, at_scale: bool = True) -> list[Verdict]:
    """Return the verdict of each check, measured at the paper's scale or elsewhere."""
    table = table_of(results)
    return [_verdict(table, check, at_scale) for check in checks]


def _verdict(table: pd.DataFrame, check: Check, at_scale: bool) -> Verdict:
    # Who answers, and with which noise, is not part of the question.
    own = {column(name) for name in (*WHO, *NOISE_AXES, *check.ignoring)} | {f"axis_{name}" for name in WHO}
    axes = ["dataset", *(name for name in table if name.startswith("axis_") and name not in own)]
    theirs = lines_at(lines_at(table, {"label": check.against}), check.where, or_none=True)
    values = []
    for question, mine in lines_at(table, {"label": check.of, **check.where}).groupby(axes, dropna=False, sort=False):
        # A reference without the axis (no noise, hence no epsilon) stands beside every point of its data set.
        there = {name: value for name, value in zip(axes, question, strict=True) if pd.notna(value)}
        measured, other = values_of(mine, check.metric), values_of(lines_at(theirs, there, or_none=True), check.metric)
        if len(measured) and (check.against is None or len(other)):
            how = _HOW["value" if check.against is None else check.how]
            values.append(float(how(measured.mean(), other.mean())))
    bounds = [(">= ", check.at_least), ("<= ", check.at_most)]
    wanted = " and ".join(f"{sign}{bound:g}" for sign, bound in bounds if bound is not None)
    found, holds = None, None
    if values:
        worst = min if check.at_least is not None else max
        found = float(pd.Series(values).mean()) if check.over == "mean" else worst(values)
        holds = (check.at_least is None or found >= check.at_least) and (
            check.at_most is None or found <= check.at_most
        )
    return Verdict(says=check.says, measured=found, wanted=wanted, holds=holds, points=len(values), at_scale=at_scale)


class Compared(BaseModel, frozen=True):
    """A number printed in the paper next to the one measured here."""

    where: dict[str, object]
    metric: str
    paper: float
    measured: float


def compare_with_paper(results: Sequence[PointResult], values: Sequence[PaperValue]) -> list[Compared]:
    """Return the paper's numbers next to the measured ones, where both exist."""
    table = table_of(results)
    same = [(value, values_of(lines_at(table, value.where), value.metric)) for value in values]
    return [
        Compared(where=value.where, metric=value.metric, paper=value.value, measured=measured_value.mean())
        for value, measured_value in same
        if len(measured_value)
    ]
