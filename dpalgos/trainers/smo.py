"""Support vector machines by sequential minimal optimisation, the reference without privacy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpalgos.algorithms import Unproved
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Setting
from dpalgos.models import KernelModel, LinearModel
from dpalgos.noise import NoiseSource
from dpalgos.registry import register
from dpalgos.rows import Rows
from dpalgos.smo.machine import MachineOptions, train
from dpalgos.smo.working_sets import RULES
from dpalgos.work import Work, machine_work


@dataclass(frozen=True, kw_only=True)
class MachineTrainer(Unproved):
    """What trains a C-SVM by sequential minimal optimisation; a subclass chooses the working sets.

    Parameters
    ----------
    C, kernel, gamma, tolerance, shrinking
        See :class:`Smo`.
    """

    C: float = 1.0
    kernel: str = "linear"
    gamma: float | None = None
    tolerance: float = 1e-3
    shrinking: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._options()

    def _options(self) -> MachineOptions:
        return MachineOptions(
            C=self.C, kernel=self.kernel, gamma=self.gamma, tolerance=self.tolerance, shrinking=self.shrinking
        )

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
        return train(self._options(), lambda index: rule, parties, setting)
