"""The systems of the four papers and of those that they cite, as compositions of registered parts."""

from dpalgos.guarantees import Claim, Trust
from dpalgos.published.machines import DpWss, PublishedDualPerturbation
from dpalgos.published.minimisers import PublishedConsensusAdmm, PublishedMultiPartyOutputPerturbation
from dpalgos.registry import AlgorithmSpec
from dpalgos.sentences import coded
from dpalgos.systems.system import Arrangement, System, alone, averaged, joint, register_systems, summed
from dpalgos.trainers.gradient_descent import GradientPerturbation, PublishedGradientPerturbation, TruexDescent
from dpalgos.trainers.hinge_perturbation import SmoLaplaceOutputPerturbation
from dpalgos.trainers.output_perturbation import Pathak


def _alone_or_averaged(trainer: AlgorithmSpec, projection: AlgorithmSpec | None = None) -> dict[str, Arrangement]:
    """All rows together, as in the paper; or one release of each part a party, and their means."""
    return joint(trainer, projection) | averaged(trainer, projection)


def _trainer(name: str, **parameters: object) -> AlgorithmSpec:
    return AlgorithmSpec("trainers", name, parameters)


def _basis(name: str) -> AlgorithmSpec:
    return AlgorithmSpec("projections", name)


_WANG = {
    "non-private": System(
        summary="Exact PCA and exact regularised Huber SVM on all rows together, without noise.",
        source="Wang et al. 2024, section 5 (Non-Priv)",
        arrangements=joint(_trainer("erm"), _basis("pca")),
    ),
    "dpml": System(
        summary="Each party alone: objective perturbation on all dimensions, one model per party.",
        source="Wang et al. 2024, section 5 (DPML), corrected",
        arrangements=alone(_trainer("objective-perturbation")),
    ),
    "dpdr-dpml": System(
        # Measured on MNIST (five parties, epsilon 1, 20 of 784 dimensions): 0.56 correct; with the paper's objective
        # perturbation 0.45, because ten pure classifiers share what one Gaussian release has to itself. An account
        # holds more of them, too. (With Gaussian objective perturbation 0.56, but each run then spends delta for good.)
        summary="Each party alone: noisy covariance, top-k basis, output perturbation, one model per party.",
        source="Wang et al. 2024, Algorithms 2 and 3, corrected",
        arrangements=alone(_trainer("output-perturbation", regularisation=0.1), _basis("analyze-gauss")),
    ),
    "fed-dpdr-dpml": System(
        summary="Local: averages the parties' private bases and models. Central, secagg: adds noise once per sum.",
        source="Wang et al. 2024, Algorithm 1, corrected",
        arrangements=averaged(_trainer("objective-perturbation"), _basis("analyze-gauss"))
        | summed(_trainer("output-perturbation"), _basis("analyze-gauss")),
    ),
    "dpml-published": System(
        summary="Each party alone: the paper's objective perturbation on all dimensions.",
        source="Wang et al. 2024, section 5 (DPML)",
        claim=Claim("epsilon-DP", "Wang et al. 2024, Theorem 4.2", coded("classifiers-not-composed")),
        sound_counterpart="dpml",
        arrangements=alone(_trainer("objective-perturbation-published")),
    ),
    "dpdr-dpml-published": System(
        summary="Each party alone: the paper's noisy covariance and objective perturbation.",
        source="Wang et al. 2024, Algorithms 2 and 3",
        claim=Claim(
            "(epsilon_1 + epsilon_2, delta)-DP",
            "Wang et al. 2024, Theorems 4.1 and 4.2",
            coded("classifiers-and-covariance"),
        ),
        sound_counterpart="dpdr-dpml",
        arrangements=alone(_trainer("objective-perturbation-published"), _basis("analyze-gauss-published")),
    ),
    "fed-dpdr-dpml-published": System(
        summary="The paper's full algorithm: averages of bases and models, divided by the number of parties twice.",
        source="Wang et al. 2024, Algorithm 1",
        claim=Claim(
            "(epsilon_1 + epsilon_2, delta)-DP",
            "Wang et al. 2024, Theorem 4.3",
            coded("classifiers-and-covariance"),
        ),
        sound_counterpart="fed-dpdr-dpml",
        arrangements=alone(
            _trainer("objective-perturbation-published"),
            _basis("analyze-gauss-published"),
            AlgorithmSpec("aggregators", "published-basis-average"),
            AlgorithmSpec("aggregators", "published-model-average"),
        ),
    ),
}

