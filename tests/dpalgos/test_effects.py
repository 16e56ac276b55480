"""Effects of columns on a model's scores: closed forms, and from weights and released counts alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dpalgos.effects import POINTS, effects, linear_behind, pairs_by_weight, reference_row
from dpalgos.features.column_functions import CONSTANT, ColumnFunctions, Term, column_functions
from dpalgos.features.public_map import RandomFourier
from dpalgos.features.unit_rows import UnitRows
from dpalgos.histograms import ColumnCounts
from dpalgos.models import LinearModel, Projection
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats
from tests.dpalgos.test_column_functions import COLUMNS, counts_of, made_of, raw, rows_of

# All cells missing: the number that may be says so, and zero is in its range.
MISSING = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])


def made() -> ColumnCounts:
    return counts_of(rows_of(), 2.0)


def test_the_reference_is_at_released_medians_and_most_frequent_values() -> None:
    rows = rows_of()
    row = reference_row(COLUMNS, MISSING, counts_of(rows))
    for number in COLUMNS[:3]:
        known = rows[rows[:, 3] == 0, number.at] if number.at == 2 else rows[:, number.at]
        width = (number.high - number.low) / 64
        assert abs(row[number.at] - np.sort(known)[math.ceil(len(known) / 2) - 1]) <= width
    assert row[3:].tolist() == [0.0, 0.5, 0.0, 0.0, 1.0]


def test_without_counts_the_reference_is_the_middle_of_what_is_declared() -> None:
    constant = np.append(MISSING, 0.1)
    assert reference_row(COLUMNS, constant).tolist() == [0.0, 0.5, 0.125, 0.0, 0.5, 0.0, 0.0, 1.0, 0.1]
    with pytest.raises(ParameterError, match=r"feature 7.*7"):
        reference_row(COLUMNS, MISSING[:7])
    with pytest.raises(ParameterError, match=r"counts.*model's"):
        reference_row(COLUMNS[1:], MISSING, made())


def test_a_curve_of_one_column_in_closed_form() -> None:
    """Scores are w z / norm of all functions, which the other columns decide too: effects do not add up."""
    counts = made()
    functions = made_of("univariate", counts)
    place = {term: place for place, term in enumerate(functions.terms())}[Term("score", (1,))]
    weights = np.zeros((1, functions.dimension))
    weights[0, place] = 2.0
    model = LinearModel(weights=weights, intercept=np.array([0.25]))
    found = effects(lambda cells: model.scores(functions.transform(cells)), COLUMNS, MISSING, counts)
    assert [effect.column for effect in found] == list(COLUMNS)
    ordinary = raw(functions, reference_row(COLUMNS, MISSING, counts)[None])
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
        assert effect.rows is not None
        assert np.array_equal(effect.rows.values, np.clip(counts.counts[line], 0, 500))
    assert found[1].scores[0, 0] < found[1].scores[-1, 0]
    assert np.ptp(found[0].scores) > 0, "rows have norm 1"
    assert found[0].missing is None
    assert found[2].missing is not None
    assert [len(effect.scores) for effect in found[3:]] == [3, 1]
    # Spread by the noisy counts: the column that the model looks at has the most.
    assert max(found[:3], key=lambda effect: effect.spread) is found[1]


def test_a_part_of_a_curve_says_what_its_released_rows_have() -> None:
    """Most cells of a part are one value: its score is that value's, not that of the part's middle."""
    rows = rows_of()
    rows[:, 0] = np.where(rows[:, 0] < -0.95, -1.0, rows[:, 0])
    counts = counts_of(rows, bins=1024)
    (first, *_) = effects(lambda cells: cells[:, :1], COLUMNS, MISSING, counts)
    assert len(first.scores) == POINTS
    # All rows of the first part lie in its first bin, whose middle is half a bin above -1.
    assert first.scores[0, 0] == pytest.approx(-1.0 + 1.0 / 1024)
    middle = -1.0 + 1.0 / POINTS
    assert abs(first.scores[0, 0] - middle) > 0.01
    # A part without rows has all its bins alike.
    (empty, *_) = effects(lambda cells: cells[:, :1], COLUMNS, MISSING, counts_of(rows_of()[:0], bins=1024))
    assert empty.scores[:, 0] == pytest.approx(-1.0 + 2.0 * (np.arange(POINTS) + 0.5) / POINTS)


def test_values_in_equal_steps_have_a_score_each() -> None:
    """Where a number is one of three declared values, two of them at the ends of its range."""
    rows = rows_of()
    rows[:, 1] = np.repeat([0.0, 0.5, 1.0], [300, 150, 50])
    counts = counts_of(rows)
    (_, second, *_) = effects(lambda cells: cells[:, 1:2], COLUMNS, MISSING, counts, [0, 3, 0, 0, 0])
    assert second.scores[:, 0].tolist() == [0.0, 0.5, 1.0]
    assert second.rows is not None
    assert second.rows.values.round().tolist() == [300, 150, 50]
    assert second.spread == pytest.approx(np.sqrt(np.average([0, 0.25, 1], weights=[6, 3, 1]) - 0.25**2), rel=1e-3)
    (_, plain, *_) = effects(lambda cells: cells[:, 1:2], COLUMNS, MISSING, None, [0, 3, 0, 0, 0])
    assert plain.scores[:, 0].tolist() == [0.0, 0.5, 1.0]
    assert plain.rows is None


def test_rare_values_are_told_apart_from_none_by_noisy_counts_alone() -> None:
    counts = made()
    (*_, wards, _) = effects(lambda cells: cells[:, 4:7], COLUMNS, MISSING, counts)
    assert wards.rare.tolist() == [0.0, 0.0, 1.0]
    assert wards.rare_rows is not None
    assert wards.rare_rows.values.shape == (1,)
    assert wards.scores.tolist() == (0.5 * np.eye(3)).tolist()
    assert wards.missing is not None
    assert not wards.missing.any()


def test_nothing_but_released_counts_and_weights_is_looked_at() -> None:
    """The same page for other rows with the same noisy counts; a mutant that looks at rows has another one."""
    counts = made()
    functions = made_of("products", counts)
    model = LinearModel(weights=np.random.default_rng(0).normal(size=(3, functions.dimension)))
    seen: list[Floats] = []

    def score(cells: Floats) -> Floats:
        seen.append(cells)
        return model.scores(functions.transform(cells))

    page = effects(score, COLUMNS, MISSING, counts)
    # All rows that were scored are made up: of middles of bins, values, medians.
    row = reference_row(COLUMNS, MISSING, counts)
    scored = np.concatenate(seen)
    assert np.all((scored != row).sum(axis=1) <= 2)
    again = effects(score, COLUMNS, MISSING, replace(counts, sums=counts.sums.copy()))
    assert all(np.array_equal(one.scores, other.scores) for one, other in zip(page, again, strict=True))
    moved = rows_of()
    moved[:, 2] = moved[:, 2] ** 3
    other_page = effects(score, COLUMNS, MISSING, counts_of(moved))
    assert any(not np.array_equal(one.scores, other.scores) for one, other in zip(page, other_page, strict=True))


@pytest.mark.parametrize("entries", [1, 8 * 5])
def test_rows_are_made_up_a_few_at_a_time(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashed columns make rows wide: never more numbers at a time, or one row; the scores are the same."""
    counts = made()
    functions = made_of("cubic", counts)
    model = LinearModel(weights=np.random.default_rng(0).normal(size=(2, functions.dimension)))
    seen: list[int] = []

    def score(cells: Floats) -> Floats:
        seen.append(cells.size)
        return model.apply(functions.transform(cells))

    whole = effects(score, COLUMNS, MISSING, counts)
    seen.clear()
    monkeypatch.setattr("dpalgos.effects._ENTRIES", entries)
    parts = effects(score, COLUMNS, MISSING, counts)
    assert max(seen) <= max(entries, 8)
    assert all(np.array_equal(one.scores, other.scores) for one, other in zip(whole, parts, strict=True))


