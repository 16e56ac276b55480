"""Our own systems: what none of the papers has."""

from __future__ import annotations

from dpalgos.guarantees import Trust
from dpalgos.registry import AlgorithmSpec, register
from dpalgos.systems.system import Arrangement, Scope, System

__all__: list[str] = []

register("systems", "noisy-gd")(
    System(
        summary="Softmax regression on all rows together by full-batch gradient descent on noisy sums.",
        source="ours; trainers.gradient_descent",
        arrangements={
            Trust.CENTRAL: Arrangement(
                trainer=AlgorithmSpec("trainers", "noisy-gd"),
                trainer_scope=Scope.JOINT,
            )
        },
    )
)