_HUANG_SOURCE = "Huang et al. 2021"
_NOT_PRIVATE = coded("trained-without-noise")
_UNSOUND = {
    "ag-svm": ("analyze-gauss-published", "Gaussian noise", "ag-dpsvm", f"{_HUANG_SOURCE}, section 3.4 (AG-SVM)"),
    "mod-sulq-svm": ("mod-sulq", "MOD-SuLQ's Gaussian noise", "mod-sulq-dpsvm", f"{_HUANG_SOURCE}, section 3.4"),
    "dpsvd-svm": ("dpsvd", "noise on the rows before their SVD", "ag-dpsvm", "Sun, Yang, Li 2022 (retracted)"),
    "wishart-svm": (
        "wishart-pca",
        "Wishart noise on the covariance",
        "radial-dpsvm",
        "Jiang, Xie, Zhang 2016, with SVM",
    ),
}
_HUANG_SOUND = {
    "dppca-dpsvm": (
        "laplace-pca",
        "output-perturbation-radial",
        "Laplace noise on the covariance, radial noise on the weights",
    ),
    "radial-dpsvm": ("radial-pca", "output-perturbation-radial", "radial noise on the covariance and the weights"),
    "ag-dpsvm": ("analyze-gauss", "output-perturbation", "Gaussian noise on the covariance and the weights"),
    "mod-sulq-dpsvm": (
        "mod-sulq",
        "output-perturbation",
        "MOD-SuLQ's noise on the covariance, Gaussian noise on the weights",
    ),
}
_HUANG = {
    "svm": System(
        summary="LIBSVM's linear C-SVM on all rows, without normalisation, dimension reduction or noise.",
        source=f"{_HUANG_SOURCE}, section 4 (SVM)",
        normalisation="none",
        sound_counterpart="smo-output-perturbation",
        arrangements=joint(_trainer("smo")),
    ),
    "dppca-svm": System(
        summary="Laplace noise on the covariance, then an SVM without noise on the projected rows.",
        source=f"{_HUANG_SOURCE}, Algorithm 1",
        claim=Claim("(epsilon, 0)-DP", f"{_HUANG_SOURCE}, Theorem 1", _NOT_PRIVATE),
        sound_counterpart="dppca-dpsvm",
        arrangements=joint(_trainer("smo"), _basis("dppca")),
    ),
    "pca-dpsvm": System(
        summary="Exact PCA, then an SVM with Laplace noise on its weights and none on its bias.",
        source=f"{_HUANG_SOURCE}, Algorithm 2",
        claim=Claim(
            "(epsilon, 0)-DP",
            f"{_HUANG_SOURCE}, Theorem 2",
            coded("exact-basis-and-bias"),
        ),
        sound_counterpart="dppca-dpsvm",
        arrangements=joint(_trainer("svm-laplace-published"), _basis("pca")),
    ),
    **{
        name: System(
            summary=f"Principal components with {what}, then an SVM without noise on the projected rows.",
            source=where,
            claim=Claim("(epsilon, delta)-DP", where, _NOT_PRIVATE),
            sound_counterpart=sound,
            arrangements=joint(_trainer("smo"), _basis(projection)),
        )
        for name, (projection, what, sound, where) in _UNSOUND.items()
    },
    **{
        name: System(
            summary=f"Private PCA and a private Huber SVM: {what}.",
            source=f"{_HUANG_SOURCE}, with noise on both parts",
            arrangements=summed(_trainer(trainer), _basis(projection))
            | averaged(_trainer("objective-perturbation"), _basis(projection)),
        )
        for name, (projection, trainer, what) in _HUANG_SOUND.items()
    },
}

