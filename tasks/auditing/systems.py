"""Systems under audit: carried out in memory, without door and ledger, on synthetic neighbours and on public rows.

Whatever draws noise can be audited: :func:`subjects` lists it.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Self, cast

import numpy as np
from threadpoolctl import threadpool_limits

from dpalgos.algorithms import Algorithm, require_people
from dpalgos.audit.bounds import attack, bound_of, likelihood_ratios
from dpalgos.audit.experiment import (
    USUAL,
    AuditOptions,
    AuditReport,
    Effort,
    Experiment,
    Report,
    Stated,
    audit_experiments,
    one_by_one,
)
from dpalgos.audit.releases import (
    WatchedRun,
    audit_parameters,
    audit_release,
    audited,
    experiments_on,
    observed_ratio,
    run_watched,
    shape_of,
)
from dpalgos.guarantees import Neighbours
from dpalgos.keystream import KeyedNoise
from dpalgos.models import AffineMap, Artefact, LinearModel, RowMap
from dpalgos.normalisation import UnitNorm
from dpalgos.parameters import ParameterError, UnknownNameError
from dpalgos.registry import lookup, names
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats, Ints
from storage.atomic import write_bytes
from storage.datasets import open_dataset
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef, ShardRef, Visibility
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import Json, TrainingConfig
from tasks.planning.identity import identity, package_digest
from tasks.planning.plans import Node, PlannedCombination, PlannedRelease, RunPlan, carry_out, plan_run
from tasks.runtime.progress import say_runs
from tasks.runtime.settings import current_layout

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
        held[party] = ArrayRows(rows, of_class, shares=shares, people=len(times))
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
        rows_per_person: int | None = None,
    ) -> Self:
        """Plan a system over two parties (one, where all rows are read together) of ``rows`` rows, or people, each.

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
        )
        shards = [ShardRef(dataset=dataset, partition=_NAME, party=party, rows=rows) for party in _PARTIES]
        plan = plan_run(config, shards)
        for release in plan.releases:
            if dataset.person and release.reads_rows:
                require_people(lookup(release.algorithm.kind, release.name))
        return cls(plan)

    @property
    def stated(self) -> Stated:
        """What is claimed and proved of the run."""
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

        def make(key: str, node: Node, inputs: list[Artefact]) -> Artefact:
            if isinstance(node, PlannedCombination):
                return node.combine(inputs)
            if key in self._maps:
                return self._maps[key]
            places = [place for place, party in enumerate(node.parties) if ours[party] is not theirs[party]]
            place = places[0] if places else 0
            rows = [_mapped(ours[party], inputs) for party in node.parties]
            other = _mapped(theirs[node.parties[place]], inputs)
            noise, algorithm = KeyedNoise(secret, f"{key}/{trial}/{world}"), self._algorithms[key]
            run = run_watched(algorithm, node.setting, noise, rows, other, party=place, world=world)
            if not node.reads_rows:
                self._maps[key] = run.artefact
            elif places:
                ratios.append(run)
            return run.artefact

        releases = carry_out(self._training, make)
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
    for release in (*run.plan.projections, *run.plan.models):
        setting = release.setting
        if release.reads_rows and setting.dimension == dimension:
            pair = release.build().neighbouring_pair(setting)
            others = partitioned(np.zeros((2 * _ROWS, dimension)), np.full(2 * _ROWS, NULL_LABEL))
            own, name = release.parties[pair.party], f"the worst pair of {release.name}'s proof"
            pairs.append(Neighbouring(name, {**others, own: pair.left}, {**others, own: pair.right}))
    random = np.random.default_rng(7)

    def crowd() -> ArrayRows:
        labels = np.arange(_ROWS) % 2
        features = 0.15 * random.standard_normal((_ROWS, dimension))
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


@dataclass(frozen=True, slots=True)
class PublicSample:
    """Rows of two classes, of norm 1, and as many others to put in their place.

    Parameters
    ----------
    dataset : str
    features : array (n, d)
    labels : int array (n,)
        0 or 1.
    spare_features : array (n, d)
    spare_labels : int array (n,)
    """

    dataset: str
    features: Floats
    labels: Ints
    spare_features: Floats
    spare_labels: Ints


