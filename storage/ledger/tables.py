"""The two tables behind ledger and catalogue, and the triggers by which the database itself only appends."""

from __future__ import annotations

from sqlalchemy import DDL, BigInteger, Column, Index, Integer, MetaData, String, Table, Text, event

metadata = MetaData()

meta = Table(
    "ledger_meta",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", Text, nullable=False),
)

entries = Table(
    "ledger_entries",
    metadata,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("kind", String(20), nullable=False),
    Column("account", String(200), nullable=False),
    Column("subject", String(200), nullable=False),
    Column("recorded_at", String(40), nullable=False),
    Column("content", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
)

Index("ledger_by_account", entries.c.account, entries.c.kind, entries.c.sequence)
Index("ledger_by_subject", entries.c.kind, entries.c.subject, entries.c.sequence)
_once = {
    "ledger_account_once": entries.c.kind == "account",
    "ledger_charge_once": entries.c.kind == "charge",
}
for _name, _where in _once.items():
    Index(_name, entries.c.account, entries.c.subject, unique=True, sqlite_where=_where, postgresql_where=_where)

# INSERT OR REPLACE deletes without firing a delete trigger, so the insert is guarded as well.
_SQLITE_TRIGGERS = (
    "CREATE TRIGGER ledger_no_update BEFORE UPDATE ON ledger_entries "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER ledger_no_delete BEFORE DELETE ON ledger_entries "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER ledger_in_order BEFORE INSERT ON ledger_entries "
    "WHEN NEW.sequence IS NOT (SELECT coalesce(max(sequence), 0) + 1 FROM ledger_entries) "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
)
_POSTGRESQL_TRIGGERS = (
    "CREATE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$",
    "CREATE TRIGGER ledger_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries "
    "FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()",
    "CREATE FUNCTION ledger_at_the_end() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN IF NEW.sequence IS DISTINCT FROM (SELECT coalesce(max(sequence), 0) + 1 FROM ledger_entries) "
    "THEN RAISE EXCEPTION 'the ledger is append-only'; END IF; RETURN NEW; END $$",
    "CREATE TRIGGER ledger_in_order BEFORE INSERT ON ledger_entries FOR EACH ROW EXECUTE FUNCTION ledger_at_the_end()",
)
for _dialect, _triggers in (("sqlite", _SQLITE_TRIGGERS), ("postgresql", _POSTGRESQL_TRIGGERS)):
    for _trigger in _triggers:
        _ddl = DDL(_trigger)  # type: ignore[no-untyped-call]  # SQLAlchemy's DDL has no types
        event.listen(entries, "after_create", _ddl.execute_if(dialect=_dialect))
