"""Versions of registered models: found by the names that people type, on record, with the champion among them.

Who is champion, and what promotion rests on, is on record in the root (:mod:`storage.model_records`), with the history
that rolling back needs. MLflow's tags and its alias show it: they are written after the record, the alias is set again
where it differs, and neither is ever read to decide. MLflow's own page and clients follow its alias without further
checks.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import InputError
from storage.model_records import VersionRecord
from tasks.runtime.settings import refusal
from tasks.runtime.stores import open_model_records
from tasks.tracking.runs import tracking_client

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


CHAMPION = "champion"
"""The alias in MLflow that shows which version is to be used."""
_NAME = re.compile(rf"(?P<name>[^@/'\"`\\]+)(?:@(?P<champion>{CHAMPION})|/(?P<version>[0-9]+))?")
_LOG = logging.getLogger(__name__)


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
    """

    name: str
    version: str
    run_id: str
    card: str = ""

    def recorded_as(self, record: VersionRecord | None) -> bool:
        """Whether a record describes this version: its number and its run."""
        return record is not None and (self.name, self.version, self.run_id) == (
            record.model,
            record.version,
            record.run,
        )


def champion_of(root: Path, name: str) -> VersionRecord | None:
    """Return the version of a model that is champion, by the root's records; None where none is."""
    return next(reversed(open_model_records(root).champions(name)), None)


def find_model(root: Path, model: str) -> RegisteredModel:
    """Return the version of a model that a name means: the newest one where it names neither version nor champion.

    The champion is the one on record, and MLflow's alias is set again if it differs; the newest version is the newest
    on record, where there is any.

    Raises
    ------
    InputError
        If there is no such model, naming those there are, or it is not in MLflow.
    """
    parts = _NAME.fullmatch(model)
    if parts is None:
        raise InputError(f"{model!r} is not the name of a model; write NAME, NAME@{CHAMPION} or NAME/VERSION")
    name, number = parts["name"], parts["version"]
    with tracking_client(root) as client:
        versions = versions_of(client, name)
        if not versions:
            names = ", ".join(sorted(version.name for version in client.search_registered_models())) or "none"
            raise InputError(f"there is no model {name!r} (models: {names}); train one first")
        if parts["champion"]:
            champion = champion_of(root, name)
            _show_champion(client, name, champion, versions)
            if champion is None:
                raise InputError(f"model {name!r} has no champion: unitball model promote {name}/VERSION")
            return in_mlflow(versions, champion)
        if number is None:
            known = {(one.version, one.run) for one in open_model_records(root).versions(name)}
            recorded = [number for number, one in versions.items() if (number, one.run_id) in known]
            number = max(recorded or versions, key=int)
        if number not in versions:
            there = ", ".join(sorted(versions, key=int))
            raise InputError(f"model {name!r} has no version {number} in MLflow (versions: {there})")
        return versions[number]


def versions_of(client: MlflowClient, name: str) -> dict[str, RegisteredModel]:
    """Return the versions of a model that MLflow has, by their numbers."""
    return {str(one.version): as_registered(one) for one in client.search_model_versions(f"name = '{name}'")}


def as_registered(version: ModelVersion) -> RegisteredModel:
    """Return a version of MLflow's as one of ours."""
    return RegisteredModel(version.name, str(version.version), str(version.run_id), version.description or "")


def in_mlflow(versions: Mapping[str, RegisteredModel], record: VersionRecord) -> RegisteredModel:
    """Return a recorded version as MLflow has it; versions of other runs with the same number are others."""
    model = versions.get(record.version)
    if model is None or not model.recorded_as(record):
        raise InputError(
            f"the former champion of {record.model!r}, version {record.version} of run {record.run}, is not in MLflow: "
            "restore MLflow from a back-up, or promote another version, which can still be compared with it: unitball "
            f"model compare {record.model}/VERSION --promote"
        )
    return model


