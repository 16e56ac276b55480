"""A careless or greedy owner: the same rows under a new name must not meet a new budget."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from storage.column_order import ColumnOrder, Order, orders_agree
from storage.errors import RefusedError, StorageError
from storage.fingerprints import ADMITTED_SHARE, ColumnSketches, load_columns, row_patterns, save_columns
from storage.layout import COLUMNS, FINGERPRINTS
from storage.ledger.charges import Cap
from storage.ledger.entries import Kind, reading
from tasks.accounts.ledger import restore_ledger
from tasks.accounts.reports import budget_report
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog, open_ledger_database
from tasks.upkeep.checks import sweep_everything
from tests.security.conftest import request_for, schema_for, write_csv
from tests.support.command_line import CommandLine
from tests.support.stating import stating
from tests.tasks.test_people import bring_in, visits

Rows = NDArray[np.float64]


def _appended(rows: Rows, random: np.random.Generator) -> Rows:
    fresh = random.normal(size=(4 * len(rows), rows.shape[1] - 1))
    return np.concatenate([rows, np.column_stack([fresh, np.arange(len(fresh)) % 2])])


def _shuffled(rows: Rows, random: np.random.Generator) -> Rows:
    return random.permutation(rows)


def _tenth(rows: Rows, random: np.random.Generator) -> Rows:
    return random.permutation(rows)[: len(rows) // 10]


def _float32(rows: Rows, random: np.random.Generator) -> Rows:
    return np.asarray(rows.astype(np.float32), dtype=np.float64)


def _relabelled(rows: Rows, random: np.random.Generator) -> Rows:
    return np.column_stack([rows[:, :-1], random.permutation(rows[:, -1])])


def _permuted(rows: Rows, random: np.random.Generator) -> Rows:
    return np.column_stack([rows[:, random.permutation(rows.shape[1] - 1)], rows[:, -1]])


def _all_at_once(rows: Rows, random: np.random.Generator) -> Rows:
    return _shuffled(_relabelled(_permuted(_appended(rows, random), random), random), random)


def _features(change: Callable[[Rows, np.random.Generator], Rows]) -> Callable[[Rows, np.random.Generator], Rows]:
    return lambda rows, random: np.column_stack([change(rows[:, :-1], random), rows[:, -1]])


def _mostly_negated(rows: Rows, random: np.random.Generator) -> Rows:
    kept = random.permutation(rows)[: len(rows) * 99 // 100]
    return np.column_stack([0.3 * -kept[:, [4, 1, 6, 2]] + 7, np.ones(len(kept)), kept[:, -1]])


COPIES: dict[str, Callable[[Rows, np.random.Generator], Rows]] = {
    "whole": lambda rows, random: rows,
    "appended": _appended,
    "shuffled": _shuffled,
    "a tenth": _tenth,
    "float32": _float32,
    "relabelled": _relabelled,
    "columns permuted": _permuted,
    "all of these": _all_at_once,
    "scaled": _features(lambda cells, random: cells * 255),
    "negated": _features(lambda cells, random: -cells),
    "unit norm": _features(lambda cells, random: cells / np.linalg.norm(cells, axis=1, keepdims=True)),
    "shifted": _features(lambda cells, random: cells - 2.5),
    "0.3 x + 7": _features(lambda cells, random: 0.3 * cells + 7),
    "each column scaled, shifted, mirrored": _features(
        lambda cells, random: cells * random.choice([-9, -1.5, 0.2, 40], cells.shape[1]) + random.normal(cells.shape[1])
    ),
    "rounded": _features(lambda cells, random: cells.round(2)),
    "rounded and scaled": _features(lambda cells, random: cells.round(2) * 3),
    "a column dropped": _features(lambda cells, random: np.delete(cells, 3, axis=1)),
    "columns added": _features(lambda cells, random: np.column_stack([random.normal(size=len(cells)), cells])),
    "a constant added": _features(lambda cells, random: np.column_stack([cells, np.ones(len(cells))])),
    "one per cent removed, scaled": lambda rows, random: random.permutation(rows)[:396] * [*[0.7] * 8, 1],
    "most of these": _mostly_negated,
    "tanh": _features(lambda cells, random: np.tanh(cells)),
    "cubes": _features(lambda cells, random: cells**3),
    "mirrored curves, columns permuted": _features(lambda cells, random: np.exp(-cells[:, ::-1])),
    "cubes of the second half, appended": lambda rows, random: _appended(
        np.column_stack([rows[200:, :-1] ** 3, rows[200:, -1]]), random
    ),
}


def _write(path: Path, rows: Rows, form: str) -> Path:
    if form == "csv":
        return write_csv(path.with_suffix(".csv"), rows)
    columns: dict[str, Any] = {f"x{column}": rows[:, column] for column in range(rows.shape[1] - 1)}
    pq.write_table(pa.table({**columns, "label": rows[:, -1].astype(int).astype(str)}), path.with_suffix(".parquet"))
    schema_for(path, rows.shape[1] - 1, 8 if np.abs(rows[:, :-1]).max() <= 8 else 2048)
    return path.with_suffix(".parquet")


@pytest.mark.parametrize(
    ("copy", "form"),
    [(copy, "csv") for copy in COPIES]
    # Parquet is decoded in processes of their own, which takes a second; rows are the same from there on.
    + [
        pytest.param(copy, "parquet", marks=[pytest.mark.nightly] * (copy not in ("whole", "relabelled", "float32")))
        for copy in COPIES
    ],
)
def test_a_copy_under_another_name_is_refused(
    clinic: Path, rows: Rows, copy: str, form: str, tmp_path: Path, random: np.random.Generator
) -> None:
    path = _write(tmp_path / "copy", COPIES[copy](rows, random), form)
    with pytest.raises(
        RefusedError,
        match=r"account 'clinic'.*--account.*--disjoint-people",
        check=stating(bound=("clinic",), way_out="--account"),
    ):
        ingest(request_for(path, "other"))
    with pytest.raises(RefusedError, check=stating(value="public", bound="private")) as caught:
        ingest(request_for(path, "open", visibility="public", epsilon_cap=None, delta_cap=None))
    assert "%" not in str(caught.value)
    assert [entry.name for entry in open_catalog().datasets()] == ["clinic"]
    assert len(list(current_layout().datasets.iterdir())) == 1
    with reading(open_ledger_database()) as entries:
        refused = [(entry.subject, entry.content) for entry in entries.find(Kind.REFUSAL)]
    assert refused == [("other", {"visibility": "private"}), ("open", {"visibility": "public"})]


def test_rows_that_an_account_of_rows_knows_do_not_become_people(clinic: Path, tmp_path: Path) -> None:
    """Spend, add a column of identifiers, ingest again: under any name and account nothing is refilled."""
    before = budget_report("clinic")
    path = tmp_path / "visits.csv"
    path.write_text("".join(f"{line},{number // 3}\n" for number, line in enumerate(clinic.read_text().splitlines())))
    schema = clinic.with_suffix(".yaml").read_text()
    path.with_suffix(".yaml").write_text(f"{schema}  - {{name: Patient, type: person}}\n")
    versions = sorted(current_layout().datasets.iterdir())
    for name, account, told in (
        ("visits", None, "^rows of visits.*account 'clinic'"),
        ("visits", "people-2026", "^rows of visits.*account 'clinic'"),
        ("visits", "clinic", "account 'clinic'.*fixed"),
        ("clinic", None, "account 'clinic'.*fixed"),
        ("clinic", "people-2026", "^rows of clinic.*account 'clinic'"),
    ):
        with pytest.raises(RefusedError, match=told):
            ingest(request_for(path, name, account=account))
    assert budget_report("clinic") == before
    assert sorted(current_layout().datasets.iterdir()) == versions


def _sketched(table: Rows) -> ColumnSketches:
    found = ColumnSketches()
    for start in range(0, len(table), 300):
        found.add(table[start : start + 300])
    return found


def _agree(one: Rows, other: Rows, path: Path) -> bool:
    save_columns(path, b"k" * 32, _sketched(one).numbers(), Order([], 4))
    return _sketched(other).agree(load_columns(path, b"k" * 32)[0])


def _made(random: np.random.Generator) -> Rows:
    """Return a table of some columns as tables have them, regular ones among them; the shapes are always the same."""
    rows = int(random.choice([60, 100, 300, 1000]))
    ages = random.integers(18, 91, rows)
    return np.column_stack([
        ages,
        np.rint(100 + 0.5 * ages + random.normal(0, 15, rows)),
        random.normal(size=rows),
        random.random(rows),
        random.lognormal(size=rows),
        np.where(random.random(rows) < 0.5, 0, random.integers(1, 256, rows)),
        np.rint(random.normal(54, 15, rows)).clip(18, 90),
        random.integers(0, 3000, rows),
        np.arange(rows),
        7305 + np.arange(rows),
        random.permutation(rows) * 7.0,
        random.integers(0, 2, rows),
    ])  # fmt: skip


def test_no_alarm_at_a_thousand_pairs_of_unrelated_tables(tmp_path: Path, random: np.random.Generator) -> None:
    tables = [_sketched(_made(random)) for _ in range(46)]
    for number, table in enumerate(tables):
        save_columns(tmp_path / str(number), b"k" * 32, table.numbers(), Order([], 4))
    known = [load_columns(tmp_path / str(number), b"k" * 32)[0] for number in range(len(tables))]
    pairs = [(one, other) for one in range(len(tables)) for other in range(one)]
    assert len(pairs) > 1000
    assert not any(tables[one].agree(known[other]) for one, other in pairs)
    assert all(table.agree(sketches) for table, sketches in zip(tables, known, strict=True))


def test_columns_are_recognised_whatever_their_size(tmp_path: Path, random: np.random.Generator) -> None:
    """In blocks, without one per cent, mapped; and halves of one population are not each other."""
    for rows in (200, 3000, 40_000):
        table = np.column_stack([
            random.integers(18, 91, rows), np.rint(random.normal(130, 18, rows)), random.normal(size=rows) + 1000.0,
        ])  # fmt: skip
        part = random.permutation(table)[: rows * 99 // 100]
        for copy in (table * 0.3 + 7, -table[::-1], part, (part * [-2, 0.5, 9]).astype(np.float32).astype(np.float64)):
            assert _agree(table, copy, tmp_path / "sketches"), rows
        assert not _agree(table[::2], table[1::2], tmp_path / "sketches")


def _ordered(table: Rows, block: int = 300) -> Order:
    found = ColumnOrder(b"k" * 32)
    for start in range(0, len(table), block):
        found.add(table[start : start + block])
    return found.order()


def test_curves_through_columns_keep_the_order_of_their_rows(random: np.random.Generator) -> None:
    """Whatever blocks rows come in, in part, behind other rows; other people's rows, and the same ones shuffled, not.

    Sorted, counted and repeated columns are like that in anybody's table, and do not count.
    """
    table: Rows = np.asarray(_made(np.random.default_rng(3)), dtype=np.float32).astype(np.float64)
    table = np.concatenate([table, table[random.permutation(len(table))]])
    known, begun = _ordered(table), _ordered(table[:400])
    assert all(
        (rows == other).all()
        for block in (1, 64, 65, 10_000)
        for rows, other in zip(begun.columns, _ordered(table[:400], block).columns, strict=True)
    )
    places = np.arange(2000.0)
    cycles: Rows = np.column_stack([places // 7, places % 7, places % 2, 0 * places])
    assert [len(column) for column in _ordered(cycles).columns] == [0, 0, 0, 0]
    for copy in (table, np.cbrt(table), -np.log1p(table - table.min(axis=0)), table[len(table) // 2 :]):
        mapped = np.asarray(copy, dtype=np.float64)
        assert orders_agree(_ordered(mapped), known, ADMITTED_SHARE)
        assert orders_agree(known, _ordered(mapped), ADMITTED_SHARE)
    assert not orders_agree(_ordered(random.permutation(table)), known, ADMITTED_SHARE)
    # Of a long table fewer windows are kept; it is compared with a short one at its rate.
    long = random.normal(size=(700_000, 2))
    part, whole = _ordered(long[300_000:304_000] ** 3), _ordered(long, 50_000)
    assert (part.level, whole.level) == (4, 5)
    assert max(map(len, whole.columns)) <= 1 << 15
    assert orders_agree(part, whole, ADMITTED_SHARE)
    # A single column in common is no table that comes back.
    one = np.column_stack([table[:, 2], random.normal(size=(len(table), 4))])
    assert not orders_agree(_ordered(one), known, ADMITTED_SHARE)


def test_no_two_of_a_hundred_unrelated_tables_agree_in_their_order(random: np.random.Generator) -> None:
    tables = [_ordered(_made(random)) for _ in range(100)]
    assert sum(len(column) >= 10 for table in tables for column in table.columns) > 100
    assert not any(
        orders_agree(tables[one], tables[other], ADMITTED_SHARE) for one in range(len(tables)) for other in range(one)
    )


@pytest.mark.parametrize("period", [2, 24])
def test_tables_whose_rows_come_in_turns_are_no_copies_of_each_other(period: int, random: np.random.Generator) -> None:
    """A case and its control, the hours of a day: an order that other people's rows have as well."""

    def made(apart: float) -> Rows:
        level = np.cos(2 * np.pi * (np.arange(2000) % period) / period)[:, None]
        return np.asarray(apart * level + random.normal(size=(2000, 4)), dtype=np.float64)

    for apart in (1.0, 2.0, 8.0):
        tables = [_ordered(made(apart)) for _ in range(8)]
        assert not any(orders_agree(one, other, ADMITTED_SHARE) for one, other in combinations(tables, 2)), apart
    table = np.column_stack([made(8.0), random.normal(size=(2000, 2))])
    assert orders_agree(_ordered(table**3), _ordered(table), ADMITTED_SHARE)


