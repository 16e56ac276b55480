"""Private SVMs as published, whose proofs fail: noise on dual variables, on weights without bias, in shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import PureAlgorithm, Unproved
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Claim, Guarantee, Setting, Trust
from dpalgos.kernels import LinearKernel
from dpalgos.losses import signs
from dpalgos.mechanisms.laplace import Laplace
from dpalgos.models import LinearModel
from dpalgos.noise import NoiseSource
from dpalgos.parameters import COUNT, POSITIVE, at_least
from dpalgos.registry import register
from dpalgos.resources import Work, machine_work
from dpalgos.rows import Rows
from dpalgos.secure.noise_shares import TruexGaussian, share_sigma
from dpalgos.smo.machine import gather_raw
from dpalgos.smo.solver import solve
from dpalgos.smo.working_sets import RULES
from dpalgos.trainers.gradient_descent import PlainDescent
from dpalgos.trainers.smo import Smo


@dataclass(frozen=True, kw_only=True)
class PublishedMachine(Unproved, PureAlgorithm):
    """A C-SVM with noise about which nothing is proved.

    Parameters
    ----------
    C : float
        Weight of the sum of losses.
    """

    C: float = field(default=1.0, metadata=POSITIVE)

    def work(self, setting: Setting) -> Work:
        """Return that of holding rows as they are, and a cache of kernel rows."""
        return machine_work(setting)


@register("trainers", "dual-perturbation-published")
@dataclass(frozen=True, kw_only=True)
class PublishedDualPerturbation(PublishedMachine):
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

    tolerance: float = field(default=1e-3, metadata=POSITIVE)

    source: ClassVar[str] = "Zhang, Hao, Wang 2019, as Sun et al. 2021 and Wang et al. 2024 describe it"
    claim: ClassVar[Claim | None] = Claim(
        "epsilon-DP",
        "Zhang, Hao, Wang 2019",
        "What is released is a combination of the support vectors themselves, so it lies in their span, which another "
        "row changes; the noise is scaled by errors that are functions of the rows, none where the error is zero, and "
        "the bias is exact. Many dual variables move when one row does, not one by C.",
    )
    sound_counterpart: ClassVar[str | None] = "smo-output-perturbation"

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the machine with noisy dual variables; one-vs-rest for three classes and more."""
        self.check(setting)
        features, labels = gather_raw(parties, setting.classes, setting.dimension)
        kernel, weights, biases = LinearKernel(), [], []
        for index, y in enumerate(signs(labels, setting.classes).T):
            rule = RULES["wss2"](0.7)
            centroids = solve(kernel, features, y, cost=self.C, tolerance=self.tolerance, rule=rule, shrinking=True)
            alpha = np.asarray(centroids.coefficients * y)
            exact = np.asarray(features.T @ centroids.coefficients)
            errors = np.abs(np.asarray(features @ exact) + centroids.bias - y) * (alpha > 0)
            ratio = errors / max(float(errors.max(initial=0.0)), np.finfo(np.float64).tiny)
            drawn = Laplace(self.C / self.budget.epsilon).sample(len(alpha), noise.stream(f"dual-{index}", alpha))
            noisy = np.clip(alpha + ratio * drawn, 0.0, self.C)
            weights.append(np.asarray(features.T @ (noisy * y)))
            biases.append(centroids.bias)
        return LinearModel(weights=np.stack(weights), intercept=np.array(biases))


@register("trainers", "svm-laplace-published")
@dataclass(frozen=True, kw_only=True)
class PublishedLaplaceSvm(PublishedMachine):
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

    attributes: int | None = field(default=None, metadata=COUNT)

    source: ClassVar[str] = "Huang et al. 2021, Algorithm 2"
    claim: ClassVar[Claim | None] = Claim(
        "(epsilon, 0)-DP",
        "Huang et al. 2021, Theorem 2",
        "The bias and the basis before it are released exactly, and both are functions of the rows.",
    )
    sound_counterpart: ClassVar[str | None] = "smo-output-perturbation"

    def noise_scale(self, setting: Setting) -> float:
        """Return 2Cnd/ε."""
        attributes = self.attributes or setting.dimension
        return 2.0 * self.C * max(setting.rows, 1) * attributes / self.budget.epsilon

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the machine of all parties' rows together, with noise on its weights."""
        exact = Smo(C=self.C).fit(parties, setting, noise)
        assert isinstance(exact, LinearModel)
        draws = Laplace(self.noise_scale(setting)).sample(exact.weights.size, noise.stream("weights", exact.weights))
        return LinearModel(
            weights=np.asarray(exact.weights + draws.reshape(exact.weights.shape)), intercept=exact.intercept
        )


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

    honest: int | None = field(default=None, metadata=at_least(2))

    source: ClassVar[str] = "Truex et al. 2019, section 4"
    people: ClassVar[str] = (
        "each of k rows' gradients is weighed 1/k in the factor that makes no score: their sum is no longer "
        "than one row's"
    )
    claim: ClassVar[Claim | None] = Claim("(epsilon, delta)-DP if t parties are honest", "Truex et al. 2019, section 4")
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget, and who is assumed honest."""
        assumed = f"at least {self._honest(setting)} parties are honest, of whom one may be curious"
        return replace(super().guarantee(setting), assumptions=(assumed,))

    def distribution(self, setting: Setting) -> TruexGaussian:  # type: ignore[override]  # another law, of the same deviation
        """Return the noise of each sum, with its published split."""
        honest = self._honest(setting)
        whole = super().distribution(setting).sigma
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
