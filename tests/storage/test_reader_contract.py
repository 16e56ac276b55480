"""Every reader keeps one contract: it is named, declares before it reads, and reads the same rows again and again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from storage.errors import InputError
from storage.readers import read_source, reader_names
from storage.source import Source, canonical_label
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
        labels += [source.classes.index(canonical_label(str(label))) for label in block.labels]
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
