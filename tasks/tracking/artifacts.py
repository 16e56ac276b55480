"""Prefect artifacts of a flow run: progress, budget and result, nothing of private rows."""

import base64
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from uuid import UUID

from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from dpalgos.guarantees import rounded_up
from storage.refs import DatasetRef
from tasks.accounts.ledger import open_ledger
from tasks.accounts.reports import runs_left
from tasks.accounts.room import one_more_run
from tasks.runtime.progress import observed_by
from tasks.runtime.settings import mlflow_page
from tasks.tracking.reporting import by_group_of, claim_of, guarantee_of
from tasks.tracking.results import RunResult, about_people, by_person, shown_metric

STAGES = (
    *("resolve_dataset", "charge", "prepare_rows", "normalise", "make_public_map", "extract_features", "partition"),
    *("arrive", "evaluate", "record"),
)


@contextmanager
def showing_progress(stages: Sequence[str] = STAGES) -> Iterator[None]:
    """Show a progress artifact that advances as the flow's steps, named in their order, are done.

    Of steps that are done while an earlier one is being shown, the last is shown.
    """
    artifact = create_progress_artifact(progress=0.0, key="progress", description=f"0 of {len(stages)} steps")
    assert isinstance(artifact, UUID)

    def show(step: str, place: int) -> None:
        if place < len(shown):
            return
        done = stages.index(step.replace("-", "_")) + 1
        update_progress_artifact(
            artifact, progress=100 * done / len(stages), description=f"{step}: {done} of {len(stages)} steps"
        )

    shown: list[Future[None]] = []
    # One after another beside the run, which does not wait for the server to have heard of it.
    with ThreadPoolExecutor(1) as beside:

        def reached(step: str) -> None:
            shown.append(beside.submit(copy_context().run, show, step, len(shown) + 1))

        with observed_by(reached):
            yield
    for each in shown:
        each.result()


def _number(value: object) -> str:
    # What is spent is never shown as less.
    return f"{rounded_up(value, 4):g}" if isinstance(value, float) else str(value)


def show_budget(dataset: DatasetRef, charged: dict[str, object]) -> None:
    """Show what was charged, and for private data what is spent and left, and for how many runs like this."""
    lines = [
        {"what": "releases charged now", "value": _number(charged["charged"])},
        {"what": "releases charged before", "value": _number(charged["already_charged"])},
    ]
    if dataset.private:
        # What was charged before is not decided again.
        charged = {**open_ledger().status(dataset.account).details, **charged}
        left = one_more_run(dataset.account)
        if left is not None:
            lines.insert(0, {"what": f"remaining: {left.run} of", "value": left.amount})
        named = {
            "epsilon spent before": charged.get("spent_before"),
            "epsilon spent after": charged.get("spent_after"),
            "composed by": charged.get("filter"),
        }
        lines += [{"what": title, "value": _number(value)} for title, value in named.items() if value is not None]
        lines.append({"what": "more runs like this that fit", "value": _number(runs_left(dataset.account))})
    create_table_artifact(table=lines, key="budget", description=f"Budget of account {dataset.account}")


def show_budgets(lines: Sequence[dict[str, str]], png: bytes) -> None:
    """Show where all accounts stand: a figure over time, and a table."""
    _show_picture("budgets-over-time", "Spent against cap over time", png)
    create_table_artifact(table=list(lines), key="budgets", description="Budgets of all accounts")


def show_result(result: RunResult) -> None:
    """Show the result, and link to the run in MLflow."""
    noises = {f"{name}_noise" for name in result.metrics.reasons}
    names = [name for name in sorted(result.metrics.names()) if name not in noises]
    numbers = "\n".join(f"| {name} | {shown_metric(result, name, '.4g')} |" for name in names)
    heading = f"metric{by_person(result)} | value (95 % margin, each on its own; `aim_`: for all thresholds at once)"
    table = f"\n\n| {heading} |\n|---|---|\n{numbers}" if numbers else ""
    about = f"**{result.algorithm}** on **{result.dataset}**, trust {result.trust}."
    known = [result.proved.recognised()] if result.proved else []
    lines = [about, guarantee_of(result), *known, claim_of(result), about_people(result)]
    groups = f"\n\n{by_group_of(result)}" if result.by_group else ""
    create_markdown_artifact("\n\n".join(filter(None, lines)) + table + groups, key="result", description="Result")
    if result.mlflow_run_id:
        create_link_artifact(
            mlflow_page(result.mlflow_run_id),
            link_text="This run in MLflow",
            key="mlflow",
            description="Parameters, metrics, model",
        )


def show_sweep(name: str, points: Sequence[tuple[str, RunResult | None, str | None]]) -> None:
    """Show every point of a sweep, with its error where it failed."""
    lines = [
        {
            "point": description,
            "proved": "none" if result is None or result.proved is None else result.proved.summary(),
            "accuracy": "–" if result is None else shown_metric(result, "accuracy") + by_person(result),
            "error": error or "",
        }
        for description, result, error in points
    ]
    create_table_artifact(table=lines, key="sweep", description=f"Points of {name}")


def show_figure(name: str, title: str, png: bytes, verdict: str) -> None:
    """Show a figure and its verdict."""
    _show_picture(f"figure-{name}", title, png)
    create_markdown_artifact(verdict, key=f"verdict-{name}", description=f"Verdict of {title}")


def _show_picture(key: str, title: str, png: bytes) -> None:
    picture = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    create_image_artifact(image_url=picture, key=key, description=title)
