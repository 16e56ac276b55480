"""Intervals and sets from noisy counts: one test's level, what the scan promises, and the scans that break it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.conformal import (
    HeldOut,
    HeldOutErrors,
    HeldOutScores,
    Paid,
    Tails,
    UnreachableError,
    chances,
    margins,
    scan,
)
from dpalgos.error_margins import ErrorCounts
from dpalgos.evaluators.error_distribution import ErrorDistribution
from dpalgos.evaluators.score_distribution import edges
from dpalgos.guarantees import GaussianMu, Neighbours, Setting
from dpalgos.mechanisms.running_sums import RunningSums
from dpalgos.parameters import ParameterError
from dpalgos.rows import ArrayRows, Floats

RUNS, LEAST = 10_000, 9_369
PER_OCTAVE = 8
BINS = 16 * PER_OCTAVE + 1
EDGES = np.concatenate([2.0 ** (-np.arange(1, BINS) / PER_OCTAVE), [0.0]])
UNIT = RunningSums(bins=BINS).covariance()
DELTA = 1e-6


@dataclass(frozen=True)
class Law:
    """Of the noise of a release of so many rows at an epsilon."""

    rows: int
    epsilon: float
    relation: Neighbours = Neighbours.REPLACE_ONE

    @property
    def mu(self) -> float:
        return mu_from_epsilon_delta(self.epsilon, DELTA)

    @property
    def evaluator(self) -> ErrorDistribution:
        return ErrorDistribution(budget=GaussianMu(self.mu), parts=PER_OCTAVE)

    @property
    def setting(self) -> Setting:
        return Setting(sizes=(self.rows,), dimension=1, classes=0, neighbours=self.relation)


Draw = Callable[[np.random.Generator, int], Floats]
LAWS: dict[str, Draw] = {
    "normal": lambda random, rows: 0.02 * random.standard_normal(rows),
    "heavy tails": lambda random, rows: 0.01 * random.standard_t(2, rows),
    "skewed": lambda random, rows: 0.01 * (random.lognormal(size=rows) - 2.0),
    "spikes": lambda random, rows: random.choice([-0.3, -0.01, 0.0, 0.0, 0.02, 0.02, 0.25], rows),
    "constant": lambda random, rows: np.full(rows, 0.1),
    # A little more than α/2 beyond many edges, on either side.
    "plateau": lambda random, rows: random.choice([-0.9, -1e-5, 1e-5, 0.9], rows, p=[0.0502, 0.4498, 0.4498, 0.0502]),
}


def test_so_many_of_the_runs_are_six_deviations_below_what_is_claimed() -> None:
    assert binom.cdf(LEAST - 1, RUNS, 0.95) <= 4e-9


def places(errors: Floats) -> NDArray[np.int64]:
    """Return the bin of each error, by its size from the largest inwards."""
    return np.minimum(np.searchsorted(-EDGES, -np.abs(errors)), BINS - 1)


@cache
def profile(draw: Draw, wider: float = 1.0) -> Floats:
    """Return the probability of each bin, (2, bins), by a million draws that stand for the law from here on.

    The range is declared ``wider`` than that of the errors.
    """
    errors = np.clip(draw(np.random.default_rng(11), 1_000_000) / wider, -1.0, 1.0)
    lines: list[NDArray[np.int64]] = [
        np.bincount(places(errors[side]), minlength=BINS) for side in (errors >= 0, errors < 0)
    ]
    return np.stack(lines) / len(errors)


def released(random: np.random.Generator, of: Floats, law: Law, runs: int = RUNS) -> tuple[Floats, Floats]:
    """Return noisy running sums (runs, 2, bins) of rows of a law of errors, and their noisy totals (runs,)."""
    counts = random.multinomial(law.rows, of.ravel(), size=runs).reshape(runs, 2, BINS)
    entry, of_total = noise_of(law)
    noise, of_totals = drawn_noise(runs)
    return np.cumsum(counts, axis=2) + entry * noise, law.rows + of_total * of_totals


@cache
def drawn_noise(runs: int) -> tuple[Floats, Floats]:
    """Return noise of running sums (runs, 2, bins) and of totals (runs,), of deviation 1: rows are drawn again."""
    random = np.random.default_rng(runs)
    noise = random.standard_normal((runs, 2, BINS)) @ np.linalg.cholesky(UNIT).T
    return np.asarray(noise), random.standard_normal(runs)


def noise_of(law: Law) -> tuple[float, float]:
    """Return the deviations of an entry of the factor and of the total, in rows."""
    entry = law.evaluator.deviation(law.setting)
    return entry, entry * law.evaluator.units(law.setting) / law.evaluator.weights(law.setting)[0]


def errors_of(sums: Floats, total: float, law: Law) -> HeldOutErrors:
    entry, of_total = noise_of(law)
    return HeldOutErrors(
        sums=sums,
        noise=entry,
        edges=EDGES,
        total=total,
        total_noise=of_total,
        label_range=(0.0, 1.0),
        held_out=HeldOut(count=law.rows),
        paid=Paid(mu=law.mu, delta=DELTA),
    )


def from_outside(passes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many edges are passed before the first that is not."""
    return np.asarray(np.where(passes.all(axis=1), passes.shape[1], np.argmin(passes, axis=1)))


