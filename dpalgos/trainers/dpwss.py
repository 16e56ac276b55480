"""DPWSS as published: the exponential mechanism chooses the pairs of SMO, and the model is released as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpalgos.algorithms import PureAlgorithm
from dpalgos.guarantees import Claim, Setting
from dpalgos.models import KernelModel, LinearModel
from dpalgos.noise import NoiseSource
from dpalgos.registry import register
from dpalgos.rows import Rows
from dpalgos.smo.machine import fingerprints, train
from dpalgos.smo.working_sets import PrivateSelection, require_sigma
from dpalgos.trainers.smo import MachineTrainer

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

    sigma: float = 0.7

    source: ClassVar[str] = "Sun et al. 2021, Algorithms 1 and 2"
    claim: ClassVar[Claim | None] = Claim("epsilon-DP", "Sun et al. 2021, Theorem 1", _FLAW)
    sound_counterpart: ClassVar[str | None] = "smo-output-perturbation"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sigma(self.sigma, below_one=True)

    def diagnostics(
        self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource
    ) -> tuple[LinearModel | KernelModel, dict[str, float]]:
        """Return the machine and the numbers of its training (:func:`dpalgos.smo.machine.train`)."""
        key = fingerprints(parties)
        return train(
            self._options(),
            lambda index: PrivateSelection(
                sigma=self.sigma, epsilon=self.budget.epsilon, stream=noise.stream(f"working-sets-{index}", key)
            ),
            parties,
            setting,
        )