def test_sketches_tell_nothing_without_the_secret(tmp_path: Path, random: np.random.Generator) -> None:
    save_columns(tmp_path / "sketches", b"k" * 32, _sketched(random.normal(size=(300, 3))).numbers(), Order([], 4))
    with pytest.raises(StorageError, match="InvalidTag"):
        load_columns(tmp_path / "sketches", b"l" * 32)
    assert (tmp_path / "sketches").stat().st_mode & 0o777 == 0o600


def test_lost_sketches_are_made_again_at_the_next_ingestion(
    clinic: Path, rows: Rows, tmp_path: Path, random: np.random.Generator
) -> None:
    (folder,) = current_layout().datasets.iterdir()
    (folder / COLUMNS).unlink()
    exact = (folder / FINGERPRINTS).read_bytes()
    path = _write(tmp_path / "copy", COPIES["0.3 x + 7"](rows, random), "csv")
    with pytest.raises(
        RefusedError,
        match=r"account 'clinic'.*--disjoint-people",
        check=stating(bound=("clinic",), way_out="--account"),
    ):
        ingest(request_for(path, "other"))
    assert (folder / COLUMNS).exists()
    # Their digest stands in the ledger.
    assert (folder / FINGERPRINTS).read_bytes() == exact


def test_cells_that_are_missing_do_not_hide_a_copy(root: Path, tmp_path: Path, random: np.random.Generator) -> None:
    cells, missing = random.normal(size=(500, 3)), random.random((500, 3)) < 0.2
    for name, numbers in {"first": cells, "second": 40 - 3 * cells}.items():
        path = tmp_path / f"{name}.csv"
        lines = [
            ",".join("" if gone else repr(float(cell)) for cell, gone in zip(*row, strict=True)) + ",0\n"
            for row in zip(numbers, missing, strict=True)
        ]
        path.write_text("".join(lines))
        schema = schema_for(path, 3, 100).read_text()
        path.with_suffix(".yaml").write_text(schema + 'missing: {marker: "", rows: constant}\n')
        if name == "first":
            ingest(request_for(path, name))
            (folder,) = current_layout().datasets.iterdir()
    for _ in range(2):
        with pytest.raises(RefusedError, match="account 'first'", check=stating(bound=("first",), way_out="--account")):
            ingest(request_for(path, "second"))
        # Made again from the stored rows, too.
        (folder / COLUMNS).unlink()


