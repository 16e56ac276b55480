"""Kills, a full disk, a read-only disk: what is charged is charged once, and what failed is not charged."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event

from storage.errors import StorageError
from storage.ledger import entries as chain
from storage.ledger.charges import Cap
from storage.ledger.entries import Entries
from storage.ledger.ledger import Ledger, OutputOutcome
from tests.support import forks
from tests.support.forks import die, in_child, killed
from tests.support.ledgers import database_of, open_ledger, release, request, spent

NOBODY = 65534
PLAN = request(release("a"), release("b", parties=("1",)))


def _die_after_appending(count: int) -> Callable[[], None]:
    def arrange() -> None:
        add = Entries.extend
        left = [count]

        def add_and_die(self: Entries, *arguments: Any, **options: Any) -> Any:
            added = add(self, *arguments, **options)
            left[0] -= 1
            return die() if left[0] == 0 else added

        Entries.extend = add_and_die  # type: ignore[method-assign]  # in a child

    return arrange


def _die_before_the_mark() -> None:
    chain.advance_mark = die  # type: ignore[attr-defined]  # in a child


def _die_while_the_mark_is_written() -> None:
    os.replace = die
    Path.replace = die  # type: ignore[method-assign]  # in a child


class _DiesOnCommit:
    """A ledger whose connections die as the commit is asked for."""

    @staticmethod
    def of(ledger: Ledger) -> Ledger:
        @event.listens_for(database_of(ledger).engine, "commit")
        def _commit(connection: Connection) -> None:
            if connection.get_execution_options().get("unitball_write"):
                die()

        return ledger


_KILLS_BEFORE_COMMIT = {
    "after the plan and its charges": _die_after_appending(1),
}
_KILLS_AFTER_COMMIT = {
    "before the mark": _die_before_the_mark,
    "while the mark is written": _die_while_the_mark_is_written,
}


@pytest.mark.parametrize("point", [*_KILLS_BEFORE_COMMIT, "before the commit", *_KILLS_AFTER_COMMIT])
def test_a_kill_inside_a_charge_charges_all_or_nothing(tmp_path: Path, point: str) -> None:
    path = tmp_path / "ledger.sqlite"
    open_ledger(path, cap=1)

    def body() -> None:
        ledger = open_ledger(path)
        {**_KILLS_BEFORE_COMMIT, **_KILLS_AFTER_COMMIT}.get(point, lambda: None)()
        if point == "before the commit":
            _DiesOnCommit.of(ledger)
        ledger.charge(PLAN, {"0": "s0", "1": "s1"})

    killed(body)
    ledger = open_ledger(path)
    committed = point in _KILLS_AFTER_COMMIT
    assert ledger.verify() == []
    assert [ledger.is_charged(key) for key in ("a", "b")] == [committed, committed]
    outcome = ledger.charge(PLAN, {"0": "s0", "1": "s1"})
    assert outcome.charged == (() if committed else ("a", "b"))
    assert len(ledger.charges("clinic")) == 2
    assert spent(ledger) == 1
    assert ledger.verify() == []


@pytest.mark.parametrize("point", ["before the commit", *_KILLS_AFTER_COMMIT])
def test_a_kill_while_an_account_is_opened_leaves_no_cap_without_its_soft_limit(tmp_path: Path, point: str) -> None:
    path = tmp_path / "ledger.sqlite"
    open_ledger(path)

    def body() -> None:
        ledger = open_ledger(path)
        _KILLS_AFTER_COMMIT.get(point, lambda: None)()
        if point == "before the commit":
            _DiesOnCommit.of(ledger)
        ledger.open_account("clinic", Cap(2, 1e-5), soft_limit=1.0)

    killed(body)
    ledger = open_ledger(path)
    assert [one.cap for one in ledger.accounts()] == ([Cap(1, 1e-5)] if point in _KILLS_AFTER_COMMIT else [])
    assert ledger.open_account("clinic", Cap(2, 1e-5), soft_limit=1.0).cap == Cap(1, 1e-5)
    assert ledger.verify() == []


@pytest.mark.parametrize("point", ["after the second plan and its charge", "after the output", "before the mark"])
def test_a_kill_inside_a_recharge_charges_it_whole_or_not(tmp_path: Path, point: str) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=2)
    ledger.charge(request(release("a")), {})
    ledger.record_output("a", "d1")
    counts = {"after the second plan and its charge": 1, "after the output": 2}

    def body() -> None:
        (_die_after_appending(counts[point]) if point in counts else _die_before_the_mark)()
        open_ledger(path).record_output("a", "d2")

    killed(body)
    again = open_ledger(path).record_output("a", "d2")
    assert again is (OutputOutcome.UNCHANGED if point == "before the mark" else OutputOutcome.RECHARGED)
    assert spent(ledger) == 2
    assert ledger.verify({"a": "d2"}) == []


@pytest.mark.nightly
def test_kills_at_random_moments_lose_nothing_that_was_reported(tmp_path: Path) -> None:
    """A child charges in a loop and reports each charge after it returned; it is killed at 30 random moments."""
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=1e6)
    reported: set[str] = set()
    for attempt in range(30):
        receiver, sender = forks.Pipe(duplex=False)

        def body(sender: Any, attempt: int = attempt) -> None:
            own = open_ledger(path)
            for number in range(10_000):
                own.charge(request(release(f"{attempt}-{number}")), {})
                sender.send(f"{attempt}-{number}")

        child = forks.start(body, sender)
        sender.close()
        reported.add(receiver.recv())
        time.sleep(0.003 * attempt)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        try:
            while True:
                reported.add(receiver.recv())
        except EOFError:
            pass
        charged = {charge.key for charge in ledger.charges("clinic")}
        assert reported <= charged
        # At most the one that was under way when the kill came may be charged without a report.
        assert len(charged - reported) <= attempt + 1
        assert ledger.verify() == []
        assert len(ledger.charges("clinic")) == len(charged)


def _refuses_to_write(ledger: Ledger, message: str, plan: Any) -> None:
    for attempt in (
        lambda: ledger.charge(plan, {}),
        lambda: ledger.record_output("a", "another digest" * 10),
        lambda: ledger.raise_cap("clinic", Cap(99, 1e-5), by="owner", why="because " * 2000),
    ):
        with pytest.raises(StorageError, match=message) as caught:
            attempt()
        assert "\n" not in str(caught.value)
        assert "nothing was charged" in str(caught.value)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that an ordinary user can reach: pytest's own is its user's alone."""
    place = Path(tempfile.mkdtemp(prefix="unitball-test-"))
    place.chmod(0o755)
    yield place
    place.chmod(0o755)
    shutil.rmtree(place)


