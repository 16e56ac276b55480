"""Histograms of all columns in one release: sensitivities by enumeration, people, nesting, the audit, and mutants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy

from dpalgos.algorithms import TrustedSummation, attained, moved, of_people, one_row_apart, run_sums
from dpalgos.audit.experiment import AuditOptions, Verdict
from dpalgos.audit.releases import audit_algorithm
from dpalgos.columns import Column, bins_of, columns_of
from dpalgos.evaluators import column_histograms
from dpalgos.evaluators.column_histograms import ColumnHistograms, Layout, bins_for, rank_error, squared_sensitivity
from dpalgos.evaluators.noisy_sums import counted_cells
from dpalgos.guarantees import RELATIONS, GaussianMu, Neighbours, Setting, Trust
from dpalgos.histograms import ColumnCounts, combined
from dpalgos.keystream import KeyedNoise
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.mechanisms.running_sums import RunningSums
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup, names
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats, Ints, Rows
from tests.support.nights import spanning

ONE = GaussianMu(1.0)
# A number, one that may be missing (feature 2 says so), a category of two values, one of one value.
MIXED: list[dict[str, int]] = [{"at": 0}, {"at": 1, "missing": 2}, {"at": 3, "values": 2}, {"at": 5, "values": 1}]
FEATURES = 6


def setting_of(
    classes: int = 2,
    rows: int = 1,
    relation: Neighbours = Neighbours.REPLACE_ONE,
    dimension: int = FEATURES,
    per_person: int = 1,
) -> Setting:
    return Setting(sizes=(rows,), dimension=dimension, classes=classes, neighbours=relation, rows_per_person=per_person)


def histograms(cls: type[ColumnHistograms] = ColumnHistograms, **changed: Any) -> ColumnHistograms:
    parameters: dict[str, Any] = {"budget": ONE, "columns": MIXED, "bins": 4, "label_range": (-1.0, 3.0)}
    return cls(**parameters | changed)


def all_records(bins: int, classes: int) -> list[tuple[Floats, float]]:
    """Return a record for each choice of ends of bins, missing cells, values (two at once included) and labels."""
    ends = [edge for place in range(bins) for edge in (place / bins, (place + 1) / bins - 2.0**-20)]
    cells = [(end, 0.0) for end in (-0.5, *ends, 1.0, 7.0)] + [(0.9, 1.0)]
    values = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    labels = [-1.0, 0.99, 3.0, 1e300] if classes == 1 else list(range(classes))
    firsts = [-0.5, 0.0, 0.49, 1.0]
    return [
        (np.array([first, *cell, *value, one]), float(label))
        for first, cell, value, one, label in itertools.product(firsts, cells, values, (0.0, 1.0), labels)
    ]


def single(algorithm: ColumnHistograms, record: tuple[Floats, float], setting: Setting) -> Floats:
    return algorithm.statistic(ArrayRows(record[0][None], np.array([record[1]])), setting)


def farthest_apart(values: Floats) -> float:
    squares = np.square(values).sum(axis=1)
    return math.sqrt(float((squares[:, None] + squares[None] - 2.0 * values @ values.T).max()))


# ── sensitivities ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("mean_weight", "running", "classes"), spanning([0.0, 0.5, 2.0], [True, False], [1, 2, 3]))
def test_no_records_move_the_vector_by_more_than_is_stated(classes: int, running: bool, mean_weight: float) -> None:
    """By enumeration; the algorithm's own pair moves it by as much, where centred sums do not lie in bins."""
    algorithm, settings = (
        histograms(running=running, mean_weight=mean_weight),
        [setting_of(classes, relation=relation) for relation in RELATIONS],
    )
    values = np.array([single(algorithm, record, settings[0]) for record in all_records(4, classes)])
    # A null record adds nothing.
    apart = farthest_apart(np.vstack([values, np.zeros_like(values[:1])]))
    for setting, found in zip(settings, (apart, float(np.linalg.norm(values, axis=1).max())), strict=True):
        stated = algorithm.sensitivity(setting)
        assert found <= stated * (1 + 1e-12)
        assert attained(algorithm, setting) <= 1.0 + 1e-12
        assert moved(algorithm, setting, algorithm.neighbouring_pair(setting)) == pytest.approx(found, rel=2e-3)
        assert found > (0.9 if running and mean_weight else 1.0 - 1e-9) * stated


