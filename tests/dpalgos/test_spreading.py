"""Sums over parts of a party's rows, formed apart in any order: the bits of the sum over the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos import integer_sums
from dpalgos.algorithms import TrustedSummation, fit, is_sum_algorithm
from dpalgos.guarantees import GaussianMu, Setting, Trust
from dpalgos.keystream import KeyedNoise
from dpalgos.models import LinearModel, Projection, RowMap
from dpalgos.projections.covariance import AnalyzeGauss
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.rows import ArrayRows, Ints, Rows, SpreadRows
from dpalgos.trainers.gradient_descent import GradientPerturbation, NoisyGradientDescent
from storage import rowfiles
from storage.refs import Labels
from storage.rowfiles import RowFormat, RowWriter, StoredRows
from tests.dpalgos.parameters import PARAMETERS
from tests.support.nights import spanning

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


@pytest.mark.parametrize(
    ("algorithm", "map_parts", "compiled"),
    spanning(
        [pytest.param(algorithm, id=type(algorithm).__name__) for algorithm in ALGORITHMS],
        [backwards, in_threads],
        [False, True],
    ),
)
def test_parts_add_up_to_the_whole(
    algorithm: Any, map_parts: Any, compiled: bool, parties: list[StoredRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_COMPILED_FROM", "_GRAM_COMPILED_FROM"):
        monkeypatch.setattr(integer_sums, name, 0 if compiled else 2**60)
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
    own, theirs = (np.concatenate([features for features, *_ in rows.blocks()]) for rows in (spread, whole))
    assert np.array_equal(own, theirs)


# What they show of rows is a minimiser over all of them, no sum over rows.
MINIMISERS = {"mpc-op", "output-perturbation", "output-perturbation-radial", "pathak"}
# Row i arrives in night i mod T.
BY_PLACE = {"continual-class-means", "continual-ftrl"}
SUMS = [
    (kind, name, given)
    for (kind, name), several in PARAMETERS.items()
    for given in several
    if is_sum_algorithm(lookup(kind, name)) and name not in MINIMISERS
]


@dataclass(frozen=True)
class _Part:
    """Some of a party's rows, which say the whole party's count and fingerprint."""

    whole: ArrayRows
    own: ArrayRows

    @property
    def count(self) -> int:
        return self.whole.count

    @property
    def dimension(self) -> int:
        return self.whole.dimension

    def blocks(self) -> Any:
        return self.own.blocks()

    def whose(self) -> Any:
        return self.own.whose()

    def fingerprint(self) -> Any:
        return self.whole.fingerprint()


@pytest.mark.parametrize(
    ("kind", "name", "given"),
    [
        pytest.param(kind, name, given, id=name)
        for (kind, name), several in PARAMETERS.items()
        for given in several[:1]
        if is_sum_algorithm(lookup(kind, name))
    ],
)
def test_cut_rows_release_what_whole_rows_do(kind: str, name: str, given: dict[str, Any]) -> None:
    """Of each algorithm, also of a minimiser over all rows and of what goes by a row's place: those are put together.

    Added up all the same, what the parts of these contribute is another vector: then they need not say so.
    """
    cls = lookup(kind, name)
    algorithm, setting = AlgorithmSpec(kind, name, given).build(), setting_of(kind, cls)
    random = np.random.default_rng(3)
    features, labels = random.normal(size=(120, setting.dimension)) * 0.2, random.integers(0, 3, 120).astype(float)
    whole = ArrayRows(features, labels)
    parts = [_Part(whole, ArrayRows(features[part], labels[part])) for part in (slice(50), slice(50, 120))]
    noise = KeyedNoise(b"k" * 32, "cut")
    released = [
        fit(algorithm, [rows], setting, noise, TrustedSummation(noise)).arrays()
        for rows in (whole, SpreadRows(parts, backwards))
    ]
    assert all(np.array_equal(released[0][one], released[1][one]) for one in released[0])
    state = algorithm.initial(setting)
    apart = sum(algorithm.contribution(state, part, setting) for part in parts)
    assert np.array_equal(apart, algorithm.contribution(state, whole, setting)) == cls.additive
    assert cls.additive == (name not in MINIMISERS | BY_PLACE)


class UnlikeAlone(NoisyGradientDescent):
    """A mutant: scores by one product of real numbers a block."""

    def contribution(self, state: Any, rows: Any, setting: Setting) -> Ints:
        weights = np.random.default_rng(0).normal(size=(setting.dimension, 3))
        return np.asarray(sum(np.rint((features @ weights) * 2.0**58).sum(axis=0) for features, *_ in rows.blocks()))


def total_of(algorithm: Any, state: Any, setting: Setting, *parts: ArrayRows) -> Any:
    return sum(algorithm.contribution(state, rows, setting) for rows in parts)


def places_tell(algorithm: Any, kind: str, setting: Setting) -> bool:
    """Whether what a row adds depends on its place in a block, on who stands beside it, or on its being alone."""
    random, count = np.random.default_rng(3), setting.sizes[0]
    features = random.normal(size=(count, setting.dimension)) * (3.0 if kind == "evaluators" else 0.2)
    labels = random.integers(0, setting.classes, count).astype(np.float64)
    states = [algorithm.initial(setting)]
    if algorithm.steps(setting) > 1:
        first = total_of(algorithm, states[0], setting, ArrayRows(features, labels))
        noise = 0.3 * np.abs(first).max() * random.normal(size=first.shape)
        states.append(algorithm.update(states[0], first + noise.astype(np.int64), setting))
    order = random.permutation(count)
    orders = [ArrayRows(features, labels), ArrayRows(features[order], labels[order], block=7)]
    alone = [ArrayRows(features[row : row + 1], labels[row : row + 1]) for row in range(count)]
    return any(
        (total_of(algorithm, state, setting, orders[0]) != total_of(algorithm, state, setting, *parts)).any()
        for state in states
        for parts in ([orders[1]], alone)
    )


def setting_of(kind: str, cls: Any) -> Setting:
    dimension = 3 if kind == "evaluators" else 36
    return Setting(sizes=(120,), dimension=dimension, classes=3, neighbours=cls.relations[0], trust=cls.trusts[0])


@pytest.mark.parametrize(
    ("kind", "name", "given"), [row for row in SUMS if row[1] not in BY_PLACE], ids=lambda value: str(value)[:30]
)
def test_what_a_row_adds_depends_on_that_row_alone(kind: str, name: str, given: dict[str, Any]) -> None:
    """Bit for bit, so that no row moves the integers of another: last, alone, in another chunk, in another order."""
    setting = setting_of(kind, lookup(kind, name))
    assert not places_tell(AlgorithmSpec(kind, name, given).build(), kind, setting)


def test_a_product_of_real_numbers_is_caught() -> None:
    """A library's product gives a row other last bits alone than in a block."""
    setting = setting_of("trainers", NoisyGradientDescent)
    assert places_tell(UnlikeAlone(budget=MU, iterations=1), "trainers", setting)


