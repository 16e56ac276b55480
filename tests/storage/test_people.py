"""People behind rows: one spelling of an identifier, serials for good, and at most m rows of each."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from storage.datasets import is_complete, open_dataset, open_people, people_version
from storage.errors import DamagedError, InputError
from storage.layout import Layout
from storage.people import (
    People,
    PersonRegister,
    Seen,
    StoredPeople,
    at_most,
    identifiers,
    keyed_digests,
    load_people,
    record_sizes,
    row_digests,
    save_people,
)
from storage.refs import DatasetRef
from storage.source import ReadOptions, read_source
from storage.transforming import transform_dataset
from tests.support.data import stored
from tests.support.stating import stating

KEY = b"k" * 32


def _digests(*names: str) -> np.ndarray:
    return keyed_digests(np.array(names, dtype=object), KEY)


@pytest.mark.parametrize("cell", [17, 17.0, "17", " 17", "17.0", "+17", np.int64(17), np.float32(17), Decimal("17.0")])
def test_one_person_has_one_spelling(cell: object) -> None:
    assert identifiers([cell]).tolist() == ["17"]


def test_spellings_that_are_different_people_stay_different() -> None:
    cells = ["007", "7", "a 7", "A 7", "-7", "12E4", "2026-01-02", "9007199254740993", 9007199254740992]
    assert len(set(identifiers(cells))) == len(cells)
    # é as one character and as two.
    assert len(set(identifiers(["Andr\u00e9", " Andre\u0301 "]))) == 1


@pytest.mark.parametrize(
    "cell",
    [
        1.5,
        "1.5",
        "1e+16",
        2.0**53,
        "9007199254740994.0",
        b"17",
        np.float32(2**24),
        "True",
        float("inf"),
        True,
        "",
        "  ",
        b"\xff",
        None,
        Decimal("1.5"),
        [1],
    ],
)
def test_what_names_nobody_surely_is_no_identifier(cell: object) -> None:
    assert identifiers([cell]).tolist() == [None]


def test_digests_need_the_key() -> None:
    names = np.array(["a", "b", "a"], dtype=object)
    first, other = keyed_digests(names, KEY), keyed_digests(names, b"x" * 32)
    assert first[0] == first[2] != first[1]
    assert not set(first) & set(other)


def test_serials_are_kept_for_good_and_follow_the_digests() -> None:
    one = PersonRegister().joined_by({"": _digests("a", "b", "c", "a")})
    assert one.records("") == 3
    assert (np.diff(one.digest.astype(object)) > 0).all()
    places = one.positions("", _digests("a", "b", "c"))
    # "a" is not in the second version, and keeps its place and is counted.
    two = one.joined_by({"": _digests("c", "d", "b", "e")})
    assert two.records("") == 5
    assert np.array_equal(two.positions("", _digests("a", "b", "c")), places)
    assert sorted(two.positions("", _digests("d", "e"))) == [3, 4]
    # The order of the file decides nothing.
    again = PersonRegister().joined_by({"": _digests("c", "a", "b")})
    assert np.array_equal(again.positions("", _digests("a", "b", "c")), places)


def test_who_is_in_several_files_counts_in_the_first_and_is_counted_in_all() -> None:
    register = PersonRegister().joined_by(
        {"north": _digests("a", "b"), "south": _digests("b", "c"), "test": _digests("a", "d")}
    )
    assert register.trained_on() == [("north", 2), ("south", 2)]
    assert register.records("test") == 2
    assert sorted(register.positions("north", _digests("a", "b"))) == [0, 1]
    in_south = register.positions("south", _digests("b", "c"))
    assert in_south[0] == -1
    assert in_south[1] in (2, 3)
    in_test = register.positions("test", _digests("a", "d"))
    assert in_test[0] == -1
    assert in_test[1] in (0, 1)
    # Who came first to the test rows stays there when the training rows come to know them.
    later = register.joined_by({"north": _digests("a", "b", "d"), "south": _digests("c"), "test": _digests("d")})
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
    more = at_most(
        np.append(positions, [0] * 50), np.append(prints, [0] * 50).astype(np.uint64), np.append(labels, [0] * 50), 2
    )
    assert np.array_equal(more[:7] == 1, kept == 1)
    assert record_sizes(kept, 3).tolist() == [0, 2, 2, 2, 0, 2, 0]
    assert (at_most(np.zeros(1000, np.int32), np.zeros(1000, np.uint64), np.zeros(1000), 64) == 0).sum() == 64


def test_rows_that_came_last_stay_first() -> None:
    positions, labels = np.zeros(6, np.int32), np.zeros(6)
    prints = np.array([1, 2, 3, 4, 5, 6], dtype=np.uint64)
    since = np.array([1, 1, 2, 2, 3, 1], dtype=np.int32)
    assert at_most(positions, prints, labels, 2, since).tolist() == [-1, -1, 0, -1, 0, -1]
    assert at_most(positions, prints, labels, 4, since).tolist() == [0, -1, 0, 0, 0, -1]


def test_what_came_before_is_known_by_how_often_and_since_when() -> None:
    """Of a row that was there twice and is there three times one is new; one that was away is new when it returns."""
    rows = row_digests(_digests("a", "a", "b", "a", "a"), np.arange(5, dtype=np.uint64) % 3, np.zeros(5))
    a0, a1, b2, _, _ = rows
    first, since = Seen().followed_by(np.array([a0, a0, b2]))
    assert since.tolist() == [1, 1, 1]
    second, since = first.followed_by(np.array([a1, a0, a0, a0]))
    assert sorted(since.tolist()) == [1, 1, 2, 2]
    assert since[0] == 2
    third, since = second.followed_by(np.array([b2, a0, a1]))
    assert since.tolist() == [3, 1, 2]
    assert third.version == 3
    # Another label, and another person with the same row, are other rows.
    told = row_digests(_digests("a", "a", "b"), np.zeros(3, np.uint64), np.array([0, 1, 0]))
    assert len(np.unique(told)) == 3


def test_what_is_stored_comes_back_and_damage_is_named(tmp_path: Path) -> None:
    register = PersonRegister().joined_by({"": _digests("a", "b"), "test": _digests("c")})
    positions = {"train": np.array([1, 0, -1], np.int32), "test": np.array([0], np.int32)}
    path = tmp_path / "people.npz"
    digest = save_people(path, StoredPeople(register, positions, np.array([1, 2, 2], np.int32)))
    assert path.stat().st_mode & 0o777 == 0o600
    found, rows, since = load_people(path, digest)
    assert since.tolist() == [1, 2, 2]
    assert found.files == ("", "test")
    assert np.array_equal(found.digest, register.digest)
    assert {part: places.tolist() for part, places in rows.items()} == {"train": [1, 0, -1], "test": [0]}
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(DamagedError, check=stating(value="people.npz", bound="digest")):
        load_people(path, digest)


@pytest.mark.parametrize("most", [0, -1, True, 1.5, 2**17])
def test_the_cap_on_rows_is_a_whole_number(most: object) -> None:
    with pytest.raises(InputError, match="rows_per_person"):
        People("Patient", most)  # type: ignore[arg-type]


SCHEMA = """
scaling: unit-interval
missing: {marker: "", rows: indicator}
columns:
  - {name: Patient, type: person, namespace: hospital-mrn, rows_per_person: 2, missing: drop}
  - {name: age, type: numeric, range: [0, 100]}
  - {name: sick, type: label, classes: ["no", "yes"], missing: drop}
