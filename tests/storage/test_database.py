"""The database is made whole or not at all, knows its version, and says in one line what is wrong with it."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from storage.errors import FormatVersionError, InputError, SecretError, StorageError
from storage.ledger import database as module
from storage.ledger.charges import Cap
from storage.ledger.database import FORMAT_VERSION, Memory, open_database
from storage.ledger.entries import reading
from storage.ledger.ledger import Ledger
from storage.secrets import Secret
from tests.support.forks import die, killed, race
from tests.support.ledgers import (
    KEY,
    SumOfEpsilons,
    database_of,
    open_ledger,
    opened,
    release,
    request,
    spent,
)
from tests.support.stating import stating


def _execute(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def test_a_new_file_is_a_ledger_and_nothing_else_is_left(tmp_path: Path) -> None:
    database = opened(tmp_path / "ledger.sqlite")
    with reading(database) as entries:
        assert entries.last().sequence == 0
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]
    assert opened(str(tmp_path / "ledger.sqlite")).chain.ledger_id == database.chain.ledger_id


def test_a_new_ledgers_name_is_on_the_disk_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not take away a file of which a charge was confirmed."""
    path, synced = tmp_path / "ledger.sqlite", []
    monkeypatch.setattr(module, "sync", lambda folder: synced.append((folder, path.exists())))
    opened(path)
    assert synced == [(tmp_path, True)]


@pytest.mark.parametrize("name", ["a ledger?mode=ro&x#y%20.sqlite", "größe.sqlite"])
def test_a_path_may_hold_characters_that_mean_something_in_a_url(tmp_path: Path, name: str) -> None:
    ledger = open_ledger(tmp_path / name, cap=1)
    ledger.charge(request(release("k")), {})
    assert (tmp_path / name).exists()
    assert spent(open_ledger(tmp_path / name)) == 1


def test_two_first_processes_make_one_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    identities = race(12, lambda _: opened(path).chain.ledger_id)
    assert len(set(identities)) == 1
    assert [found.name for found in tmp_path.iterdir()] == ["ledger.sqlite"]


@pytest.mark.parametrize("point", ["before the schema", "after the schema", "before the rename"])
def test_a_kill_while_it_is_made_leaves_nothing_half_made(tmp_path: Path, point: str) -> None:
    path = tmp_path / "ledger.sqlite"
    create = module._create_schema

    def create_and_die(*arguments: Any) -> None:
        if point == "after the schema":
            create(*arguments)
        die()

    def body() -> None:
        if point == "before the rename":
            Path.replace = die  # type: ignore[method-assign]  # in a child
        else:
            module._create_schema = create_and_die  # type: ignore[assignment]  # in a child
        opened(path)

    killed(body)
    assert not path.exists()
    opened(path)
    assert [found.name for found in tmp_path.iterdir()] == ["ledger.sqlite"]


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
def test_another_format_is_refused_on_opening_and_under_way(tmp_path: Path, version: int) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=5)
    _execute(path, f"UPDATE ledger_meta SET value = '{version}' WHERE name = 'format_version'")
    told = stating(value=version, bound=FORMAT_VERSION)
    before = path.read_bytes()
    with pytest.raises(FormatVersionError, check=told):
        opened(path)
    with pytest.raises(FormatVersionError, check=told):
        ledger.charge(request(release("k")), {})
    assert path.read_bytes() == before


def test_what_is_remembered_of_a_mark_ends_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark is read again only where somebody else has written it; one that was changed is noticed all the same."""
    path, honest = tmp_path / "ledger.sqlite", module.read_mark
    read: list[str] = []

    def noted(place: Path, *more: Any) -> Any:
        read.append(place.name)
        return honest(place, *more)

    monkeypatch.setattr(module, "read_mark", noted)
    ledger = open_ledger(path, cap=9)

    def charged(key: str, by: Ledger = ledger) -> list[str]:
        read.clear()
        by.charge(request(release(key)), {})
        return list(read)

    assert charged("ours") == [], "its own writing is known"
    charged("theirs", open_ledger(path))
    assert charged("ours again") == ["ledger.head"]
    head = path.with_suffix(".head")
    head.write_text(head.read_text().replace('"sequence":', '"sequence":1'))
    with pytest.raises(StorageError, match=r"ledger\.head"):
        charged("after a change")
    assert spent(ledger) == 3


def test_a_connection_is_used_again_as_long_as_the_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after others wrote, nor for another file in its place, after an error, or in a process that was forked."""
    path, memory = tmp_path / "ledger.sqlite", Memory()
    database = open_database(path, key=KEY, memory=memory)
    made: list[object] = []
    event.listen(database.engine, "connect", lambda *_: made.append(1))

    def connections(*, write: bool = False) -> tuple[int, str]:
        # So that the file's times have advanced.
        time.sleep(0.03)
        made.clear()
        with database.transaction(write=write) as connection:
            ledger_id = connection.execute(text("SELECT value FROM ledger_meta WHERE name = 'ledger_id'")).scalar_one()
        return len(made), str(ledger_id)

    own = database.chain.ledger_id
    connections()
    assert connections() == connections(write=True) == connections() == (0, own)
    ledger = Ledger(database, SumOfEpsilons())
    ledger.open_account("clinic", Cap(2.0, 1e-5))
    assert connections() == (1, own), "a file that was just written may be written again without a sign of it"
    assert connections() == (0, own)
    open_ledger(path).charge(request(release("theirs")), {})
    assert spent(ledger) == 1.0
    for change in (
        lambda: _execute(path, "INSERT INTO ledger_meta VALUES ('theirs', '1')"),
        lambda: path.chmod(0o640),
        lambda: path.write_bytes(path.read_bytes()),
        lambda: path.rename(path.with_name("aside")) and path.with_name("aside").rename(path),
    ):
        connections()
        assert connections() == (0, own)
        change()
        assert connections() == (1, own)
    with pytest.raises(ZeroDivisionError), database.transaction(write=False):
        _ = 1 / 0
    assert connections() == (1, own)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 0)
        assert connections() == (1, own), "the parent's"
    assert connections() == (1, own)
    other = opened(tmp_path / "other.sqlite")
    (tmp_path / "other.sqlite").replace(path)
    assert connections() == (1, other.chain.ledger_id)
    others = [opened(tmp_path / f"{number}.sqlite") for number in range(8)]
    time.sleep(0.03)
    for one in others:
        assert len(memory.idle) == 1
        with one.transaction(write=False):
            pass
    assert memory.idle == [], "the last eight ledgers of a process have one"


