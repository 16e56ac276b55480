"""Histograms of a version's columns that were released before, on one account: found again, free of charge."""

from collections.abc import Iterator, Sequence
from typing import cast

from dpalgos.columns import Column
from dpalgos.evaluators.column_histograms import ColumnHistograms
from dpalgos.features.label_range import label_range_of_counts
from dpalgos.guarantees import Neighbours
from dpalgos.histograms import ColumnCounts, combined
from dpalgos.parameters import ParameterError
from storage.errors import InputError
from storage.refs import DatasetRef
from tasks.accounts.ledger import open_ledger
from tasks.planning.configuration import TrainingConfig
from tasks.planning.nights import release_of
from tasks.planning.releases import PlannedRelease
from tasks.planning.resolution import covers
from tasks.runtime.stores import open_releases

NAME = "column-histograms"
"""Of the evaluator, as the registry has it."""


def counted_columns(registered: DatasetRef) -> list[dict[str, float]]:
    """Return a version's declared columns as a release of their histograms names them."""
    return [Column(**one.model_dump()).to_json() for one in registered.columns]


def paid_counts(account: str, version: str) -> list[PlannedRelease]:
    """Return the stored releases of columns' histograms that describe a data version and are charged to an account.

    In the order in which they were made, each as it was planned: public facts alone. (What was charged before another,
    and is made after it, comes last: a run that was charged in between rested on the other alone.) A release that
    describes a version is charged by itself; counts that a run makes for its own model are charged together with that,
    and no other run uses them.

    Parameters
    ----------
    account : str
    version : str
        Of the registered rows.
    """
    return paid_releases(account, version, NAME)


def paid_releases(account: str, version: str, evaluator: str, *, alone: bool = True) -> list[PlannedRelease]:
    """Return the stored releases of one evaluator that describe a data version.

    In the order in which they were made.

    Parameters
    ----------
    account, version, evaluator : str
    alone : bool
        Only those that are charged by themselves: counts that are charged with others belong to a run, and count its
        training rows.
    """
    found = {planned.key: planned for planned in _paid(account, version, evaluator, alone=alone)}
    made = [key for key in open_ledger().outputs(account) if key in found]
    return [found[key] for key in made]


def described_columns(
    registered: DatasetRef, relation: Neighbours, trust: str, version: str | None = None
) -> list[PlannedRelease]:
    """Return the histograms that a map of a version's columns may be made of: of the same columns, on its account.

    Of the run's own neighbouring relation alone: what is proved of rows that are replaced is not proved of a row that
    becomes null, and one replacement is two such steps. With no more trust than the run states: its parties have
    trusted no further role with its counts. Of people, those that take as many rows of each.

    Parameters
    ----------
    registered : DatasetRef
    relation : Neighbours
        In force for the run.
    trust : str
        The run's.
    version : str, optional
        An earlier one, whose histograms they are; its own where None.

    Raises
    ------
    InputError
        If a version is named that has no counts.
    """
    columns = counted_columns(registered)
    ends = None if registered.label_range is None else list(registered.label_range)
    found = [
        counts
        for counts in paid_counts(registered.account, version or registered.version)
        if (counts.algorithm.parameters.get("columns"), counts.algorithm.parameters.get("label_range"))
        == (columns, ends)
        and counts.setting.rows_per_person == registered.rows_per_person
        and counts.setting.neighbours == relation
        and covers(trust, counts.setting.trust)
    ]
    if version is not None and not found:
        raise InputError(
            f"account {registered.account} holds no histograms of these columns of version {version} that are proved "
            f"under {relation} and trust {trust}: release them with unitball describe {registered.name} --version "
            f"{version} --epsilon … (it uses the account's relation), or omit --counts-of"
        )
    return found


def require_no_counts(config: TrainingConfig) -> None:
    """Refuse a configuration that names histograms where no map of columns is made.

    Raises
    ------
    ParameterError
    """
    if config.counts_of is not None:
        raise ParameterError(
            f"counts_of is {config.counts_of}, and this run has no column features, which only tables with declared "
            "columns under algorithm unitball have; omit it"
        )


def released_range(counted: Sequence[PlannedRelease]) -> tuple[float, float] | None:
    """Return the range that released histograms say holds nearly all numeric labels; None where there are none.

    Parameters
    ----------
    counted : sequence of PlannedRelease
        Stored, of the same columns and rows, a numeric label among them.
    """
    if not counted:
        return None
    store, decoded = open_releases(), []
    for one in counted:
        values = store.read(one.key)[1]["values"]
        decoded.append(ColumnCounts.of_release(values, cast(ColumnHistograms, one.build()), one.setting))
    return label_range_of_counts(combined(decoded)).ends


def _paid(account: str, version: str, evaluator: str, *, alone: bool) -> Iterator[PlannedRelease]:
    store = open_releases()
    for charge in open_ledger().charges(account):
        # What is charged once more is a separate plan, also if it was first charged with others.
        with_others = charge.plan.releases != (charge.key,)
        if charge.plan.recharge or (alone and with_others) or not store.exists(charge.key):
            continue
        manifest = store.manifest(charge.key)
        if manifest.get("dataset") != version or manifest.get("algorithm", {}).get("name") != evaluator:
            continue
        known = {name: manifest[name] for name in PlannedRelease.model_fields if name in manifest}
        body = {**known, "seed": manifest["public_seed"], "account": account, "delta": charge.plan.delta}
        planned = release_of(body)
        if planned.key == charge.key:
            yield planned
