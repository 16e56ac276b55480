"""Histograms of a version's columns that were released before, on one account: found again, free of charge."""

from collections.abc import Iterator

from dpalgos.columns import Column
from storage.refs import DatasetRef
from tasks.accounts.ledger import open_ledger
from tasks.planning.nights import release_of
from tasks.planning.releases import PlannedRelease
from tasks.runtime.stores import open_releases

NAME = "column-histograms"
"""Of the evaluator, as the registry has it."""


def paid_counts(account: str, version: str) -> list[PlannedRelease]:
    """Return the stored releases of columns' histograms that describe a data version and are charged to an account.

    In the order of their charges, each as it was planned: public facts alone. A release that describes a version is
    charged by itself; counts that a run makes for its own model are charged together with that, and are nobody else's.

    Parameters
    ----------
    account : str
    version : str
        Of the registered rows.
    """
    return list({planned.key: planned for planned in _paid(account, version)}.values())


def described_columns(registered: DatasetRef) -> list[PlannedRelease]:
    """Return the histograms of a registered version that a map of its columns may be made of: of the same columns.

    Parameters
    ----------
    registered : DatasetRef
    """
    columns = [Column(**one.model_dump()).to_json() for one in registered.columns]
    ends = None if registered.label_range is None else list(registered.label_range)
    return [
        one
        for one in paid_counts(registered.account, registered.version)
        if (one.algorithm.parameters.get("columns"), one.algorithm.parameters.get("label_range")) == (columns, ends)
    ]


def _paid(account: str, version: str) -> Iterator[PlannedRelease]:
    store = open_releases()
    for charge in open_ledger().charges(account):
        if charge.plan.releases != (charge.key,) or not store.exists(charge.key):
            continue
        manifest = store.manifest(charge.key)
        if manifest.get("dataset") != version or manifest.get("algorithm", {}).get("name") != NAME:
            continue
        known = {name: manifest[name] for name in PlannedRelease.model_fields if name in manifest}
        body = {**known, "seed": manifest["public_seed"], "account": account, "delta": charge.plan.delta}
        planned = release_of(body)
        if planned.key == charge.key:
            yield planned