def test_what_is_remembered_of_an_opening_ends_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger is read again to open it only where somebody else has written or another one is in its place."""
    path, memory = tmp_path / "ledger.sqlite", Memory()
    read: list[Any] = []
    honest = module._read_versions

    def read_versions(*of: Any) -> dict[str, str]:
        read.append(of)
        return honest(*of)

    monkeypatch.setattr(module, "_read_versions", read_versions)

    def opened_again() -> tuple[str, int]:
        read.clear()
        return open_database(path, key=KEY, memory=memory).chain.ledger_id, len(read)

    first, _ = opened_again()
    assert opened_again() == (first, 0)
    ledger = Ledger(open_database(path, key=KEY, memory=memory), SumOfEpsilons())
    ledger.open_account("clinic", Cap(2.0, 1e-5))
    ledger.charge(request(release("ours")), {})
    assert opened_again() == (first, 0), "its own writing is known"
    open_ledger(path).charge(request(release("theirs")), {})
    assert opened_again() == (first, 1)
    assert opened_again() == (first, 0)
    _execute(path, "UPDATE ledger_meta SET value = '9' WHERE name = 'format_version'")
    with pytest.raises(FormatVersionError):
        opened_again()
    other = opened(tmp_path / "other.sqlite")
    (tmp_path / "other.sqlite").replace(path)
    assert opened_again() == (other.chain.ledger_id, 1)
    with pytest.raises(SecretError, match=r"key given.*ledger.sqlite"):
        open_database(path, key=Secret(b"another key of ledgers in tests!"), memory=memory)
    path.unlink()
    with pytest.raises(StorageError, match=r"ledger.sqlite.*ledger.head"):
        opened_again()


def test_another_key_or_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    open_database(path)
    key = tmp_path / "private" / "root.key"
    kept = key.read_bytes()
    key.unlink()
    with pytest.raises(SecretError, match=r"root.key.*missing"):
        open_database(path)
    key.write_bytes(b"x" * 32)
    key.chmod(0o600)
    with pytest.raises(SecretError, match=r"root.key.*ledger.sqlite"):
        open_database(path)
    key.write_bytes(kept)
    open_database(path)


@pytest.mark.parametrize("content", [b"", b"this is not a database at all" * 100])
def test_another_file_is_not_taken_for_a_ledger_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"not a ledger|without a ledger"):
        opened(path)
    assert path.read_bytes() == content


def test_a_damaged_table_of_versions_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    opened(path)
    _execute(path, "UPDATE ledger_meta SET value = 'one' WHERE name = 'format_version'")
    with pytest.raises(StorageError, match="damaged"):
        opened(path)


def test_damaged_pages_are_an_error_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=100)
    for number in range(20):
        ledger.charge(request(release(f"k{number}")), {})
    content = bytearray(path.read_bytes())
    content[4096 : len(content)] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"damaged.*charged") as caught:
        ledger.charge(request(release("new")), {})
    assert "\n" not in str(caught.value)


def test_a_ledger_that_was_removed_is_not_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=5)
    path.unlink()
    with pytest.raises(StorageError, match=r"ledger\.sqlite.*ledger\.head"):
        opened(path)
    with pytest.raises(StorageError, match=r"opened.*charged"):
        ledger.charge(request(release("k")), {})
    assert not path.exists()


def test_a_root_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"ledger\.sqlite cannot.*directory"):
        opened(tmp_path / "nowhere" / "ledger.sqlite")


@pytest.mark.parametrize("url", ["mysql://user:hunter2@host/ledger", "postgresql://user:hunter2@host:port/x", "://"])
def test_other_urls_are_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(InputError, match="postgresql://") as caught:
        opened(url)
    assert "hunter2" not in str(caught.value)


def test_an_unreachable_server_is_one_line_without_a_password(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        opened(f"postgresql://unitball:hunter2@/ledger?host={tmp_path}")
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_errors_show_no_parameters_of_a_statement(tmp_path: Path) -> None:
    database = opened(tmp_path / "ledger.sqlite")
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
