"""A named system on made-up rows: planned as any run is, and carried out in memory, without door and ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from dpalgos.aggregators.aggregator import Aggregator
from dpalgos.algorithms import Algorithm
from dpalgos.audit.experiment import GAUSSIAN_RATIO, RATIO
from dpalgos.audit.sums import WatchedRun, run_watched
from dpalgos.guarantees import Neighbours
from dpalgos.keystream import KeyedNoise
from dpalgos.models import AffineMap, Artefact, LinearModel, RowMap
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats
from storage.refs import DatasetRef, ShardRef, Visibility
from tasks.planning.configuration import TrainingConfig
from tasks.planning.planner import plan_run
from tasks.planning.plans import PlannedCombination, PlannedRelease, RunPlan

__all__ = ["ONE_COORDINATE", "MadeUpRun", "Neighbouring", "neighbouring_rows"]

_FAR, _LABEL = "a canary far out", "a canary with the other label"
ONE_COORDINATE = (_FAR, _LABEL)
"""Neighbours that differ in few coordinates, however many there are."""


@dataclass(frozen=True, slots=True)
class Neighbouring:
    """Two data sets, by party, that differ in one row of party 0.

    Parameters
    ----------
    name : str
    left, right : mapping of party to ArrayRows
    """

    name: str
    left: Mapping[str, ArrayRows]
    right: Mapping[str, ArrayRows]


@dataclass(frozen=True, slots=True)
class MadeUpRun:
    """One system on rows of a public, made-up data set that is stored nowhere.

    Parameters
    ----------
    plan : RunPlan
    """

    plan: RunPlan
    _keys: dict[int, str] = field(default_factory=dict)
    _algorithms: dict[str, Algorithm] = field(default_factory=dict)
    _maps: dict[str, Artefact] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        system: str,
        *,
        epsilon: float,
        delta: float,
        rows: int,
        dimension: int,
        classes: int = 2,
        neighbours: Neighbours = Neighbours.REPLACE_ONE,
        parameters: Mapping[str, object] | None = None,
    ) -> MadeUpRun:
        """Plan a system over two parties (one, where all rows are read together) of ``rows`` rows each."""
        config = TrainingConfig(
            algorithm=system,
            dataset="made-up",
            epsilon=epsilon,
            delta=delta,
            dimension=dimension,
            neighbours=neighbours,
            parameters=dict(parameters or {}),
        )
        dataset = DatasetRef(
            name="made-up",
            version="made-up",
            account="made-up",
            visibility=Visibility.PUBLIC,
            rows=2 * rows,
            test_rows=0,
            dimension=dimension,
            classes=tuple(f"class {index}" for index in range(classes)),
        )
        shards = [ShardRef(dataset=dataset, partition="made-up", party=party, rows=rows) for party in ("0", "1")]
        return cls(plan=plan_run(config, shards))

    def outputs(self, neighbours: Neighbouring, world: bool, secret: bytes, trial: int) -> dict[str, Floats]:
        """Carry the plan out on one neighbour and return everything that leaves, as one vector an observable.

        Observables are every released array, what the server makes of them, and the weights of the rows before a map.
        """
        made: dict[str, Artefact] = {}
        ratios: list[WatchedRun] = []
        for release in self.plan.projections:
            self._release(release, (), neighbours, world, secret, trial, made, ratios)
        if self.plan.basis is not None:
            made[self.plan.basis.key] = _combined(self.plan.basis, made)
        for release in self.plan.models:
            maps = [made[key] for key in release.upstream]
            self._release(release, maps, neighbours, world, secret, trial, made, ratios)
        if self.plan.model is not None:
            made[self.plan.model.key] = _combined(self.plan.model, made)
        seen = {}
        for number, artefact in enumerate(made.values()):
            for name, array in artefact.arrays().items():
                seen[f"{artefact.kind} {number} {name}"] = np.asarray(array, dtype=np.float64).ravel()
        for name, path in self.plan.paths().items():
            maps, model = [made[key] for key in path[:-1]], made[path[-1]]
            if maps and isinstance(maps[0], AffineMap) and isinstance(model, LinearModel):
                seen[f"weights of {name} before the map"] = maps[0].before(model).weights.ravel()
        found = {name: vector for name, vector in seen.items() if vector.size}
        known = [run.ratio for run in ratios if run.ratio is not None]
        if known:
            gaussian = len(known) == len(ratios) and all(run.gaussian for run in ratios)
            found[GAUSSIAN_RATIO if gaussian else RATIO] = np.array([sum(known)])
        return found

    def _release(
        self,
        release: PlannedRelease,
        maps: Sequence[Artefact],
        neighbours: Neighbouring,
        world: bool,
        secret: bytes,
        trial: int,
        made: dict[str, Artefact],
        runs: list[WatchedRun],
    ) -> None:
        # The identity is a digest of much; it is worked out once. So is a public map.
        key = self._keys.get(id(release)) or self._keys.setdefault(id(release), release.key)
        if key in self._maps:
            made[key] = self._maps[key]
            return
        algorithm = self._algorithms.get(key) or self._algorithms.setdefault(key, release.build())
        ours, theirs = (neighbours.left, neighbours.right) if world else (neighbours.right, neighbours.left)
        differing = [index for index, party in enumerate(release.parties) if ours[party] is not theirs[party]]
        party = differing[0] if differing else 0
        rows = [_mapped(ours[name], maps) for name in release.parties]
        other = _mapped(theirs[release.parties[party]], maps)
        noise = KeyedNoise(secret, f"{key}/{trial}/{world}")
        run = run_watched(algorithm, release.setting, noise, rows, other, party=party, world=world)
        made[key] = run.artefact
        if not release.reads_rows:
            self._maps[key] = run.artefact
        elif differing:
            runs.append(run)


def _mapped(rows: ArrayRows, maps: Sequence[Artefact]) -> ArrayRows:
    """Return rows seen through released maps."""
    features = rows.features
    for one in maps:
        features = cast(RowMap, one).apply(features)
    return ArrayRows(features, rows.labels)


def _combined(combination: PlannedCombination, made: Mapping[str, Artefact]) -> Artefact:
    aggregator = cast(Aggregator[Artefact], combination.algorithm.build())
    return aggregator.combine([made[key] for key in combination.upstream], np.array(combination.weights))


def neighbouring_rows(run: MadeUpRun, rows: int, dimension: int, neighbours: Neighbours) -> list[Neighbouring]:
    """Return made-up neighbours that an audit of a system tries: the proofs' own worst pairs, and canaries.

    The canaries stand among the rows of two classes: a row far out against its opposite, and a row of the one class
    against the same with the other's label; under ``replace-special`` against a null record.
    """
    found = []
    for release in (*run.plan.projections, *run.plan.models):
        setting = release.setting
        if release.reads_rows and setting.dimension == dimension:
            pair = release.build().neighbouring_pair(setting)
            others = {party: ArrayRows(np.zeros((rows, dimension)), np.full(rows, NULL_LABEL)) for party in "01"}
            own = release.parties[pair.party]
            found.append(
                Neighbouring(
                    f"the worst pair of {release.name}'s proof", {**others, own: pair.left}, {**others, own: pair.right}
                )
            )
    random = np.random.default_rng(7)

    def crowd() -> ArrayRows:
        labels = np.arange(rows) % 2
        features = 0.15 * random.standard_normal((rows, dimension))
        features[:, 0] += np.where(labels == 1, 0.5, -0.5)
        return ArrayRows(features / np.maximum(1.0, np.linalg.norm(features, axis=1, keepdims=True)), labels)

    base = {party: crowd() for party in "01"}

    def with_first(row: Floats, label: int) -> dict[str, ArrayRows]:
        features, labels = base["0"].features.copy(), base["0"].labels.copy()
        features[0], labels[0] = row, label
        return {**base, "0": ArrayRows(features, labels)}

    far = np.eye(dimension)[dimension - 1]
    even = np.where(np.arange(dimension) % 2, -1.0, 1.0) / np.sqrt(dimension)
    canaries = {
        _FAR: (far, 1, -far, 1),
        "a canary far out in all coordinates": (even, 1, -even, 1),
        _LABEL: (even, 1, even, 0),
    }
    for name, (left, label, right, other) in canaries.items():
        gone = neighbours is Neighbours.REPLACE_SPECIAL
        second = with_first(np.zeros(dimension), NULL_LABEL) if gone else with_first(right, other)
        found.append(Neighbouring(name, with_first(left, label), second))
    return list({one.name: one for one in found}.values())
