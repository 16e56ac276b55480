"""Which algorithms models were made with, what audits have said of them, and whether a version may be promoted.

Promotion is to give a version an alias, by which others load it. What it rests on, and who is champion, is on record in
the root (:mod:`storage.model_records`): MLflow's tags and aliases show it, and whoever writes them there changes
nothing here. MLflow's own page and clients follow its alias and ask nobody.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from storage.errors import InputError, RefusedError
from storage.model_records import WITHDRAWN, ModelRecords, VersionRecord
from tasks.accounts.budget import open_ledger
from tasks.runtime.stores import open_catalog, open_model_records
from tasks.tracking.client import tracking_client
from tasks.tracking.models import CHAMPION, RegisteredModel, find_model, record_of, require_unchanged

if TYPE_CHECKING:
    from collections.abc import Mapping


AUDITS = "privacy-audits"
"""MLflow's experiment of audits."""

AUDIT_TAG = "unitball.audit"
"""Tag of model versions and of audits' runs: shows what the last audit of the algorithm has said."""

COMPARISON_TAG = "unitball.comparison"
"""Tag of model versions: shows how they have compared with the champion, as JSON."""

VIOLATION = "violation"
"""The outcome by which promotion is blocked; it stands until the owner withdraws it."""


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
    audits = records.audits(algorithm)
    said = [(one, _said(records, one) or (None, None)) for one in records.versions() if run_id and one.run == run_id]
    versions = [
        {"model": f"{one.model}/{one.version}", "outcome": outcome, "reason": reason} for one, (outcome, reason) in said
    ]
    newest = audits[-1] if audits else None
    return {
        "versions": versions,
        "newest": newest and {"run": newest.run, "outcome": newest.outcome, "numbers": dict(newest.numbers)},
    }


def _said(records: ModelRecords, version: VersionRecord) -> tuple[str, str] | None:
    """Return what audits since a version was made have said of its algorithm: a violation, or else the last of them."""
    since = [one for one in records.audits(version.facts["algorithm"]) if one.sequence > version.sequence]
    telling = [one for one in since if one.outcome == VIOLATION] or since
    return (telling[-1].outcome, telling[-1].reason) if telling else None


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
    """Take back, on record, what audits have said of an algorithm; return the versions that no violation blocks now.

    Raises
    ------
    InputError
        If no audit of it has found a violation, or no reason is given.
    """
    records = open_model_records(root)
    if not reason.strip():
        raise InputError("what audits have found is withdrawn on record: say why with --reason")
    if all(one.outcome != VIOLATION for one in records.audits(algorithm)):
        raise InputError(f"no audit of {algorithm!r} that stands has found a violation; there is nothing to withdraw")
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
            said = _said(records, one)
            for tag, value in zip((AUDIT_TAG, f"{AUDIT_TAG}.reason"), said or (None, None), strict=True):
                if value is not None:
                    client.set_model_version_tag(version.name, version.version, tag, value)
                elif tag in version.tags:
                    client.delete_model_version_tag(version.name, version.version, tag)
            shown.append(f"{version.name} {version.version}")
    return shown


def promote(root: Path, name: str, version: str, alias: str = CHAMPION) -> None:
    """Give a registered model version an alias.

    No version gets one whose algorithm an audit has refuted. :data:`CHAMPION`, by which models are used, goes only to a
    version whose file is the one that was logged, of which something is proved, whose account is within its cap, whose
    algorithm was audited, and which is better than the champion, if there is one, on public rows or by what was charged
    for it (:mod:`tasks.tracking.comparison`); a first champion must have been measured. All that is read from the
    root's records.

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
        If there is no such version, or this root has not logged it.
    storage.errors.DamagedError
        If the file in MLflow is another one than was logged.
    """
    model, records = find_model(root, f"{name}/{version}"), open_model_records(root)
    recorded = record_of(root, model)
    reason = _refuted(records, recorded) or (_unfit(records, recorded) if alias == CHAMPION else None)
    if reason is not None:
        raise RefusedError(f"version {version} of {name} is not promoted: {reason}")
    require_unchanged(root, model)
    if alias == CHAMPION and records.champions(name)[-1:] != [version]:
        records.record_champion(name, version)
    _show_alias(root, name, alias, version)


def roll_back(root: Path, name: str) -> str:
    """Make the version champion again that was before the present one, and return it.

    Raises
    ------
    InputError
        If no version was champion before.
    RefusedError
        If an audit has refuted that version's algorithm meanwhile.
    """
    records = open_model_records(root)
    before = records.champions(name)
    if len(before) < 2:
        raise InputError(f"no version of {name!r} was champion before the present one")
    model: RegisteredModel = find_model(root, f"{name}/{before[-2]}")
    if reason := _refuted(records, record_of(root, model)):
        raise RefusedError(f"version {model.version} of {name}, champion before, does not come back: {reason}")
    require_unchanged(root, model)
    records.record_champion(name, model.version, back=True)
    _show_alias(root, name, CHAMPION, model.version)
    return model.version


def _show_alias(root: Path, name: str, alias: str, version: str) -> None:
    with tracking_client(root) as client:
        client.set_registered_model_alias(name, alias, version)


def _refuted(records: ModelRecords, version: VersionRecord) -> str | None:
    """Return what an audit has refuted of a version's algorithm; None where none has."""
    algorithm = version.facts["algorithm"]
    way_out = (
        ". Train it again once the algorithm is mended; if the finding was an error: unitball model withdraw-audits "
        f"{algorithm} --reason …, and audit again"
    )
    said = _said(records, version)
    if said is not None and said[0] == VIOLATION:
        return (said[1] or f"an audit has refuted what is stated of {algorithm}") + way_out
    newest = records.audits(algorithm)[-1:]
    if newest and newest[0].outcome == VIOLATION:
        return f"the newest audit of {algorithm} has refuted what is stated of it (run {newest[0].run})" + way_out
    return None


def _unfit(records: ModelRecords, version: VersionRecord) -> str | None:
    """Return what a version lacks to be champion; None where nothing."""
    algorithm, dataset = version.facts["algorithm"], version.facts["dataset"]
    champions = records.champions(version.model)
    if version.facts["proved"] == "none":
        return f"nothing is proved of {algorithm} here; unitball algorithms names what is"
    if not records.audits(algorithm):
        return f"{algorithm} was not audited; prefect deployment run privacy-audit/weekly does, and charges nothing"
    if not open_catalog().has(dataset):
        return f"this root does not know the data set {dataset!r}, so that nobody can say whether its cap holds"
    if not open_ledger().standing(open_catalog().account_of(dataset).name).admitted:
        return f"the account of {dataset} is above its cap; unitball budget {dataset} says by how much"
    if not champions or champions[-1] == version.version:
        measured = {"accuracy", "r2"} & set(version.facts["metrics"])
        return None if measured else "it was not measured; train without --no-evaluation"
    compared = records.comparison(version.model, version.version)
    if compared is None or compared["champion"] != champions[-1]:
        return (
            f"it was not compared with the champion, version {champions[-1]}; unitball model compare "
            f"{version.model}/{version.version}"
        )
    if not compared["gain"] > compared["margin"]:
        gained = f"gain {compared['gain']:+.4f}, margin {compared['margin']:.4f}"
        return f"it is not shown to be better than the champion: {gained}"
    return None
