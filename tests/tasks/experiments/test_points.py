"""Derived metrics, verdicts and comparison with the paper's numbers, on results made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.experiments.comparisons import Verdict, compare_with_paper, derive, verdicts
from tasks.experiments.pages import means_table
from tasks.experiments.point_results import PointResult
from tasks.experiments.specifications import Check, Derived, PaperValue


def a_row(label: str, accuracy: float, *, dataset: str = "d", status: Any = "proved", **axes: Any) -> PointResult:
    return PointResult(
        label=label, dataset=dataset, algorithm=label, trust="local", status=status, axes=axes,
        metrics={"accuracy": accuracy},
    )  # fmt: skip


RESULTS = [
    a_row("ours", 0.6, epsilon=1.0, seeds=0),
    a_row("ours", 0.8, epsilon=1.0, seeds=1),
    a_row("ours", 0.9, epsilon=2.0, seeds=0),
    a_row("theirs", 0.5, epsilon=1.0, seeds=0, status="unproved"),
    a_row("theirs", 0.95, epsilon=2.0, seeds=0, status="unproved"),
    a_row("plain", 1.0, seeds=0, status="non-private"),
]


def measured(**check: Any) -> tuple[float | None, bool | None, int]:
    (verdict,) = verdicts(RESULTS, [Check(says="it", **check)])
    return verdict.measured, verdict.holds, verdict.points


def test_seeds_are_averaged_before_points_are() -> None:
    # Mean over (0.6, 0.8) and 0.9, not over the three results (0.7667).
    value, holds, points = measured(of="ours", how="value", at_least=0.8)
    assert value == pytest.approx(0.8)
    assert (holds, points) == (True, 2)


def test_points_are_compared_at_the_same_question() -> None:
    value, holds, points = measured(of="ours", against="theirs", at_least=0.0)
    assert value == pytest.approx(((0.7 - 0.5) + (0.9 - 0.95)) / 2)
    assert (holds, points) == (True, 2)


def test_the_worst_point_is_on_the_side_that_counts() -> None:
    assert measured(of="ours", against="theirs", over="worst", at_least=0.0)[0] == pytest.approx(-0.05)
    assert measured(of="ours", against="theirs", over="worst", at_least=0.0)[1] is False
    assert measured(of="ours", against="theirs", over="worst", at_most=0.0)[0] == pytest.approx(0.2)


def test_a_reference_without_the_axis_stands_beside_every_point() -> None:
    value, _, points = measured(of="ours", against="plain", at_least=-1.0)
    assert value == pytest.approx(((0.7 - 1) + (0.9 - 1)) / 2)
    assert points == 2


def test_where_chooses_points() -> None:
    assert measured(of="ours", how="value", where={"epsilon": 2.0}, at_least=0.0)[0] == pytest.approx(0.9)


def test_two_points_that_differ_on_purpose_are_compared_if_told_so() -> None:
    results = [a_row("low", 0.2, epsilon=0.1), a_row("high", 0.4, epsilon=1.0)]
    check = Check(says="it", of="low", against="high", how="ratio", at_least=0.9)
    assert verdicts(results, [check])[0].holds is None
    told = verdicts(results, [check.model_copy(update={"ignoring": ["epsilon"]})])[0]
    assert told.measured == pytest.approx(0.5)
    assert told.holds is False


def test_nothing_measured_is_no_verdict() -> None:
    assert measured(of="absent", how="value", at_least=0.0) == (None, None, 0)
    assert measured(of="ours", metric="auc", how="value", at_least=0.0) == (None, None, 0)


def test_derived_metrics_are_against_the_reference_of_the_same_match() -> None:
    results = [*RESULTS, a_row("plain", 0.5, dataset="e"), a_row("ours", 0.75, dataset="e", epsilon=1.0)]
    wanted = Derived(name="loss", metric="accuracy", against={"label": "plain"}, match=["dataset"], how="difference")
    derived = derive(results, [wanted])
    assert [result.metrics["loss"] for result in derived if result.label == "ours"] == pytest.approx(
        [-0.4, -0.2, -0.1, 0.25]
    )
    absolute = derive(results, [wanted.model_copy(update={"how": "absolute-difference"})])
    assert min(result.metrics["loss"] for result in absolute) == 0.0
    without = derive([result for result in results if result.label != "plain"], [wanted])
    assert not any("loss" in result.metrics for result in without)


def test_the_papers_numbers_stand_beside_the_mean_of_the_same_rows() -> None:
    values = [
        PaperValue(where={"label": "ours", "epsilon": 1.0}, metric="accuracy", value=0.71),
        PaperValue(where={"label": "ours", "dataset": "other"}, metric="accuracy", value=0.5),
    ]
    (found,) = compare_with_paper(RESULTS, values)
    assert found.paper == 0.71
    assert found.measured == pytest.approx(0.7)


def test_a_table_has_a_line_a_question_and_the_spread_over_seeds() -> None:
    table = means_table(RESULTS, ["epsilon"], ["accuracy", "auc"])
    assert table.head == ["data set", "series", "proved", "epsilon", "accuracy", "runs"]
    assert ["d", "ours", "proved", "1.0", "0.7 (0.6 – 0.8)", "2"] in table.body
    assert ["d", "plain", "no privacy", "–", "1", "1"] in table.body
    assert len(table.body) == 5


def test_elsewhere_than_at_the_papers_scale_nothing_is_confirmed_or_refuted() -> None:
    told = Verdict(says="better", measured=0.1, wanted=">= 0.5", holds=False, points=2)
    assert told.summary == "does not hold"
    elsewhere = told.model_copy(update={"at_scale": False})
    assert elsewhere.summary == "not tested at the paper's scale (here it does not hold)"
    assert elsewhere.model_copy(update={"holds": None}).summary == "not measured"