def public_sample(name: str, rows: int, seed: int) -> PublicSample:
    """Return rows of the first two classes of a public data set, drawn without replacement.

    Parameters
    ----------
    name : str
    rows : int
        How many to train on; as many again are held back. Even.
    seed : int

    Raises
    ------
    RefusedError
        If the set is private: what an audit prints is about its rows; or if its rows are people's.
    InputError
        If it has real labels, or too few rows of two classes.
    """
    dataset = find_dataset(name)
    if dataset.private:
        raise RefusedError(
            f"{name} is private: audits run on synthetic rows and on rows of public data sets, never on private ones"
        )
    if dataset.person:
        raise RefusedError(
            f"the rows of {name} are people's ({dataset.person}), and this audit exchanges one row: take rows that are "
            "records of their own; unitball audit ALGORITHM holds a person with many rows against every algorithm"
        )
    if len(dataset.classes) < 2:
        raise InputError(f"{name} has real labels; an audit needs a public set with classes")
    blocks = list(open_dataset(current_layout(), dataset).blocks())
    features = np.concatenate([np.asarray(block, dtype=np.float64) for block, *_ in blocks])
    labels = np.concatenate([np.asarray(block, dtype=np.int64) for _, block, _ in blocks])
    places = np.flatnonzero(labels < 2)
    if len(places) < 2 * rows:
        raise InputError(
            f"{name} has {len(places)} rows of its first two classes and {2 * rows} are needed: half to train on and "
            "half to put in their place; choose a larger set or fewer rows"
        )
    chosen = np.random.default_rng(seed).permutation(places)[: 2 * rows]
    mapped = UnitNorm()(features[chosen])
    return PublicSample(name, mapped[:rows], labels[chosen[:rows]], mapped[rows:], labels[chosen[rows:]])


