"""Released errors of a numeric label: running sums of both signs with their covariance, total and sums.

All is post-processing of :class:`~dpalgos.evaluators.error_distribution.ErrorDistribution`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpalgos.evaluators.error_distribution import ErrorDistribution
from dpalgos.guarantees import Setting
from dpalgos.rows import Floats


@dataclass(frozen=True)
class ErrorCounts:
    """Noisy counts of held-out rows by their signed error, label − prediction, and the law of their noise.

    Nothing is smoothed: every number is as it was released, with independent noise but for what ``covariance`` says of
    one line's running sums.

    Parameters
    ----------
    label_range : (float, float)
        Declared; labels and predictions are clipped to it.
    rows : int
        Held-out rows (or persons), null records among them; public.
    edges : array (T,)
        Inner edges of the bins in the unit of the label, falling, the last one 0.
    sums : array (2, T)
        Rows with an error e ≥ ``edges[j]`` (first line, labels at or above their predictions), and with
        −e ≥ ``edges[j]``, e < 0 (second line). So ``sums[0, -1] + sums[1, -1]`` is one more count of all rows.
    covariance : array (T, T)
        Of the noise of one line's running sums; the two lines' noises are independent.
    total : float
        Count of rows that are no null records, noisy, with noise of its own.
    total_deviation : float
        Of the noise of ``total``.
    bound, centre : float
        B and c, in the unit of the label.
    squares, absolutes : float
        Sums over rows of (min(|e|, B)/B)² and of min(|e|, B)/B.
    label_squares, label_sum : float
        Sums over rows of v² and of v where |v| < 1, v = clip((label − c)/B, −1, 1).
    deviations : array (4,)
        Of the noise of these four, in their order.
    """

    label_range: tuple[float, float]
    rows: int
    edges: Floats
    sums: Floats
    covariance: Floats
    total: float
    total_deviation: float
    bound: float
    centre: float
    squares: float
    absolutes: float
    label_squares: float
    label_sum: float
    deviations: Floats

    @classmethod
    def of_release(cls, values: Floats, algorithm: ErrorDistribution, setting: Setting) -> ErrorCounts:
        """Return the counts of a release, the noise being that of all parties, the most.

        Parameters
        ----------
        values : array (2 T + 5,)
            Of the released :class:`~dpalgos.models.Statistic`.
        algorithm : ErrorDistribution
            As it was informed.
        setting : Setting
            In which it was released.
        """
        low, high = algorithm.label_range
        entry = algorithm.deviation(setting) * setting.noise_factor
        of_sums = entry * algorithm.units(setting) / algorithm.weights(setting)
        lines = np.asarray(values[: 2 * algorithm.bins], dtype=np.float64).reshape(2, algorithm.bins)
        total, squares, absolutes, label_squares, label_sum = (float(one) for one in values[2 * algorithm.bins :])
        return cls(
            label_range=(low, high),
            rows=setting.rows,
            edges=(high - low) * algorithm.edges(),
            sums=lines,
            covariance=entry**2 * algorithm.sums().covariance(),
            total=total,
            total_deviation=float(of_sums[0]),
            bound=algorithm.largest_error,
            centre=algorithm.middle,
            squares=squares,
            absolutes=absolutes,
            label_squares=label_squares,
            label_sum=label_sum,
            deviations=of_sums[1:],
        )

    @property
    def deviations_of_sums(self) -> Floats:
        """Standard deviation of the noise of each running sum of a line, (T,)."""
        return np.asarray(np.sqrt(np.diagonal(self.covariance)))
