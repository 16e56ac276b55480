"""Conformal prediction from noisy counts: how far a scan of nested tails may go, with a stated confidence.

*The task.* A release holds noisy counts of held-out rows in a sequence of nested tails C_1 ≤ C_2 ≤ … ≤ C_T, from the
outside inwards (rows whose error is beyond an edge, or rows of a class whose score is below one), and the noisy total
N of the rows that have a place in them. Wanted is the innermost edge such that a new row lies beyond it with a
probability of at most q.

*The scan.* At edge j the deficit D_j = C_j − q N is compared with a critical value. The scan goes from the outside
inwards, passes an edge where the probability of such a low D_j, computed as if exactly a share q lay beyond it, is at
most the level, and stops before the first edge where it is not. The result is the last edge passed.

*Claim.* Let p_j be the probability that a new row lies beyond edge j; p_j does not fall with j. The edges with p_j > q
are those from some fixed j* on, which noise and held-out rows do not move. If the result has p > q, the scan has passed
j* as well. So the probability of a wrong result is at most that of passing the one edge j*, which the test there bounds
by the level: there is no union over edges (fixed-sequence testing). This needs the direction: a scan from the inside
outwards stops at the first edge that passes, and any of the edges with p_j > q may be that one. It also needs the raw
sums: a running maximum or an isotonic fit lets later edges change the test at j*.

*The level of one test.* The noise of D_j is Gaussian with a public deviation s_j (rounded Gaussian integers through a
public linear map), independent of the rows. With p_j > q the rows' part of D_j is stochastically larger than with
p_j = q, so the bound is computed there.

- *Rows.* Given that n rows are counted, C_j is binomial. The bound is the exact probability

      P(Bin(n, q) − q n + s_j Z ≤ D) = Σ_k P(Bin(n, q) = k) Φ((D − k + q n) / s_j).

  Null records are not counted, so n is at most the public number of held-out rows, but is not known. By Jensen's
  inequality one more row raises the bound wherever the density of the sum rises, so the public number is taken for n.
  With s_j below one row the lattice of the counts shows, and the test is made as if D were higher by one row (both are
  compared with all values of n in tests).

- *People.* A person with k rows weighs 1/k in each, so one person adds a pair (w, t), 0 ≤ w ≤ t ≤ 1: the weight beyond
  the edge and the whole weight. Coverage is averaged over persons with these weights: p = E w / E t. For every θ > 0,
  exp(−θ (w − q t)) is convex in (w, t), so on the triangle with the corners (0, 0), (0, 1) and (1, 1) it is at most the
  linear function through its values there, and with E t = τ

      E exp(−θ (w − q t)) ≤ 1 + τ ψ(θ),    ψ(θ) = (1 − q) exp(θ q) + q exp(−θ (1 − q)) − 1 ≥ 0.

  So P(Σ (w − q t) ≤ −x) ≤ B(x) = min_θ (1 + τ ψ(θ))^m exp(−θ x) for m held-out persons (Chernoff), which rises with m
  and τ. The noise is not put through Chernoff's bound, it is integrated: the level bounds E min(1, B(−D + s_j Z)). The
  number of persons counts, not that of rows.

*How many are counted.* If the rows of one class are scanned, n is random and only its noisy total is known. Then an
upper confidence bound for n (for τ with people) takes a tenth of the level, and the scan the rest.

*Two sides or one.* Signed errors have two tails, each with q = α/2 and half of the level. The tail of |error|, with
q = α and the whole level, loses less to noise: its interval is symmetric. Which one is used depends on the noise, α and
the planned number of rows alone (:meth:`HeldOutErrors.sides`), never on released values.

Assumptions: held-out rows and new ones are independent draws of one distribution (for people: persons are); nothing
that the predictions rest on has read the held-out rows; one coverage at a time. The claim then holds with the stated
confidence over noise and held-out rows together.

References
----------
Vovk, "Conditional validity of inductive conformal predictors", ACML 2012 (coverage given the calibration rows);
Maurer, "On multiple comparison procedures with fixed sequences", 1995, and Bauer, Statistics in Medicine 10 (1991)
(fixed-sequence testing); Clopper, Pearson, Biometrika 26 (1934) (exact binomial limits); Angelopoulos, Bates, Fisch,
Lei, Schuster, "Conformal risk control", ICLR 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.accounting.profiles import epsilon_of_mu
from dpalgos.error_margins import ErrorCounts
from dpalgos.evaluators.score_distribution import edges
from dpalgos.mechanisms.running_sums import RunningSums
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats
from dpalgos.score_curves import ScoreSums

CONFIDENCE = 0.95
"""Of the claim, over noise and held-out rows."""
SIMULATED = 0.97
"""In so many of 2,000 simulated runs the claim held where the model rests on counts that include the held-out rows.

