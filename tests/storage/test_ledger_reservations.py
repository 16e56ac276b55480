"""Reservations: they count as spent, are charged or returned once, and never let two plans spend one budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import InputError, OverspendError, RefusedError
from storage.ledger.charges import Cap
from storage.ledger.ledger import Ledger
from tests.support.ledgers import open_ledger, release, request, spent

pytestmark = pytest.mark.usefixtures("with_and_without_memory")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(tmp_path / "ledger.sqlite", cap=1.0)


KEYS = {"0": "secret of party 0"}


def test_what_is_reserved_counts_as_spent_and_is_charged_once(ledger: Ledger) -> None:
    ledger.reserve("run", request(release("a", 0.6)))
    assert not ledger.is_charged("a"), "no noise may be drawn yet"
    with pytest.raises(OverspendError):
        ledger.charge(request(release("b", 0.6)), KEYS)
    with pytest.raises(OverspendError):
        ledger.reserve("other", request(release("b", 0.6)))
    ledger.reserve("run", request(release("a", 0.6)))
    assert [one.name for one in ledger.reservations("clinic")] == ["run"]
    assert ledger.commit("clinic", "run", KEYS).charged == ("a",)
    assert ledger.commit("clinic", "run", KEYS).charged == ()
    assert ledger.charge_of("a").plan.key_ids == KEYS
    assert ledger.reservations("clinic") == []
    assert spent(ledger) == pytest.approx(0.6)
    assert ledger.verify() == []


def test_only_what_was_never_committed_comes_back(ledger: Ledger) -> None:
    ledger.reserve("run", request(release("a", 0.6)))
    ledger.give_back("clinic", "run", why="another party refused")
    ledger.give_back("clinic", "run", why="another party refused")
    assert spent(ledger) == 0.0
    with pytest.raises(RefusedError, match=r"'run'.*returned"):
        ledger.commit("clinic", "run", KEYS)
    # The same run may be asked for again: a fresh reservation.
    ledger.reserve("run", request(release("a", 0.6)))
    ledger.commit("clinic", "run", KEYS)
    with pytest.raises(RefusedError, match=r"'run'.*charged"):
        ledger.give_back("clinic", "run", why="too late")
    assert spent(ledger) == pytest.approx(0.6)
    for act in (lambda: ledger.commit("clinic", "none", KEYS), lambda: ledger.give_back("clinic", "none", why="-")):
        with pytest.raises(InputError, match=r"'clinic'.*'none'"):
            act()


def test_a_cap_that_was_lowered_below_a_reservation_is_refused(ledger: Ledger) -> None:
    ledger.reserve("run", request(release("a", 0.6)))
    with pytest.raises(OverspendError):
        ledger.raise_cap("clinic", Cap(0.5, 1e-5), by="owner", why="less")


def test_what_was_paid_before_is_not_reserved_again(ledger: Ledger) -> None:
    ledger.charge(request(release("a", 0.6)), KEYS)
    ledger.reserve("run", request(release("a", 0.6)))
    assert ledger.reservations("clinic") == []


def test_other_releases_under_one_name_take_the_place_of_what_was_never_committed(ledger: Ledger) -> None:
    """A party that was upgraded between reserving and committing asks for its releases under other identities."""
    ledger.reserve("run", request(release("a", 0.6)))
    ledger.reserve("run", request(release("b", 0.7)))
    assert spent(ledger) == pytest.approx(0.7)
    assert ledger.commit("clinic", "run", KEYS).charged == ("b",)
    assert not ledger.is_charged("a")
    assert spent(ledger) == pytest.approx(0.7)
