"""Somebody who may write the root, or a careless owner: lost keys, edited ledgers, older states put back."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dpalgos.accounting.spending import RESERVED, worst_totals
from dpalgos.guarantees import GaussianMu, Guarantee, Neighbours
from storage.errors import InputError, OverspendError, RefusedError, SecretError, StorageError
from storage.layout import FINGERPRINTS, PATTERNS
from storage.ledger.charges import AccountTerms, Cap, PlanRequest, ReleaseCharge
from storage.ledger.entries import Kind, reading
from storage.ledger.ledger import ChargeOutcome
from tasks.accounts.filters import sum_plans
from tasks.accounts.ledger import change_cap, open_ledger, restore_ledger
from tasks.accounts.reports import budget_report
from tasks.datasets.registration import ingest
from tasks.runtime.settings import current_layout, current_root, marks_folder
from tasks.runtime.stores import open_catalog, open_ledger_database
from tests.security.conftest import request_for
from tests.support.command_line import CommandLine
from tests.support.stating import stating


def charge(
    key: str, mu: float = 0.1, account: str = "clinic", partition: str = "even", party: str = "0"
) -> ChargeOutcome:
    guarantee = Guarantee(losses=(GaussianMu(mu),), neighbours=Neighbours.REPLACE_ONE).to_json()
    release = ReleaseCharge(key=key, parties=(party,), guarantee=guarantee)
    return open_ledger().charge(PlanRequest(account, partition, (release,), 1e-5), {})


def spent(account: str = "clinic") -> float:
    spent = budget_report(account)["epsilon_spent"]
    assert spent is not None
    return spent


def _version() -> str:
    return open_catalog().get("clinic").version


def _lose_root_key() -> None:
    current_layout().root_secret.unlink()


def _change_root_key() -> None:
    current_layout().root_secret.write_bytes(b"x" * 32)


def _lose_fingerprints() -> None:
    (current_layout().dataset(_version()) / FINGERPRINTS).unlink()


def _change_fingerprints() -> None:
    path = current_layout().dataset(_version()) / FINGERPRINTS
    path.write_bytes(path.read_bytes()[:-8] + b"12345678")


@pytest.mark.parametrize(
    ("lose", "told"),
    [
        (_lose_root_key, "root.key is missing"),
        (_change_root_key, "not the key"),
        (_lose_fingerprints, "fingerprints"),
        (_change_fingerprints, "fingerprints"),
    ],
)
def test_lost_key_material_stops_ingestion_and_charging(
    clinic: Path, lose: Callable[[], None], told: str, commands: CommandLine
) -> None:
    charge("before")
    kept = shutil.copytree(current_layout().private, clinic.parent / "back-up")
    lose()
    attempts: list[Callable[[], object]] = [
        lambda: charge("after"),
        lambda: ingest(request_for(clinic, "open", visibility="public", epsilon_cap=None, delta_cap=None)),
        lambda: ingest(request_for(clinic, "other")),
    ]
    for attempt in attempts:
        with pytest.raises((StorageError, SecretError), match=told):
            attempt()
    examined = commands("doctor", "--json")
    assert examined.code == 1
    assert told in examined.out
    shutil.copytree(kept, current_layout().private, dirs_exist_ok=True)
    assert charge("after").charged == ("after",)
    assert charge("before").already_charged == ("before",)


def test_a_ledger_that_is_gone_is_not_begun_anew_over_private_rows(clinic: Path) -> None:
    charge("before")
    for name in ("ledger.sqlite", "ledger.head"):
        (current_root() / name).unlink()
    with pytest.raises(StorageError, match=r"private rows.*ledger.*missing"):
        charge("after")


def test_fingerprints_are_made_again_from_the_rows(clinic: Path, commands: CommandLine) -> None:
    folder = current_layout().dataset(_version())
    before = (folder / FINGERPRINTS).read_bytes()
    (folder / FINGERPRINTS).unlink()
    (folder / PATTERNS).unlink()
    assert any("rebuilt the fingerprints" in done for done in commands.succeeds("doctor", "--clean")["cleaned"])
    assert (folder / PATTERNS).exists()
    charge("after")
    with pytest.raises(
        RefusedError,
        match=r"account 'clinic'.*--disjoint-people",
        check=stating(bound=("clinic",), way_out="--account"),
    ):
        ingest(request_for(clinic, "twins"))
    # Those of a table are made again up to rounding, and that is on record.
    if (folder / FINGERPRINTS).read_bytes() != before:
        with reading(open_ledger_database()) as entries:
            assert [entry.subject for entry in entries.find(Kind.MATERIAL)] == [folder.name]


def _back_up(place: Path) -> None:
    shutil.copytree(current_root(), place)


def _put_back(place: Path, *names: str) -> None:
    if not names:
        shutil.rmtree(current_root())
        shutil.copytree(place, current_root())
    for name in names:
        shutil.copy(place / name, current_root() / name)


@pytest.mark.parametrize("names", [(), ("ledger.sqlite", "ledger.head"), ("ledger.sqlite",)])
def test_an_older_state_is_refused_and_restored_at_its_price(
    clinic: Path, tmp_path: Path, names: tuple[str, ...], commands: CommandLine
) -> None:
    """A whole old root, an old ledger with its old mark, an old ledger alone."""
    charge("first", 0.1)
    _back_up(tmp_path / "back-up")
    charge("second", 0.3)
    charge("third", 0.2, partition="another")
    before = spent()
    _put_back(tmp_path / "back-up", *names)
    for attempt in (lambda: charge("fourth"), lambda: ingest(request_for(clinic, "more", account="clinic"))):
        with pytest.raises(StorageError, check=stating(bound="high-water mark", way_out="unitball ledger restore")):
            attempt()
    assert commands("doctor").code == 1
    with pytest.raises(InputError, match="reason"):
        restore_ledger(" ", None, None)
    assert commands.succeeds("ledger", "restore", "--reason", "the disk was lost")["booked"] == ["clinic"]
    # Booked as plans of unknown shape: never less than what was spent, and not twice as much either.
    assert before <= spent() <= 1.3 * before
    assert "restored ledger" in commands("budget", "clinic").out
    with reading(open_ledger_database()) as entries:
        (restored,) = entries.find(Kind.RESTORE)
    assert restored.content["why"] == "the disk was lost"
    assert charge("fourth", 0.05).charged == ("fourth",)
    assert spent() > before
    with pytest.raises(InputError, match=r"marks.*--epsilon"):
        restore_ledger("again", None, None)


def test_restoring_does_not_refill(clinic: Path, tmp_path: Path) -> None:
    """Whoever puts the same back-up back again and again spends no more than the cap in all."""
    _back_up(tmp_path / "back-up")

    def charged_until_refused() -> int:
        for number in range(50):
            try:
                charge(f"release {number}", 0.3)
            except OverspendError:
                return number
            _put_back(tmp_path / "back-up", "ledger.sqlite", "ledger.head")
            restore_ledger("again", None, None)
        return 50

    assert 1 <= charged_until_refused() < 10


def booked() -> float:
    """mu of the rows that have paid most."""
    return math.sqrt(worst_totals(sum_plans(open_ledger().history("clinic"), AccountTerms())).mu_squared)


def _as_it_was(restored: str, partition: str) -> str:
    return partition


@pytest.mark.parametrize("mutant", [False, True])
def test_a_part_that_only_the_lost_ledger_had_charged_is_not_charged_for_nothing(
    clinic: Path, tmp_path: Path, mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One party, or horizon, is in the back-up and the other in what was lost: both ledgers have spent the same."""
    if mutant:
        monkeypatch.setattr("tasks.accounts.filters._since", _as_it_was)
    charge("first", 0.3)
    _back_up(tmp_path / "back-up")
    charge("second", 0.3, party="1")
    assert booked() == pytest.approx(0.3)
    _put_back(tmp_path / "back-up", "ledger.sqlite", "ledger.head")
    restore_ledger("the disk was lost", None, None)
    charge("again", 0.3, party="1")
    # Of party 1 both the lost release and this one were seen.
    lost = math.sqrt(2) * 0.3
    assert (booked() >= lost) is not mutant
    assert booked() == pytest.approx(0.3 if mutant else lost)
    if mutant:
        return
    # What is charged from here on is divided among parties as ever, also where a cap was raised since.
    charge("other", 0.3, party="0")
    assert booked() == pytest.approx(lost)
    change_cap("clinic", 4.0, "more is wanted")
    charge("later", 0.2, party="0")
    charge("later too", 0.2, party="1")
    assert booked() == pytest.approx(math.hypot(lost, 0.2))
    assert open_ledger().verify() == []


