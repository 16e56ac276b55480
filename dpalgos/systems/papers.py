"""The systems of the four papers and of those that they cite, as compositions of registered parts."""

from __future__ import annotations

from dpalgos.guarantees import Claim, Trust
from dpalgos.registry import AlgorithmSpec, register
from dpalgos.systems.system import Arrangement, Scope, System
from dpalgos.trainers.consensus_admm import PublishedConsensusAdmm
from dpalgos.trainers.gradient_descent import GradientPerturbation, PublishedGradientPerturbation, TruexDescent
from dpalgos.trainers.output_perturbation import Pathak, PublishedMultiPartyOutputPerturbation
from dpalgos.trainers.smo import DpWss, PublishedDualPerturbation, SmoLaplaceOutputPerturbation


def _joint_arrangement(trainer: AlgorithmSpec, projection: AlgorithmSpec | None) -> Arrangement:
    return Arrangement(projection=projection, projection_scope=Scope.JOINT, trainer=trainer, trainer_scope=Scope.JOINT)


def joint(trainer: AlgorithmSpec, projection: AlgorithmSpec | None = None) -> dict[str, Arrangement]:
    """Return one release of each part from all parties' rows, by a trusted curator."""
    return {Trust.CENTRAL: _joint_arrangement(trainer, projection)}


def summed(trainer: AlgorithmSpec, projection: AlgorithmSpec | None = None) -> dict[str, Arrangement]:
    """Return one release of each part, by a curator or by secure summation; for parts that see noisy sums alone."""
    return {trust: _joint_arrangement(trainer, projection) for trust in (Trust.CENTRAL, Trust.SECAGG)}


def averaged(trainer: AlgorithmSpec, projection: AlgorithmSpec | None = None) -> dict[str, Arrangement]:
    """Return one release of each part at every party, bases and models averaged by the server."""
    return {
        Trust.LOCAL: Arrangement(
            projection=projection,
            projection_scope=Scope.PARTY,
            basis_aggregation=None if projection is None else AlgorithmSpec("aggregators", "projector-mean"),
            trainer=trainer,
            trainer_scope=Scope.PARTY,
            model_aggregation=AlgorithmSpec("aggregators", "weighted-mean"),
        )
    }


_WANG = "wang-2024"
_OBJECTIVE = AlgorithmSpec("trainers", "objective-perturbation")
_PUBLISHED_OBJECTIVE = AlgorithmSpec("trainers", "objective-perturbation-published")
_OUTPUT = AlgorithmSpec("trainers", "output-perturbation")
_COVARIANCE = AlgorithmSpec("projections", "analyze-gauss")
_PUBLISHED_COVARIANCE = AlgorithmSpec("projections", "analyze-gauss-published")
_ONE_CLASSIFIER = "ten one-vs-rest classifiers are ten releases that the paper counts as one"

register("systems", "non-private")(
    System(
        summary="Exact PCA and exact regularised Huber SVM on all rows together, without noise.",
        source="Wang et al. 2024, section 5 (Non-Priv)",
        paper=_WANG,
        arrangements=joint(AlgorithmSpec("trainers", "erm"), AlgorithmSpec("projections", "pca")),
    )
)

register("systems", "dpml")(
    System(
        summary="Each party alone: objective perturbation on all dimensions, one model a party.",
        source="Wang et al. 2024, section 5 (DPML), corrected",
        paper=_WANG,
        arrangements={Trust.LOCAL: Arrangement(trainer=_OBJECTIVE, trainer_scope=Scope.PARTY)},
    )
)

register("systems", "dpdr-dpml")(
    System(
        # Measured on MNIST (five parties, epsilon 1, 20 of 784 dimensions): 0.56 correct; with the paper's objective
        # perturbation 0.45, because ten pure classifiers share what one Gaussian release has to itself. An account
        # holds more of them, too. (With Gaussian objective perturbation 0.56, but each run then spends delta for good.)
        summary="Each party alone: noisy covariance, top-k basis, output perturbation, one model a party.",
        source="Wang et al. 2024, Algorithms 2 and 3, corrected",
        paper=_WANG,
        arrangements={
            Trust.LOCAL: Arrangement(
                projection=_COVARIANCE,
                projection_scope=Scope.PARTY,
                trainer=_OUTPUT.with_parameters(regularisation=0.1),
                trainer_scope=Scope.PARTY,
            )
        },
    )
)

