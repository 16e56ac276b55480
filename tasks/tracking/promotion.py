"""Which model versions there are, what audits have said of their algorithm, and whether one may be promoted.

Promotion is to give a version an alias, by which others load it. It asks here; MLflow's own page and clients do not, so
whoever sets an alias there looks at the tag by himself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from storage.errors import InputError, RefusedError
from tasks.accounts.budget import open_ledger
from tasks.runtime.books import open_catalog
from tasks.tracking.client import tracking_client
from tasks.tracking.models import CHAMPION

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

__all__ = ["AUDITS", "AUDIT_TAG", "VIOLATION", "InUse", "algorithms_in_use", "audit_of", "promote", "tag_versions"]

AUDITS = "privacy-audits"
"""MLflow's experiment of audits."""

AUDIT_TAG = "unitball.audit"
"""Tag of model versions and of audits' runs: what the last audit of the algorithm has said."""

COMPARISON_TAG = "unitball.comparison"
"""Tag of model versions: how they have compared with the champion, as JSON."""

VIOLATION = "violation"
"""The value of the tag by which promotion is blocked; it stays until its owner deletes it."""


# Tag of registered models: the versions that were champion, in order.
_CHAMPIONS = "unitball.champions"


class InUse(BaseModel):
    """An algorithm that registered model versions were trained with, at a budget.

    Attributes
    ----------
    algorithm : str
    epsilon, delta : float
    neighbours : str
    """

    model_config = ConfigDict(frozen=True)

    algorithm: str
    epsilon: float
    delta: float
    neighbours: str


def algorithms_in_use(root: Path) -> list[InUse]:
    """Return each algorithm of the registered model versions once, with the budget of its newest version.

    Versions that were trained without a budget have nothing to audit and are left out.
    """
    found: dict[str, InUse] = {}
    with tracking_client(root) as client:
        versions = sorted(client.search_model_versions(), key=lambda one: int(one.creation_timestamp), reverse=True)
        for version in versions:
            name = version.tags.get("algorithm")
            if not name or name in found or not version.run_id:
                continue
            params = client.get_run(version.run_id).data.params
            if "epsilon" in params:
                found[name] = InUse(
                    algorithm=name,
                    epsilon=float(params["epsilon"]),
                    delta=float(params["delta"]),
                    neighbours=version.tags.get("neighbours", "none"),
                )
    return list(found.values())


def audit_of(root: Path, run_id: str, algorithm: str) -> dict[str, object]:
    """Return what the last audit has said of the model versions of a run, and the newest audit of an algorithm.

    Parameters
    ----------
    root : Path
    run_id : str
        MLflow's; empty for a run that MLflow does not know.
    algorithm : str

    Returns
    -------
    dict
        ``versions``: each model version with its outcome and reason, ``None`` where none was audited; ``newest``: the
        numbers of the newest audit, ``None`` where there is none.
    """
    if not run_id:
        return {"versions": [], "newest": None}
    with tracking_client(root) as client:
        versions = client.search_model_versions(f"run_id = '{run_id}'")
        newest = _newest_audit(client, algorithm)
    return {
        "versions": [
            {
                "model": f"{one.name}/{one.version}",
                "outcome": one.tags.get(AUDIT_TAG),
                "reason": one.tags.get(f"{AUDIT_TAG}.reason"),
            }
            for one in versions
        ],
        "newest": newest
        and {
            "run": newest.info.run_id,
            "outcome": newest.data.tags.get(AUDIT_TAG),
            "numbers": {name: value for name, value in newest.data.metrics.items() if name != "trade_off"},
        },
    }


def tag_versions(root: Path, algorithm: str, outcome: str, reason: str) -> list[str]:
    """Write what an audit has found on every version of an algorithm, and return which these are.

    A violation that was found before stays: a later audit that sees nothing does not take it back.
    """
    tagged = []
    with tracking_client(root) as client:
        for version in client.search_model_versions():
            if version.tags.get("algorithm") != algorithm:
                continue
            if version.tags.get(AUDIT_TAG) != VIOLATION:
                client.set_model_version_tag(version.name, version.version, AUDIT_TAG, outcome)
                client.set_model_version_tag(version.name, version.version, f"{AUDIT_TAG}.reason", reason)
            tagged.append(f"{version.name} {version.version}")
    return tagged


def promote(root: Path, name: str, version: str, alias: str = CHAMPION) -> None:
    """Give a registered model version an alias.

    No version gets one whose algorithm an audit has refuted. The alias :data:`CHAMPION`, by which models are used, goes
    only to a version of which something is proved, whose account is within its cap, whose algorithm was audited, and
    which is better than the champion, if there is one, on public rows or by what was charged for it
    (:mod:`tasks.tracking.comparison`); a first champion must have been measured.

    Parameters
    ----------
    root : Path
    name, version : str
        Of MLflow's registry.
    alias : str

    Raises
    ------
    RefusedError
        With what is missing, and the way out.
    InputError
        If there is no such version.
    """
    with tracking_client(root) as client:
        found = _version(client, name, version)
        reason = _refuted(client, found) or (_unfit(client, found) if alias == CHAMPION else None)
        if reason is not None:
            raise RefusedError(f"version {version} of {name} is not promoted: {reason}")
        if alias == CHAMPION:
            before = _champions(client, name)
            if [version] != before[-1:]:
                client.set_registered_model_tag(name, _CHAMPIONS, json.dumps([*before, version]))
        client.set_registered_model_alias(name, alias, version)