def from_inside(passes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many edges lie outside the innermost that passes."""
    return np.asarray(np.where(passes.any(axis=1), passes.shape[1] - np.argmax(passes[:, ::-1], axis=1), 0))


Scan = Callable[[NDArray[np.bool_]], NDArray[np.int64]]


def covered(
    sums: Floats,
    totals: Floats,
    law: Law,
    of: Floats,
    coverage: float,
    *,
    scanning: Scan = from_outside,
    factor: float | None = None,
) -> tuple[NDArray[np.bool_], Floats]:
    """Return in which runs a new row is covered as claimed, and how far the intervals reach, (runs, 2).

    Parameters
    ----------
    scanning : callable
    factor : float, optional
        Margins of so many deviations of the noise, in place of those of noise and rows together.
    """
    missed, first = 1.0 - coverage, errors_of(sums[0], totals[0], law)
    beyond = np.zeros(len(sums))
    reached = np.zeros((len(sums), 2))
    if first.sides(coverage) == 1:
        lines: list[tuple[Floats, Floats, Tails, float, float, tuple[int, ...]]] = [
            (sums.sum(axis=1), np.cumsum(of.sum(axis=0)), first._symmetric(), missed, 0.05, (0, 1))
        ]
    else:
        lines = [
            (sums[:, side], np.cumsum(of[side]), tails, missed / 2.0, 0.025, (side,))
            for side, tails in enumerate((first._above(), first._below()))
        ]
    for counts, running, tails, share, level, sides in lines:
        deviations = tails.deviations(share)
        needed = factor * deviations if factor else margins(share, level, deviations, first.held_out)
        passed = scanning(counts - share * totals[:, None] <= -needed)
        beyond += np.concatenate([[0.0], running])[passed]
        for side in sides:
            reached[:, side] = np.concatenate([[1.0], EDGES])[passed]
    return beyond <= missed + 1e-12, reached


_SPECIAL = Neighbours.REPLACE_SPECIAL
# Half of the pairs by day, those among them that notice shares of one side and noise that is halved.
DAY = {
    Law(300, 8.0): ("normal", "skewed", "plateau"),
    Law(1_638, 1.0): ("heavy tails", "spikes", "plateau"),
    Law(20_000, 0.1): ("normal", "skewed", "constant"),
}
NIGHT = [
    *((Law(rows, 1.0), 1.0) for rows in (300, 1_321, 4_128, 20_000, 100_000)),
    *((Law(rows, 0.1), 1.0) for rows in (4_128, 100_000)),
    *(
        (Law(rows, epsilon), wider)
        for rows, epsilon in ((300, 8.0), (4_128, 1.0), (100_000, 1.0))
        for wider in (10.0, 100.0)
    ),
    *((Law(rows, epsilon, _SPECIAL), 1.0) for rows, epsilon in ((300, 4.0), (1_638, 1.0), (20_000, 0.1))),
]


@pytest.mark.parametrize(
    ("law", "wider", "name"),
    [
        pytest.param(law, wider, name, marks=[pytest.mark.nightly] * (name not in DAY.get(law, ()) or wider != 1.0))
        for law, wider in [*((law, 1.0) for law in DAY), *NIGHT]
        for name in LAWS
    ],
    ids=str,
)
def test_a_new_row_is_covered_in_the_runs_that_are_claimed(law: Law, wider: float, name: str) -> None:
    """False alarm 4e-9 for each; over all runs, also those whose scan stops at its first edge."""
    of = profile(LAWS[name], wider)
    good, _ = covered(*released(np.random.default_rng(law.rows), of, law), law, of, 0.9)
    assert good.sum() >= LEAST


@pytest.mark.parametrize(("law", "sides"), [(Law(4_128, 1.0), 2), (Law(4_128, 0.1), 1)])
def test_the_runs_are_scanned_as_intervals_are(law: Law, sides: int) -> None:
    of = profile(LAWS["skewed"])
    sums, totals = released(np.random.default_rng(3), of, law, runs=20)
    _, reached = covered(sums, totals, law, of, 0.9)
    for one, total, (above, below) in zip(sums, totals, reached, strict=True):
        found = errors_of(one, total, law)
        assert found.sides(0.9) == sides
        assert found.distances(0.9) == (below, above)


@pytest.mark.parametrize(
    ("law", "mutant"),
    [(Law(4_128, 1.0), {"scanning": from_inside}), (Law(20_000, 8.0), {"factor": 1.96})],
    ids=["from the inside", "ranks moved by the noise alone"],
)
def test_other_scans_are_caught(law: Law, mutant: dict[str, Any]) -> None:
    of = profile(LAWS["plateau"])
    sums, totals = released(np.random.default_rng(5), of, law)
    assert covered(sums, totals, law, of, 0.9)[0].sum() >= LEAST
    assert covered(sums, totals, law, of, 0.9, **mutant)[0].sum() < LEAST


# With 1,321 rows, intervals of Student's t with two degrees of freedom and of lognormal errors are some 1.4 times as
# wide: there noise and sampling take a quarter of the share that may be missed.
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        (name, rows)
        for name in ("normal", "heavy tails", "skewed")
        for rows in (1_321, 1_638, 4_128, 20_000)
        if name == "normal" or rows > 1_321
    ],
)
def test_intervals_are_hardly_wider_than_exact_ones(name: str, rows: int) -> None:
    """The median width at ε = 1, next to that of the exact conformal interval with the same choice of sides."""
    of, law = profile(LAWS[name]), Law(rows, 1.0)
    sums, totals = released(np.random.default_rng(8), of, law, runs=1_000)
    _, reached = covered(sums, totals, law, of, 0.9)
    errors = LAWS[name](np.random.default_rng(9), 1_000_000)
    if errors_of(sums[0], totals[0], law).sides(0.9) == 1:
        exact = 2.0 * float(np.quantile(np.abs(errors), math.ceil((rows + 1) * 0.9) / rows))
    else:
        rank = math.ceil((rows + 1) * 0.95) / rows
        exact = float(np.quantile(errors, rank) - np.quantile(errors, 1.0 - rank))
    assert float(np.median(reached.sum(axis=1))) <= 1.3 * exact


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("noise", [0.0, 0.2, 0.6, 1.0, 5.0])
def test_the_bound_holds_for_any_number_of_rows_that_are_counted(share: float, noise: float) -> None:
    count = 300
    deficits = -np.linspace(0.5, 40.0, 160)
    bound = chances(deficits, share, np.full(160, noise), HeldOut(count=count))
    found = np.zeros(160)
    for rows in range(count + 1):
        hits = np.arange(rows + 1)
        beyond = deficits[:, None] - hits + share * rows
        reached = beyond >= -1e-9 if noise == 0 else _normal(beyond / noise)
        found = np.maximum(found, reached @ binom.pmf(hits, rows, share))
    # Where it decides: levels are 0.05 at most.
    decides = found <= 0.06
    assert decides.any()
    assert (bound[decides] >= found[decides] - 1e-9).all()


def _normal(values: Floats) -> Floats:
    from scipy.special import ndtr

    return np.asarray(ndtr(values))


@pytest.mark.parametrize("noise", [0.0, 3.0, 20.0])
@pytest.mark.parametrize("share", [0.05, 0.2])
def test_the_bound_of_people_holds_for_whole_persons_and_is_not_much_wider(noise: float, share: float) -> None:
    """Persons whose weight is all on one side of the edge are binomial, the widest case."""
    deficits = -np.linspace(0.0, 90.0, 91)
    people = chances(deficits, share, np.full(91, noise), HeldOut(count=1_000, people=True))
    rows = chances(deficits, share, np.full(91, noise), HeldOut(count=1_000))
    assert (people >= np.minimum(rows, 1.0) - 1e-9).all()
    level = 0.025
    needed = [margins(share, level, np.array([noise]), HeldOut(count=1_000, people=kind))[0] for kind in (False, True)]
    # sqrt(2 ln 40) = 2.72 deviations in place of 1.96, of the rows' part alone.
    assert needed[0] < needed[1] <= 1.45 * needed[0]


@pytest.mark.parametrize(
    ("people", "noise", "runs"),
    [(800, 6.0, 4_000), *(pytest.param(*one, RUNS, marks=pytest.mark.nightly) for one in ((300, 0.0), (5_000, 20.0)))],
)
def test_people_are_covered_by_persons(people: int, noise: float, runs: int) -> None:
    """Persons of 1 to 20 rows whose errors hang together; coverage weighs each person alike. False alarm 1e-9."""
    random, share = np.random.default_rng(21), 0.05
    wrong = 0
    held_out = HeldOut(count=people, people=True)
    (needed,) = margins(share, 0.025, np.array([noise]), held_out)
    for _ in range(runs):
        # With the probability of the worst edge: a little more than the share.
        rows = random.integers(1, 21, people)
        own = random.beta(0.05, 0.95, people)
        beyond = random.binomial(rows, own) / rows
        wrong += beyond.sum() - share * people + noise * random.standard_normal() <= -needed
    assert wrong <= binom.isf(1e-9, runs, 0.025)


def scores_released(
    random: np.random.Generator, counts: NDArray[np.int64], sigma: float, bins: int
) -> tuple[Floats, Floats]:
    """Return noisy running sums (scores, 2, bins) and their covariance (2, bins, bins)."""
    covariance = sigma**2 * RunningSums(bins=bins).covariance()
    root = np.linalg.cholesky(covariance)
    noisy = np.cumsum(counts, axis=-1) + random.standard_normal(counts.shape) @ root.T
    return np.asarray(noisy), np.stack([covariance, covariance])


_OF_SETS = [400, pytest.param(RUNS, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("runs", _OF_SETS)
@pytest.mark.parametrize("rare", [0.5, 0.1])
def test_both_of_two_classes_are_in_their_sets_as_claimed(rare: float, runs: int) -> None:
    """False alarm 1e-9; the law of the scores is that of the bins' edges, exactly normal."""
    random, bins, rows = np.random.default_rng(31), 32, 4_000
    known, good, sigma = edges(bins, 1.0), 0, 12.0
    below = np.stack([_normal(known + 1.0), _normal(known - 1.0)])
    cells = np.diff(below, prepend=0.0, append=1.0, axis=1)
    for _ in range(runs):
        own = random.binomial(rows, rare)
        counts = np.stack([random.multinomial(rows - own, cells[0]), random.multinomial(own, cells[1])])
        sums, covariance = scores_released(random, counts[None], sigma, bins)
        found = HeldOutScores(sums=sums, covariance=covariance, edges=known, held_out=HeldOut(count=rows))
        first, second = found.limits(0.9)
        good += bool(_normal(np.array(first + 1.0)) >= 0.9 and 1.0 - _normal(np.array(second - 1.0)) >= 0.9)
    assert good >= binom.ppf(1e-9, runs, 0.95)


@pytest.mark.parametrize("runs", _OF_SETS)
@pytest.mark.parametrize("people", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_each_of_several_classes_is_in_its_sets_as_claimed(runs: int, *, people: bool) -> None:
    """False alarm 1e-9. People have a row each, the widest case."""
    random, bins, rows, classes = np.random.default_rng(32), 32, 4_000, 3
    known, good, sigma = edges(bins, 1.0), 0, 6.0
    shifts, shares = np.array([-1.0, 0.0, 2.0]), np.array([0.6, 0.3, 0.1])
    cells = np.diff(_normal(known[None] - shifts[:, None]), prepend=0.0, append=1.0, axis=1)
    found_any = 0
    for _ in range(runs):
        own = random.multinomial(rows, shares)
        counts = np.zeros((classes, 2, bins), dtype=np.int64)
        for place in range(classes):
            counts[place, 1] = random.multinomial(own[place], cells[place])
            counts[place, 0] = random.multinomial(rows - own[place], cells[0])
        sums, covariance = scores_released(random, counts, sigma, bins)
        held_out = HeldOut(count=rows, people=people)
        limits = HeldOutScores(sums=sums, covariance=covariance, edges=known, held_out=held_out).limits(0.9)
        good += bool((1.0 - _normal(limits - shifts) >= 0.9).all())
        found_any += bool(np.isfinite(limits).all())
    assert good >= binom.ppf(1e-9, runs, 0.95)
    assert found_any > 0.9 * runs


def test_a_row_is_in_the_sets_of_the_classes_whose_limit_it_does_not_pass() -> None:
    bins, known = 32, edges(32, 1.0)
    counts = np.zeros((1, 2, bins))
    counts[0, 0, 4], counts[0, 1, 24] = 500.0, 500.0
    exact = HeldOutScores(
        sums=np.cumsum(counts, axis=-1),
        covariance=np.zeros((2, bins, bins)),
        edges=known,
        held_out=HeldOut(count=1_000),
    )
    first, second = exact.limits(0.9)
    assert (first, second) == (known[4], known[23])
    low, between, high = known[4], (first + second) / 2.0, known[23]
    found = exact.sets(np.array([[low], [between], [high], [high + 1e-9]]), 0.9)
    assert found.tolist() == [[True, False], [False, False], [False, False], [False, True]]


def test_a_class_without_rows_is_in_every_set() -> None:
    bins = 32
    counts = np.zeros((3, 2, bins))
    counts[0, 1, 20], counts[1, 1, 20], counts[2, 0, 5] = 500.0, 500.0, 1_000.0
    found = HeldOutScores(
        sums=np.cumsum(counts, axis=-1),
        covariance=np.zeros((2, bins, bins)),
        edges=edges(bins, 1.0),
        held_out=HeldOut(count=1_000),
    )
    assert found.limits(0.9)[2] == -math.inf
    assert found.sets(np.full((4, 3), -9.0), 0.9).tolist() == [[False, False, True]] * 4


def one_of(law: Law) -> HeldOutErrors:
    sums, totals = released(np.random.default_rng(1), profile(LAWS["normal"]), law, runs=1)
    return errors_of(sums[0], totals[0], law)


def test_what_cannot_be_reached_says_what_can_be_and_what_it_costs() -> None:
    with pytest.raises(UnreachableError, match="1,638") as refused:
        one_of(Law(1_638, 0.1)).intervals(np.zeros(3), 0.9)
    _, reached, _, needed, *_ = (float(one) for one in re.findall(r"\d\.\d+", str(refused.value)))
    # What it says is true, on both sides.
    assert one_of(Law(1_638, 0.1)).sides(reached) == 1
    with pytest.raises(UnreachableError):
        one_of(Law(1_638, 0.1)).sides(reached + 0.001)
    assert one_of(Law(1_638, needed)).sides(0.9) == 1
    with pytest.raises(UnreachableError):
        one_of(Law(1_638, needed - 0.01)).sides(0.9)


def test_more_rows_are_needed_where_no_noise_is_small_enough() -> None:
    # 0.9^28 > 0.05 >= 0.9^29.
    with pytest.raises(UnreachableError, match="29"):
        one_of(Law(20, 100.0)).intervals(np.zeros(3), 0.9)


def test_whether_it_is_two_sided_does_not_depend_on_what_was_released() -> None:
    random, law = np.random.default_rng(2), Law(4_128, 1.0)
    found = {errors_of(random.normal(0, 1e4, (2, BINS)), random.normal(0, 1e4), law).sides(0.9) for _ in range(20)}
    assert found == {2}


def test_intervals_stay_within_the_declared_range() -> None:
    found = one_of(Law(20_000, 1.0)).intervals(np.array([-676_051.0, 0.01, 0.5, 7.0]), 0.9)
    assert found.min() == 0.0
    assert found.max() == 1.0
    assert (found[:, 0] <= found[:, 1]).all()
    assert found[0, 0] == 0.0 < found[0, 1] < 0.1


def test_what_is_released_is_read_as_it_was_counted() -> None:
    """Rows through the evaluator, its noise included, and the intervals of what it released."""
    random, law = np.random.default_rng(4), Law(4_128, 8.0)
    predictions = random.uniform(0.2, 0.8, law.rows)
    labels = predictions + LAWS["normal"](random, law.rows)
    setting = replace(law.setting, classes=1)
    rows = ArrayRows(predictions[:, None], labels)
    algorithm = law.evaluator
    exact = algorithm.contribution(algorithm.initial(setting), rows, setting)
    noisy = exact + np.rint(random.normal(0.0, algorithm.distribution(setting).sigma, exact.shape)).astype(np.int64)
    counts = ErrorCounts.of_release(algorithm.result(noisy, setting).values, algorithm, setting)
    found = HeldOutErrors.of_counts(counts)
    assert math.isclose(found.noise, noise_of(law)[0], rel_tol=1e-9)
    below, above = found.distances(0.9)
    for side in (above, below):
        assert 0.02 * 1.645 <= side <= 1.3 * 0.02 * 1.645


def test_a_scan_that_passes_nothing_ends_at_the_declared_range() -> None:
    tails = Tails(counts=np.full(4, 100.0), total=100.0, covariance=np.zeros((5, 5)))
    assert scan(tails, 0.05, 0.025, HeldOut(count=100)) == 0
    found = errors_of(np.full((2, BINS), 2_000.0), 4_000.0, Law(4_000, 8.0))
    assert found.distances(0.9) == (1.0, 1.0)


@pytest.mark.parametrize("coverage", [0.0, 0.4, 1.0, math.nan, 1.5])
def test_a_coverage_is_a_share(coverage: float) -> None:
    with pytest.raises(ParameterError, match=f"{coverage}"):
        one_of(Law(20_000, 1.0)).intervals(np.zeros(2), coverage)
