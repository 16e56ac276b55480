"""What a process remembers of an account's plans: never more or less than the ledger holds, whoever wrote meanwhile."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from storage.errors import OverspendError, StorageError
from storage.ledger import entries as entries_module
from storage.ledger import ledger as ledgers
from storage.ledger.charges import Cap, Decision, PlanRecord, open_reservations, reserve_plan
from storage.ledger.entries import Entries, Kind, writing
from storage.ledger.ledger import Ledger
from tests.support.ledgers import SumOfEpsilons, database_of, open_ledger, opened, release, request, spent


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(tmp_path / "ledger.sqlite", cap=5)


class Watching(SumOfEpsilons):
    """Keeps the histories that it was asked about."""

    seen: Any = []  # noqa: RUF012 - a frozen dataclass has no place of its own for it

    def decide(self, history: Sequence[PlanRecord], *arguments: Any, **options: Any) -> Decision:
        self.seen.append(tuple(history))
        return super().decide(history, *arguments, **options)


def read_from_the_start(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many plans are read at each decision."""
    counted: list[int] = []
    original = Entries.find

    def find(self: Entries, *kinds: Any, **narrowed: Any) -> Any:
        found = original(self, *kinds, **narrowed)
        if Kind.PLAN in kinds:
            counted.append(len(found))
        return found

    monkeypatch.setattr(Entries, "find", find)
    return counted


def test_a_plan_is_read_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = read_from_the_start(monkeypatch)
    for number in range(6):
        ledger.charge(request(release(f"r{number}", 0.5)), {})
    assert max(counted) <= 1
    assert spent(ledger) == 3


def test_charges_of_other_processes_are_seen(tmp_path: Path) -> None:
    first = open_ledger(tmp_path / "ledger.sqlite", cap=3)
    first.charge(request(release("a")), {})
    # Another process has a memory of its own.
    mine = dict(ledgers._histories)
    ledgers._histories.clear()
    Ledger(opened(tmp_path / "ledger.sqlite"), SumOfEpsilons()).charge(request(release("b")), {})
    ledgers._histories.clear()
    ledgers._histories.update(mine)
    first.charge(request(release("c")), {})
    with pytest.raises(OverspendError):
        first.charge(request(release("d")), {})


def test_what_was_rolled_back_is_forgotten(ledger: Ledger) -> None:
    ledger.charge(request(release("a")), {})

    def crash() -> None:
        with writing(database_of(ledger)) as entries:
            dear = release("b", 4.0)
            paid = Decision(admitted=True, costs={"0": {"epsilon": 4.0}})
            ledgers._append_plan(entries, request(dear), (dear,), paid, {}, Kind.CHARGE)
            assert len(ledgers._history(entries, "clinic")) == 2
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        crash()
    assert spent(ledger) == 1
    ledger.charge(request(release("c", 4.0)), {})
    assert spent(ledger) == 5


def test_a_ledger_that_was_put_back_is_read_anew(tmp_path: Path) -> None:
    """The memory of plans that an older copy lacks is not used; the copy itself is refused by its marks."""
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=5)
    ledger.charge(request(release("a")), {})
    shutil.copy(path, tmp_path / "copy")
    ledger.charge(request(release("b")), {})
    assert spent(ledger) == 2
    shutil.copy(tmp_path / "copy", path)
    assert spent(ledger) == 1
    with pytest.raises(StorageError, match="older back-up"):
        ledger.charge(request(release("c")), {})


def test_records_before_stay_the_same_objects(tmp_path: Path) -> None:
    """What a policy noted on a plan holds for the plans before it: they are the very same, or all are new."""
    policy = Watching()
    ledger = Ledger(opened(tmp_path / "ledger.sqlite"), policy)
    ledger.open_account("clinic", Cap(5, 1e-5))
    for number in range(4):
        ledger.charge(request(release(f"r{number}", 0.5)), {})
    histories = policy.seen[-4:]
    for shorter, longer in pairwise(histories):
        assert len(longer) == len(shorter) + 1
        assert all(one is other for one, other in zip(shorter, longer, strict=False))
    ledger.standing("clinic")
    # Read anew because somebody else wrote, and found to be the same.
    before = policy.seen[-1]
    Ledger(opened(tmp_path / "ledger.sqlite"), SumOfEpsilons()).open_account("other", None)
    entries_module._left.clear()
    ledger.standing("clinic")
    assert all(one is other for one, other in zip(before, policy.seen[-1], strict=True))


def test_an_edit_of_what_was_read_before_is_refused_by_its_reader(ledger: Ledger, tmp_path: Path) -> None:
    ledger.charge(request(release("a")), {})
    ledger.charge(request(release("b")), {})
    with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
        connection.execute("DROP TRIGGER ledger_no_update")
        connection.execute("UPDATE ledger_entries SET content = replace(content, '1.0', '0.1') WHERE sequence = 2")
    connection.close()
    with pytest.raises(StorageError, match=r"entry 2 .* was changed"):
        ledger.charge(request(release("c")), {})


def test_a_charge_reads_nothing_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan, account, cap or reservation, however many ended reservations there are."""
    for number in range(3):
        ledger.reserve(f"run{number}", request(release(f"s{number}", 0.1)))
        ledger.commit("clinic", f"run{number}", {})
    read: list[Kind] = []
    original = entries_module._entry

    def counted(row: Any) -> Any:
        read.append(Kind(row.kind))
        return original(row)

    monkeypatch.setattr(entries_module, "_entry", counted)
    for number in range(3):
        ledger.charge(request(release(f"r{number}", 0.1)), {})
    assert read == []


def test_a_lowered_cap_and_a_reservation_of_others_are_seen(tmp_path: Path) -> None:
    """What another process entered counts, though this one remembers the account as it was."""
    path = tmp_path / "ledger.sqlite"
    first = open_ledger(path, cap=5)
    first.charge(request(release("a")), {})
    mine = dict(entries_module._seldom)
    left, order = dict(entries_module._left), dict(entries_module._in_order)
    for kept in (entries_module._seldom, entries_module._left, entries_module._in_order):
        kept.clear()
    other = Ledger(opened(path), SumOfEpsilons())
    other.raise_cap("clinic", Cap(3, 1e-5), by="owner", why="less")
    other.reserve("run", request(release("b")))
    entries_module._seldom.update(mine)
    entries_module._left.update(left)
    entries_module._in_order.update(order)
    with pytest.raises(OverspendError):
        first.charge(request(release("c", 1.5)), {})
    first.charge(request(release("c")), {})


def test_a_reservation_that_was_rolled_back_is_forgotten(ledger: Ledger) -> None:
    ledger.charge(request(release("a")), {})

    def crash() -> None:
        with writing(database_of(ledger)) as entries:
            asked = request(release("b", 4.0))
            reserve_plan(entries, "run", asked, Decision(admitted=True, costs={"0": {"epsilon": 4.0}}))
            assert len(open_reservations(entries, "clinic")) == 1
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        crash()
    ledger.charge(request(release("c", 4.0)), {})
    assert spent(ledger) == 5
