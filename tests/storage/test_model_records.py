"""Who is champion, by the order of what was recorded."""

from pathlib import Path

import pytest

from storage.model_records import ModelRecords, VersionRecord
from tests.support.ledgers import opened


@pytest.fixture
def records(tmp_path: Path) -> ModelRecords:
    return ModelRecords(opened(tmp_path / "ledger.sqlite"))


def _recorded(records: ModelRecords, *versions: tuple[str, str]) -> list[VersionRecord]:
    for version, run in versions:
        records.record_version("clinic.a", version, run=run, digest="d", facts={})
    return records.versions("clinic.a")


def test_the_history_ends_with_the_present_one(records: ModelRecords) -> None:
    first, second = _recorded(records, ("1", "r1"), ("2", "r2"))
    assert records.champions("clinic.a") == []
    for one in (first, second, first):
        records.record_champion(one)
    assert records.champions("clinic.a") == [first, second, first]
    records.record_champion(second, back=True)
    assert records.champions("clinic.a") == [first, second]


def test_two_who_roll_back_at_once_go_back_once(records: ModelRecords) -> None:
    """Both have read the same history before either wrote."""
    versions = _recorded(records, ("1", "r1"), ("2", "r2"), ("3", "r3"))
    for one in versions:
        records.record_champion(one)
    for _ in range(2):
        records.record_champion(versions[1], back=True)
    assert records.champions("clinic.a") == versions[:2]


def test_a_version_is_its_number_and_its_run(records: ModelRecords) -> None:
    first, again = _recorded(records, ("1", "r1"), ("1", "r2"))
    records.record_champion(first)
    assert records.champions("clinic.a") == [first]
    records.record_comparison("clinic.a", "1", run="r1", outcome={"gain": 1.0})
    assert records.comparison(first) == {"gain": 1.0}
    assert records.comparison(again) is None
