"""The systems of Sun et al. 2021: SMO with each rule of working set selection, DPWSS, and its sound counterpart."""

from __future__ import annotations

from dpalgos.guarantees import Trust
from dpalgos.registry import AlgorithmSpec, register
from dpalgos.systems.system import Arrangement, Scope, System
from dpalgos.trainers.dpwss import DpWss

__all__: list[str] = []

_PAPER = "sun-2021"
_SOURCE = "Sun et al. 2021"
_SOUND = "smo-output-perturbation"


def _arrangements(trainer: AlgorithmSpec) -> dict[str, Arrangement]:
    """All rows in one machine, as in the paper; or one machine a party, and the mean of their weights."""
    return {
        Trust.CENTRAL: Arrangement(trainer=trainer, trainer_scope=Scope.JOINT),
        Trust.LOCAL: Arrangement(
            trainer=trainer,
            trainer_scope=Scope.PARTY,
            model_aggregation=AlgorithmSpec("aggregators", "weighted-mean"),
        ),
    }


_RULES = {
    "wss1": ("the maximal violating pair", f"{_SOURCE}, WSS 1"),
    "wss2": ("second order information, as in LIBSVM", f"{_SOURCE}, WSS 2; Fan, Chen, Lin 2005"),
    "wss3": ("any pair within a constant factor of the maximal violating one", f"{_SOURCE}, WSS 3"),
    "wss4": ("a pair within a constant factor that holds the largest violator", f"{_SOURCE}, WSS 4"),
}

register("systems", "smo")(
    System(
        summary="The C-SVM by sequential minimal optimisation, without noise; the rule of selection is a parameter.",
        source="Fan, Chen, Lin 2005; Chang, Lin 2011 (LIBSVM)",
        paper=_PAPER,
        normalisation="none",
        sound_counterpart=_SOUND,
        arrangements=_arrangements(AlgorithmSpec("trainers", "smo")),
    )
)

for _name, (_what, _where) in _RULES.items():
    register("systems", _name)(
        System(
            summary=f"The C-SVM by sequential minimal optimisation, without noise; working sets by {_what}.",
            source=_where,
            paper=_PAPER,
            normalisation="none",
            sound_counterpart=_SOUND,
            arrangements=_arrangements(AlgorithmSpec("trainers", "smo", {"selection": _name})),
        )
    )

register("systems", "dpwss")(
    System(
        summary="The C-SVM by sequential minimal optimisation, working sets drawn by the exponential mechanism.",
        source=f"{_SOURCE}, Algorithms 1 and 2",
        paper=_PAPER,
        claim=DpWss.claim,
        normalisation="none",
        sound_counterpart=_SOUND,
        arrangements=_arrangements(AlgorithmSpec("trainers", "dpwss")),
    )
)

register("systems", _SOUND)(
    System(
        summary="The C-SVM solved to a certified distance from its minimum, Gaussian noise on its weights.",
        source="Chaudhuri, Monteleoni, Sarwate 2011, Corollary 8; the sound counterpart of DPWSS",
        paper=_PAPER,
        arrangements=_arrangements(AlgorithmSpec("trainers", _SOUND)),
    )
)