def roll_back(root: Path, name: str) -> str:
    """Give the alias :data:`CHAMPION` back to the version that had it before, and return that.

    Raises
    ------
    InputError
        If no version had it before.
    RefusedError
        If an audit has refuted that version's algorithm meanwhile.
    """
    with tracking_client(root) as client:
        before = _champions(client, name)
        if len(before) < 2:
            raise InputError(f"no version of {name!r} was champion before the present one")
        version = before[-2]
        if reason := _refuted(client, _version(client, name, version)):
            raise RefusedError(f"version {version} of {name}, champion before, does not come back: {reason}")
        client.set_registered_model_tag(name, _CHAMPIONS, json.dumps(before[:-1]))
        client.set_registered_model_alias(name, CHAMPION, version)
    return version


def _champions(client: MlflowClient, name: str) -> list[str]:
    """Return the versions that were champion, in order, the present one last."""
    from mlflow.exceptions import MlflowException

    try:
        model = client.get_registered_model(name)
    except MlflowException as error:
        raise InputError(f"there is no model {name!r} in MLflow's registry") from error
    noted = [str(one) for one in json.loads(model.tags.get(_CHAMPIONS, "[]"))]
    present = model.aliases.get(CHAMPION)
    # Set or taken away by hand, on MLflow's page.
    return noted if present is None or [str(present)] == noted[-1:] else [*noted, str(present)]


def _version(client: MlflowClient, name: str, version: str) -> ModelVersion:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version(name, version)
    except MlflowException as error:
        raise InputError(f"there is no version {version} of a model {name!r} in MLflow's registry") from error


def _newest_audit(client: MlflowClient, algorithm: str) -> Run | None:
    experiment = client.get_experiment_by_name(AUDITS)
    if experiment is None:
        return None
    found = client.search_runs(
        [experiment.experiment_id],
        f"tags.algorithm = '{algorithm}' and attributes.status = 'FINISHED'",
        order_by=["attributes.start_time DESC"],
        max_results=1,
    )
    return found[0] if found else None


def _refuted(client: MlflowClient, version: ModelVersion) -> str | None:
    """Return what an audit has refuted of a version's algorithm; None where none has."""
    algorithm = version.tags.get("algorithm", "none")
    way_out = (
        f". Train it again once the algorithm is mended; if the finding was an error, delete the tag {AUDIT_TAG} in "
        "MLflow and audit again"
    )
    if version.tags.get(AUDIT_TAG) == VIOLATION:
        said = version.tags.get(f"{AUDIT_TAG}.reason") or f"an audit has refuted what is stated of {algorithm}"
        return said + way_out
    newest = _newest_audit(client, algorithm)
    if newest is not None and newest.data.tags.get(AUDIT_TAG) == VIOLATION:
        return f"the newest audit of {algorithm} has refuted what is stated of it (run {newest.info.run_id})" + way_out
    return None


def _unfit(client: MlflowClient, version: ModelVersion) -> str | None:
    """Return what a version lacks to be champion; None where nothing."""
    algorithm, dataset = (version.tags.get(name, "none") for name in ("algorithm", "dataset"))
    champion = client.get_registered_model(version.name).aliases.get(CHAMPION)
    compared = json.loads(version.tags.get(COMPARISON_TAG, "{}"))
    if version.tags.get("proved", "none") == "none":
        return f"nothing is proved of {algorithm} here; unitball algorithms names what is"
    if AUDIT_TAG not in version.tags and _newest_audit(client, algorithm) is None:
        return f"{algorithm} was not audited; prefect deployment run privacy-audit/weekly does, and charges nothing"
    if not open_catalog().has(dataset):
        return f"this root does not know the data set {dataset!r}, so that nobody can say whether its cap holds"
    if not open_ledger().standing(open_catalog().account_of(dataset).name).admitted:
        return f"the account of {dataset} is above its cap; unitball budget {dataset} says by how much"
    if champion is None or str(champion) == str(version.version):
        measured = client.get_run(version.run_id).data.metrics
        return None if {"accuracy", "r2"} & set(measured) else "it was not measured; train without --no-evaluation"
    if compared.get("champion") != str(champion):
        return (
            f"it was not compared with the champion, version {champion}; unitball model compare "
            f"{version.name}/{version.version}"
        )
    if not compared["gain"] > compared["margin"]:
        gained = f"gain {compared['gain']:+.4f}, margin {compared['margin']:.4f}"
        return f"it is not shown to be better than the champion: {gained}"
    return None
