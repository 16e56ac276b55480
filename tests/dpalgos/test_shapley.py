"""Shapley values of columns: exact by enumeration, additive to rounding, references by released counts alone."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from dpalgos.columns import Column
from dpalgos.evaluators.column_histograms import Layout
from dpalgos.histograms import ColumnCounts
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats
from dpalgos.shapley import Explainer, Player, Score, explainer_of, on_simplex, reference_rows

# Errors of 7 standard deviations: 3e-12 for each of the about fifty that are looked at.
FAR = 7.0


def counted(numbers: dict[int, list[float]], groups: dict[int, list[float]], bins: int = 2) -> ColumnCounts:
    """Counts of numbers by bin and of categories by value and missing, by the feature that they begin with."""
    columns = tuple(Column(at=at) for at in numbers)
    categories = tuple(Column(at=at, values=len(noisy) - 1) for at, noisy in groups.items())
    layout = Layout(columns, categories, bins=bins, classes=0, label_range=None, centred=False)
    return ColumnCounts(
        layout=layout,
        rows=100,
        sums=np.cumsum(np.array(list(numbers.values())).reshape(-1, bins), axis=1),
        covariance=np.eye(bins),
        missing=np.zeros(len(numbers)),
        centred=np.zeros(0),
        categories=tuple(np.array(noisy, dtype=np.float64) for noisy in groups.values()),
        classes=np.zeros(0),
        deviation=1.0,
    )


def table(booleans: int) -> tuple[list[Player], ColumnCounts, Floats]:
    """So many booleans and one category of two values that can be missing, each with shares of its own."""
    numbers = {at: [60.0 - 4 * at, 40.0 + 4 * at] for at in range(booleans)}
    counts = counted(numbers, {booleans: [50.0, 30.0, 20.0]})
    players = [Player(f"b{at}", (at,), (column,), (2,)) for at, column in enumerate(counts.layout.numbers)]
    ward = counts.layout.categories[0]
    players.append(Player("ward", (booleans, booleans + 1), (ward,), (0,), can_lack=True))
    return players, counts, np.append(np.zeros(booleans + 2), 0.1)


def support(players: list[Player], counts: ColumnCounts, missing: Floats) -> tuple[Floats, Floats]:
    """Every reference row there can be, and its probability."""
    parts: list[list[tuple[list[float], float]]] = []
    for line in range(len(counts.layout.numbers)):
        shares = counts.counts[line] / counts.counts[line].sum()
        parts.append([([value], share) for value, share in zip((0.0, 1.0), shares, strict=True)])
    for noisy in counts.categories:
        cells = [*np.eye(len(noisy) - 1).tolist(), [0.0] * (len(noisy) - 1)]
        parts.append(list(zip(cells, noisy / noisy.sum(), strict=True)))
    combined = [*itertools.product(*parts)]
    rows = [[*itertools.chain(*(cells for cells, _ in one)), missing[-1]] for one in combined]
    return np.array(rows), np.array([math.prod(share for _, share in one) for one in combined])


def enumerated(score: Score, players: list[Player], row: Floats, rows: Floats, chances: Floats) -> Floats:
    """Shapley's formula over all coalitions, each an expectation over all reference rows."""
    count = len(players)
    worth = {}
    for coalition in itertools.product((0, 1), repeat=count):
        mixed = rows.copy()
        for player, there in zip(players, coalition, strict=True):
            if there:
                mixed[:, list(player.features)] = row[list(player.features)]
        worth[coalition] = float(chances @ score(mixed)[:, 0])
    values = np.zeros(count)
    for coalition, without in worth.items():
        size = sum(coalition)
        weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count) if size < count else 0
        for at in np.flatnonzero(np.array(coalition) == 0):
            values[at] += weight * (worth[(*coalition[:at], 1, *coalition[at + 1 :])] - without)
    return values


def normed(rows: Floats) -> Floats:
    """A score with a product of columns, over the row's norm."""
    width = rows.shape[1]
    weights = np.cos(3.0 * np.arange(width) + 1.0)
    product = rows[:, 0] * rows[:, 1]
    features = np.column_stack([rows, product])
    found = rows @ weights + 2.0 * product
    return np.asarray((found / np.sqrt((features**2).sum(axis=1)))[:, None])


def straight(rows: Floats) -> Floats:
    """The same without the division."""
    return np.asarray(
        normed(rows) * np.sqrt((np.column_stack([rows, rows[:, 0] * rows[:, 1]]) ** 2).sum(axis=1))[:, None]
    )


