"""Sources are checked as they are read: names, features, labels, parts; what is refused leaves nothing behind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from storage import rowfiles
from storage.errors import InputError, RefusedError, StorageError
from storage.layout import Layout
from storage.source import Block, Source
from tests.support.data import files_of, source_of, stored, synthetic
from tests.support.stating import stating


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def _wide(rows: int, seed: int, dimension: int = 3000) -> tuple[Any, NDArray[np.int64]]:
    matrix = sparse.random(rows, dimension, density=0.004, format="csr", dtype=np.float32, rng=seed)
    return matrix, np.arange(rows) % 2


def test_nothing_private_is_learnt_from_rows(layout: Layout) -> None:
    train = synthetic(20, 4, seed=12)
    for found in ("dimension", "classes"):
        with pytest.raises(RefusedError, check=stating(value=(found,), bound="declared", way_out=f"--{found}")):
            stored(layout, source_of(train, found=frozenset({found})), private=True)
    assert list(layout.datasets.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a b", "../a"])
def test_names_are_checked(layout: Layout, name: str) -> None:
    source = source_of(synthetic(4, 2, seed=13))
    with pytest.raises(InputError, match=r"^data set name"):
        stored(layout, source, name=name, account="a")
    with pytest.raises(InputError, match=r"^account"):
        stored(layout, source, name="a", account=name)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39])
@pytest.mark.parametrize("wide", [False, True])
def test_a_number_that_is_not_finite_is_refused_by_its_place(
    layout: Layout, private: bool, value: float, wide: bool
) -> None:
    features, labels = synthetic(30, 4, seed=14)
    features[17, 2] = value
    given: Any = sparse.csr_matrix(features) if wide else features
    with pytest.raises(InputError, match="row 18: feature 3"):
        stored(layout, source_of((given, labels), sparse=wide), private=private)
    assert list(layout.datasets.iterdir()) == []


def test_bad_labels_are_refused_by_their_place(layout: Layout) -> None:
    features, _ = synthetic(30, 4, seed=15)
    with pytest.raises(InputError, match=r"row 30: label '7'.*0, 1"):
        stored(layout, source_of((features, [0, 1] * 14 + [0, 7])))
    with pytest.raises(InputError, match="row 1: label 'x'"):
        stored(layout, source_of((features, [0, 1] * 15), (features, ["x"] * 30)))
    for bad in (math.nan, math.inf, 2.5, "x"):
        labels = np.array([0.0] * 29 + [bad], dtype=object)
        with pytest.raises(InputError, match=rf"train row 30: label {bad!r}.*\[-1, 2\]"):
            stored(layout, source_of((features, labels), label_range=(-1.0, 2.0)))


@pytest.mark.parametrize("private", [False, True])
def test_what_is_refused_is_refused_first_although_the_next_rows_are_read_beside_it(
    layout: Layout, private: bool
) -> None:
    """A reader a block ahead fails, too: what is said is what was wrong with the block before, and no more is read."""
    read = []

    class Failing:
        def __iter__(self) -> Any:
            for number in range(4):
                read.append(number)
                if number == 2:
                    raise InputError("the file ends within a row")
                yield Block(np.full((5, 3), math.nan if number == 1 else 0.5), np.arange(5) % 2)

    failing = Source(format="synthetic", place="here", dimension=3, classes=("0", "1"), parts={"train": Failing()})
    with pytest.raises(InputError, match="row 6: feature 1"):
        stored(layout, failing, private=private)
    assert read == [0, 1, 2]
    assert list(layout.datasets.iterdir()) == []


def test_empty_and_one_class_sets_are_refused(layout: Layout) -> None:
    features, _ = synthetic(30, 4, seed=16)
    with pytest.raises(InputError, check=stating(value=0, bound=1)):
        stored(layout, source_of((features[:0], [])))
    with pytest.raises(InputError, check=stating(value=1, bound=2)):
        stored(layout, source_of((features, [1] * 30), (features, [0, 1] * 15)))
    # How many classes private rows hold is theirs to keep.
    assert stored(layout, source_of((features, [0, 1] * 15), (features[:0], []))).test_rows == 0
    assert stored(layout, source_of((features, [1] * 30)), private=True).classes == ("0", "1")


def test_blocks_of_another_width_are_refused(layout: Layout) -> None:
    source = source_of(synthetic(30, 4, seed=17))
    object.__setattr__(source, "dimension", 5)
    with pytest.raises(InputError, match="5 features"):
        stored(layout, source)


def test_a_failed_write_leaves_the_root_as_it_was(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(layout, source_of(synthetic(60, 4, seed=40)), private=True)
    before = files_of(layout.root)

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rowfiles.RowWriter, "_write_group", full)
    with pytest.raises(StorageError, match="No space", check=stating(way_out="--root")):
        stored(layout, source_of(synthetic(60, 4, seed=41)), private=True)
    assert files_of(layout.root) == before
