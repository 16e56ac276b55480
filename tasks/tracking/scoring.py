"""Requests to a registered model: a file of rows to predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from tasks.datasets.schedules import COVERED, Coverage
from tasks.tracking.model_versions import CHAMPION, champion_of, find_model


class ScoringRequest(BaseModel, frozen=True, extra="forbid"):
    """A file of rows and the registered model that predicts them.

    Predictions are written below ``private/predictions`` of the root, readable by its owner alone.
    """

    model: Annotated[
        str,
        Field(
            min_length=1,
            description=f"NAME, NAME@{CHAMPION} or NAME/VERSION; a name alone means its newest version.",
            examples=["clinic.noisy-gd@champion"],
        ),
    ]
    input: Annotated[
        str,
        Field(
            min_length=1,
            description="CSV or Parquet on the serving machine, with the columns of the model's table.",
            examples=["/srv/clinic/new-rows.csv"],
        ),
    ]
    id_column: Annotated[str | None, Field(description="Column of the input to copy.", examples=["patient"])] = None
    prefer_champion: Annotated[bool, Field(description=f"Score with NAME@{CHAMPION} instead, if it exists.")] = False
    coverage: Annotated[Coverage | None, Field(description=COVERED, examples=[0.9])] = None


def chosen_model(root: Path, request: ScoringRequest) -> str:
    """Return the name of the model that a request means."""
    if not request.prefer_champion:
        return request.model
    name = find_model(root, request.model).name
    return request.model if champion_of(root, name) is None else f"{name}@{CHAMPION}"