There these were a quarter of the rows, the counts had little noise and the errors none
(``tests/dpalgos/test_conformal_reread.py``)."""
_FOR_TOTAL = 0.1
_MOST_LOST = 1.0 / 3.0
# Below so many rows of noise the lattice of counts shows in the sum.
_SMOOTH = 1.0
_DEVIATIONS, _CELLS, _RATES, _HALVINGS = 9.0, 2_000, 4_000, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The public number of held-out rows or persons.

    Parameters
    ----------
    count : int
        Rows, or persons where ``people``; null records included, so that no more are counted.
    people : bool
        Each may have several rows, which weigh 1/k.
    """

    count: int
    people: bool = False


@dataclass(frozen=True, kw_only=True)
class Tails:
    """Noisy counts of nested tails from the outside inwards, the noisy total, and the covariance of their noise.

    Parameters
    ----------
    counts : array (T,)
    total : float
    covariance : array (T + 1, T + 1)
        Of the counts' noise and, last, of the total's.
    """

    counts: Floats
    total: float
    covariance: Floats

    def deficits(self, share: float) -> tuple[Floats, Floats]:
        """Return the counts less a share of the total, and the deviations of their noise, (T,) each."""
        return self.counts - share * self.total, self.deviations(share)

    def deviations(self, share: float) -> Floats:
        """Return the deviations (T,) of the noise of the counts less a share of the total."""
        own = np.diagonal(self.covariance)
        variance = own[:-1] - 2.0 * share * self.covariance[:-1, -1] + share**2 * own[-1]
        return np.asarray(np.sqrt(np.maximum(variance, 0.0)))

    @property
    def total_deviation(self) -> float:
        """Of the noise of the total."""
        return math.sqrt(max(float(self.covariance[-1, -1]), 0.0))


