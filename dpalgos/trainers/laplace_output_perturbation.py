"""Output perturbation with Laplace noise on every coordinate, as multi-party papers publish it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.guarantees import Claim, Guarantee, Loss, PureEpsilon, Setting, Trust, nothing_proved
from dpalgos.linear import LinearTask
from dpalgos.losses import make_loss, outputs
from dpalgos.mechanisms.laplace import Laplace
from dpalgos.models import LinearModel
from dpalgos.noise import NoiseSource
from dpalgos.registry import register
from dpalgos.rows import Floats, Rows
from dpalgos.solvers import Problem, minimise
from dpalgos.trainers.output_perturbation import slope_at_minimum
from dpalgos.validation import require_budget, require_positive, require_replace_one

__all__ = ["Pathak", "PublishedMultiPartyOutputPerturbation"]

_TOLERANCE = 1e-10


def _mean_minimiser(parties: Sequence[Rows], setting: Setting, task: LinearTask, regularisation: float) -> Floats:
    """Return the plain mean of the parties' exact minimisers, (m, p)."""
    minimisers = []
    for rows in parties:
        features, targets = task.gather([rows], setting)
        problem = Problem(features=features, targets=targets, loss=task.loss, regularisation=regularisation)
        minimisers.append(minimise(problem, _TOLERANCE).weights)
    return np.asarray(np.mean(minimisers, axis=0)) if minimisers else np.zeros(task.shape(setting))


def _scale(setting: Setting, task: LinearTask, regularisation: float, epsilon: float) -> float:
    """Return 2G/(n₍₁₎ λ ε) with G of one classifier, as the papers count."""
    smallest = max(1, min(setting.sizes, default=1))
    return 2.0 * slope_at_minimum(task.loss, 2, regularisation) / (smallest * regularisation * epsilon)


@register("trainers", "mpc-op")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedMultiPartyOutputPerturbation:
    """The mean of the parties' exact minimisers plus Laplace noise of scale 2G/(N n₍₁₎ λ ε) on each coordinate.

    Guarantee
    ---------
    None: see the flaw. (What the noise does give for one classifier of p weights is √p·ε.)

    Parameters
    ----------
    budget : PureEpsilon
        The paper's ε.
    regularisation : float
        λ.
    loss : str
        ``logistic``; ``squared`` for real labels.
    width : float, optional
        h of the smooth hinges.
    intercept_scaling : float
        B of the constant feature inside the unit ball; 0 for no intercept.
    label_range : (float, float)
        Declared range of real labels.

    References
    ----------
    Owusu-Agyemang et al., Math. Biosci. Eng. 18 (2021), Theorems 3 and 4.
    """

    budget: Loss
    regularisation: float = 1e-3
    loss: str = "logistic"
    width: float | None = None
    intercept_scaling: float = 0.0
    label_range: Sequence[float] = (-1.0, 1.0)

    source: ClassVar[str] = "Owusu-Agyemang et al. 2021, Theorem 4"
    claim: ClassVar[Claim | None] = Claim(
        "epsilon-DP",
        "Owusu-Agyemang et al. 2021, Theorem 4",
        "The minimiser moves by 2G/(n lambda) in the l2 norm, which Laplace noise on each of d coordinates does not "
        "hide: the l1 norm can be sqrt(d) times as much, and so can epsilon.",
    )
    sound_counterpart: ClassVar[str | None] = "output-perturbation-radial"
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL, Trust.LOCAL)
    budgets: ClassVar[tuple[type[Loss], ...]] = (PureEpsilon,)
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_budget(self.budget, self.budgets)
        require_positive("regularisation", self.regularisation)
        self._task()

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return none, with the flaw."""
        self._task().check(setting)
        assert self.claim is not None
        return nothing_proved(str(self.claim.flaw), setting.neighbours)

    def noise_scale(self, setting: Setting) -> float:
        """Return the paper's scale of the Laplace noise."""
        assert isinstance(self.budget, PureEpsilon)
        return _scale(setting, self._task(), self.regularisation, self.budget.epsilon) / max(len(setting.sizes), 1)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the noisy mean of the parties' minimisers."""
        weights = _mean_minimiser(parties, setting, self._task(), self.regularisation)
        draws = Laplace(self.noise_scale(setting)).sample(weights.size, noise.stream("mean", weights))
        return self._task().model(weights + draws.reshape(weights.shape), setting)

    def _task(self) -> LinearTask:
        return LinearTask(
            loss=make_loss(self.loss, self.width),
            intercept_scaling=self.intercept_scaling,
            label_range=self.label_range,
        )


