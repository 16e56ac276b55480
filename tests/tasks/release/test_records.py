"""A secure sum of several steps, killed anywhere and repeated: the same bytes, or nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpalgos.integer_sums import GradientSums
from dpalgos.secure import protocol as at_party
from dpalgos.secure import summation
from dpalgos.secure.primitives import RepeatedUseError
from storage.errors import DamagedError
from storage.rounds import Journal
from tasks.accounts.ledger import open_ledger
from tasks.planning.releases import PlannedRelease
from tasks.release import door, storing
from tasks.runtime.settings import current_layout
from tests.support.chains import Prepared, digests, ingest_private, prepare
from tests.support.forks import die, killed

STEPS = 4
SEVERAL: dict[str, Any] = {
    "algorithm": "noisy-gd",
    "trust": "secagg",
    "parties": 3,
    "dropouts": 0,
    "parameters": {"iterations": STEPS},
}


@pytest.fixture
def clinic(root: Path, tmp_path: Path) -> Path:
    ingest_private(tmp_path / "input", count=60)
    return root


def made(prepared: Prepared) -> PlannedRelease:
    (release,) = prepared.plan.releases
    door.make_release(release, prepared.shards.training)
    return release


def dies_before(call: int) -> Any:
    """Kill the process at a call of the record: in each step the server's fixing, then each party's opening."""
    count = [0]

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*arguments: Any) -> Any:
            count[0] += 1
            if count[0] == call:
                die()
            return original(*arguments)

        return method

    return counted


def entries(prepared: Prepared) -> list[list[bytes]]:
    (release,) = prepared.plan.releases
    layout = current_layout()
    paths = [layout.round(release.key), *(layout.party_round(party, release.key) for party in release.parties)]
    return [(path / "sums").read_bytes().splitlines() if (path / "sums").exists() else [] for path in paths]


def test_killed_between_every_two_steps(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One root, killed at each record of each step in turn: what is made in the end is what was begun at first."""
    steps, parties = 2, 3
    prepared = prepare(**{**SEVERAL, "parameters": {"iterations": steps}})
    for call in range(1, (1 + parties) * steps + 1):

        def run(call: int = call) -> None:
            counted = dies_before(call)
            with pytest.MonkeyPatch.context() as patch:
                # One after another, so that each record is a place to be killed at.
                patch.setattr(summation, "_AT_ONCE", 1)
                patch.setattr(storing.StoredRecord, "fix", counted(storing.StoredRecord.fix))
                patch.setattr(storing.StoredRecord, "open", counted(storing.StoredRecord.open))
                made(prepared)

        before = entries(prepared)
        killed(run)
        after = entries(prepared)
        # Nothing that was written is written over, and every start comes one record further.
        assert all(new[: len(old)] == old for old, new in zip(before, after, strict=True))
        assert [len(one) for one in after] == [(call - 2 - place) // (1 + parties) + 1 for place in range(1 + parties)]
        assert digests() == {}
    release = made(prepared)
    assert [len(one) for one in entries(prepared)] == [steps] * (1 + parties)
    expected = digests()
    shutil.rmtree(current_layout().release(release.key))
    made(prepared)
    assert digests() == expected
    assert [charge.key for charge in open_ledger().charges("clinic")] == [release.key]


@pytest.mark.parametrize("server_forgets", [False, True])
@pytest.mark.parametrize("opened", [1, 3])
def test_a_step_that_was_opened_is_not_opened_with_another_value(
    opened: int, server_forgets: bool, clinic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last bit differs after a kill: the noise would be fresh, a second release of the step that nobody has paid."""
    prepared = prepare(**SEVERAL)
    (release,) = prepared.plan.releases

    def run() -> None:
        counted = dies_before(3 * opened + 1)
        storing.StoredRecord.open = counted(storing.StoredRecord.open)  # type: ignore[method-assign]  # in a child
        made(prepared)

    killed(run)
    if server_forgets:
        shutil.rmtree(current_layout().round(release.key))
    original = GradientSums.total
    monkeypatch.setattr(GradientSums, "total", lambda *arguments: original(*arguments) + 1)

    def unmask(*arguments: Any) -> None:
        raise AssertionError("a second sum is opened")

    monkeypatch.setattr(at_party, "unmask", unmask)
    with pytest.raises(RepeatedUseError, match=r"party 0.*sum 'sum-0'.*--replicate"):
        made(prepared)
    assert digests() == {}
    monkeypatch.undo()
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic))
    # Another replicate is another release: fresh streams for everybody, paid in full.
    made(prepare(**SEVERAL, replicate=1))
    assert len(open_ledger().charges("clinic")) == 2


def test_each_party_refuses_other_survivors_by_its_own_record(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has forgotten whose vectors it opened, or says so."""
    prepared = prepare(**{**SEVERAL, "parties": 4, "dropouts": 1})
    release = made(prepared)
    expected = digests()
    shutil.rmtree(current_layout().release(release.key))
    shutil.rmtree(current_layout().round(release.key))
    with monkeypatch.context() as patch:
        absent = {"mask": frozenset({1})}
        patch.setattr("dpalgos.trust.model.SecureAggregation.absences", lambda self, parties: absent)
        with pytest.raises(RepeatedUseError, match=r"party 0.*survivors"):
            made(prepared)
    assert digests() == {}
    shutil.rmtree(current_layout().round(release.key))
    made(prepared)
    assert digests() == expected


def test_one_party_alone_stops_a_second_sum(clinic: Path) -> None:
    """The others' records are gone: one that remembers another vector is enough, before its vector leaves."""
    prepared = prepare(**SEVERAL)
    (release,) = prepared.plan.releases
    prepared.charge()
    path = current_layout().party_round("2", release.key) / "sums"
    Journal(path).add("sum-0", bytes(64))
    with pytest.raises(RepeatedUseError, match="party 2"):
        made(prepared)
    assert digests() == {}


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_entry_under_a_name_counts(tmp_path: Path) -> None:
    journal, other = Journal(tmp_path / "a" / "j"), Journal(tmp_path / "a" / "j")
    assert journal.get("x") is None
    assert journal.add("x", b"one") == b"one"
    assert other.add("x", b"two") == b"one"
    assert other.add("y", b"two") == b"two"
    assert journal.add("y", b"late") == b"two"
    assert Journal(tmp_path / "a" / "j").get("x") == b"one"
    assert (tmp_path / "a" / "j").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("cut", [1, 10, 20])
def test_an_unfinished_line_is_none(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "j"
    Journal(path).add("x", b"one")
    whole = path.read_bytes()
    Journal(path).add("y", b"two")
    path.write_bytes(path.read_bytes()[:-cut])
    assert Journal(path).get("y") is None
    assert Journal(path).add("y", b"three") == b"three"
    assert path.read_bytes().startswith(whole)
    assert Journal(path).get("y") == b"three"


def test_a_changed_line_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "j"
    Journal(path).add("x", b"one")
    path.write_bytes(path.read_bytes().replace(b"x ", b"z "))
    with pytest.raises(DamagedError, match="--replicate"):
        Journal(path).get("x")


def test_entries_are_small(clinic: Path) -> None:
    prepared = prepare(**SEVERAL)
    made(prepared)
    server, *parties = entries(prepared)
    assert json.loads(bytes.fromhex(server[0].split()[1].decode())) == [0, 1, 2]
    assert all(len(line) < 200 for party in parties for line in party)
    assert len({line for party in parties for line in party}) == 3 * STEPS