@pytest.mark.parametrize(("kind", "name", "given"), spanning([pytest.param(*row, id=row[1]) for row in SUMS]))
def test_replacing_a_row_changes_what_it_adds_and_nothing_else(kind: str, name: str, given: dict[str, Any]) -> None:
    """By as much beside any other rows, at each place of a block, by night, and where it is null or equals another."""
    algorithm, setting = AlgorithmSpec(kind, name, given).build(), setting_of(kind, lookup(kind, name))
    state, size = algorithm.initial(setting), 3.0 if kind == "evaluators" else 0.2
    beside = [np.random.default_rng(seed).normal(size=(120, setting.dimension)) * size for seed in (4, 5)]
    known = [np.random.default_rng(seed).integers(0, 3, 120).astype(np.float64) for seed in (4, 5)]
    for place, other in ((0, "equal"), (57, "null"), (119, "label")):
        changes = []
        for features, labels in zip(beside, known, strict=True):
            rows = [(features.copy(), labels.copy()) for _ in range(2)]
            rows[0][0][place], rows[0][1][place] = beside[0][2], 1.0
            rows[1][0][place], rows[1][1][place] = beside[0][2 if other == "label" else 3], 2.0
            if other == "null":
                rows[1][0][place] = np.nan
            totals = [total_of(algorithm, state, setting, ArrayRows(*one, block=16)) for one in rows]
            changes.append(totals[0] - totals[1])
        np.testing.assert_array_equal(changes[0], changes[1])


@pytest.mark.parametrize(("width", "columns"), [(6, 3), (784, 1), (784, 60), (9000, 7)])
def test_a_row_seen_through_a_basis_or_a_model_has_its_own_bits(width: int, columns: int) -> None:
    """At each place of a block, last, alone, and in another chunk; a plain product gives others."""
    random = np.random.default_rng(6)
    matrix, rows = random.normal(size=(width, columns)), random.normal(size=(600, width))
    kept: list[RowMap | LinearModel] = [Projection(basis=matrix), LinearModel(weights=matrix.T)]
    alone = [artefact.apply(rows[:1]) for artefact in kept]
    for place in [0, *range(3, 600, 1 + width // 40), 465, 466, 511, 512, 599]:
        block = rows.copy()
        block[place], block[(place + 1) % 600] = rows[0], np.nan
        for artefact, wanted in zip(kept, alone, strict=True):
            np.testing.assert_array_equal(artefact.apply(block)[place], wanted[0])
            np.testing.assert_array_equal(artefact.apply(block[max(place - 3, 0) : place + 1])[-1], wanted[0])
    plain = [part @ matrix for part in (rows[:1], rows[:2], rows[:7], rows)]
    assert any((one[0] != plain[-1][0]).any() for one in plain)
