"""Running a registered system over arrays, without engine, door and ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpalgos.accounting.costs import allocate
from dpalgos.algorithms import fit
from dpalgos.guarantees import Loss, Setting
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.rows import ArrayRows
from dpalgos.systems.system import Arrangement, Scope
from tests.support.training import noise


def _budgets(specs: Sequence[AlgorithmSpec], shares: Sequence[float], epsilon: float, delta: float) -> dict[str, Loss]:
    noisy = [(spec, share) for spec, share in zip(specs, shares, strict=True) if lookup(spec.kind, spec.name).budgets]
    if not noisy:
        return {}
    kinds = [lookup(spec.kind, spec.name).budgets[0] for spec, _ in noisy]
    weights = [share for _, share in noisy] if len(noisy) > 1 else [1.0]
    losses = allocate(kinds, weights, epsilon, delta).losses
    return {spec.kind: loss for (spec, _), loss in zip(noisy, losses, strict=True)}


def _released(
    spec: AlgorithmSpec, scope: Scope, parties: Sequence[ArrayRows], classes: int, trust: str, seed: int
) -> list[Any]:
    groups = [[rows] for rows in parties] if scope is Scope.PARTY else [list(parties)]
    found = []
    for index, group in enumerate(groups):
        sizes = tuple(rows.count for rows in group)
        algorithm, relation = spec.build(), lookup(spec.kind, spec.name).relations[0]
        setting = Setting(sizes=sizes, dimension=group[0].dimension, classes=classes, neighbours=relation, trust=trust)
        algorithm.guarantee(setting)
        found.append(fit(algorithm, group, setting, noise(1000 * seed + index)))
    return found * (len(parties) // len(found))


def run_arrangement(
    arrangement: Arrangement,
    parties: Sequence[ArrayRows],
    classes: int,
    *,
    trust: str,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    components: int = 20,
    seed: int = 0,
    trainer_parameters: dict[str, Any] | None = None,
) -> tuple[list[Any], list[Any]]:
    """Return each party's map (or None) and model."""
    trainer = arrangement.trainer.with_parameters(**(trainer_parameters or {}))
    projection = arrangement.projection
    share = arrangement.projection_share
    specs = [trainer] if projection is None else [projection, trainer]
    budgets = _budgets(specs, [share, 1 - share] if projection is not None else [1.0], epsilon, delta)
    weights = np.array([rows.count for rows in parties]) / sum(rows.count for rows in parties)

    def spent(spec: AlgorithmSpec) -> AlgorithmSpec:
        return spec.with_parameters(budget=budgets[spec.kind]) if lookup(spec.kind, spec.name).budgets else spec

    def combined(found: list[Any], aggregator: AlgorithmSpec | None) -> list[Any]:
        return found if aggregator is None else [aggregator.build().combine(found, weights)] * len(found)

    maps: list[Any] = [None] * len(parties)
    if projection is not None:
        cls = lookup(projection.kind, projection.name)
        if "components" in cls.__dataclass_fields__:
            projection = projection.with_parameters(components=components)
        scope = arrangement.projection_scope if cls.reads_rows else Scope.JOINT
        maps = _released(spent(projection), scope, parties, classes, trust, seed)
        maps = combined(maps, arrangement.basis_aggregation if cls.reads_rows else None)
        parties = [
            ArrayRows(part.transform(rows.features), rows.labels) for part, rows in zip(maps, parties, strict=True)
        ]
    models = _released(spent(trainer), arrangement.trainer_scope, parties, classes, trust, seed + 1)
    return maps, combined(models, arrangement.model_aggregation)


def accuracy_of(
    maps: Sequence[Any], models: Sequence[Any], features: NDArray[np.float64], labels: NDArray[np.int64]
) -> float:
    """Return the mean accuracy of the parties' models."""
    found = []
    for part, model in zip(maps, models, strict=True):
        seen = features if part is None else part.transform(features)
        found.append(float((model.predict(seen) == labels).mean()))
    return float(np.mean(found))
