"""Support vector machines by SMO over rows as they are: without noise, and with the noise that was published."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import scipy

from dpalgos.algorithms import (
    SOLVER_COLUMNS,
    SOLVER_LOOKS,
    PureAlgorithm,
    Unproved,
    Work,
)
from dpalgos.guarantees import Claim, Setting
from dpalgos.kernels import KERNELS, GaussianKernel, Kernel, LinearKernel
from dpalgos.losses import outputs, signs
from dpalgos.mechanisms.distributions import Laplace
from dpalgos.models import KernelModel, LinearModel
from dpalgos.parameters import COUNT, POSITIVE, ParameterError, between
from dpalgos.published.smo import (
    RULES,
    PrivateSelection,
    SecondOrder,
    Solution,
    WorkingSetRule,
    solve,
)
from dpalgos.registry import register
from dpalgos.rows import Ints, NoiseSource, Rows, fingerprints, null_records
from dpalgos.sentences import coded

# What sequential minimal optimisation keeps of the kernel, at most.
_KERNEL_CACHE = 200 * 2**20
# From so many features on rows are taken to be sparse: one entry in ten, with its place.
_SPARSE_FROM, _SPARSE_BYTES = 1024, 1.2
# Kernel values of longer rows would leave float64's range.
_LONGEST = 1e50
# Below this share of entries that are not zero, products with a sparse matrix are faster, and it is smaller.
_SPARSE_BELOW = 0.1


def machine_work(setting: Setting) -> Work:
    """Return the work of sequential minimal optimisation on rows that are held as they are."""
    numbers, weights = float(setting.rows) * setting.dimension, outputs(setting.classes)
    # Row by row, and once more column by column, dense ones in float32.
    rows = numbers * (8 + 4 if setting.dimension < _SPARSE_FROM else 2 * _SPARSE_BYTES)
    cache = min(_KERNEL_CACHE, 4 * setting.rows**2)
    looks = SOLVER_LOOKS * weights
    return Work(
        passes=looks, operations=2.0 * numbers * looks, held=int(rows) + cache + 8 * setting.rows * SOLVER_COLUMNS
    )


def gather_raw(parties: Sequence[Rows], classes: int, dimension: int) -> tuple[Any, Ints]:
    """Return all parties' rows: features (n, dimension), dense or scipy's CSR, and labels (n,) in 0 … classes − 1.

    Total: null records are left out, and rows that no kernel can be computed of become zero.
    """
    blocks: list[Any] = []
    labels: list[Ints] = []
    sparse: bool | None = None
    for rows in parties:
        for block, block_labels, _ in rows.blocks():
            kept = ~null_records(block, block_labels, classes)
            features = np.asarray(block[kept], dtype=np.float64)
            short = (np.abs(features) < _LONGEST).all(axis=1, keepdims=True)
            features = features if short.all() else np.where(short, features, 0.0)
            if sparse is None:
                # The first block decides, so that the dense form of a large sparse set is never held.
                sparse = bool(np.count_nonzero(features) < _SPARSE_BELOW * features.size)
            blocks.append(scipy.sparse.csr_matrix(features) if sparse else features)
            labels.append(np.asarray(block_labels[kept], dtype=np.int64))
    if not blocks:
        return np.zeros((0, dimension)), np.zeros(0, dtype=np.int64)
    joined = scipy.sparse.vstack(blocks, format="csr") if sparse else np.concatenate(blocks)
    return joined, np.concatenate(labels)


@dataclass(frozen=True, kw_only=True)
class Machine(Unproved):
    """A C-SVM on rows as they are, of which nothing is proved.

    Parameters
    ----------
    C : float
        Weight of the sum of losses.
    """

    C: float = field(default=1.0, metadata=POSITIVE)

    def work(self, setting: Setting) -> Work:
        """Return that of holding rows as they are, and a cache of kernel rows."""
        return machine_work(setting)


@dataclass(frozen=True, kw_only=True)
class MachineTrainer(Machine):
    """A trainer of a C-SVM by sequential minimal optimisation; a subclass chooses the working sets.

    Parameters
    ----------
    C, kernel, gamma, tolerance, shrinking
        See :class:`Smo`.
    """

    kernel: str = "linear"
    gamma: float | None = field(default=None, metadata=POSITIVE)
    tolerance: float = field(default=1e-3, metadata=POSITIVE)
    shrinking: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel not in KERNELS:
            raise ParameterError(f"kernel is {self.kernel!r}; it must be one of {', '.join(sorted(KERNELS))}")

    @abstractmethod
    def rules(self, parties: Sequence[Rows], noise: NoiseSource) -> Callable[[int], WorkingSetRule]:
        """Return what chooses the working sets of each one-vs-rest problem."""

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel | KernelModel:
        """Return the machine trained on all parties' rows together."""
        return self.diagnostics(parties, setting, noise)[0]

    def diagnostics(
        self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource
    ) -> tuple[LinearModel | KernelModel, dict[str, float]]:
        """Train on all parties' rows together, one-vs-rest for three classes and more.

        Returns
        -------
        model : LinearModel or KernelModel
            With intercept.
        numbers : dict
            ``objective`` (of the dual, ½ αᵀQα − Σα), ``iterations``, ``duality_gap``: sums over the one-vs-rest
            problems; ``support_vectors``: rows that support any of them; ``converged``: 1 if all did, else 0;
            ``train_accuracy``. Computed from the rows without noise: for public data only.
        """
        features, labels = gather_raw(parties, setting.classes, setting.dimension)
        # gamma is LIBSVM's default where none is given.
        kernel = KERNELS[self.kernel](self.gamma if self.gamma is not None else 1.0 / max(1, setting.dimension))
        rule_of_class = self.rules(parties, noise)
        solutions = [
            solve(
                kernel,
                features,
                y,
                cost=self.C,
                tolerance=self.tolerance,
                rule=rule_of_class(index),
                shrinking=self.shrinking,
            )
            for index, y in enumerate(signs(labels, setting.classes).T)
        ]
        support = np.unique(np.concatenate([solution.support for solution in solutions]))
        model = _model(kernel, features, support, solutions)
        return model, {
            "objective": sum(solution.objective for solution in solutions),
            "iterations": float(sum(solution.iterations for solution in solutions)),
            "duality_gap": sum(solution.duality_gap for solution in solutions),
            "support_vectors": float(len(support)),
            "converged": float(all(solution.converged for solution in solutions)),
            "train_accuracy": float(np.mean(model.predict(features) == labels)) if len(labels) else 0.0,
        }


