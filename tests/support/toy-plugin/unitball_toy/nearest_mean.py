"""Nearest class means from one noisy sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import GaussianAlgorithm, OneSum
from dpalgos.guarantees import Setting
from dpalgos.integer_sums import encode_rows, encoded_radius
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.models import LinearModel
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows, sanitise
from unitball_toy.grid import SCALE


@register("trainers", "toy-nearest-mean")
@dataclass(frozen=True, kw_only=True)
class NearestMean(GaussianAlgorithm, OneSum):
    """Sum the rows of each class, with integer noise once; a class's weights are its noisy sum over n.

    Guarantee
    ---------
    The budget: a row, of norm at most R on the grid, is added to the sum of one class, so it moves the sums by at most
    R in l2 against a null record, and by 2R where it is replaced (within one class, x by −x). Sums and noise are
    integers: numerics exact.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    """

    source: ClassVar[str] = "class means; sensitivity as in its docstring"
    measured: ClassVar[str] = "sums by class, l2"

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (classes, features)."""
        return max(setting.classes, 2), setting.dimension

    def sensitivity(self, setting: Setting) -> float:
        """Return the records that neighbours differ in, each of norm 1."""
        return float(setting.neighbours.records)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's sums, exact but for the grid."""
        return np.asarray(self.contribution(self.initial(setting), rows, setting) / SCALE)

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each entry."""
        return RoundedGaussian.calibrated(self.budget, self.sensitivity(setting) * encoded_radius(1.0, SCALE))

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's sums, by class."""
        sums = np.zeros_like(state)
        for features, labels, _ in rows.blocks():
            clean, known = sanitise(features, labels, setting.classes)
            np.add.at(sums, known[known >= 0], encode_rows(clean, 1.0, SCALE)[known >= 0])
        return sums

    def result(self, state: Ints, setting: Setting) -> LinearModel:
        """Return the means; of two classes, their difference."""
        means = state / SCALE / max(setting.rows, 1)
        weights = means if len(means) > 2 else means[1:] - means[:1]
        return LinearModel(weights=weights, intercept=np.zeros(len(weights)))