def _difference(
    client: MlflowClient, name: str, champion: VersionRecord | None, versions: Mapping[str, RegisteredModel]
) -> tuple[str | None, str] | None:
    """Return where MLflow's alias has to be and what is wrong with it now; None where it shows what is on record."""
    due = None
    if champion is not None and (model := versions.get(champion.version)) and model.recorded_as(champion):
        due = champion.version
    shown = client.get_registered_model(name).aliases.get(CHAMPION)
    if (None if shown is None else str(shown)) == due:
        return None
    there = "is missing in MLflow" if shown is None else f"is at version {shown} in MLflow"
    recorded = "there is no champion on record"
    if champion is not None:
        recorded = f"the champion on record is version {champion.version}"
    return due, f"the alias {CHAMPION} of {name} {there}, but {recorded}"


def _show_champion(
    client: MlflowClient, name: str, champion: VersionRecord | None, versions: Mapping[str, RegisteredModel]
) -> None:
    """Mend MLflow's alias where it shows another version than the one on record, and say so.

    Where MLflow refuses, that is said: what is used is the champion on record all the same.
    """
    from mlflow.exceptions import MlflowException

    difference = _difference(client, name, champion, versions)
    if difference is None:
        return
    due, wrong = difference
    try:
        if due is None:
            client.delete_registered_model_alias(name, CHAMPION)
        else:
            client.set_registered_model_alias(name, CHAMPION, due)
    except MlflowException as error:
        _LOG.warning("%s, and could not be corrected: %s", wrong, refusal(error))
    else:
        _LOG.warning("%s; the alias was %s", wrong, "removed" if due is None else "set again")


def misshown_champions(root: Path) -> list[tuple[str, str]]:
    """Return the models whose alias in MLflow differs from the champion on record, each with the difference."""
    with tracking_client(root) as client:
        found = {str(one.name) for one in client.search_model_versions()}
        differences = {
            name: _difference(client, name, champion_of(root, name), versions_of(client, name))
            for name in sorted(found)
        }
    return [(name, difference[1]) for name, difference in differences.items() if difference is not None]


def show_as_champion(root: Path, model: RegisteredModel) -> None:
    """Set MLflow's alias on a version that was recorded as champion."""
    with tracking_client(root) as client:
        client.set_registered_model_alias(model.name, CHAMPION, model.version)


def registered_by(root: Path, run_id: str | None) -> RegisteredModel | None:
    """Return the model version on record that a run of MLflow's has registered; None where it has none."""
    with tracking_client(root) as client:
        versions = client.search_model_versions(f"run_id = '{run_id}'") if run_id else []
    models = [as_registered(one) for one in sorted(versions, key=lambda one: int(one.version))]
    return next((model for model in reversed(models) if recorded(root, model) is not None), None)


def recorded(root: Path, model: RegisteredModel) -> VersionRecord | None:
    """Return what is on record of a registered model; None where nothing is."""
    # The last one: a model that was deleted in MLflow as a whole begins with version 1 again.
    records = [one for one in open_model_records(root).versions(model.name) if one.version == model.version]
    return records[-1] if records and model.recorded_as(records[-1]) else None


def record_of(root: Path, model: RegisteredModel) -> VersionRecord:
    """Return what is on record of a registered model.

    Raises
    ------
    InputError
        If this root has neither logged it nor been told of it by its owner.
    """
    record = recorded(root, model)
    if record is None:
        name = f"{model.name}/{model.version}"
        raise InputError(
            f"version {model.version} of {model.name} was not logged and recorded by this root: train with "
            f"the same configuration again, at no further charge, and use the new version; or, if you know the "
            f"SHA-256 of its model.skops from the root where it was trained: unitball model record {name} --digest …"
        )
    return record


def unrecorded(root: Path) -> list[RegisteredModel]:
    """Return the model versions in MLflow that are not on record; none of them is loaded."""
    known = {(one.model, one.version): one.run for one in open_model_records(root).versions()}
    with tracking_client(root) as client:
        versions = client.search_model_versions()
    return [as_registered(one) for one in versions if known.get((one.name, str(one.version))) != str(one.run_id)]
