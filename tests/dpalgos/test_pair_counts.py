"""Counts of tables over pairs of columns: every neighbouring pair of small schemas, people, cells by hand, mutants."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpalgos.algorithms import attained, moved, of_people, run_sums
from dpalgos.audit.experiment import AuditOptions, Verdict
from dpalgos.audit.releases import audit_algorithm
from dpalgos.columns import bins_of, parts_between
from dpalgos.evaluators.pair_counts import MOST_CELLS, PairCounts
from dpalgos.guarantees import RELATIONS, GaussianMu, Neighbours, Setting
from dpalgos.keystream import KeyedNoise
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup, names
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats

ONE = GaussianMu(1.0)
# A number, one that may be missing (feature 2 says so), a category of three values in two groups, the first again.
COLUMNS: list[dict[str, float]] = [
    {"at": 0, "low": -1.0},
    {"at": 1, "missing": 2},
    {"at": 3, "values": 3, "high": 0.5},
    {"at": 0, "low": -1.0},
]
PLACES: dict[str, Any] = {
    "columns": COLUMNS,
    "edges": [[0.5], [0.25], [], [0.25, 0.5, 0.75]],
    "groups": [[], [], [0, 1, 0], []],
    "label_range": (-1.0, 3.0),
    "label_edges": [0.5],
}
LABEL = len(COLUMNS)
SCHEMAS: dict[str, list[list[int]]] = {
    "one table": [[0, 1]],
    "one column, coarse and fine": [[0, 2], [2, 3]],
    "pairs by class": [[0, 1, LABEL], [0, 2, LABEL], [1, 2, LABEL]],
    "a tree by class": [[0, LABEL], [0, 1, LABEL], [1, 2, LABEL], [2]],
}


def setting_of(
    classes: int = 2, relation: Neighbours = Neighbours.REPLACE_ONE, rows: int = 1, per_person: int = 1
) -> Setting:
    return Setting(sizes=(rows,), dimension=6, classes=classes, neighbours=relation, rows_per_person=per_person)


def counts(cls: type[PairCounts] = PairCounts, **changed: Any) -> PairCounts:
    parameters: dict[str, Any] = {"budget": ONE, **PLACES, "tables": SCHEMAS["pairs by class"]}
    return cls(**parameters | changed)


def all_records(classes: int) -> tuple[Floats, Floats]:
    """Return records of every cell, with odd ones: outside the range, NaN, undeclared, two values at once, null."""
    firsts = (-7.0, -0.75, -0.25, 0.25, 1.0, math.nan)
    seconds = ((0.1, 0.0), (0.9, 0.0), (0.3, 1.0), (math.inf, 1.0))
    values = ((0.0, 0.0, 0.0), (0.5, 0.0, 0.0), (0.0, 0.5, 0.0), (0.0, 0.0, 0.5), (0.5, 0.5, 0.5), (0.1, 0.1, 0.1))
    labels = (-1.0, 3.0, 1e300, math.nan) if classes == 1 else (*range(classes), classes, NULL_LABEL)
    records = [
        ((first, *second, *value), float(label))
        for first, second, value, label in itertools.product(firsts, seconds, values, labels)
    ]
    return np.array([cells for cells, _ in records]), np.array([label for _, label in records])


def vectors_of(algorithm: PairCounts, classes: int) -> Floats:
    features, labels = all_records(classes)
    setting = setting_of(classes)
    return np.array(
        [
            algorithm.statistic(ArrayRows(features[row : row + 1], labels[row : row + 1]), setting)
            for row in range(len(labels))
        ]
    )


@pytest.mark.parametrize("tables", SCHEMAS.values(), ids=list(SCHEMAS))
@pytest.mark.parametrize("classes", [1, 3])
def test_the_stated_sensitivity_is_the_largest_of_all_neighbouring_pairs(tables: list[list[int]], classes: int) -> None:
    """By enumeration of all pairs of records; null records among them add nothing."""
    algorithm = counts(tables=tables)
    vectors = np.unique(vectors_of(algorithm, classes), axis=0)
    assert not vectors[0].any()
    squares = np.square(vectors[:, None] - vectors[None]).sum(axis=-1)
    largest = {Neighbours.REPLACE_ONE: squares.max(), Neighbours.REPLACE_SPECIAL: squares[0].max()}
    for relation in RELATIONS:
        setting = setting_of(classes, relation)
        assert largest[relation] == relation.records * len(tables)
        assert algorithm.sensitivity(setting) == pytest.approx(math.sqrt(largest[relation]), rel=1e-15)
        assert algorithm.sensitivity(setting) ** 2 >= largest[relation] * (1 - 1e-16)
        assert attained(algorithm, setting) == pytest.approx(1.0, rel=1e-15)


@pytest.mark.parametrize("relation", RELATIONS)
def test_all_rows_of_a_person_move_the_counts_by_no_more_than_a_row(relation: Neighbours) -> None:
    """Every person of up to three rows of one schema against every other, and equal rows of up to 1,000."""
    features, labels = all_records(2)
    algorithm, setting = counts(tables=[[0, 1], [1, 2]]), setting_of(2, relation, 2, per_person=3)
    _, of_each_cell = np.unique(vectors_of(algorithm, 2), axis=0, return_index=True)
    some = of_each_cell[:: max(1, len(of_each_cell) // 8)]
    people = [rows for k in (1, 2, 3) for rows in itertools.combinations_with_replacement(some.tolist(), k)]
    vectors = np.array(
        [
            algorithm.statistic(
                ArrayRows(features[list(rows)], labels[list(rows)], 2, np.full(len(rows), len(rows)), people=2), setting
            )
            for rows in people
        ]
    )
    others = vectors if relation is Neighbours.REPLACE_ONE else np.zeros_like(vectors[:1])
    apart = np.sqrt(np.square(vectors[:, None] - others[None]).sum(axis=-1).max())
    assert apart <= algorithm.sensitivity(setting)
    many = setting_of(2, relation, 3, per_person=1000)
    for rows in (1, 3, 1000):
        share = moved(algorithm, many, of_people(algorithm.neighbouring_pair(many), rows)) / algorithm.sensitivity(many)
        unit = algorithm.units(many)
        assert share == pytest.approx(rows * (unit // rows) / unit, rel=1e-12)


def test_tables_by_hand_and_by_parties(random: np.random.Generator) -> None:
    """Ties on edges lie above them, end parts clip, missing cells come last, null records are not counted."""
    rows = np.array(
        [
            # number from −1 to 1; number, is missing; category of three
            [-5.0, 0.25, 0.0, 0.5, 0.0, 0.0],
            [0.0, 0.24, 0.0, 0.0, 0.5, 0.0],
            [0.5, 0.0, 1.0, 0.0, 0.0, 0.5],
            [9.0, 0.9, 0.0, 0.1, 0.1, 0.1],
            [math.nan, 0.9, 0.0, 0.5, 0.0, 0.0],
        ]
    )
    labels = np.array([0, 1, 1, 1, 0])
    algorithm, setting = counts(tables=[[0, 1], [2, LABEL], [3]]), setting_of(rows=5)
    tables = algorithm.tables_of(algorithm.statistic(ArrayRows(rows, labels), setting), setting)
    assert {places: table.tolist() for places, table in tables.items()} == {
        (0, 1): [[0, 1, 0], [1, 1, 1]],
        (2, LABEL): [[1, 1], [0, 1], [0, 1]],
        (3,): [1, 0, 1, 2],
    }
    numeric = replace(algorithm, tables=[[LABEL], [0]])
    values = numeric.statistic(ArrayRows(rows, np.array([-9.0, 0.9, 1.0, math.nan, 1.0])), setting_of(1, rows=5))
    assert values.tolist() == [2, 1, 1, 2]
    # The same sum whatever the parties, and the blocks.
    features, known = random.random((60, 6)), random.integers(0, 2, 60)
    whole = algorithm.statistic(ArrayRows(features, known), setting)
    parts = [ArrayRows(features[part], known[part], 7) for part in (slice(20), slice(20, None))]
    assert np.array_equal(whole, sum(algorithm.statistic(part, setting) for part in parts))


def test_parts_nest_in_equal_bins(random: np.random.Generator) -> None:
    cells = np.concatenate([random.random(1000), np.arange(65) / 64, np.nextafter(np.arange(1, 65) / 64, 0.0)])
    edges = [3 / 64, 8 / 64, 40 / 64]
    assert np.array_equal(parts_between(cells, edges), np.searchsorted([3, 8, 40], bins_of(cells, 64), side="right"))


def test_units_beyond_the_whole_numbers_of_float64_are_all_counted() -> None:
    algorithm = counts(tables=[[0, LABEL]])
    found = algorithm.of_block(np.zeros((2, 6)), np.array([1, 1]), np.array([2**53, 1]), setting_of())
    assert sorted(set(found.tolist())) == [0, 2**53 + 1]


def test_descriptions_are_json_and_wrong_ones_are_refused() -> None:
    spec = AlgorithmSpec("evaluators", "pair-counts", {"budget": ONE, **PLACES, "tables": SCHEMAS["one table"]})
    assert spec.build() == counts(tables=SCHEMAS["one table"])
    assert list(PairCounts(budget=ONE).shapes(setting_of()).items())[:2] == [((0, 1), (4, 4)), ((0, 2), (4, 4))]
    for changed, said in (
        ({"tables": []}, "tables"),
        ({"tables": [[1, 0]]}, r"\[1, 0\]"),
        ({"tables": [[0, 0]]}, r"\[0, 0\]"),
        ({"tables": [[-1]]}, r"\[-1\]"),
        ({"tables": [[0, 1, 2, 3]]}, r"\[0, 1, 2, 3\]"),
        ({"tables": [[0, 1], [0, 1]]}, r"\[0, 1\].*twice"),
        ({"tables": [[0, 5]]}, "place 5"),
        ({"tables": [[0, LABEL]], "label_range": None}, "label_range"),
        ({"tables": [[0]], "edges": [[], [], [], []]}, r"\[0\].*one cell"),
        ({"edges": [[0.5, 0.5], [], [], []]}, r"0\.5, 0\.5"),
        ({"edges": [[1.0], [], [], []]}, r"1\.0"),
        ({"edges": [[math.nan], [], [], []]}, "nan"),
        ({"edges": [[], [], [0.5], []]}, "column 2"),
        ({"edges": [[0.5]]}, "edges.*1.*4"),
        ({"groups": [[0], [], [], []]}, "column 0"),
        ({"groups": [[], [], [0, 2, 0], []]}, r"\[0, 2, 0\]"),
        ({"groups": [[], [], [0, 1], []]}, r"\[0, 1\].*3"),
        ({"label_range": (1.0, 1.0)}, "label_range"),
        ({"label_edges": [2.0]}, "label_edges"),
        ({"edges": [np.arange(1, 2**11) / 2**11] * 2 + [[], []], "tables": [[0, 1]]}, str(MOST_CELLS)),
    ):
        with pytest.raises(ParameterError, match=said):
            counts(**changed).guarantee(setting_of(classes=1))
    with pytest.raises(ParameterError, match="64-bit"):
        counts().guarantee(setting_of(rows=2**50, per_person=1024))


@pytest.mark.parametrize("name", names("trusts"))
def test_every_trust_model_releases_the_sum_of_all_parties(name: str, random: np.random.Generator) -> None:
    """The noise is the stated one: 9 deviations of its mean square, of some 2,400 cells."""
    model = lookup("trusts", name)()
    parties = [ArrayRows(random.random((100, 6)), random.integers(0, 2, 100)) for _ in range(3)]
    setting = replace(setting_of(), sizes=(100, 100, 100), trust=name, noise_factor=model.noise_factor(3))
    algorithm = counts()
    model.require(algorithm, setting)
    assert model.guarantee(algorithm, setting).losses[:1] == (ONE,)
    exact, errors = sum(algorithm.statistic(rows, setting) for rows in parties), []
    for run in range(60):
        noises = [KeyedNoise(bytes(32), f"{run}/{who}") for who in model.noise_contributors(("0", "1", "2"))]
        values = run_sums(
            algorithm, parties, setting, model.summation(algorithm, setting, noises, str(run), None)
        ).values
        errors.append((values - exact) / (algorithm.deviation(setting) * setting.noise_factor))
    every = np.concatenate(errors)
    reach = 9 * math.sqrt(2 / every.size)
    assert abs(np.square(every).mean() - 1.0) < reach < 0.3


class OnePairTooFew(PairCounts):
    """A mutant: its sensitivity leaves a table out."""

    def sensitivity(self, setting: Setting) -> float:
        return math.sqrt(setting.neighbours.records * (len(self.shapes(setting)) - 1))


class NullForReplaced(PairCounts):
    """A mutant: what a record moves against nothing, where one is replaced."""

    def sensitivity(self, setting: Setting) -> float:
        return math.sqrt(len(self.shapes(setting)))


@pytest.mark.parametrize(
    ("cls", "verdict"),
    [(PairCounts, Verdict.TIGHT), (OnePairTooFew, Verdict.VIOLATES), (NullForReplaced, Verdict.VIOLATES)],
)
def test_the_audit_is_tight_and_catches_the_mutants(cls: type[PairCounts], verdict: Verdict) -> None:
    """At a confidence of 1 - 1e-9, from 100,000 runs whose sums have a known likelihood ratio."""
    algorithm, setting = counts(cls, tables=SCHEMAS["one column, coarse and fine"]), setting_of(rows=16)
    assert (attained(algorithm, setting) > 1.4) == (verdict is Verdict.VIOLATES)
    report = audit_algorithm(
        [(algorithm, setting)],
        AuditOptions(delta=0.05, trials=100_000, confidence=1 - 1e-9),
        name=cls.__name__,
        kind="evaluators",
    )
    assert report.verdict is verdict, report
