"""A named system on made-up rows: planned as any run is, and carried out in memory, without door and ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np

from dpalgos.algorithms import Algorithm
from dpalgos.audit.events import Outputs
from dpalgos.audit.experiment import GAUSSIAN_RATIO, RATIO
from dpalgos.audit.sums import WatchedRun, run_watched
from dpalgos.guarantees import Neighbours
from dpalgos.keystream import KeyedNoise
from dpalgos.models import AffineMap, Artefact, LinearModel, RowMap
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats
from storage.refs import DatasetRef, ShardRef, Visibility
from tasks.planning.configuration import TrainingConfig
from tasks.planning.planner import plan_run
from tasks.planning.plans import Node, PlannedCombination, PlannedRelease, RunPlan, carry_out

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


@dataclass(frozen=True)
class MadeUpRun:
    """One system on rows of a public, made-up data set that is stored nowhere.

    Parameters
    ----------
    plan : RunPlan
    """

    plan: RunPlan
    _maps: dict[str, Artefact] = field(default_factory=dict)

    @cached_property
    def _training(self) -> dict[str, Node]:
        # Identities are digests of much; they are worked out once.
        return self.plan.training

    @cached_property
    def _algorithms(self) -> dict[str, Algorithm]:
        return {key: node.build() for key, node in self._training.items() if isinstance(node, PlannedRelease)}

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
        ratios: list[WatchedRun] = []

        def make(key: str, node: Node, inputs: list[Artefact]) -> Artefact:
            if isinstance(node, PlannedCombination):
                return node.combine(inputs)
            if key in self._maps:
                return self._maps[key]
            noise = KeyedNoise(secret, f"{key}/{trial}/{world}")
            run, differs = _watched(self._algorithms[key], node, inputs, neighbours, world, noise)
            if not node.reads_rows:
                self._maps[key] = run.artefact
            elif differs:
                ratios.append(run)
            return run.artefact

        made = carry_out(self._training, make)
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

    def stacked(self, pair: Neighbouring, secret: bytes, world: bool, first: int, count: int) -> Outputs:
        """Return the outputs of several runs on one neighbour, a line a run."""
        outputs = [self.outputs(pair, world, secret, trial) for trial in range(first, first + count)]
        return {name: np.stack([one[name] for one in outputs]) for name in outputs[0]}


def _watched(
    algorithm: Algorithm,
    release: PlannedRelease,
    maps: Sequence[Artefact],
    neighbours: Neighbouring,
    world: bool,
    noise: KeyedNoise,
) -> tuple[WatchedRun, bool]:
    """Run a release on one neighbour; say too whether it reads the party whose rows differ."""
    ours, theirs = (neighbours.left, neighbours.right) if world else (neighbours.right, neighbours.left)
    differing = [index for index, party in enumerate(release.parties) if ours[party] is not theirs[party]]
    party = differing[0] if differing else 0
    rows = [_mapped(ours[name], maps) for name in release.parties]
    other = _mapped(theirs[release.parties[party]], maps)
    run = run_watched(algorithm, release.setting, noise, rows, other, party=party, world=world)
    return run, bool(differing)


def _mapped(rows: ArrayRows, maps: Sequence[Artefact]) -> ArrayRows:
    """Return rows seen through released maps."""
    features = rows.features
    for one in maps:
        features = cast(RowMap, one).apply(features)
    return ArrayRows(features, rows.labels)


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
