"""Sums over parts of a party's rows, formed apart in any order: the bits of the sum over the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos import gradient_sums, gram_sums
from dpalgos.algorithms import fit
from dpalgos.guarantees import GaussianMu, Setting, Trust
from dpalgos.keystream import KeyedNoise
from dpalgos.projections.analyze_gauss import AnalyzeGauss
from dpalgos.rows import Ints, Rows
from dpalgos.spreading import SpreadRows
from dpalgos.summation import TrustedSummation
from dpalgos.trainers.gradient_descent import NoisyGradientDescent
from dpalgos.trainers.mean_gradient_descent import GradientPerturbation
from storage import rowfiles
from storage.refs import Labels
from storage.rowfiles import RowFormat, RowWriter, StoredRows

MU = GaussianMu(1.0)
ALGORITHMS = [
    NoisyGradientDescent(budget=MU, iterations=3),
    GradientPerturbation(budget=MU, iterations=3),
    AnalyzeGauss(budget=MU, components=3),
]


def backwards(contribution: Callable[[Rows], Ints], parts: Sequence[Rows]) -> Iterator[Ints]:
    return map(contribution, list(parts)[::-1])


def in_threads(contribution: Callable[[Rows], Ints], parts: Sequence[Rows]) -> list[Ints]:
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(contribution, parts))


@pytest.fixture
def parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[StoredRows]:
    """Return two parties of several files each."""
    monkeypatch.setattr(rowfiles, "_PART_BYTES", 4 * 12 * 50)
    monkeypatch.setattr(rowfiles, "_BLOCK_ENTRIES", 12 * 40)
    random, layout, found = np.random.default_rng(1), RowFormat(12, Labels.CLASSES), []
    for party, count in enumerate((330, 210)):
        writer = RowWriter(tmp_path / str(party), layout)
        writer.write(layout.encode(random.normal(size=(count, 12)), random.integers(0, 3, count)))
        found.append(StoredRows.open(tmp_path / str(party), layout, writer.close()))
    return found


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("map_parts", [backwards, in_threads])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__)
def test_parts_add_up_to_the_whole(
    algorithm: Any, map_parts: Any, compiled: bool, parties: list[StoredRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (gradient_sums, gram_sums):
        monkeypatch.setattr(module, "_COMPILED_FROM", 0 if compiled else 2**60)
    setting = Setting(sizes=(330, 210), dimension=12, classes=3, trust=Trust.CENTRAL)
    spread = [SpreadRows(rows.by_file(), map_parts) for rows in parties]
    assert all(len(rows.parts) > 2 for rows in spread)
    noise = KeyedNoise(b"k" * 32, "spread")
    arrays = [fit(algorithm, rows, setting, noise, TrustedSummation(noise)).arrays() for rows in (parties, spread)]
    assert all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])


def test_spread_rows_are_the_partys_rows(parties: list[StoredRows]) -> None:
    whole, spread = parties[0], SpreadRows(parties[0].by_file(), backwards)
    assert (spread.count, spread.dimension) == (330, 12)
    assert np.array_equal(spread.fingerprint(), whole.fingerprint())
    own, theirs = (np.concatenate([features for features, _ in rows.blocks()]) for rows in (spread, whole))
    assert np.array_equal(own, theirs)