@pytest.mark.parametrize("booleans", [1, 4, 9])
def test_values_are_those_of_the_enumeration(booleans: int) -> None:
    """Within the stated errors; and what leaves the norm out, or splits a column, or halves a share, is far off."""
    players, counts, missing = table(booleans)
    rows, chances = support(players, counts, missing)
    row = missing.copy()
    row[[0, 1, -2]] = 1.0
    if booleans == 1:
        row[:] = [1.0, 1.0, 0.0, 0.1]
    exact = enumerated(normed, players, row, rows, chances)

    def off(score: Score, own: list[Player], taken: ColumnCounts) -> Floats:
        found = explainer_of(score, own, missing, taken, permutations=8000, seed=3).values(row[None])
        apart = np.zeros(len(exact))
        for place, player in enumerate(own):
            apart[int(player.name.removeprefix("b")) if player.name != "ward" else -1] += found.values[0, place]
        return np.asarray(np.abs(apart - exact) / np.maximum(found.errors[0, : len(exact)], 1e-12))

    assert off(normed, players, counts).max() < FAR
    assert off(straight, players, counts).max() > 2 * FAR
    turned = replace(counts, sums=np.cumsum(counts.counts[:, ::-1], axis=1), categories=(counts.categories[0][::-1],))
    assert off(normed, players, turned).max() > 2 * FAR
    # A feature of the category as a column of its own: rows that have both values, which no row has.
    (ward,) = counts.layout.categories

    def with_both(rows: Floats) -> Floats:
        return np.asarray(normed(rows) + 5.0 * (rows[:, -3:-1].sum(axis=1) > 1.0)[:, None])

    whole = Explainer(with_both, players, reference_rows(players, missing, counts, 400))
    split = [*players[:-1], *(Player("ward", (at,), (ward,), (0,)) for at in players[-1].features)]
    apart = Explainer(with_both, split, whole.reference).values(row[None])
    assert np.abs(whole.values(row[None]).values - exact).max() < 0.2
    assert np.abs(apart.values[0, -2:] - exact[-1]).max() > 0.5


def test_errors_are_as_large_as_the_estimate_is_wrong() -> None:
    """Over 300 seeds the mean squared error over the stated variance is 1; half or double of it would be 0.25 or 4."""
    players, counts, missing = table(3)
    rows, chances = support(players, counts, missing)
    row = rows[5]
    exact = enumerated(normed, players, row, rows, chances)
    squares = []
    for seed in range(300):
        found = explainer_of(normed, players, missing, counts, seed=seed).values(row[None])
        squares.append((found.values[0] - exact) ** 2 / found.errors[0] ** 2)
    assert 0.7 < np.mean(squares) < 1.4


def test_values_add_up_and_a_row_is_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    players, counts, missing = table(5)

    def several(rows: Floats) -> Floats:
        return np.column_stack([normed(rows), -normed(rows), rows @ np.arange(rows.shape[1]) - 4.0])

    rows, _ = support(players, counts, missing)
    explainer = explainer_of(several, players, missing, counts, permutations=32)
    found = explainer.values(rows)
    assert np.abs(found.values.sum(axis=1) - (found.scores - found.means)).max() < 1e-12
    assert set(found.chosen) == {0, 1, 2}
    scores = several(rows)
    assert np.array_equal(found.scores, scores.max(axis=1))
    assert np.allclose(found.means, several(explainer.reference).mean(axis=0)[found.chosen])
    assert found.shares.sum(axis=1) == pytest.approx(1.0)
    # In other blocks, and alone.
    monkeypatch.setattr("dpalgos.shapley._ENTRIES", 200)
    again = explainer.values(rows[7:9])
    assert np.allclose(again.values, found.values[7:9], atol=1e-13)
    assert np.allclose(again.errors, found.errors[7:9], atol=1e-13)
    assert explainer.values(rows[:0]).values.shape == (0, 6)
    # The row of reference itself has nothing to explain.
    same = Explainer(normed, players, np.tile(rows[3], (8, 1))).values(rows[3:4])
    assert np.abs(same.values).max() < 1e-15
    assert same.errors.max() < 1e-15


def test_of_two_columns_a_pair_holds_both_orders() -> None:
    """Nothing is left to chance with one reference row: the closed form, and no error."""
    players, _, missing = table(1)
    row, other = np.array([1.0, 1.0, 0.0, 0.1]), np.append(np.array([0.0, 0.0, 1.0]), missing[-1])
    found = Explainer(normed, players, np.tile(other, (6, 1))).values(row[None])
    first, second = np.array([1.0, 0.0, 1.0, 0.1]), np.array([0.0, 1.0, 0.0, 0.1])
    start, one, two, end = normed(np.stack([other, first, second, row]))[:, 0]
    assert found.values[0] == pytest.approx([(one - start + end - two) / 2.0, (two - start + end - one) / 2.0])
    assert found.errors.max() < 1e-12


