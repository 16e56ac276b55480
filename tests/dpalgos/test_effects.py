"""Effects of columns on a model's scores: closed forms, and from weights and released counts alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dpalgos.effects import effects, ordinary_row, pairs_by_weight
from dpalgos.features.normal_scores import ScoreRule
from dpalgos.features.public_map import RandomFourier
from dpalgos.histograms import ColumnCounts
from dpalgos.models import LinearModel
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats
from tests.dpalgos.test_normal_scores import counts_of, rows_of

DIMENSION = 8


def made() -> ColumnCounts:
    return counts_of(rows_of(), 2.0)


def test_the_ordinary_row_is_at_released_medians_and_most_frequent_values() -> None:
    rows = rows_of()
    row = ordinary_row(counts_of(rows), DIMENSION)
    for column in (0, 1, 2):
        known = rows[rows[:, 3] == 0, column] if column == 2 else rows[:, column]
        assert abs(row[column] - np.sort(known)[math.ceil(len(known) / 2) - 1]) <= 1 / 64
    assert row[3:].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]


def test_a_curve_of_one_column_in_closed_form() -> None:
    """Scores are w z / norm of all functions, which the other columns decide too: effects do not add up."""
    counts = made()
    functions = ScoreRule(degree=1).made(counts)
    weights = np.zeros((1, functions.dimension))
    weights[0, 1] = 2.0
    model = LinearModel(weights=weights, intercept=np.array([0.25]))
    found = effects(lambda cells: model.scores(functions.transform(cells)), counts, DIMENSION)
    assert [effect.column for effect in found] == [*counts.layout.numbers, *counts.layout.categories]
    row = ordinary_row(counts, DIMENSION)
    raw = functions.functions(row[None])[0] * functions.weights
    for line, effect in enumerate(found[:3]):
        z = functions.scores[line].mean(axis=1)
        others = float(raw @ raw - raw[line] ** 2)
        own = z if line == 1 else raw[1]
        assert effect.scores[:, 0] == pytest.approx(0.25 + 2.0 * own / np.sqrt(others + z**2))
        assert np.array_equal(effect.counts, counts.counts[line])
    assert np.all(np.diff(found[1].scores[:, 0]) >= 0)
    assert np.ptp(found[0].scores) > 0, "rows have norm 1"
    assert found[0].missing is None
    assert found[2].missing is not None
    assert [len(effect.scores) for effect in found[3:]] == [3, 1]
    with pytest.raises(ParameterError, match="beyond 7 features"):
        effects(lambda cells: cells, counts, 7)


def test_nothing_but_released_counts_and_weights_is_looked_at() -> None:
    """The same page for other rows with the same noisy counts; a mutant that looks at rows has another one."""
    counts = made()
    functions = ScoreRule(degree=2).made(counts)
    model = LinearModel(weights=np.random.default_rng(0).normal(size=(3, functions.dimension)))
    seen: list[Floats] = []

    def score(cells: Floats) -> Floats:
        seen.append(cells)
        return model.scores(functions.transform(cells))

    page = effects(score, counts, DIMENSION, bins=16)
    # All rows that were scored are made up: of middles of bins, values, medians.
    row = ordinary_row(counts, DIMENSION)
    scored = np.concatenate(seen)
    assert np.all((scored != row).sum(axis=1) <= 2)
    again = effects(score, replace(counts, sums=counts.sums.copy()), DIMENSION, bins=16)
    assert all(np.array_equal(one.scores, other.scores) for one, other in zip(page, again, strict=True))
    moved = rows_of()
    moved[:, 2] = moved[:, 2] ** 3
    from_rows = counts_of(moved)
    other_page = effects(score, from_rows, DIMENSION, bins=16)
    assert any(not np.array_equal(one.scores, other.scores) for one, other in zip(page, other_page, strict=True))


def test_fourier_features_have_curves_too() -> None:
    counts = made()
    functions, fourier = ScoreRule(degree=1).made(counts), RandomFourier(frequencies=8)
    behind = fourier.map_for(functions.dimension)
    model = LinearModel(weights=np.random.default_rng(0).normal(size=(1, 16)))
    (first, *_) = effects(lambda cells: model.scores(behind.apply(functions.transform(cells))), counts, DIMENSION)
    rows = np.tile(ordinary_row(counts, DIMENSION), (64, 1))
    rows[:, 0] = (np.arange(64) + 0.5) / 64
    phases = functions.transform(rows) @ behind.frequencies
    expected = np.hstack([np.cos(phases), np.sin(phases)]) / math.sqrt(8) @ model.weights.T
    assert first.scores == pytest.approx(expected)


def test_pairs_are_listed_by_the_weights_of_their_products() -> None:
    counts = made()
    functions = ScoreRule(degree=3).made(counts)
    weights = np.zeros((2, functions.dimension))
    places = {term.columns: place for place, term in enumerate(functions.terms()) if term.function == "product"}
    weights[:, places[0, 2]], weights[1, places[1, 2]] = [3.0, 4.0], -2.0
    # Half of 3 and 4 in two scores, and of 2 in one.
    assert pairs_by_weight(weights, functions) == [(0, 2, 2.5), (1, 2, 1.0)]
    assert pairs_by_weight(weights, functions, most=1) == [(0, 2, 2.5)]
    # Of sums y = M z the product y_0 y_1 gives z_i z_j the weight M_i0 M_j1 + M_j0 M_i1.
    rule = ScoreRule(degree=2, most_products=1)
    mixed = rule.made(counts)
    one = np.zeros((1, mixed.dimension))
    one[0, [term.function for term in mixed.terms()].index("product")] = 1.0
    matrix = mixed.mixing
    for first, second, size in pairs_by_weight(one, mixed):
        expected = matrix[first, 0] * matrix[second, 1] + matrix[second, 0] * matrix[first, 1]
        assert size == pytest.approx(0.5 * abs(expected))