def test_pixels_scaled_to_one_and_rows_of_unit_norm_are_refused(
    root: Path, tmp_path: Path, random: np.random.Generator
) -> None:
    """Copies whose rows are multiples of the registered ones; LIBSVM files are stored as they are."""

    def pixels() -> Rows:
        return np.where(random.random((300, 64)) < 0.4, random.integers(1, 256, (300, 64)), 0).astype(float)

    rows = pixels()

    def write(name: str, features: Rows) -> IngestRequest:
        path = tmp_path / f"{name}.libsvm"
        lines = []
        for number, row in enumerate(features):
            entries = (f"{place + 1}:{float(row[place])!r}" for place in np.flatnonzero(row).tolist())
            lines.append(" ".join([str(number % 2), *entries]))
        path.write_text("\n".join(lines) + "\n")
        return request_for(path, name, schema_path=None, dimension=64, classes=("0", "1"))

    ingest(write("pixels", rows))
    for name, copy in {
        "scaled": rows / 255,
        "normed": (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32).astype(float),
        "permuted": rows[:, random.permutation(64)] / 16,
    }.items():
        with pytest.raises(
            RefusedError, match="account 'pixels'", check=stating(bound=("pixels",), way_out="--account")
        ):
            ingest(write(name, copy))
    ingest(
        write("fresh", np.where(random.random((300, 64)) < 0.4, random.integers(1, 256, (300, 64)), 0).astype(float))
    )