_OWUSU_SOURCE = "Owusu-Agyemang et al. 2021"
_LOGISTIC: dict[str, object] = {"loss": "logistic", "regularisation": 1e-3}
_OWUSU_SOUND = "secagg-output-perturbation"
_OWUSU = {
    "non-private-central": System(
        summary="Regularised logistic regression on all rows together, without noise: the paper's optimum.",
        source=f"{_OWUSU_SOURCE}, section 5 (the optimum)",
        arrangements=joint(_trainer("erm", **_LOGISTIC)),
    ),
    "mpc-op": System(
        summary="The mean of the parties' minimisers with Laplace noise on each coordinate.",
        source=f"{_OWUSU_SOURCE}, Theorem 4 (MPC-OP)",
        claim=PublishedMultiPartyOutputPerturbation.claim,
        sound_counterpart=_OWUSU_SOUND,
        arrangements=summed(_trainer("mpc-op")),
    ),
    _OWUSU_SOUND: System(
        summary="The sum of the parties' minimisers, weighted by numbers of rows, with Gaussian noise once.",
        source=f"{_OWUSU_SOURCE}, Theorem 4, corrected",
        arrangements=summed(_trainer("output-perturbation", **_LOGISTIC)),
    ),
    f"{_OWUSU_SOUND}-radial": System(
        summary="The sum of the parties' minimisers, weighted by numbers of rows, with radial noise once: pure ε.",
        source=f"{_OWUSU_SOURCE}, Theorem 4, corrected",
        arrangements=summed(_trainer("output-perturbation-radial", **_LOGISTIC)),
    ),
    "mpc-gp": System(
        summary="Gradient descent on the mean of the parties' gradients, the paper's Gaussian noise once per step.",
        source=f"{_OWUSU_SOURCE}, Theorem 7, Algorithm 1 (MPC-AIGP)",
        claim=PublishedGradientPerturbation.claim,
        arrangements=summed(_trainer("mpc-gp")),
    ),
    "jayaraman-gp": System(
        summary="Gradient descent on the mean of the parties' gradients, Gaussian noise once per step.",
        source=f"Jayaraman et al. 2018, section 3.2; {_OWUSU_SOURCE}, Table 3",
        claim=GradientPerturbation.claim,
        arrangements=summed(_trainer("gradient-perturbation")),
    ),
    "pathak": System(
        summary="The mean of the parties' minimisers, with Laplace noise calibrated to the smallest party alone.",
        source=f"Pathak, Rane, Raj 2010; {_OWUSU_SOURCE}, section 5.1 (PAT)",
        claim=Pathak.claim,
        sound_counterpart=f"{_OWUSU_SOUND}-radial",
        arrangements=summed(_trainer("pathak")),
    ),
    "local-output": System(
        summary="Each party adds radial noise to its minimiser; the server takes the weighted mean.",
        source=f"{_OWUSU_SOURCE}, section 5.1 (W-LOP)",
        arrangements=averaged(_trainer("output-perturbation-radial", **_LOGISTIC)),
    ),
    "local-objective": System(
        summary="Each party minimises its perturbed objective; the server takes the weighted mean.",
        source=f"{_OWUSU_SOURCE}, section 5.1 (W-LObjP)",
        arrangements=averaged(_trainer("objective-perturbation", **_LOGISTIC)),
    ),
    "local-gradient": System(
        summary="Gradient descent on the mean of the parties' noisy gradients (the sum of their noise is simulated).",
        source=f"Shokri, Shmatikov 2015; {_OWUSU_SOURCE}, section 5.1",
        arrangements=joint(_trainer("local-gradient")),
    ),
}

_SUN_SOURCE = "Sun et al. 2021"
_SUN_SOUND = "smo-output-perturbation"
_RULES = {
    "wss1": ("the maximal violating pair", f"{_SUN_SOURCE}, WSS 1"),
    "wss2": ("second-order selection, as in LIBSVM", f"{_SUN_SOURCE}, WSS 2; Fan, Chen, Lin 2005"),
    "wss3": ("any pair within a constant factor of the maximal violating one", f"{_SUN_SOURCE}, WSS 3"),
    "wss4": ("the largest violator and a partner within a constant factor of the best", f"{_SUN_SOURCE}, WSS 4"),
}
_SUN = {
    "smo": System(
        summary="The C-SVM by sequential minimal optimisation, without noise; the selection rule is a parameter.",
        source="Fan, Chen, Lin 2005; Chang, Lin 2011 (LIBSVM)",
        normalisation="none",
        sound_counterpart=_SUN_SOUND,
        arrangements=_alone_or_averaged(_trainer("smo")),
    ),
    **{
        name: System(
            summary=f"The C-SVM by sequential minimal optimisation, without noise; working set: {what}.",
            source=where,
            normalisation="none",
            sound_counterpart=_SUN_SOUND,
            arrangements=_alone_or_averaged(_trainer("smo", selection=name)),
        )
        for name, (what, where) in _RULES.items()
    },
    "dpwss": System(
        summary="The C-SVM by sequential minimal optimisation; the exponential mechanism draws the working sets.",
        source=f"{_SUN_SOURCE}, Algorithms 1 and 2",
        claim=DpWss.claim,
        normalisation="none",
        sound_counterpart=_SUN_SOUND,
        arrangements=_alone_or_averaged(_trainer("dpwss")),
    ),
    _SUN_SOUND: System(
        summary="The C-SVM solved to a certified distance from its minimum, with Gaussian noise on its weights.",
        source="Chaudhuri, Monteleoni, Sarwate 2011, Corollary 8; the sound counterpart of DPWSS",
        arrangements=_alone_or_averaged(_trainer(_SUN_SOUND)),
    ),
}

