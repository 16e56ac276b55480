"""Systems that the four papers name or compare with: ADMM-SVM, dual perturbation, PPCA, and Fourier features."""

from __future__ import annotations

from dpalgos.registry import AlgorithmSpec, register
from dpalgos.systems.arranging import averaged, joint
from dpalgos.systems.system import Arrangement, System
from dpalgos.trainers.consensus_admm import PublishedConsensusAdmm
from dpalgos.trainers.dual_perturbation import PublishedDualPerturbation
from dpalgos.trainers.smo_laplace_output_perturbation import SmoLaplaceOutputPerturbation

__all__: list[str] = []

_PPCA = AlgorithmSpec("projections", "ppca")
# Of C 0.003 … 1 and gamma 0.5 … 3, what is best on digits at epsilon = 3: a small C makes the weights nearly a sum of
# rows, which noise hides least.
_FOURIER = AlgorithmSpec("projections", "random-fourier", {"frequencies": 128, "gamma": 3.0})
_SMALL: dict[str, object] = {"C": 0.01, "intercept_scaling": 0.0}


def _alone_or_averaged(trainer: AlgorithmSpec, projection: AlgorithmSpec | None = None) -> dict[str, Arrangement]:
    return joint(trainer, projection) | averaged(trainer, projection)


register("systems", "admm-svm")(
    System(
        summary="A linear SVM by consensus ADMM; every vector that a party sends has Gaussian noise of its own.",
        source="Tavara, Schliep, Basu 2021, corrected",
        paper="tavara-2021",
        arrangements=joint(AlgorithmSpec("trainers", "consensus-admm")),
    )
)

register("systems", "admm-svm-published")(
    System(
        summary="A linear SVM by consensus ADMM; the noise of each exchange is calibrated as if it were the only one.",
        source="Tavara, Schliep, Basu 2021",
        paper="tavara-2021",
        claim=PublishedConsensusAdmm.claim,
        sound_counterpart="admm-svm",
        arrangements=joint(AlgorithmSpec("trainers", "consensus-admm-published")),
    )
)

register("systems", "dual-perturbation")(
    System(
        summary="The C-SVM with Laplace noise on its dual variables, scaled by the ratio of errors.",
        source="Zhang, Hao, Wang 2019, as Sun et al. 2021 and Wang et al. 2024 describe it",
        paper="zhang-2019",
        claim=PublishedDualPerturbation.claim,
        normalisation="none",
        sound_counterpart="smo-output-perturbation",
        arrangements=_alone_or_averaged(AlgorithmSpec("trainers", "dual-perturbation-published")),
    )
)

register("systems", "ppca-dpsvm")(
    System(
        summary="Principal directions drawn by the exponential mechanism, then a Huber SVM with radial noise: pure ε.",
        source="Chaudhuri, Sarwate, Sinha 2013, Algorithm 2, with noise on the weights too",
        paper="chaudhuri-2013",
        arrangements=joint(AlgorithmSpec("trainers", "output-perturbation-radial"), _PPCA)
        | averaged(AlgorithmSpec("trainers", "objective-perturbation"), _PPCA),
    )
)

register("systems", "fourier-svm")(
    System(
        summary="A kernel SVM: public random Fourier features, then the C-SVM with Gaussian noise on its weights.",
        source="Rubinstein, Bartlett, Huang, Taft 2012, Algorithm 2, with Gaussian noise",
        paper="rubinstein-2012",
        arrangements=_alone_or_averaged(AlgorithmSpec("trainers", "smo-output-perturbation", _SMALL), _FOURIER),
    )
)

register("systems", "fourier-svm-laplace")(
    System(
        summary="The same with the paper's Laplace noise on each weight: pure ε.",
        source="Rubinstein, Bartlett, Huang, Taft 2012, Algorithm 2",
        paper="rubinstein-2012",
        claim=SmoLaplaceOutputPerturbation.claim,
        arrangements=_alone_or_averaged(AlgorithmSpec("trainers", "smo-output-perturbation-laplace", _SMALL), _FOURIER),
    )
)
