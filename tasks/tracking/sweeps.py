"""What MLflow is told of a sweep: one parent run, a child a point, few calls to the database for each."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from storage.layout import Layout
from tasks.runtime.engine import prepare_tracking, tracking_uri
from tasks.runtime.engine_process import locked
from tasks.tracking import runs as tracking
from tasks.tracking.views import VIEW_TAG, view_envelope

__all__ = ["SweepTracker", "TrackedPoint", "log_files"]

POINT_KEY = "unitball.point_key"
PARENT = "mlflow.parentRunId"
_POINT = "point"


class TrackedPoint(BaseModel):
    """What a child run says: the facts of every run, its parameters, metrics and tags; or the error."""

    model_config = ConfigDict(frozen=True)

    key: str
    name: str
    facts: dict[str, str] = {}
    params: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    tags: dict[str, Any] = {}
    error: str | None = None


class SweepTracker:
    """The parent run of a sweep; a sweep that was killed finds its parent and the points logged before.

    Parameters
    ----------
    root : Path
    experiment : str
    key : str
        Identity of the sweep.
    name : str
        What people read.
    tags : mapping
        For the parent and every point: paper, figure.
    axes : sequence of str
        Parameters that vary, for the chart of parallel coordinates.
    """

    def __init__(
        self,
        root: Path,
        *,
        experiment: str,
        key: str,
        name: str,
        tags: Mapping[str, str],
        axes: Sequence[str] = (),
    ) -> None:
        prepare_tracking(root)
        from mlflow import MlflowClient

        uri = tracking_uri(root)
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._tags = {**tags, "mlflow.source.name": "unitball"}
        layout = Layout(root)
        with locked(layout.prefect / ".lock-tracking"):
            self._experiment = tracking._experiment(self._client, layout, experiment)
            # Points are children, which MLflow's table folds away: the sweep's view searches for them.
            view = view_envelope(
                tracking.FACTS, search=f"tags.role = '{_POINT}'", axes=list(dict.fromkeys(["algorithm", *axes]))
            )
            self._client.set_experiment_tag(self._experiment, VIEW_TAG, view)
            found = tracking._runs(self._client, self._experiment, tracking.RUN_KEY, key)
            self.run_id = (
                str(found[0].info.run_id)
                if found
                else tracking._create(
                    self._client, self._experiment, name, {**self._tags, tracking.RUN_KEY: key, "role": "sweep"}
                )
            )
        children = self._children() if found else {}
        self._known = {key: run_id for key, (run_id, status) in children.items() if status == "FINISHED"}
        self._failed = {key: run_id for key, (run_id, status) in children.items() if status != "FINISHED"}

    def _children(self) -> dict[str, tuple[str, str]]:
        found: dict[str, tuple[str, str]] = {}
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment], f"tags.`{PARENT}` = '{self.run_id}'", max_results=1000, page_token=token
            )
            for run in page:
                found[run.data.tags.get(POINT_KEY, run.info.run_id)] = (run.info.run_id, run.info.status)
            token = page.token
            if not token:
                return found

    def write(self, points: Sequence[TrackedPoint]) -> dict[str, str]:
        """Write the points that are not there as finished, and return every one's run by its key."""
        for point in points:
            if point.key not in self._known:
                if (dead := self._failed.pop(point.key, None)) is not None:
                    self._client.delete_run(dead)
                self._known[point.key] = self._write(point)
        return {point.key: self._known[point.key] for point in points}

    def _write(self, point: TrackedPoint) -> str:
        from mlflow import entities

        now = int(time.time() * 1000)
        tags = {**point.facts, **self._tags, **point.tags, PARENT: self.run_id, POINT_KEY: point.key, "role": _POINT}
        if point.error is not None:
            tags["error"] = point.error
        run_id = tracking._create(self._client, self._experiment, point.name, tags)
        params = {**point.facts, **point.params}
        listed = [entities.Param(name, tracking._cut(value, 6000)) for name, value in params.items()]
        numbers = [
            entities.Metric(name, value, now, 0) for name, value in point.metrics.items() if math.isfinite(value)
        ]
        # One call takes a hundred parameters.
        for start in range(0, max(len(listed), 1), 100):
            self._client.log_batch(run_id, params=listed[start : start + 100], metrics=numbers if start == 0 else ())
        self._client.set_terminated(run_id, "FAILED" if point.error is not None else "FINISHED")
        return run_id

    def close(self, *, metrics: Mapping[str, float], files: Mapping[str, str | bytes], note: str = "") -> None:
        """Say how many points are done, log the files, and end the parent run."""
        from mlflow import entities

        now = int(time.time() * 1000)
        self._client.log_batch(
            self.run_id,
            metrics=[entities.Metric(name, float(value), now, 0) for name, value in metrics.items()],
            tags=[entities.RunTag("mlflow.note.content", note)] if note else (),
        )
        if files:
            tracking._log_files(self._client, self.run_id, files)
        self._client.set_terminated(self.run_id, "FINISHED")


def log_files(root: Path, run_id: str, files: Mapping[str, str | bytes]) -> None:
    """Log files as artifacts of a run that is there."""
    from mlflow import MlflowClient

    uri = tracking_uri(root)
    tracking._log_files(MlflowClient(tracking_uri=uri, registry_uri=uri), run_id, files)
