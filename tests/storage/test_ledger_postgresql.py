"""The ledger on a real PostgreSQL server: the same rules, races included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from storage.catalog import Catalog
from storage.errors import FormatVersionError, OverspendError, StorageError
from storage.ledger import charges
from storage.ledger import database as module
from storage.ledger import entries as entries_module
from storage.ledger import ledger as ledger_module
from storage.ledger.charges import Cap, PlanRequest, ReleaseCharge
from storage.ledger.database import FORMAT_VERSION, Chain
from storage.ledger.entries import Entries
from storage.ledger.ledger import Ledger, OutputOutcome
from storage.refs import Visibility
from tests.support.forks import die, killed, race
from tests.support.ledgers import SumOfEpsilons, database_of, open_ledger, opened, release, request, spent
from tests.support.postgresql import running_postgresql
from tests.support.stating import stating

pytestmark = pytest.mark.postgresql


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


def _execute(url: str, *statements: str) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.fixture
def url(server: str) -> str:
    """The server's database, emptied."""
    _execute(server, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return server


def test_the_rules_are_those_of_sqlite(url: str) -> None:
    ledger = open_ledger(url, cap=3)
    assert ledger.charge(request(release("a"), release("b", 0.5)), {"0": "s0"}).charged == ("a", "b")
    assert ledger.charge(request(release("a")), {"0": "other"}).already_charged == ("a",)
    assert ledger.charge_of("a").plan.key_ids == {"0": "s0"}
    with pytest.raises(OverspendError) as refused:
        ledger.charge(request(release("c", 1.6)), {})
    assert refused.value.value == pytest.approx(3.1)
    assert refused.value.bound == 3
    assert ledger.record_output("a", "d1") is OutputOutcome.RECORDED
    assert ledger.record_output("a", "d2") is OutputOutcome.RECHARGED
    with pytest.raises(OverspendError):
        ledger.record_output("a", "d3")
    ledger.raise_cap("clinic", Cap(4, 1e-5), by="owner", why="one more study")
    assert ledger.record_output("a", "d3") is OutputOutcome.RECHARGED
    assert spent(ledger) == 3.5
    assert ledger.verify({"a": "d3"}) == []
    assert opened(url).chain.ledger_id == database_of(ledger).chain.ledger_id


def test_the_catalogue_lives_there_too(url: str) -> None:
    catalog = Catalog(opened(url))
    catalog.register("clinic", "v1", visibility=Visibility.PRIVATE, manifest={"größe": [1, "\0"]}, cap=Cap(1, 1e-6))
    assert catalog.get("clinic").manifest == {"größe": [1, "\0"]}


def test_two_first_processes_make_one_schema(url: str) -> None:
    assert len(set(race(8, lambda _: opened(url).chain.ledger_id))) == 1


def test_a_kill_while_it_is_made_leaves_nothing(url: str) -> None:
    def body() -> None:
        module.insert = die  # type: ignore[attr-defined]  # in a child
        opened(url)

    killed(body)
    open_ledger(url, cap=1)


def _race_for_the_last(url: str, racers: int) -> None:
    ledger = open_ledger(url, cap=racers // 4)

    def body(number: int) -> str:
        open_ledger(url).charge(request(release(f"k{number}")), {})
        return "charged"

    answers = race(racers, body)
    assert Counter(answers) == {"charged": racers // 4, "OverspendError": racers - racers // 4}
    assert spent(ledger) == racers // 4
    assert len(ledger.charges("clinic")) == racers // 4
    assert ledger.verify() == []


def test_processes_race_for_the_last_of_a_budget(url: str) -> None:
    _race_for_the_last(url, 12)


@pytest.mark.nightly
def test_64_processes_race_for_the_last_of_a_budget(url: str) -> None:
    _race_for_the_last(url, 64)


def test_processes_race_for_one_release(url: str) -> None:
    ledger = open_ledger(url, cap=8)
    answers = race(8, lambda _: len(open_ledger(url).charge(request(release("k")), {}).charged))
    assert sorted(answers) == [0] * 7 + [1]
    assert spent(ledger) == 1


def test_a_release_that_another_process_pays_meanwhile_is_not_paid_again(url: str) -> None:
    """The mutant: the end of the chain is read after the releases that are not paid."""
    ledger, another = open_ledger(url, cap=8), open_ledger(url)
    found = charges.unpaid

    def looked(entries: Entries, plan: PlanRequest) -> tuple[ReleaseCharge, ...]:
        patch.undo()
        new = found(entries, plan)
        another.charge(request(release("k")), {})
        return new

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "unpaid", looked)
        assert not ledger.charge(request(release("k")), {}).charged
    assert spent(ledger) == 1


def test_another_default_isolation_does_not_matter(url: str) -> None:
    """Under REPEATABLE READ whoever waited for the lock would decide on an old history."""
    _execute(url, "ALTER DATABASE ledger SET default_transaction_isolation = 'repeatable read'")
    try:
        _race_for_the_last(url, 8)
    finally:
        _execute(url, "ALTER DATABASE ledger RESET default_transaction_isolation")


def test_a_kill_inside_a_charge_charges_nothing(url: str) -> None:
    ledger = open_ledger(url, cap=3)

    def body() -> None:
        ledger_module._outcome = die
        open_ledger(url).charge(request(release("a")), {})

    killed(body)
    assert not ledger.is_charged("a")
    assert ledger.charge(request(release("a")), {}).charged == ("a",)
    assert ledger.verify() == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_entries SET account = 'other'",
        "DELETE FROM ledger_entries",
        "TRUNCATE ledger_entries",
        "INSERT INTO ledger_entries SELECT 9, kind, account, 'x', recorded_at, content, previous, digest "
        "FROM ledger_entries",
    ],
)
def test_the_database_itself_only_appends(url: str, statement: str) -> None:
    ledger = open_ledger(url, cap=3)
    with pytest.raises(DBAPIError, match="append-only"):
        _execute(url, statement)
    assert ledger.verify() == []


