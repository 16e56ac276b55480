"""Printed results of runs on one data set: a table, and the sentences below it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from deployments.cli.common import (
    coloured,
    rounded,
    table,
)
from dpalgos.sentences import sentence

if TYPE_CHECKING:
    from tasks.tracking.results import RunResult


_HEADINGS = {"accuracy": "accuracy", "balanced_accuracy": "balanced", "mae": "mean absolute error", "r2": "R²"}
_MOST_CLASSES = 20
# From this share of the most frequent class on others are rare, and up to this much above guessing hardly predicted.
_RARE, _HARDLY = 0.8, 0.15
_SECOND = ("balanced_accuracy", "r2")


def shown_results(results: Sequence[RunResult], *, elsewhere: bool = False) -> Iterator[RenderableType]:
    """Yield the results of runs on one data set, for people; ``elsewhere``: the accounts belong to separate parties."""
    from tasks.runtime.settings import server_address
    from tasks.tracking.results import rests_on

    yield results_table(results)
    yield from filter(None, map(rests_on, results))
    yield from _measurements(results)
    yield from _groups(results)
    for one in results:
        if one.claim and one.claim.get("flaw"):
            sound = f" Sound counterpart: {one.sound_counterpart}." if one.sound_counterpart else ""
            yield f"✗ {one.algorithm}: {sentence(str(one.claim['flaw']))}{sound}"
    if not elsewhere:
        yield from _spending(results)
    where = server_address() or f"{_program()} serve"
    yield f"See the runs in MLflow and Prefect: {where}"


def results_table(results: Sequence[RunResult]) -> Table:
    """Return the table a person reads: what ran, what is proved and claimed, what it cost, how well it does."""
    from tasks.tracking.results import by_person

    main, other = ("mae", "r2") if any("mae" in one.metrics for one in results) else ("accuracy", "balanced_accuracy")
    measured = (f"{_HEADINGS[main]}{by_person(results[0])}", f"{_HEADINGS[other]}{by_person(results[0])}")
    numbers = ("ε spent", "δ spent", *measured, "seconds")
    rows = (
        (
            result.algorithm,
            result.trust,
            coloured("none", "red")
            if result.proved is None
            else f"{result.proved.summary()}, {result.proved.numerics}",
            _claimed(result),
            rounded(result.epsilon_spent, 4),
            rounded(result.delta_spent, 2),
            _measured(result, main, ".3f" if main == "accuracy" else ".4g"),
            _measured(result, other, ".3f"),
            ("–" if result.seconds is None else f"{result.seconds:.1f}") + (" (cached)" if result.cached else ""),
        )
        for result in results
    )
    title = f"{results[0].dataset}: cost and accuracy of each algorithm"
    shown = table(("algorithm", "trust", "proved", "claim", *numbers), rows, title=title, right=numbers)
    for column in shown.columns:
        # What is proved, claimed and measured on what is text, which may be broken.
        column.no_wrap = str(column.header) not in ("proved", "claim", *measured)
    return shown


def _claimed(result: RunResult) -> str | Text:
    claim = result.claim or {"statement": "–"}
    statement = str(claim["statement"])
    return coloured(statement, "").append(" ✗", "red") if claim.get("flaw") else statement


def _measured(result: RunResult, name: str, form: str) -> str:
    """Return a metric, its margin, and what it speaks of where that is not public test rows."""
    from tasks.tracking.results import NOT_MEASURED, shown_metric

    if name in result.metrics and not result.metrics.is_known(name):
        # The sentences below say with what.
        return NOT_MEASURED
    of_test_rows = name in _SECOND or (result.measured_on or "test").startswith("test")
    return shown_metric(result, name, form) + ("" if of_test_rows else f" ({result.measured_on})")


def _measurements(results: Sequence[RunResult]) -> Iterator[str]:
    """Yield what the metrics are to be compared with, how exact they are, and what they are of."""
    from tasks.tracking.results import (
        NOT_MEASURED,
        about_bound,
        about_people,
        at_this_budget,
        guessing,
        margins_are,
        no_better,
    )

    for result in results:
        main = "mae" if "mae" in result.metrics else "accuracy"
        if main in result.metrics and not result.metrics.is_known(main):
            whose = f" of {result.algorithm}" if len(results) > 1 else ""
            yield f"The {_HEADINGS[main]}{whose} {NOT_MEASURED} {at_this_budget(result)}."
    mean = f"balanced is the mean recall of the classes, {1 / max(len(results[0].classes), 2):.2g} by guessing."
    known = any("balanced_accuracy" in one.metrics and one.metrics.is_known("balanced_accuracy") for one in results)
    for line in guessing(results):
        guessed = any(one.metrics.is_known("majority_rate") for one in results)
        yield f"{line.removesuffix('.')}; {mean}" if guessed and known else line
        known = known and not guessed
    if known:
        yield mean.capitalize()
    warned: dict[str, list[str]] = {}
    for result in results:
        for said in no_better(result):
            warned.setdefault(said, []).append(result.algorithm)
    yield from (f"{', '.join(whose)}: {said}" if len(results) > 1 else said for said, whose in warned.items())
    for one in results:
        if "r2" in one.metrics and one.metrics.is_known("mae") and not one.metrics.is_known("r2"):
            whose = f" of {one.algorithm}" if len(results) > 1 else ""
            yield f"R²{whose} {NOT_MEASURED} {at_this_budget(one)}: {one.metrics.reasons['r2']}."
    if any("r2" in one.metrics for one in results):
        bound = next(filter(None, map(about_bound, results)), "")
        yield f"R² is 0 for the best constant. {bound}".rstrip()
    if len(results) == 1:
        yield from _of_one(results[0])
    margins = list(dict.fromkeys(filter(None, map(margins_are, results))))
    if margins:
        yield " ".join([*margins[:1], *_noise(results)])
    yield from filter(None, [next(filter(None, map(about_people, results)), "")])


def _of_one(result: RunResult) -> Iterator[str]:
    """Yield what is said of a run that stands alone: its curve, its classes and its threshold."""
    from tasks.tracking.results import (
        NOT_MEASURED,
        at_this_budget,
        at_threshold,
        by_class,
        by_person,
        positive_class,
        shown_metric,
    )

    measured = result.metrics
    if "auc" in measured and result.metrics.is_known("auc"):
        yield f"Area under the ROC curve{by_person(result)}: {shown_metric(result, 'auc')}; 0.5 by guessing."
    elif "auc" in measured:
        yield f"The area under the ROC curve {NOT_MEASURED} {at_this_budget(result)}."
    if "calibration_error" in measured and result.metrics.is_known("calibration_error"):
        error = shown_metric(result, "calibration_error")
        yield f"Calibration error of the probabilities{by_person(result)}: {error}; 0 if they are right."
    yield from [*positive_class(result), *by_class(result, _MOST_CLASSES), *at_threshold(result)]
    guessed = measured.get("majority_rate_low", measured.get("majority_rate", 0.0))
    balanced = measured.get("balanced_accuracy_high", measured.get("balanced_accuracy", 1.0))
    if (
        "aim_probability" not in measured
        and guessed >= _RARE
        and balanced <= 1.0 / max(len(result.classes), 2) + _HARDLY
    ):
        yield (
            "Rare classes are hardly predicted. --class-weight balanced trains for them; of two classes, "
            "--roc --aim balanced chooses a threshold (page Predict a rare class)."
        )


def _noise(results: Sequence[RunResult]) -> Iterator[str]:
    """Yield, of what was measured, how much of the margin is noise, and that nothing was trained on these rows."""
    from tasks.tracking.results import read_before

    noises = [
        result.metrics[f"{name}_noise"]
        for result in results
        for name in ("accuracy", "mae")
        if f"{name}_noise" in result.metrics and result.metrics.is_known(name)
    ]
    if noises:
        yield f"The noise alone has a standard deviation of {max(noises):.2g}."
    several = results[0].identity.dataset.unit.several
    yield f"No model was trained on the held-out {several}. Measuring on them took no budget from the training."
    yield from filter(None, dict.fromkeys(map(read_before, results)))


def _groups(results: Sequence[RunResult]) -> Iterator[RenderableType]:
    """Yield how each model does for each group, where runs were measured so."""
    from tasks.tracking.results import about_groups, group_tables

    measured = [one for one in results if one.by_group is not None]
    for one in measured:
        title = f"By {one.by_group.column if one.by_group else ''}" + (f": {one.algorithm}" if len(results) > 1 else "")
        for of, (headings, *lines) in group_tables(one):
            yield table(headings, lines, title=f"{title}: {of}" if of else title, right=headings[1:])
    if measured:
        yield about_groups(measured[0])


def _spending(results: Sequence[RunResult]) -> Iterator[str]:
    """Yield, for private rows, what is left of their budget, at which delta, and how a model of them is measured."""
    from tasks.accounts.reports import budget_report, cap_of
    from tasks.accounts.room import OneMore

    report = budget_report(results[0].dataset)
    if report["cap"] is None:
        return
    name, cap, left = results[0].dataset, report["cap"], report["left"]
    spent = "unbounded" if report["epsilon_spent"] is None else rounded(report["epsilon_spent"], 4)
    if left is not None:
        yield OneMore(**left).said
    yield from (
        f"Account {report['account']}: all its runs together have spent ε = {spent} of {cap_of(report)} "
        f"at the cap's δ = {cap['delta']:g}. ε spent in the table is that of one run at its own δ (--delta). "
        f"More: {_program()} budget {name}",
        report["meaning"],
    )
    if all(one.measured_on is None for one in results):
        yield (
            "No accuracy: private rows are measured by a charged release alone, and this run holds none out "
            "(--no-evaluation, --test-fraction 0, or a --horizon)."
        )


def _program() -> str:
    """Return how this command is started again: by its name where the shell finds the one beside this Python."""
    beside = Path(sys.executable).parent / "unitball"
    path = shutil.which("unitball")
    return "unitball" if path and Path(path).resolve() == beside.resolve() else str(beside)
