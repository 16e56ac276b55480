"""The named tables that rules are chosen and measured on: where they lie, what is declared, how they are parted.

Found through UNITBALL_DATA. Ranges and categories are declared here by hand, from the sets' descriptions or in round
numbers around them, as an owner would before anything is released; cells outside go to the nearest end. A set with its
own test rows keeps them; for the others, a fifth of the rows is drawn once, by a public seed. Rules are chosen on a
further fifth, of the training rows (:meth:`Table.held_out`). NumPy and pandas are all that must be there.

    python benchmarks/table_sets.py > benchmarks/results/table-sizes.json    # training rows, columns, classes
"""

from __future__ import annotations

import bz2
import datetime
import io
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from shared import data

Floats = NDArray[np.float64]
_TEST_SEED, _HELD_OUT_SEED = 48, 4801


@dataclass(frozen=True)
class Part:
    """Rows of a table.

    Attributes
    ----------
    numbers : array (n, d) of float64
        Cells of the numeric columns, as in the file.
    codes : array (n, c) of int64
        Places of the categories in their columns' lists.
    labels : array (n,)
        Classes 0 … K − 1 (int64), or numeric labels (float64).
    """

    numbers: Floats
    codes: NDArray[np.int64]
    labels: NDArray[Any]

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, places: NDArray[Any]) -> Part:
        """Return some of the rows."""
        return Part(self.numbers[places], self.codes[places], self.labels[places])


