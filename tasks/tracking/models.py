"""Registered models by the name that people type, and what each is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.errors import DamagedError, InputError
from storage.model_records import VersionRecord
from storage.refs import DatasetRef, ReleaseRef, ShardRef
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.runtime.stores import open_model_records
from tasks.tracking.client import tracking_client
from tasks.tracking.flavor import load_pipeline, model_digest

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from sklearn.pipeline import Pipeline


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


def guaranteed(root: Path, model: RegisteredModel) -> str:
    """Return what is proved of a registered model and what that protects; empty where nothing is known."""
    facts = record_of(root, model).facts
    if facts["proved"] == "none" or not facts["lineage"]:
        return ""
    unit = read_lineage(root, model).dataset.unit
    return f"{facts['proved']} for a {unit} it was trained on. {unit.meaning()}"


CHAMPION = "champion"
"""The alias of the version that is to be used."""

# Of a version that its owner vouches for, in the form of what is recorded of those that were logged here.
_UNKNOWN: Mapping[str, object] = MappingProxyType(
    {
        "run_key": None,
        "lineage": None,
        "algorithm": "unknown",
        "dataset": "unknown",
        "proved": "none",
        "neighbours": "unknown",
        "epsilon": None,
        "delta": None,
        "metrics": {},
    }
)
_NAME = re.compile(r"(?P<name>[^@/'\"`\\]+)(?:@(?P<alias>[^@/'\"`\\]+)|/(?P<version>[0-9]+))?")


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """One version of a registered model.

    Attributes
    ----------
    name, version : str
    run_id : str
        The MLflow run that logged it.
    card : str
        Its model card, Markdown; empty for a model that was logged without one.
    champion : str or None
        The version of the same name that is champion.
    """

    name: str
    version: str
    run_id: str
    card: str = ""
    champion: str | None = None

    @property
    def uri(self) -> str:
        """Its address in MLflow."""
        return f"models:/{self.name}/{self.version}"


def champion_of(root: Path, name: str) -> str | None:
    """Return the version of a model that is champion, by the root's records; None where none is."""
    champions = open_model_records(root).champions(name)
    return champions[-1] if champions else None


def find_model(root: Path, model: str) -> RegisteredModel:
    """Return the version of a model that a name means: the newest one without alias or version.

    The champion is the one on record, whatever bears the alias in MLflow; the newest version is the newest on record,
    where there is any.

    Raises
    ------
    InputError
        If there is no such model, naming those there are.
    """
    asked = _NAME.fullmatch(model)
    if asked is None:
        raise InputError(f"{model!r} is no name of a model; write NAME, NAME@ALIAS or NAME/VERSION")
    with tracking_client(root) as client:
        versions = client.search_model_versions(f"name = '{asked['name']}'")
        if not versions:
            names = ", ".join(sorted(found.name for found in client.search_registered_models())) or "none"
            raise InputError(f"there is no model {asked['name']!r} (models: {names}); train one first")
        if asked["alias"] == CHAMPION:
            found = _numbered(asked["name"], _champion(root, client, asked["name"]), versions)
        elif asked["alias"] is not None:
            found = _aliased(client, asked["name"], asked["alias"])
        elif asked["version"] is not None:
            found = _numbered(asked["name"], asked["version"], versions)
        else:
            known = {(one.version, one.run) for one in open_model_records(root).versions(asked["name"])}
            recorded = [one for one in versions if (str(one.version), str(one.run_id)) in known]
            found = max(recorded or versions, key=lambda one: int(one.version))
        return _described(root, found)


def _described(root: Path, version: ModelVersion) -> RegisteredModel:
    return RegisteredModel(
        version.name,
        str(version.version),
        str(version.run_id),
        version.description or "",
        champion_of(root, version.name),
    )


def _champion(root: Path, client: MlflowClient, name: str) -> str:
    champion = champion_of(root, name)
    if champion is None:
        aliases = client.get_registered_model(name).aliases
        there = f"; the alias in MLflow, at version {aliases[CHAMPION]}, makes none" if CHAMPION in aliases else ""
        raise InputError(f"model {name!r} has no champion: unitball model promote {name}/VERSION{there}")
    return champion


def _aliased(client: MlflowClient, name: str, alias: str) -> ModelVersion:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException:
        known = ", ".join(sorted(client.get_registered_model(name).aliases)) or "none"
        raise InputError(f"model {name!r} has no alias {alias!r} (aliases: {known})") from None


