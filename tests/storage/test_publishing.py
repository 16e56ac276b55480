"""Staged sources become versions under a name that says what it should; private rows never become public."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from storage.datasets import MANIFEST, open_dataset
from storage.errors import RefusedError
from storage.layout import Layout
from storage.transforming import transform_dataset
from tests.support.data import gathered, source_of, stored, synthetic, temporaries


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def test_public_versions_are_named_by_their_content(layout: Layout, tmp_path: Path) -> None:
    train, test = synthetic(60, 4, seed=7), synthetic(10, 4, seed=8)
    other_root = Layout(tmp_path / "other").prepare()
    ref = stored(layout, source_of(train, test, block=7), name="one")
    same = stored(other_root, source_of(train, test, block=60), name="two")
    assert same.version == ref.version
    assert (ref.name, same.name) == ("one", "two")
    again = stored(layout, source_of(train, test), name="three")
    assert (again.version, again.name, again.account) == (ref.version, "three", "three")
    assert len(list(layout.datasets.iterdir())) == 1
    features, labels = train
    changed = features.copy()
    changed[30, 2] = np.nextafter(np.float32(changed[30, 2]), np.float32(9))
    versions = {
        ref.version,
        stored(layout, source_of(train)).version,
        stored(layout, source_of((changed, labels), test)).version,
        stored(layout, source_of((features[::-1], labels[::-1]), test)).version,
        stored(layout, source_of((features, 1 - labels), test)).version,
        stored(layout, source_of(train, test, classes=("1", "0"))).version,
        stored(layout, source_of(train, test, classes=("0", "1", "2"))).version,
        stored(layout, source_of(test, train)).version,
    }
    assert len(versions) == 8


def test_private_versions_are_named_at_random_and_say_nothing(layout: Layout) -> None:
    train = synthetic(60, 4, seed=9)
    first, second = (stored(layout, source_of(train), private=True) for _ in range(2))
    assert first.version != second.version
    assert len(first.version) == 32
    public = stored(Layout(layout.root / "elsewhere").prepare(), source_of(train))
    text = (layout.dataset(first.version) / MANIFEST).read_text()
    assert public.version not in text
    shown = first.model_dump_json()
    for part in ("train",):
        content = open_dataset(layout, first, part).content
        assert content not in shown
        assert content not in repr(open_dataset(layout, first, part))


def test_the_same_private_rows_under_one_name_are_one_version(layout: Layout) -> None:
    train = synthetic(60, 4, seed=10)
    first = stored(layout, source_of(train), private=True)
    assert stored(layout, source_of(train, block=60), private=True, previous=(first,)) == first
    other = stored(layout, source_of(synthetic(60, 4, seed=11)), private=True, previous=(first,))
    assert other != first
    assert len(list(layout.datasets.iterdir())) == 2
    shutil.rmtree(layout.dataset(first.version))
    assert stored(layout, source_of(train), private=True, previous=(first,)) != first
    assert not temporaries(layout.root)


def test_what_was_private_cannot_become_public(layout: Layout) -> None:
    features, labels = synthetic(1000, 6, seed=26)
    fresh, _ = synthetic(1000, 6, seed=27)
    stored(layout, source_of((features, labels)), private=True)
    # Other labels, another order, another cut, one row over and over: still the same private rows.
    shuffled = np.random.default_rng(28).permutation(1000)
    for rows in (
        features[shuffled][:100],
        np.concatenate([features[:20]] * 5),
        np.concatenate([fresh[:500], features]),
    ):
        with pytest.raises(RefusedError, match=r"rows.*public") as caught:
            stored(layout, source_of((rows, np.arange(len(rows)) % 2)))
        # Yes or no, never how much.
        assert "%" not in str(caught.value)
        assert not any(character.isdigit() for character in str(caught.value))
    # Some meeting by chance is admitted: up to 1 % of the distinct rows.
    mixed = np.concatenate([fresh[:990], features[:10]])
    assert stored(layout, source_of((mixed, labels))).rows == 1000
    with pytest.raises(RefusedError):
        stored(layout, source_of((np.concatenate([fresh[:989], features[:11]]), labels)))
    with pytest.raises(RefusedError):
        stored(layout, source_of((fresh, labels), (features, labels)))
    assert not temporaries(layout.root)


def test_a_small_private_set_within_a_large_public_one_is_found(layout: Layout) -> None:
    """One percent of either set: 20 of 5,000 public rows are all of the private ones."""
    small, large = synthetic(20, 6, seed=26), synthetic(4980, 6, seed=27)
    stored(layout, source_of(small), private=True)
    with pytest.raises(RefusedError):
        stored(layout, source_of((np.concatenate([large[0], small[0]]), np.arange(5000) % 2)))


def test_normalised_and_test_rows_of_private_sets_cannot_become_public_either(layout: Layout) -> None:
    train, test = synthetic(100, 6, seed=29), synthetic(100, 6, seed=30)
    ref = stored(layout, source_of(train, test), private=True)
    derived = transform_dataset(layout, ref, _unit, normalisation="unit-norm")
    for part, version in (("test", ref), ("train", derived), ("test", derived)):
        rows, labels = gathered(open_dataset(layout, version, part))
        with pytest.raises(RefusedError):
            stored(layout, source_of((rows, labels)))


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)
