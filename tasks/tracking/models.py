"""Registered models by the name that people type: ``NAME``, ``NAME@ALIAS`` or ``NAME/VERSION``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import InputError
from tasks.tracking.client import tracking_client
from tasks.tracking.flavor import load_pipeline

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from sklearn.pipeline import Pipeline

__all__ = ["CHAMPION", "RegisteredModel", "find_model", "load_model", "registered_by"]

CHAMPION = "champion"
"""The alias of the version that is to be used."""

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
        The version of the same name that bears the alias :data:`CHAMPION`.
    tags : mapping of str to str
    """

    name: str
    version: str
    run_id: str
    card: str = ""
    champion: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        """Its address in MLflow."""
        return f"models:/{self.name}/{self.version}"


def find_model(root: Path, model: str) -> RegisteredModel:
    """Return the version of a model that a name means: the newest one without alias or version.

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
        found = _chosen(client, asked["name"], asked["alias"], asked["version"], versions)
        return _described(client, found)


def _described(client: MlflowClient, version: ModelVersion) -> RegisteredModel:
    aliases = client.get_registered_model(version.name).aliases
    champion = str(aliases[CHAMPION]) if CHAMPION in aliases else None
    return RegisteredModel(
        version.name, str(version.version), str(version.run_id), version.description or "", champion, dict(version.tags)
    )


def _chosen(
    client: MlflowClient, name: str, alias: str | None, version: str | None, versions: list[ModelVersion]
) -> ModelVersion:
    from mlflow.exceptions import MlflowException

    if alias is not None:
        try:
            return client.get_model_version_by_alias(name, alias)
        except MlflowException:
            known = ", ".join(sorted(client.get_registered_model(name).aliases)) or "none"
            raise InputError(f"model {name!r} has no alias {alias!r} (aliases: {known})") from None
    if version is None:
        return max(versions, key=lambda found: int(found.version))
    for found in versions:
        if str(found.version) == version:
            return found
    there = ", ".join(sorted((str(found.version) for found in versions), key=int))
    raise InputError(f"model {name!r} has no version {version} (versions: {there})")


def registered_by(root: Path, run_id: str | None) -> RegisteredModel | None:
    """Return the model version that a run of MLflow's has registered; None where it has none."""
    with tracking_client(root) as client:
        versions = client.search_model_versions(f"run_id = '{run_id}'") if run_id else []
        return _described(client, versions[0]) if versions else None


def load_model(root: Path, model: RegisteredModel) -> Pipeline:
    """Return the pipeline of a registered model.

    Raises
    ------
    StorageError
        If it holds types that are not trusted; see :func:`tasks.tracking.flavor.load_pipeline`.
    """
    import mlflow.artifacts

    with tracking_client(root):
        folder = mlflow.artifacts.download_artifacts(model.uri)
    return load_pipeline(folder)