register("systems", "fed-dpdr-dpml")(
    System(
        summary="Private bases and models of all parties put together; otherwise noise once on each sum.",
        source="Wang et al. 2024, Algorithm 1, corrected",
        paper=_WANG,
        arrangements=averaged(_OBJECTIVE, _COVARIANCE) | summed(_OUTPUT, _COVARIANCE),
    )
)

register("systems", "dpml-published")(
    System(
        summary="Each party alone: the paper's objective perturbation on all dimensions.",
        source="Wang et al. 2024, section 5 (DPML)",
        paper=_WANG,
        claim=Claim("epsilon-DP", "Wang et al. 2024, Theorem 4.2", f"Not composed: {_ONE_CLASSIFIER}."),
        sound_counterpart="dpml",
        arrangements={Trust.LOCAL: Arrangement(trainer=_PUBLISHED_OBJECTIVE, trainer_scope=Scope.PARTY)},
    )
)

register("systems", "dpdr-dpml-published")(
    System(
        summary="Each party alone: the paper's noisy covariance and objective perturbation.",
        source="Wang et al. 2024, Algorithms 2 and 3",
        paper=_WANG,
        claim=Claim(
            "(epsilon_1 + epsilon_2, delta)-DP",
            "Wang et al. 2024, Theorems 4.1 and 4.2",
            f"Not composed: {_ONE_CLASSIFIER}; and the covariance's sensitivity under replace-one is sqrt(2), not 1.",
        ),
        sound_counterpart="dpdr-dpml",
        arrangements={
            Trust.LOCAL: Arrangement(
                projection=_PUBLISHED_COVARIANCE,
                projection_scope=Scope.PARTY,
                trainer=_PUBLISHED_OBJECTIVE,
                trainer_scope=Scope.PARTY,
            )
        },
    )
)

register("systems", "fed-dpdr-dpml-published")(
    System(
        summary="The paper's whole: averaged bases, averaged models, both divided by the number of parties once more.",
        source="Wang et al. 2024, Algorithm 1",
        paper=_WANG,
        claim=Claim(
            "(epsilon_1 + epsilon_2, delta)-DP",
            "Wang et al. 2024, Theorem 4.3",
            f"Not composed: {_ONE_CLASSIFIER}; and the covariance's sensitivity under replace-one is sqrt(2), not 1.",
        ),
        sound_counterpart="fed-dpdr-dpml",
        arrangements={
            Trust.LOCAL: Arrangement(
                projection=_PUBLISHED_COVARIANCE,
                projection_scope=Scope.PARTY,
                basis_aggregation=AlgorithmSpec("aggregators", "published-basis-average"),
                trainer=_PUBLISHED_OBJECTIVE,
                trainer_scope=Scope.PARTY,
                model_aggregation=AlgorithmSpec("aggregators", "published-model-average"),
            )
        },
    )
)


_HUANG = "huang-2021"
_HUANG_SOURCE = "Huang et al. 2021"
_SVM = AlgorithmSpec("trainers", "smo")
_NOT_PRIVATE = "The SVM is trained on the rows without noise, so the released weights are a function of them."


def _basis(name: str) -> AlgorithmSpec:
    return AlgorithmSpec("projections", name)


register("systems", "svm")(
    System(
        summary="LIBSVM's linear C-SVM on all rows as they are, without reduction and noise.",
        source=f"{_HUANG_SOURCE}, section 4 (SVM)",
        paper=_HUANG,
        normalisation="none",
        sound_counterpart="smo-output-perturbation",
        arrangements=joint(_SVM),
    )
)

register("systems", "dppca-svm")(
    System(
        summary="Laplace noise on the covariance, then an SVM without noise on the projected rows.",
        source=f"{_HUANG_SOURCE}, Algorithm 1",
        paper=_HUANG,
        claim=Claim("(epsilon, 0)-DP", f"{_HUANG_SOURCE}, Theorem 1", _NOT_PRIVATE),
        sound_counterpart="dppca-dpsvm",
        arrangements=joint(_SVM, _basis("dppca")),
    )
)

