"""A system carried out in memory, without door and ledger, on synthetic data sets that differ in one row."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Self, cast

import numpy as np

from dpalgos.algorithms import Algorithm, require_people
from dpalgos.audit.experiment import (
    Experiment,
    Stated,
    one_by_one,
)
from dpalgos.audit.ratios import WatchedRun, observed_ratio, run_watched
from dpalgos.columns import Column
from dpalgos.guarantees import Neighbours
from dpalgos.keystream import KeyedNoise
from dpalgos.models import AffineMap, Artefact, LinearModel, RowMap
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats, Ints
from storage.refs import DatasetRef, ShardRef, TableColumn, Visibility
from tasks.planning.configuration import TrainingConfig
from tasks.planning.graph import materialise
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.preparation.prepare import AllRows, prepare_over

ROWS = 8
"""Rows, or people, of each party of a synthetic run."""

_PARTIES = ("0", "1")
_NAME = "synthetic"
_FAR, _LABEL = "a canary far out", "a canary with the other label"
ONE_COORDINATE = (_FAR, _LABEL)
"""Neighbours that differ in few coordinates, however many there are."""
Held = Mapping[str, ArrayRows]
"""The rows of each party."""


@dataclass(frozen=True, slots=True)
class Neighbouring:
    """Two data sets, by party, that differ in one row of one party.

    Parameters
    ----------
    name : str
    left, right : mapping of party to ArrayRows
    """

    name: str
    left: Held
    right: Held


def partitioned(features: Floats, labels: Ints, each: Ints | None = None) -> dict[str, ArrayRows]:
    """Return rows as the two parties hold them: every other row; or every other person, so many times ``each`` row."""
    if each is None:
        return {party: ArrayRows(features[place::2], labels[place::2]) for place, party in enumerate(_PARTIES)}
    held = {}
    for place, party in enumerate(_PARTIES):
        times = each[place::2]
        shares = np.repeat(times, times).astype(np.int32)
        rows, of_class = np.repeat(features[place::2], times, axis=0), np.repeat(labels[place::2], times)
        places = np.repeat(np.arange(len(times)), times)
        held[party] = ArrayRows(rows, of_class, shares=shares, people=len(times), places=places)
    return held


def differing(
    name: str, base: Held, place: int, left: tuple[Floats, int], right: tuple[Floats, int] | None
) -> Neighbouring:
    """Return data sets that hold one row and label or another at a place of party 0; None is a null record."""

    def holding(row: Floats | float, label: int) -> Held:
        features, labels = base["0"].features.copy(), base["0"].labels.copy()
        features[place], labels[place] = row, label
        return {**base, "0": ArrayRows(features, labels)}

    return Neighbouring(name, holding(*left), holding(*(right or (0.0, NULL_LABEL))))


@dataclass(frozen=True)
class SyntheticRun:
    """One system on rows of a public data set that is stored nowhere.

    Parameters
    ----------
    plan : RunPlan
    rows : int
        Of each party; rows, or people.
    """

    plan: RunPlan
    rows: int = ROWS
    _maps: dict[str, Artefact] = field(default_factory=dict)

    @cached_property
    def _training(self) -> dict[str, PlannedRelease | PlannedCombination]:
        # Identities are digests of much; they are worked out once.
        return self.plan.training

    @cached_property
    def _keys(self) -> dict[int, str]:
        return {id(node): key for key, node in self._training.items()}

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
        rows_per_person: int | None = None,
        columns: Sequence[Column] = (),
    ) -> Self:
        """Plan a system over two parties (one, where all rows are read together) of ``rows`` rows, or people, each.

        Rows with ``columns`` are those of a table whose features are known to be these declared columns'.

        Raises
        ------
        ParameterError
            If there are people, and it takes none.
        """
        config = TrainingConfig(
            algorithm=system,
            dataset=_NAME,
            epsilon=epsilon,
            delta=delta,
            dimension=dimension,
            neighbours=neighbours,
            parameters=dict(parameters or {}),
        )
        dataset = DatasetRef(
            name=_NAME,
            version=_NAME,
            account=_NAME,
            visibility=Visibility.PUBLIC,
            rows=2 * rows,
            test_rows=0,
            dimension=dimension,
            classes=tuple(f"class {index}" for index in range(classes)),
            person="" if rows_per_person is None else "person",
            rows_per_person=rows_per_person or 1,
            columns=tuple(TableColumn(**asdict(column)) for column in columns),
        )
        shards = [ShardRef(dataset=dataset, partition=_NAME, party=party, rows=rows) for party in _PARTIES]
        plan = prepare_over(config, AllRows(training=shards)).plan
        for release in plan.releases:
            if dataset.person and release.reads_rows:
                require_people(*release.algorithm.classes())
        return cls(plan, rows)

    @property
    def stated(self) -> Stated:
        """The claimed and the proved guarantee of the run."""
        return Stated(
            delta=self.plan.delta,
            claimed_epsilon=None if lookup("systems", self.plan.system).claim is None else self.plan.epsilon,
            costs=list(set(self.plan.losses_by_party().values())) if self.plan.proved else None,
        )

    def experiment(self, pair: Neighbouring, label: str, salt: str) -> Experiment:
        """Return the experiment on a pair of neighbours; its noise is made of salt and label."""
        secret = hashlib.sha256(f"{salt}/{label}".encode()).digest()
        return Experiment(label, one_by_one(partial(self.outputs, pair, secret)))

    def margins(
        self,
        held: tuple[Floats, Ints] | tuple[Floats, Ints, Ints | None],
        features: Floats,
        labels: Ints,
        secret: bytes,
        trial: int = 0,
    ) -> Floats:
        """Train on the rows held (:func:`partitioned`); return each of some rows' margin in its party's model, (n,).

        Raises
        ------
        ParameterError
            If the model is not linear in the features of a row.
        """
        rows = partitioned(*held)
        seen = self.outputs(Neighbouring("one data set", rows, rows), secret, True, trial)
        margins = np.empty(len(labels))
        for place in range(len(_PARTIES)):
            weights = self._weights(seen, place, features.shape[1])
            margins[place::2] = (2.0 * labels[place::2] - 1.0) * (features[place::2] @ weights)
        return margins

    def _weights(self, seen: Mapping[str, Floats], place: int, dimension: int) -> Floats:
        """Return the direction of the model that stands for a party's rows, (d,)."""
        models = [seen[name] for name in seen if name.startswith("linear-model") and name.endswith("weights")]
        known = [seen.get(f"weights of {owner} before the map") for owner in (_PARTIES[place], "all")]
        known.append(models[place] if len(models) == len(_PARTIES) else next(iter(models), None))
        for model in known:
            if model is not None and len(model) == dimension:
                return model
        raise ParameterError(
            f"the model of {self.plan.system} is not linear in a row's {dimension} features: audit its releases"
        )

    def outputs(self, neighbours: Neighbouring, secret: bytes, world: bool, trial: int) -> dict[str, Floats]:
        """Carry the plan out on one neighbour and return everything that leaves, as one vector an observable.

        Observables are every released array, what the server makes of them, and the weights of the rows before a map.
        """
        ours, theirs = (neighbours.left, neighbours.right)[:: 1 if world else -1]
        ratios: list[WatchedRun] = []

        def make(node: PlannedRelease | PlannedCombination, inputs: list[Artefact]) -> Artefact:
            if isinstance(node, PlannedCombination):
                return node.combine(inputs)
            key = self._keys[id(node)]
            if key in self._maps:
                return self._maps[key]
            places = [place for place, party in enumerate(node.parties) if ours[party] is not theirs[party]]
            place = places[0] if places else 0
            rows = [_mapped(ours[party], inputs) for party in node.parties]
            other = _mapped(theirs[node.parties[place]], inputs)
            noise, algorithm = KeyedNoise(secret, f"{key}/{trial}/{world}"), self._algorithms[key].informed(inputs)
            run = run_watched(algorithm, node.setting, noise, rows, other, party=place, world=world)
            if not node.reads_rows:
                self._maps[key] = run.artefact
            elif places:
                ratios.append(run)
            return run.artefact

        releases = materialise(self._training, make, at_hand=self.plan.partitions)
        seen = {}
        for number, artefact in enumerate(releases.values()):
            for name, array in artefact.arrays().items():
                seen[f"{artefact.kind} {number} {name}"] = np.asarray(array, dtype=np.float64).ravel()
        for name, path in self.plan.paths().items():
            maps, model = [releases[key] for key in path[:-1]], releases[path[-1]]
            if maps and isinstance(maps[0], AffineMap) and isinstance(model, LinearModel):
                seen[f"weights of {name} before the map"] = maps[0].before(model).weights.ravel()
        return {name: vector for name, vector in seen.items() if vector.size} | observed_ratio(ratios)


