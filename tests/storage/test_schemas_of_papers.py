"""The declared schemas of the papers' tables, on small synthetic files of the right shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import InputError
from storage.refs import OnViolation, Scaling
from storage.source import ReadOptions, read_source

ROWS = 6


def sensorless(random: np.random.Generator) -> str:
    return "".join(
        " ".join([*(f"{x:.8g}" for x in random.normal(size=48)), str(row % 11 + 1)]) + "\n" for row in range(ROWS)
    )


def covtype(random: np.random.Generator) -> str:
    def line(row: int) -> str:
        wilderness, soil = np.eye(4, dtype=int)[row % 4], np.eye(40, dtype=int)[random.integers(40)]
        numbers = [2596, 51, 3, 258, -20, 510, 221, 232, 148, 6279]
        return ",".join(map(str, [*numbers, *wilderness, *soil, row % 7 + 1]))

    return "".join(line(row) + "\n" for row in range(ROWS))


def musk(random: np.random.Generator) -> str:
    return "".join(
        f"MUSK-{row},{row}+1,{','.join(map(str, random.integers(-300, 300, 166)))},{row % 2}.\n" for row in range(ROWS)
    )


def cicmaldroid(random: np.random.Generator) -> str:
    head = "ACCESS_PERSONAL_INFO___," + ",".join(f"call{number}" for number in range(469)) + ",Class\n"
    rows = (",".join(map(str, [*random.integers(0, 90, 470), row % 5 + 1])) for row in range(ROWS))
    return head + "".join(row + "\n" for row in rows)


def cicids(random: np.random.Generator) -> str:
    names = ["Benign", "DoS attacks-Hulk", "SSH-Bruteforce"]
    head = "Dst Port,Protocol,Timestamp," + ",".join(f"f{number}" for number in range(76)) + ",Label\n"

    def line(row: int) -> str:
        return ",".join(map(str, [443, 6, "02/03/2018 08:47:38", *random.integers(0, 2, 76), names[row % 3]])) + "\n"

    # The files repeat their header in the middle, and have gaps.
    gap = line(0).replace(",6,", ",NaN,", 1)
    return head + "".join(line(row) for row in range(3)) + head + gap + "".join(line(row) for row in range(3, ROWS))


def ipums(random: np.random.Generator) -> str:
    head = "AGE,UHRSWORK,WKSWORK1,FAMSIZE,NCHILD,SEX,MARST,RACE,EDUC,EMPSTAT,CLASSWKR,CITIZEN,OWNERSHP,METRO,SCHOOL,"
    return f"{head}INCOME50K\n" + "".join(
        f"{30 + row},40,52,3,1,1,1,1,10,1,2,0,1,3,1,{row % 2}\n" for row in range(ROWS)
    )


TABLES: dict[str, tuple[Callable[[np.random.Generator], str], int, int]] = {
    "sensorless": (sensorless, 48, 11),
    "covtype": (covtype, 54, 7),
    "musk": (musk, 166, 2),
    "cicmaldroid2020": (cicmaldroid, 470, 5),
    "cicids": (cicids, 78, 15),
    "ipums": (ipums, 58, 2),
}


def read(text: str, schema: str, folder: Path, on_violation: OnViolation = OnViolation.REFUSE) -> tuple[Any, Any, Any]:
    file = folder / "rows.csv"
    file.write_text(text, "utf-8")
    options = ReadOptions(schema=Path(schema), on_violation=on_violation, discover=True, scaling=Scaling.UNIT_INTERVAL)
    source = read_source("csv", file, options)
    blocks = list(source.parts["train"])
    return (
        source,
        np.concatenate([block.features for block in blocks]),
        np.concatenate([block.labels for block in blocks]),
    )


@pytest.mark.parametrize("name", TABLES)
def test_a_file_of_the_right_shape_is_read(name: str, random: np.random.Generator, tmp_path: Path) -> None:
    make, dimension, classes = TABLES[name]
    source, features, labels = read(make(random), name, tmp_path)
    assert (source.dimension, len(source.classes)) == (dimension, classes)
    assert features.shape == (ROWS, dimension)
    assert features.min() >= 0
    assert features.max() <= 1
    assert set(labels.tolist()) <= set(source.classes)
    assert len(set(labels.tolist())) > 1


@pytest.mark.parametrize("name", TABLES)
def test_a_row_with_a_cell_too_few_is_refused_with_its_line(
    name: str, random: np.random.Generator, tmp_path: Path
) -> None:
    make, _, _ = TABLES[name]
    lines = make(random).splitlines(keepends=True)
    delimiter = " " if name == "sensorless" else ","
    lines[-1] = lines[-1].split(delimiter, 1)[1]
    with pytest.raises(InputError, match=f"line {len(lines)}"):
        read("".join(lines), name, tmp_path)


def test_counts_beyond_the_bound_are_clipped_where_asked(random: np.random.Generator, tmp_path: Path) -> None:
    text = cicmaldroid(random)
    lines = text.splitlines(keepends=True)
    lines[1] = "123456," + lines[1].split(",", 1)[1]
    with pytest.raises(InputError, match="123456"):
        read("".join(lines), "cicmaldroid2020", tmp_path)
    _, features, _ = read("".join(lines), "cicmaldroid2020", tmp_path, OnViolation.CLIP)
    assert features[0, 0] == 1.0
