"""What a flow run shows of itself in Prefect: progress, budget and result, in public words and numbers only."""

from __future__ import annotations

import os
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from storage.refs import DatasetRef
from tasks.budget import nights_left
from tasks.reporting import RunResult, note_of

__all__ = ["STAGES", "Progress", "mlflow_page", "show_budget", "show_result"]

MLFLOW_VARIABLE = "UNITBALL_MLFLOW_URL"
STAGES = ("ingest", "partition", "charge", "aggregate", "log")


class Progress:
    """A progress artifact that advances stage by stage."""

    def __init__(self) -> None:
        artifact = create_progress_artifact(progress=0.0, key="progress", description=f"0 of {len(STAGES)} stages")
        assert isinstance(artifact, UUID)
        self._artifact = artifact

    def reached(self, stage: str) -> None:
        """Say that a stage is done."""
        done = STAGES.index(stage) + 1
        update_progress_artifact(
            self._artifact, progress=100 * done / len(STAGES), description=f"{stage}: {done} of {len(STAGES)} stages"
        )


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_budget(dataset: DatasetRef, charged: dict[str, Any]) -> None:
    """Show what was charged, and for private data what is spent and left, and for how many runs like this."""
    rows = [
        {"what": "releases charged now", "value": _number(charged["charged"])},
        {"what": "releases charged before", "value": _number(charged["already_charged"])},
    ]
    if dataset.private:
        for words, name in (
            ("epsilon spent before", "spent_before"),
            ("epsilon spent after", "spent_after"),
            ("epsilon left before this run", "left"),
            ("composed by", "filter"),
        ):
            if charged.get(name) is not None:
                rows.append({"what": words, "value": _number(charged[name])})
        rows.append({"what": "more runs like this that fit", "value": _number(nights_left(dataset.account))})
    create_table_artifact(table=rows, key="budget", description=f"Budget of account {dataset.account}")


def mlflow_page(run_id: str) -> str:
    """Return the address of a run's page in MLflow: that of ``UNITBALL_MLFLOW_URL``, or MLflow's usual one."""
    base = os.environ.get(MLFLOW_VARIABLE, "http://127.0.0.1:5000").rstrip("/")
    return f"{base}/#/runs/{run_id}"


def show_result(result: RunResult) -> None:
    """Show the result, and link to the run in MLflow."""
    numbers = "\n".join(f"| {name} | {value:.4g} |" for name, value in sorted(result.metrics.items()))
    table = f"\n\n| metric | value |\n|---|---|\n{numbers}" if numbers else ""
    create_markdown_artifact(note_of(result) + table, key="result", description="Result")
    if result.mlflow_run_id:
        create_link_artifact(
            mlflow_page(result.mlflow_run_id),
            link_text="This run in MLflow",
            key="mlflow",
            description="Parameters, metrics, model",
        )