def test_an_edit_is_told(url: str) -> None:
    ledger = open_ledger(url, cap=3)
    ledger.charge(request(release("a")), {})
    _execute(
        url,
        "ALTER TABLE ledger_entries DISABLE TRIGGER ALL",
        "UPDATE ledger_entries SET content = replace(content, '1.0', '0.1') WHERE sequence = 3",
    )
    # The edit may hit the entry's time as well, which is then told too.
    assert any("entry 3 (charge) was changed" in problem for problem in ledger.verify())


def _edit(url: str, *statements: str) -> None:
    """Edit as somebody does who has the database's password and drops what is in the way."""
    switch = "ALTER TABLE ledger_entries {} TRIGGER ALL"
    _execute(url, switch.format("DISABLE"), *statements, switch.format("ENABLE"))


EDITS = {
    "a plan made cheaper": "UPDATE ledger_entries SET content = replace(content, '1.0', '0.0') WHERE sequence = 2",
    "a higher cap": "UPDATE ledger_entries SET content = replace(content, '2', '9') WHERE sequence = 1",
    "a plan that is gone": "DELETE FROM ledger_entries WHERE sequence = 2",
}


@pytest.mark.parametrize("statement", EDITS.values(), ids=EDITS)
def test_a_decision_rests_on_what_was_once_in_order(url: str, statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was edited under a process gains nothing in it, and is told by the next look at the whole chain."""
    ledger = open_ledger(url, cap=2)
    ledger.charge(request(release("a")), {})
    ledger.charge(request(release("b", 0.5)), {})
    _edit(url, statement)
    with pytest.raises(OverspendError) as refused:
        ledger.charge(request(release("c", 0.6)), {})
    assert refused.value.value == pytest.approx(2.1)
    assert refused.value.bound == 2
    ledger.charge(request(release("d", 0.25)), {})
    assert ledger.verify() != []
    monkeypatch.setattr(entries_module, "_RELIED_ON_SECONDS", 0.0)
    with pytest.raises(
        StorageError, match=r"entry.*(changed|removed)", check=stating(bound="chain", way_out="unitball ledger restore")
    ):
        ledger.charge(request(release("e", 0.25)), {})


@pytest.mark.parametrize("statement", EDITS.values(), ids=EDITS)
def test_an_edit_is_refused_by_a_process_that_has_just_begun(url: str, statement: str) -> None:
    ledger = open_ledger(url, cap=2)
    ledger.charge(request(release("a")), {})
    _edit(url, statement)
    with pytest.raises(
        StorageError, match=r"entry.*(changed|removed)", check=stating(bound="chain", way_out="unitball ledger restore")
    ):
        open_ledger(url).charge(request(release("b", 0.25)), {})


def test_what_others_appended_has_to_follow(url: str) -> None:
    """An entry that was made up, or copied, after the last one that this process has seen."""
    ledger = open_ledger(url, cap=2)
    ledger.charge(request(release("a")), {})
    columns = "kind, account, 'x', recorded_at, content"
    _edit(url, f"INSERT INTO ledger_entries SELECT 4, {columns}, digest, digest FROM ledger_entries WHERE sequence = 3")
    with pytest.raises(StorageError, check=stating(bound="chain", way_out="unitball ledger restore")):
        ledger.charge(request(release("b")), {})


def test_charges_of_another_process_are_seen(url: str) -> None:
    ledger = open_ledger(url, cap=3)
    ledger.charge(request(release("a")), {})
    open_ledger(url).charge(request(release("b")), {})
    ledger.charge(request(release("c")), {})
    with pytest.raises(OverspendError):
        ledger.charge(request(release("d")), {})
    assert ledger.verify() == []


def test_a_charge_reads_no_plan_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many plans there are: only what others have written since."""
    ledger = open_ledger(url, cap=9)
    for number in range(3):
        ledger.charge(request(release(f"a{number}")), {})
    monkeypatch.setattr(Chain, "changed", forbidden)
    monkeypatch.setattr(entries_module, "_COUNT", None)
    for number in range(3):
        ledger.charge(request(release(f"b{number}")), {})


def test_what_was_removed_is_missed_or_was_not_needed(url: str) -> None:
    """Plans count as they once were; that others are gone is seen before outputs, which are looked up each time."""
    ledger = open_ledger(url, cap=2)
    open_ledger(url, cap=2, account="other").charge(request(release("b"), account="other"), {})
    ledger.charge(request(release("a")), {})
    ledger.record_output("a", "digest")
    _edit(url, "DELETE FROM ledger_entries WHERE kind = 'plan' AND account = 'other'")
    with pytest.raises(OverspendError) as refused:
        ledger.charge(request(release("c", 1.5), account="other"), {})
    assert (refused.value.value, refused.value.bound) == (2.5, 2)
    with pytest.raises(StorageError, match=r"entries.*removed"):
        ledger.record_output("a", "another digest")
    with pytest.raises(
        StorageError, match=r"entry.*removed", check=stating(bound="chain", way_out="unitball ledger restore")
    ):
        open_ledger(url).charge(request(release("c"), account="other"), {})


def forbidden(*arguments: Any) -> Any:
    raise AssertionError("an entry is read")


def test_an_older_back_up_is_told_by_a_mark_on_this_machine(url: str, tmp_path: Path) -> None:
    ledger = Ledger(opened(url, head=tmp_path / "ledger.head"), SumOfEpsilons())
    ledger.open_account("clinic", Cap(3, 1e-5))
    ledger.charge(request(release("a")), {})
    _execute(
        url,
        "ALTER TABLE ledger_entries DISABLE TRIGGER ALL",
        "DELETE FROM ledger_entries WHERE sequence > 1",
        "ALTER TABLE ledger_entries ENABLE TRIGGER ALL",
    )
    with pytest.raises(StorageError, check=stating(bound="high-water mark", way_out="unitball ledger restore")):
        ledger.charge(request(release("b")), {})
    assert "older back-up was restored" in ledger.verify()[0]


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
def test_another_format_is_refused(url: str, version: int) -> None:
    ledger = open_ledger(url, cap=3)
    _execute(url, f"UPDATE ledger_meta SET value = '{version}' WHERE name = 'format_version'")
    with pytest.raises(FormatVersionError):
        opened(url)
    with pytest.raises(FormatVersionError):
        ledger.charge(request(release("a")), {})


def test_a_reader_without_the_right_to_write_charges_nothing(url: str) -> None:
    open_ledger(url, cap=3)
    _execute(
        url,
        "DROP ROLE IF EXISTS looker",
        "CREATE ROLE looker LOGIN",
        "GRANT USAGE ON SCHEMA public TO looker",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO looker",
    )
    reader = open_ledger(url.replace("unitball@", "looker@"))
    assert reader.account("clinic").cap == Cap(3, 1e-5)
    with pytest.raises(StorageError, match="ledger_meta") as caught:
        reader.charge(request(release("a")), {})
    assert "\n" not in str(caught.value)
    assert not reader.is_charged("a")


def test_the_server_leaves_nothing_behind() -> None:
    with running_postgresql() as url:
        place = Path(url.partition("host=")[2])
        assert (place / "data").is_dir()
    assert not place.exists()
