"""Entries of a ledger as they lie there, taken elsewhere: which ones speak of releases, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from storage.ledger.database import Database
from storage.ledger.entries import Kind, reading
from storage.ledger.tables import entries as table

FIELDS = tuple(column.name for column in table.columns)
"""What an entry is made of, its digest included."""


def extract(database: Database, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entries that speak of releases, in their order, each a mapping of :data:`FIELDS`.

    These are the openings of the accounts that paid and the changes of their caps, the plans that the releases were
    charged with, all charges of these plans, and the digests of the releases' outputs.

    Parameters
    ----------
    database : Database
    keys : sequence of str
    """
    with reading(database) as found:
        charges = found.find(Kind.CHARGE, Kind.RECHARGE, subjects=list(keys)) if keys else []
        plans = {int(charge.content["plan"]) for charge in charges}
        accounts = {charge.account for charge in charges}
        numbers = set(plans)
        for account in accounts:
            opened = [*found.find(Kind.ACCOUNT, subject=account), *found.find(Kind.CAP, account=account)]
            numbers |= {entry.sequence for entry in opened}
            numbers |= {
                entry.sequence
                for entry in found.find(Kind.CHARGE, Kind.RECHARGE, account=account)
                if int(entry.content["plan"]) in plans
            }
        if keys:
            numbers |= {entry.sequence for entry in found.find(Kind.OUTPUT, subjects=list(keys))}
        return [found.written(number) for number in sorted(numbers)]


def linked(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is wrong with the order of extracted entries, as far as that shows without the ledger's key.

    Neighbours in the chain are linked: an entry carries the digest of the one before it. Between others nothing is
    known, and that a digest is the one of its content only the holder of the key can tell (:func:`unlike`).
    """
    for before, after in pairwise(rows):
        if after["sequence"] <= before["sequence"]:
            yield f"entry {after['sequence']} stands after entry {before['sequence']}"
        elif after["sequence"] == before["sequence"] + 1 and after["previous"] != before["digest"]:
            yield f"entry {after['sequence']} does not follow entry {before['sequence']}: reordered or replaced"


def unlike(database: Database, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield in what extracted entries differ from those of the ledger they were taken from, at hand with its key."""
    with reading(database) as found:
        newest = found.last().sequence
        for row in rows:
            if database.chain.changed(row) is not None:
                yield f"entry {row['sequence']} was changed: its keyed digest does not match its content"
            elif row["sequence"] > newest or found.written(row["sequence"]) != dict(row):
                yield f"entry {row['sequence']} is not the one in the ledger {database.place}"
