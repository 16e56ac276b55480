"""Support vector machines by SMO over rows as they are, noise on exact minimisers, and what was published."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import scipy

from dpalgos.algorithms import (
    Algorithm,
    GaussianAlgorithm,
    NeighbouringPair,
    PureAlgorithm,
    Refused,
    Unproved,
    Work,
    machine_work,
)
from dpalgos.guarantees import RELATIONS, Claim, Neighbours, Setting
from dpalgos.kernels import KERNELS, GaussianKernel, Kernel, LinearKernel
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.linear import LinearTask
from dpalgos.losses import HuberHinge, outputs, signs
from dpalgos.mechanisms.distributions import Laplace, RoundedGaussian
from dpalgos.models import KernelModel, LinearModel
from dpalgos.parameters import COUNT, NON_NEGATIVE, POSITIVE, ParameterError, between
from dpalgos.registry import register
from dpalgos.rows import NULL_LABEL, Floats, Ints, NoiseSource, RandomStream, Rows, fingerprints, null_records, sanitise
from dpalgos.sentences import coded
from dpalgos.smo.solver import (
    RULES,
    PrivateSelection,
    SecondOrder,
    Solution,
    WorkingSetRule,
    minimise_hinge,
    rounding_slack,
    solve,
)

# Kernel values of longer rows would leave float64's range.
_LONGEST = 1e50
# Below this share of entries that are not zero, products with a sparse matrix are faster, and it is smaller.
_SPARSE_BELOW = 0.1


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
    """What trains a C-SVM by sequential minimal optimisation; a subclass chooses the working sets.

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
    """Train the C-SVM by SMO with private working set selection, as published; rows are taken as they are.

    The options are those of :class:`dpalgos.trainers.smo.Smo`; the selection is
    :class:`dpalgos.smo.solver.PrivateSelection`. Training ends where the violation is below the tolerance, or
    where every admitted partner of the i that attains m has been drawn with it before, as in the paper's Algorithm 2.

    Guarantee
    ---------
    None. The paper claims ε-DP for the whole training (Theorem 1) from one use of the exponential mechanism with
    sensitivity 1 − σ of the score. Three things break it. (1) *The output hardly depends on the noise*: α and w are a
    function of the rows and of the order of the pairs, and where SMO converges, its limit is the exact
    minimiser whatever the order; two neighbours with different minimisers are told apart with probability near 1.
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
        """Return a private selection for each problem, with noise of its own."""
        key = fingerprints(parties)
        return lambda index: PrivateSelection(
            sigma=self.sigma, epsilon=self.budget.epsilon, stream=noise.stream(f"working-sets-{index}", key)
        )


# Grid units per sensitivity: rounding thousands of weights then adds about 10⁻⁴ of it.
_FINENESS = 20
# Covers the norms that clipping, appending and dividing leave above 1, by a few parts in 10¹⁵.
_NORM_EXCESS = 1e-12
_LARGEST_WEIGHT = 2.0**52


@dataclass(frozen=True, kw_only=True)
class HingeMinimisers(Algorithm):
    """The exact minimisers of ½‖w‖² + C Σ hinge, one-vs-rest, and how far one record moves them.

    Parameters
    ----------
    C : float
        Weight of the sum of losses; with λ the weight of a mean loss's regulariser, C = 1/(nλ). The noise grows with C.
    tolerance : float
        Share of 2C that the solver's inexactness may add to the sensitivity, in (0, 1]; Γ = (tolerance · C)²/2, or
        what float64 can certify for so many rows where that is more.
    intercept_scaling : float
        B, at least 0; 0 trains without intercept.
    """

    C: float = field(default=1.0, metadata=POSITIVE)
    tolerance: float = field(default=0.01, metadata=between(0.0, 1.0, open_low=True))
    intercept_scaling: float = field(default=1.0, metadata=NON_NEGATIVE)

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    measured: ClassVar[str] = "minimisers of ½‖w‖² + C Σ hinge, l2"

    def gap(self, setting: Setting) -> float:
        """Return Γ, how far the solver may stay from the minimum in each one-vs-rest problem."""
        # At the minimum C Σ hinge, Σ α and ‖w‖²/2 are at most C n, the value of w = 0.
        value = self.C * setting.rows
        slack = rounding_slack(setting.rows, setting.dimension + 1, self.C, value, value, math.sqrt(2.0 * value))
        return max(0.5 * (self.tolerance * self.C) ** 2, 4.0 * slack)

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves all released weights together, in l2, the solver's gap included."""
        exact = setting.neighbours.records * self.C * (1.0 + _NORM_EXCESS)
        return math.sqrt(outputs(setting.classes)) * (exact + 2.0 * math.sqrt(2.0 * self.gap(setting)))

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the minimisers of one party's rows, within the solver's gap."""
        return self._minimisers([rows], setting, KeyedNoise(public_secret(0), "statistic").stream("order", np.zeros(0)))

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return neighbours whose hinges push zero weights farthest apart; they attain √K·2C (or √K·C) for C ≤ 1."""
        return LinearTask(loss=HuberHinge(), intercept_scaling=self.intercept_scaling).steepest_pair(setting)

    def _minimisers(self, parties: Sequence[Rows], setting: Setting, order: RandomStream) -> Floats:
        """Return one weight row a class, of all parties' rows together."""
        features, labels = self._pool(parties, setting)
        targets = signs(labels, setting.classes)
        return np.stack([minimise_hinge(features, y, self.C, self.gap(setting), order) for y in targets.T])

    def _pool(self, parties: Sequence[Rows], setting: Setting) -> tuple[Floats, Ints]:
        count = sum(rows.count for rows in parties)
        pooled, labels, filled = np.zeros((count, setting.dimension + 1)), np.zeros(count, dtype=np.int64), 0
        for rows in parties:
            for features, block_labels, _ in rows.blocks():
                part = slice(filled, filled + len(block_labels))
                pooled[part, :-1], labels[part] = sanitise(features, block_labels, setting.classes)
                filled = part.stop
        # A null record has no constant feature either: a zero row moves no weight.
        pooled[:, -1] = np.where(labels == NULL_LABEL, 0.0, self.intercept_scaling)
        pooled *= self._factor()
        return pooled[:filled], labels[:filled]

    def _factor(self) -> float:
        return 1.0 / math.hypot(1.0, self.intercept_scaling)

    def _model(self, weights: Floats) -> LinearModel:
        """Return the model in the coordinates of the rows as they were before the constant was appended."""
        scaled = weights * self._factor()
        return LinearModel(weights=scaled[:, :-1], intercept=scaled[:, -1] * self.intercept_scaling)