@pytest.mark.parametrize("running", [True, False])
def test_the_formulae_of_plain_counts_and_of_running_sums(running: bool) -> None:
    """Delta^2 is at most the sum of 2 w^2 |c|^2 + v^2, or of w^2 |c|^2 + v^2/4; and that where counts are plain."""
    columns = tuple(Column(at=at, missing=at + 9) for at in range(5))
    for bins, weight in itertools.product((2, 8, 64, 256), (0.0, 0.25, 3.0)):
        layout = Layout(columns, (Column(at=5, values=7),), bins, 2, None, weight > 0)
        one = Fraction(64 if running else 1)
        norm = Fraction(sum(entry**2 for entry in RunningSums(bins=bins).factor().coefficients)) if running else one
        replaced, special = (
            squared_sensitivity(layout, relation, running=running, mean_weight=weight) for relation in RELATIONS
        )
        v = (one * Fraction(weight)) ** 2
        bound = 5 * (2 * norm + v) + 2 * 2 * one**2
        assert replaced <= bound
        assert special == 5 * (norm + v / 4) + 2 * one**2
        if not running:
            assert replaced == bound
        # Where nothing is missing it is no more, and by d counted columns never more than sqrt(2d) |c|.
        never = Layout(tuple(Column(at=at) for at in range(5)), layout.categories, bins, 2, None, weight > 0)
        assert squared_sensitivity(never, RELATIONS[0], running=running, mean_weight=weight) <= replaced
        if not weight:
            assert replaced <= 2 * layout.counted * norm


def test_numbers_of_the_trial() -> None:
    """|c|^2 of 64, 128 and 1,024 bins, and q of magic04 at epsilon = 0.1 (a tenth of mu^2)."""
    assert [round(column_histograms._norm(bins, True)[1] / 4096, 2) for bins in (64, 128, 1024)] == [2.39, 2.61, 3.26]
    assert round(column_histograms._farthest(64, True)[0] / 4096, 2) == 3.64
    for bins in (2, 8, 64):
        assert column_histograms._farthest(bins, True)[0] == round(
            RunningSums(bins=bins).sensitivity(entered=0, moved=1) ** 2
        )
    assert rank_error(15_216, 11, 0.0284 * math.sqrt(0.1), 128) == pytest.approx(0.09, abs=0.01)


def test_the_number_of_bins_is_a_power_of_two_by_public_numbers() -> None:
    for rows, columns, mu in itertools.product((50, 3_000, 100_000, 10**7), (2, 20, 500), (0.001, 0.03, 1.0)):
        bins = bins_for(rows, columns, mu)
        assert 32 <= bins <= 1024
        assert bins & (bins - 1) == 0
        assert bins == 32 or bins * rank_error(rows, columns, mu, bins) <= 12.0
        assert bins_for(2 * rows, columns, mu) >= bins


@pytest.mark.parametrize("mean_weight", [0.0, 0.5])
@pytest.mark.parametrize("most", [3, 7, 64])
def test_all_rows_of_a_person_move_it_by_no_more_than_a_row(mean_weight: float, most: int) -> None:
    random, algorithm = np.random.default_rng(most), histograms(mean_weight=mean_weight)
    setting, special = (setting_of(2, 3, relation, per_person=most) for relation in RELATIONS)
    records = all_records(4, 2)

    def person(count: int) -> Floats:
        chosen = [records[place] for place in random.integers(0, len(records), count)]
        rows = ArrayRows(
            np.array([cells for cells, _ in chosen]),
            np.array([label for _, label in chosen]),
            2,
            np.full(count, count),
            people=3,
        )
        return algorithm.statistic(rows, setting)

    for _ in range(60):
        one, other = (person(int(random.integers(1, most + 1))) for _ in range(2))
        assert np.linalg.norm(one - other) <= algorithm.sensitivity(setting) * (1 + 1e-12)
        assert np.linalg.norm(one) <= algorithm.sensitivity(special) * (1 + 1e-12)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("rows", [1, 2, 3, 100, 1000])
