"""People behind rows: one spelling of an identifier, serials for good, and at most m rows of each."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from storage.errors import DamagedError, InputError
from storage.people import (
    People,
    Roster,
    at_most,
    identifier,
    identifiers,
    keyed_digests,
    load_people,
    save_people,
    shares,
)

KEY = b"k" * 32


def _digests(*names: str) -> np.ndarray:
    return keyed_digests(np.array(names, dtype=object), KEY)


@pytest.mark.parametrize("cell", [17, 17.0, "17", " 17", "17.0", "+17", b"17", np.int64(17), np.float32(17), Decimal("17.0")])
def test_one_person_has_one_spelling(cell: object) -> None:
    assert identifier(cell) == "17"


def test_spellings_that_are_different_people_stay_different() -> None:
    cells = ["007", "7", "a 7", "A 7", "-7", "12E4", "2026-01-02", "9007199254740993", 9007199254740992]
    assert len(set(identifiers(cells))) == len(cells)
    # é as one character and as two.
    assert identifier("Andr\u00e9") == identifier(" Andre\u0301 ")


@pytest.mark.parametrize("cell", [1.5, "1.5", "1e+16", 2.0**53 + 2, float("inf"), True, "", "  ", b"\xff", None, Decimal("1.5"), [1]])
def test_what_names_nobody_surely_is_no_identifier(cell: object) -> None:
    assert identifier(cell) is None


def test_digests_need_the_key() -> None:
    names = np.array(["a", "b", "a"], dtype=object)
    first, other = keyed_digests(names, KEY), keyed_digests(names, b"x" * 32)
    assert first[0] == first[2] != first[1]
    assert not set(first) & set(other)


def test_serials_are_kept_for_good_and_follow_the_digests() -> None:
    one = Roster().joined_by({"": _digests("a", "b", "c", "a")})
    assert one.records("") == 3
    assert (np.diff(one.digest.astype(object)) > 0).all()
    places = one.positions("", _digests("a", "b", "c"))
    # "a" is not in the second version, and keeps its place and is counted.
    two = one.joined_by({"": _digests("c", "d", "b", "e")})
    assert two.records("") == 5
    assert np.array_equal(two.positions("", _digests("a", "b", "c")), places)
    assert sorted(two.positions("", _digests("d", "e"))) == [3, 4]
    # The order of the file decides nothing.
    again = Roster().joined_by({"": _digests("c", "a", "b")})
    assert np.array_equal(again.positions("", _digests("a", "b", "c")), places)


def test_who_is_in_several_files_counts_in_the_first_and_is_counted_in_all() -> None:
    roster = Roster().joined_by({"north": _digests("a", "b"), "south": _digests("b", "c"), "test": _digests("a", "d")})
    assert roster.trained_on() == [("north", 2), ("south", 2)]
    assert roster.records("test") == 2
    assert sorted(roster.positions("north", _digests("a", "b"))) == [0, 1]
    in_south = roster.positions("south", _digests("b", "c"))
    assert in_south[0] == -1 and in_south[1] in (2, 3)
    in_test = roster.positions("test", _digests("a", "d"))
    assert in_test[0] == -1 and in_test[1] in (0, 1)
    # Who came first to the test rows stays there when the training rows come to know them.
    later = roster.joined_by({"north": _digests("a", "b", "d"), "south": _digests("c"), "test": _digests("d")})
    assert later.positions("north", _digests("d"))[0] == -1
    assert later.positions("test", _digests("d"))[0] == in_test[1]
    assert later.trained_on() == [("north", 3), ("south", 2)]


def test_at_most_m_rows_of_a_person_by_what_they_hold() -> None:
    positions = np.array([0, 1, 0, 0, -1, 1, 0], dtype=np.int32)
    prints = np.array([5, 9, 3, 5, 1, 2, 8], dtype=np.uint64)
    labels = np.array([1, 0, 0, 0, 0, 0, 0])
    kept = at_most(positions, prints, labels, 2)
    # Of equal features the lower label, of the others the lower fingerprint.
    assert kept.tolist() == [-1, 1, 0, 0, -1, 1, -1]
    order = np.array([6, 3, 1, 0, 5, 2, 4])
    assert np.array_equal(at_most(positions[order], prints[order], labels[order], 2), kept[order])
    # One person's rows move nobody else's.
    more = at_most(np.append(positions, [0] * 50), np.append(prints, [0] * 50).astype(np.uint64), np.append(labels, [0] * 50), 2)
    assert np.array_equal(more[:7] == 1, kept == 1)
    assert shares(kept, 3).tolist() == [0, 2, 2, 2, 0, 2, 0]
    assert (at_most(np.zeros(1000, np.int32), np.zeros(1000, np.uint64), np.zeros(1000), 64) == 0).sum() == 64


def test_what_is_stored_comes_back_and_damage_is_named(tmp_path: Path) -> None:
    roster = Roster().joined_by({"": _digests("a", "b"), "test": _digests("c")})
    positions = {"train": np.array([1, 0, -1], np.int32), "test": np.array([0], np.int32)}
    path = tmp_path / "people.npz"
    digest = save_people(path, roster, positions)
    assert path.stat().st_mode & 0o777 == 0o600
    found, rows = load_people(path, digest)
    assert found.files == ("", "test") and np.array_equal(found.digest, roster.digest)
    assert {part: places.tolist() for part, places in rows.items()} == {"train": [1, 0, -1], "test": [0]}
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(DamagedError, match="people.npz is damaged"):
        load_people(path, digest)


@pytest.mark.parametrize("most", [0, -1, True, 1.5, 2**17])
def test_the_cap_on_rows_is_a_whole_number(most: object) -> None:
    with pytest.raises(InputError, match="rows_per_person is"):
        People("Patient", most)  # type: ignore[arg-type]
