"""Released histograms of columns: running sums with their covariance, coarser bins, several releases as one.

All is post-processing of :class:`~dpalgos.evaluators.column_histograms.ColumnHistograms`. The noise of a number's
running sums is Gaussian, correlated over the bins, equal and independent from column to column, and its covariance is
public (:meth:`ColumnCounts.of_release`).

*Nesting.* Bins are powers of two of equal parts of one range, so the running sums of T/2 bins are every second one of T
(:meth:`ColumnCounts.coarser`): a part of a finer release, with the covariance of that part.

*Several releases of the same rows* (:func:`combined`) are brought to the coarsest bins; there each gives the same sums
s with their own covariances V_i, running sums or plain counts added up, and all together, by least squares,

    (Σ V_i⁻¹)⁻¹ Σ V_i⁻¹ s_i    with the covariance    (Σ V_i⁻¹)⁻¹,

exact for Gaussian noise and without bias. Where V_i = σ_i² V these are the weights 1/σ_i², as they are for single
counts and sums.

*Not used.* The public number of rows as one more equation: null records are among these rows, and a few of them
hide in the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from dpalgos.evaluators.column_histograms import ColumnHistograms, Layout
from dpalgos.guarantees import Setting
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats


@dataclass(frozen=True)
class ColumnCounts:
    """Noisy counts of all columns of a table, and the covariance of their noise.

    Parameters
    ----------
    layout : Layout
        Which columns are counted; its ``bins`` are those of ``sums``.
    rows : int
        n, public: all rows, null records among them.
    sums : array (lines, T)
        Of each number, a numeric label last: rows in a bin and in all before it.
    covariance : array (T, T)
        Of the noise of one line.
    missing : array (lines,)
        Rows in which the cell is missing; 0 where none can be.
    centred : array (lines,), or (0,)
        Sums of cells less ½, in shares of the range.
    categories : tuple of arrays (values + 1,)
        Rows of each value; in the last place those in which the cell is missing.
    classes : array (K,), or (0,)
    deviation : float
        Of the noise of each of ``missing``, ``categories`` and ``classes``.
    centred_deviation : float
        Of the noise of each of ``centred``; 0 where there are none.
    cut : float
        By how much a row's part of ``centred`` may be too near to 0.
    """

    layout: Layout
    rows: int
    sums: Floats
    covariance: Floats
    missing: Floats
    centred: Floats
    categories: tuple[Floats, ...]
    classes: Floats
    deviation: float
    centred_deviation: float = 0.0
    cut: float = 0.0

    @classmethod
    def of_release(cls, values: Floats, algorithm: ColumnHistograms, setting: Setting) -> ColumnCounts:
        """Return the counts of a release, the noise being that of all parties, the most.

        Parameters
        ----------
        values : array
            Of the released :class:`~dpalgos.models.Statistic`.
        algorithm : ColumnHistograms
        setting : Setting
            In which it was released.
        """
        layout = algorithm.layout(setting)
        lines, missed, centred, *categories, classes = layout.parts(np.asarray(values, dtype=np.float64))
        missing = np.zeros(layout.lines)
        missing[list(layout.lacking)] = missed
        # Of a number that is released, in its own units.
        entry = algorithm.deviation(setting) * setting.noise_factor
        bins = layout.bins
        if algorithm.running:
            covariance = algorithm.sums().covariance()
        else:
            covariance = 1.0 + np.minimum.outer(np.arange(bins), np.arange(bins))
        grain = algorithm.units(setting) * algorithm.weight * algorithm.mean_weight
        return cls(
            layout=layout,
            rows=setting.rows,
            sums=lines.reshape(layout.lines, bins),
            covariance=entry**2 * covariance,
            missing=missing,
            centred=centred,
            categories=tuple(categories),
            classes=classes,
            deviation=entry / algorithm.weight,
            centred_deviation=entry / (algorithm.weight * algorithm.mean_weight) if layout.centred else 0.0,
            # A person's row is cut by less than one in units of ⌊U/k⌋ r w, at least half of U r w / k.
            cut=2.0 * setting.rows_per_person / grain if layout.centred else 0.0,
        )

    @property
    def bins(self) -> int:
        """T."""
        return self.layout.bins

    @property
    def totals(self) -> Floats:
        """Rows whose cell is there, of each number, (lines,): the last of its sums."""
        return self.sums[:, -1]

    @property
    def counts(self) -> Floats:
        """The counts of the bins, (lines, T), differences of the sums; negative ones are left as they are."""
        return np.diff(self.sums, axis=1, prepend=0.0)

    def count_deviations(self) -> Floats:
        """Return the standard deviation of the noise of each of :attr:`counts` of a line, (T,)."""
        return np.asarray(np.sqrt(np.maximum(np.diagonal(_of_differences(self.covariance)), 0.0)))

    def coarser(self, bins: int) -> ColumnCounts:
        """Return the counts in fewer bins, each some of these together.

        Raises
        ------
        ParameterError
            If these are not ``bins`` times a whole number.
        """
        if bins < 1 or self.bins % bins:
            raise ParameterError(f"bins is {bins}; give a power of two up to {self.bins}")
        step = self.bins // bins
        return replace(
            self,
            layout=replace(self.layout, bins=bins),
            sums=self.sums[:, step - 1 :: step],
            covariance=self.covariance[step - 1 :: step, step - 1 :: step],
        )

    def rising(self) -> Floats:
        """Return the sums bent to rise from 0, (lines, T): the nearest ones, by isotonic regression, by 1/variance."""
        if not len(self.sums):
            return self.sums
        weights = 1.0 / np.maximum(np.diagonal(self.covariance), 1e-12)
        bent = [scipy.optimize.isotonic_regression(sums, weights=weights).x for sums in self.sums]
        return np.asarray(np.maximum(np.stack(bent), 0.0))

    def shares_below(self) -> Floats:
        """Return the share of a number's cells below each edge, (lines, T + 1), rising from 0 to 1.

        Of those that are there, by the sums bent to rise. Where these leave nothing, cells are taken to be spread
        evenly.
        """
        rising = self.rising()
        totals = rising[:, -1:]
        # Of less than one row nothing is known.
        known = totals >= 1.0
        evenly = np.arange(1, self.bins + 1) / self.bins
        shares = np.where(known, rising / np.where(known, totals, 1.0), evenly)
        return np.pad(np.minimum(shares, 1.0), ((0, 0), (1, 0)))

    def rare(self, factor: float = 3.0) -> list[Floats]:
        """Return of each category which declared values are too few to be told from none: 1 or 0, (values,) each.

        Those whose noisy count lies below ``factor`` deviations of its noise; they are shown, and encoded, as "other".
        """
        return [(counts[:-1] < factor * self.deviation).astype(np.float64) for counts in self.categories]


def _of_differences(covariance: Floats) -> Floats:
    """Return the covariance of differences of numbers with this one, the first of them of itself."""
    once = np.diff(covariance, axis=0, prepend=0.0)
    return np.diff(once, axis=1, prepend=0.0)


def combined(releases: Sequence[ColumnCounts]) -> ColumnCounts:
    """Return what several releases of the same rows say together, at the coarsest of their bins.

    Parameters
    ----------
    releases : sequence of ColumnCounts
        Of the same columns, classes and number of rows, with independent noise; some with running sums, some with plain
        counts, in bins that nest; where one has no sums of centred cells, the others' are taken.

    Raises
    ------
    ParameterError
        If there is none, or what they count differs.
    """
    if not releases:
        raise ParameterError("releases is empty; give at least one")
    first = releases[0]
    if len(releases) == 1:
        return first
    for other in releases[1:]:
        if not _alike(first, other):
            raise ParameterError(
                f"the releases count different columns, classes or rows ({_described(first)}; {_described(other)}); "
                "combine only releases of the same rows and schema"
            )
    bins = min(one.bins for one in releases)
    coarse = [one.coarser(bins) for one in releases]
    precisions = [np.linalg.inv(one.covariance) for one in coarse]
    covariance = np.linalg.inv(np.sum(precisions, axis=0))
    covariance = (covariance + covariance.T) / 2.0
    weighed = np.sum([one.sums @ precise for one, precise in zip(coarse, precisions, strict=True)], axis=0)
    weights = np.array([1.0 / one.deviation**2 for one in coarse])
    centred = [one for one in coarse if one.layout.centred]
    of_centred = np.array([1.0 / one.centred_deviation**2 for one in centred])
    return replace(
        coarse[0],
        layout=replace(coarse[0].layout, centred=bool(centred)),
        sums=weighed @ covariance,
        covariance=covariance,
        missing=_mean([one.missing for one in coarse], weights),
        centred=_mean([one.centred for one in centred], of_centred) if centred else coarse[0].centred,
        categories=tuple(_mean(counts, weights) for counts in zip(*(one.categories for one in coarse), strict=True)),
        classes=_mean([one.classes for one in coarse], weights),
        deviation=1.0 / math.sqrt(weights.sum()),
        centred_deviation=1.0 / math.sqrt(of_centred.sum()) if centred else 0.0,
        cut=max(one.cut for one in coarse),
    )


def _mean(numbers: Sequence[Floats], weights: Floats) -> Floats:
    return np.asarray(np.average(np.stack(numbers), axis=0, weights=weights))


def _alike(one: ColumnCounts, other: ColumnCounts) -> bool:
    mine, its = (replace(of.layout, bins=1, centred=False) for of in (one, other))
    return mine == its and one.rows == other.rows


def _described(counts: ColumnCounts) -> str:
    layout = counts.layout
    return (
        f"{layout.lines} numbers, {len(layout.categories)} categories, {layout.classes} classes of {counts.rows} rows"
    )
