"""Minimisers of the risk with noise as published, without a proof: on the objective, the mean, and ADMM's exchanges."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dpalgos.algorithms import PureAlgorithm, Unproved
from dpalgos.guarantees import Claim, Setting, Trust
from dpalgos.linear import LinearTask
from dpalgos.losses import HuberHinge
from dpalgos.mechanisms.distributions import RadialLaplace
from dpalgos.models import LinearModel
from dpalgos.parameters import POSITIVE
from dpalgos.registry import register
from dpalgos.rows import Floats, NoiseSource, Rows
from dpalgos.sentences import coded
from dpalgos.trainers.objective_perturbation import Calibration, exp_minus_one, with_radial_noise
from dpalgos.trainers.output_perturbation import Consensus, MinimiserMean


@register("trainers", "objective-perturbation-published")
@dataclass(frozen=True, kw_only=True)
class PublishedObjectivePerturbation(Unproved, PureAlgorithm):
    """Wang et al.'s Algorithm 3 as printed: Huber hinge, the full epsilon_2 for every one-vs-rest classifier.

    Guarantee
    ---------
    None for the whole release: see the flaw.

    Parameters
    ----------
    budget : PureEpsilon
        The paper's ε₂, spent by each classifier.
    regularisation : float
        λ.
    width : float
        h of the Huber hinge.

    References
    ----------
    Wang et al., CMC 78 (2024), Algorithm 3, Theorem 4.2.
    """

    regularisation: float = field(default=0.01, metadata=POSITIVE)
    width: float = 0.5

    source: ClassVar[str] = "Wang et al. 2024, Algorithm 3"
    claim: ClassVar[Claim | None] = Claim(
        "epsilon_2-DP",
        "Wang et al. 2024, Theorem 4.2",
        coded("classifiers-and-minimiser"),
    )
    sound_counterpart: ClassVar[str | None] = "objective-perturbation"
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.LOCAL, Trust.CENTRAL)

    def __post_init__(self) -> None:
        super().__post_init__()
        HuberHinge(width=self.width)

    def calibration(self, setting: Setting) -> Calibration:
        """Return regularisation and noise scale as printed."""
        epsilon, rows = self.budget.epsilon, max(setting.rows, 1)
        curvature = HuberHinge(width=self.width).curvature_bound
        ratio = curvature / (rows * self.regularisation)
        # ln(1 + 2 ratio + ratio²), without overflow.
        remaining = epsilon - 2.0 * math.log1p(ratio)
        if remaining > 0:
            return Calibration(regularisation=self.regularisation, noise_scale=2.0 / remaining)
        # The paper adds θ = c/(n (e^{ε/4} − 1)) − λ to λ.
        return Calibration(regularisation=curvature / (rows * exp_minus_one(epsilon / 4.0)), noise_scale=4.0 / epsilon)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the perturbed minimisers over all given rows."""
        task = LinearTask(loss=HuberHinge(width=self.width))
        return with_radial_noise(parties, setting, noise, task, self.calibration(setting))


@register("trainers", "mpc-op")
@dataclass(frozen=True, kw_only=True)
class PublishedMultiPartyOutputPerturbation(Unproved, MinimiserMean):
    """The mean of the parties' exact minimisers plus Laplace noise of scale 2G/(N n₍₁₎ λ ε) on each coordinate.

    The sum of the parties' minimisers, in integers, gets discrete Laplace noise of N times that scale, once by a
    curator or in the parties' shares; the mean divides by the parties that took part.

    Guarantee
    ---------
    None: see the flaw. (What the noise does give for m classifiers of p weights is m√p·ε.)

    Parameters
    ----------
    budget : PureEpsilon
        The paper's ε.
    regularisation : float
        λ.
    loss : str
        ``logistic``; ``squared`` for numeric labels.
    width, intercept_scaling, label_range
        See :class:`~dpalgos.linear.LinearTrainer`.

    References
    ----------
    Owusu-Agyemang et al., Math. Biosci. Eng. 18 (2021), Theorems 3 and 4.
    """

    source: ClassVar[str] = "Owusu-Agyemang et al. 2021, Theorem 4"
    claim: ClassVar[Claim | None] = Claim(
        "epsilon-DP",
        "Owusu-Agyemang et al. 2021, Theorem 4",
        coded("laplace-for-l2"),
    )
    sound_counterpart: ClassVar[str | None] = "output-perturbation-radial"

    def _multiple(self, setting: Setting) -> int:
        """Return 1: the noise is that of one party's change."""
        return 1


@register("trainers", "consensus-admm-published")
@dataclass(frozen=True, kw_only=True)
class PublishedConsensusAdmm(Unproved, PureAlgorithm, Consensus):
    """Consensus ADMM with radial noise on each exchanged iterate, each calibrated to the whole ε.

    Our reading: the paper's abstract and what Wang et al. say of it leave the noise open. Each exchanged wᵢ gets noise
    of density ∝ exp(−‖η‖ ε/Δ), Δ = 2G/(nᵢρ), as if it were the only one, and the dual variables take the exact wᵢ.

    Guarantee
    ---------
    None: see the flaw.

    Parameters
    ----------
    budget : PureEpsilon
        The paper's ε.
    iterations, penalty, regularisation, loss, width, intercept_scaling
        See :class:`~dpalgos.trainers.output_perturbation.ConsensusAdmm`.

    References
    ----------
    Tavara, Schliep, Basu, "Federated learning of oligonucleotide drug molecule thermodynamics with differentially
    private ADMM-based SVM", ECML PKDD Workshops 2021, as Wang et al. 2024, section 2, cites it.
    """

    source: ClassVar[str] = "Tavara, Schliep, Basu 2021, as Wang et al. 2024 cites it"
    claim: ClassVar[Claim | None] = Claim(
        "epsilon-DP",
        "Tavara, Schliep, Basu 2021 (our reading)",
        coded("iterates-not-composed"),
    )
    sound_counterpart: ClassVar[str | None] = "consensus-admm"

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the last consensus of all parties."""
        *_, common = self.consensuses(parties, setting, noise)
        return self.task.model(common, setting)

    def sent(
        self, rows: Rows, centre: Floats, setting: Setting, noise: NoiseSource, step: str
    ) -> tuple[Floats, Floats]:
        """Return the noisy minimiser, and the exact one for the dual variable."""
        exact = self.local_minimiser(rows, centre, setting)
        distribution = RadialLaplace(2.0 * self.slope(setting) / (rows.count * self.penalty * self.budget.epsilon))
        return exact + distribution.sample(exact.size, noise.stream(step, exact)).reshape(exact.shape), exact
