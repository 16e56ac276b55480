"""Class means released night after night: a whole horizon in one run, each party's rows dealt to nights in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.class_sums import ClassSums
from dpalgos.continual import model_of, nightly_budget
from dpalgos.gaussian_sums import gaussian_guarantee
from dpalgos.guarantees import Guarantee, Setting
from dpalgos.mechanisms.factorisation import ToeplitzFactor
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.models import Artefact
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows, sanitise
from dpalgos.trainers.class_means import ClassMeansDiscriminant, ClassSumTrainer
from dpalgos.work import Work

_Nights = tuple[Ints, ...]


@register("trainers", "continual-class-means")
@dataclass(frozen=True, kw_only=True)
class ContinualClassMeans(ClassSumTrainer):
    """Release every night's running class sums over a horizon, and return the discriminant of the last night.

    Row i of a party (from 0) arrives in night 1 + (i mod T). For rows that are here already it is worse than
    ``class-means``, which releases their sum once: it is what a year of nights gives, in one run, to compare and audit.

    Guarantee
    ---------
    The budget, for all nights together (:mod:`dpalgos.mechanisms.factorisation`): the stream Ĉx moves by
    ‖Ĉe₁‖₂ times what a sum of the rows of each class moves by, in l2.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
        Of the horizon.
    count_weight : float, optional
        As of ``class-means``.
    nights : int
        T.
    bands : int, optional
        Coefficients of the factor that are kept.

    References
    ----------
    Denisov et al. 2022; Fichtenberger, Henzinger, Upadhyay 2023.
    """

    nights: int = 8
    bands: int | None = None

    source: ClassVar[str] = "class means by factorisation of running sums, after Fichtenberger et al. 2023"
    measured: ClassVar[str] = "the nights' sums of the rows of each class times the factor, in l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.factor()

    def factor(self) -> ToeplitzFactor:
        """Return the factor of the horizon."""
        return ToeplitzFactor(nights=self.nights, bands=self.bands)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget."""
        self.check(setting)
        return gaussian_guarantee(self.budget, setting)

    def work(self, setting: Setting) -> Work:
        """Return that of one pass, and of a sum for each night."""
        shape = self.class_sums(setting).shape(setting)
        return Work(operations=2.0 * setting.rows * math.prod(shape), sums=8 * self.nights * math.prod(shape))

    def class_sums(self, setting: Setting) -> ClassSums:
        """Return one night's sums, on the grid of their noise."""
        return self._once().class_sums(setting)

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record of the first night moves the stream, in units of the rows."""
        return super().sensitivity(setting) * self.factor().norm

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact stream (T, K, d + 1), in units of the rows."""
        stream = [self._mixed(self.prepare(rows, setting), night) for night in range(1, self.nights + 1)]
        return np.stack(stream) / self.class_sums(setting).scale

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each night."""
        return self._once().law(setting)

    def steps(self, setting: Setting) -> int:
        """Return the number of nights."""
        return self.nights

    def initial(self, setting: Setting) -> _Nights:
        """Return no night."""
        self.check(setting)
        return ()

    def prepare(self, rows: Rows, setting: Setting) -> _Nights:
        """Return the party's exact sums of each night."""
        sums = self.class_sums(setting)
        nights = np.zeros((self.nights, *sums.shape(setting)), dtype=np.int64)
        first = 0
        for features, labels in rows.blocks():
            arrival = np.arange(first, first + len(labels)) % self.nights
            for night in np.unique(arrival):
                block = sanitise(features[arrival == night], labels[arrival == night], setting.classes)
                nights[night] += sums.of_block(*block, setting)
            first += len(labels)
        return tuple(nights)

    def contribution(self, state: _Nights, rows: Rows | _Nights, setting: Setting) -> Ints:
        """Return the party's (Ĉx)_t, t the first night that the state has no release of."""
        nights = rows if isinstance(rows, tuple) else self.prepare(rows, setting)
        return self._mixed(nights, len(state) + 1)

    def update(self, state: _Nights, noisy_sum: Ints, setting: Setting) -> _Nights:
        """Return the nights' releases so far."""
        return (*state, noisy_sum)

    def result(self, state: _Nights, setting: Setting) -> Artefact:
        """Return the discriminant of the last night's running sums."""
        return model_of(self._once(), self.factor(), state, setting, setting.sizes)

    def _once(self) -> ClassMeansDiscriminant:
        return ClassMeansDiscriminant(budget=nightly_budget(self.budget, self.factor()), count_weight=self.count_weight)

    def _mixed(self, nights: Sequence[Ints], night: int) -> Ints:
        coefficients = self.factor().coefficients[:night][::-1]
        return np.asarray(sum(each * part for each, part in zip(coefficients, nights[:night], strict=True)))
