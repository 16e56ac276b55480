"""Truex et al.'s linear SVM: gradient descent on masked sums, noise split over t - 1 parties."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpalgos.errors import ParameterError
from dpalgos.gaussian_sums import gaussian_guarantee
from dpalgos.guarantees import Claim, Guarantee, Setting, Trust
from dpalgos.registry import register
from dpalgos.secure.noise_shares import TruexGaussian, share_sigma
from dpalgos.trainers.descent import PlainDescent
from dpalgos.validation import require_count


@register("trainers", "truex")
@dataclass(frozen=True, kw_only=True)
class TruexDescent(PlainDescent):
    """Linear SVM by full-batch gradient descent on sums of clipped gradients; each party adds variance σ²/(t − 1).

    The paper has its parties send clipped and noised weights under threshold encryption; here the sums are masked, and
    what is clipped are the rows' gradients, which is what the noise is calibrated to.

    Guarantee
    ---------
    The budget, if of the parties at least t are honest and one of those curious: the shares of the other t − 1 are
    unknown to it. With Δ = 2·clip under replace-one, clip under replace-special (in grid units, from the encoded norms)
    and σ = √T Δ/μ, t − 1
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
    iterations : int
        T.
    step_size : float
        η.
    regularisation : float
        λ.
    clip : float
        Largest norm of a row's gradient.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.trainers.linear.LinearTrainer`.

    References
    ----------
    Truex, Baracaldo, Anwar, Steinke, Ludwig, Zhang, Zhou, "A hybrid approach to privacy-preserving federated learning",
    AISec 2019, section 4 (the split of the noise); as a row of Table 1 in Wang et al. 2024.
    """

    honest: int | None = None

    source: ClassVar[str] = "Truex et al. 2019, section 4"
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP if t parties are honest", "Truex et al. 2019, section 4")
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.honest is not None:
            require_count("honest", self.honest, 2)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget, and who is assumed honest."""
        self.check(setting)
        honest = self._honest(setting)
        return gaussian_guarantee(
            self.budget, setting, f"at least {honest} parties are honest, of whom one may be curious"
        )

    def law(self, setting: Setting) -> TruexGaussian:  # type: ignore[override]  # another law, of the same deviation
        """Return the noise of each sum, with its published split."""
        honest = self._honest(setting)
        whole = super().law(setting).sigma
        classes, width = self.task.shape(setting)
        share = share_sigma(whole, shares=honest - 1, dimension=classes * width)
        return TruexGaussian(sigma=share * math.sqrt(honest - 1) * (1.0 + 2.0**-48), honest=honest)

    def _honest(self, setting: Setting) -> int:
        parties = len(setting.sizes)
        # One party alone, as under a curator, adds the whole noise: t - 1 = 1.
        honest = max(parties, 2) if self.honest is None else self.honest
        if honest > max(parties, 2):
            raise ParameterError(f"honest is {honest} of {parties} parties; choose it from 2 to {max(parties, 2)}")
        return honest
