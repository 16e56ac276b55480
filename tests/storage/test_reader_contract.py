"""Every reader keeps one contract: it is named, declares before it reads, and reads the same rows again and again."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from storage.cells import canonical_text
from storage.errors import InputError
from storage.readers import delimited
from storage.refs import OnViolation
from storage.source import ReadOptions, Source, read_source, reader_names
from tests.storage.reader_samples import SAMPLES

# What is fetched has no file to read: test_reader_others reads stored answers.
FETCHED = {"openml"}


def test_every_reader_has_a_sample_and_a_summary() -> None:
    names = reader_names()
    assert set(names) == set(SAMPLES) | FETCHED
    assert all(summary.endswith(".") for summary in names.values())


def rows_of(source: Source) -> tuple[NDArray[np.float64], list[int]]:
    """Return the training rows, dense, and their class indices."""
    features, labels = [np.zeros((0, source.dimension))], []
    for block in source.parts["train"]:
        features.append(np.asarray(block.features.toarray() if source.sparse else block.features, dtype=np.float64))
        labels += [source.classes.index(canonical_text(str(label))) for label in block.labels]
    return np.concatenate(features), labels


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_declared_rows_are_read_in_order_and_again(name: str, tmp_path: Path) -> None:
    sample = SAMPLES[name](tmp_path)
    source = read_source(name, sample.path, sample.options)
    assert (source.format, source.dimension, source.found) == (name, sample.dimension, frozenset())
    features, labels = rows_of(source)
    assert features.shape == (sample.rows, sample.dimension)
    assert np.isfinite(features).all()
    again = rows_of(source)
    np.testing.assert_array_equal(again[0], features)
    assert again[1] == labels
    if sample.features is not None:
        np.testing.assert_allclose(features, sample.features)
    if sample.labels is not None:
        assert labels == sample.labels


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_what_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    sample = SAMPLES[name](tmp_path)
    with pytest.raises(InputError, match="nowhere"):
        rows_of(read_source(name, tmp_path / "nowhere", sample.options))


ODD_SCHEMA = """
columns:
  - {name: note, type: ignore}
  - {name: age, type: numeric, range: [0, 100], missing: indicator}
  - {name: paid, type: numeric, range: [0, 100], currency: "€", thousands: ",", scale: log, missing: constant}
  - {name: born, type: date, range: [2000-01-01, 2026-12-31], parts: [days, month], missing: constant}
  - {name: stay, type: days, between: [born, left], range: [0, 100], missing: indicator}
  - {name: left, type: ignore}
  - {name: colour, type: category, values: [red, "1", "2.5"]}
  - {name: street, type: category, hash: 4, missing: constant}
  - {name: smokes, type: boolean, missing: constant}
  - {name: sick, type: label, classes: ["no", "yes"], suffix: "."}
