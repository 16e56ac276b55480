"""The systems of Huang et al. 2021: PCA and SVM with noise on one of them, as published, and with noise on both."""

from __future__ import annotations

from dpalgos.guarantees import Claim
from dpalgos.registry import AlgorithmSpec, register
from dpalgos.systems.arranging import averaged, joint, summed
from dpalgos.systems.system import System

__all__: list[str] = []

_PAPER = "huang-2021"
_SOURCE = "Huang et al. 2021"
_SVM = AlgorithmSpec("trainers", "smo")
_NOT_PRIVATE = "The SVM is trained on the rows without noise, so the released weights are a function of them."


def _basis(name: str) -> AlgorithmSpec:
    return AlgorithmSpec("projections", name)


register("systems", "svm")(
    System(
        summary="LIBSVM's linear C-SVM on all rows as they are, without reduction and noise.",
        source=f"{_SOURCE}, section 4 (SVM)",
        paper=_PAPER,
        normalisation="none",
        sound_counterpart="smo-output-perturbation",
        arrangements=joint(_SVM),
    )
)

register("systems", "dppca-svm")(
    System(
        summary="Laplace noise on the covariance, then an SVM without noise on the projected rows.",
        source=f"{_SOURCE}, Algorithm 1",
        paper=_PAPER,
        claim=Claim("(epsilon, 0)-DP", f"{_SOURCE}, Theorem 1", _NOT_PRIVATE),
        sound_counterpart="dppca-dpsvm",
        arrangements=joint(_SVM, _basis("dppca")),
    )
)

register("systems", "pca-dpsvm")(
    System(
        summary="Exact PCA, then an SVM with Laplace noise on its weights and none on its bias.",
        source=f"{_SOURCE}, Algorithm 2",
        paper=_PAPER,
        claim=Claim(
            "(epsilon, 0)-DP", f"{_SOURCE}, Theorem 2", "The basis and the bias are released exactly, without noise."
        ),
        sound_counterpart="dppca-dpsvm",
        arrangements=joint(AlgorithmSpec("trainers", "svm-laplace-published"), _basis("pca")),
    )
)

_UNSOUND = {
    "ag-svm": ("analyze-gauss-published", "Gaussian noise", "ag-dpsvm", f"{_SOURCE}, section 3.4 (AG-SVM)"),
    "mod-sulq-svm": ("mod-sulq", "MOD-SuLQ's Gaussian noise", "mod-sulq-dpsvm", f"{_SOURCE}, section 3.4"),
    "dpsvd-svm": ("dpsvd", "noise on the rows before their SVD", "ag-dpsvm", "Sun, Yang, Li 2022 (retracted)"),
    "wishart-svm": (
        "wishart-pca",
        "Wishart noise on the covariance",
        "radial-dpsvm",
        "Jiang, Xie, Zhang 2016, with SVM",
    ),
}
for _name, (_projection, _what, _sound, _where) in _UNSOUND.items():
    register("systems", _name)(
        System(
            summary=f"Principal components with {_what}, then an SVM without noise on the projected rows.",
            source=_where,
            paper=_PAPER,
            claim=Claim("(epsilon, delta)-DP", _where, _NOT_PRIVATE),
            sound_counterpart=_sound,
            arrangements=joint(_SVM, _basis(_projection)),
        )
    )

_SOUND = {
    "dppca-dpsvm": (
        "laplace-pca",
        "output-perturbation-radial",
        "Laplace noise on the covariance, radial on weights",
    ),
    "radial-dpsvm": ("radial-pca", "output-perturbation-radial", "radial noise on the covariance and the weights"),
    "ag-dpsvm": ("analyze-gauss", "output-perturbation", "Gaussian noise on the covariance and the weights"),
    "mod-sulq-dpsvm": ("mod-sulq", "output-perturbation", "MOD-SuLQ's noise on the covariance, Gaussian on weights"),
}
for _name, (_projection, _trainer, _what) in _SOUND.items():
    register("systems", _name)(
        System(
            summary=f"Private PCA and a private Huber SVM: {_what}.",
            source=f"{_SOURCE}, with noise on both parts",
            paper=_PAPER,
            arrangements=summed(AlgorithmSpec("trainers", _trainer), _basis(_projection))
            | averaged(AlgorithmSpec("trainers", "objective-perturbation"), _basis(_projection)),
        )
    )
