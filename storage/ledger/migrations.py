"""Steps that bring a ledger of an older format to the next one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, insert, select

from storage.errors import StorageError
from storage.ledger import marks
from storage.ledger.chain import Chain, Link, canonical
from storage.ledger.tables import entries, meta
from storage.secrets import Secret


def _to_keyed_entries(connection: Connection, secret: Secret, head: Path | None) -> None:
    """Format 2: digests are keyed. The entries so far stay as they are; a first keyed one seals them.

    An older ledger that does not agree with its own digests or its high-water mark is refused: sealing it would make
    an edit look sound.
    """
    ledger_id = connection.execute(select(meta.c.value).where(meta.c.name == "ledger_id")).scalar_one()
    rows = connection.execute(select(entries).order_by(entries.c.sequence)).mappings().all()
    unkeyed = Chain(ledger_id, secret, keyed_from=sys.maxsize)
    before = Link(ledger_id, rows[-1]["sequence"], rows[-1]["digest"]) if rows else unkeyed.origin()
    problems = [*unkeyed.problems(rows, unkeyed.origin())]
    if head is not None:
        digests = {row["sequence"]: row["digest"] for row in rows}
        problem = marks.behind(before, digests.get, marks.read(head, unkeyed))
        problems += [] if problem is None else [problem]
    if problems:
        raise StorageError(
            f"the ledger is of an older format and not in order ({problems[0]}); put back the newest back-up. "
            "Nothing was charged"
        )
    chain = Chain(ledger_id, secret, keyed_from=before.sequence + 1)
    seal = {
        "sequence": chain.keyed_from,
        "kind": "seal",
        "account": "",
        "subject": "entries before",
        "recorded_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "content": canonical({"keyed_from": chain.keyed_from}),
        "previous": before.digest,
    }
    connection.execute(insert(entries).values(**seal, digest=chain.digest(seal)))
    connection.execute(
        insert(meta),
        [{"name": "keyed_from", "value": str(chain.keyed_from)}, {"name": "key_id", "value": chain.key_id()}],
    )


MIGRATIONS: dict[int, Callable[[Connection, Secret, Path | None], None]] = {1: _to_keyed_entries}
"""From a version to the next: each takes an open transaction, in which the version is raised as well."""
