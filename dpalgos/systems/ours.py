"""Our own systems: what none of the papers has."""

from __future__ import annotations

from dpalgos.registry import AlgorithmSpec, register
from dpalgos.systems.arranging import joint, summed
from dpalgos.systems.system import System

__all__: list[str] = []


_DESCENT = AlgorithmSpec("trainers", "noisy-gd")
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