register("systems", "pca-dpsvm")(
    System(
        summary="Exact PCA, then an SVM with Laplace noise on its weights and none on its bias.",
        source=f"{_HUANG_SOURCE}, Algorithm 2",
        paper=_HUANG,
        claim=Claim(
            "(epsilon, 0)-DP",
            f"{_HUANG_SOURCE}, Theorem 2",
            "The basis and the bias are released exactly, without noise.",
        ),
        sound_counterpart="dppca-dpsvm",
        arrangements=joint(AlgorithmSpec("trainers", "svm-laplace-published"), _basis("pca")),
    )
)

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
for _name, (_projection, _what, _sound, _where) in _UNSOUND.items():
    register("systems", _name)(
        System(
            summary=f"Principal components with {_what}, then an SVM without noise on the projected rows.",
            source=_where,
            paper=_HUANG,
            claim=Claim("(epsilon, delta)-DP", _where, _NOT_PRIVATE),
            sound_counterpart=_sound,
            arrangements=joint(_SVM, _basis(_projection)),
        )
    )

_HUANG_SOUND = {
    "dppca-dpsvm": (
        "laplace-pca",
        "output-perturbation-radial",
        "Laplace noise on the covariance, radial on weights",
    ),
    "radial-dpsvm": ("radial-pca", "output-perturbation-radial", "radial noise on the covariance and the weights"),
    "ag-dpsvm": ("analyze-gauss", "output-perturbation", "Gaussian noise on the covariance and the weights"),
    "mod-sulq-dpsvm": ("mod-sulq", "output-perturbation", "MOD-SuLQ's noise on the covariance, Gaussian on weights"),
}
for _name, (_projection, _huang_trainer, _what) in _HUANG_SOUND.items():
    register("systems", _name)(
        System(
            summary=f"Private PCA and a private Huber SVM: {_what}.",
            source=f"{_HUANG_SOURCE}, with noise on both parts",
            paper=_HUANG,
            arrangements=summed(AlgorithmSpec("trainers", _huang_trainer), _basis(_projection))
            | averaged(AlgorithmSpec("trainers", "objective-perturbation"), _basis(_projection)),
        )
    )


_OWUSU = "owusu-agyemang-2021"
_OWUSU_SOURCE = "Owusu-Agyemang et al. 2021"
_LOGISTIC: dict[str, object] = {"loss": "logistic", "regularisation": 1e-3}
_OWUSU_SOUND = "secagg-output-perturbation"


def _trainer(name: str, **parameters: object) -> AlgorithmSpec:
    return AlgorithmSpec("trainers", name, parameters)


register("systems", "non-private-central")(
    System(
        summary="Regularised logistic regression on all rows together, without noise: what the gaps are measured from.",
        source=f"{_OWUSU_SOURCE}, section 5 (the optimum)",
        paper=_OWUSU,
        arrangements=joint(_trainer("erm", **_LOGISTIC)),
    )
)

register("systems", "mpc-op")(
    System(
        summary="The mean of the parties' minimisers with Laplace noise on each coordinate.",
        source=f"{_OWUSU_SOURCE}, Theorem 4 (MPC-OP)",
        paper=_OWUSU,
        claim=PublishedMultiPartyOutputPerturbation.claim,
        sound_counterpart=_OWUSU_SOUND,
        arrangements=summed(_trainer("mpc-op")),
    )
)

register("systems", _OWUSU_SOUND)(
    System(
        summary="The sum of the parties' minimisers, each times its rows, with Gaussian noise once.",
        source=f"{_OWUSU_SOURCE}, Theorem 4, corrected",
        paper=_OWUSU,
        arrangements=summed(_trainer("output-perturbation", **_LOGISTIC)),
    )
)

register("systems", f"{_OWUSU_SOUND}-radial")(
    System(
        summary="The sum of the parties' minimisers, each times its rows, with radial noise once: pure epsilon.",
        source=f"{_OWUSU_SOURCE}, Theorem 4, corrected",
        paper=_OWUSU,
        arrangements=summed(_trainer("output-perturbation-radial", **_LOGISTIC)),
    )
)

register("systems", "mpc-gp")(
    System(
        summary="Gradient descent on the mean of the parties' gradients, the paper's Gaussian noise once a step.",
        source=f"{_OWUSU_SOURCE}, Theorem 7, Algorithm 1 (MPC-AIGP)",
        paper=_OWUSU,
        claim=PublishedGradientPerturbation.claim,
        arrangements=summed(_trainer("mpc-gp")),
    )
)

register("systems", "jayaraman-gp")(
    System(
        summary="Gradient descent on the mean of the parties' gradients, Gaussian noise once a step.",
        source=f"Jayaraman et al. 2018, section 3.2; {_OWUSU_SOURCE}, Table 3",
        paper=_OWUSU,
        claim=GradientPerturbation.claim,
        arrangements=summed(_trainer("gradient-perturbation")),
    )
)

