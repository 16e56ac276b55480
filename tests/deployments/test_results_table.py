"""The table of results at the width of a pipe: what is proved can be read."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from deployments.cli.training import _guessing, results_table
from tasks.tracking.results import shown_metric, shown_metrics
from tests.support.command_line import CommandLine
from tests.tasks.tracking.test_figures import a_result


def test_a_noisy_measure_leaves_room_for_what_is_proved() -> None:
    result = a_result(
        algorithm="secagg-output-perturbation",
        claim={"statement": "(epsilon, delta)-DP by zCDP", "flaw": ""},
        accuracy=0.841,
        epsilon_spent=0.1,
        metrics={
            "accuracy": 0.841,
            "accuracy_low": 0.518,
            "accuracy_high": 0.997,
            "balanced_accuracy": 0.683,
            "balanced_accuracy_low": 0.0,
            "balanced_accuracy_high": 1.0,
            "held_out_rows": 3921.0,
        },
        measured_on="held-out rows, noisy",
    )
    out = io.StringIO()
    Console(file=out, width=132).print(results_table([result]))
    header = next(line for line in out.getvalue().splitlines() if "trust" in line)
    assert header.split() == [
        "algorithm", "trust", "proved", "claim", "ε", "spent", "δ", "spent", "accuracy", "balanced", "seconds"
    ]  # fmt: skip
    text = " ".join(line for line in out.getvalue().split())
    assert "0.841" in text
    assert "(0.518" in text
    assert "0.683" not in text, "a number whose margin covers everything is not printed"
    assert shown_metric(result, "balanced_accuracy") == "cannot be measured at this budget (3,921 rows, ε = 0.1)"
    assert "balanced_accuracy" not in shown_metrics(result, result.metrics)
    assert "secagg-output-perturbation" in out.getvalue()


@pytest.mark.parametrize(("label_range", "high", "says"), [((0.0, 100.0), 1.5, True), ((0.0, 0.5), 0.5, False)])
def test_an_error_is_measured_in_the_unit_of_its_label(
    label_range: tuple[float, float], high: float, says: bool
) -> None:
    """An error of at most 1.5 years in 100 is known; one of at most half of a range of a half is not."""
    result = a_result(metrics={"mae": 0.4, "mae_low": 0.0, "mae_high": high, "held_out_rows": 50.0})
    dataset = result.identity.dataset.model_copy(update={"label_range": label_range})
    result = result.model_copy(update={"identity": result.identity.model_copy(update={"dataset": dataset})})
    assert (shown_metric(result, "mae", "g") == f"0.4 (0 to {high:g})") is says
    assert ("cannot be measured" in shown_metric(result, "mae")) is not says
    assert ("mae" in shown_metrics(result, result.metrics)) is says


@pytest.mark.parametrize(("high", "rate", "says"), [(0.58, 0.96, True), (0.84, 0.97, False), (0.58, 0.6, False)])
def test_a_model_that_hardly_predicts_a_rare_class_says_what_does(high: float, rate: float, says: bool) -> None:
    """By the margins: 0.58 at most is near guessing; where classes are alike in size nothing is rare."""
    metrics = {"balanced_accuracy": 0.54, "balanced_accuracy_high": high, "majority_rate_low": rate}
    said = " ".join(_guessing([a_result(metrics=metrics, classes=("honest", "fraud"))]))
    assert ("--class-weight balanced" in said) is says


@pytest.mark.parametrize("words", [("results",), ("datasets", "iris", "--sql")], ids=" ".join)
def test_a_query_that_takes_longer_than_the_variable_says_is_stopped(
    words: tuple[str, ...], commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of the operations page, by the command lines that it shows."""
    if words[0] == "datasets":
        assert commands("ingest", "iris", "--public").code == 0
    monkeypatch.setenv("UNITBALL_SQL_SECONDS", "0.2")
    endless = "SELECT count(*) FROM range(10000000000) a, range(10000) b"
    commands(*words, endless).refused(2, "longer than 0.2 s", "UNITBALL_SQL_SECONDS")