def test_most_rows_keep_their_pattern_when_they_are_scaled(random: np.random.Generator) -> None:
    """The one percent needed is far away, in few columns and in many."""
    for columns in (5, 20, 150, 784):
        rows = random.normal(size=(500, columns)).astype(np.float32)
        scaled = (rows.astype(np.float64) * 0.37).astype(np.float32)
        kept = np.isin(row_patterns(scaled, b"k" * 32), row_patterns(rows, b"k" * 32)).mean()
        assert kept > 0.5, (columns, kept)


def test_other_rows_of_the_same_kind_are_taken_in(clinic: Path, tmp_path: Path, random: np.random.Generator) -> None:
    fresh = np.column_stack([random.normal(size=(400, 8)), np.arange(400) % 2])
    assert ingest(request_for(write_csv(tmp_path / "other.csv", fresh), "other")).account == "other"


def _turned(cells: Rows, random: np.random.Generator) -> Rows:
    return np.asarray(cells @ np.linalg.qr(random.normal(size=(cells.shape[1],) * 2))[0])


@pytest.mark.parametrize(
    "change",
    [_turned, lambda cells, random: cells.round(), lambda cells, random: random.permutation(np.tanh(cells))],
    ids=["columns turned together", "values cut to steps", "a curve and another order"],
)
def test_what_the_page_says_is_not_seen_is_not(
    clinic: Path,
    rows: Rows,
    change: Callable[[Rows, np.random.Generator], Rows],
    tmp_path: Path,
    random: np.random.Generator,
) -> None:
    """Whoever mends one of these finds the sentence in docs/security.md here."""
    path = write_csv(tmp_path / "copy.csv", _features(change)(rows, random))
    assert ingest(request_for(path, "other")).account == "other"


