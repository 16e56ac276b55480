"""Where MLflow's pages show what was tracked."""

from __future__ import annotations

from pathlib import Path

from tasks.tracking.client import tracking_client, view_path


def comparison_path(root: Path, experiment: str) -> str | None:
    """Return the address of a data set's accuracy–budget chart, behind an MLflow server's; None before a first run."""
    with tracking_client(root) as client:
        found = client.get_experiment_by_name(experiment)
    return None if found is None else view_path(found.experiment_id)