@register("trainers", "pathak")
@dataclass(frozen=True, slots=True, kw_only=True)
class Pathak:
    """The mean of the parties' exact minimisers plus Laplace noise for the smallest party alone, 2G/(n₍₁₎ λ ε).

    Guarantee
    ---------
    epsilon-DP under replace-one where there are enough parties, none otherwise. The mean of N minimisers of m
    classifiers with p weights each moves by at most Δ = 2√m G/(N n₍₁₎ λ) in l2 and by √(m p) Δ in l1; the noise's
    scale is b = 2G/(n₍₁₎ λ ε), so the loss is √(m p) Δ/b = m √p ε/N, at most ε if N ≥ m √p. (The published proof does
    not ask for that; it forgets the step from l2 to l1, and the N times too much noise makes up for it.) For exact
    minimisers: the solver's tolerance, 10⁻¹⁰ in the gradient, is not charged. Numerics idealised.

    Parameters
    ----------
    budget : PureEpsilon
    regularisation : float
        λ.
    loss : str
        ``logistic``; ``squared`` for real labels.
    width : float, optional
        h of the smooth hinges.
    intercept_scaling : float
        B of the constant feature inside the unit ball; 0 for no intercept.
    label_range : (float, float)
        Declared range of real labels.

    References
    ----------
    Pathak, Rane, Raj, "Multiparty differential privacy via aggregation of locally trained classifiers", NeurIPS 2010,
    Theorem 3; as PAT in Owusu-Agyemang et al. 2021, section 5.1.
    """

    budget: Loss
    regularisation: float = 1e-3
    loss: str = "logistic"
    width: float | None = None
    intercept_scaling: float = 0.0
    label_range: Sequence[float] = (-1.0, 1.0)

    source: ClassVar[str] = "Pathak, Rane, Raj 2010, Theorem 3"
    claim: ClassVar[Claim | None] = Claim("epsilon-DP", "Pathak, Rane, Raj 2010, Theorem 3")
    sound_counterpart: ClassVar[str | None] = "output-perturbation-radial"
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)
    budgets: ClassVar[tuple[type[Loss], ...]] = (PureEpsilon,)
    reads_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_budget(self.budget, self.budgets)
        require_positive("regularisation", self.regularisation)
        self._task()

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget if there are at least m√p parties."""
        require_replace_one(setting)
        self._task().check(setting)
        needed = outputs(setting.classes) * math.sqrt(self._task().shape(setting)[1])
        if len(setting.sizes) < needed:
            return nothing_proved(
                f"{len(setting.sizes)} parties; the proof for Laplace noise on each coordinate needs "
                f"{math.ceil(needed)} of them, the number of classifiers times sqrt(dimension)",
                setting.neighbours,
            )
        return Guarantee(losses=(self.budget,), neighbours=setting.neighbours, assumptions=("minimisers are exact",))

    def noise_scale(self, setting: Setting) -> float:
        """Return the paper's scale of the Laplace noise."""
        assert isinstance(self.budget, PureEpsilon)
        return _scale(setting, self._task(), self.regularisation, self.budget.epsilon)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the noisy mean of the parties' minimisers."""
        weights = _mean_minimiser(parties, setting, self._task(), self.regularisation)
        draws = Laplace(self.noise_scale(setting)).sample(weights.size, noise.stream("mean", weights))
        return self._task().model(weights + draws.reshape(weights.shape), setting)

    def _task(self) -> LinearTask:
        return LinearTask(
            loss=make_loss(self.loss, self.width),
            intercept_scaling=self.intercept_scaling,
            label_range=self.label_range,
        )
