"""A sweep in MLflow: one parent run, a child run a point, few calls for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tasks.tracking.client import tracking_client
from tasks.tracking.runs import FACTS, PARENT, RUN_KEY, Entries, experiment_of, log_files, log_run, runs_with
from tasks.tracking.views import VIEW_TAG, view_envelope

POINT_KEY = "unitball.point_key"
_POINT = "point"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedPoint(Entries):
    """The child run of a point: the entries of every run, or the error."""

    key: str
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
        self._root, self._tags = root, dict(tags)
        with tracking_client(root) as client:
            self._experiment = experiment_of(client, root, experiment)
            # Points are children, which MLflow's table folds away: the sweep's view searches for them.
            view = view_envelope(
                FACTS, search=f"tags.role = '{_POINT}'", axes=list(dict.fromkeys(["algorithm", *axes]))
            )
            client.set_experiment_tag(self._experiment, VIEW_TAG, view)
            found = runs_with(client, self._experiment, RUN_KEY, key)
            if found:
                self.run_id = str(found[0].info.run_id)
            else:
                keys = {RUN_KEY: key, "role": "sweep"}
                self.run_id = log_run(client, self._experiment, Entries(name=name, tags=tags), keys=keys)
            children = {
                run.data.tags.get(POINT_KEY, run.info.run_id): run.info
                for run in (runs_with(client, self._experiment, PARENT, self.run_id) if found else ())
            }
        self._known = {key: info.run_id for key, info in children.items() if info.status == "FINISHED"}
        self._failed = {key: info.run_id for key, info in children.items() if info.status != "FINISHED"}

    def write(self, points: Sequence[TrackedPoint]) -> dict[str, str]:
        """Write the points that are not there as finished, and return every one's run by its key."""
        with tracking_client(self._root) as client:
            for point in points:
                if point.key in self._known:
                    continue
                if (dead := self._failed.pop(point.key, None)) is not None:
                    client.delete_run(dead)
                failed = {} if point.error is None else {"error": point.error}
                shown = replace(point, tags={**self._tags, **point.tags, **failed})
                keys = {PARENT: self.run_id, POINT_KEY: point.key, "role": _POINT}
                self._known[point.key] = run_id = log_run(client, self._experiment, shown, keys=keys)
                client.set_terminated(run_id, "FAILED" if failed else "FINISHED")
        return {point.key: self._known[point.key] for point in points}

    def close(self, *, metrics: Mapping[str, float], files: Mapping[str, str | bytes], note: str = "") -> None:
        """Log how many points are done and the files, and end the parent run."""
        import mlflow

        with tracking_client(self._root) as client:
            mlflow.log_metrics(dict(metrics), run_id=self.run_id)
            if note:
                client.set_tag(self.run_id, "mlflow.note.content", note)
            if files:
                log_files(client, self.run_id, files)
            client.set_terminated(self.run_id, "FINISHED")


def attach_files(root: Path, run_id: str, files: Mapping[str, str | bytes]) -> None:
    """Log files as artifacts of a run that is there."""
    with tracking_client(root) as client:
        log_files(client, run_id, files)
