"""Lineage of a registered model: its releases, and whom its guarantee protects."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError

from storage.errors import InputError
from storage.model_records import VersionRecord
from storage.refs import DatasetRef, ReleaseRef, ShardRef
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.runtime.stores import open_catalog
from tasks.tracking.model_versions import RegisteredModel, record_of

LINEAGE = "lineage.json"
"""Artifact of a run in MLflow."""


class Lineage(BaseModel, frozen=True):
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
    synthetic, drawn_from, rests_on : tuple of str
        Derived data sets that the run has used, the syntheses that draw their rows, and the keys of the releases of
        rows that these are made of.
    """

    config: TrainingConfig
    dataset: DatasetRef
    features: tuple[str, ...]
    path: tuple[ReleaseRef, ...]
    measured: ShardRef | None
    synthetic: tuple[str, ...] = ()
    drawn_from: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()


def lineage_of(config: TrainingConfig, dataset: DatasetRef, plan: RunPlan, path: list[ReleaseRef]) -> Lineage:
    """Return the lineage of a model that a run has released."""
    keys = tuple(reference.key for reference in path)
    paid = next((one for one in plan.evaluations if one.reads_rows and one.seen_last == keys), None)
    measured = None
    if paid is not None:
        measured = ShardRef(dataset=dataset, partition=paid.partition, party=paid.parties[0], rows=paid.setting.rows)
    return Lineage(
        config=config,
        dataset=dataset,
        features=tuple(step.key for step in plan.features),
        path=tuple(path),
        measured=measured,
        synthetic=plan.synthetic,
        drawn_from=plan.models[0].drawn_from,
        rests_on=tuple(one.key for one in plan.drawn),
    )


def read_lineage(root: Path, model: RegisteredModel) -> Lineage:
    """Return the lineage of a registered model, as it is on record: the artifact in MLflow is there to be read.

    Raises
    ------
    InputError
        If there is no record of it.
    """
    return lineage_on_record(record_of(root, model))


def lineage_on_record(record: VersionRecord) -> Lineage:
    """Return the lineage that the record of a version holds.

    Raises
    ------
    InputError
        If it holds none.
    """
    try:
        return Lineage.model_validate(record.facts["lineage"])
    except ValidationError as error:
        raise InputError(
            f"{record.model} version {record.version} was logged without its lineage; train it again to compare it"
        ) from error


def guaranteed(root: Path, model: RegisteredModel) -> str:
    """Return what is proved of a registered model and what that protects; empty where nothing is known."""
    facts = record_of(root, model).facts
    if facts["proved"] == "none" or not facts["lineage"]:
        return ""
    lineage = read_lineage(root, model)
    dataset = lineage.dataset
    if lineage.synthetic:
        return (
            f"{facts['proved']} for a record it was trained on, and for one from which the synthetic rows of "
            f"{' and '.join(lineage.synthetic)} are drawn (synthesis "
            f"{' and '.join(key[:12] for key in lineage.drawn_from)})."
        )
    try:
        group = open_catalog().account_of(dataset.name).group_size
    except InputError:
        # Rows of parties elsewhere, or of a data set that is gone.
        group = 1
    meaning = dataset.unit.meaning(size=group) if group > 1 else dataset.unit.meaning()
    return f"{facts['proved']} for a {dataset.unit} it was trained on. {meaning}"


def trained_on_people(root: Path, model: RegisteredModel) -> bool:
    """Whether a registered model was trained and measured on people; False where nothing is known of its rows."""
    return bool(record_of(root, model).facts["lineage"]) and bool(read_lineage(root, model).dataset.person)