@dataclass(frozen=True)
class Table:
    """A table with its declarations.

    Attributes
    ----------
    name : str
    ranges : array (d, 2)
        Declared low and high of each numeric column.
    sizes : tuple of int
        How many categories each categorical column has.
    classes : int
        K; 1 for numeric labels.
    label_range : (float, float)
        Declared range of numeric labels.
    train, test : Part
    """

    name: str
    ranges: Floats
    sizes: tuple[int, ...]
    classes: int
    label_range: tuple[float, float]
    train: Part
    test: Part

    def held_out(self) -> Table:
        """Return the training rows alone, a fifth of them in the place of the test rows: what rules are chosen on."""
        order = np.random.default_rng(_HELD_OUT_SEED).permutation(len(self.train))
        test, train = np.split(order, [len(order) // 5])
        return replace(self, train=self.train.at(train), test=self.train.at(test))

    def first(self, rows: int) -> Table:
        """Return a table of so many rows in either part, for a trial run."""
        few = np.arange(rows)
        return replace(self, train=self.train.at(few[: len(self.train)]), test=self.test.at(few[: len(self.test)]))

    @property
    def columns(self) -> list[str]:
        """Names of the numeric columns and of the categorical ones."""
        return [f"x{j}" for j in range(len(self.ranges))] + [f"c{j}" for j in range(len(self.sizes))]

    def frame(self, part: Part) -> pd.DataFrame:
        """Return rows as a data frame of the columns that :meth:`schema` declares."""
        numbers = {f"x{j}": part.numbers[:, j] for j in range(len(self.ranges))}
        texts = {f"c{j}": np.char.add("v", part.codes[:, j].astype(str)) for j in range(len(self.sizes))}
        return pd.DataFrame({**numbers, **texts})

    def schema(self) -> dict[str, Any]:
        """Return the declarations as a schema's document."""
        numbers = [
            {"name": f"x{j}", "type": "numeric", "range": [float(low), float(high)]}
            for j, (low, high) in enumerate(self.ranges)
        ]
        categories = [
            {"name": f"c{j}", "type": "category", "values": [f"v{code}" for code in range(size)]}
            for j, size in enumerate(self.sizes)
        ]
        label: dict[str, Any] = {"name": "y", "type": "label"}
        if self.classes > 1:
            label["classes"] = [str(k) for k in range(self.classes)]
        else:
            label["range"] = list(self.label_range)
        return {"format_version": 1, "columns": [*numbers, *categories, label]}


def _parted(
    name: str, whole: Part, ranges: Any, sizes: tuple[int, ...] = (), label_range: tuple[float, float] | None = None
) -> Table:
    order = np.random.default_rng(_TEST_SEED).permutation(len(whole))
    test, train = np.split(order, [len(order) // 5])
    return _table(name, whole.at(train), whole.at(test), ranges, sizes, label_range)


def _table(
    name: str,
    train: Part,
    test: Part,
    ranges: Any,
    sizes: tuple[int, ...] = (),
    label_range: tuple[float, float] | None = None,
) -> Table:
    classes = 1 if label_range else int(max(train.labels.max(), test.labels.max())) + 1
    low_high = np.broadcast_to(np.asarray(ranges, dtype=np.float64), (train.numbers.shape[1], 2))
    return Table(name, low_high, sizes, classes, label_range or (-1.0, 1.0), train, test)


def _svmlight(path: Path, dimension: int) -> tuple[Floats, Floats]:
    from sklearn.datasets import load_svmlight_file

    rows, labels = load_svmlight_file(io.BytesIO(bz2.decompress(path.read_bytes())), n_features=dimension)
    return rows.toarray(), labels


def _of_svmlight(name: str, folder: str, train: str, test: str, dimension: int) -> Table:
    (rows, labels), (others, other_labels) = (_svmlight(data(folder) / file, dimension) for file in (train, test))
    names = np.unique(labels)
    parts = [
        Part(x, np.zeros((len(x), 0), np.int64), np.searchsorted(names, y))
        for x, y in ((rows, labels), (others, other_labels))
    ]
    return _table(name, *parts, ranges=(-1.0, 1.0))


def _adult() -> Table:
    from storage.documents import read_yaml
    from storage.readers import schemas

    document = read_yaml(Path(next(iter(schemas.__path__))) / "adult.yaml")
    columns = document["columns"]
    parts = []
    for file in ("adult.data", "adult.test"):
        lines = pd.read_csv(
            data("adult") / file, header=None, names=[c["name"] for c in columns], skipinitialspace=True, comment="|"
        )
        lines = lines[~(lines == "?").any(axis=1)]
        numeric = [c for c in columns if c["type"] == "numeric"]
        category = [c for c in columns if c["type"] == "category"]
        codes = [lines[c["name"]].map({v: i for i, v in enumerate(c["values"])}) for c in category]
        kept = ~pd.concat(codes, axis=1).isna().any(axis=1)
        parts.append(
            Part(
                lines.loc[kept, [c["name"] for c in numeric]].to_numpy(np.float64),
                np.stack([code[kept].to_numpy(np.int64) for code in codes], axis=1),
                lines.loc[kept, columns[-1]["name"]].str.startswith(">50K").to_numpy(np.int64),
            )
        )
    return _table("adult", *parts, [c["range"] for c in numeric], tuple(len(c["values"]) for c in category))


def _musk() -> Table:
    lines = pd.read_csv(data("musk") / "clean2.data", header=None)
    rows = lines.iloc[:, 2:-1].to_numpy(np.float64)
    labels = lines.iloc[:, -1].to_numpy(np.float64).astype(np.int64)
    return _parted("musk", Part(rows, np.zeros((len(rows), 0), np.int64), labels), (-1000.0, 1000.0))


def _of_table(
    name: str,
    ranges: Any = (),
    categories: dict[str, list[int]] | None = None,
    left_out: tuple[str, ...] = (),
    label_range: tuple[float, float] | None = None,
) -> Table:
    lines = pd.read_csv(data("tables") / f"{name}.tsv.gz", sep="\t").drop(columns=list(left_out))
    target = lines.pop("target").to_numpy(np.float64)
    categories = categories or {}
    if ranges is None:
        # All columns are categories, with codes from 0 or 1 to their largest: the sets' own code lists.
        categories = {c: list(range(int(lines[c].min()), int(lines[c].max()) + 1)) for c in lines}
    codes = [
        lines.pop(column).map({v: i for i, v in enumerate(values)}).to_numpy(np.int64)
        for column, values in categories.items()
    ]
    stacked = np.stack(codes, axis=1) if codes else np.zeros((len(target), 0), np.int64)
    labels = target if label_range else np.searchsorted(np.unique(target), target)
    whole = Part(lines.to_numpy(np.float64), stacked, labels)
    sizes = tuple(len(values) for values in categories.values())
    return _parted(name, whole, np.zeros((0, 2)) if ranges is None else ranges, sizes, label_range)


_CHURN = [
    (0, 250), (0, 60), (0, 400), (0, 200), (0, 80), (0, 400), (0, 200), (0, 40), (0, 400), (0, 200), (0, 20), (0, 25),
    (0, 25), (0, 10), (0, 10),
]  # fmt: skip
_CPU = [
    (0, 2000), (0, 1000), (0, 20000), (0, 10000), (0, 10000), (0, 50), (0, 100), (0, 5e6), (0, 2e6), (0, 100), (0, 200),
    (0, 1000), (0, 2000), (0, 500), (0, 200), (0, 500), (0, 1000), (0, 2000), (0, 5000), (0, 20000), (0, 2.5e6),
]  # fmt: skip
_PAGE = [(0, 1000), (0, 1000), (0, 2e5), (0, 1000), (0, 1), (0, 1), (0, 5000), (0, 5e4), (0, 5e4), (0, 5000)]
_CHURN_CATEGORIES = {
    "state": list(range(51)), "area code": [408, 415, 510], "international plan": [0, 1], "voice mail plan": [0, 1],
}  # fmt: skip

SETS = {
    "adult": _adult,
    "ijcnn1": partial(_of_svmlight, "ijcnn1", "libsvm", "ijcnn1.trn.bz2", "ijcnn1.tst.bz2", 22),
    "musk": _musk,
    "phoneme": partial(_of_table, "phoneme", (-5.0, 5.0)),
    "banana": partial(_of_table, "banana", (-4.0, 4.0)),
    "ring": partial(_of_table, "ring", (-10_000.0, 10_000.0)),
    "churn": partial(_of_table, "churn", _CHURN, _CHURN_CATEGORIES, ("phone number",)),
    "mushroom": partial(_of_table, "mushroom", None),
    "cpu_act": partial(_of_table, "cpu_act", _CPU, label_range=(0.0, 100.0)),
    "house_16H": partial(_of_table, "house_16H", [(0.0, 1e7)] + [(0.0, 1.0)] * 15, label_range=(0.0, 500_001.0)),
    "wind": partial(_of_table, "wind", [(61, 78), (1, 12), (1, 31)] + [(0.0, 50.0)] * 11, label_range=(0.0, 50.0)),
    "letter": partial(_of_svmlight, "letter", "letter", "letter.scale.bz2", "letter.scale.t.bz2", 16),
    "usps": partial(_of_svmlight, "usps", "usps", "usps.bz2", "usps.t.bz2", 256),
    "pendigits": partial(_of_table, "pendigits", (0.0, 100.0)),
    "satimage": partial(_of_table, "satimage", (0.0, 255.0)),
    "page_blocks": partial(_of_table, "page_blocks", _PAGE),
    "nursery": partial(_of_table, "nursery", None),
    "krkopt": partial(_of_table, "krkopt", None),
}
"""What reads each named set: two classes first, then numeric labels, then many classes."""


def load(name: str) -> Table:
    """Return a named set."""
    return SETS[name]()


def sizes() -> dict[str, Any]:
    """Return the public numbers of every set: training rows, columns, classes, the share of its largest class."""
    cells = []
    for name in SETS:
        table = load(name)
        size = {"set": name, "rows": len(table.train), "columns": len(table.ranges) + len(table.sizes)}
        guessing = {}
        if table.classes > 1:
            most = int(np.bincount(table.train.labels).argmax())
            guessing = {"guessing": round(float(np.mean(table.test.labels == most)), 4)}
        cells.append({**size, "classes": table.classes, **guessing})
    said = {"machine": "none", "seeds": "none", "source": "measured", "cells": cells}
    return {"command": "python benchmarks/table_sets.py", "made": f"{datetime.date.today()}", **said}


if __name__ == "__main__":
    print(json.dumps(sizes(), indent=1))
