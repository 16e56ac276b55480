"""Synthetic rows: whole projections, a tree of noisy tables, integer draws, and what is read of rows."""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy

from dpalgos.columns import Column
from dpalgos.guarantees import Neighbours
from dpalgos.histograms import ColumnCounts
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.parameters import ParameterError
from dpalgos.synthesis.codes import places_of
from dpalgos.synthesis.conditionals import Blocks, class_margins, conditional_counts, least_squares
from dpalgos.synthesis.dependence import Dependence, dependence, spanning_forest
from dpalgos.synthesis.drawing import MOST_POINTS, MOST_ROWS, Drawing, Drawn, DrawnColumn, below, systematic
from dpalgos.synthesis.fidelity import ComparedTable, compared_columns, compared_pairs, compared_tables
from dpalgos.synthesis.groups import groups_of, groups_within, joined, regrouped
from dpalgos.synthesis.projection import apportioned, to_simplex
from dpalgos.synthesis.stages import MOST_COLUMNS, PAIR_PARTS, stages_for
from tests.support.synthesis import Chain

RANDOM = np.random.default_rng(64)
# A number that can be missing, a number, two categories: features 0 to 7, the last says that the first is missing.
COLUMNS = (Column(at=0, missing=7), Column(at=1), Column(at=2, values=3), Column(at=5, values=2))


def table_rows(rows: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of :data:`COLUMNS` of which the number, the second number and the first category go together."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, rows)
    first = np.clip(random.normal(0.3 + 0.3 * labels, 0.15), 0.0, 1.0)
    second = np.clip(first + random.normal(0.0, 0.05, rows), 0.0, 1.0)
    features = np.zeros((rows, 8))
    features[:, 0], features[:, 1] = first, second
    features[np.arange(rows), 2 + np.minimum((3 * second).astype(int), 2)] = 1.0
    features[np.arange(rows), 5 + random.integers(0, 2, rows)] = 1.0
    lost = random.random(rows) < 0.1
    features[lost, 0], features[lost, 7] = 0.0, 1.0
    return features, labels.astype(np.float64)


def chain(rows: int = 6000, mu: float = 8.0, **options: object) -> Chain:
    features, labels = table_rows(rows)
    return Chain(features, labels, COLUMNS, 2, mu, bins=64, **options)  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize("total", [0, 1, 7, 1000])
def test_counts_go_to_the_nearest_ones_of_a_sum(total: int) -> None:
    """Whole, not negative, of that sum; and no other whole ones of it are nearer, where all can be tried."""
    for counts in (RANDOM.integers(-50, 400, 9), np.array([3, -2, 1]), np.array([0, 0, 0])):
        found = to_simplex(counts, total)
        assert found.dtype == np.int64
        assert found.min() >= 0
        assert found.sum() == total
        if len(counts) == 3 and total < 10:
            others = [np.array(one) for one in itertools.product(range(total + 1), repeat=3) if sum(one) == total]
            assert ((found - counts) ** 2).sum() <= min(((one - counts) ** 2).sum() for one in others)
    np.testing.assert_array_equal(to_simplex(np.array([5, 2, 3]), 10), [5, 2, 3])
    np.testing.assert_array_equal(apportioned(np.array([1, 1, 1]), 4), [2, 1, 1])
    with pytest.raises(ParameterError, match=r"2147483648"):
        to_simplex(np.array([1]), 2**31)


def test_groups_keep_frequent_values_and_missing_cells_apart() -> None:
    spike = np.array([12, 12, 900, 2, 50, 44, 0, 0, 100])
    values = np.array([500, 3, 490, 4, 3, 0])
    own, named = groups_of((Column(at=0, missing=9), Column(at=1, values=5)), (spike, values), 5, 10)
    assert (own == own[2]).sum() == 1, "the frequent one has a group of its own"
    assert (np.diff(own) >= 0).all()
    assert (own == own[-1]).sum() == 1, "missing cells too"
    assert named.tolist() == [0, 2, 1, 2, 2, 2], "rare values are the last group together"
    assert own.max() < 5
    margins = np.array([[10, 5, 0], [0, 3, 7]])
    other = regrouped(margins, np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1]), np.array([3, 1, 0, 0]))
    assert other.tolist() == [[8, 7], [0, 10]]


