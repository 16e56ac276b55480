"""Our own systems: what none of the papers has."""

from __future__ import annotations

from dpalgos.registry import AlgorithmSpec, register
from dpalgos.systems.arranging import joint, summed
from dpalgos.systems.system import System

__all__: list[str] = []


_DESCENT = AlgorithmSpec("trainers", "noisy-gd")
_WHITENED = AlgorithmSpec("projections", "public-whitening")
_STATISTICS = AlgorithmSpec("trainers", "sufficient-statistics")

register("systems", "noisy-gd")(
    System(
        summary="Softmax regression on all rows together by full-batch gradient descent on noisy sums.",
        source="ours; trainers.gradient_descent",
        arrangements=summed(_DESCENT),
    )
)

register("systems", "hog-noisy-gd")(
    System(
        summary="Histograms of oriented gradients, which cost nothing, then noisy-gd: for images.",
        source="ours; features.hog, trainers.gradient_descent",
        arrangements=summed(_DESCENT, AlgorithmSpec("projections", "hog")),
    )
)

register("systems", "whitened-class-means")(
    System(
        summary="Scattering, whitened by made-up images at no cost, then class means from one noisy sum: for images.",
        source="ours; features.whitening, trainers.class_means",
        arrangements=summed(AlgorithmSpec("trainers", "class-means"), _WHITENED),
    )
)

register("systems", "whitened-discriminant-gd")(
    System(
        summary="The same features, then softmax regression that starts from the noisy class means: for images.",
        source="ours; features.whitening, trainers.discriminant_descent",
        arrangements=summed(AlgorithmSpec("trainers", "discriminant-gd"), _WHITENED),
    )
)

register("systems", "dpdr-noisy-gd")(
    System(
        summary="Covariances summed with noise once, one decomposition, then noisy-gd in k dimensions.",
        source="ours; projections.analyze_gauss, trainers.gradient_descent",
        arrangements=summed(_DESCENT.with_parameters(mean_weight=1.0), AlgorithmSpec("projections", "analyze-gauss")),
    )
)

register("systems", "sufficient-statistics")(
    System(
        summary="Ridge regression of classes or real labels from one noisy sum of second moments.",
        source="ours; trainers.sufficient_statistics",
        arrangements=summed(_STATISTICS),
    )
)

register("systems", "ridge")(
    System(
        summary="Ridge regression of classes or real labels on all rows together, without noise.",
        source="regularised least squares",
        sound_counterpart="sufficient-statistics",
        arrangements=joint(AlgorithmSpec("trainers", "erm", {"loss": "squared", "regularisation": 1e-3})),
    )
)

register("systems", "ridge-noisy-gd")(
    System(
        summary="Ridge regression of classes or real labels by full-batch gradient descent on noisy sums.",
        source="ours; trainers.gradient_descent",
        arrangements=summed(_DESCENT.with_parameters(loss="squared", mean_weight=1.0)),
    )
)
