"""Results of training runs as a person reads them: a table, its footnotes, and where to look further."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from deployments.cli.common import table
from dpalgos.validation import rounded_up

if TYPE_CHECKING:
    from tasks.tracking.results import Proved, RunResult


_HEADINGS = {"accuracy": "accuracy", "balanced_accuracy": "balanced", "mae": "mean absolute error", "r2": "R²"}
_MOST_CLASSES = 20
# From this share of the most frequent class on others are rare, and up to this much above guessing hardly predicted.
_RARE, _HARDLY = 0.8, 0.15
_SECOND = ("balanced_accuracy", "r2")


def _loss(proved: Proved | None) -> str:
    if proved is None:
        return "[red]none[/]"
    return f"{proved.summary()}, {proved.numerics}"


def _claimed(result: RunResult) -> str:
    if result.claim is None:
        return "–"
    text = str(result.claim["statement"])
    return f"{text} [red]✗[/]" if result.claim.get("flaw") else text


def _number(value: float | None, form: str = ".4g") -> str:
    return "–" if value is None else format(value, form)


def _spent(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{rounded_up(value, digits):g}"


def results_table(results: Sequence[RunResult]) -> Table:
    """Return the table a person reads: what ran, what is proved and claimed, what it cost, how well it does."""
    main, other = ("mae", "r2") if any("mae" in one.metrics for one in results) else ("accuracy", "balanced_accuracy")
    numbers = ("ε spent", "δ spent", _HEADINGS[main], _HEADINGS[other], "seconds")
    rows = (
        (
            result.algorithm,
            result.trust,
            _loss(result.proved),
            _claimed(result),
            _spent(result.epsilon_spent, 4),
            _spent(result.delta_spent, 2),
            _measured(result, main, ".3f" if main == "accuracy" else ".4g"),
            _measured(result, other, ".3f"),
            _number(result.seconds, ".1f") + (" (cached)" if result.cached else ""),
        )
        for result in results
    )
    title = f"{results[0].dataset}: what each algorithm costs and gives"
    shown = table(("algorithm", "trust", "proved", "claim", *numbers), rows, title=title, right=numbers)
    for column in shown.columns:
        # What is proved, claimed and measured on what is text, which may be broken.
        column.no_wrap = column.header not in ("proved", "claim", _HEADINGS[main], _HEADINGS[other])
    return shown


def _measured(result: RunResult, name: str, form: str) -> str:
    """Return a metric, its margin, and what it speaks of where that is not public test rows."""
    from tasks.tracking.results import shown_metric

    of_test_rows = name in _SECOND or result.measured_on in (None, "test rows")
    return shown_metric(result, name, form) + ("" if of_test_rows else f" ({result.measured_on})")


def _footnotes(results: Sequence[RunResult]) -> list[str]:
    return [
        f"✗ {one.algorithm}: {one.claim['flaw']}"
        + (f" Sound counterpart: {one.sound_counterpart}." if one.sound_counterpart else "")
        for one in results
        if one.claim and one.claim.get("flaw")
    ]


def _program(name: str) -> str:
    """Return how a program beside this Python is started: by name where the shell finds that one."""
    beside = Path(sys.executable).parent / name
    path = shutil.which(name)
    return name if path and Path(path).resolve() == beside.resolve() else str(beside)


def shown_results(results: Sequence[RunResult], *, elsewhere: bool = False) -> Iterator[RenderableType]:
    """Yield the results of runs on one data set, for people; ``elsewhere``: accounts are parties' of their own."""
    from tasks.runtime.settings import server_address

    yield results_table(results)
    yield from [*_guessing(results), *_footnotes(results), *([] if elsewhere else _spending(results))]
    where = server_address() or f"{_program('unitball')} serve"
    yield f"See the runs in MLflow and Prefect: {where}"


def _guessing(results: Sequence[RunResult]) -> list[str]:
    """Say what the metrics are to be compared with, and how exact they are."""
    from tasks.tracking.results import at_threshold, by_class, shown_metric

    rates = {shown_metric(one, "majority_rate") for one in results if "majority_rate" in one.metrics}
    notes = []
    if rates:
        classes = max(len(results[0].classes), 2)
        notes.append(
            f"Guessing the most frequent class gives an accuracy of {', '.join(sorted(rates))}; "
            f"balanced is the mean recall of the classes, {1 / classes:.2g} by guessing."
        )
    if any("r2" in one.metrics for one in results):
        notes.append("R² is 0 for guessing the mean.")
    if len(results) == 1:
        if "auc" in results[0].metrics:
            notes.append(f"Area under the ROC curve: {shown_metric(results[0], 'auc')}; 0.5 by guessing.")
        notes += [*by_class(results[0], _MOST_CLASSES), *at_threshold(results[0])]
        measured = results[0].metrics
        guessing = measured.get("majority_rate_low", measured.get("majority_rate", 0.0))
        balanced = measured.get("balanced_accuracy_high", measured.get("balanced_accuracy", 1.0))
        if (
            "aim_probability" not in measured
            and guessing >= _RARE
            and balanced <= 1.0 / max(len(results[0].classes), 2) + _HARDLY
        ):
            notes.append(
                "Rare classes are hardly predicted. --class-weight balanced trains for them; of two classes, "
                "--roc --aim balanced chooses a threshold (docs/rare-classes.md)."
            )
    noises = [one.metrics[name] for one in results for name in ("accuracy_noise", "mae_noise") if name in one.metrics]
    if noises:
        of_r2 = [one.metrics["r2_noise"] for one in results if "r2_noise" in one.metrics]
        also = f", of R² {max(of_r2):.2g}, predictions clipped to the declared range" if of_r2 else ""
        held_out = f"held-out {results[0].identity.dataset.unit.several}"
        notes.append(
            f"In brackets are 95 % margins, of the privacy noise and of the drawing of the {held_out} together. The "
            f"noise alone has a standard deviation of {max(noises):.2g}{also}. No model was trained on the {held_out}. "
            "Measuring on them took no budget from the training."
        )
    return notes


def _spending(results: Sequence[RunResult]) -> list[str]:
    """Say of private rows what is left of their budget, at which delta, and how a model of them is measured."""
    from tasks.accounts.budget import budget_report

    report = budget_report(results[0].dataset)
    if report["cap"] is None:
        return []
    name, cap = report["dataset"], report["cap"]
    spent = "unbounded" if report["epsilon_spent"] is None else _spent(report["epsilon_spent"], 4)
    notes = [
        f"Account {report['account']}: all its runs together have spent ε = {spent} of {cap['epsilon']:g} "
        f"at the cap's δ = {cap['delta']:g}. ε spent in the table is that of one run at its own δ (--delta). "
        f"More: {_program('unitball')} budget {name}",
        report["meaning"],
    ]
    if all(one.measured_on is None for one in results):
        notes.append(
            "No accuracy: private rows are measured by a charged release alone, and this run holds none out "
            "(--no-evaluation, --test-fraction 0, or a --horizon)."
        )
    return notes