def test_excess_is_zero_on_average_and_chance_is_rarely_exceeded() -> None:
    """Independent columns given the class: the mean excess is 0 at any noise, and of 91 pairs one in 20 tables leaves.

    300 tables. The mean of the excess differs from 0 by more than 6 of its errors with probability 2·10⁻⁹. The number
    beyond chance, which has a probability of at most 0.05/91 each, is 7 or more with less than 10⁻⁹. The mutant, an
    excess whose noise is not taken off, is two hundred errors of a hundred tables away.
    """
    random = np.random.default_rng(1)
    shares = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.5, 0.3, 0.2])
    cells = np.stack([np.outer(shares[0], shares[1]), np.outer(shares[0][::-1], shares[1])])
    for deviation, rows in ((0.0, 4000), (30.0, 4000), (200.0, 20_000)):
        exact = [random.multinomial(rows, one.ravel(), 300).reshape(-1, 4, 3) for one in cells]
        tables = np.stack(exact, axis=1) + np.rint(random.normal(0.0, deviation, (300, 2, 4, 3)))
        found = [dependence(table, deviation, 91) for table in tables]
        excess = np.array([one.excess for one in found])
        error = excess.std() / math.sqrt(len(excess))
        assert abs(excess.mean()) < 6.0 * error + 0.02 * excess.std()
        assert sum(one.beyond_chance for one in found) < 7
        chance = np.array([dependence(table, deviation, 1).chance for table in tables])
        assert 2 < (excess > chance).sum() < 36, "of one pair one in twenty"
        if deviation:
            unmended = np.mean([dependence(table, 0.0, 91).excess for table in tables[:100]])
            assert unmended > 30.0 * excess.std() / math.sqrt(100)


@pytest.mark.parametrize(("rows", "columns"), [(4, 3), (5, 5)])
def test_without_noise_chance_is_a_quantile_of_chi_squared(rows: int, columns: int) -> None:
    """The sum over classes of X² has 2 (A − 1)(B − 1) degrees of freedom; without skewness 91 pairs are 29 % off."""
    table = np.full((2, rows, columns), 500.0)
    free = 2 * (rows - 1) * (columns - 1)
    for pairs, off in ((1, 0.02), (91, 0.01)):
        exact = scipy.stats.chi2.ppf(1.0 - 0.05 / pairs, free) - free
        assert dependence(table, 0.0, pairs).chance == pytest.approx(exact, rel=off)


def test_the_tree_is_that_of_the_largest_sum_and_of_edges_beyond_chance() -> None:
    excess = {(0, 1): 9.0, (1, 2): 8.0, (0, 2): 7.0, (2, 3): 6.0, (3, 4): 0.5, (0, 4): 0.4, (1, 3): 1.0}
    found = {pair: Dependence(size, 0.6) for pair, size in excess.items()}
    parents = spanning_forest(found, 6)
    edges = {tuple(sorted((at, parent))) for at, parent in enumerate(parents) if parent >= 0}
    assert edges == {(0, 1), (1, 2), (2, 3)}
    assert parents[4] == parents[5] == -1
    assert [at for at in range(4) if parents[at] < 0] == [1], "one root per tree"


def test_noise_alone_draws_a_column_to_its_margin() -> None:
    """Where a parent's cells hold few rows beside the noise, the column's shares are its own; with many they stay."""
    random = np.random.default_rng(5)
    exact = np.array([[[900.0, 100.0], [100.0, 900.0]]])
    for deviation, kept in ((3.0, True), (3000.0, False)):
        away = []
        for _ in range(50):
            table = exact + np.rint(random.normal(0.0, deviation, exact.shape))
            margins = class_margins(table, np.array([2000]), deviation, np.array([1000, 1000]), 5.0)
            assert margins.sum() == 2000
            found = conditional_counts(table, margins, np.array([[1000, 1000]]), deviation)
            assert (found.sum(axis=2) == 1000).all()
            away.append(abs(found[0, 0, 0] / 1000 - margins[0, 0] / 2000))
        assert (np.median(away) > 0.38) == kept
    empty = conditional_counts(exact, np.array([[0, 0]]), np.array([[0, 3]]), 1.0)
    assert empty.sum(axis=2).tolist() == [[2, 3]], "rows can be drawn where no row is"