def _model(kernel: Kernel, features: Any, support: Any, solutions: Sequence[Solution]) -> LinearModel | KernelModel:
    coefficients = np.stack([solution.coefficients[support] for solution in solutions])
    intercept = np.array([solution.bias for solution in solutions])
    vectors = features[support]
    if not isinstance(vectors, np.ndarray):
        vectors = vectors.toarray()
    if isinstance(kernel, GaussianKernel):
        return KernelModel(
            support_vectors=vectors, coefficients=coefficients, intercept=intercept, gamma=np.array([kernel.gamma])
        )
    return LinearModel(weights=np.asarray(coefficients @ vectors), intercept=intercept)


@register("trainers", "smo")
@dataclass(frozen=True, kw_only=True)
class Smo(MachineTrainer):
    """Train the C-SVM with bias, min ½‖w‖² + C Σ hinge, by SMO; one-vs-rest for three classes and more.

    Rows are taken as they are. The dual that is solved is LIBSVM's: min ½ αᵀQα − Σα, 0 ≤ α ≤ C, yᵀα = 0; with two
    classes, class 1 is y = +1.

    Guarantee
    ---------
    None: the model is a function of the rows, and with the Gaussian kernel it contains some of them.

    Parameters
    ----------
    C : float
        Upper bound of the dual variables; the weight of the sum of losses.
    kernel : str
        ``"linear"`` or ``"rbf"``.
    gamma : float, optional
        Of the rbf kernel; 1/dimension if none is given.
    tolerance : float
        Largest violation of optimality left over, in LIBSVM's sense.
    selection : str
        Rule of working set selection, ``"wss1"`` to ``"wss4"``.
    sigma : float
        Constant factor of wss3 and wss4, in (0, 1].
    shrinking : bool
        Set aside rows at a bound that seem to stay there.

    References
    ----------
    Fan, Chen, Lin, "Working set selection using second order information for training support vector machines",
    JMLR 6 (2005); Chang, Lin, "LIBSVM: a library for support vector machines", ACM TIST 2 (2011).
    """

    selection: str = "wss2"
    sigma: float = 0.7

    source: ClassVar[str] = "Fan, Chen, Lin 2005, Algorithm 2 (WSS 1–3); Sun et al. 2021 (WSS 4)"
    sound_counterpart: ClassVar[str | None] = "smo-output-perturbation"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.selection not in RULES:
            raise ParameterError(f"selection is {self.selection!r}; it must be one of {', '.join(sorted(RULES))}")
        RULES[self.selection](self.sigma)

    def rules(self, parties: Sequence[Rows], noise: NoiseSource) -> Callable[[int], WorkingSetRule]:
        """Return one rule for all problems."""
        rule = RULES[self.selection](self.sigma)
        return lambda index: rule


