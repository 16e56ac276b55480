"""Arrivals: rows that are new in a version, by fingerprints of rows and labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from storage.arrivals import difference
from storage.layout import Layout
from storage.refs import DatasetRef
from storage.source import ReadOptions, read_source
from tests.support import data


def stored(layout: Layout, folder: Path, rows: Sequence[tuple[int, float]]) -> DatasetRef:
    path = folder / "rows.txt"
    path.write_text("".join(f"{label} 1:{value:g} 2:0.5\n" for label, value in rows))
    source = read_source("libsvm", path, ReadOptions(dimension=2, classes=("0", "1")))
    return data.stored(layout, source, private=True, name="clinic")


A, B, C = (0, 0.1), (1, 0.2), (0, 0.3)


def test_rows_are_counted_whatever_their_order(root: Path, tmp_path: Path) -> None:
    layout = Layout(root).prepare()
    first = stored(layout, tmp_path, [A, B])
    every = difference(layout, first, None, ())
    assert (every.positions.tolist(), every.missing, every.returning) == ([0, 1], 0, 0)
    later = difference(layout, stored(layout, tmp_path, [C, B, A]), first, ())
    assert (later.positions.tolist(), later.missing, later.returning) == ([0], 0, 0)
    # Of a row that was there once and occurs twice, one has arrived, and it was there before.
    twice = difference(layout, stored(layout, tmp_path, [A, A, B]), first, ())
    assert (twice.positions.tolist(), twice.missing, twice.returning) == ([1], 0, 1)


def test_another_label_is_another_row(root: Path, tmp_path: Path) -> None:
    layout = Layout(root).prepare()
    first = stored(layout, tmp_path, [A, B])
    found = difference(layout, stored(layout, tmp_path, [(1, 0.1), B]), first, ())
    assert (found.positions.tolist(), found.missing) == ([0], 1)


def test_rows_that_went_are_remembered(root: Path, tmp_path: Path) -> None:
    layout = Layout(root).prepare()
    first, second = stored(layout, tmp_path, [A, B, C]), stored(layout, tmp_path, [A, B])
    gone = difference(layout, second, first, ())
    assert (gone.positions.tolist(), gone.missing) == ([], 1)
    back = stored(layout, tmp_path, [B, C, A, (1, 0.9)])
    assert difference(layout, back, second, ()).returning == 0
    assert difference(layout, back, second, (first,)).returning == 1


def test_fingerprints_outlive_the_rows_and_are_the_owners_alone(root: Path, tmp_path: Path) -> None:
    layout = Layout(root).prepare()
    first, second = stored(layout, tmp_path, [A, B]), stored(layout, tmp_path, [A, B, C])
    difference(layout, second, first, ())
    kept = list(layout.arrivals.iterdir())
    assert len(kept) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in [layout.arrivals, *kept])
    for path in layout.dataset(first.version).rglob("*.parquet"):
        path.unlink()
    np.testing.assert_array_equal(difference(layout, second, first, ()).positions, [2])


def test_how_many_arrive_depends_on_no_rows_content(root: Path, tmp_path: Path) -> None:
    """Where one row is another in every version, a copy of an earlier or a later one included, as many are new."""
    layout = Layout(root).prepare()
    rows = [(place % 2, place / 8.0) for place in range(8)]
    for other in (rows[3], rows[0], rows[7], (1, 0.99)):
        replaced = [*rows[:3], other, *rows[4:]]
        versions = [stored(layout, tmp_path, replaced[:count][::order]) for count, order in ((3, 1), (5, -1), (8, 1))]
        counts = [
            len(difference(layout, now, before, ()).positions)
            for before, now in zip([None, *versions], versions, strict=False)
        ]
        assert counts == [3, 2, 3]


def test_where_rows_are_appended_a_place_says_which_are_new(root: Path, tmp_path: Path) -> None:
    """Whatever they hold; in another order an equal row decides which of two is the new one."""
    layout = Layout(root).prepare()
    first = stored(layout, tmp_path, [A, B])
    for last in (C, A, B, (1, 0.9)):
        found = difference(layout, stored(layout, tmp_path, [A, B, last]), first, ())
        assert (found.positions.tolist(), found.appended) == ([2], True)
    for rows, new in (([C, A, B], [0]), ([B, A, B], [2]), ([B, A, C], [2]), ([A, C], [1])):
        found = difference(layout, stored(layout, tmp_path, rows), first, ())
        assert (found.positions.tolist(), found.appended) == (new, False)