def _of_rows(deficits: Floats, share: float, deviations: Floats, count: int) -> Floats:
    """Return at least the largest P(Bin(n, share) − share n + noise ≤ deficit) over n up to ``count`` (see module)."""
    mean, spread = share * count, math.sqrt(count * share * (1.0 - share))
    first = max(math.floor(mean - _DEVIATIONS * spread - 30.0), 0)
    hits = np.arange(first, min(math.ceil(mean + _DEVIATIONS * spread + 30.0), count) + 1)
    beyond = deficits[:, None] + np.where(deviations < _SMOOTH, 1.0, 0.0)[:, None] - (hits - mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        reached = np.where(deviations[:, None] > 0, scipy.special.ndtr(beyond / deviations[:, None]), beyond >= -1e-9)
    return np.asarray(reached @ scipy.stats.binom.pmf(hits, count, share))


def _rates(share: float, count: int, part: float) -> tuple[Floats, Floats]:
    """Return θ and log E exp(−θ Σ (w − q t)), at most, on a grid (see the module)."""
    spread = math.sqrt(max(count * part * share * (1.0 - share), 1e-12))
    rates = np.concatenate([[0.0], np.geomspace(1e-3 / spread, max(60.0, 60.0 / spread), _RATES)])
    grown = (1.0 - share) * np.expm1(rates * share) + share * np.expm1(-rates * (1.0 - share))
    return rates, count * np.log1p(part * np.maximum(grown, 0.0))


def _of_people(deficits: Floats, share: float, deviations: Floats, count: int, part: float) -> Floats:
    """Return E min(1, B(−deficit + noise)), an upper bound: B falls, and is taken at the lower end of each cell."""
    rates, logs = _rates(share, count, part)
    # The best rate for x is where the next one gains less: the bound holds at each rate, the best one is tightest.
    gains = np.diff(logs) / np.diff(rates)
    ends = np.linspace(-_DEVIATIONS, _DEVIATIONS, _CELLS)
    weights = np.diff(scipy.special.ndtr(ends))
    places = -deficits[:, None] + deviations[:, None] * ends[None, :-1]
    best = np.searchsorted(gains, places)
    bounds = np.exp(np.minimum(logs[best] - rates[best] * places, 0.0))
    return np.asarray(bounds @ weights + 2.0 * scipy.special.ndtr(-_DEVIATIONS))


def chances(deficits: Floats, share: float, deviations: Floats, held_out: HeldOut, part: float = 1.0) -> Floats:
    """Bound how probable deficits as low as these are if a share of the rows or more lies beyond an edge.

    Parameters
    ----------
    deficits : array (T,)
        Counts beyond the edges less the share of the total, noisy.
    share : float
        q, between 0 and 1.
    deviations : array (T,)
        Of their Gaussian noise; 0 for exact counts.
    held_out : HeldOut
        At most so many are counted.
    part : float
        Of people, the largest mean weight per person that is counted, at most 1.

    Returns
    -------
    array (T,)
    """
    deficits, deviations = np.asarray(deficits, dtype=np.float64), np.asarray(deviations, dtype=np.float64)
    if held_out.people:
        return np.minimum(_of_people(deficits, share, deviations, held_out.count, part), 1.0)
    return np.minimum(_of_rows(deficits, share, deviations, held_out.count), 1.0)


def _counted(tails: Tails, level: float, held_out: HeldOut) -> tuple[HeldOut, float]:
    """Return how many are counted at most, and of people the mean weight of each, with an error of ``level``."""
    reach = -float(scipy.special.ndtri(level)) * tails.total_deviation
    if not held_out.people:
        most = min(max(math.floor(tails.total + reach), 0), held_out.count)
        return HeldOut(count=most), 1.0
    # Chernoff for the lower tail of a sum of m weights in [0, 1] of mean τ, half of the level, and the noise the other.
    reach = -float(scipy.special.ndtri(level / 2.0)) * tails.total_deviation
    weight = max(tails.total + reach, 0.0)
    added = math.log(2.0 / level)
    # Σ ≤ mτ − x with a probability of exp(−x²/(2mτ)) at most.
    mean = weight + added + math.sqrt(added**2 + 2.0 * weight * added)
    return held_out, min(mean / max(held_out.count, 1), 1.0)


def scan(tails: Tails, share: float, level: float, held_out: HeldOut, *, of_class: bool = False) -> int:
    """Return how many edges a scan from the outside inwards passes.

    Parameters
    ----------
    tails : Tails
        Raw noisy sums: neither bent to rise nor cut.
    share : float
        q: the probability with which a new row may lie beyond the last edge that is passed.
    level : float
        The probability, over noise and held-out rows, with which it may lie there more often.
    held_out : HeldOut
    of_class : bool
        The rows of one class are counted: how many these are is bounded by the noisy total.

    Returns
    -------
    int
        From 0 (none, the tail has no known end) to T.
    """
    part = 1.0
    if of_class:
        held_out, part = _counted(tails, _FOR_TOTAL * level, held_out)
        level *= 1.0 - _FOR_TOTAL
    deficits, deviations = tails.deficits(share)
    failed = np.flatnonzero(~(chances(deficits, share, deviations, held_out, part) <= level))
    return int(failed[0]) if len(failed) else len(deficits)


def margins(share: float, level: float, deviations: Floats, held_out: HeldOut, part: float = 1.0) -> Floats:
    """Return by how much a count must lie below its share of the total for a test to pass; noise and rows together.

    Parameters
    ----------
    share, level : float
        As for :func:`scan`.
    deviations : array (T,)
        Of the noise of counts less their share of the total.
    held_out : HeldOut
    part : float
        As for :func:`chances`.

    Returns
    -------
    array (T,)
    """
    deviations = np.asarray(deviations, dtype=np.float64)
    low = np.zeros(len(deviations))
    high = 10.0 * (deviations + math.sqrt(max(held_out.count * share, 1.0))) + 60.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        fails = chances(-middle, share, deviations, held_out, part) > level
        low, high = np.where(fails, middle, low), np.where(fails, high, middle)
    return high


def _reaches(share: float, level: float, deviation: float, held_out: HeldOut) -> bool:
    """Whether a test passes at an edge beyond which no row lies, without the luck of the noise."""
    (found,) = chances(np.array([-share * held_out.count]), share, np.array([deviation]), held_out)
    return bool(found <= level)


def require_coverage(coverage: float) -> float:
    """Return the share of rows that may be missed.

    Raises
    ------
    ParameterError
        If the coverage is not a number between 0.5 and 1.
    """
    if not 0.5 <= coverage < 1.0:
        raise ParameterError(f"coverage is {coverage}; give a number from 0.5 to below 1, such as 0.9")
    return 1.0 - coverage


class UnreachableError(ParameterError):
    """The noise and the number of held-out rows do not admit a coverage."""


@dataclass(frozen=True, kw_only=True)
class Paid:
    """The budget that pays for the noise of a release.

    Parameters
    ----------
    mu : float
        Of the run's releases of held-out rows together, as Gaussian-DP.
    delta : float
        At which ε is stated.
    """

    mu: float
    delta: float

    def needed(self, factor: float) -> float:
        """Return the ε at which the noise has so many times its deviation."""
        return epsilon_of_mu(self.mu / factor, self.delta)


def unreachable(
    coverage: float, level: float, held_out: HeldOut, deviation: Callable[[float], float], paid: Paid | None = None
) -> UnreachableError:
    """Return the error that states which coverage can be reached, and what the requested one needs.

    Parameters
    ----------
    coverage, level : float
    held_out : HeldOut
    deviation : callable
        Of a share: the deviation of the noise in the outermost tail, of the scan that loses least to it.
    paid : Paid, optional
        Left out where the counts are exact.
    """
    share, units = 1.0 - coverage, "held-out people" if held_out.people else "held-out rows"
    low, high = share, 0.5
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (low, middle) if _reaches(middle, level, deviation(middle), held_out) else (middle, high)
    best = math.floor(1000.0 * (1.0 - high)) / 1000.0
    reached = f"at most {best:g} can be reached" if high < 0.5 else "no coverage from 0.5 on can be reached"
    said = f"coverage is {coverage:g}; with {held_out.count:,} {units} and this noise {reached}"
    if not _reaches(share, level, 0.0, held_out):
        needed = math.ceil(math.log(level) / math.log1p(-share))
        return UnreachableError(f"{said}. {coverage:g} needs at least {needed:,} {units}, even without noise")
    if paid is None:
        return UnreachableError(said)
    few, all_of_it = 0.0, 1.0
    for _ in range(30):
        middle = (few + all_of_it) / 2.0
        few, all_of_it = (
            (middle, all_of_it) if _reaches(share, level, middle * deviation(share), held_out) else (few, middle)
        )
    epsilon = math.ceil(100.0 * paid.needed(max(few, 1e-6))) / 100.0
    return UnreachableError(f"{said}. {coverage:g} needs ε = {epsilon:g} (δ = {paid.delta:g}), or more {units}")


@dataclass(frozen=True, kw_only=True)
class HeldOutErrors:
    """Noisy counts of signed errors of held-out rows, and the intervals that follow from them.

    Parameters
    ----------
    sums : array (2, T)
        Noisy running sums of the rows with a label above the prediction, and below it, by the size of the error from
        the largest bin inwards, as they were released.
    noise : float
        Deviation of the noise that was added to each entry of a line's factor, in rows
        (:mod:`dpalgos.mechanisms.running_sums`); the two lines' noises are independent.
    edges : array (T,)
        The inner end of each bin in the unit of the label, falling, the last one 0. A row in none of the first j bins
        has an error of at most ``edges[j - 1]``.
    total, total_noise : float
        How many rows were counted, and the deviation of its noise, which is independent of the lines'.
    label_range : (float, float)
        Declared; labels and predictions are clipped to it before their difference is counted.
    held_out : HeldOut
    paid : Paid, optional
    reread : bool
        Something that the model rests on has counted these rows, too: what is claimed of intervals is measured then
        (:data:`SIMULATED`) and not proved.
    """

    sums: Floats
    noise: float
    edges: Floats
    total: float
    total_noise: float
    label_range: tuple[float, float]
    held_out: HeldOut
    paid: Paid | None = None
    reread: bool = False

    @classmethod
    def of_counts(
        cls, counts: ErrorCounts, *, people: bool = False, paid: Paid | None = None, reread: bool = False
    ) -> HeldOutErrors:
        """Return the errors of a release; ``people`` may have several rows each."""
        entry = counts.covariance[0, 0] / RunningSums(bins=len(counts.edges)).covariance()[0, 0]
        return cls(
            sums=counts.sums,
            noise=math.sqrt(entry),
            edges=counts.edges,
            total=counts.total,
            total_noise=counts.total_deviation,
            label_range=counts.label_range,
            held_out=HeldOut(count=counts.rows, people=people),
            paid=paid,
            reread=reread,
        )

    def _tails(self, counts: Floats, lines: int) -> Tails:
        """Return tails of one line, or of both together."""
        bins = len(self.edges)
        covariance = np.zeros((bins + 1, bins + 1))
        covariance[:-1, :-1] = lines * self.noise**2 * RunningSums(bins=bins).covariance()
        covariance[-1, -1] = self.total_noise**2
        return Tails(counts=counts, total=self.total, covariance=covariance)

    def _symmetric(self) -> Tails:
        return self._tails(self.sums.sum(axis=0), 2)

    def _above(self) -> Tails:
        return self._tails(self.sums[0], 1)

    def _below(self) -> Tails:
        return self._tails(self.sums[1], 1)

    def sides(self, coverage: float) -> int:
        """Return whether an interval has two ends of different distance (2) or one distance to either side (1).

        From public numbers alone: two, where the margin of one side takes at most a third of the share α/2 that may lie
        beyond it, at the edge of most noise. With more, separate sides become wider than they gain: of errors whose
        tails are exponential by a factor of 1.18 at a third and of 1.3 at a half.

        Raises
        ------
        UnreachableError
            If neither can have this coverage.
        """
        missed = require_coverage(coverage)
        level = 1.0 - CONFIDENCE

        def outermost(share: float) -> float:
            return float(self._symmetric().deviations(share)[0])

        if not _reaches(missed, level, outermost(missed), self.held_out):
            raise unreachable(coverage, level, self.held_out, outermost, self.paid)
        worst = self._above().deviations(missed / 2.0).max(keepdims=True)
        (lost,) = margins(missed / 2.0, level / 2.0, worst, self.held_out)
        return 2 if lost <= _MOST_LOST * missed / 2.0 * self.held_out.count else 1

    def distances(self, coverage: float) -> tuple[float, float]:
        """Return how far below and above a prediction its interval reaches; the declared width where no end is known.

        Raises
        ------
        UnreachableError
            As :meth:`sides` does.
        """
        missed, level = require_coverage(coverage), 1.0 - CONFIDENCE
        if self.sides(coverage) == 1:
            both = self._end(scan(self._symmetric(), missed, level, self.held_out))
            return both, both
        below, above = (
            self._end(scan(tails, missed / 2.0, level / 2.0, self.held_out)) for tails in (self._below(), self._above())
        )
        return below, above

    def _end(self, passed: int) -> float:
        return float(self.edges[passed - 1]) if passed else self.label_range[1] - self.label_range[0]

    def intervals(self, predictions: Floats, coverage: float) -> Floats:
        """Return the lower and the upper end (m, 2) of an interval for each prediction (m,), within the declared range.

        Guarantee: with probability 0.95 over noise and held-out rows, a new row drawn as these were has its label,
        clipped to the declared range, in its interval with at least the probability ``coverage`` (module docstring).

        Raises
        ------
        UnreachableError
            As :meth:`sides` does.
        """
        return self.around(predictions, self.distances(coverage))

    def around(self, predictions: Floats, distances: tuple[float, float]) -> Floats:
        """Return the ends (m, 2) at so much below and above predictions (m,), all within the declared range."""
        (below, above), (low, high) = distances, self.label_range
        clipped = np.clip(np.asarray(predictions, dtype=np.float64), low, high)
        return np.clip(np.stack([clipped - below, clipped + above], axis=1), low, high)


@dataclass(frozen=True, kw_only=True)
class HeldOutScores:
    """Noisy running sums of the scores of held-out rows, and the sets of classes that follow from them.

    Parameters
    ----------
    sums : array (S, 2, T)
        For each score (one with two classes), rows of the other classes and of the class with a score up to each edge,
        as they were released, or combined with a confusion matrix of the same rows by least squares
        (:meth:`dpalgos.score_curves.ScoreSums.combined`, Gaussian and unbiased as well); the last are all of them.
    covariance : array (2, T, T)
        Of the noise of either line, the same for each score.
    edges : array (T - 1,)
        Of the scores, rising; a row lies above an edge where its score is larger.
    held_out : HeldOut
    paid : Paid, optional
    reread : bool
        As of :class:`HeldOutErrors`.
    """

    sums: Floats
    covariance: Floats
    edges: Floats
    held_out: HeldOut
    paid: Paid | None = None
    reread: bool = False

    @classmethod
    def of_scores(
        cls, scores: Sequence[ScoreSums], held_out: HeldOut, paid: Paid | None = None, *, reread: bool = False
    ) -> HeldOutScores:
        """Return the scores of a release; one of two classes may have been combined with a confusion matrix."""
        first = scores[0]
        return cls(
            sums=np.stack([one.sums for one in scores]),
            covariance=first.covariance,
            edges=edges(first.sums.shape[1], first.scale),
            held_out=held_out,
            paid=paid,
            reread=reread,
        )

    @property
    def classes(self) -> int:
        """K."""
        return 2 if len(self.sums) == 1 else len(self.sums)

    def _low(self, score: int) -> Tails:
        """Return the tails of low scores of a class's own rows."""
        own = self.sums[score, 1]
        return Tails(counts=own[:-1], total=float(own[-1]), covariance=self.covariance[1])

    def _high(self) -> Tails:
        """Return the tails of high scores of the first of two classes: its total minus the running sums."""
        others = self.sums[0, 0]
        above = np.zeros((len(others), len(others)))
        above[:-1, :-1] = -np.eye(len(others) - 1)[::-1]
        above[:, -1] = 1.0
        found = above @ others
        return Tails(counts=found[:-1], total=float(found[-1]), covariance=above @ self.covariance[0] @ above.T)

    def limits(self, coverage: float) -> Floats:
        """Return for each class the score at which its scan stopped, (K,).

        Of two classes, the first is in the set of scores up to its limit, and the second of those above its own; of
        more, each is in the set where its own score is above its limit. A class whose scan stopped at once has an
        infinite limit and is in every set.

        Raises
        ------
        UnreachableError
            If not even a class with all held-out rows could have this coverage.
        """
        missed, level = require_coverage(coverage), (1.0 - CONFIDENCE) / self.classes
        tails = [self._high(), self._low(0)] if self.classes == 2 else [self._low(k) for k in range(self.classes)]

        def outermost(share: float) -> float:
            return min(float(one.deviations(share)[0]) for one in tails)

        if not _reaches(missed, (1.0 - _FOR_TOTAL) * level, outermost(missed), self.held_out):
            raise unreachable(coverage, (1.0 - _FOR_TOTAL) * level, self.held_out, outermost, self.paid)
        passed = [scan(one, missed, level, self.held_out, of_class=True) for one in tails]
        limits = [self.edges[count - 1] if count else -math.inf for count in passed]
        if self.classes == 2:
            limits[0] = self.edges[::-1][passed[0] - 1] if passed[0] else math.inf
        return np.array(limits, dtype=np.float64)

    def sets(self, scores: Floats, coverage: float) -> NDArray[np.bool_]:
        """Return which classes are in the set of each row, (m, K), of scores (m, S).

        Guarantee: with probability 0.95 over noise and held-out rows, for every class at once, a new row of this class
        drawn as the held-out ones were has it in its set with at least the probability ``coverage``. A set may hold no
        class: the row is unlike the held-out rows of each.

        Raises
        ------
        UnreachableError
            As :meth:`limits` does.
        """
        return self.inside(scores, self.limits(coverage))

    def inside(self, scores: Floats, limits: Floats) -> NDArray[np.bool_]:
        """Return which classes are in the set of each row, (m, K), of scores (m, S) at limits (K,)."""
        if self.classes == 2:
            return np.stack([scores[:, 0] <= limits[0], scores[:, 0] > limits[1]], axis=1)
        return np.asarray(scores > limits)
