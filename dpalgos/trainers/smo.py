"""Support vector machines by SMO without privacy, and DPWSS as published."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dpalgos.algorithms import PureAlgorithm, Unproved
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Claim, Setting
from dpalgos.models import KernelModel, LinearModel
from dpalgos.noise import NoiseSource
from dpalgos.parameters import between
from dpalgos.registry import register
from dpalgos.resources import Work, machine_work
from dpalgos.rows import Rows, fingerprints
from dpalgos.smo.machine import MachineOptions, train
from dpalgos.smo.working_sets import RULES, PrivateSelection


@dataclass(frozen=True, kw_only=True)
class MachineTrainer(MachineOptions, Unproved):
    """What trains a C-SVM by sequential minimal optimisation; a subclass chooses the working sets.

    Parameters
    ----------
    C, kernel, gamma, tolerance, shrinking
        See :class:`Smo`.
    """

    def work(self, setting: Setting) -> Work:
        """Return that of holding rows as they are, and a cache of kernel rows."""
        return machine_work(setting)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel | KernelModel:
        """Return the machine trained on all parties' rows together."""
        return self.diagnostics(parties, setting, noise)[0]

    @abstractmethod
    def diagnostics(
        self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource
    ) -> tuple[LinearModel | KernelModel, dict[str, float]]:
        """Return the machine and the numbers of its training (:func:`dpalgos.smo.machine.train`)."""


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

    def diagnostics(
        self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource
    ) -> tuple[LinearModel | KernelModel, dict[str, float]]:
        """Return the machine and the numbers of its training (:func:`dpalgos.smo.machine.train`)."""
        rule = RULES[self.selection](self.sigma)
        return train(self, lambda index: rule, parties, setting)


_FLAW = (
    "Where SMO converges it gives the non-private machine whatever the order of the pairs; the pairs name records, so "
    "that a neighbour without the record gives them probability 0; thousands of selections cost epsilon each, not once."
)


@register("trainers", "dpwss")
@dataclass(frozen=True, kw_only=True)
class DpWss(MachineTrainer, PureAlgorithm):
    """Train the C-SVM by SMO with private working set selection, as published; rows are taken as they are.

    The options are those of :class:`dpalgos.trainers.smo.Smo`; the selection is
    :class:`dpalgos.smo.working_sets.PrivateSelection`. Training ends where the violation is below the tolerance, or
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
    claim: ClassVar[Claim | None] = Claim("epsilon-DP", "Sun et al. 2021, Theorem 1", _FLAW)
    sound_counterpart: ClassVar[str | None] = "smo-output-perturbation"

    def diagnostics(
        self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource
    ) -> tuple[LinearModel | KernelModel, dict[str, float]]:
        """Return the machine and the numbers of its training (:func:`dpalgos.smo.machine.train`)."""
        key = fingerprints(parties)
        return train(
            self,
            lambda index: PrivateSelection(
                sigma=self.sigma, epsilon=self.budget.epsilon, stream=noise.stream(f"working-sets-{index}", key)
            ),
            parties,
            setting,
        )
