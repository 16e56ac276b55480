"""Truex et al.'s linear SVM: gradient descent on masked sums, noise split over t - 1 parties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.gaussian_sums import GAUSSIAN_BUDGETS, gaussian_guarantee, gaussian_law, grid, total_mu
from dpalgos.gradient_sums import EncodedRows, GradientSums
from dpalgos.guarantees import Claim, GaussianMu, Guarantee, Loss, Setting, Trust
from dpalgos.linear import LinearTask
from dpalgos.losses import make_loss
from dpalgos.models import LinearModel
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, Rows
from dpalgos.secure.noise_shares import TruexGaussian, share_sigma
from dpalgos.validation import require_between, require_budget, require_count, require_positive, require_replace_one

__all__ = ["TruexDescent"]


@register("trainers", "truex")
@dataclass(frozen=True, slots=True, kw_only=True)
class TruexDescent:
    """Linear SVM by full-batch gradient descent on sums of clipped gradients; each party adds variance σ²/(t − 1).

    The paper has its parties send clipped and noised weights under threshold encryption; here the sums are masked, and
    what is clipped are the rows' gradients, which is what the noise is calibrated to.

    Guarantee
    ---------
    The budget under replace-one, if of the parties at least t are honest and one of those curious: the shares of the
    other t − 1 are unknown to it. With Δ = 2·clip (in grid units, from the encoded norms) and σ = √T Δ/μ, t − 1
    discrete Gaussians of variance σ²/(t − 1), raised by what :func:`dpalgos.secure.noise_shares.share_sigma` proves
    is lost in the sum's discreteness, are as private as one Gaussian of σ; T of them compose adaptively to the budget.
    Numerics exact. Under ``central`` the curator adds the noise of t − 1 shares.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
        For all steps together.
    honest : int, optional
        t, at least 2: parties assumed honest; all of them if empty. Fewer than that mean more noise.
    loss : str
        ``huber-hinge``.
    width : float, optional
        h of the smooth hinges.
    iterations : int
        T.
    step_size : float
        η.
    regularisation : float
        λ.
    clip : float
        Largest norm of a row's gradient.
    intercept_scaling : float
        B of the constant feature inside the unit ball; 0 for no intercept.
    label_range : (float, float)
        Declared range of real labels.

    References
    ----------
    Truex, Baracaldo, Anwar, Steinke, Ludwig, Zhang, Zhou, "A hybrid approach to privacy-preserving federated learning",
    AISec 2019, section 4 (the split of the noise); as a row of Table 1 in Wang et al. 2024.
    """

    budget: Loss
    honest: int | None = None
    loss: str = "huber-hinge"
    width: float | None = None
    iterations: int = 100
    step_size: float = 1.0
    regularisation: float = 1e-3
    clip: float = 1.0
    intercept_scaling: float = 0.0
    label_range: Sequence[float] = (-1.0, 1.0)

    source: ClassVar[str] = "Truex et al. 2019, section 4"
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP if t parties are honest", "Truex et al. 2019, section 4")
    sound_counterpart: ClassVar[str | None] = None
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)
    budgets: ClassVar[tuple[type[Loss], ...]] = GAUSSIAN_BUDGETS
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_budget(self.budget, self.budgets)
        if self.honest is not None:
            require_count("honest", self.honest, 2)
        require_count("iterations", self.iterations)
        require_positive("step_size", self.step_size)
        require_between("regularisation", self.regularisation, 0.0, math.inf, open_high=True)
        require_positive("clip", self.clip)
        self._task()

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget, and who is assumed honest."""
        require_replace_one(setting)
        self._task().check(setting)
        honest = self._honest(setting)
        return gaussian_guarantee(
            self.budget, setting, f"at least {honest} parties are honest, of whom one may be curious"
        )

    def steps(self, setting: Setting) -> int:
        """Return the number of gradient sums."""
        return self.iterations

    def law(self, setting: Setting) -> TruexGaussian:
        """Return the noise of each sum, with its published split."""
        honest = self._honest(setting)
        whole = gaussian_law(self.budget, self._sums(setting).sensitivity(setting.neighbours), self.iterations).sigma
        classes, width = self._task().shape(setting)
        share = share_sigma(whole, shares=honest - 1, dimension=classes * width)
        return TruexGaussian(sigma=share * math.sqrt(honest - 1) * (1.0 + 2.0**-48), honest=honest)

    def initial(self, setting: Setting) -> Floats:
        """Return zero weights."""
        return np.zeros(self._task().shape(setting))

    def prepare(self, rows: Rows, setting: Setting) -> Rows | EncodedRows:
        """Encode the party's rows once, unless they are too many to keep."""
        return self._sums(setting).prepare(rows, setting)

    def merge(self, prepared: Sequence[Rows | EncodedRows]) -> Sequence[Rows | EncodedRows]:
        """Join parties for a curator who adds up anyway."""
        return GradientSums.merge(prepared)

    def contribution(self, state: Floats, rows: Rows | EncodedRows, setting: Setting) -> Ints:
        """Return the party's exact sum of encoded, clipped gradients."""
        return self._sums(setting).total(state, rows, setting)

    def update(self, state: Floats, noisy_sum: Ints, setting: Setting) -> Floats:
        """Take one step."""
        gradient = self._sums(setting).decode(noisy_sum) / max(setting.rows, 1)
        return state - self.step_size * (gradient + self.regularisation * state)

    def result(self, state: Floats, setting: Setting) -> LinearModel:
        """Return the last iterate."""
        return self._task().model(state, setting)

    def _honest(self, setting: Setting) -> int:
        parties = len(setting.sizes)
        # One party alone, as under a curator, adds the whole noise: t - 1 = 1.
        honest = max(parties, 2) if self.honest is None else self.honest
        if honest > max(parties, 2):
            raise ParameterError(f"honest is {honest} of {parties} parties; choose it from 2 to {max(parties, 2)}")
        return honest

    def _task(self) -> LinearTask:
        return LinearTask(
            loss=make_loss(self.loss, self.width),
            intercept_scaling=self.intercept_scaling,
            label_range=self.label_range,
        )

    def _sums(self, setting: Setting) -> GradientSums:
        return GradientSums(
            task=self._task(),
            clip=self.clip,
            scale=grid(GaussianMu(total_mu(self.budget)), 2.0, self.iterations, setting),
        )