def test_an_account_that_the_back_up_lacks_is_opened_again(
    root: Path, clinic: Path, tmp_path: Path, random: object
) -> None:
    charge("first")
    _back_up(tmp_path / "back-up")
    open_ledger().open_account("later", Cap(1.0, 1e-5), deltas={"reserved": RESERVED})
    charge("second", 0.2, account="later")
    _put_back(tmp_path / "back-up", "ledger.sqlite", "ledger.head")
    assert restore_ledger("the disk was lost", None, None) == ("clinic", "later")
    assert open_ledger().account("later").cap == Cap(1.0, 1e-5)
    assert open_ledger().status("later").details["spent_before"] > 0


def test_without_any_mark_only_the_owners_statement_is_booked(clinic: Path, tmp_path: Path) -> None:
    charge("first", 0.1)
    before = spent()
    shutil.rmtree(marks_folder())
    (current_root() / "ledger.head").unlink()
    with pytest.raises(InputError, match=r"--epsilon.*--delta"):
        restore_ledger("marks are lost as well", None, None)
    with pytest.raises(InputError, match=r"two numbers.*--epsilon.*--delta"):
        restore_ledger("marks are lost as well", 0.5, None)
    assert restore_ledger("marks are lost as well", 0.5, 1e-5) == ("clinic",)
    assert spent() >= before + 0.4


def test_an_edited_mark_is_told(clinic: Path) -> None:
    charge("first")
    (mark,) = marks_folder().iterdir()
    mark.write_text(mark.read_text().replace('"sequence":', '"sequence": 0, "was":'))
    with pytest.raises(StorageError, match=r"high-water mark.*changed"):
        charge("second")


def test_two_copies_of_one_root_do_not_both_spend(
    clinic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge("first")
    _back_up(tmp_path / "copy")
    charge("second")
    monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / "copy"))
    with pytest.raises(StorageError, check=stating(bound="high-water mark", way_out="unitball ledger restore")):
        charge("third")


def test_a_new_machine_without_marks_goes_on(clinic: Path) -> None:
    """A root moved to another machine has no mark there; its own one beside the ledger still holds."""
    charge("first")
    shutil.rmtree(marks_folder())
    assert charge("second").charged == ("second",)
    assert len(list(marks_folder().iterdir())) == 1