def test_persons_of_equal_rows_are_protected_as_a_row_is_and_no_better(relation: Neighbours, rows: int) -> None:
    """The claim of an audit: between 1 - 2^-10 and 1 of what a record moves; exact where k divides U."""
    algorithm, setting = histograms(), setting_of(2, 3, relation, per_person=1000)
    pair = of_people(algorithm.neighbouring_pair(setting), rows)
    share = moved(algorithm, setting, pair) / algorithm.sensitivity(setting)
    unit = algorithm.units(setting)
    assert share == pytest.approx(rows * (unit // rows) / unit, rel=1e-12)
    assert 1 - 2.0**-10 <= share <= 1 + 1e-12


def test_cells_are_cut_towards_zero_and_null_records_add_nothing() -> None:
    algorithm, setting = histograms(mean_weight=0.5), setting_of(2, 9, per_person=3)
    parts = algorithm.layout(setting).parts
    for cell in (0.0, 0.1, 0.499, 0.501, 0.9, 1.0):
        row = np.array([cell, cell, 0.0, 1.0, 0.0, 0.0])
        three = ArrayRows(np.tile(row, (3, 1)), np.zeros(3), 8, np.full(3, 3), people=9)
        sums = parts(algorithm.contribution(algorithm.initial(setting), three, setting).astype(float))[2]
        exact = 3 * (algorithm.units(setting) // 3) * 32 * (cell - 0.5)
        assert np.all(np.abs(sums) <= abs(exact))
        assert np.abs(sums - exact).max() < 3
    features = np.tile([0.3, 0.3, 0.0, 1.0, 0.0, 1.0], (4, 1))
    features[1, 5], features[2, 0] = np.nan, np.inf
    labels = np.array([NULL_LABEL, 0.0, 1.0, 0.5])
    nothing = algorithm.contribution(algorithm.initial(setting), ArrayRows(features, labels), setting)
    assert not nothing.any()


# ── what is counted ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_counts_of_a_table_by_hand() -> None:
    """Ties on edges lie above them, end bins clip, a row of two values is counted once, missing outside the order."""
    rows = np.array(
        [
            # number, number, is missing, category of two, of one
            [0.0, -3.0, 0.0, 1.0, 0.0, 0.0],
            [0.25, 0.24, 0.0, 0.0, 1.0, 1.0],
            [0.25, 5.0, 0.0, 1.0, 1.0, 1.0],
            [1.0, 0.75, 0.0, 0.0, 0.0, 1.0],
            [0.74, 0.3, 1.0, 0.0, 0.4, 0.0],
        ]
    )
    labels = np.array([0, 1, 1, 1, 0])
    expected_lines = np.array([[1, 3, 4, 5], [2, 2, 2, 4]])
    for running, mean_weight in itertools.product((True, False), (0.0, 0.5)):
        algorithm, setting = histograms(running=running, mean_weight=mean_weight), setting_of(rows=5)
        exact = algorithm.contribution(algorithm.initial(setting), ArrayRows(rows, labels), setting)
        lines, missing, centred, of_two, of_one, classes = algorithm.layout(setting).parts(
            algorithm.result(exact, setting).values
        )
        assert lines.reshape(2, 4) == pytest.approx(expected_lines, abs=1e-9)
        assert (missing.tolist(), of_two.tolist(), of_one.tolist()) == ([1.0], [2.0, 1.0, 2.0], [3.0, 2.0])
        assert classes.tolist() == [2.0, 3.0]
        if mean_weight:
            assert centred == pytest.approx([2.24 - 2.5, 0.0 + 0.24 + 1.0 + 0.75 - 2.0], abs=0.01)
    real = histograms()
    values = real.result(
        real.contribution(
            real.initial(setting_of(1)), ArrayRows(rows, np.array([-1.0, 0.0, 3.0, np.inf, np.nan])), setting_of(1)
        ),
        setting_of(1),
    ).values
    assert real.layout(setting_of(1)).parts(values)[0].reshape(3, 4)[2] == pytest.approx([1, 2, 2, 4], abs=1e-9)


def test_bins_nest_and_no_edge_is_rounded(random: np.random.Generator) -> None:
    cells = np.concatenate([random.random(1000), np.arange(1025) / 1024, np.nextafter(np.arange(1, 1025) / 1024, 0.0)])
    fine = bins_of(cells, 1024)
    for bins in (512, 64, 2):
        assert np.array_equal(bins_of(cells, bins), fine // (1024 // bins))


def test_descriptions_are_json_and_wrong_ones_are_refused() -> None:
    spec = AlgorithmSpec("evaluators", "column-histograms", {"budget": ONE, "columns": MIXED})
    assert spec.build() == histograms(bins=64, label_range=None)
    assert columns_of(None, 3) == (Column(at=0), Column(at=1), Column(at=2))
    for columns, said in (
        ([], "^0 columns.*5"),
        ([{"at": 6}], "feature 6.*6"),
        ([{"at": 5, "values": 2}], "feature 6"),
        ([{"at": 0, "values": 0}], "^values.*0"),
        ([{"at": 0, "values": 2, "missing": 3}], "^missing.*3"),
        ([{"at": 0, "kind": 1}], "'kind'"),
        ([{"values": 2}], r"\{'values': 2\}"),
        ([{"at": -1}], "^at.*-1"),
    ):
        with pytest.raises(ParameterError, match=said):
            histograms(columns=columns).guarantee(setting_of())
    for changed, said in (
        ({"bins": 48}, "bins.*48"),
        ({"bins": 2048}, "1024"),
        ({"mean_weight": 0.3}, "1/64"),
        ({"label_range": (1.0, 1.0)}, "label_range"),
    ):
        with pytest.raises(ParameterError, match=said):
            histograms(**changed)
    with pytest.raises(ParameterError, match="64-bit"):
        histograms(mean_weight=64.0).guarantee(setting_of(rows=2**30, per_person=1024))


def test_two_parties_vectors_add_up_and_blocks_do_not_matter(random: np.random.Generator) -> None:
    rows, labels = random.random((60, FEATURES)), random.integers(0, 2, 60)
    algorithm, setting = histograms(mean_weight=0.5), setting_of(rows=60)
    state = algorithm.initial(setting)
    whole = algorithm.contribution(state, ArrayRows(rows, labels), setting)
    for block in (1, 7):
        parts = [ArrayRows(rows[part], labels[part], block) for part in (slice(20), slice(20, None))]
        assert np.array_equal(whole, sum(algorithm.contribution(state, part, setting) for part in parts))


# ── mutants ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class WithoutCategories(ColumnHistograms):
    """A mutant: d counts numbers alone."""

    def sensitivity(self, setting: Setting) -> float:
        layout = self.layout(setting)
        bare = Layout(layout.numbers, (), layout.bins, 0, layout.label_range, layout.centred)
        squared = squared_sensitivity(bare, setting.neighbours, running=self.running, mean_weight=self.mean_weight)
        return math.sqrt(squared)


class ThroughAll(ColumnHistograms):
    """A mutant: one factor through the bins of all columns."""

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        layout = self.layout(setting)
        size = layout.lines * layout.bins
        vector = super(ColumnHistograms, self).contribution(state, rows, setting)
        return np.concatenate([RunningSums(bins=size).encode(vector[:size]), self.weight * vector[size:]])


class EdgesFromRows(ColumnHistograms):
    """A mutant: bins are parts of what the rows' cells reach to."""

    def of_block(self, features: Floats, labels: Any, parts: Ints, setting: Setting) -> Ints:
        return super().of_block(features / features.max(initial=1e-9), labels, parts, setting)


class WithoutMeans(ColumnHistograms):
    """A mutant: sums of cells are for nothing."""

    def sensitivity(self, setting: Setting) -> float:
        layout = self.layout(setting)
        return math.sqrt(squared_sensitivity(layout, setting.neighbours, running=self.running, mean_weight=0.0))


class NullForReplaced(ColumnHistograms):
    """A mutant: what a record moves against nothing, where one is replaced."""

    def sensitivity(self, setting: Setting) -> float:
        layout = self.layout(setting)
        return math.sqrt(
            squared_sensitivity(layout, Neighbours.REPLACE_SPECIAL, running=self.running, mean_weight=self.mean_weight)
        )


class HalfTheNoise(ColumnHistograms):
    """A mutant."""

    def distribution(self, setting: Setting) -> RoundedGaussian:
        return RoundedGaussian(super().distribution(setting).sigma / 2.0)


@pytest.mark.parametrize(
    ("mutant", "changed"),
    [
        (WithoutCategories, {}),
        (WithoutCategories, {"running": False}),
        (NullForReplaced, {}),
        (WithoutMeans, {"mean_weight": 2.0}),
    ],
)
def test_a_sensitivity_that_is_too_small_is_exceeded(mutant: type[ColumnHistograms], changed: dict[str, Any]) -> None:
    assert attained(histograms(mutant, **changed), setting_of()) > 1.1
    assert attained(histograms(**changed), setting_of()) <= 1.0 + 1e-12


def test_one_factor_through_all_columns_moves_by_more_where_all_cells_of_a_row_are_missing() -> None:
    """Ten numbers of 64 bins that can be missing, and the classes: by a third more than is booked."""
    columns = [{"at": at, "missing": 10 + at} for at in range(10)]
    setting = setting_of(dimension=20)
    all_there, all_missing = np.zeros(20), np.zeros(20)
    all_missing[10:] = 1.0
    for relation, right in (
        (Neighbours.REPLACE_ONE, all_missing),
        (Neighbours.REPLACE_SPECIAL, all_missing),
    ):
        setting = setting_of(dimension=20, relation=relation)
        pair = one_row_apart(setting, all_there, right, labels=(0, 1))
        mutant, sound = (
            moved(made, setting, pair) / made.sensitivity(setting)
            for made in (histograms(cls, columns=columns, bins=64) for cls in (ThroughAll, ColumnHistograms))
        )
        assert mutant > 1.3
        assert sound <= 1.0 + 1e-12


def test_edges_from_rows_move_other_rows_into_other_bins() -> None:
    setting = setting_of(rows=30)
    rows = np.tile([0.4, 0.4, 0.0, 0.0, 0.0, 0.0], (30, 1))
    other = rows.copy()
    other[0, :2] = 0.99
    sound, mutant = (
        float(
            np.linalg.norm(
                np.subtract(*(algorithm.statistic(ArrayRows(each, np.zeros(30)), setting) for each in (rows, other)))
            )
        )
        / algorithm.sensitivity(setting)
        for algorithm in (histograms(), histograms(EdgesFromRows))
    )
    assert sound <= 1.0 + 1e-12
    assert mutant > 3.0


def test_portions_that_are_rounded_up_are_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: a person's rows add U/k rounded up."""
    setting, algorithm = setting_of(rows=3, per_person=7), histograms()
    pair = of_people(algorithm.neighbouring_pair(setting), 7)
    assert moved(algorithm, setting, pair) <= algorithm.sensitivity(setting) * (1 + 1e-12)

    def up(unit: int, shares: Ints, count: int) -> Ints:
        return np.asarray(-(-unit // shares))

    monkeypatch.setattr("dpalgos.evaluators.noisy_sums.portions", up)
    assert moved(algorithm, setting, pair) > algorithm.sensitivity(setting) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("cls", "verdict"),
    [
        (ColumnHistograms, Verdict.TIGHT),
        (HalfTheNoise, Verdict.VIOLATES),
        (WithoutCategories, Verdict.VIOLATES),
        (NullForReplaced, Verdict.VIOLATES),
    ],
)
def test_the_audit_is_tight_and_catches_the_mutants(cls: type[ColumnHistograms], verdict: Verdict) -> None:
    """At a confidence of 1 - 1e-9, from 100,000 runs whose sums have a known likelihood ratio."""
    report = audit_algorithm(
        [(histograms(cls), setting_of(rows=16))],
        AuditOptions(delta=0.05, trials=100_000, confidence=1 - 1e-9),
        name=cls.__name__,
        kind="evaluators",
    )
    assert report.verdict is verdict, report


# ── the noise ────────────────────────────────────────────────────────────────────────────────────────────────────────


BINS = 16


def released(
    algorithm: ColumnHistograms, rows: ArrayRows, setting: Setting, run: int, stated: ColumnHistograms | None = None
) -> ColumnCounts:
    """Return the counts of one release; by the noise of the ``stated`` algorithm."""
    values = run_sums(algorithm, [rows], setting, TrustedSummation(KeyedNoise(bytes(32), str(run)))).values
    return ColumnCounts.of_release(values, stated or algorithm, setting)


def table(rows: int = 300) -> tuple[ArrayRows, Setting]:
    random = np.random.default_rng(2)
    features = random.random((rows, FEATURES)) ** 2
    features[:, 2] = features[:, 2] > 0.5
    return ArrayRows(features, random.integers(0, 2, rows)), setting_of(rows=rows)


def exact_counts(algorithm: ColumnHistograms, rows: ArrayRows, setting: Setting) -> ColumnCounts:
    values = algorithm.result(algorithm.contribution(algorithm.initial(setting), rows, setting), setting).values
    return ColumnCounts.of_release(values, algorithm, setting)


def whitened(counts: Sequence[ColumnCounts], exact: ColumnCounts) -> Floats:
    """Return errors of releases over what is stated of their noise: independent, of variance 1."""
    errors = []
    for count in counts:
        root = np.linalg.cholesky(count.covariance)
        errors.append(np.linalg.solve(root, (count.sums - exact.sums).T).ravel())
        others = zip(
            (count.missing[1:], *count.categories, count.classes),
            (exact.missing[1:], *exact.categories, exact.classes),
            strict=True,
        )
        errors += [(mine - its) / count.deviation for mine, its in others]
        if len(count.centred):
            errors.append((count.centred - exact.centred) / count.centred_deviation)
    return np.concatenate(errors)


def rejected(errors: Floats) -> bool:
    """Whether the stated noise is refuted: of white errors the sum of squares is chi-squared; 1e-9."""
    share = scipy.stats.chi2.cdf(float(np.square(errors).sum()), errors.size)
    return not 5e-10 < share < 1 - 5e-10


@pytest.mark.parametrize("running", [True, False])
def test_the_noise_of_everything_has_the_covariance_that_is_stated(running: bool) -> None:
    """Some 19,000 whitened errors: five per cent more or less are told apart, and so is half the noise."""
    algorithm = histograms(running=running, mean_weight=1.0, bins=BINS)
    rows, setting = table()
    exact = exact_counts(algorithm, rows, setting)
    errors = whitened([released(algorithm, rows, setting, run) for run in range(450)], exact)
    assert not rejected(errors)
    assert rejected(errors * 1.05)
    assert rejected(errors / 1.05)
    mutant = histograms(HalfTheNoise, running=running, mean_weight=1.0, bins=BINS)
    assert rejected(whitened([released(mutant, rows, setting, run, algorithm) for run in range(50)], exact))


def test_coarser_bins_are_part_of_finer_ones() -> None:
    rows, setting = table()
    fine, coarse = (histograms(bins=bins, mean_weight=0.5) for bins in (BINS, 4))
    exact = exact_counts(fine, rows, setting).coarser(4)
    same = exact_counts(coarse, rows, setting)
    assert exact.sums == pytest.approx(same.sums, abs=1e-9)
    assert exact.layout == same.layout
    errors = whitened([released(fine, rows, setting, run).coarser(4) for run in range(200)], exact)
    assert not rejected(errors)
    with pytest.raises(ParameterError, match=r"^bins.*3"):
        exact.coarser(3)


def test_several_releases_combine_at_the_coarsest_bins_with_the_noise_that_is_stated() -> None:
    """Running sums in 16 bins, others in 8 at a third of the noise, plain counts in 32: less noise than any of them."""
    rows, setting = table()
    some = [
        histograms(bins=16, mean_weight=0.5),
        histograms(bins=8, budget=GaussianMu(3.0)),
        histograms(bins=32, running=False, mean_weight=1.0),
    ]
    exact = exact_counts(some[0], rows, setting).coarser(8)
    found = [
        combined([released(one, rows, setting, 10 * run + place) for place, one in enumerate(some)])
        for run in range(500)
    ]
    errors = whitened(found, exact)
    assert not rejected(errors)
    assert rejected(errors * 1.08)
    assert rejected(errors / 1.08)
    alone = [released(one, rows, setting, 1).coarser(8) for one in some]
    for one in alone:
        assert np.all(np.linalg.eigvalsh(one.covariance - found[0].covariance) > -1e-9)
        assert found[0].deviation < one.deviation


def test_releases_of_equal_shape_are_weighed_by_one_over_sigma_squared() -> None:
    rows, setting = table()
    loud, quiet = (released(histograms(budget=GaussianMu(mu)), rows, setting, 3) for mu in (1.0, 2.0))
    both = combined([loud, quiet])
    weights = np.array([1 / loud.deviation**2, 1 / quiet.deviation**2])
    assert weights[1] / weights[0] == pytest.approx(4.0, rel=1e-3)
    for name in ("sums", "missing", "classes"):
        expected = np.average([getattr(loud, name), getattr(quiet, name)], axis=0, weights=weights)
        assert getattr(both, name) == pytest.approx(expected, abs=1e-8)
    assert both.covariance == pytest.approx(loud.covariance * weights[0] / weights.sum(), rel=1e-9)
    alone = combined([loud])
    assert alone.sums == pytest.approx(loud.sums)
    with pytest.raises(ParameterError, match=r"300 rows.*7 rows"):
        combined([loud, replace(quiet, rows=7)])
    with pytest.raises(ParameterError, match=r"^releases"):
        combined([])


def test_noise_of_several_parties_is_stated() -> None:
    algorithm = histograms(mean_weight=0.5)
    louder = replace(setting_of(rows=9), noise_factor=1.5, trust=Trust.LOCAL)
    size = algorithm.sum_shape(louder)
    one, other = (ColumnCounts.of_release(np.zeros(size), algorithm, of) for of in (setting_of(rows=9), louder))
    assert other.deviation == pytest.approx(1.5 * one.deviation)
    assert other.covariance == pytest.approx(2.25 * one.covariance)
    assert other.centred_deviation == pytest.approx(1.5 * one.centred_deviation)


def test_sums_are_bent_to_rise_and_rare_values_are_named() -> None:
    rows, setting = table()
    for run in range(20):
        counts = released(histograms(budget=GaussianMu(0.05)), rows, setting, run)
        shares = counts.shares_below()
        assert np.all(np.diff(shares, axis=1) >= 0)
        assert np.all(shares[:, 0] == 0)
        assert np.all(shares[:, -1] == 1)
    exact = exact_counts(histograms(bins=4), rows, setting)
    assert exact.shares_below()[:, 1:] == pytest.approx(exact.sums / exact.totals[:, None])
    few = replace(exact, categories=(np.array([2.9, 3.1, 0.0]), np.array([-5.0, 1.0])), deviation=1.0)
    assert [one.tolist() for one in few.rare()] == [[1.0, 0.0], [1.0]]
    nothing = replace(exact, sums=-exact.sums)
    assert nothing.shares_below()[0] == pytest.approx([0, 0.25, 0.5, 0.75, 1])


@pytest.mark.parametrize("name", names("trusts"))
def test_all_trust_models_release_the_sum_of_all_parties_with_the_noise_that_is_stated(name: str) -> None:
    """Three parties of 100 rows each, or one where each has a release of its own."""
    model = lookup("trusts", name)()
    rows, _ = table()
    parties = [ArrayRows(rows.features[start::3], rows.labels[start::3]) for start in range(3)]
    setting = replace(setting_of(), sizes=(100, 100, 100), trust=name, noise_factor=model.noise_factor(3), classes=2)
    algorithm = histograms(mean_weight=0.5)
    model.require(algorithm, setting)
    assert model.guarantee(algorithm, setting).losses[:1] == (ONE,)
    contributors = model.noise_contributors(("0", "1", "2"))
    exact = exact_counts(algorithm, rows, setting)
    errors = []
    for run in range(30):
        noises = [KeyedNoise(bytes(32), f"{run}/{contributor}") for contributor in contributors]
        summation = model.summation(algorithm, setting, noises, str(run), None)
        values = run_sums(algorithm, parties, setting, summation).values
        errors.append(whitened([ColumnCounts.of_release(values, algorithm, setting)], exact))
    assert not rejected(np.concatenate(errors)), name


def test_units_beyond_the_whole_numbers_of_float64_are_all_counted() -> None:
    """Of 2⁵³ + 1 units of two rows in the same cells a sum in float64 loses the last one."""
    algorithm = ColumnHistograms(budget=GaussianMu(1.0), columns=[Column(at=0), Column(at=1, values=2)], bins=4)
    setting = setting_of(dimension=3)
    block = np.array([[0.1, 1.0, 0.0], [0.1, 1.0, 0.0]])
    counts = algorithm.of_block(block, np.array([1, 1]), np.array([2**53, 1]), setting)
    assert sorted(set(counts.tolist())) == [0, 2**53 + 1]
    np.testing.assert_array_equal(counted_cells(np.array([[0, 2], [0, 1]]), np.array([2**53, 1]), (3,))[:1], 2**53 + 1)
