"""Champion of a model's name: promoted where the records admit it, and rolled back."""

from __future__ import annotations

from pathlib import Path

from storage.errors import InputError, RefusedError
from storage.model_records import ModelRecords, VersionRecord
from tasks.accounts.ledger import open_ledger
from tasks.runtime.stores import open_catalog, open_model_records
from tasks.tracking.audits import refuted
from tasks.tracking.model_files import require_unchanged
from tasks.tracking.model_versions import find_model, in_mlflow, record_of, show_as_champion, versions_of
from tasks.tracking.runs import tracking_client


def promote(root: Path, name: str, version: str) -> None:
    """Make a registered model version champion.

    No version is whose algorithm an audit has refuted, whose file is not the one that was logged, of which nothing is
    proved, whose account is above its cap, whose algorithm was not audited, or which is not better than the champion,
    if there is one, on public rows or by what was charged for it
    (:func:`~tasks.tracking.champion_comparison.compare_models`); a first champion must have been measured. All
    that is read from the root's records, and written there before MLflow shows it.

    Parameters
    ----------
    root : Path
    name, version : str
        Of MLflow's registry.

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
    if reason := refuted(records, recorded) or _unfit(records, recorded):
        raise RefusedError(f"version {version} of {name} is not promoted: {reason}")
    require_unchanged(root, model)
    if records.champions(name)[-1:] != [recorded]:
        records.record_champion(recorded)
    show_as_champion(root, model)


def roll_back(root: Path, name: str) -> str:
    """Make the version champion again that was before the present one, and return it.

    Raises
    ------
    InputError
        If no version was champion before, or it is not in MLflow any more.
    RefusedError
        If an audit has refuted that version's algorithm meanwhile.
    """
    records = open_model_records(root)
    champions = records.champions(name)
    if len(champions) < 2:
        raise InputError(f"no version of {name!r} was champion before the current one")
    before = champions[-2]
    with tracking_client(root) as client:
        model = in_mlflow(versions_of(client, name), before)
    if reason := refuted(records, before):
        raise RefusedError(f"version {model.version} of {name}, champion before, is not restored: {reason}")
    require_unchanged(root, model)
    records.record_champion(before, back=True)
    show_as_champion(root, model)
    return model.version


def _unfit(records: ModelRecords, version: VersionRecord) -> str | None:
    """Return what a version lacks to be champion; None where nothing."""
    algorithm, dataset = version.facts["algorithm"], version.facts["dataset"]
    champion = next(reversed(records.champions(version.model)), None)
    if version.facts["proved"] == "none":
        return f"{algorithm} has no proof here; unitball algorithms lists the proved ones"
    if not records.audits(algorithm):
        return f"{algorithm} was not audited; run the audit, which is free: prefect deployment run privacy-audit/audit"
    if not open_catalog().registrations(dataset):
        return f"this root does not know the data set {dataset!r}, so its cap cannot be checked"
    if not open_ledger().status(open_catalog().account_of(dataset).name).admitted:
        return f"the account of {dataset} is above its cap; unitball budget {dataset} shows by how much"
    if champion is None or champion == version:
        measured = {"accuracy", "r2"} & set(version.facts["metrics"])
        return None if measured else "it was not measured; train without --no-evaluation"
    compared = records.comparison(version)
    if compared is None or (compared["champion"], compared["champion_run"]) != (champion.version, champion.run):
        return (
            f"it was not compared with the champion, version {champion.version}; unitball model compare "
            f"{version.model}/{version.version}"
        )
    if not compared["gain"] > compared["margin"]:
        gained = f"gain {compared['gain']:+.4f}, margin {compared['margin']:.4f}"
        return f"it is not shown to be better than the champion: {gained}"
    return None