def test_margins_are_the_least_squares_of_all_that_was_released() -> None:
    """Tables by class, tables of pairs by blocks, one-way counts: what a general solver says of the same equations."""
    random = np.random.default_rng(11)
    classes, groups, variance, one_way_variance = 3, 7, 40.0, 9.0
    of_groups, variances = np.array([0, 0, 1, 2, 2, 2, 1]), np.array([30.0, 12.0, 55.0])
    exact = random.integers(0, 200, (classes, groups)).astype(float)
    noisy = exact + random.normal(0.0, variance**0.5, exact.shape)
    one_way = np.rint(exact.sum(axis=0) + random.normal(0.0, 3.0, groups)).astype(np.int64)
    inside = (of_groups[:, None] == np.arange(3)).astype(float)
    counts = exact @ inside + random.normal(0.0, variances**0.5, (classes, 3))
    equations = [np.eye(classes * groups), np.kron(np.ones((1, classes)), np.eye(groups))]
    sides, noise = [noisy.ravel(), one_way], [np.full(noisy.size, variance), np.full(groups, one_way_variance)]
    for blocks in (None, Blocks(of_groups, counts, variances)):
        if blocks is not None:
            equations.append(np.kron(np.eye(classes), inside.T))
            sides.append(counts.ravel())
            noise.append(np.tile(variances, classes))
        scale = np.concatenate(noise) ** -0.5
        best = np.linalg.lstsq(scale[:, None] * np.vstack(equations), scale * np.concatenate(sides), rcond=None)[0]
        found = least_squares(noisy, variance, one_way, one_way_variance, blocks)
        np.testing.assert_allclose(found.ravel(), best, rtol=1e-9)


def test_groups_lie_within_those_of_pairs() -> None:
    weights = [RANDOM.integers(0, 90, places) for places in (65, 65, 4, 3)]
    blocks = groups_of(COLUMNS, weights, 4, 50)
    found = groups_within(COLUMNS, weights, blocks, 24, 40)
    for own, block, column in zip(found, blocks, COLUMNS, strict=True):
        assert own.max() < 24
        if column.is_number:
            assert own.max() > block.max()
        of_groups, of_blocks = joined(own, block)
        np.testing.assert_array_equal(of_groups[own], of_blocks[block])
        assert not column.is_number or (of_blocks == np.arange(len(of_blocks))).all()
    of_groups, of_blocks = joined(np.array([0, 1, 2, 2]), np.array([0, 0, 1, 2]))
    assert (of_groups.tolist(), of_blocks.tolist()) == ([0, 0, 1], [0, 1, 1])


def test_draws_are_whole_proportional_and_of_their_seed_alone() -> None:
    stream = KeyedNoise(public_secret(7), "test").stream("a", np.zeros(1))
    assert below(stream, np.full(5, 1)).tolist() == [0] * 5
    weights = np.array([[3, 0, 1], [0, 0, 5]])
    given = np.repeat([0, 1], [1001, 10])
    found = systematic(KeyedNoise(public_secret(7), "test").stream("b", np.zeros(1)), given, weights)
    assert abs(np.bincount(found[:1001], minlength=3) - [750.75, 0, 250.25]).max() <= 1.0
    assert (found[1001:] == 2).all()
    places = np.flatnonzero(found[:1001] == 2)
    assert np.diff(places).std() > 1.0, "in random order"
    with pytest.raises(ParameterError, match=r"16777217"):
        Drawing(1, MOST_ROWS + 1)
    circle = [DrawnColumn(1 - at, np.ones((1, 1, 1), np.int64), *[np.zeros(1, np.int64)] * 3) for at in (0, 1)]
    with pytest.raises(ParameterError, match=r"\[0, 1\]"):
        Drawing(1, 3).columns(np.zeros(3, np.int64), circle)


