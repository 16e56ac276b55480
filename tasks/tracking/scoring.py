"""Which rows to score with which model: what the form and the triggers of batch scoring give."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from tasks.tracking.models import CHAMPION, find_model


class ScoringRequest(BaseModel, frozen=True, extra="forbid"):
    """A file of rows and the registered model that predicts them.

    Predictions are written below ``private/predictions`` of the root, readable by its owner alone.
    """

    model: Annotated[
        str,
        Field(
            min_length=1,
            description="NAME, NAME@ALIAS or NAME/VERSION; a name alone is its newest version.",
            examples=["clinic.noisy-gd@champion"],
        ),
    ]
    input: Annotated[
        str,
        Field(
            min_length=1,
            description="CSV or Parquet on the machine that serves, with the columns of the model's table.",
            examples=["/srv/clinic/new-rows.csv"],
        ),
    ]
    id_column: Annotated[str | None, Field(description="A column of the input that is kept.", examples=["patient"])] = (
        None
    )
    prefer_champion: Annotated[bool, Field(description=f"Score with NAME@{CHAMPION} instead, where there is one.")] = (
        False
    )


def chosen_model(root: Path, request: ScoringRequest) -> str:
    """Return the name of the model that a request means."""
    if not request.prefer_champion:
        return request.model
    found = find_model(root, request.model)
    return request.model if found.champion is None else f"{found.name}@{CHAMPION}"