def canary_pairs(sample: PublicSample, neighbours: Neighbours) -> list[Neighbouring]:
    """Return neighbours that differ in a canary among public rows, in the first party.

    The canaries: the row farthest from the mean of its class; a row with the other class's label; and the support
    vector of largest dual coefficient of a support vector machine without privacy on all rows. Under ``replace-one``
    the other data set holds in its place an ordinary row that was held back, the one nearest to the mean of the other
    class (the flipped label: the same row with its own); under ``replace-special`` a null record.
    """
    from sklearn.svm import SVC

    features, labels = sample.features, sample.labels
    base = partitioned(features, labels)
    means = np.stack([features[labels == label].mean(axis=0) for label in (0, 1)])
    own = np.arange(0, len(features), 2)
    far = int(own[np.linalg.norm(features[own] - means[labels[own]], axis=1).argmax()])
    machine = SVC(kernel="linear").fit(features, labels)
    weight = np.zeros(len(features))
    weight[machine.support_] = np.abs(machine.dual_coef_[0])
    # Of those at the bound of the dual, the one that violates its margin most.
    weight += 1e-6 * np.maximum(0.0, 1.0 - (2 * labels - 1) * machine.decision_function(features))
    support = int(own[weight[own].argmax()])
    typical = int(own[np.linalg.norm(features[own] - means[labels[own]], axis=1).argmin()])

    def pair(name: str, place: int, label: int, other: tuple[Floats, int]) -> Neighbouring:
        right = None if neighbours is Neighbours.REPLACE_SPECIAL else other
        return differing(name, base, place // 2, (features[place], label), right)

    def ordinary(place: int) -> tuple[Floats, int]:
        spare = int(np.linalg.norm(sample.spare_features - means[1 - labels[place]], axis=1).argmin())
        return sample.spare_features[spare], int(sample.spare_labels[spare])

    own_label = int(labels[typical])
    return [
        pair(f"the row of {sample.dataset} farthest from its class", far, int(labels[far]), ordinary(far)),
        pair(f"a row of {sample.dataset} with the other label", typical, 1 - own_label, (features[typical], own_label)),
        pair(f"a support vector of {sample.dataset}", support, int(labels[support]), ordinary(support)),
    ]


LEVELS = (0.001, 0.01, 0.1)
"""False positive rates at which the true positive rate is stated."""

_MODELS, _MEMBERSHIP_ROWS = 64, 160


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipReport(Report):
    """How well members are told from others, and how well the guarantee lets them be.

    Parameters
    ----------
    dataset : str
    models, rows : int
        Shadow models, and rows that each of them held or not.
    advantage, advantage_bound : float
        Largest difference of true and false positive rate, measured, and the most that is possible under what is
        proved, or, where nothing is, claimed.
    area, area_bound : float
        Area under the ROC curve; 0.5 is guessing.
    rates : list of (float, float, float)
        False positive rate, true positive rate measured, and the most that is possible.
    curve, bound : list of (float, float)
        The whole curves, as points (false positive rate, true positive rate).
    """

    dataset: str
    models: int
    rows: int
    advantage: float
    advantage_bound: float
    area: float
    area_bound: float
    rates: list[tuple[float, float, float]]
    curve: list[tuple[float, float]]
    bound: list[tuple[float, float]]


def _sampled(
    name: str, dataset: str, rows: int, options: AuditOptions
) -> tuple[PublicSample, SyntheticRun, Neighbours]:
    """Return a sample of a public data set, a system planned on it, and the relation."""
    neighbours, (epsilon, delta) = options.neighbours or Neighbours.REPLACE_ONE, options.budget()
    sample = public_sample(dataset, rows, options.seed)
    dimension = sample.features.shape[1]
    run = SyntheticRun.of(
        name, epsilon=epsilon, delta=delta, rows=rows // 2, dimension=dimension, neighbours=neighbours
    )
    return sample, run, neighbours


def infer_membership(
    name: str, dataset: str, options: AuditOptions = USUAL, *, rows: int = _MEMBERSHIP_ROWS
) -> MembershipReport:
    """Train shadow models of a system on public rows and attack each by the others (:mod:`dpalgos.audit.bounds`).

    Each row is in a model's training set by a coin; otherwise a row that was held back stands in its place
    (``replace-one``), or a null record (``replace-special``). The score is the margin of the row in the model.

    Parameters
    ----------
    name : str
        Of a registered system with a linear model.
    dataset : str
        Public; rows of its first two classes are taken.
    options : AuditOptions
        ``trials`` are the shadow models, 64 or at least 8; the seed is that of sample, coins and noise.
    rows : int
        Even.

    Raises
    ------
    RefusedError
        If the data set is private.
    InputError, UnknownNameError, ParameterError
        For a set or system that does not fit, or too few models.
    """
    if rows < 2 or rows % 2:
        raise ParameterError(f"rows is {rows}; give an even number, partitioned over two parties")
    started = time.monotonic()
    seed, models = options.seed, options.trials or _MODELS
    sample, run, neighbours = _sampled(name, dataset, rows, options)
    members = np.random.default_rng([seed, 1]).random((models, rows)) < 0.5
    absent: tuple[Floats, Ints] = (sample.spare_features, sample.spare_labels)
    if neighbours is Neighbours.REPLACE_SPECIAL:
        absent = np.zeros_like(sample.features), np.full(rows, NULL_LABEL)
    secret = hashlib.sha256(f"membership/{seed}".encode()).digest()
    scores = np.empty((models, rows))
    for number, there in enumerate(members):
        held = np.where(there[:, None], sample.features, absent[0]), np.where(there, sample.labels, absent[1])
        scores[number] = run.margins(held, sample.features, sample.labels, secret, number)
        say_runs(number + 1, models)
    found = attack(likelihood_ratios(scores, members), members)
    stated = run.stated
    bound = bound_of(stated.losses) if stated.losses else None
    return MembershipReport(
        algorithm=name,
        dataset=dataset,
        models=models,
        rows=rows,
        claimed_epsilon=stated.claimed_epsilon,
        proved_epsilon=stated.proved_epsilon,
        proved_mu=stated.proved_mu,
        delta=options.budget()[1],
        advantage=found.advantage,
        advantage_bound=1.0 if bound is None else bound.advantage,
        area=found.area,
        area_bound=1.0 if bound is None else bound.area,
        rates=[(level, found.rate_at(level), 1.0 if bound is None else bound.rate_at(level)) for level in LEVELS],
        curve=list(zip(found.levels.tolist(), found.rates.tolist(), strict=True)),
        bound=[] if bound is None else list(zip(bound.levels.tolist(), bound.rates.tolist(), strict=True)),
        neighbours=str(neighbours),
        seconds=round(time.monotonic() - started, 2),
        seed=seed,
    )


_ROWS, _PUBLIC_TRIALS = 8, 400
# (features, classes): few numbers make strong tests, noise a coordinate shows in many, and ten classes show whether
# their classifiers are composed. A map of images needs as many features as an image of 8 x 8 pixels has.
_SHAPES = ((2, 2), (40, 2), (2, 10))
_IMAGE_SHAPES = ((64, 2),)


def audit_system(name: str, options: AuditOptions = USUAL) -> AuditReport:
    """Run a registered system on synthetic neighbours many times, and bound its epsilon from below.

    Experiments are the whole system, planned as any run is, and each of its releases that reads rows first.

    Parameters
    ----------
    name : str
        Of a registered system; one that draws no noise has nothing to audit.
    options : AuditOptions
        Of more than 20,000 trials four fifths are counted, else half. No bound exceeds ln(counted/5.3) at 99 %.

    Raises
    ------
    UnknownNameError, ParameterError
        For a name that is not registered, numbers out of range, or a system that draws no noise.
    """
    started, (epsilon, delta) = time.monotonic(), options.budget()
    neighbours = options.neighbours or parts_of(name)[0].relations[0]
    require_noise(name)
    experiments: list[Experiment] = []
    runs = []
    for dimension, classes, run in _runs_of(name, epsilon, delta, neighbours):
        runs.append(run)
        salt = f"{options.seed}/{name}"
        for pair in neighbouring_rows(run, dimension, neighbours):
            # Of many features those pairs are of interest that move all of them.
            if dimension == _SHAPES[0][0] or pair.name not in ONE_COORDINATE:
                experiments.append(run.experiment(pair, f"{pair.name}, {shape_of(dimension, classes)}", salt))
        for release in _alone(run):
            alone = experiments_on(release.build(), release.setting, salt=f"{salt}/{release.name}")
            experiments += [replace(each, pair=f"{release.name} alone, {each.pair}") for each in alone if each.numbers]
    costs = [cost for run in runs for cost in run.plan.losses_by_party().values()]
    report = audit_experiments(
        experiments,
        replace(runs[0].stated, costs=list(set(costs)) if all(run.plan.proved for run in runs) else None),
        options,
        algorithm=name,
        kind="systems",
        neighbours=neighbours,
        progress=say_runs,
    )
    return replace(report, seconds=round(time.monotonic() - started, 2))


def audit_on_public_rows(name: str, dataset: str, options: AuditOptions = USUAL, *, rows: int = 40) -> AuditReport:
    """Run a registered system on public rows with and without a canary, and bound its epsilon from below.

    Which canary shows most is chosen on runs of its own; see :func:`canary_pairs`. It is
    mostly a weaker test than the worst pairs of :func:`audit_system`: what it tells is how much
    of a row such as there are leaks.

    Parameters
    ----------
    name : str
        Of a registered system.
    dataset : str
        Public; rows of its first two classes are taken.
    options : AuditOptions
        400 trials, half of them to choose an event; the seed is that of sample and noise.
    rows : int
        Even; as many again are held back.

    Raises
    ------
    RefusedError
        If the data set is private.
    InputError, UnknownNameError, ParameterError
        For a set or system that does not fit, or numbers out of range.
    """
    require_noise(name)
    if rows < 4 or rows % 2:
        raise ParameterError(f"rows is {rows}; give an even number of at least 4, partitioned over two parties")
    started = time.monotonic()
    sample, run, neighbours = _sampled(name, dataset, rows, options)
    report = audit_experiments(
        [run.experiment(pair, pair.name, str(options.seed)) for pair in canary_pairs(sample, neighbours)],
        run.stated,
        replace(options, trials=options.trials or _PUBLIC_TRIALS, effort=Effort(pilot=48)),
        algorithm=name,
        kind="systems",
        neighbours=neighbours,
        progress=say_runs,
    )
    return replace(report, seconds=round(time.monotonic() - started, 2))


def require_noise(name: str) -> None:
    """Refuse a system that draws no noise."""
    if not draws_noise(name):
        raise ParameterError(f"{name} draws no noise and claims nothing: there is nothing to audit")


def draws_noise(name: str) -> bool:
    """Whether any part of a registered system draws noise."""
    return any(part.budgets for part in parts_of(name))


def parts_of(name: str) -> list[type[Algorithm]]:
    """Return a system's trainer, and its projection if it has one."""
    arrangement = next(iter(lookup("systems", name).supported().values()))
    parts = [lookup("trainers", arrangement.trainer.name)]
    if arrangement.projection is not None:
        parts.append(lookup("projections", arrangement.projection.name))
    return parts


def _runs_of(
    name: str, epsilon: float, delta: float, neighbours: Neighbours
) -> Iterator[tuple[int, int, SyntheticRun]]:
    """Yield runs of a system on rows of several shapes."""
    # What an audit of a trainer sets beside its budget.
    found = audit_parameters(parts_of(name)[0], 0)
    parameters = {f"trainer.{field}": value for field, value in found.items() if field != "components"}
    planned = partial(
        SyntheticRun.of,
        name,
        epsilon=epsilon,
        delta=delta,
        rows=_ROWS,
        neighbours=neighbours,
        parameters=parameters,
    )
    shapes: tuple[tuple[int, int], ...] = _SHAPES
    try:
        planned(dimension=shapes[0][0], classes=shapes[0][1])
    except ParameterError:
        # What else is wrong with the arguments is said again here.
        shapes = _IMAGE_SHAPES
    for dimension, classes in shapes:
        yield dimension, classes, planned(dimension=dimension, classes=classes)


def _alone(run: SyntheticRun) -> Iterable[PlannedRelease]:
    """Return the releases that read rows as they are, one of each kind."""
    first = {release.name: release for release in reversed(run.plan.releases) if not release.upstream}
    return [one for one in reversed(first.values()) if one.reads_rows and one.budget is not None]


KINDS = ("systems", "projections", "trainers", "evaluators")
"""The kinds of what can be audited; of a name that several have, the first is meant."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is audited.

    Parameters
    ----------
    kind, name : str
    """

    kind: str
    name: str


def subjects() -> list[Subject]:
    """Return all that draws noise: systems first, then the releases that they are made of.

    Aggregators are not among them: they read releases, not rows, and cost nothing whatever they do; what they make is
    an observable of each system's audit.
    """
    releases = [Subject(kind, name) for kind in KINDS[1:] for name in names(kind) if audited(kind, name)]
    return [Subject("systems", name) for name in names("systems") if draws_noise(name)] + releases


def find_subject(name: str, kind: str | None = None) -> Subject:
    """Return what a name means: a system, or else a release.

    Raises
    ------
    UnknownNameError
        Naming what is registered.
    ParameterError
        For a kind, or a name, that cannot be audited.
    """
    if kind is not None and kind not in KINDS:
        raise ParameterError(f"kind is {kind!r}; what can be audited are {', '.join(KINDS)}")
    for one in [kind] if kind else KINDS:
        if name in names(one):
            return Subject(one, name)
    if name in names("aggregators"):
        raise ParameterError(
            f"{name} is an aggregator: it reads releases, not rows, and costs nothing; audit a system that has it"
        )
    raise UnknownNameError(f"nothing that can be audited is called {name!r}; see unitball algorithms")


def audit_subject(subject: Subject, options: AuditOptions) -> AuditReport:
    """Audit one system or release.

    Raises
    ------
    ParameterError
        For numbers out of range, or where no noise is drawn.
    """
    if subject.kind == "systems":
        return audit_system(subject.name, options)
    started = time.monotonic()
    report = audit_release(subject.kind, subject.name, options, progress=say_runs)
    return replace(report, seconds=round(time.monotonic() - started, 2))


def audit_all(
    wanted: Sequence[Subject], options: AuditOptions, folder: Path, *, processes: int
) -> Iterator[tuple[Subject, Json]]:
    """Audit many, some at a time, and yield each report in JSON as soon as it is there.

    A report is kept in ``folder`` under a digest of what was audited, how, and of our whole source; where one is found
    it is not made again, so that an audit of everything that was interrupted goes on where it stopped. An audit that
    fails is yielded with the verdict ``not audited`` and the reason.

    Parameters
    ----------
    wanted : sequence of Subject
    options : AuditOptions
    folder : Path
        Made where there is none.
    processes : int
        How many at a time.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    request = {"code": package_digest("dpalgos", "tasks"), "arguments": asdict(options)}
    places = {one: folder / f"{identity(subject=asdict(one), **request)}.json" for one in wanted}
    missing = []
    for subject, place in places.items():
        kept = _read(place)
        if kept is None:
            missing.append(subject)
        else:
            yield subject, kept
    # The linear algebra of one process is not to slow the others down.
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=threadpool_limits, initargs=(1,)) as pool:
        waiting: Mapping[Future[AuditReport], Subject] = {
            pool.submit(audit_subject, subject, options): subject for subject in missing
        }
        try:
            for done in as_completed(waiting):
                subject, failure = waiting[done], done.exception()
                if failure is not None:
                    # One that cannot be audited must not end the others; nothing is kept, so it is tried again.
                    yield subject, _failed(subject, failure)
                    continue
                report = done.result().to_json()
                write_bytes(places[subject], json.dumps(report).encode())
                yield subject, json.loads(json.dumps(report))
        finally:
            pool.shutdown(cancel_futures=True)


def _failed(subject: Subject, failure: BaseException) -> Json:
    reason = f"{type(failure).__name__}: {' '.join(str(failure).split())}"
    numbers = ("delta", "claimed_epsilon", "proved_epsilon", "lower_bound", "gaussian_bound", "seconds")
    verdict = {"kind": subject.kind, "algorithm": subject.name, "verdict": f"not audited ({reason})", "trials": 0}
    return verdict | dict.fromkeys(numbers)


def _read(place: Path) -> Json | None:
    """Return a kept report; None where there is none that can be read."""
    try:
        report: Json = json.loads(place.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return report
