"""The SVM with Laplace noise on its dual variables, as published by Zhang, Hao and Wang 2019."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import PureAlgorithm, Unproved
from dpalgos.guarantees import Claim, Setting
from dpalgos.kernels import LinearKernel
from dpalgos.losses import signs
from dpalgos.mechanisms.laplace import Laplace
from dpalgos.models import LinearModel
from dpalgos.noise import NoiseSource
from dpalgos.registry import register
from dpalgos.rows import Rows
from dpalgos.smo.raw_rows import gather_raw
from dpalgos.smo.solver import solve
from dpalgos.smo.working_sets import RULES
from dpalgos.validation import require_positive
from dpalgos.work import Work, machine_work


@register("trainers", "dual-perturbation-published")
@dataclass(frozen=True, kw_only=True)
class PublishedDualPerturbation(Unproved, PureAlgorithm):
    """Train the C-SVM, add Laplace noise to its dual variables by the ratio of errors, release Σ α̃ y x and the bias.

    Our reading of what Sun et al. and Wang et al. say of the paper ("adds Laplace noise to the corresponding dual
    variables according to the ratio of errors"), which leaves the formula open. Eₜ = f(xₜ) − yₜ is SMO's error of a
    row. Each support vector's αₜ gets Laplace noise of scale C/ε, C being as far as a dual variable can move, times
    |Eₜ| over the largest error of a support vector, and is cut to [0, C]. The bias stays as it is.

    Guarantee
    ---------
    None: see the flaw.

    Parameters
    ----------
    budget : PureEpsilon
        The paper's ε.
    C : float
        Upper bound of the dual variables.
    tolerance : float
        Largest violation of optimality left over.

    References
    ----------
    Zhang, Hao, Wang, "A differential privacy support vector machine classifier based on dual variable perturbation",
    IEEE Access 7 (2019) 98238; as described by Sun et al. 2021, section 2, and Wang et al. 2024, section 2.
    """

    C: float = 1.0
    tolerance: float = 1e-3

    source: ClassVar[str] = "Zhang, Hao, Wang 2019, as Sun et al. 2021 and Wang et al. 2024 describe it"
    claim: ClassVar[Claim | None] = Claim(
        "epsilon-DP",
        "Zhang, Hao, Wang 2019",
        "What is released is a combination of the support vectors themselves, so it lies in their span, which another "
        "row changes; the noise is scaled by errors that are functions of the rows, none where the error is zero, and "
        "the bias is exact. Many dual variables move when one row does, not one by C.",
    )
    sound_counterpart: ClassVar[str | None] = "smo-output-perturbation"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("C", self.C)
        require_positive("tolerance", self.tolerance)

    def work(self, setting: Setting) -> Work:
        """Return that of holding rows as they are, and a cache of kernel rows."""
        return machine_work(setting)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the machine with noisy dual variables; one-vs-rest for three classes and more."""
        self.check(setting)
        features, labels = gather_raw(parties, setting.classes, setting.dimension)
        kernel, weights, biases = LinearKernel(), [], []
        for index, y in enumerate(signs(labels, setting.classes).T):
            rule = RULES["wss2"](0.7)
            found = solve(kernel, features, y, cost=self.C, tolerance=self.tolerance, rule=rule, shrinking=True)
            alpha = np.asarray(found.coefficients * y)
            exact = np.asarray(features.T @ found.coefficients)
            errors = np.abs(np.asarray(features @ exact) + found.bias - y) * (alpha > 0)
            ratio = errors / max(float(errors.max(initial=0.0)), np.finfo(np.float64).tiny)
            drawn = Laplace(self.C / self.budget.epsilon).sample(len(alpha), noise.stream(f"dual-{index}", alpha))
            noisy = np.clip(alpha + ratio * drawn, 0.0, self.C)
            weights.append(np.asarray(features.T @ (noisy * y)))
            biases.append(found.bias)
        return LinearModel(weights=np.stack(weights), intercept=np.array(biases))
