"""Descriptions as runs in MLflow and among the results: what was released, as tables, figures and a page; no row."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from dpalgos.guarantees import rounded_up
from storage.refs import DatasetRef
from storage.results import is_recorded
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.release.column_pairs import PairsPlan
from tasks.release.descriptions import Description
from tasks.release.metrics import Evaluation
from tasks.release.pair_descriptions import PairsDescription
from tasks.release.single import SinglePlan
from tasks.runtime.settings import current_layout, current_root
from tasks.tracking.results import RunResult, append_result, summarise
from tasks.tracking.runs import RunReport, track_run

TABLES, LINES, FIGURE = "description.json", "description.csv", "description.png"
_MOST_NAMED = 3
Found = TypeVar("Found", Description, PairsDescription)


def record_description(plan: SinglePlan | PairsPlan, found: Found, draw: Callable[[Found], bytes]) -> None:
    """Log a description to MLflow and append it to the results, once.

    Without an engine, and after the answer is printed: importing MLflow, drawing and logging take 4 s of processor time
    and describing less than that; starting an engine would take seconds more. A recorded description is free.

    Parameters
    ----------
    plan : SinglePlan or PairsPlan
        Its release is stored.
    found : Description or PairsDescription
        A comparison in it is not logged.
    draw : callable
        Draws the figure, as PNG; called only for a run that was not logged before.
    """
    if is_recorded(current_layout(), plan.run.run_key):
        return
    run, alone = plan.run, replace(found, comparison=None) if isinstance(found, Description) else found
    result = summarise(run, run.identity.dataset, Evaluation(), [])
    run_id = track_run(current_root(), _report(run, result, alone, draw))
    config = TrainingConfig(
        dataset=found.terms.dataset, epsilon=run.epsilon, delta=run.delta, trust=run.trust, evaluation=False
    )
    append_result(config, result.model_copy(update={"mlflow_run_id": run_id}))


def _report(plan: RunPlan, result: RunResult, found: Found, draw: Callable[[Found], bytes]) -> RunReport:
    dataset, own = plan.identity.dataset, plan.evaluations[0]
    what = named(found)
    spent = {} if result.epsilon_spent is None else {"epsilon_spent": rounded_up(result.epsilon_spent, 6)}
    return RunReport(
        experiment=dataset.name,
        run_key=plan.run_key,
        name=f"{what} of {dataset.name}, ε={plan.epsilon:g}",
        facts={
            "algorithm": plan.system,
            "dataset": dataset.name,
            "trust": plan.trust,
            "proved": "none" if result.proved is None else result.proved.statement(),
            "neighbours": str(own.setting.neighbours),
            "numerics": str(own.guarantee().numerics),
        },
        params={
            "what": what,
            "epsilon": plan.epsilon,
            "delta": plan.delta,
            "release": own.key,
            "unit": str(dataset.unit),
        },
        metrics={"mu": rounded_up(found.terms.mu, 6), **spent},
        trained_on=dataset,
        files={TABLES: json.dumps(found.to_json(), indent=1), LINES: lines_as_csv(found)},
        drawn=partial(_figures, found, draw),
        note=_page(plan, found, dataset),
    )


def _figures(found: Found, draw: Callable[[Found], bytes]) -> dict[str, bytes]:
    return {FIGURE: draw(found)}


def named(found: Description | PairsDescription) -> str:
    """Return a description's subject, for people."""
    if isinstance(found, Description):
        return f"{found.terms.columns} columns"
    names = [f"{pair.first} × {pair.second}" for pair in found.pairs]
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more pairs" if more > 0 else "")


def lines_as_csv(found: Description | PairsDescription) -> str:
    """Return a description's numbers as CSV, a line per number."""
    text, lines = io.StringIO(), found.lines()
    table = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return text.getvalue()


def _page(plan: RunPlan, found: Found, dataset: DatasetRef) -> str:
    terms = found.terms
    account = f"account {terms.account}" if terms.account else "each party's own account"
    charged = f"charged to {account}" if dataset.private else "of public rows, which are not charged"
    rests = ""
    if plan.before:
        rests = (
            f" The numbers also rest on {len(plan.before)} earlier release{'s' * (len(plan.before) > 1)} of one-way "
            "counts of the same rows; `epsilon_spent` composes all of them."
        )
    return (
        f"### {named(found)} of {dataset.name}\n\n"
        f"Counts of {terms.rows:,} {dataset.unit.several} of version {terms.version}, epsilon {plan.epsilon:g} at "
        f"delta {plan.delta:g} (mu {rounded_up(terms.mu, 4):g}) for a {terms.unit}, {charged}.{rests}\n\n"
        f"`{TABLES}` and `{LINES}` have every number with its 95 % margin, `{FIGURE}` shows them. Everything follows "
        f"from released counts.\n\n    unitball export {plan.run_key[:12]} --out description.zip"
    )
