"""Which model versions there are, what audits have said of their algorithm, and whether one may be promoted.

Promotion is to give a version an alias, by which others load it. It asks here; MLflow's own page and clients do not, so
whoever sets an alias there looks at the tag by himself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from storage.errors import InputError, RefusedError
from tasks.tracking.client import tracking_client

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

__all__ = ["AUDITS", "AUDIT_TAG", "VIOLATION", "InUse", "algorithms_in_use", "audit_of", "promote", "tag_versions"]

AUDITS = "privacy-audits"
"""MLflow's experiment of audits."""

AUDIT_TAG = "unitball.audit"
"""Tag of model versions and of audits' runs: what the last audit of the algorithm has said."""

VIOLATION = "violation"
"""The value of the tag by which promotion is blocked; it stays until its owner deletes it."""


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


def promote(root: Path, name: str, version: str, alias: str) -> None:
    """Give a registered model version an alias, unless an audit has refuted what is stated of its algorithm.

    Parameters
    ----------
    root : Path
    name, version : str
        Of MLflow's registry.
    alias : str

    Raises
    ------
    RefusedError
        If the version is tagged with a violation, or the newest audit of its algorithm has found one.
    InputError
        If there is no such version.
    """
    from mlflow.exceptions import MlflowException

    with tracking_client(root) as client:
        try:
            found = client.get_model_version(name, version)
        except MlflowException as error:
            raise InputError(f"there is no version {version} of a model {name!r} in MLflow's registry") from error
        reason = _blocked(client, found)
        if reason is not None:
            raise RefusedError(
                f"version {version} of {name} is not promoted: {reason}. Train it again once the algorithm is mended; "
                f"if the finding was an error, delete the tag {AUDIT_TAG} in MLflow and audit again"
            )
        client.set_registered_model_alias(name, alias, version)


def _blocked(client: MlflowClient, version: ModelVersion) -> str | None:
    """Return why a version may not be promoted; None where it may."""
    algorithm = version.tags.get("algorithm", "none")
    if version.tags.get(AUDIT_TAG) == VIOLATION:
        return version.tags.get(f"{AUDIT_TAG}.reason") or f"an audit has refuted what is stated of {algorithm}"
    newest = _newest_audit(client, algorithm)
    if newest is not None and newest.data.tags.get(AUDIT_TAG) == VIOLATION:
        return f"the newest audit of {algorithm} has refuted what is stated of it (run {newest.info.run_id})"
    return None


def _newest_audit(client: MlflowClient, algorithm: str) -> Run | None:
    experiment = client.get_experiment_by_name(AUDITS)
    if experiment is None:
        return None
    return next(
        iter(
            client.search_runs(
                [experiment.experiment_id],
                f"tags.algorithm = '{algorithm}' and attributes.status = 'FINISHED'",
                order_by=["attributes.start_time DESC"],
                max_results=1,
            )
        ),
        None,
    )
