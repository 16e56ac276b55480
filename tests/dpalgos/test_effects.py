"""Effects of columns on a model's scores: closed forms, and from weights and released counts alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dpalgos.effects import effects, ordinary_row, pairs_by_weight
from dpalgos.features.column_functions import CONSTANT, Term
from dpalgos.features.public_map import RandomFourier
from dpalgos.histograms import ColumnCounts
from dpalgos.models import LinearModel
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats
from tests.dpalgos.test_column_functions import COLUMNS, counts_of, made_of, raw, rows_of

DIMENSION = 8


def made() -> ColumnCounts:
    return counts_of(rows_of(), 2.0)


def test_the_ordinary_row_is_at_released_medians_and_most_frequent_values() -> None:
    rows = rows_of()
    row = ordinary_row(counts_of(rows), DIMENSION)
    for number in COLUMNS[:3]:
        known = rows[rows[:, 3] == 0, number.at] if number.at == 2 else rows[:, number.at]
        width = (number.high - number.low) / 64
        assert abs(row[number.at] - np.sort(known)[math.ceil(len(known) / 2) - 1]) <= width
    assert row[3:].tolist() == [0.0, 0.5, 0.0, 0.0, 1.0]


def test_a_curve_of_one_column_in_closed_form() -> None:
    """Scores are w z / norm of all functions, which the other columns decide too: effects do not add up."""
    counts = made()
    functions = made_of("univariate", counts)
    place = {term: place for place, term in enumerate(functions.terms())}[Term("score", (1,))]
    weights = np.zeros((1, functions.dimension))
    weights[0, place] = 2.0
    model = LinearModel(weights=weights, intercept=np.array([0.25]))
    found = effects(lambda cells: model.scores(functions.transform(cells)), counts, DIMENSION)
    assert [effect.column for effect in found] == [*counts.layout.numbers, *counts.layout.categories]
    ordinary = raw(functions, ordinary_row(counts, DIMENSION)[None])
    of_number = [[Term(name, (line,)) for name in ("linear", "score", "square", "cube")] for line in range(3)]
    own_weights = dict(zip(functions.terms(), functions.weights, strict=True))
    for line, effect in enumerate(found[:3]):
        others = CONSTANT**2 + sum(
            (own_weights[term] * values[0]) ** 2
            for term, values in ordinary.items()
            if term not in of_number[line] and term.function != "constant"
        )
        own = functions.tables[line] * np.array([own_weights[term] for term in of_number[line]])[:, None]
        score = own[1] if line == 1 else own_weights[of_number[1][1]] * ordinary[of_number[1][1]]
        assert effect.scores[:, 0] == pytest.approx(0.25 + 2.0 * score / np.sqrt(others + (own**2).sum(axis=0)))
        assert np.array_equal(effect.counts, counts.counts[line])
    assert found[1].scores[0, 0] < found[1].scores[-1, 0]
    assert np.ptp(found[0].scores) > 0, "rows have norm 1"
    assert found[0].missing is None
    assert found[2].missing is not None
    assert [len(effect.scores) for effect in found[3:]] == [3, 1]
    with pytest.raises(ParameterError, match="beyond 7 features"):
        effects(lambda cells: cells, counts, 7)


def test_nothing_but_released_counts_and_weights_is_looked_at() -> None:
    """The same page for other rows with the same noisy counts; a mutant that looks at rows has another one."""
    counts = made()
    functions = made_of("products", counts)
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
    functions, fourier = made_of("scores", counts), RandomFourier(frequencies=8)
    behind = fourier.map_for(functions.dimension)
    model = LinearModel(weights=np.random.default_rng(0).normal(size=(1, 16)))
    (first, *_) = effects(lambda cells: model.scores(behind.apply(functions.transform(cells))), counts, DIMENSION)
    rows = np.tile(ordinary_row(counts, DIMENSION), (64, 1))
    rows[:, 0] = -1.0 + 2.0 * (np.arange(64) + 0.5) / 64
    phases = functions.transform(rows) @ behind.frequencies
    expected = np.hstack([np.cos(phases), np.sin(phases)]) / math.sqrt(8) @ model.weights.T
    assert first.scores == pytest.approx(expected)


def test_pairs_are_listed_by_the_weights_of_their_products() -> None:
    functions = made_of("cubic", made())
    places = {term: place for place, term in enumerate(functions.terms())}
    weights = np.zeros((2, functions.dimension))
    for scores, term, weight in (
        (slice(None), Term("product", (0, 2)), np.array([3.0, 4.0])),
        (1, Term("cubic-product", (2, 0)), 12.0),
        (1, Term("product", (1, 2)), -2.0),
    ):
        weights[scores, places[term]] = weight / functions.weights[places[term]]
    # By what the features weigh in the map: 3, 4 and 12 together, and 2.
    found = pairs_by_weight(weights, functions)
    assert [pair[:2] for pair in found] == [(0, 2), (1, 2)]
    assert [pair[2] for pair in found] == pytest.approx([13.0, 2.0])
    assert pairs_by_weight(weights, functions, most=1) == found[:1]
