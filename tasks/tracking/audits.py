"""Results of audits of the algorithms of registered models, on record and shown in MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from storage.errors import InputError
from storage.model_records import WITHDRAWN, AuditRecord, ModelRecords, VersionRecord
from tasks.runtime.stores import open_model_records
from tasks.tracking.runs import tracking_client

AUDITS = "privacy-audits"
"""MLflow's experiment of audits."""

AUDIT_TAG = "unitball.audit"
"""Tag of model versions and of audits' runs: shows what the last audit of the algorithm has said."""

VIOLATION = "violation"
"""The outcome by which promotion is blocked; it stands until the owner withdraws it."""


class InUse(BaseModel, frozen=True):
    """An algorithm that registered model versions were trained with, at a budget.

    Attributes
    ----------
    algorithm : str
    epsilon, delta : float
    neighbours : str
    """

    algorithm: str
    epsilon: float
    delta: float
    neighbours: str


def algorithms_in_use(root: Path) -> list[InUse]:
    """Return each algorithm of the versions on record once, with the budget of its newest version.

    Versions that were trained without a budget have nothing to audit and are left out.
    """
    facts = [one.facts for one in open_model_records(root).versions() if one.facts["epsilon"] is not None]
    newest = {one["algorithm"]: one for one in facts}
    return [InUse.model_validate(one) for one in facts if newest[one["algorithm"]] is one][::-1]


def audit_of(root: Path, run_id: str, algorithm: str) -> dict[str, object]:
    """Return what audits have said of the model versions of a run, and the newest audit of an algorithm.

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
    records = open_model_records(root)
    of_run = [(one, said_of(records, one)) for one in records.versions() if run_id and one.run == run_id]
    versions = [
        {"model": f"{one.model}/{one.version}", "outcome": said and said.outcome, "reason": said and said.reason}
        for one, said in of_run
    ]
    newest = next(reversed(records.audits(algorithm)), None)
    return {
        "versions": versions,
        "newest": newest and {"run": newest.run, "outcome": newest.outcome, "numbers": dict(newest.numbers)},
    }


def note_audit(
    root: Path,
    algorithm: str,
    outcome: str,
    reason: str,
    *,
    run: str = "",
    numbers: Mapping[str, float] | None = None,
) -> list[str]:
    """Put on record what an audit has found, show it on every version of the algorithm, and return which these are.

    A violation that was found before stays: a later audit that sees nothing does not take it back.

    Parameters
    ----------
    root : Path
    algorithm, outcome, reason : str
    run : str
        MLflow's id of the audit.
    numbers : mapping of str to float, optional
    """
    records = open_model_records(root)
    records.record_audit(algorithm, outcome, reason, run=run, numbers=numbers)
    return _show_audits(root, algorithm)


def withdraw_audits(root: Path, algorithm: str, reason: str) -> list[str]:
    """Withdraw an algorithm's audits, on record; return the versions that are no longer blocked by a violation.

    Raises
    ------
    InputError
        If no audit of it has found a violation, or no reason is given.
    """
    records = open_model_records(root)
    if not reason.strip():
        raise InputError("withdrawing an audit is recorded: give the reason with --reason")
    if all(one.outcome != VIOLATION for one in records.audits(algorithm)):
        raise InputError(f"no valid audit of {algorithm!r} has found a violation; there is nothing to withdraw")
    records.record_audit(algorithm, WITHDRAWN, reason)
    return _show_audits(root, algorithm)


def _show_audits(root: Path, algorithm: str) -> list[str]:
    """Let the tags in MLflow show what is on record, and return the versions on record that MLflow knows."""
    records = open_model_records(root)
    recorded = {(one.model, one.version, one.run): one for one in records.versions()}
    shown = []
    with tracking_client(root) as client:
        for version in client.search_model_versions():
            one = recorded.get((version.name, str(version.version), str(version.run_id)))
            if one is None or one.facts["algorithm"] != algorithm:
                continue
            said = said_of(records, one)
            tags = {AUDIT_TAG: said.outcome, f"{AUDIT_TAG}.reason": said.reason} if said else {}
            for tag, value in tags.items():
                client.set_model_version_tag(version.name, version.version, tag, value)
            for tag in {AUDIT_TAG, f"{AUDIT_TAG}.reason"} & set(version.tags) - set(tags):
                client.delete_model_version_tag(version.name, version.version, tag)
            shown.append(f"{version.name} {version.version}")
    return shown


def refuted(records: ModelRecords, version: VersionRecord) -> str | None:
    """Return what an audit has refuted of a version's algorithm; None where none has."""
    algorithm = version.facts["algorithm"]
    way_out = (
        ". Train it again once the algorithm is corrected; if the finding was an error: unitball model withdraw-audits "
        f"{algorithm} --reason …, and audit again"
    )
    said, newest = said_of(records, version), next(reversed(records.audits(algorithm)), None)
    if said is not None and said.outcome == VIOLATION:
        return (said.reason or f"an audit has refuted the statement of {algorithm}") + way_out
    if newest is not None and newest.outcome == VIOLATION:
        return f"the newest audit of {algorithm} has refuted its statement (run {newest.run})" + way_out
    return None


def said_of(records: ModelRecords, version: VersionRecord) -> AuditRecord | None:
    """Return the audit since a version was made that tells most of its algorithm: a violation, or else the last."""
    since = [one for one in records.audits(version.facts["algorithm"]) if one.sequence > version.sequence]
    telling = [one for one in since if one.outcome == VIOLATION] or since
    return telling[-1] if telling else None