@register("trainers", "smo-output-perturbation")
@dataclass(frozen=True, kw_only=True)
class SmoOutputPerturbation(GaussianAlgorithm, HingeMinimisers):
    """Release w + noise, w the minimiser of ½‖w‖² + C Σ hinge with the bias as a constant feature; one-vs-rest.

    α and the support vectors never leave: only the noisy weights do.

    Guarantee
    ---------
    The budget, jointly for all classes, for one party's rows (``local``) and for all parties' rows together
    (``central``) alike.

    *Rows.* x is clipped to the unit ball, the constant B (``intercept_scaling``) appended and the whole divided by
    √(1 + B²), so that ‖z‖ ≤ 1. (Appending 1 to a unit row without dividing would make the bound below 2√2 C.)
    *Sensitivity.* F(w) = ½‖w‖² + C Σ max(0, 1 − y w·z) is 1-strongly convex. Neighbours F, F′ differ in one term, g = F
    − F′ = C (ℓ(w; z, y) − ℓ(w; z′, y′)), which is 2C-Lipschitz. With minimisers w, w′: ‖w − w′‖² ≤ [F(w′) − F(w)] +
    [F′(w) − F′(w′)] = g(w′) − g(w) ≤ 2C ‖w − w′‖. So ‖w − w′‖ ≤ 2C; whether there is a constant feature is of no
    account, and neither is the number of rows. Under replace-special one of the two terms is the constant C, g is
    C-Lipschitz, and ‖w − w′‖ ≤ C. (A null record is a zero row, without the constant feature.)
    *Tolerance.* The solver returns ŵ with F(ŵ) − min F ≤ Γ, certified by a duality gap whose rounding error is bounded
    (:func:`dpalgos.smo.solver.rounding_slack`), hence ½‖ŵ − w‖² ≤ Γ: 2√(2Γ) more. Γ is public; the
    solver goes on until it is met, so nothing else is ever released. (A KKT tolerance bounds nothing of the kind.)
    *Classes.* K one-vs-rest problems on the same rows move by at most √K times that, as one vector.
    *Integers.* The weights are rounded to a grid whose step is a power of two, at most √(K p) steps more, and rounded
    Gaussian integers are added: exactly μ-Gaussian-DP.

    Parameters
    ----------
    budget : GaussianMu or ZeroConcentrated
    C, tolerance, intercept_scaling
        See :class:`HingeMinimisers`.

    References
    ----------
    Chaudhuri, Monteleoni, Sarwate, "Differentially private empirical risk minimization", JMLR 12 (2011), Corollary 8
    and Rubinstein et al. 2012, Lemma 15 (2C here, for rows in the unit ball and a Lipschitz hinge).
    """

    source: ClassVar[str] = "Chaudhuri, Monteleoni, Sarwate 2011, Corollary 8, for the C-SVM and a certified solver"
    people: ClassVar[str] = Refused("its solver's gap is certified for rows that weigh the same")

    def check(self, setting: Setting) -> None:
        """Raise where weights could leave the grid of their noise."""
        super().check(setting)
        self.distribution(setting)

    def distribution(self, setting: Setting) -> RoundedGaussian:
        """Return the noise of the weights, in grid units."""
        unit = self._unit(setting)
        if math.sqrt(2.0 * self.C * max(setting.rows, 1)) / unit > _LARGEST_WEIGHT:
            raise ParameterError(
                f"C is {self.C!r}; with {setting.rows} rows the weights could leave the grid: choose a larger C"
            )
        rounding = math.sqrt(outputs(setting.classes) * (setting.dimension + 1))
        return RoundedGaussian.calibrated(self.budget, self.sensitivity(setting) / unit + rounding)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the noisy machine of all parties' rows together."""
        (noisy,) = self.noisy(parties, setting, noise, 1)
        weights = np.asarray(noisy * self._unit(setting), dtype=np.float64)
        return self._model(weights.reshape(-1, setting.dimension + 1))

    def noisy(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource, count: int) -> Ints:
        """Return the minimisers in grid units plus ``count`` draws of the noise, (count, ·)."""
        weights = self._minimisers(parties, setting, noise.stream("order", fingerprints(parties)))
        exact = np.rint(weights / self._unit(setting)).astype(np.int64)
        drawn = self.distribution(setting).sample(count * exact.size, noise.stream("weights", exact))
        return np.asarray(exact.ravel() + drawn.reshape(count, -1))

    def _unit(self, setting: Setting) -> float:
        return 2.0 ** (math.floor(math.log2(self.sensitivity(setting))) - _FINENESS)


