"""Many at once on one account: exactly what fits is charged, and nothing twice."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from storage.errors import OverspendError
from storage.ledger.charges import Cap
from storage.ledger.ledger import OutputOutcome
from tests.support.forks import race
from tests.support.ledgers import open_ledger, release, request, spent


def _charge_own(path: Path, number: int) -> str:
    open_ledger(path).charge(request(release(f"k{number}"), run=f"process {number}"), {"0": f"secret {number}"})
    return "charged"


def _race_for_the_last(path: Path, racers: int) -> None:
    ledger = open_ledger(path, cap=racers // 4)
    answers = race(racers, lambda number: _charge_own(path, number))
    assert Counter(answers) == {"charged": racers // 4, "OverspendError": racers - racers // 4}
    charged = {f"k{number}" for number, answer in enumerate(answers) if answer == "charged"}
    assert {charge.key for charge in ledger.charges("clinic")} == charged
    assert spent(ledger) == racers // 4
    assert ledger.verify() == []


def _race_for_one(path: Path, racers: int) -> None:
    ledger = open_ledger(path, cap=racers)
    answers = race(racers, lambda _: len(open_ledger(path).charge(request(release("k")), {}).charged))
    assert sorted(answers) == [0] * (racers - 1) + [1]
    assert spent(ledger) == 1
    assert ledger.verify() == []


def test_processes_race_for_the_last_of_a_budget(tmp_path: Path) -> None:
    _race_for_the_last(tmp_path / "ledger.sqlite", 12)


def test_processes_race_for_one_release(tmp_path: Path) -> None:
    _race_for_one(tmp_path / "ledger.sqlite", 8)


@pytest.mark.nightly
def test_64_processes_race_for_the_last_of_a_budget(tmp_path: Path) -> None:
    _race_for_the_last(tmp_path / "ledger.sqlite", 64)


@pytest.mark.nightly
def test_64_processes_race_for_one_release(tmp_path: Path) -> None:
    _race_for_one(tmp_path / "ledger.sqlite", 64)


def test_threads_race_on_one_ledger_object(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "ledger.sqlite", cap=3)
    barrier = threading.Barrier(12)
    answers: list[Any] = []

    def body(number: int) -> None:
        barrier.wait()
        try:
            answers.append(ledger.charge(request(release(f"k{number}")), {}).charged)
        except OverspendError:
            answers.append(None)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([answer for answer in answers if answer]) == 3
    assert answers.count(None) == 9
    assert spent(ledger) == 3
    assert ledger.verify() == []


def test_two_outputs_of_one_release_at_once_are_charged_twice_not_thrice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=5)
    ledger.charge(request(release("k")), {})
    answers = race(6, lambda number: open_ledger(path).record_output("k", f"digest {number % 2}"))
    assert Counter(answers) == {OutputOutcome.RECORDED: 1, OutputOutcome.RECHARGED: 1, OutputOutcome.UNCHANGED: 4}
    assert spent(ledger) == 2


def test_a_cap_is_lowered_or_the_rest_is_spent_but_not_both(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path, cap=2)
    ledger.charge(request(release("first")), {})

    def body(number: int) -> str:
        if number % 2:
            open_ledger(path).raise_cap("clinic", Cap(1, 1e-5), by="owner", why="prudence")
            return "lowered"
        return _charge_own(path, 0)

    answers = race(2, body)
    assert sorted(answers) in (["OverspendError", "lowered"], ["OverspendError", "charged"])
    cap = ledger.account("clinic").cap
    assert cap is not None
    assert spent(ledger) <= cap.epsilon


def test_a_soft_limit_is_lifted_before_a_charge_or_the_charge_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = open_ledger(path)
    ledger.open_account("clinic", Cap(2, 1e-5), soft_limit=1.0)
    ledger.charge(request(release("first")), {})

    def body(number: int) -> str:
        if number % 2:
            open_ledger(path).raise_cap("clinic", Cap(2, 1e-5), by="owner", why="one more study")
            return "lifted"
        return _charge_own(path, 0)

    answers = race(2, body)
    assert sorted(answers) in (["OverspendError", "lifted"], ["charged", "lifted"])
    assert spent(ledger) == 1 + ("charged" in answers)
    assert [change.cap.epsilon for change in ledger.account("clinic").changes] == [1, 2]
    assert ledger.verify() == []


def test_one_account_is_opened_by_racing_processes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    answers = race(8, lambda number: open_ledger(path, cap=1 + number % 2) and "opened")
    assert set(answers) == {"opened", "InputError"}
    assert len(open_ledger(path).accounts()) == 1
