"""Errors of a numeric label in one release: how they are distributed, and sums of them up to a public bound.

*What is released.* A held-out row has the signed error e = label − prediction, both clipped to the declared range of
width R first, so that |e| ≤ R. It adds to

- two *lines* of bins, one for errors e ≥ 0 and one for e < 0. Bins are geometric parts of the range, q per octave and
  16 octaves, and each line is ordered from the outermost bin inwards: bin j holds R·2^(−(j+1)/q) ≤ |e| < R·2^(−j/q)
  (the first one |e| = R too), and the last one |e| < R·2^(−16). Each line goes through its own square-root factor
  (:mod:`dpalgos.mechanisms.running_sums`), so its running sum S_j is the number of rows on that side with
  |e| ≥ R·2^(−(j+1)/q), at nearly the same noise for every edge. No noise depends on R: a range declared ten times too
  wide adds empty bins;
- its *count*, 1, which makes the release's own total: null records add nothing;
- seven *sums* of numbers between −1 and 1. With a = min(|e|/B, 1), h = a², v = clip((label − c)/B, −1, 1) and g = v²,
  they are h, a, g, the second moments h², g² and h g, and v where |v| < 1 (0 elsewhere). B is a public bound and c a
  public centre, both fixed before a row is read. Their means are exact where bins would have a width: RMSE and mean
  absolute error with errors counted up to B, both parts of R²_B = 1 − Σ min(|e|, B)² / min_c Σ min(|label − c|, B)²,
  and how much the drawing of rows moves these, all at a noise that does not depend on R.

*Why sums in addition to the lines.* From geometric bins alone, a sum of squares is known up to the bins' width (19 %
with 8 parts per octave, 41 % with 4), and a denominator from two more lines costs every line a factor of √2. The sums
cost every line a factor of 2/√3 = 1.155 and have no width.

*The vector*, integers from the row on: U ĉ_j in its line, the whole weight w_n of the count, and w_i x_i for each sum,
whose weight w_i is whole, too. A number is rounded within its interval, whose ends are whole.

*Sensitivity.* Let ĉ be the first, longest column of the factor, ‖ĉ_j‖ ≤ ‖ĉ‖.

*replace-one, two rows.* Of different signs: the lines move by ‖ĉ_i‖² + ‖ĉ_j‖² ≤ 2 ‖ĉ‖². Of one sign: by
‖ĉ_i − ĉ_j‖² ≤ ‖ĉ_i‖² + ‖ĉ_j‖² ≤ 2 ‖ĉ‖², since entries are not negative. The count does not move. The first six sums add
numbers in [0, 1], which move by at most 1 each, and v lies in [−1, 1] and moves by at most 2. So

    Δ² ≤ 2 ‖ĉ‖² U² + w_1² + … + w_6² + 4 w_v².

*replace-one, a row against a null record*: ‖ĉ‖² U² + w_n² + w_1² + … + w_6² + w_v², which is less: w_n ≤ ‖ĉ‖ U. That is
why the count is free of charge under this relation.

*replace-special*: a row against a null record is all there is, and Δ² is that sum. There w_n² is an eighth of
‖ĉ‖² U².

*Rows of one person*, k of them, add ⌊U/k⌋ ĉ_j each, and of each sum a whole number between the ends of its interval
times ⌊w ⌊U/k⌋ / U⌋, all with one k. So each adds a point of 1/k times the convex hull of zero and of the vectors
(ĉ_i U in one line, w_n, and a point of the box of the sums), and together they add a point of that hull. A norm of
differences is convex, hence largest between extreme points, which are those counted above: the bounds use the lines,
the count and the box alone, and not that the sums and the bin belong to one error.

*What B, c and R may be.* The bound holds for every B, c and R, and these change neither the noise nor the vector's
length. So B and c may come from an earlier release (:meth:`ErrorDistribution.informed`), on which the numbers then
rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np

from dpalgos.algorithms import NeighbouringPair, one_row_apart
from dpalgos.evaluators.noisy_sums import NoisySums, counted_cells
from dpalgos.guarantees import Neighbours, Setting
from dpalgos.mechanisms.running_sums import RunningSums
from dpalgos.models import Artefact, Statistic, label_spread_of
from dpalgos.parameters import ParameterError, between
from dpalgos.registry import register
from dpalgos.rows import Array, Floats, Ints, Rows

OCTAVES = 16
"""The last bin holds all errors below this many halvings of the range."""
COARSEST, FINEST = 4, 8
# What h, a, g, h², g², h g and v weigh among each other: the squared error is what is smallest, and gets most.
_WEIGHTS = (4, 2, 3, 1, 1, 1, 1)
# Of the squared sensitivity of two rows a quarter is that of the sums: a third of the lines'.
_SUMS_TO_LINES = 3
# Under replace-special the count costs noise: the square of its weight is that part of the longest column's.
_COUNT_PART = 8
SUMS = 1 + len(_WEIGHTS)
"""Entries behind the lines: the count, and sums of h, a, g, h², g², h g, v."""
_ROOM = 2.0**61
# Half a width of a bin is worth more than the noise of more bins from so many rows times mu on.
_FINER_FROM = 150.0


def parts_for(rows: int, mu: float) -> int:
    """Return q, the bins per octave, by public numbers alone: 8 where rows times mu is 150 or more, otherwise 4.

    With 8 the noise of a running sum is 9 % more, and an edge is 4.5 % instead of 9.5 % away from where it would be
    best, on average.

    Parameters
    ----------
    rows : int
        Held out.
    mu : float
        Of the release.
    """
    return FINEST if rows * mu >= _FINER_FROM else COARSEST


@register("evaluators", "error-distribution")
@dataclass(frozen=True, kw_only=True)
class ErrorDistribution(NoisySums):
    """Release the distribution of a regression's errors on held-out rows, and sums of the errors up to a public bound.

    The rows' features are the predictions of a released model, their labels the targets. What is made of the release is
    in :mod:`dpalgos.error_margins`.

    Guarantee
    ---------
    mu-GDP, exact. With c the first column of the integer factor, the unit U and the weights w of the module's text, a
    record moves the vector in l2, squared, by at most

    *replace-one*: 2 |c|^2 U^2 + w_1^2 + ... + w_6^2 + 4 w_v^2;

    *replace-special*: |c|^2 U^2 + w_n^2 + w_1^2 + ... + w_6^2 + w_v^2.

    Both by the module's proof, which holds for all rows of a person as for a row, and for any bound and centre.
    Rounded Gaussian noise of scale ``sensitivity / mu`` on each integer (see ``mechanisms.distributions``).

    A row whose prediction is not a finite number is a null record, as in every release: it counts nowhere.

    Parameters
    ----------
    budget : GaussianMu
    label_range : (float, float)
        Declared, low below high, in the unit of the label.
    parts : int
        q, bins per octave of each line, from 4 to 8 (:func:`parts_for`).
    bound : float, optional
        B, positive, up to which errors are counted in the sums, in the unit of the label; the width of the range where
        None.
    centre : float, optional
        c, from which the label's deviations are measured; the middle of the range where None.

    References
    ----------
    Fichtenberger, Henzinger, Upadhyay, ICML 2023 (the factor); Dong, Roth, Su, "Gaussian differential privacy", JRSS B
    84 (2022), Theorem 1.
    """

    label_range: Sequence[float] = (0.0, 1.0)
    parts: int = field(default=COARSEST, metadata=between(COARSEST, FINEST))
    bound: float | None = None
    centre: float | None = None
    share: float | None = None
    unit: ClassVar[int] = 1 << 10
    fewest_classes: ClassVar[int] = 1
    source: ClassVar[str] = "ours; Fichtenberger, Henzinger, Upadhyay 2023 (the factor)"
    people: ClassVar[str] = (
        "each of k rows adds ⌊U/k⌋ of the U units that one record adds, and at most that share to the sums"
    )
    measured: ClassVar[str] = "running sums through the factor of each line, and sums, l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = tuple(float(end) for end in self.label_range)
        if len(ends) != 2 or not ends[0] < ends[1] or not math.isfinite(ends[1] - ends[0]):
            raise ParameterError(f"label_range is {list(self.label_range)}; it must be two finite numbers, low < high")
        object.__setattr__(self, "label_range", ends)
        if self.bound is not None and not 0.0 < self.bound < math.inf:
            raise ParameterError(f"bound is {self.bound}; it must be a positive number in the unit of the label")
        if self.share is not None and not 0.0 <= self.share <= 1.0:
            raise ParameterError(f"share is {self.share}; it must lie in [0, 1]")
        if self.centre is not None and not math.isfinite(self.centre):
            raise ParameterError(f"centre is {self.centre}; it must be a finite number in the unit of the label")

    def check(self, setting: Setting) -> None:
        """Raise where sums would leave 64-bit integers."""
        super().check(setting)
        if setting.rows * self.units(setting) * 64.0 * self.bins >= _ROOM:
            raise ParameterError(
                f"{setting.rows} records in units of {self.units(setting)} exceed 64-bit integers; declare fewer rows "
                "per person"
            )

    def informed(self, artefacts: Sequence[Artefact]) -> Self:
        """Return the evaluator with the centre and the bound that released counts of the label say, if any do."""
        spread = label_spread_of(artefacts)
        if spread is None:
            return self
        return replace(self, centre=spread.centre, bound=spread.width, share=spread.share)

    @property
    def bins(self) -> int:
        """T of each line."""
        return OCTAVES * self.parts + 1

    def sums(self) -> RunningSums:
        """Return what each line is released through."""
        return RunningSums(bins=self.bins)

    def edges(self) -> Floats:
        """Return the inner edge of each bin, (T,), as a share of the range: the running sum j has errors from j on."""
        inner = np.exp2(-np.arange(1, self.bins) / self.parts)
        return np.concatenate([inner, [0.0]])

    @property
    def largest_error(self) -> float:
        """B, in the unit of the label."""
        low, high = self.label_range
        return high - low if self.bound is None else self.bound

    @property
    def middle(self) -> float:
        """c, in the unit of the label."""
        low, high = self.label_range
        return low + (high - low) / 2.0 if self.centre is None else self.centre

    def weights(self, setting: Setting) -> Ints:
        """Return the whole numbers that stand for one in the count and in the sums, (8,)."""
        units = self.units(setting)
        longest = _squared_norm(self.bins) * units**2
        of_two = sum(weight**2 for weight in _WEIGHTS[:-1]) + 4 * _WEIGHTS[-1] ** 2
        step = math.isqrt(2 * longest // (_SUMS_TO_LINES * of_two))
        part = 1 if setting.neighbours is Neighbours.REPLACE_ONE else _COUNT_PART
        return np.array([math.isqrt(longest // part), *(step * weight for weight in _WEIGHTS)], dtype=np.int64)

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the encoded lines and the sums in l2, in rows, rounded up."""
        units = self.units(setting)
        count, *others, deviation = (int(weight) for weight in self.weights(setting))
        longest = _squared_norm(self.bins) * units**2
        of_sums = sum(weight**2 for weight in others)
        if setting.neighbours is Neighbours.REPLACE_ONE:
            squared = 2 * longest + of_sums + 4 * deviation**2
        else:
            squared = longest + count**2 + of_sums + deviation**2
        root = math.sqrt(squared) / units
        while Fraction(root) ** 2 * units**2 < squared:
            root = math.nextafter(root, math.inf)
        return root

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (2 T + 8,): the lines of errors e ≥ 0 and e < 0, the count, the sums of h, a, g, h², g², h g, v."""
        return (2 * self.bins + SUMS,)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return a label above its prediction by all of the range against one that is below it by a little."""
        low, high = self.label_range
        left, right = np.full((2, setting.dimension), 0.0)
        # The other line's middle bin: its column is nearly as long as the first, and its squared error is small.
        left[:1], right[:1] = low, low + (high - low) * 2.0 ** (-OCTAVES / 2)
        return one_row_apart(setting, left, right, labels=(high, low))

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact counts and sums (2 T + 8,) of a block; lines do not yet go through the factor."""
        low, high = self.label_range
        width, bins = high - low, self.bins
        truth = np.clip(np.asarray(labels, dtype=np.float64), low, high)
        # Shares of the range, clipped before anything can overflow.
        error = (truth - np.clip(features[:, :1].sum(axis=1), low, high)) / width
        size = np.abs(error)
        # Inner edges fall; the first one that is not above the error is that of its bin.
        place = np.searchsorted(-self.edges(), -size)
        lines = counted_cells(place + bins * (error < 0), parts, (2 * bins,))
        share = np.minimum(size * (width / self.largest_error), 1.0)
        apart = np.clip((truth - self.middle) / self.largest_error, -1.0, 1.0)
        squared, spread = share * share, apart * apart
        inside = np.where(np.abs(apart) < 1.0, apart, 0.0)
        values = (squared, share, spread, squared * squared, spread * spread, squared * spread, inside)
        units = self.units(setting)
        count, *weights = (int(weight) for weight in self.weights(setting))
        sums = [(count * parts // units).sum()]
        for weight, value in zip(weights, values, strict=True):
            # Whole ends, so that rounding stays between them; a person's together are at most the weight.
            sums.append(np.rint((weight * parts // units) * value).astype(np.int64).sum())
        return np.concatenate([lines, np.array(sums, dtype=np.int64)])

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's exact vector: each line through its factor, the count and the sums."""
        exact = super().contribution(state, rows, setting)
        lines = self.sums().encode(exact[: 2 * self.bins].reshape(2, self.bins))
        return np.concatenate([lines.ravel(), exact[2 * self.bins :]])

    def result(self, state: Ints, setting: Setting) -> Statistic:
        """Return the noisy running sums of both lines, the count and the sums, in rows, and then B, c and the share.

        Negative numbers are left as they are; the share is 0 where it is not known.
        """
        lines = state[: 2 * self.bins].reshape(2, self.bins) / self.units(setting)
        sums = state[2 * self.bins :] / self.weights(setting)
        known = [self.largest_error, self.middle, self.share or 0.0]
        return Statistic(values=np.concatenate([self.sums().decode(lines).ravel(), sums, known]))


def _squared_norm(bins: int) -> int:
    """Return the squared norm of the first column of the factor, a whole number."""
    return sum(entry * entry for entry in RunningSums(bins=bins).factor().coefficients)
