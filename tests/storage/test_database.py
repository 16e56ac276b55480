"""The database is made whole or not at all, knows its version, and says in one line what is wrong with it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from storage import database as module
from storage.charges import Cap
from storage.database import open_database
from storage.entries import reading
from storage.errors import FormatVersionError, InputError, StorageError
from tests.support.ledgers import database_of, die, killed, open_ledger, race, release, request, spent


def _execute(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def test_a_new_file_is_a_ledger_and_nothing_else_is_left(tmp_path: Path) -> None:
    database = open_database(tmp_path / "ledger.sqlite")
    with reading(database) as entries:
        assert entries.last().sequence == 0
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]
    assert open_database(str(tmp_path / "ledger.sqlite")).ledger_id == database.ledger_id


@pytest.mark.parametrize("name", ["a ledger?mode=ro&x#y%20.sqlite", "größe.sqlite"])
def test_a_path_may_hold_characters_that_mean_something_in_a_url(tmp_path: Path, name: str) -> None:
    ledger = open_ledger(tmp_path / name, cap=1)
    ledger.charge(request(release("k")), {})
    assert (tmp_path / name).exists()
    assert spent(open_ledger(tmp_path / name)) == 1


def test_two_first_processes_make_one_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    identities = race(12, lambda _: open_database(path).ledger_id)
    assert len(set(identities)) == 1
    assert [found.name for found in tmp_path.iterdir()] == ["ledger.sqlite"]


@pytest.mark.parametrize("point", ["before the schema", "after the schema", "before the rename"])
def test_a_kill_while_it_is_made_leaves_nothing_half_made(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.sqlite"
    create = module._create_schema

    def create_and_die(connection: Connection) -> None:
        create(connection)
        die()

    def body() -> None:
        if point == "before the rename":
            monkeypatch.setattr(Path, "replace", die)
        else:
            monkeypatch.setattr(module, "_create_schema", die if point == "before the schema" else create_and_die)
        open_database(path)

    killed(body)
    assert not path.exists()
    open_database(path)
    assert [found.name for found in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_a_newer_format_is_refused_on_opening_and_under_way(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=5)
    _execute(path, "UPDATE ledger_meta SET value = '2' WHERE name = 'format_version'")
    with pytest.raises(FormatVersionError, match=r"format version 2.*newer Unitball"):
        open_database(path)
    with pytest.raises(FormatVersionError, match="format version 2"):
        ledger.charge(request(release("k")), {})


def _make_version_0(path: Path) -> None:
    """Version 0 never existed: today's tables without the triggers, with one account and one charge."""
    ledger = open_ledger(path, cap=5)
    ledger.charge(request(release("k")), {})
    for trigger in ("ledger_no_update", "ledger_no_delete", "ledger_in_order"):
        _execute(path, f"DROP TRIGGER {trigger}")
    _execute(path, "UPDATE ledger_meta SET value = '0' WHERE name = 'format_version'")


def _from_0_to_1(connection: Connection) -> None:
    for trigger in module._SQLITE_TRIGGERS:
        connection.execute(text(trigger))


def test_an_older_format_is_migrated_once_by_racing_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.sqlite"
    _make_version_0(path)
    monkeypatch.setitem(module.MIGRATIONS, 0, _from_0_to_1)
    # A second CREATE TRIGGER would fail, so equal answers mean that it ran once.
    assert len(set(race(6, lambda _: open_database(path).ledger_id))) == 1
    ledger = open_ledger(path)
    assert spent(ledger) == 1
    assert ledger.verify() == []
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        _execute(path, "DELETE FROM ledger_entries")


def test_a_kill_during_a_migration_leaves_the_older_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.sqlite"
    _make_version_0(path)

    def migrate_and_die(connection: Connection) -> None:
        _from_0_to_1(connection)
        die()

    monkeypatch.setitem(module.MIGRATIONS, 0, migrate_and_die)
    killed(lambda: open_database(path))
    monkeypatch.setitem(module.MIGRATIONS, 0, _from_0_to_1)
    assert spent(open_ledger(path)) == 1


def test_an_older_format_without_a_way_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    _make_version_0(path)
    with pytest.raises(StorageError, match="format version 0, which cannot be migrated to 1"):
        open_database(path)


@pytest.mark.parametrize("content", [b"", b"this is not a database at all" * 100])
def test_another_file_is_not_taken_for_a_ledger_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"not a ledger|without a ledger"):
        open_database(path)
    assert path.read_bytes() == content


def test_a_damaged_table_of_versions_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    open_database(path)
    _execute(path, "UPDATE ledger_meta SET value = 'one' WHERE name = 'format_version'")
    with pytest.raises(StorageError, match="damaged"):
        open_database(path)


def test_damaged_pages_are_an_error_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=100)
    for number in range(20):
        ledger.charge(request(release(f"k{number}")), {})
    content = bytearray(path.read_bytes())
    content[4096 : len(content)] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StorageError, match="is damaged; nothing was charged") as caught:
        ledger.charge(request(release("new")), {})
    assert "\n" not in str(caught.value)


def test_a_ledger_that_was_removed_is_not_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=5)
    path.unlink()
    with pytest.raises(StorageError, match=r"is missing but ledger\.head is there"):
        open_database(path)
    with pytest.raises(StorageError, match="cannot be opened; nothing was charged"):
        ledger.charge(request(release("k")), {})
    assert not path.exists()


def test_a_root_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot be made .*directory exists"):
        open_database(tmp_path / "nowhere" / "ledger.sqlite")


@pytest.mark.parametrize("url", ["mysql://user:hunter2@host/ledger", "postgresql://user:hunter2@host:port/x", "://"])
def test_other_urls_are_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(InputError, match="postgresql://") as caught:
        open_database(url)
    assert "hunter2" not in str(caught.value)


def test_an_unreachable_server_is_one_line_without_a_password(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        open_database(f"postgresql://unitball:hunter2@/ledger?host={tmp_path}")
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_errors_show_no_parameters_of_a_statement(tmp_path: Path) -> None:
    database = open_database(tmp_path / "ledger.sqlite")
    with pytest.raises(StorageError) as caught, database.transaction(write=True) as connection:
        connection.execute(text("INSERT INTO nowhere VALUES (:value)"), {"value": "a secret value"})
    assert "a secret value" not in str(caught.value)
    assert "a secret value" not in str(caught.value.__cause__)


def test_an_error_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "ledger.sqlite", cap=5)
    before = (tmp_path / "ledger.sqlite").read_bytes()

    def body() -> None:
        with database_of(ledger).transaction(write=True) as connection:
            connection.execute(text("INSERT INTO ledger_meta VALUES ('x', 'y')"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        body()
    assert (tmp_path / "ledger.sqlite").read_bytes() == before
    ledger.raise_cap("clinic", Cap(6, 1e-5), by="owner", why="the lock is free again")