"""
ROWS = "Patient,age,sick\n7,50,no\n7.0,60,yes\n 7,70,no\n8,20,\n,30,no\n9,40,yes\n"


def _ingested(tmp_path: Path, text: str, previous: tuple[DatasetRef, ...] = (), schema: str = SCHEMA) -> DatasetRef:
    layout = Layout(tmp_path / "root").prepare()
    (tmp_path / "schema.yaml").write_text(schema)
    (tmp_path / "rows.csv").write_text(text)
    source = read_source("csv", tmp_path / "rows.csv", ReadOptions(schema=tmp_path / "schema.yaml"))
    return stored(layout, source, private=True, name="visits", account="hospital", previous=previous)


def test_a_version_counts_people_and_says_whose_each_row_is(tmp_path: Path) -> None:
    ref = _ingested(tmp_path, ROWS)
    layout = Layout(tmp_path / "root")
    # 8 has no row left and is counted; the row without an identifier is nobody's.
    assert (ref.rows, ref.person, ref.rows_per_person) == (3, "Patient", 2)
    # Three rows of 7 came, and two are taken: no other is stored.
    assert open_dataset(layout, ref).count == 3
    opened = open_people(layout, ref)
    assert opened is not None
    positions = opened.positions["train"]
    assert sorted(np.unique(positions, return_counts=True)[1]) == [1, 2]
    assert (opened.since.tolist(), people_version(layout, ref)) == ([1, 1, 1], 1)
    assert _ingested(tmp_path, ROWS, (ref,)) == ref
    # Other people with the same rows are another version; who was there keeps the place.
    later = _ingested(tmp_path, ROWS.replace("\n9,", "\n10,"), (ref,))
    assert later.version != ref.version
    assert later.rows == 4
    again = open_people(layout, later)
    assert again is not None
    assert np.array_equal(again.positions["train"][:2], positions[:2])
    assert again.positions["train"][2] == 3
    assert (again.since.tolist(), people_version(layout, later)) == ([1, 1, 2], 2)
    kept = transform_dataset(layout, ref, lambda block: block / 2, normalisation="halved")
    derived = open_people(layout, kept)
    assert kept.rows == 3
    assert derived is not None
    assert np.array_equal(derived.positions["train"], positions)
    (layout.dataset(ref.version) / "people.npz").unlink()
    assert not is_complete(layout, ref.version)


def test_typed_and_line_by_line_reading_name_the_same_people(tmp_path: Path) -> None:
    text = "Patient,age,sick\n7,50,no\n7.0,60,yes\n 8 ,70,no\n"
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    for body in (text, text + "9,,no\n"):
        (tmp_path / "rows.csv").write_text(body)
        source = read_source("csv", tmp_path / "rows.csv", ReadOptions(schema=tmp_path / "schema.yaml"))
        (block,) = source.parts["train"]
        assert block.people is not None
        assert block.people[:3].tolist() == ["7", "7", "8"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("type: numeric, range: [0, 100]", "type: person"), "columns Patient"),
        (("missing: drop}\n  - {name: age", "missing: indicator}\n  - {name: age"), "Patient: missing.*indicator"),
        (("rows_per_person: 2", "rows_per_person: 0"), "rows_per_person is 0"),
        (("hospital-mrn", "[1]"), r"namespace.*\[1\]"),
        (("name: age", "name: Patient"), "column 'Patient'"),
    ],
)
def test_faulty_declarations_are_named(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        _ingested(tmp_path, ROWS, schema=SCHEMA.replace(*change))


def test_unsafe_identifiers_stop_the_ingestion_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 3, column Patient: '1\.5'"):
        _ingested(tmp_path, "Patient,age,sick\n7,50,no\n1.5,60,yes\n")
