"""What watchers are told of a trained model: which version it is, and whether there is a champion to meet."""

from __future__ import annotations

from tasks.runtime.events import Event, announce, dataset_resource
from tasks.runtime.settings import current_root
from tasks.tracking.models import registered_by
from tasks.tracking.results import RunResult

CHAMPION_LABEL = "unitball.champion"
"""Label of the event's resource: ``"true"`` where another version of the model is champion."""


def announce_trained(result: RunResult) -> None:
    """Announce a recorded run's model; a run that registered none has nothing to score with."""
    found = registered_by(current_root(), result.mlflow_run_id)
    if found is None:
        return
    others = found.champion is not None and found.champion != found.version
    announce(
        Event.TRAINED,
        dataset_resource(result.dataset),
        {"dataset": result.dataset, "model": f"{found.name}/{found.version}"},
        labels={CHAMPION_LABEL: str(others).lower()},
    )
