"""The chain of entries: nothing is changed, removed, reordered or cut off without a trace."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.errors import InputError, OverspendError, SecretError, StorageError
from storage.ledger import database as marks
from storage.ledger import entries
from storage.ledger.charges import Cap
from storage.ledger.database import Chain, HighWaterMark, Link, advance_mark
from storage.ledger.ledger import Ledger
from storage.ledger.restoring import restore
from tests.support.ledgers import SumOfEpsilons, database_of, open_ledger, release, request, spent
from tests.support.stating import stating

pytestmark = pytest.mark.usefixtures("with_and_without_memory")

STORED = {f"k{number}": f"digest of k{number}" for number in range(4)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of 14 entries: an account, a change of its cap, and four plans with charge and output."""
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=10)
    ledger.raise_cap("clinic", Cap(20, 1e-5), by="owner", why="more studies")
    for key, digest in STORED.items():
        ledger.charge(request(release(key)), {"0": "s0"})
        ledger.record_output(key, digest)
    return path


def _edit(path: Path, *statements: str, guarded: bool = False) -> None:
    """Edit as somebody with a database shell does; unguarded, the triggers are dropped first."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        if not guarded:
            for trigger in ("ledger_no_update", "ledger_no_delete", "ledger_in_order"):
                connection.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            connection.execute(statement)
    finally:
        connection.close()


def test_an_honest_ledger_is_clean(path: Path) -> None:
    assert open_ledger(path).verify(STORED) == []
    assert open_ledger(path).verify() == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_entries SET account = 'other'",
        "DELETE FROM ledger_entries WHERE sequence = 14",
        "INSERT OR REPLACE INTO ledger_entries SELECT * FROM ledger_entries WHERE sequence = 2",
        "INSERT INTO ledger_entries SELECT 16, kind, account, 'x', recorded_at, content, previous, digest "
        "FROM ledger_entries WHERE sequence = 14",
        "INSERT INTO ledger_entries SELECT NULL, 'cap', account, subject, recorded_at, content, previous, digest "
        "FROM ledger_entries WHERE sequence = 14",
    ],
)
def test_the_database_itself_only_appends(path: Path, statement: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        _edit(path, statement, guarded=True)
    assert open_ledger(path).verify(STORED) == []


_SWAP = (
    "UPDATE ledger_entries SET sequence = -1 WHERE sequence = 6",
    "UPDATE ledger_entries SET sequence = 6 WHERE sequence = 9",
    "UPDATE ledger_entries SET sequence = 9 WHERE sequence = -1",
)


@pytest.mark.parametrize(
    ("statements", "told"),
    [
        (["UPDATE ledger_entries SET content = replace(content, '20', '99') WHERE sequence = 2"], "entry 2 (cap) was"),
        (["UPDATE ledger_entries SET kind = 'consent' WHERE sequence = 2"], "entry 2 (consent) was changed"),
        (["UPDATE ledger_entries SET account = 'other' WHERE sequence = 3"], "entry 3 (plan) was changed"),
        (["UPDATE ledger_entries SET subject = 'k9' WHERE sequence = 14"], "entry 14 (output) was changed"),
        (["UPDATE ledger_entries SET recorded_at = '1970' WHERE sequence = 1"], "entry 1 (account) was changed"),
        (["UPDATE ledger_entries SET previous = digest WHERE sequence = 7"], "entry 7 does not follow entry 6"),
        (["UPDATE ledger_entries SET digest = previous WHERE sequence = 7"], "entry 8 does not follow entry 7"),
        (["DELETE FROM ledger_entries WHERE sequence = 6"], "entry 6 was removed"),
        (["DELETE FROM ledger_entries WHERE sequence BETWEEN 3 AND 8"], "entry 3 to 8 was removed"),
        (["DELETE FROM ledger_entries WHERE sequence = 1"], "entry 1 was removed"),
        (
            ["DELETE FROM ledger_entries WHERE sequence > 11"],
            "ends at entry 11 but its high-water mark has seen entry 14",
        ),
        (["DELETE FROM ledger_entries"], "ends at entry 0 but its high-water mark has seen entry 14"),
        (_SWAP, "entry 6"),
        (["UPDATE ledger_entries SET content = '{broken' WHERE sequence = 5"], "entry 5 (output) was changed"),
    ],
)
def test_every_edit_is_told(path: Path, statements: list[str], told: str) -> None:
    _edit(path, *statements)
    ledger = open_ledger(path)
    assert any(told in problem for problem in ledger.verify()), ledger.verify()
    assert any(told in problem for problem in ledger.verify(STORED))


def test_another_identity_is_told(path: Path) -> None:
    """The key is derived from the identity too, so that no entry can be taken from another ledger of the root."""
    _edit(path, "UPDATE ledger_meta SET value = 'another' WHERE name = 'ledger_id'")
    with pytest.raises(SecretError, match=r"key given.*ledger.sqlite"):
        open_ledger(path)


def test_another_ledger_in_its_place_is_told(path: Path) -> None:
    other = path.parent / "other.sqlite"
    open_ledger(other, cap=99)
    shutil.copy(other, path)
    ledger = open_ledger(path)
    assert any("belongs to another ledger" in problem for problem in ledger.verify())
    with pytest.raises(StorageError, check=stating(bound="high-water mark", way_out="unitball ledger restore")):
        ledger.charge(request(release("more")), {})
    # Of that other ledger's accounts the mark cannot say what they had spent here.
    with pytest.raises(InputError, match=r"^the high-water mark.*--epsilon.*--delta"):
        restore(database_of(ledger), SumOfEpsilons(), by="owner", why="the wrong file was put back")


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE ledger_entries SET content = replace(content, '20', '99') WHERE sequence = 2"],
        ["UPDATE ledger_entries SET content = replace(content, '1.0', '0.1') WHERE sequence = 3"],
        ["DELETE FROM ledger_entries WHERE sequence = 3"],
        _SWAP,
    ],
)
@pytest.mark.parametrize("fresh", [True, False])
def test_every_edit_is_refused_at_charging(path: Path, statements: list[str], fresh: bool) -> None:
    """By a process that has never seen the ledger, and by one that has found its chain in order before."""
    ledger = open_ledger(path)
    ledger.charge(request(release("seen")), {})
    if fresh:
        ledger = open_ledger(path)
    _edit(path, *statements)
    with pytest.raises(
        StorageError,
        match=r"entr(y|ies) .*(changed|removed|follow)",
        check=stating(bound="chain", way_out="unitball ledger restore"),
    ):
        ledger.charge(request(release("new")), {})


def test_a_recomputed_entry_needs_the_key(path: Path) -> None:
    """Whoever can write the database but has not the root's secret can compute digests without a key only."""
    database = database_of(open_ledger(path))
    forged = Chain(database.chain.ledger_id, b"a guess")
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    (row,) = connection.execute("SELECT * FROM ledger_entries WHERE sequence = 14")
    digest = forged.digest({**row, "content": "{}"})
    connection.close()
    _edit(path, f"UPDATE ledger_entries SET content = '{{}}', digest = '{digest}' WHERE sequence = 14")
    with pytest.raises(StorageError, check=stating(bound="chain", way_out="unitball ledger restore")):
        open_ledger(path).charge(request(release("new")), {})