def test_one_column_has_all_of_it() -> None:
    counts = counted({0: [30.0, 70.0]}, {})
    (column,) = counts.layout.numbers
    explainer = explainer_of(normed_alone, [Player("x", (0,), (column,), (0,))], np.array([0.0, 0.1]), counts)
    found = explainer.values(np.array([[0.9, 0.1]]))
    assert found.values[0, 0] == pytest.approx(found.scores[0] - found.means[0])
    deviation = normed_alone(explainer.reference)[:, 0].std(ddof=1) / np.sqrt(128)
    assert found.errors[0, 0] == pytest.approx(deviation)


def normed_alone(rows: Floats) -> Floats:
    return np.asarray((rows[:, 0] / np.linalg.norm(rows, axis=1))[:, None])


def test_reference_rows_are_drawn_from_the_counts() -> None:
    """By bins, values and missing cells; a negative count is no chance; columns are drawn each by itself."""
    counts = counted({0: [10.0, 0.0, 30.0, 60.0], 1: [45.0, -3.0, 2.0, 55.0]}, {2: [80.0, -6.0, 25.0, 1.0]}, bins=4)
    numbers = (replace(counts.layout.numbers[0], missing=5, low=-1.0), replace(counts.layout.numbers[1], high=2.0))
    counts = replace(counts, layout=replace(counts.layout, numbers=numbers), missing=np.array([25.0, 0.0]))
    players = [
        Player("a", (0, 5), numbers[:1], (0,)),
        Player("b", (1,), numbers[1:], (2,)),
        Player("c", (2, 3, 4), counts.layout.categories, (0,), can_lack=True),
    ]
    missing = np.array([0.3, 0.0, 0.0, 0.0, 0.0, 0.7, 0.1])
    many = 40_000
    rows = reference_rows(players, missing, counts, many, seed=1)

    def near(share: float, expected: float) -> bool:
        return abs(share - expected) < FAR * math.sqrt(expected * (1 - expected) / many)

    lost = rows[:, 5] > 0
    assert near(lost.mean(), 25 / 125)
    assert (rows[lost, 0] == 0.3).all()
    assert (rows[lost, 5] == 0.7).all()
    cells = (rows[~lost, 0] + 1.0) / 2.0
    inside = np.histogram(cells, bins=4, range=(0, 1))[0] / len(cells)
    assert near(inside[0], 0.1)
    assert inside[1] == 0
    assert near(inside[2], 0.3)
    assert abs(cells[(cells > 0.5) & (cells < 0.75)].mean() - 0.625) < 0.002, "points inside a bin, not its edge"
    assert set(rows[:, 1]) == {0.0, 2.0}, "of two declared values"
    assert near((rows[:, 1] == 2.0).mean(), 0.55)
    # The nearest shares to 80, -6, 25 and 1 of 100 rows: 5 less than nothing, taken from the others alike.
    expected = on_simplex(counts.categories[0])
    assert expected == pytest.approx([77.5 / 100, 0.0, 22.5 / 100, 0.0])
    of_ward = rows[:, 2:5]
    assert (of_ward.sum(axis=1) == 1.0).all()
    assert near(of_ward[:, 0].mean(), 0.775)
    assert not of_ward[:, 1].any()
    assert abs(np.corrcoef(rows[:, 1], of_ward[:, 0])[0, 1]) < FAR / math.sqrt(many)
    assert (rows[:, 6] == 0.1).all()
    # The first rows of many are the rows of few.
    assert np.array_equal(reference_rows(players, missing, counts, 50, seed=1), rows[:50])
    assert not np.array_equal(reference_rows(players, missing, counts, 50, seed=2), rows[:50])


def test_noise_that_leaves_nothing_draws_evenly() -> None:
    counts = counted({0: [-5.0, 2.0]}, {1: [-3.0, -1.0, 2.0]})
    players = [
        Player("a", (0,), counts.layout.numbers, (0,)),
        Player("b", (1, 2), counts.layout.categories, (0,), can_lack=True),
    ]
    rows = reference_rows(players, np.zeros(3), counts, 2000)
    assert abs(rows[:, 0].mean() - 0.5) < 0.06
    assert (rows[:, 1:].sum(axis=1) == 1.0).all()
    assert abs(rows[:, 1].mean() - 0.5) < 0.08


@pytest.mark.parametrize(
    ("given", "named"),
    [({"permutations": 3}, "3"), ({"permutations": 2}, "2"), ({"permutations": 0}, "0"), ({"seed": -1}, "-1")],
)
def test_what_does_not_fit_is_refused(given: dict[str, int], named: str) -> None:
    players, counts, missing = table(2)
    with pytest.raises(ParameterError, match=named):
        explainer_of(normed, players, missing, counts, **given)
    with pytest.raises(ParameterError, match="counts"):
        explainer_of(normed, players[1:], missing, counts)