def _ordinary_user() -> int | None:
    return NOBODY if os.geteuid() == 0 else None


def test_a_read_only_ledger_is_read_and_charges_nothing(open_place: Path) -> None:
    path = open_place / "ledger.sqlite"
    ledger = open_ledger(path, cap=5)
    ledger.charge(PLAN, {})
    path.chmod(0o444)
    path.with_suffix(".head").chmod(0o444)
    open_place.chmod(0o555)
    before = path.read_bytes()

    def body() -> None:
        own = open_ledger(path)
        assert own.charge(PLAN, {}).already_charged == ("a", "b")
        assert own.verify() == []
        _refuses_to_write(own, "cannot be written", request(release("new")))

    in_child(body, user=_ordinary_user())
    assert path.read_bytes() == before


def test_a_read_only_root_without_a_ledger_is_an_error(open_place: Path) -> None:
    open_place.chmod(0o555)
    with pytest.raises(StorageError, match=r"ledger.sqlite.*Permission denied"):
        in_child(lambda: open_ledger(open_place / "ledger.sqlite"), user=_ordinary_user())
    assert list(open_place.iterdir()) == []


def test_a_ledger_that_may_not_be_read_is_an_error(open_place: Path) -> None:
    path = open_place / "ledger.sqlite"
    open_ledger(path)
    path.chmod(0o000)
    with pytest.raises(StorageError, match=r"ledger.sqlite.*opened"):
        in_child(lambda: open_ledger(path), user=_ordinary_user())


def test_a_full_database_charges_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=5)
    ledger.charge(PLAN, {})
    pages = path.stat().st_size // 4096

    @event.listens_for(database_of(ledger).engine, "connect")
    def _no_more_pages(connection: Any, record: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(StorageError, match="disk is full"):
        ledger.charge(request(release("new"), run="long words " * 4000), {})
    healed = open_ledger(path)
    assert not healed.is_charged("new")
    assert healed.verify() == []


def test_a_file_size_limit_charges_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=5)
    ledger.charge(PLAN, {})
    size = path.stat().st_size

    def body() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        with pytest.raises(StorageError, match="nothing was charged"):
            open_ledger(path).charge(request(release("new"), run="long words " * 4000), {})

    in_child(body)
    assert not ledger.is_charged("new")
    assert ledger.verify() == []
    assert ledger.charge(request(release("new")), {}).charged == ("new",)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 160 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160k", "none", str(place)], capture_output=True
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("needs the right to mount a small disk")
    yield place
    # An idle connection to a ledger there may be open still.
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_charges_nothing(small_disk: Path) -> None:
    """Charge until the disk is full; what was reported is charged, what failed is not, and space heals it."""
    path = small_disk / "ledger.sqlite"
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 40_960)
    ledger = open_ledger(path, cap=1e6)
    charged: list[str] = []

    def fill() -> None:
        for number in range(1000):
            ledger.charge(request(release(f"k{number}"), run="words " * 200), {})
            charged.append(f"k{number}")

    with pytest.raises(StorageError, match="disk is full") as caught:
        fill()
    assert "\n" not in str(caught.value)
    assert len(charged) > 3
    ballast.unlink()
    healed = open_ledger(path)
    assert [charge.key for charge in healed.charges("clinic")] == charged
    assert healed.verify() == []
    healed.charge(request(release("after")), {})
    assert spent(healed) == len(charged) + 1


def test_a_full_disk_makes_no_half_ledger(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(b"x" * 200_000)
    with pytest.raises(StorageError):
        open_ledger(small_disk / "ledger.sqlite")
    assert not (small_disk / "ledger.sqlite").exists()
    ballast.unlink()
    open_ledger(small_disk / "ledger.sqlite", cap=1)


def test_a_lock_that_is_never_released_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.ledger.database.BUSY_SECONDS", 0.2)
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=5)
    with chain.writing(database_of(ledger)), pytest.raises(StorageError, match="300 s"):
        open_ledger(path).charge(request(release("a")), {})
    assert not ledger.is_charged("a")