def _numbered(name: str, version: str, versions: list[ModelVersion]) -> ModelVersion:
    for found in versions:
        if str(found.version) == version:
            return found
    there = ", ".join(sorted((str(found.version) for found in versions), key=int))
    raise InputError(f"model {name!r} has no version {version} in MLflow (versions: {there})")


def registered_by(root: Path, run_id: str | None) -> RegisteredModel | None:
    """Return the model version on record that a run of MLflow's has registered; None where it has none."""
    with tracking_client(root) as client:
        versions = client.search_model_versions(f"run_id = '{run_id}'") if run_id else []
        for found in sorted(versions, key=lambda one: int(one.version), reverse=True):
            model = _described(root, found)
            if _recorded(root, model) is not None:
                return model
    return None


def _recorded(root: Path, model: RegisteredModel) -> VersionRecord | None:
    # The last one: a model that was deleted in MLflow as a whole begins with version 1 again.
    found = [one for one in open_model_records(root).versions(model.name) if one.version == model.version]
    return found[-1] if found and found[-1].run == model.run_id else None


def record_of(root: Path, model: RegisteredModel) -> VersionRecord:
    """Return what is on record of a registered model.

    Raises
    ------
    InputError
        If this root has neither logged it nor been told of it by its owner.
    """
    found = _recorded(root, model)
    if found is None:
        name = f"{model.name}/{model.version}"
        raise InputError(
            f"version {model.version} of {model.name} is not one that this root has logged and kept a record of: train "
            "with the same configuration once more, which charges nothing, and use the version that makes; or, where "
            f"you know the SHA-256 of its model.skops from where it was made: unitball model record {name} --digest …"
        )
    return found


def unrecorded(root: Path) -> list[RegisteredModel]:
    """Return the model versions in MLflow that are not on record; none of them is loaded."""
    known = {(one.model, one.version): one.run for one in open_model_records(root).versions()}
    with tracking_client(root) as client:
        found = client.search_model_versions()
    return [_described(root, one) for one in found if known.get((one.name, str(one.version))) != str(one.run_id)]


def record_model(root: Path, model: RegisteredModel, digest: str) -> list[str]:
    """Put a version that this root has not logged on record, as its owner's word, and return what is not known of it.

    Parameters
    ----------
    root : Path
    model : RegisteredModel
    digest : str
        SHA-256 of its file, from where it was made.

    Raises
    ------
    InputError
        If it is on record already, or its file is another one.
    """
    if _recorded(root, model) is not None:
        raise InputError(f"version {model.version} of {model.name} is on record already")
    found = model_digest(_folder(root, model))
    if found != digest.lower():
        raise InputError(
            f"the file of version {model.version} of {model.name} in MLflow has the SHA-256 {found}, not {digest}: it "
            "is not the one you know; nothing was recorded"
        )
    open_model_records(root).record_version(model.name, model.version, run=model.run_id, digest=found, facts=_UNKNOWN)
    return [
        "what it was trained on, by which algorithm and with which budget",
        "what is proved of it, and whether the releases it is made of are in this root's ledger",
        "what audits have said of its algorithm, and how good it is: it becomes no champion",
    ]


def load_model(root: Path, model: RegisteredModel) -> Pipeline:
    """Return the pipeline of a registered model.

    Raises
    ------
    StorageError
        If it holds types that are not trusted; see :func:`tasks.tracking.flavor.load_pipeline`.
    DamagedError
        If its file in MLflow is not the one that is on record.
    InputError
        If it is not on record; nothing of it is opened then.
    """
    digest = record_of(root, model).digest
    return load_pipeline(_folder(root, model), lambda found: _require_recorded(model, found, digest))


def require_unchanged(root: Path, model: RegisteredModel) -> None:
    """Check that a model's file in MLflow is the one that is on record.

    Raises
    ------
    DamagedError
        If it is another one.
    InputError
        If the model is not on record.
    """
    digest = record_of(root, model).digest
    _require_recorded(model, model_digest(_folder(root, model)), digest)


def _folder(root: Path, model: RegisteredModel) -> str:
    import mlflow.artifacts

    with tracking_client(root):
        return str(mlflow.artifacts.download_artifacts(model.uri))


def _require_recorded(model: RegisteredModel, found: str, digest: str) -> None:
    if found != digest:
        raise DamagedError(
            f"the file of version {model.version} of {model.name} in MLflow is not the one that was logged; train with "
            "the same configuration and another --repetition, or put MLflow's artifacts back from a back-up"
        )
