"""Arrangements that several systems share."""

from __future__ import annotations

from dpalgos.guarantees import Trust
from dpalgos.registry import AlgorithmSpec
from dpalgos.systems.system import Arrangement, Scope


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
