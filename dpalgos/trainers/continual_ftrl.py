"""Follow the regularised leader night after night: a whole horizon in one run, each party's rows dealt to nights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from dpalgos.continual import model_of, nightly_budget, state_after
from dpalgos.guarantees import Setting
from dpalgos.mechanisms.factorisation import ToeplitzFactor
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.models import Artefact
from dpalgos.registry import register
from dpalgos.rows import ArrayRows, Floats, Ints, Rows
from dpalgos.trainers.ftrl import FollowTheRegularisedLeader, LeaderTrainer
from dpalgos.work import Work

_Nights = tuple[ArrayRows, ...]


@register("trainers", "continual-ftrl")
@dataclass(frozen=True, kw_only=True)
class ContinualLeader(LeaderTrainer):
    """Release every night's running sum of gradients over a horizon, and return the model of the last night.

    Row i of a party (from 0) arrives in night 1 + (i mod T); its gradient is taken once, at the model of the nights
    before. It is what ``ftrl`` gives over a horizon of nights, in one run, to compare and audit.

    Guarantee
    ---------
    The budget, for all nights together (:mod:`dpalgos.mechanisms.factorisation`): given what was released before, night
    t is a Gaussian mechanism whose sum moves by ĉ_{t−s} times what one sum of gradients moves by, s the row's night.
    The weights of all nights are made of earlier releases, so the sums of other nights are the same for both
    neighbours. Together they cost ‖Ĉe₁‖₂ times what one sum costs.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
        Of the horizon.
    clip, step_size, mean_weight, loss, width, intercept_scaling
        See :class:`~dpalgos.trainers.ftrl.LeaderTrainer`.
    nights : int
        T.
    bands : int, optional
        Coefficients of the factor that are kept.

    References
    ----------
    Kairouz et al., ICML 2021; Denisov et al., NeurIPS 2022.
    """

    nights: int = 8
    bands: int | None = None

    source: ClassVar[str] = "DP-FTRL by factorisation of running sums, Denisov et al. 2022"
    measured: ClassVar[str] = "the nights' sums of clipped gradients times the factor, in l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.factor()

    def factor(self) -> ToeplitzFactor:
        """Return the factor of the horizon."""
        return ToeplitzFactor(nights=self.nights, bands=self.bands)

    def work(self, setting: Setting) -> Work:
        """Return that of holding all nights' rows, and of each night's sum again in all later ones."""
        nights = self.nights
        once = self._once().sums(setting).work(setting, nights)
        return replace(once, kept=0, held=2 * 8 * setting.rows * setting.dimension)

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record of the first night moves the stream, in units of gradients."""
        return super().sensitivity(setting) * self.factor().norm

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the party's exact stream (T, m, p) at zero weights, in units of gradients."""
        once, dealt = self._once(), self.prepare(rows, setting)
        sums = [once.contribution(once.initial(setting), night, setting) for night in dealt]
        stream = [self._mixed(sums[:night]) for night in range(1, self.nights + 1)]
        return once.sums(setting).decode(np.stack(stream))

    def law(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of each night."""
        return self._once().law(setting)

    def steps(self, setting: Setting) -> int:
        """Return the number of nights."""
        return self.nights

    def initial(self, setting: Setting) -> tuple[Ints, ...]:
        """Return no night."""
        self.check(setting)
        return ()

    def prepare(self, rows: Rows, setting: Setting) -> _Nights:
        """Return the party's rows of each night."""
        blocks = list(rows.blocks())
        features = np.concatenate([np.zeros((0, rows.dimension)), *(block[0] for block in blocks)])
        labels = np.concatenate([np.zeros(0), *(block[1] for block in blocks)])
        return tuple(
            ArrayRows(features[night :: self.nights], labels[night :: self.nights]) for night in range(self.nights)
        )

    def contribution(self, state: tuple[Ints, ...], rows: Rows | _Nights, setting: Setting) -> Ints:
        """Return the party's (Ĉx)_t, t the first night that the state has no release of."""
        once, dealt = self._once(), rows if isinstance(rows, tuple) else self.prepare(rows, setting)
        before = (state_after(self.factor(), state[:night], once, setting) for night in range(len(state) + 1))
        return self._mixed([once.contribution(then, dealt[night], setting) for night, then in enumerate(before)])

    def update(self, state: tuple[Ints, ...], noisy_sum: Ints, setting: Setting) -> tuple[Ints, ...]:
        """Return the nights' releases so far."""
        return (*state, noisy_sum)

    def result(self, state: tuple[Ints, ...], setting: Setting) -> Artefact:
        """Return the model of the last night."""
        return model_of(self._once(), self.factor(), state, setting, setting.sizes)

    def _once(self) -> FollowTheRegularisedLeader:
        return FollowTheRegularisedLeader(
            budget=nightly_budget(self.budget, self.factor()),
            clip=self.clip,
            step_size=self.step_size,
            mean_weight=self.mean_weight,
            loss=self.loss,
            width=self.width,
            intercept_scaling=self.intercept_scaling,
            label_range=self.label_range,
        )

    def _mixed(self, nights: list[Ints]) -> Ints:
        coefficients = self.factor().coefficients[: len(nights)][::-1]
        return np.asarray(sum(each * part for each, part in zip(coefficients, nights, strict=True)))