missing: {marker: ["", "9", "NA"], rows: drop}
"""
ODD_CELLS = [
    "a", "5", "9", "9.0", " 9", "7\x1f", "+3", "1_0", "nan", "inf", "-0", "1e400", "2001-02-30", "20010203", "2.50",
    "€ 1,200", "no. ", "NA", "", "٣", "\u00a05", "5\x00", "\ufeff5", '"q"', '"a,b"', '"a""b"', 'x"y', '"x"y', ' "s"',
    "1\t", "\x0b2", "\x85", "0x10", "infinity", '"x\ny"', "\u20285",
]  # fmt: skip
ODD_PAIRS = ["2:0x1", "0x3:1", "3:+5", "5:.5", "05:1", "5:1e-400", "#c", "\t5:1", "5:1\r", "\x0b5:1", "5 :1", "5:1:2"]
LABELS = ["no", "no.", "yes", "no. ", " no", "yes .", "1"]
COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "age": (pa.float64(), [1.0, float("nan"), -0.0, 101.0, float("inf"), None]),
    "paid": (pa.string(), ["1", "€ 1,200", "x", " 7 ", "7\x1f", "1_0", None]),
    "born": (pa.date32(), [datetime.date(2001, 2, 3), datetime.date(1900, 1, 1), None]),
    "left": (pa.timestamp("s"), [datetime.datetime(2001, 3, 3, 1), datetime.datetime(1900, 1, 1), 10**14, None]),
    "colour": (pa.string(), ["red", "1.0", "2.50", "9", "blue", None]),
    "street": (pa.int64(), [1, 9, -7, 2**62, None]),
    "smokes": (pa.bool_(), [True, False, None]),
    "sick": (pa.string(), ["no", "yes.", "no. ", "perhaps", None]),
}


def _csv_row(of: random.Random) -> str:
    cells = ['"a,b"', str(of.randint(0, 99)), "7", "2001-01-03", "2001-02-03", "red", "Main", "yes", of.choice(LABELS)]
    if of.random() < 0.5:
        cells[of.randrange(8)] = of.choice(ODD_CELLS)
    # Now and then a cell is missing altogether, or there is one too many.
    return ",".join(cells[: of.choice([8, *[9] * 10])] + ["9"] * (of.random() < 0.05))


def _write_csv(folder: Path, rows: list[str]) -> tuple[Path, dict[str, Any]]:
    head = "note,age,paid,born,left,colour,street,smokes,sick\n"
    (folder / "rows.csv").write_text(head + "\n".join(rows) + "\n", "utf-8", newline="")
    return folder / "rows.csv", {"schema": folder / "schema.yaml"}


def _libsvm_row(of: random.Random) -> str:
    pairs = [f"{index}:{of.random():.3f}" for index in range(1, 5) if of.random() < 0.6]
    odd = [of.choice(ODD_PAIRS)] if of.random() < 0.3 else []
    return " ".join([of.choice(["1", "+1", "-1.0", "0x1", "1\x00"]), *pairs, *odd])


def _write_libsvm(folder: Path, rows: list[str]) -> tuple[Path, dict[str, Any]]:
    (folder / "rows").write_text("\n".join(rows) + "\n", newline="")
    return folder / "rows", {"dimension": 6, "classes": ("1", "-1", "0x1")}


def _parquet_row(of: random.Random) -> dict[str, Any]:
    return {name: values[0] if of.random() < 0.5 else of.choice(values) for name, (_, values) in COLUMNS.items()}


def _write_parquet(folder: Path, rows: list[dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
    table = {name: pa.array([row[name] for row in rows], kind) for name, (kind, _) in COLUMNS.items()}
    pq.write_table(pa.table(table), folder / "rows.parquet")
    return folder / "rows.parquet", {"schema": folder / "schema.yaml"}


ODD_ROWS: dict[str, tuple[int, Callable[[random.Random], Any], Callable[[Path, Any], tuple[Path, dict[str, Any]]]]] = {
    "csv": (300, _csv_row, _write_csv),
    "libsvm": (400, _libsvm_row, _write_libsvm),
    "parquet": (6, _parquet_row, _write_parquet),
}


def _bits(
    name: str, path: Path, options: dict[str, Any], violation: OnViolation
) -> list[tuple[bool, bytes, bytes, str]] | None:
    """Return every row as it is read, bit by bit; None where the file is refused."""
    clips: dict[str, Any] = {} if name == "libsvm" else {"on_violation": violation}
    found = []
    try:
        for block in read_source(name, path, ReadOptions(**options, **clips)).parts["train"]:
            features = block.features.toarray() if name == "libsvm" else block.features
            plain = features if block.plain is None else block.plain
            null = np.zeros(len(features), dtype=bool) if block.null is None else block.null
            for row, gone in enumerate(null.tolist()):
                label = "" if gone else str(canonical_text(block.labels[row]))
                found.append((gone, features[row].tobytes(), plain[row].tobytes(), label))
    except InputError:
        return None
    return found


@pytest.mark.parametrize("part", [3, pytest.param(1, marks=pytest.mark.nightly)], ids=["a third", "all"])
@pytest.mark.parametrize("name", ODD_ROWS)
def test_replacing_a_row_moves_no_other(name: str, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit, null records and order included: the stability of every guarantee rests on it."""
    rounds, row, write = ODD_ROWS[name]
    rounds //= part
    (tmp_path / "schema.yaml").write_text(ODD_SCHEMA)
    compared = 0
    for number in range(rounds):
        of = random.Random(number)
        monkeypatch.setattr(delimited, "_BLOCK_BYTES", of.choice([97, 300, 1 << 22]))
        violation = of.choice([OnViolation.DROP, OnViolation.DROP, OnViolation.CLIP, OnViolation.REFUSE])
        rows = [row(of) for _ in range(of.randint(1, 6))]
        place, other = of.randrange(len(rows)), row(of)
        before = _bits(name, *write(tmp_path, rows), violation)
        after = _bits(name, *write(tmp_path, [*rows[:place], other, *rows[place + 1 :]]), violation)
        if before is not None and after is not None:
            compared += 1
            assert len(before) == len(after) == len(rows), (rows, other)
            del before[place], after[place]
            assert before == after, (rows, place, other)
        alone = [_bits(name, *write(tmp_path, [one]), violation) for one in rows] if name == "libsvm" else []
        assert not alone or (None in alone) == (before is None), rows
    assert compared > rounds // 6