def test_a_chain_that_was_recomputed_does_not_meet_the_mark(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewritten ledger may be consistent in itself; the mark has seen another one."""
    connection = sqlite3.connect(path)
    identity = connection.execute("SELECT value FROM ledger_meta WHERE name = 'ledger_id'").fetchone()
    connection.close()
    monkeypatch.setattr("storage.ledger.database.secrets.token_hex", lambda size: identity[0])
    other = path.parent / "other" / "ledger.sqlite"
    other.parent.mkdir()
    forged = open_ledger(other, cap=1e6)
    for key in (*STORED, "k4", "k5", "k6"):
        forged.charge(request(release(key)), {})
    assert forged.verify() == []
    shutil.copy(other, path)
    ledger = open_ledger(path)
    assert any("rewritten" in problem for problem in ledger.verify())
    with pytest.raises(StorageError, match="rewritten"):
        ledger.charge(request(release("more")), {})


def test_an_older_back_up_is_told_and_spends_nothing(path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "back-up")
    ledger = open_ledger(path)
    ledger.charge(request(release("later", 5)), {})
    shutil.copy(tmp_path / "back-up", path)
    assert any("older back-up was restored" in problem for problem in ledger.verify())
    for attempt in (
        lambda: ledger.charge(request(release("new")), {}),
        lambda: ledger.record_output("k0", "another digest"),
        lambda: ledger.raise_cap("clinic", Cap(90, 1e-5), by="owner", why="because"),
        lambda: ledger.open_account("new", None),
    ):
        with pytest.raises(StorageError, check=stating(bound="high-water mark", way_out="unitball ledger restore")):
            attempt()
    assert spent(open_ledger(path)) == 4


def test_a_back_up_with_its_mark_is_told_by_the_releases_it_does_not_know(path: Path, tmp_path: Path) -> None:
    head = path.with_suffix(".head")
    shutil.copy(path, tmp_path / "back-up")
    shutil.copy(head, tmp_path / "back-up.head")
    ledger = open_ledger(path)
    ledger.charge(request(release("later")), {})
    ledger.record_output("later", "digest of later")
    shutil.copy(tmp_path / "back-up", path)
    shutil.copy(tmp_path / "back-up.head", head)
    restored = open_ledger(path)
    assert restored.verify() == []
    (problem,) = restored.verify({**STORED, "later": "digest of later"})
    assert "release later is stored but was never charged" in problem


def test_an_altered_release_is_told(path: Path) -> None:
    (problem,) = open_ledger(path).verify({**STORED, "k2": "digest of something else"})
    assert "release k2 was altered" in problem


def test_a_release_without_a_digest_is_told(path: Path) -> None:
    ledger = open_ledger(path)
    ledger.charge(request(release("k9")), {})
    (problem,) = ledger.verify({**STORED, "k9": "some digest"})
    assert "the ledger has no digest of it" in problem


def test_either_output_of_a_recharged_release_is_known(path: Path) -> None:
    ledger = open_ledger(path)
    ledger.record_output("k1", "second digest of k1")
    assert ledger.verify(STORED) == []
    assert ledger.verify({**STORED, "k1": "second digest of k1"}) == []


def test_a_mark_that_lags_is_fine_and_catches_up(path: Path) -> None:
    head = path.with_suffix(".head")
    lagging = head.read_text()
    ledger = open_ledger(path)
    ledger.charge(request(release("more")), {})
    newest = head.read_text()
    head.write_text(lagging)
    assert ledger.verify(STORED) == []
    ledger.charge(request(release("and more")), {})
    assert ledger.verify(STORED) == []
    assert head.read_text() not in (lagging, newest)


def test_a_mark_never_goes_back(path: Path) -> None:
    """Two processes may write the mark in the wrong order."""
    head = path.with_suffix(".head")
    newest = head.read_text()
    chain = database_of(open_ledger(path)).chain
    advance_mark(head, HighWaterMark(Link(chain.ledger_id, 3, "0" * 64)), chain)
    assert head.read_text() == newest


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"ledger": "x"}', "\x00"])
def test_a_damaged_mark_is_an_error_in_one_line(path: Path, content: str) -> None:
    path.with_suffix(".head").write_text(content)
    ledger = open_ledger(path)
    with pytest.raises(StorageError, match=r"high-water mark.*damaged"):
        ledger.charge(request(release("more")), {})
    assert any("is damaged" in problem for problem in ledger.verify())


def test_a_mark_that_cannot_be_read_is_an_error_in_one_line(path: Path) -> None:
    head = path.with_suffix(".head")
    head.unlink()
    head.mkdir()
    ledger = open_ledger(path)
    with pytest.raises(StorageError, match=r"high-water mark.*\(Is a directory\)"):
        ledger.charge(request(release("more")), {})
    assert any("cannot be read" in problem for problem in ledger.verify())


def test_a_mark_that_cannot_be_written_does_not_undo_a_charge(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(marks, "write_bytes", full)
    ledger = open_ledger(path)
    assert ledger.charge(request(release("more")), {}).charged == ("more",)
    assert "could not be written" in caplog.text
    assert ledger.verify() == []


def _backwards() -> Callable[[], str]:
    years = itertools.count(2030, -1)
    return lambda: f"{next(years)}-01-01T00:00:00.000+00:00"


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_now", _backwards())
    ledger: Ledger = open_ledger(tmp_path / "ledger.sqlite", cap=3)
    for cap in (4, 5):
        ledger.raise_cap("clinic", Cap(cap, 1e-5), by="owner", why="more")
    for key in ("a", "b", "c"):
        ledger.charge(request(release(key)), {})
        ledger.record_output(key, key)
    charges = ledger.charges("clinic")
    assert [charge.key for charge in charges] == ["a", "b", "c"]
    assert [charge.recorded_at for charge in charges] == sorted((c.recorded_at for c in charges), reverse=True)
    assert ledger.account("clinic").cap == Cap(5, 1e-5)
    assert ledger.verify({"a": "a", "b": "b", "c": "c"}) == []


@pytest.mark.parametrize("of", ["before the account", "before the lifting"])
def test_a_restored_ledger_has_the_soft_limit_of_its_back_up(tmp_path: Path, of: str) -> None:
    """Also of an account that the back-up lacks: it is opened again with its limit, from the high-water mark."""
    path, back_ups = tmp_path / "ledger.sqlite", {}

    def back_up(when: str) -> None:
        back_ups[when] = shutil.copy(path, tmp_path / when)

    ledger = open_ledger(path)
    back_up("before the account")
    ledger.open_account("clinic", Cap(4, 1e-5), soft_limit=3.0)
    ledger.charge(request(release("first")), {})
    back_up("before the lifting")
    ledger.raise_cap("clinic", Cap(4, 1e-5), by="owner", why="lifted")
    ledger.charge(request(release("second", 2.5)), {})
    shutil.copy(back_ups[of], path)
    ledger = open_ledger(path)
    restore(database_of(ledger), SumOfEpsilons(), by="owner", why="disk lost")
    account = ledger.account("clinic")
    assert (account.cap, account.promised, spent(ledger)) == (Cap(3, 1e-5), 4, 3.5)
    with pytest.raises(OverspendError, check=lambda refusal: refusal.bound == 3):
        ledger.charge(request(release("third", 0.5)), {})
    ledger.raise_cap("clinic", Cap(4, 1e-5), by="owner", why="lifted again")
    ledger.charge(request(release("third", 0.5)), {})