def _mapped(rows: ArrayRows, maps: Sequence[Artefact]) -> ArrayRows:
    """Return rows seen through released maps."""
    features = rows.features
    for one in maps:
        features = cast(RowMap, one).apply(features)
    return replace(rows, features=features)


def neighbouring_rows(run: SyntheticRun, dimension: int, neighbours: Neighbours) -> list[Neighbouring]:
    """Return synthetic neighbours that an audit of a system tries: the proofs' own worst pairs, and canaries.

    The canaries stand among the rows of two classes: a row far out against its opposite, and a row of the one class
    against the same with the other's label; under ``replace-special`` against a null record.
    """
    pairs = []
    for release in run.plan.training.values():
        if not isinstance(release, PlannedRelease):
            continue
        setting = release.setting
        if release.reads_rows and setting.dimension == dimension:
            pair = release.build().neighbouring_pair(setting)
            others = partitioned(np.zeros((2 * run.rows, dimension)), np.full(2 * run.rows, NULL_LABEL))
            own, name = release.parties[pair.party], f"the worst pair of {release.name}'s proof"
            pairs.append(Neighbouring(name, {**others, own: pair.left}, {**others, own: pair.right}))
    random = np.random.default_rng(7)

    def crowd() -> ArrayRows:
        labels = np.arange(run.rows) % 2
        features = 0.15 * random.standard_normal((run.rows, dimension))
        features[:, 0] += np.where(labels == 1, 0.5, -0.5)
        return ArrayRows(features / np.maximum(1.0, np.linalg.norm(features, axis=1, keepdims=True)), labels)

    base = {party: crowd() for party in _PARTIES}
    far = np.eye(dimension)[dimension - 1]
    even = np.where(np.arange(dimension) % 2, -1.0, 1.0) / np.sqrt(dimension)
    gone = neighbours is Neighbours.REPLACE_SPECIAL
    for name, left, right in (
        (_FAR, (far, 1), (-far, 1)),
        ("a canary far out in all coordinates", (even, 1), (-even, 1)),
        (_LABEL, (even, 1), (even, 0)),
    ):
        pairs.append(differing(name, base, 0, left, None if gone else right))
    return list({one.name: one for one in pairs}.values())
