"""The systems of Owusu-Agyemang et al. 2021 and those it is compared with: regularised regression over many parties."""

from __future__ import annotations

from dpalgos.registry import AlgorithmSpec, register
from dpalgos.systems.arranging import averaged, joint, summed
from dpalgos.systems.system import System
from dpalgos.trainers.laplace_output_perturbation import Pathak, PublishedMultiPartyOutputPerturbation
from dpalgos.trainers.mean_gradient_descent import GradientPerturbation, PublishedGradientPerturbation

__all__: list[str] = []

_PAPER = "owusu-agyemang-2021"
_SOURCE = "Owusu-Agyemang et al. 2021"
_LOGISTIC: dict[str, object] = {"loss": "logistic", "regularisation": 1e-3}
_SOUND = "secagg-output-perturbation"


def _trainer(name: str, **parameters: object) -> AlgorithmSpec:
    return AlgorithmSpec("trainers", name, parameters)


register("systems", "non-private-central")(
    System(
        summary="Regularised logistic regression on all rows together, without noise: what the gaps are measured from.",
        source=f"{_SOURCE}, section 5 (the optimum)",
        paper=_PAPER,
        arrangements=joint(_trainer("erm", **_LOGISTIC)),
    )
)

register("systems", "mpc-op")(
    System(
        summary="The mean of the parties' minimisers with Laplace noise on each coordinate.",
        source=f"{_SOURCE}, Theorem 4 (MPC-OP)",
        paper=_PAPER,
        claim=PublishedMultiPartyOutputPerturbation.claim,
        sound_counterpart=_SOUND,
        arrangements=summed(_trainer("mpc-op")),
    )
)

register("systems", _SOUND)(
    System(
        summary="The sum of the parties' minimisers, each times its rows, with Gaussian noise once.",
        source=f"{_SOURCE}, Theorem 4, corrected",
        paper=_PAPER,
        arrangements=summed(_trainer("output-perturbation", **_LOGISTIC)),
    )
)

register("systems", f"{_SOUND}-radial")(
    System(
        summary="The sum of the parties' minimisers, each times its rows, with radial noise once: pure epsilon.",
        source=f"{_SOURCE}, Theorem 4, corrected",
        paper=_PAPER,
        arrangements=summed(_trainer("output-perturbation-radial", **_LOGISTIC)),
    )
)

register("systems", "mpc-gp")(
    System(
        summary="Gradient descent on the mean of the parties' gradients, the paper's Gaussian noise once a step.",
        source=f"{_SOURCE}, Theorem 7, Algorithm 1 (MPC-AIGP)",
        paper=_PAPER,
        claim=PublishedGradientPerturbation.claim,
        arrangements=summed(_trainer("mpc-gp")),
    )
)

register("systems", "jayaraman-gp")(
    System(
        summary="Gradient descent on the mean of the parties' gradients, Gaussian noise once a step.",
        source=f"Jayaraman et al. 2018, section 3.2; {_SOURCE}, Table 3",
        paper=_PAPER,
        claim=GradientPerturbation.claim,
        arrangements=summed(_trainer("gradient-perturbation")),
    )
)

register("systems", "pathak")(
    System(
        summary="The mean of the parties' minimisers with Laplace noise for the smallest party alone.",
        source=f"Pathak, Rane, Raj 2010; {_SOURCE}, section 5.1 (PAT)",
        paper=_PAPER,
        claim=Pathak.claim,
        sound_counterpart=f"{_SOUND}-radial",
        arrangements=summed(_trainer("pathak")),
    )
)

register("systems", "local-output")(
    System(
        summary="Each party's minimiser with its own radial noise, then the weighted mean.",
        source=f"{_SOURCE}, section 5.1 (W-LOP)",
        paper=_PAPER,
        arrangements=averaged(_trainer("output-perturbation-radial", **_LOGISTIC)),
    )
)

register("systems", "local-objective")(
    System(
        summary="Each party's minimiser of its own perturbed objective, then the weighted mean.",
        source=f"{_SOURCE}, section 5.1 (W-LObjP)",
        paper=_PAPER,
        arrangements=averaged(_trainer("objective-perturbation", **_LOGISTIC)),
    )
)

register("systems", "local-gradient")(
    System(
        summary="Gradient descent on the mean of gradients that each party has noised (the sum of noise is simulated).",
        source=f"Shokri, Shmatikov 2015; {_SOURCE}, section 5.1",
        paper=_PAPER,
        arrangements=joint(_trainer("local-gradient")),
    )
)