def test_a_random_number_has_a_bound_that_32_bits_reach() -> None:
    stream = KeyedNoise(public_secret(7), "test").stream("a", np.zeros(1))
    found = below(stream, np.full(2000, MOST_POINTS))
    assert 0.4 < (found >= MOST_POINTS // 2).mean() < 0.6
    for bound in (0, MOST_POINTS + 1):
        with pytest.raises(ParameterError, match=f"{bound}; give bounds from 1 to 4294967296|from {bound} to"):
            below(stream, np.array([bound]))
    assert len(below(stream, np.zeros(0, dtype=np.int64))) == 0


def test_columns_have_as_many_groups_as_in_pairs_at_least() -> None:
    """Tables of many columns and classes are made smaller, and a group of pairs still has a group of its own."""
    named = stages_for(10**6, 200, 1000, 1.0, named=[(0, 1)])
    assert named.pairs
    assert named.parts >= PAIR_PARTS
    features, labels = table_rows(500)
    stages = replace(stages_for(500, 4, 2, 8.0, named=[(0, 1)], tree=True), parts=named.parts, parent_parts=2)
    synthesis = Chain(features, labels, COLUMNS, 2, 8.0, bins=64, stages=stages).run()
    assert synthesis.draw(Drawing(1, 100)).places.shape == (100, 4)


def test_one_column_has_no_pairs() -> None:
    alone = stages_for(1000, 1, 2, 1.0)
    assert not alone.pairs
    assert alone.reason == "No pairs are counted: one column has no pairs."


KNOWN = "7797f70230ab3648"


def test_a_seed_gives_the_same_rows_for_ever() -> None:
    """By the digest of rows drawn by known weights: integers and a keystream, whatever computes them."""
    table = np.arange(1, 25, dtype=np.int64).reshape(2, 3, 4)
    groups, released = np.array([0, 0, 1, 2, 3, 3]), np.array([5, 1, 7, 7, 0, 0])
    as_parent = np.array([0, 1, 1, 2, 2, 2])
    drawn = [
        DrawnColumn(1, table, groups, as_parent, released),
        DrawnColumn(-1, table[:, :1], groups, as_parent, released),
    ]
    drawing = Drawing(2026, 1000)
    labels = drawing.classes(np.array([7, 5]))
    places = drawing.columns(labels, drawn)
    points = drawing.points("0", places[:, 0], np.array([1, 2, 3, 4, 5, 0]))
    everything = np.concatenate([labels, places.ravel(), points]).astype("<i8").tobytes()
    assert hashlib.sha256(everything).hexdigest().startswith(KNOWN)


@pytest.mark.parametrize("neighbours", list(Neighbours)[:2])
def test_rows_that_are_drawn_have_the_released_margins_and_pairs(neighbours: Neighbours) -> None:
    """With little noise pairs of drawn cells go together as the rows' do, and missing cells are as frequent."""
    made = chain(mu=60.0, neighbours=neighbours)
    synthesis = made.run()
    assert synthesis.parents.max() >= 0
    assert synthesis.parents[3] == -1, "an independent column has no parent"
    drawn = synthesis.draw(Drawing(1, 6000))
    present = made.features[:, 7] == 0.0
    assert abs((drawn.places[:, 0] < 64).mean() - present.mean()) < 0.01
    assert abs(drawn.labels.mean() - made.labels.mean()) < 0.01
    for column, values in ((2, 3), (3, 2)):
        exact = made.features[:, COLUMNS[column].at : COLUMNS[column].at + values].mean(axis=0)
        assert abs(np.bincount(drawn.places[:, column], minlength=values + 1)[:values] / 6000 - exact).max() < 0.02
    both = np.corrcoef(drawn.places[:, 1], drawn.places[:, 2])[0, 1]
    assert both > 0.8


def test_tables_of_pairs_improve_counts_by_class() -> None:
    """Of independent columns drawn rows have the classes that tables of pairs say, which have most of the budget."""
    features, _ = table_rows(6000)
    features[:, :2], features[:, 7] = np.random.default_rng(4).random((6000, 2)), 0.0
    labels = (features[:, 2] > 0).astype(np.float64)
    stages = replace(stages_for(6000, 4, 2, 8.0, tree=True), shares=(0.2, 0.799, 0.001))
    away = []
    for seed in range(1, 4):
        synthesis = Chain(features, labels, COLUMNS, 2, 1.0, bins=64, seed=seed, stages=stages).run()
        drawn = synthesis.draw(Drawing(1, 6000))
        for label, value in itertools.product(range(2), range(2)):
            exact = features[labels == label, 5 + value].sum()
            away.append(abs((drawn.places[drawn.labels == label, 3] == value).sum() - exact))
    # The noise of a count by class is 3.7 by pairs, and 89 without them.
    assert np.mean(away) < 15.0


def test_a_numeric_label_is_drawn_in_bins_of_its_range() -> None:
    features, _ = table_rows(4000)
    labels = 10.0 + 80.0 * features[:, 1]
    synthesis = Chain(features, labels, COLUMNS, 1, 60.0, bins=64, label_range=(0.0, 100.0)).run()
    drawn = synthesis.draw(Drawing(1, 4000))
    assert abs((drawn.labels + 0.5).mean() / 64 * 100.0 - labels.mean()) < 1.5
    assert np.corrcoef(drawn.labels, drawn.places[:, 1])[0, 1] > 0.85


class _ExactTables(Chain):
    """The mutant that chooses the tree by tables without noise."""

    def release(self, name, parameters, mu, rows, stage):  # type: ignore[no-untyped-def]  # as the chain's
        return super().release(name, parameters, 1e3 if stage == 1 else mu, rows, stage)


@pytest.mark.parametrize("mutant", [False, True])
def test_the_tree_rests_on_noise(mutant: bool) -> None:
    """At a small budget the edges found differ from seed to seed; those of exact tables hardly do."""
    features, labels = table_rows(2000)
    random = np.random.default_rng(8)
    features[:, 1] = np.clip(features[:, 0] + random.normal(0.0, 0.2, 2000), 0.0, 1.0)
    kind = _ExactTables if mutant else Chain
    stages = stages_for(2000, 4, 2, 100.0)
    found = {
        bytes(kind(features, labels, COLUMNS, 2, 0.2, seed=seed, stages=stages, bins=64).run().parents > -1)
        for seed in range(8)
    }
    assert (len(found) > 2) != mutant


def test_stages_are_public_and_each_table_is_counted_once() -> None:
    """All pairs once or none; one table per column; shares add up; more than 60 columns count named pairs alone."""
    stages = stages_for(30_000, 14, 2, 0.24)
    assert len(stages.pairs) == 91
    assert math.isclose(sum(stages.shares), 1.0)
    assert len(stages.counting_tree(14)["tables"]) == 14  # type: ignore[arg-type]  # a list
    assert not stages_for(30_000, 14, 2, 0.024).pairs
    assert not stages_for(4_000, 20, 2, 0.237).pairs
    assert stages_for(15_000, 16, 26, 0.237).pairs, "sums of tables of pairs improve sparse counts by class"
    assert not stages_for(15_000, 16, 26, 0.028).pairs
    few = (3, 5, 4, 4, 3, 2, 3, 3)
    assert stages_for(10_367, 8, 4, 0.078).pairs
    assert not stages_for(10_367, 8, 4, 0.078, values=few).pairs, "counts of so few groups are not sparse"
    assert stages_for(10_367, 8, 4, 0.24, values=few).pairs
    assert not stages_for(10**6, MOST_COLUMNS + 1, 2, 1.0).pairs
    named = stages_for(10**6, MOST_COLUMNS + 1, 2, 1.0, named=[(3, 1), (1, 3)])
    assert named.pairs == ((1, 3),)
    assert stages_for(30_000, 14, 2, 0.24, paid=True).shares[0] == 0.0
    for neighbours, records in ((Neighbours.REPLACE_ONE, 2), (Neighbours.REPLACE_SPECIAL, 1)):
        made = chain(neighbours=neighbours)
        made.run()
        algorithm, setting = made.released[-1]
        assert algorithm.sensitivity(setting) ** 2 == pytest.approx(records * len(COLUMNS))
    with pytest.raises(ParameterError, match=r"\(2, 2\)"):
        stages_for(100, 14, 2, 1.0, named=[(2, 2)])


def test_enumerated_records_move_each_stage_by_its_sensitivity_at_most() -> None:
    """Of rows through the maps, each pair of records, a null one among them; and some pair reaches it."""
    made = chain(rows=400)
    made.run()
    cells = [0.0, 0.31, 0.99]
    records = [
        np.array([first, second, *np.eye(4)[value][:3], *np.eye(3)[other][:2], missing])
        for first, second, value, other, missing in itertools.product(cells, cells, (0, 2, 3), (0, 2), (0.0, 1.0))
    ]
    null = np.full(8, np.nan)
    for name, (algorithm, setting) in zip(("pair-groups", "tree-groups"), made.released[1:], strict=True):
        seen = made.made[name].transform(np.array([*records, null]))
        vectors = np.array(
            [
                algorithm.contribution(algorithm.initial(setting), _Row(row, label), setting)
                for row, label in itertools.product(seen, (0.0, 1.0))
            ]
        )
        apart = ((vectors[:, None] - vectors[None, :]) ** 2).sum(axis=2).max()
        assert math.sqrt(apart) == pytest.approx(algorithm.sensitivity(setting))


def _compared(made: Chain, drawn: Drawn) -> list[ComparedTable]:
    synthesis, rows = made.made["tree-synthesis"], len(made.labels)
    counts = ColumnCounts.of_release(made.made["counts"].values, *made.released[0])
    groups = [lines[:size] for lines, size in zip(made.made["pair-groups"].groups, (65, 65, 4, 3), strict=True)]
    numbers = {}
    for name, (algorithm, setting) in zip(("pairs", "tables"), made.released[1:], strict=True):
        numbers[name] = algorithm.tables_of(made.made[name].values, setting), algorithm.deviation(setting)
    return [
        *compared_columns(synthesis, counts, drawn, rows, 12),
        *compared_tables(synthesis, *numbers["tables"], rows, drawn),
        *compared_pairs(numbers["pairs"][0], groups, numbers["pairs"][1], rows, drawn),
    ]


@pytest.mark.parametrize("mutant", [False, True])
def test_margins_of_released_shares_hold_those_of_the_rows(mutant: bool) -> None:
    """In place of drawn rows the counted ones: of 5 × some hundred cells, 5 % lie outside their margins.

    Cells of columns of one release are dependent, so that a share of cells outside is compared, by 0.08: a mutant
    whose noise is that of one class instead of two leaves 0.17 outside. Margins are not wider than they must be: the
    distance of the counted rows is about what noise makes, for columns alone and for tables.
    """
    outside = cells = 0
    distances = np.zeros((2, 2))
    for seed in range(5):
        made = chain(mu=1.5, seed=seed, stages=stages_for(6000, 4, 2, 100.0))
        made.run()
        exact = Drawn(made.labels.astype(np.int64), places_of(made.features, COLUMNS, 64))
        for one in _compared(made, exact):
            assert one.drawn.sum() == pytest.approx(1.0)
            margins = one.margins / math.sqrt(2.0) if mutant else one.margins
            outside += int((np.abs(one.drawn - one.released) > margins).sum())
            cells += one.drawn.size
            distances[len(one.places) - 1] += one.distance, one.by_noise
    assert cells > 800
    assert distances[:, 0] == pytest.approx(distances[:, 1], rel=0.3)
    assert (outside / cells < 0.08) != mutant


class _Row:
    """One row of rows."""

    def __init__(self, row: np.ndarray, label: float) -> None:
        self._row, self._label = row[None, :], np.array([label])

    def blocks(self):  # type: ignore[no-untyped-def]  # as rows'
        yield self._row, self._label, None