def _of(whose: object, line: str) -> str:
    return f"{whose},{line.partition(',')[2]}"


@pytest.mark.parametrize("several", [False, True], ids=["one of theirs", "fifty of theirs"])
@pytest.mark.parametrize("heavy", [1, 50])
def test_whether_people_overlap_does_not_depend_on_one_with_many_rows(
    heavy: int, several: bool, root: Path, tmp_path: Path
) -> None:
    """Somebody's fifty rows are those of one or fifty people elsewhere: they were 1 % of the rows, and refused."""
    rows = visits([50])
    bring_in(tmp_path / "a", [*rows[:heavy], *visits([1, 2, 3] * 60, seed=1, first=1)], name="a", most=64)
    theirs = [_of(f"q{number if several else 0}", line) for number, line in enumerate(rows)]
    other = bring_in(tmp_path / "b", [*visits([2] * 200, seed=2, first=300), *theirs], name="b", most=64)
    assert other.account == "b"
    # The other way round: the heavy one comes second.
    back = [_of("q", line) for line in visits([50], seed=3, first=600)]
    bring_in(tmp_path / "c", [*back[:heavy], *visits([1, 2, 3] * 60, seed=4, first=601)], name="c", most=64)
    assert bring_in(tmp_path / "d", [*back, *visits([2] * 150, seed=5, first=800)], name="d", most=64).account == "d"


