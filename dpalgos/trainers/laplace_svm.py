"""The SVM of Huang et al. 2021's PCA-DPSVM: exact, with Laplace noise on its weights and none on its bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import PureAlgorithm, Unproved
from dpalgos.guarantees import Claim, Setting
from dpalgos.mechanisms.laplace import Laplace
from dpalgos.models import LinearModel
from dpalgos.noise import NoiseSource
from dpalgos.registry import register
from dpalgos.rows import Rows
from dpalgos.trainers.smo import Smo
from dpalgos.validation import require_count, require_positive
from dpalgos.work import Work, machine_work


@register("trainers", "svm-laplace-published")
@dataclass(frozen=True, kw_only=True)
class PublishedLaplaceSvm(Unproved, PureAlgorithm):
    """Train the C-SVM and add Laplace noise of scale 2Cnd/ε to each weight; the bias is released as it is.

    Guarantee
    ---------
    None: see the flaw. (The scale is far larger than the weights need: they move by at most 2C in l2.)

    Parameters
    ----------
    budget : PureEpsilon
        The paper's ε.
    C : float
        Weight of the sum of losses.
    attributes : int, optional
        The paper's d; the number of features that reach the SVM by default.

    References
    ----------
    Huang, Yang, Xu, Zhou, Security and Communication Networks 2021, Algorithm 2, Lemma 2, Theorem 2.
    """

    C: float = 1.0
    attributes: int | None = None

    source: ClassVar[str] = "Huang et al. 2021, Algorithm 2"
    claim: ClassVar[Claim | None] = Claim(
        "(epsilon, 0)-DP",
        "Huang et al. 2021, Theorem 2",
        "The bias and the basis before it are released exactly, and both are functions of the rows.",
    )
    sound_counterpart: ClassVar[str | None] = "smo-output-perturbation"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("C", self.C)
        if self.attributes is not None:
            require_count("attributes", self.attributes)

    def noise_scale(self, setting: Setting) -> float:
        """Return 2Cnd/ε."""
        attributes = self.attributes or setting.dimension
        return 2.0 * self.C * max(setting.rows, 1) * attributes / self.budget.epsilon

    def work(self, setting: Setting) -> Work:
        """Return that of holding rows as they are, and a cache of kernel rows."""
        return machine_work(setting)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the machine of all parties' rows together, with noise on its weights."""
        exact = Smo(C=self.C).fit(parties, setting, noise)
        assert isinstance(exact, LinearModel)
        draws = Laplace(self.noise_scale(setting)).sample(exact.weights.size, noise.stream("weights", exact.weights))
        return LinearModel(
            weights=np.asarray(exact.weights + draws.reshape(exact.weights.shape)), intercept=exact.intercept
        )