def test_fourier_features_have_curves_too() -> None:
    counts = made()
    functions, fourier = made_of("scores", counts), RandomFourier(frequencies=8)
    behind = fourier.map_for(functions.dimension)
    model = LinearModel(weights=np.random.default_rng(0).normal(size=(1, 16)))
    (first, *_) = effects(
        lambda cells: model.scores(behind.apply(functions.transform(cells))), COLUMNS, MISSING, counts
    )
    rows = np.tile(reference_row(COLUMNS, MISSING, counts), (64, 1))
    rows[:, 0] = -1.0 + 2.0 * (np.arange(64) + 0.5) / 64
    phases = functions.transform(rows) @ behind.frequencies
    expected = np.hstack([np.cos(phases), np.sin(phases)]) / math.sqrt(8) @ model.weights.T
    assert first.scores == pytest.approx(expected)


def test_a_linear_table_has_curves_over_its_declared_ranges() -> None:
    model = LinearModel(weights=np.arange(1.0, 9.0)[None])
    found = effects(
        lambda cells: model.scores(UnitRows(size=np.array([8])).transform(cells)), COLUMNS, MISSING, counts=None
    )
    row = reference_row(COLUMNS, MISSING)
    rows = np.tile(row, (POINTS, 1))
    rows[:, 0] = -1.0 + 2.0 * (np.arange(POINTS) + 0.5) / POINTS
    expected = rows @ model.weights.T / np.linalg.norm(rows, axis=1, keepdims=True)
    assert found[0].scores == pytest.approx(expected)
    assert (found[0].rows, found[0].bars) == (None, 0)


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
    assert [pair[:2] for pair in found] == [(COLUMNS[0], COLUMNS[2]), (COLUMNS[1], COLUMNS[2])]
    assert [pair[2] for pair in found] == pytest.approx([13.0, 2.0])
    assert pairs_by_weight(weights, functions, most=1) == found[:1]


def test_pairs_of_categories_are_listed_by_the_weights_of_their_values() -> None:
    functions: ColumnFunctions = column_functions(COLUMNS[3:], "categories")
    weights = np.zeros((1, functions.dimension))
    for place, term in enumerate(functions.terms()):
        if term.function == "value-pair":
            weights[0, place] = (term.values[0] + 1.0) / functions.weights[place]
    ((one, other, weight),) = pairs_by_weight(weights, functions)
    assert (one, other) == (COLUMNS[3], COLUMNS[4])
    assert weight == pytest.approx(math.sqrt(1 + 4 + 9))


def test_pairs_need_a_way_that_is_affine_behind_the_functions() -> None:
    functions = made_of("scores", made())
    basis, model = Projection(basis=np.eye(functions.dimension)[:, :2]), LinearModel(weights=np.ones((1, 2)))
    behind = linear_behind([functions, basis, model])
    assert behind is not None
    assert behind.weights.tolist() == [[1.0, 1.0] + [0.0] * (functions.dimension - 2)]
    fourier = RandomFourier(frequencies=1).map_for(functions.dimension)
    assert linear_behind([functions, fourier, model]) is None
    assert linear_behind([functions]) is None