@register("trainers", "dpwss")
@dataclass(frozen=True, kw_only=True)
class DpWss(MachineTrainer, PureAlgorithm):
    """Train the C-SVM by SMO with private working set selection, as published; rows are not scaled.

    The options are those of :class:`dpalgos.published.machines.Smo`; the selection is
    :class:`dpalgos.published.smo.PrivateSelection`. Training ends where the violation is below the tolerance, or
    where every admitted partner of the i that attains m has been drawn with it before, as in the paper's Algorithm 2.

    Guarantee
    ---------
    None. The paper claims ε-DP for the whole training (Theorem 1) from one use of the exponential mechanism with
    sensitivity 1 − σ of the score. Three things break it. (1) *The output hardly depends on the noise*: α and w are a
    function of the rows and of the order of the pairs, and where SMO converges, its limit is the exact
    minimiser in any order; two neighbours with different minimisers are told apart with probability near 1.
    (2) *Sensitivity*: 1 − σ bounds the spread of scores within one data set, not the change between neighbours; the
    range of the mechanism, pairs of records with score at least σ, is itself different, so that outputs with positive
    probability become impossible. (3) *Composition*: k selections cost k ε by the basic theorem; "each pair once" and
    "based on the last iteration" do not change that, for every iteration reads the gradient, hence the rows.

    Parameters
    ----------
    budget : PureEpsilon
        ε of each selection; the paper's total.
    sigma : float
        Constant factor in (0, 1); the paper uses 0.1, 0.3, 0.5 and 0.7.
    C, kernel, gamma, tolerance, shrinking
        As for SMO.

    References
    ----------
    Sun, Yang, Li, Zhang, "DPWSS: differentially private working set selection for training support vector machines",
    PeerJ Computer Science 7:e799 (2021), Algorithms 1 and 2.
    """

    sigma: float = field(default=0.7, metadata=between(0.0, 1.0, open_low=True, open_high=True))

    source: ClassVar[str] = "Sun et al. 2021, Algorithms 1 and 2"
    claim: ClassVar[Claim | None] = Claim("epsilon-DP", "Sun et al. 2021, Theorem 1", coded("pairs-name-records"))
    sound_counterpart: ClassVar[str | None] = "smo-output-perturbation"

    def rules(self, parties: Sequence[Rows], noise: NoiseSource) -> Callable[[int], WorkingSetRule]:
        """Return a private selection for each problem, with independent noise."""
        key = fingerprints(parties)
        return lambda index: PrivateSelection(
            sigma=self.sigma, epsilon=self.budget.epsilon, stream=noise.stream(f"working-sets-{index}", key)
        )


@register("trainers", "dual-perturbation-published")
@dataclass(frozen=True, kw_only=True)
class PublishedDualPerturbation(Machine, PureAlgorithm):
    """Train the C-SVM, add Laplace noise to its dual variables by the ratio of errors, release Σ α̃ y x and the bias.

    Our reading of what Sun et al. and Wang et al. say of the paper ("adds Laplace noise to the corresponding dual
    variables according to the ratio of errors"), which leaves the formula open. Eₜ = f(xₜ) − yₜ is SMO's error of a
    row. Each support vector's αₜ gets Laplace noise of scale C/ε, C being as far as a dual variable can move,
    times |Eₜ| over the largest error of a support vector, and is cut to [0, C]. The bias stays as it is.

    Guarantee
    ---------
    None: see the flaw. Of the paper, only the idea is known.

    Parameters
    ----------
    budget : PureEpsilon
        What the paper calls ε.
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
        coded("span-of-support-vectors"),
    )
    sound_counterpart: ClassVar[str | None] = "smo-output-perturbation"

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the machine with noisy dual variables; one-vs-rest for three classes and more."""
        self.check(setting)
        features, labels = gather_raw(parties, setting.classes, setting.dimension)
        kernel, weights, biases = LinearKernel(), [], []
        for index, y in enumerate(signs(labels, setting.classes).T):
            solution = solve(
                kernel, features, y, cost=self.C, tolerance=self.tolerance, rule=SecondOrder(), shrinking=True
            )
            alpha = np.asarray(solution.coefficients * y)
            exact = np.asarray(features.T @ solution.coefficients)
            errors = np.abs(np.asarray(features @ exact) + solution.bias - y) * (alpha > 0)
            ratio = errors / max(float(errors.max(initial=0.0)), np.finfo(np.float64).tiny)
            drawn = Laplace(self.C / self.budget.epsilon).sample(len(alpha), noise.stream(f"dual-{index}", alpha))
            noisy = np.clip(alpha + ratio * drawn, 0.0, self.C)
            weights.append(np.asarray(features.T @ (noisy * y)))
            biases.append(solution.bias)
        return LinearModel(weights=np.stack(weights), intercept=np.array(biases))


@register("trainers", "svm-laplace-published")
@dataclass(frozen=True, kw_only=True)
class PublishedLaplaceSvm(Machine, PureAlgorithm):
    """Train the C-SVM and add Laplace noise of scale 2Cnd/ε to each weight; the bias is released without noise.

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
        coded("exact-bias-and-basis-before"),
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
