"""The table of results at the width of a pipe: what is proved can be read."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

from deployments.cli.results_table import _measurements, results_table, shown_results
from dpalgos.metrics import class_names, metrics_of_confusion, recalls
from storage.refs import Visibility
from tasks.planning.resolution import ON_BASIS
from tasks.tracking import reporting
from tasks.tracking.results import RunResult, at_this_budget, by_class, rests_on, shown_metric
from tests.support.command_line import CommandLine
from tests.tasks.tracking.test_figures import a_result, decided


def margins_of(low: float, high: float) -> dict[str, float]:
    """Accuracy and balanced accuracy in the middle of one margin, of noisy counts."""
    each = {"": (low + high) / 2, "_low": low, "_high": high}
    return {f"{name}{end}": value for name in ("accuracy", "balanced_accuracy") for end, value in each.items()} | {
        "held_out_rows": 190.0
    }


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
    assert "balanced_accuracy" not in result.metrics.known()
    assert "secagg-output-perturbation" in out.getvalue()


@pytest.mark.parametrize(("label_range", "high", "says"), [((0.0, 100.0), 1.5, True), ((0.0, 0.5), 0.5, False)])
def test_an_error_is_measured_in_the_unit_of_its_label(
    label_range: tuple[float, float], high: float, says: bool
) -> None:
    """An error of at most 1.5 years in 100 is known; one of at most half of a range of a half is not."""
    numbers = {"mae": 0.4, "mae_low": 0.0, "mae_high": high, "held_out_rows": 50.0}
    result = a_result().model_copy(update={"metrics": decided(numbers, label_range[1] - label_range[0])})
    assert (shown_metric(result, "mae", "g") == f"0.4 (0 to {high:g})") is says
    assert ("cannot be measured" in shown_metric(result, "mae")) is not says
    assert ("mae" in result.metrics.known()) is says


_NOTHING = {**margins_of(0.3, 0.6), "majority_rate": 0.5}
_TABLES: dict[str, tuple[dict[str, float], object, bool]] = {
    "guessed by the largest class": ({}, [[0, 60, 0], [0, 340, 0], [0, 100, 0]], True),
    "guessed by chance": ({}, [[19, 21, 20], [118, 111, 111], [31, 35, 34]], True),
    "one class never occurs": ({}, [[0, 60, 0], [0, 340, 0], [0, 0, 0]], True),
    "rare classes are found": ({}, [[50, 5, 5], [120, 110, 110], [10, 10, 80]], False),
    "frequent classes are found": ({}, [[0, 60, 0], [0, 340, 0], [0, 30, 70]], False),
    "noise hides the difference": (_NOTHING, [], True),
    "a margin is above": ({**_NOTHING, "accuracy_low": 0.52}, [], False),
    "the AUC is above": ({**_NOTHING, "auc": 0.7, "auc_low": 0.6, "auc_high": 0.8}, [], False),
    "nothing can be measured": ({**margins_of(0.0, 1.0), "majority_rate": 0.5}, [], False),
}


@pytest.mark.parametrize("name", _TABLES)
def test_a_model_no_better_than_guessing_is_said_to_be_so(name: str) -> None:
    """In the terminal and on the card, for any number of classes and any frequencies."""
    metrics, counts, says = _TABLES[name]
    if counts:
        metrics = metrics_of_confusion(np.array(counts, dtype=np.float64))
    confusion = tuple(map(tuple, np.array(counts, dtype=float).tolist()))
    result = a_result(metrics=metrics, confusion=confusion, classes=("a", "b", "c"), measured_on="test rows")
    said = list(_measurements([result]))
    assert any("better than guessing" in line for line in said) is says
    assert ("better than guessing" in reporting._accuracy(result)) is says


def test_one_warning_of_several_models_names_them() -> None:
    results = [a_result(metrics=_NOTHING, classes=("a", "b", "c"), measured_on="test rows") for _ in range(2)]
    (said,) = (line for line in _measurements(results) if "better than guessing" in line)
    assert said.startswith(f"{results[0].algorithm}, {results[1].algorithm}: Warning")


def test_a_model_that_predicts_one_class_says_which() -> None:
    """Also where it was not measured."""
    result = a_result(predicts_only="b", classes=("a", "b"))
    for said in ("\n".join(_measurements([result])), reporting._measured(result.identity.dataset, result)):
        assert "predicts `b` for every row" in said


@pytest.mark.parametrize(("high", "rate", "says"), [(0.58, 0.96, True), (0.84, 0.97, False), (0.58, 0.6, False)])
def test_a_model_that_hardly_predicts_a_rare_class_says_what_does(high: float, rate: float, says: bool) -> None:
    """By the margins: 0.58 at most is near guessing; where classes are alike in size nothing is rare."""
    metrics = {
        "balanced_accuracy": 0.54,
        "balanced_accuracy_high": high,
        "majority_rate_low": rate,
        "held_out_rows": 500.0,
    }
    said = " ".join(_measurements([a_result(metrics=metrics, classes=("honest", "fraud"))]))
    assert ("--class-weight balanced" in said) is says


def of_people(result: RunResult) -> RunResult:
    """The same run on a table of people."""
    dataset = result.identity.dataset.model_copy(update={"person": "patient"})
    identity = result.identity.model_copy(update={"dataset": dataset})
    where = (result.measured_on or "").replace("rows", "people") or None
    return result.model_copy(update={"identity": identity, "measured_on": where})


def margins(low: float, high: float, *names: str) -> dict[str, float]:
    """Numbers in the middle of their margins, which are alike."""
    middle = (low + high) / 2
    return {
        one: value for name in names for one, value in ((name, middle), (f"{name}_low", low), (f"{name}_high", high))
    }


NAMES = ("accuracy", "balanced_accuracy", "majority_rate", "auc", "recall_well", "recall_ill")
PREDICTED = ("predicted_well", "predicted_ill")
KNOWN = {**margins(0.55, 0.7, *NAMES), **margins(0.2, 0.45, *PREDICTED), "accuracy_noise": 0.02, "held_out_rows": 190.0}
UNKNOWN = {**margins(0.0, 1.0, *NAMES, *PREDICTED), "accuracy_noise": 1400.0, "held_out_rows": 190.0}
HALF = {**KNOWN, **margins(0.0, 1.0, "majority_rate", "recall_ill", "predicted_well", "auc")}
ERRORS = {**margins(0.2, 0.4, "mae"), "mse": 0.1, "r2": 0.3, "mae_noise": 0.02, "r2_noise": 0.1, "held_out_rows": 190.0}
NO_ERRORS = {**ERRORS, **margins(0.0, 1.0, "mae"), "r2": -7.0}
AIM = {"aim_probability": 0.31, **margins(0.3, 0.6, "aim_recall", "aim_precision"), **margins(0.0, 1.0, "aim_f1")}
SITUATIONS: dict[str, tuple[dict[str, float], str | None, tuple[str, ...]]] = {
    "measured": (KNOWN, "held-out rows, noisy", ("well", "ill")),
    "nothing known": (UNKNOWN, "held-out rows, noisy", ("well", "ill")),
    "half known": (HALF, "held-out rows, noisy", ("well", "ill")),
    "one class": (margins(0.55, 0.7, "accuracy") | {"held_out_rows": 190.0}, "held-out rows, noisy", ("well",)),
    "exact": ({"accuracy": 0.9, "majority_rate": 0.5, "auc": 1.0}, "test rows", ("well", "ill")),
    "not measured": ({}, None, ("well", "ill")),
    "errors": (ERRORS, "held-out rows, noisy", ()),
    "errors unknown": (NO_ERRORS, "held-out rows, noisy", ()),
    "a threshold": (KNOWN | AIM, "held-out rows, noisy", ("well", "ill")),
}
# What sentences looked like that were put together from a number that was none.
BROKEN = re.compile(
    r"(of|is|gives|give|most) cannot be|at most 1\d\d %|\bnan\b|\binf\b|None|  |: ;|: \.|\(\)|;;|,,|\b0 to 1\b|\be\+0|'"
)


@pytest.mark.parametrize("people", [False, True])
@pytest.mark.parametrize("name", SITUATIONS)
def test_whatever_was_measured_is_said_in_sentences(name: str, people: bool) -> None:
    """The attack: numbers that cannot be measured in the middle of sentences made for numbers."""
    metrics, where, classes = SITUATIONS[name]
    result = a_result(metrics=metrics, classes=classes, measured_on=where, epsilon_spent=0.5)
    if "aim_probability" in metrics:
        result = result.model_copy(update={"identity": result.identity.model_copy(update={"aim": "recall>=0.9"})})
    visibility = Visibility.PUBLIC if where == "test rows" else Visibility.PRIVATE
    dataset = result.identity.dataset.model_copy(update={"visibility": visibility})
    result = result.model_copy(update={"identity": result.identity.model_copy(update={"dataset": dataset})})
    if people:
        result = of_people(result)
    out = io.StringIO()
    console = Console(file=out, width=400)
    for part in shown_results([result], elsewhere=True):
        console.print(part, soft_wrap=True, highlight=False, markup=False) if isinstance(part, str) else None
    console.print(reporting._measured(result.identity.dataset, result), soft_wrap=True)
    said = out.getvalue()
    assert not BROKEN.search(said.replace("run's", "")), said
    for line in filter(None, said.splitlines()):
        assert line[0].isupper() or line[0].isdigit() or line.startswith(("R²", "See")), line
    # Of people every number says so, or speaks of them; of rows none does.
    assert ("by person" in said) is (people and bool(metrics)), said
    assert ("1/k" in said) is (people and bool(metrics))
    assert ("held-out rows" in said) is (not people and where is not None and "held-out" in where)
    if any(one.endswith("_low") for one in metrics):
        assert "--test-fraction" in said, "the way to a narrower margin"


def test_headings_of_metrics_say_what_they_weigh() -> None:
    result = a_result(metrics=KNOWN, classes=("well", "ill"), measured_on="held-out rows, noisy", epsilon_spent=0.5)
    headings = [str(one.header) for one in results_table([of_people(result)]).columns]
    assert {"accuracy by person", "balanced by person"} <= set(headings)
    assert {"accuracy", "balanced"} <= {str(one.header) for one in results_table([result]).columns}


def test_the_largest_share_predicted_is_rounded_up() -> None:
    """0.90449 was "at most 90.4 %"."""
    metrics = {**KNOWN, "predicted_well_high": 0.90449, "predicted_ill_high": 0.9999}
    said = " ".join(_measurements([a_result(metrics=metrics, classes=("well", "ill"))]))
    assert "Predicts `well` for at most 90.5 % of the held-out rows" in said
    assert "`ill` for" not in said, "at most 100 % says nothing"


def test_what_a_run_spends_beyond_what_was_asked_has_a_reason() -> None:
    """ε = 1.146 stood where 1 was asked for, with nothing beside it."""
    result = a_result(metrics=KNOWN, classes=("well", "ill"), epsilon_spent=1.1460001, epsilon_charged=0.99999999)
    told = [part for part in shown_results([result], elsewhere=True) if isinstance(part, str)]
    assert any("ε spent = 1.147 is this run's own ε = 1 composed with the counts of its columns" in one for one in told)
    # Earlier releases do not measure; a model of components has a name that was not asked for.
    assert at_this_budget(result).endswith("ε = 1)")
    identity = result.identity.model_copy(update={"system": f"noisy-gd{ON_BASIS}"})
    based = result.model_copy(update={"identity": identity, "algorithm": identity.system})
    assert f"clinic.noisy-gd{ON_BASIS}" in rests_on(based)
    plain = a_result(metrics=KNOWN, classes=("well", "ill"), epsilon_spent=1.0)
    assert not any("composed with" in str(one) for one in shown_results([plain], elsewhere=True))


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


@pytest.mark.parametrize("classes", [("<=50K", ">50K"), ("<=50K", ">=50K"), ("low", "high")])
def test_classes_are_called_as_they_are(classes: tuple[str, str]) -> None:
    """MLflow takes neither `<` nor `>` in a metric's name; people read the class."""
    counts = np.array([[80.0, 20.0], [30.0, 70.0]])
    names = class_names(classes)
    margins = {
        f"predicted_{name}{end}": value for name in names for end, value in (("", 0.5), ("_low", 0.4), ("_high", 0.6))
    }
    result = a_result(classes=classes, metrics={**recalls(counts, classes), **margins, "held_out_rows": 200.0})
    text = " ".join(by_class(result, 20))
    for name, called, recall in zip(names, classes, (0.8, 0.7), strict=True):
        assert f"{called} {recall:.3f}" in text
        assert f"`{called}` for at most 60 %" in text
        assert name == called or name not in text.replace(called, "")


def test_r2_that_cannot_be_measured_says_why() -> None:
    metrics = decided({"mae": 0.4, "mae_low": 0.3, "mae_high": 0.5, "held_out_rows": 50.0}, 100.0)
    metrics.refuse("r2", "the noise hides it", (-np.inf, 1.0))
    result = a_result().model_copy(update={"metrics": metrics})
    assert "the noise hides it" in " ".join(_measurements([result]))
