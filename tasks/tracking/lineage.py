"""What a logged model is made of: the run's configuration, its rows by reference, and what rows pass through."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.errors import InputError
from storage.refs import DatasetRef, ReleaseRef, ShardRef
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.tracking.models import RegisteredModel, record_of

LINEAGE = "lineage.json"
"""Artifact of a run in MLflow."""


class Lineage(BaseModel):
    """References alone, which are public.

    Attributes
    ----------
    config : TrainingConfig
    dataset : DatasetRef
        The version whose rows trained it, normalised and mapped.
    features : tuple of str
        Keys of the public maps that these rows have passed through.
    path : tuple of ReleaseRef
        What rows pass through then, the model last.
    measured : ShardRef or None
        The held-out rows that a charged evaluation has measured it on.
    """

    model_config = ConfigDict(frozen=True)

    config: TrainingConfig
    dataset: DatasetRef
    features: tuple[str, ...]
    path: tuple[ReleaseRef, ...]
    measured: ShardRef | None


def lineage_of(config: TrainingConfig, dataset: DatasetRef, plan: RunPlan, path: list[ReleaseRef]) -> Lineage:
    """Return the lineage of a model that a run has released."""
    keys = tuple(reference.key for reference in path)
    paid = next((one for one in plan.evaluations if one.upstream == keys), None)
    measured = None
    if paid is not None:
        measured = ShardRef(dataset=dataset, partition=paid.partition, party=paid.parties[0], rows=paid.setting.rows)
    return Lineage(
        config=config,
        dataset=dataset,
        features=tuple(step.key for step in plan.features),
        path=tuple(path),
        measured=measured,
    )


def read_lineage(root: Path, model: RegisteredModel) -> Lineage:
    """Return the lineage of a registered model, as it is on record: the artifact in MLflow is there to be read.

    Raises
    ------
    InputError
        If there is no record of it.
    """
    try:
        return Lineage.model_validate(record_of(root, model).facts["lineage"])
    except ValidationError as error:
        raise InputError(
            f"{model.name} version {model.version} was logged without what it is made of; train it again to compare it"
        ) from error
