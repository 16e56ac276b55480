"""The memory of an account's plans: never more or less than the ledger holds, whoever wrote meanwhile."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage.errors import OverspendError, StorageError
from storage.ledger.charges import Cap, Decision, History, append_plan, history_of, open_reservations, reserve_plan
from storage.ledger.database import Chain
from storage.ledger.entries import Kind, writing
from storage.ledger.ledger import Ledger
from tests.support.ledgers import SumOfEpsilons, database_of, open_ledger, opened, release, request, spent
from tests.support.stating import stating


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(tmp_path / "ledger.sqlite", cap=5)


class Watching(SumOfEpsilons):
    """Keeps the histories that it was asked about."""

    seen: Any = []  # noqa: RUF012 - a frozen dataclass has no place of its own for it

    def decide(self, history: History, *arguments: Any, **options: Any) -> Decision:
        self.seen.append(replace(history, memo=dict(history.memo)))
        history.memo["plans"] = len(history.plans)
        return super().decide(history, *arguments, **options)


def entries_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the kind of each entry that is read."""
    read: list[str] = []
    original = Chain.changed

    def changed(chain: Chain, fields: Any) -> str | None:
        read.append(fields["kind"])
        return original(chain, fields)

    monkeypatch.setattr(Chain, "changed", changed)
    return read


def test_charges_of_other_processes_are_seen(tmp_path: Path) -> None:
    first = open_ledger(tmp_path / "ledger.sqlite", cap=3)
    first.charge(request(release("a")), {})
    open_ledger(tmp_path / "ledger.sqlite").charge(request(release("b")), {})
    first.charge(request(release("c")), {})
    with pytest.raises(OverspendError):
        first.charge(request(release("d")), {})


def test_what_was_rolled_back_is_forgotten(ledger: Ledger) -> None:
    ledger.charge(request(release("a")), {})

    def crash() -> None:
        with writing(database_of(ledger)) as entries:
            dear = release("b", 4.0)
            paid = Decision(admitted=True, costs={"0": {"epsilon": 4.0}})
            append_plan(entries, request(dear), (dear,), paid, {}, Kind.CHARGE)
            assert len(history_of(entries, "clinic").plans) == 2
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
    with pytest.raises(StorageError, check=stating(bound="high-water mark", way_out="unitball ledger restore")):
        ledger.charge(request(release("c")), {})


def test_what_a_policy_noted_comes_back_with_the_plans_it_noted(tmp_path: Path) -> None:
    """And never with others: a sum that somebody noted of a plan that was rolled back would be charged to nobody."""
    policy = Watching()
    ledger = Ledger(opened(tmp_path / "ledger.sqlite"), policy)
    ledger.open_account("clinic", Cap(5, 1e-5))
    for number in range(4):
        with pytest.raises(OverspendError):
            ledger.charge(request(release("dear", 9)), {})
        ledger.charge(request(release(f"r{number}", 0.5)), {})
    assert [history.memo for history in policy.seen] == [{}, {}, *({"plans": most} for most in (0, 0, 1, 1, 2, 2))]
    Ledger(opened(tmp_path / "ledger.sqlite"), SumOfEpsilons()).open_account("other", None)
    ledger.status("clinic")
    assert policy.seen[-1].memo == {}, "somebody else wrote to the file, so all is read anew"


def test_an_edit_of_what_was_read_before_is_refused_by_its_reader(ledger: Ledger, tmp_path: Path) -> None:
    ledger.charge(request(release("a")), {})
    ledger.charge(request(release("b")), {})
    with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
        connection.execute("DROP TRIGGER ledger_no_update")
        connection.execute("UPDATE ledger_entries SET content = replace(content, '1.0', '0.1') WHERE sequence = 2")
    connection.close()
    with pytest.raises(StorageError, check=stating(bound="chain", way_out="unitball ledger restore")):
        ledger.charge(request(release("c")), {})


def test_a_charge_reads_nothing_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan, account, cap or reservation, however many ended reservations there are."""
    for number in range(3):
        ledger.reserve(f"run{number}", request(release(f"s{number}", 0.1)))
        ledger.commit("clinic", f"run{number}", {})
    read = entries_read(monkeypatch)
    for number in range(3):
        ledger.charge(request(release(f"r{number}", 0.1)), {})
    assert read == []


def test_a_lowered_cap_and_a_reservation_of_others_are_seen(tmp_path: Path) -> None:
    """What another process entered counts, though this one remembers the account as it was."""
    path = tmp_path / "ledger.sqlite"
    first = open_ledger(path, cap=5)
    first.charge(request(release("a")), {})
    other = open_ledger(path)
    other.raise_cap("clinic", Cap(3, 1e-5), by="owner", why="less")
    other.reserve("run", request(release("b")))
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