_TRUEX = {
    "truex": System(
        summary="Linear SVM by gradient descent on masked sums; the noise of any t - 1 parties suffices.",
        source="Truex et al. 2019, section 4; Wang et al. 2024, Table 1",
        claim=TruexDescent.claim,
        arrangements=joint(_trainer("truex"), trusts=(Trust.SECAGG, Trust.CENTRAL)),
    ),
}

_TAVARA = {
    "admm-svm": System(
        summary="A linear SVM by consensus ADMM, with independent Gaussian noise on every vector that a party sends.",
        source="Tavara, Schliep, Basu 2021, corrected",
        arrangements=joint(_trainer("consensus-admm")),
    ),
    "admm-svm-published": System(
        summary="A linear SVM by consensus ADMM; each exchange has noise as if it were the only one.",
        source="Tavara, Schliep, Basu 2021",
        claim=PublishedConsensusAdmm.claim,
        sound_counterpart="admm-svm",
        arrangements=joint(_trainer("consensus-admm-published")),
    ),
}

_ZHANG = {
    "dual-perturbation": System(
        summary="The C-SVM with Laplace noise on its dual variables, scaled by the ratio of errors.",
        source="Zhang, Hao, Wang 2019, as Sun et al. 2021 and Wang et al. 2024 describe it",
        claim=PublishedDualPerturbation.claim,
        normalisation="none",
        sound_counterpart="smo-output-perturbation",
        arrangements=_alone_or_averaged(_trainer("dual-perturbation-published")),
    ),
}

_CHAUDHURI = {
    "ppca-dpsvm": System(
        summary="Principal directions drawn by the exponential mechanism, then a Huber SVM with radial noise: pure ε.",
        source="Chaudhuri, Sarwate, Sinha 2013, Algorithm 2, with noise also on the weights",
        arrangements=joint(_trainer("output-perturbation-radial"), _basis("ppca"))
        | averaged(_trainer("objective-perturbation"), _basis("ppca")),
    ),
}

# Of C 0.003 … 1 and gamma 0.5 … 3, what is best on digits at epsilon = 3: a small C makes the weights nearly a sum of
# rows, which noise hides least.
_FOURIER = AlgorithmSpec("projections", "random-fourier", {"frequencies": 128, "gamma": 3.0})
_SMALL: dict[str, object] = {"C": 0.01, "intercept_scaling": 0.0}
_RUBINSTEIN = {
    "fourier-svm": System(
        summary="A kernel SVM: public random Fourier features, then the C-SVM with Gaussian noise on its weights.",
        source="Rubinstein, Bartlett, Huang, Taft 2012, Algorithm 2, with Gaussian noise",
        arrangements=_alone_or_averaged(_trainer("smo-output-perturbation", **_SMALL), _FOURIER),
    ),
    "fourier-svm-laplace": System(
        summary="A kernel SVM: public random Fourier features, then the C-SVM with Laplace noise: pure ε.",
        source="Rubinstein, Bartlett, Huang, Taft 2012, Algorithm 2",
        claim=SmoLaplaceOutputPerturbation.claim,
        arrangements=_alone_or_averaged(_trainer("smo-output-perturbation-laplace", **_SMALL), _FOURIER),
    ),
}

for _paper, _systems in {
    "wang-2024": _WANG,
    "huang-2021": _HUANG,
    "owusu-agyemang-2021": _OWUSU,
    "sun-2021": _SUN,
    "truex-2019": _TRUEX,
    "tavara-2021": _TAVARA,
    "zhang-2019": _ZHANG,
    "chaudhuri-2013": _CHAUDHURI,
    "rubinstein-2012": _RUBINSTEIN,
}.items():
    register_systems(_paper, _systems)