@register("trainers", "smo-output-perturbation-laplace")
@dataclass(frozen=True, kw_only=True)
class SmoLaplaceOutputPerturbation(PureAlgorithm, HingeMinimisers):
    """Release w + noise, w the minimiser of ½‖w‖² + C Σ hinge, one-vs-rest, each weight with Laplace noise of its own.

    Guarantee
    ---------
    epsilon-DP, jointly for all classes: the p weights of each of m machines move by at most Δ = 2C in l2 (C under
    replace-special), the solver's certified gap added (:class:`~dpalgos.trainers.smo`), hence by
    √p Δ in l1, and all of them by m√p Δ. Laplace noise of that scale over epsilon. The paper's own scale, for two
    classes, is 4C√p/epsilon (Lemma 15 bounds the l2 norm by 4C, twice what is needed). Numerics idealised.

    Parameters
    ----------
    budget : PureEpsilon
    C : float
        Weight of the sum of losses, the paper's C over n.
    tolerance : float
        Share of 2C that the solver's inexactness may add to the sensitivity, in (0, 1].
    intercept_scaling : float
        The constant feature, as there; 0, the paper's, trains without intercept.

    References
    ----------
    Rubinstein, Bartlett, Huang, Taft, "Learning in a large function space: privacy-preserving mechanisms for SVM
    learning", JPC 4 (2012), Algorithms 1 and 2, Theorems 10 and 16.
    """

    intercept_scaling: float = 0.0

    source: ClassVar[str] = "Rubinstein, Bartlett, Huang, Taft 2012, Algorithm 1 (PrivateSVM-Finite)"
    people: ClassVar[str] = Refused("its solver's gap is certified for rows that weigh the same")
    claim: ClassVar[Claim | None] = Claim("epsilon-DP", "Rubinstein et al. 2012, Theorem 10, for two classes")

    def scale(self, setting: Setting) -> float:
        """Return the scale of the noise of each weight."""
        # The l2 sensitivity holds √m; the l1 norm of m machines of p weights needs m√p in place of it.
        weights = outputs(setting.classes) * (setting.dimension + 1)
        return Laplace.calibrated(self.budget.epsilon, self.sensitivity(setting) * math.sqrt(weights)).scale

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        """Return the noisy machine of all parties' rows together."""
        self.check(setting)
        exact = self._minimisers(parties, setting, noise.stream("order", fingerprints(parties)))
        drawn = Laplace(self.scale(setting)).sample(exact.size, noise.stream("weights", exact))
        return self._model(np.asarray(exact + drawn.reshape(exact.shape)))


@register("trainers", "dual-perturbation-published")
@dataclass(frozen=True, kw_only=True)
class PublishedDualPerturbation(Machine, PureAlgorithm):
    """Train the C-SVM, add Laplace noise to its dual variables by the ratio of errors, release Σ α̃ y x and the bias.

    Our reading of what Sun et al. and Wang et al. say of the paper ("adds Laplace noise to the corresponding dual
    variables according to the ratio of errors"), which leaves the formula open. Eₜ = f(xₜ) − yₜ is SMO's error of a
    row. Each support vector's αₜ gets Laplace noise of scale C/ε, C being as far as a dual variable can move, times
    |Eₜ| over the largest error of a support vector, and is cut to [0, C]. The bias stays as it is.

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
