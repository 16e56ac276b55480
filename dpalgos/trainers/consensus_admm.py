"""A linear SVM over parties by consensus ADMM with noise on what is exchanged: sound, and as published."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import GaussianAlgorithm, PureAlgorithm, Unproved
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Claim, Setting, Trust
from dpalgos.linear import LinearClassifierTrainer
from dpalgos.losses import outputs
from dpalgos.mechanisms.laplace import RadialLaplace
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.models import LinearModel
from dpalgos.parameters import COUNT, POSITIVE
from dpalgos.registry import register
from dpalgos.resources import Work, gathering_work
from dpalgos.rows import Floats, NoiseSource, Rows
from dpalgos.solvers import certified_minimiser, rounding_bound
from dpalgos.trainers.output_perturbation import SOLVER_ASSUMPTION

# Grid units per sensitivity: rounding thousands of weights then adds about 10⁻⁴ of it.
_FINENESS = 20
_TOLERANCE = 1e-9
# Noise and its sums must stay within 64-bit integers, too.
_LARGEST = 2.0**60


@dataclass(frozen=True, kw_only=True)
class _Consensus(LinearClassifierTrainer):
    """Consensus ADMM in scaled form: parties' weights wᵢ, the server's z, dual variables uᵢ.

    Minimised is Σ aᵢ Rᵢ(wᵢ) + (λ/2)‖z‖² subject to wᵢ = z, with Rᵢ party i's mean loss and aᵢ = nᵢ/n; the augmented
    term of party i is aᵢ(ρ/2)‖wᵢ − z + uᵢ‖². A step is wᵢ ← argmin Rᵢ(w) + (ρ/2)‖w − z + uᵢ‖², then
    z ← ρ Σ aᵢ(wᵢ + uᵢ)/(λ + ρ), then uᵢ ← uᵢ + wᵢ − z.

    Parameters
    ----------
    iterations : int
        T.
    penalty : float
        ρ: the noise falls with it, and so does the speed.
    regularisation : float
        λ.
    """

    iterations: int = field(default=10, metadata=COUNT)
    penalty: float = field(default=1.0, metadata=POSITIVE)
    regularisation: float = field(default=0.01, metadata=POSITIVE)

    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.task.loss.slope_norm(2)):
            raise ParameterError(f"the loss {self.loss!r} has no bounded slope; use huber-hinge, logistic or softmax")

    def work(self, setting: Setting) -> Work:
        """Return that of the parties' solvers, one after the other in each step."""
        return gathering_work(setting, rows=max(setting.sizes, default=0), times=self.iterations)

    def slope(self, setting: Setting) -> float:
        """Return G: the largest norm of one row's gradient, over all weight rows."""
        return self.task.loss.slope_norm(outputs(setting.classes))

    def reach(self, setting: Setting) -> float:
        """Return how long z − uᵢ may be before it is shortened: twice what the minimiser of the whole can be.

        The risk at the minimiser is at most that at 0.
        """
        weights, _ = self.task.shape(setting)
        label = self.task.loss.targets(np.zeros(1, dtype=np.int64), max(setting.classes, 2))
        at_zero = float(np.sum(self.task.loss.value(np.zeros((1, weights)), label)))
        return 2.0 * math.sqrt(2.0 * at_zero / self.regularisation)

    def solver_tolerance(self, setting: Setting) -> float:
        """Return γ, the norm of the exact gradient that every party's step is certified to; public.

        At least what :func:`~dpalgos.solvers.certified_minimiser` is proved to reach on any rows: ‖z − uᵢ‖ ≤ R, so that
        the linear term is at most ρR and the minimiser, within G/ρ of z − uᵢ, at most R + G/ρ.
        """
        slope, reach = self.slope(setting), self.reach(setting)
        problem = self.task.largest_problem(setting, self.penalty)
        longest = np.array([reach + slope / self.penalty])
        error = rounding_bound(problem, slope=np.array([slope]), weight=longest, linear=self.penalty * reach)
        return max(_TOLERANCE, 4.0 * (problem.smoothness / self.penalty + 1.0) * float(error[0]))

    def local_minimiser(self, rows: Rows, centre: Floats, setting: Setting) -> Floats:
        """Return a party's step from z − uᵢ, (m, p)."""
        problem = self.task.problem([rows], setting, self.penalty, -self.penalty * centre)
        return certified_minimiser(problem, self.solver_tolerance(setting))

    @abstractmethod
    def sent(
        self, rows: Rows, centre: Floats, setting: Setting, noise: NoiseSource, step: str
    ) -> tuple[Floats, Floats]:
        """Return the iterate that a party sends, (m, p), and the one that its dual variable takes."""

    def consensuses(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Iterator[Floats]:
        """Yield the consensus of each iteration; a party without rows sends nothing."""
        self.check(setting)
        shape = self.task.shape(setting)
        duals, common = np.zeros((len(parties), *shape)), np.zeros(shape)
        for step in range(self.iterations):
            sent, own = np.zeros_like(duals), np.zeros_like(duals)
            for party, rows in enumerate(parties):
                if rows.count > 0:
                    centre = self.shortened(common - duals[party], setting)
                    sent[party], own[party] = self.sent(rows, centre, setting, noise, f"party-{party}-step-{step}")
            common = self.consensus(sent, duals, setting)
            duals += own - common
            yield common

    def consensus(self, weights: Floats, duals: Floats, setting: Setting) -> Floats:
        """Return z from the parties' weights and dual variables (N, m, p)."""
        shares = np.array(setting.sizes, dtype=np.float64) / max(setting.rows, 1)
        mean = np.einsum("i,imp->mp", shares, weights + duals)
        return np.asarray(self.penalty / (self.regularisation + self.penalty) * mean)

    def shortened(self, centre: Floats, setting: Setting) -> Floats:
        """Return z − uᵢ, no longer than :meth:`reach`."""
        length = float(np.linalg.norm(centre))
        return centre * min(1.0, self.reach(setting) / length) if length > 0 else centre


@register("trainers", "consensus-admm")
@dataclass(frozen=True, kw_only=True)
class ConsensusAdmm(GaussianAlgorithm, _Consensus):
    """Consensus ADMM in which every party's weights leave it with Gaussian noise, and all else is made of those.

    Guarantee
    ---------
    The budget, for each party's rows, of everything that is exchanged: the noisy weights w̃ᵢ of all T steps, and so z,
    the dual variables and the model. No server needs to be trusted; that all runs in one process is a simulation.

    *One step.* Given what was exchanged before, z and uᵢ are fixed: the dual variables take the noisy w̃ᵢ, uᵢ ← uᵢ +
    w̃ᵢ − z. (With the exact wᵢ they would carry the rows from step to step, and a step's sensitivity would grow with
    the steps before.) Party i's step minimises a ρ-strongly convex risk; a replaced row changes its gradient at the
    minimiser by at most 2G/nᵢ in the Frobenius norm, G√m for m one-vs-rest slopes in [−1, 1] or √2 for softmax, so wᵢ
    moves by at most 2G/(nᵢρ), a record against a null one by half of it, however z − uᵢ lies.
    *Tolerance.* Each step is certified to a gradient norm γ that is public
    (:meth:`_Consensus.solver_tolerance`): 2√m γ/ρ more.
    *Integers.* nᵢwᵢ is rounded to a grid whose step is a power of two, √(m p) steps at most; rounded Gaussian integers
    are added, of μ/√T each, so that T steps, adaptively chosen, cost exactly μ (Dong, Roth, Su 2022, Corollary 2). A
    row is in one party: the parties' releases do not add up. Numerics exact.

    The model is the mean of z over the second half of the steps: post-processing.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    iterations : int
        T.
    penalty : float
        ρ.
    regularisation : float
        λ.
    loss : str
        A loss of bounded slope.
    width, intercept_scaling
        See :class:`~dpalgos.linear.LinearClassifierTrainer`.

    References
    ----------
    Boyd, Parikh, Chu, Peleato, Eckstein, "Distributed optimization and statistical learning via the alternating
    direction method of multipliers", 2011, section 8.2.3; Tavara, Schliep, Basu 2021 (corrected); Huang, Hu, Guo,
    Chan-Tin, Gong, "DP-ADMM", IEEE TIFS 15 (2020), for noise on the primal variables.
    """

    source: ClassVar[str] = "Tavara, Schliep, Basu 2021, corrected: every exchanged iterate is a release"
    people: ClassVar[str] = (
        "the risk is the mean over people of the mean over their rows: each person's gradient is as short as one row's"
    )
    assumptions: ClassVar[tuple[str, ...]] = (SOLVER_ASSUMPTION,)
    measured: ClassVar[str] = "nᵢwᵢ of one step, l2"

    def check(self, setting: Setting) -> None:
        """Raise where weights could leave the grid of their noise."""
        super().check(setting)
        self.distribution(setting)

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves nᵢwᵢ of one step, the solver's tolerance included, in l2."""
        weights, _ = self.task.shape(setting)
        tolerance = math.sqrt(weights) * self.solver_tolerance(setting) * max(setting.sizes, default=0)
        return (setting.neighbours.records * self.slope(setting) + 2.0 * tolerance) / self.penalty

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return nᵢwᵢ of the party's first step."""
        return rows.count * self.local_minimiser(rows, np.zeros(self.task.shape(setting)), setting)

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of nᵢwᵢ in each step, in grid units."""
        weights, width = self.task.shape(setting)
        unit, largest = self._unit(setting), self.reach(setting) + self.slope(setting) / self.penalty
        if max(setting.sizes, default=0) * largest / unit > _LARGEST:
            raise ParameterError(
                f"regularisation is {self.regularisation!r} and penalty {self.penalty!r}; with parties of "
                f"{max(setting.sizes)} rows the weights could leave the grid: choose larger ones"
            )
        moved = self.sensitivity(setting) / unit + math.sqrt(weights * width)
        return RoundedGaussian.calibrated(self.budget, moved, self.iterations)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the mean of the last half of the consensuses of all parties."""
        kept = list(self.consensuses(parties, setting, noise))
        return self.task.model(np.mean(kept[self.iterations // 2 :], axis=0), setting)

    def sent(
        self, rows: Rows, centre: Floats, setting: Setting, noise: NoiseSource, step: str
    ) -> tuple[Floats, Floats]:
        """Return the noisy minimiser, which the dual variable takes too."""
        unit = self._unit(setting)
        exact = np.rint(rows.count * self.local_minimiser(rows, centre, setting) / unit).astype(np.int64)
        drawn = self.distribution(setting).sample(exact.size, noise.stream(step, exact))
        noisy = (exact + drawn.reshape(exact.shape)) * unit / rows.count
        return noisy, noisy

    def _unit(self, setting: Setting) -> float:
        return 2.0 ** (math.floor(math.log2(self.sensitivity(setting))) - _FINENESS)


@register("trainers", "consensus-admm-published")
@dataclass(frozen=True, kw_only=True)
class PublishedConsensusAdmm(Unproved, PureAlgorithm, _Consensus):
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
        See :class:`ConsensusAdmm`.

    References
    ----------
    Tavara, Schliep, Basu, "Federated learning of oligonucleotide drug molecule thermodynamics with differentially
    private ADMM-based SVM", ECML PKDD Workshops 2021, as Wang et al. 2024, section 2, cites it.
    """

    source: ClassVar[str] = "Tavara, Schliep, Basu 2021, as Wang et al. 2024 cites it"
    claim: ClassVar[Claim | None] = Claim(
        "epsilon-DP",
        "Tavara, Schliep, Basu 2021 (our reading)",
        "T iterates are exchanged. Each is a release of the same rows, and one is counted. The dual variables carry"
        " exact iterates from step to step. A step therefore moves by more than its noise is calibrated to.",
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