PEOPLE_COPIES: dict[str, Callable[[list[str], np.random.Generator], list[str]]] = {
    "whole": lambda lines, random: lines,
    "each row somebody's": lambda lines, random: [_of(number, line) for number, line in enumerate(lines)],
    "dealt to others": lambda lines, random: [_of(random.integers(50), line) for line in lines],
    "a tenth": lambda lines, random: random.permutation(lines)[: len(lines) // 10].tolist(),
    "a row each": lambda lines, random: list({line.partition(",")[0]: line for line in lines}.values()),
}


@pytest.mark.parametrize("kind", ["", "ignore"], ids=["people", "rows"])
@pytest.mark.parametrize("copy", PEOPLE_COPIES)
def test_a_copy_of_peoples_rows_is_refused(
    copy: str, kind: str, root: Path, tmp_path: Path, random: np.random.Generator
) -> None:
    """Whosever they are said to be, and brought in as rows; also where lost fingerprints were made again."""
    lines = visits([1, 2, 3, 12] * 75)
    again = PEOPLE_COPIES[copy](lines, random)
    bring_in(tmp_path / "a", lines, name="a", most=64)
    with pytest.raises(
        RefusedError, match=r"account 'a'.*--disjoint-people", check=stating(bound=("a",), way_out="--account")
    ):
        bring_in(tmp_path / "b", again, name="b", most=64, kind=kind)
    ref = bring_in(tmp_path / "a", lines, name="a", most=64)
    kept = current_layout().dataset(ref.version) / FINGERPRINTS
    before = kept.stat().st_size
    kept.unlink()
    assert any("rebuilt the fingerprints" in done for done in sweep_everything(current_layout()))
    assert kept.stat().st_size == before
    with pytest.raises(
        RefusedError, match=r"account 'a'.*--disjoint-people", check=stating(bound=("a",), way_out="--account")
    ):
        bring_in(tmp_path / "b", again, name="b", most=64, kind=kind)


def test_people_of_a_namespace_have_one_account_after_an_older_ledger_was_put_back(root: Path, tmp_path: Path) -> None:
    """Their rows are there, and the ledger that is left knows nothing of them; other rows do not overlap."""
    named = "person, namespace: mrn"
    bring_in(tmp_path / "before", visits([1] * 30), name="before")
    shutil.copytree(root, tmp_path / "back-up")
    bring_in(tmp_path / "a", visits([2] * 40, seed=1, first=100), name="a", kind=named)
    for name in ("ledger.sqlite", "ledger.head"):
        shutil.copy(tmp_path / "back-up" / name, root / name)
    restore_ledger("the disk was lost", None, None)
    with pytest.raises(RefusedError, match=r"namespace 'mrn'.*account 'a'.*'b'"):
        bring_in(tmp_path / "b", visits([2] * 40, seed=2, first=400), name="b", kind=named)
    assert bring_in(tmp_path / "a", visits([2] * 40, seed=1, first=100), name="a", kind=named).account == "a"


def test_rows_of_zeros_are_nobodys(root: Path, tmp_path: Path, random: np.random.Generator) -> None:
    """Null records and empty rows occur in every population."""
    for name in ("one", "two"):
        rows = random.normal(size=(60, 8))
        rows[:6] = -8.0
        ingest(request_for(write_csv(tmp_path / f"{name}.csv", np.column_stack([rows, np.arange(60) % 2])), name))


def test_the_same_account_takes_a_copy_in(clinic: Path, rows: Rows, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "copy.csv", rows[:300])
    ingest(request_for(path, "part", account="clinic", epsilon_cap=None, delta_cap=None))
    assert {entry.account for entry in open_catalog().datasets()} == {"clinic"}


def test_a_declaration_is_recorded_and_shown(clinic: Path, rows: Rows, tmp_path: Path, commands: CommandLine) -> None:
    path = write_csv(tmp_path / "twins.csv", rows[:200])
    ingest(request_for(path, "twins", disjoint_people="rounded lab values agree by chance"))
    (declared,) = budget_report("twins")["disjoint"]
    assert declared["from"] == ["clinic"]
    assert declared["reason"] == "rounded lab values agree by chance"
    assert "rounded lab values agree by chance" in commands("budget", "twins").out
    # The next version need not say it again, on either side; the cap stands for itself.
    for source, name in ((rows[:150], "twins"), (rows, "clinic")):
        ingest(request_for(write_csv(tmp_path / f"{name}-2.csv", source), name, epsilon_cap=None, delta_cap=None))
    assert open_catalog().account_of("twins").cap == Cap(2.0, 1e-4)


def test_of_two_that_bring_in_the_same_rows_at_once_one_is_refused(
    root: Path, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is placed right after the first one's comparison has found nothing."""
    path = write_csv(tmp_path / "rows.csv", rows)
    errors: list[Exception] = []

    def second() -> None:
        try:
            ingest(request_for(path, "second"))
        except Exception as error:
            errors.append(error)

    other = threading.Thread(target=second)
    compare = type(open_catalog()).undeclared

    def compared(self: Any, *arguments: Any) -> list[str]:
        monkeypatch.undo()
        monkeypatch.setenv("UNITBALL_ROOT", str(root))
        monkeypatch.setenv("UNITBALL_LEDGER_MARK", str(tmp_path / "marks"))
        other.start()
        other.join(1.0)
        return compare(self, *arguments)

    monkeypatch.setattr(type(open_catalog()), "undeclared", compared)
    ingest(request_for(path, "first"))
    other.join(300)
    assert [type(error) for error in errors] == [RefusedError]
    assert [entry.name for entry in open_catalog().datasets()] == ["first"]