register("systems", "pathak")(
    System(
        summary="The mean of the parties' minimisers with Laplace noise for the smallest party alone.",
        source=f"Pathak, Rane, Raj 2010; {_OWUSU_SOURCE}, section 5.1 (PAT)",
        paper=_OWUSU,
        claim=Pathak.claim,
        sound_counterpart=f"{_OWUSU_SOUND}-radial",
        arrangements=summed(_trainer("pathak")),
    )
)

register("systems", "local-output")(
    System(
        summary="Each party's minimiser with its own radial noise, then the weighted mean.",
        source=f"{_OWUSU_SOURCE}, section 5.1 (W-LOP)",
        paper=_OWUSU,
        arrangements=averaged(_trainer("output-perturbation-radial", **_LOGISTIC)),
    )
)

register("systems", "local-objective")(
    System(
        summary="Each party's minimiser of its own perturbed objective, then the weighted mean.",
        source=f"{_OWUSU_SOURCE}, section 5.1 (W-LObjP)",
        paper=_OWUSU,
        arrangements=averaged(_trainer("objective-perturbation", **_LOGISTIC)),
    )
)

register("systems", "local-gradient")(
    System(
        summary="Gradient descent on the mean of gradients that each party has noised (the sum of noise is simulated).",
        source=f"Shokri, Shmatikov 2015; {_OWUSU_SOURCE}, section 5.1",
        paper=_OWUSU,
        arrangements=joint(_trainer("local-gradient")),
    )
)


_SUN = "sun-2021"
_SUN_SOURCE = "Sun et al. 2021"
_SUN_SOUND = "smo-output-perturbation"


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
    "wss1": ("the maximal violating pair", f"{_SUN_SOURCE}, WSS 1"),
    "wss2": ("second order information, as in LIBSVM", f"{_SUN_SOURCE}, WSS 2; Fan, Chen, Lin 2005"),
    "wss3": ("any pair within a constant factor of the maximal violating one", f"{_SUN_SOURCE}, WSS 3"),
    "wss4": ("a pair within a constant factor that holds the largest violator", f"{_SUN_SOURCE}, WSS 4"),
}

register("systems", "smo")(
    System(
        summary="The C-SVM by sequential minimal optimisation, without noise; the rule of selection is a parameter.",
        source="Fan, Chen, Lin 2005; Chang, Lin 2011 (LIBSVM)",
        paper=_SUN,
        normalisation="none",
        sound_counterpart=_SUN_SOUND,
        arrangements=_arrangements(AlgorithmSpec("trainers", "smo")),
    )
)

for _name, (_what, _where) in _RULES.items():
    register("systems", _name)(
        System(
            summary=f"The C-SVM by sequential minimal optimisation, without noise; working sets by {_what}.",
            source=_where,
            paper=_SUN,
            normalisation="none",
            sound_counterpart=_SUN_SOUND,
            arrangements=_arrangements(AlgorithmSpec("trainers", "smo", {"selection": _name})),
        )
    )

register("systems", "dpwss")(
    System(
        summary="The C-SVM by sequential minimal optimisation, working sets drawn by the exponential mechanism.",
        source=f"{_SUN_SOURCE}, Algorithms 1 and 2",
        paper=_SUN,
        claim=DpWss.claim,
        normalisation="none",
        sound_counterpart=_SUN_SOUND,
        arrangements=_arrangements(AlgorithmSpec("trainers", "dpwss")),
    )
)

register("systems", _SUN_SOUND)(
    System(
        summary="The C-SVM solved to a certified distance from its minimum, Gaussian noise on its weights.",
        source="Chaudhuri, Monteleoni, Sarwate 2011, Corollary 8; the sound counterpart of DPWSS",
        paper=_SUN,
        arrangements=_arrangements(AlgorithmSpec("trainers", _SUN_SOUND)),
    )
)


_TRUSTS = summed(AlgorithmSpec("trainers", "truex"))

register("systems", "truex")(
    System(
        summary="Linear SVM by gradient descent on masked sums; each party adds noise so that t - 1 shares suffice.",
        source="Truex et al. 2019, section 4; Wang et al. 2024, Table 1",
        paper="truex-2019",
        claim=TruexDescent.claim,
        arrangements={trust: _TRUSTS[trust] for trust in (Trust.SECAGG, Trust.CENTRAL)},
    )
)


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
