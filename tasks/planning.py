"""From a configuration to a plan: every release of a run, with its identity and price, before any row is read."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from dpalgos.accounting.calibration import allocate
from dpalgos.algorithms import Algorithm
from dpalgos.errors import ParameterError
from dpalgos.guarantees import (
    Claim,
    GaussianMu,
    Guarantee,
    Loss,
    Neighbours,
    Setting,
    Trust,
    loss_from_json,
    loss_to_json,
)
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.systems.system import Arrangement, Scope, System
from storage.errors import InputError
from storage.refs import ShardRef
from tasks.config import TrainingConfig
from tasks.identity import code_version, identity

__all__ = [
    "PlannedCombination",
    "PlannedRelease",
    "RunPlan",
    "build",
    "plan_run",
    "resolve_normalisation",
    "resolve_system",
]

CURATOR = "all"
UNIT_NORM = "unit-norm"


class _Planned(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedRelease(_Planned):
    """One release that will be made: its identity, what computes it, whose rows it reads, what it uses.

    Attributes
    ----------
    key : str
        The release's identity.
    label : str
        For people.
    algorithm : AlgorithmSpec fields
        Kind, name and parameters; ``budget`` apart, as a loss in JSON form.
    setting : dict
        The public facts of :class:`dpalgos.guarantees.Setting`.
    parties : tuple of str
        Whose rows it reads.
    upstream : tuple of str
        Keys of the releases it uses: the projection.
    seed : int or None
        Public noise seed.
    """

    key: str
    label: str
    kind: str
    name: str
    parameters: dict[str, Any]
    budget: dict[str, Any] | None
    setting: dict[str, Any]
    parties: tuple[str, ...]
    upstream: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def owner(self) -> str:
        """Whose secret keys the noise: the party's own, or the curator's."""
        return self.parties[0] if len(self.parties) == 1 and self.setting["trust"] == "local" else CURATOR

    def public_facts(self) -> Setting:
        """Return the setting."""
        return _setting_from_json(self.setting)

    def guarantee(self) -> Guarantee:
        """Return what is proved about the release."""
        algorithm: Algorithm = build(self)
        return algorithm.guarantee(self.public_facts())


class PlannedCombination(_Planned):
    """Post-processing of releases by the server: costs nothing, has an identity all the same."""

    key: str
    label: str
    name: str
    parameters: dict[str, Any]
    upstream: tuple[str, ...]
    weights: tuple[float, ...]


class RunPlan(_Planned):
    """Everything a run will release.

    Attributes
    ----------
    run_key : str
        Identity of the whole run.
    projections, models : tuple of PlannedRelease
        One a party, or one for all; no projections where all dimensions are kept.
    basis, model : PlannedCombination or None
        How they are put together.
    split : dict
        How the budget was split over the stages, for reports.
    """

    run_key: str
    system: str
    paper: str
    trust: Trust
    normalisation: str
    projections: tuple[PlannedRelease, ...]
    basis: PlannedCombination | None
    models: tuple[PlannedRelease, ...]
    model: PlannedCombination | None
    evaluations: tuple[PlannedRelease, ...]
    split: dict[str, Any]
    claim: dict[str, Any] | None
    sound_counterpart: str | None
    epsilon: float | None
    delta: float

    def paths(self) -> dict[str, list[str]]:
        """Return, for each released model by name, the keys that a row passes through: basis, then model."""
        if self.model is not None:
            return {CURATOR: [*self.models[0].upstream, self.model.key]}
        named = {release.parties[0] if len(release.parties) == 1 else CURATOR: release for release in self.models}
        return {name: [*release.upstream, release.key] for name, release in named.items()}

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """All releases that read rows, in order."""
        return self.projections + self.models + self.evaluations


def _setting_to_json(setting: Setting) -> dict[str, Any]:
    return {**dataclasses.asdict(setting), "sizes": list(setting.sizes)}


def _setting_from_json(data: Mapping[str, Any]) -> Setting:
    return Setting(
        sizes=tuple(data["sizes"]),
        dimension=data["dimension"],
        classes=data["classes"],
        neighbours=Neighbours(data["neighbours"]),
        trust=Trust(data["trust"]),
    )


def build(planned: PlannedRelease) -> Any:
    """Return the algorithm of a planned release, its budget decoded."""
    parameters = dict(planned.parameters)
    if planned.budget is not None:
        parameters["budget"] = loss_from_json(planned.budget)
    return AlgorithmSpec(planned.kind, planned.name, parameters).build()


def _fields(spec: AlgorithmSpec) -> set[str]:
    return {field.name for field in dataclasses.fields(lookup(spec.kind, spec.name)) if field.init} - {"budget"}


def _with_parameters(parts: dict[str, AlgorithmSpec], given: Mapping[str, Any]) -> dict[str, AlgorithmSpec]:
    """Hand each ``NAME`` or ``part.NAME`` to the part that has such a field."""
    result = dict(parts)
    for name, value in given.items():
        part_name, _, field = name.rpartition(".")
        owners = [key for key, spec in parts.items() if field in _fields(spec) and part_name in ("", key)]
        if not owners:
            known = sorted(f"{key}.{name}" for key, spec in parts.items() for name in _fields(spec))
            near = difflib.get_close_matches(name, known, n=4, cutoff=0.3) or known
            raise ParameterError(
                f"no part of this system has a parameter {name!r}; nearest: {', '.join(near) or 'none'}"
            )
        if len(owners) > 1:
            options = ", ".join(f"{owner}.{field}" for owner in owners)
            raise ParameterError(f"parameter {name!r} is ambiguous: say one of {options}")
        result[owners[0]] = result[owners[0]].with_parameters(**{field: value})
    return result


def resolve_system(config: TrainingConfig) -> tuple[str, System | None, Trust, Arrangement]:
    """Return name, system, trust and arrangement that a configuration asks for, overrides applied.

    Raises
    ------
    UnknownNameError, ParameterError
        For a name that is not registered or a trust that is not supported.
    """
    if config.trainer is not None:
        return _composed(config)
    system: System = lookup("systems", str(config.algorithm))
    trust = config.trust or next(iter(system.arrangements))
    if trust not in system.arrangements:
        supported = ", ".join(system.arrangements)
        raise ParameterError(f"{config.algorithm} does not run under trust {trust}; it runs under: {supported}")
    arrangement = system.arrangements[trust]
    changes: dict[str, Any] = {}
    if config.projection is not None:
        changes["projection"] = AlgorithmSpec("projections", config.projection)
    if config.aggregation is not None:
        changes["model_aggregation"] = AlgorithmSpec("aggregators", config.aggregation)
    arrangement = dataclasses.replace(arrangement, **changes)
    name = "+".join([str(config.algorithm), *(str(value.name) for value in changes.values())])
    # With a part exchanged the paper's claim for the whole no longer speaks of what runs.
    return name, (dataclasses.replace(system, claim=None) if changes else system), trust, arrangement


def resolve_normalisation(config: TrainingConfig, declared: str | None) -> str:
    """Return the row-local map of a run: asked for, declared with the data set, or the system's own."""
    if config.normalisation is not None:
        return config.normalisation
    if declared is not None:
        return declared
    return UNIT_NORM if config.trainer is not None else str(lookup("systems", str(config.algorithm)).normalisation)


def _composed(config: TrainingConfig) -> tuple[str, None, Trust, Arrangement]:
    trainer = lookup("trainers", str(config.trainer))
    projection = lookup("projections", config.projection) if config.projection else None
    supported = [trust for trust in trainer.trusts if projection is None or trust in projection.trusts]
    if not supported:
        raise ParameterError(f"{config.projection} and {config.trainer} have no trust model in common")
    trust = config.trust or supported[0]
    if trust not in supported:
        raise ParameterError(
            f"{config.projection or 'no projection'} with {config.trainer} does not run under trust {trust}; "
            f"it runs under: {', '.join(supported)}"
        )
    scope = Scope.PARTY if trust is Trust.LOCAL else Scope.JOINT
    local = trust is Trust.LOCAL
    shared_map = projection is not None and projection.reads_rows and local
    arrangement = Arrangement(
        projection=AlgorithmSpec("projections", config.projection) if config.projection else None,
        projection_scope=scope,
        basis_aggregation=AlgorithmSpec("aggregators", "projector-mean") if shared_map else None,
        trainer=AlgorithmSpec("trainers", str(config.trainer)),
        trainer_scope=scope,
        model_aggregation=AlgorithmSpec("aggregators", config.aggregation or "weighted-mean") if local else None,
    )
    name = "+".join(part for part in (config.projection, config.trainer, config.aggregation) if part)
    return name, None, trust, arrangement


def _budgets(
    parts: Mapping[str, AlgorithmSpec], share: float, epsilon: float | None, delta: float
) -> tuple[dict[str, Loss], dict[str, Any]]:
    """Split (epsilon, delta) over the parts that draw noise."""
    shares = {"projection": share, "trainer": 1 - share}
    noisy = [
        key for key in ("projection", "trainer") if key in parts and lookup(parts[key].kind, parts[key].name).budgets
    ]
    if not noisy:
        return {}, {}
    if epsilon is None:
        raise ParameterError(f"{parts[noisy[-1]].name} draws noise: give a total budget, for example --epsilon 1")
    kinds = [lookup(parts[key].kind, parts[key].name).budgets for key in noisy]
    weights = [shares[key] for key in noisy] if len(noisy) > 1 else [1.0]
    allocation = allocate([kind[0] for kind in kinds], weights, epsilon, delta)
    return dict(zip(noisy, allocation.losses, strict=True)), {**allocation.to_json(), "stages": noisy}


def plan_run(config: TrainingConfig, shards: Sequence[ShardRef], held_out: ShardRef | None = None) -> RunPlan:
    """Return the plan of one run over the parties' shards.

    Parameters
    ----------
    config : TrainingConfig
    shards : sequence of ShardRef
        The parties' training shards, in order; the same partition.
    held_out : ShardRef, optional
        Rows a charged evaluation may read.

    Raises
    ------
    ParameterError, UnknownNameError
        For names and parameters that do not fit.
    InputError
        For a target dimension above the data's.
    """
    name, system, trust, arrangement = resolve_system(config)
    dataset = shards[0].dataset
    parts = {"trainer": arrangement.trainer}
    if arrangement.projection is not None:
        parts["projection"] = arrangement.projection
    if arrangement.basis_aggregation is not None:
        parts["basis_aggregation"] = arrangement.basis_aggregation
    if arrangement.model_aggregation is not None:
        parts["model_aggregation"] = arrangement.model_aggregation
    own = {name: value for name, value in config.parameters.items() if not name.startswith("partition.")}
    parts = _with_parameters(parts, own)
    if "projection" in parts and "components" in _fields(parts["projection"]):
        components = parts["projection"].parameters.get("components", config.dimension or min(20, dataset.dimension))
        if components > dataset.dimension:
            raise InputError(
                f"target dimension {components} is above the data set's {dataset.dimension}; "
                f"choose --dimension from 1 to {dataset.dimension}"
            )
        parts["projection"] = parts["projection"].with_parameters(components=components)
    budgets, split = _budgets(parts, arrangement.projection_share, config.epsilon, config.delta)

    common = {
        "code": code_version(),
        "partition": shards[0].partition,
        "dataset": dataset.version,
        "repetition": config.repetition,
        "seed": config.seed,
    }
    classes = max(len(dataset.classes), 1)

    def releases(part: str, scope: Scope, dimension: int, uses: Sequence[str]) -> tuple[PlannedRelease, ...]:
        spec = parts[part]
        groups = [(shard,) for shard in shards] if scope is Scope.PARTY else [tuple(shards)]
        made = []
        for index, group in enumerate(groups):
            setting = _setting_to_json(
                Setting(
                    sizes=tuple(shard.rows for shard in group),
                    dimension=dimension,
                    classes=classes,
                    trust=trust,
                )
            )
            upstream = () if not uses else (uses[index] if len(uses) > 1 else uses[0],)
            fields: dict[str, Any] = {
                "kind": spec.kind,
                "name": spec.name,
                "parameters": dict(spec.parameters),
                "budget": loss_to_json(budgets[part]) if part in budgets else None,
                "setting": setting,
                "parties": tuple(shard.party for shard in group),
                "upstream": upstream,
            }
            whose = f"party {group[0].party}" if scope is Scope.PARTY else "all parties"
            label = f"{'basis' if part == 'projection' else 'model'} of {whose}"
            made.append(PlannedRelease(key=identity(**common, **fields), label=label, seed=config.seed, **fields))
        return tuple(made)

    total = sum(shard.rows for shard in shards)
    weights = tuple(shard.rows / total for shard in shards)

    def combination(part: str, planned: Sequence[PlannedRelease], label: str) -> PlannedCombination | None:
        if part not in parts:
            return None
        fields: dict[str, Any] = {
            "name": parts[part].name,
            "parameters": dict(parts[part].parameters),
            "upstream": tuple(release.key for release in planned),
            "weights": weights,
        }
        return PlannedCombination(key=identity(**common, **fields), label=label, **fields)

    projections: tuple[PlannedRelease, ...] = ()
    basis: PlannedCombination | None = None
    used: list[str] = []
    dimension = dataset.dimension
    if "projection" in parts:
        algorithm_class = lookup("projections", parts["projection"].name)
        scope = arrangement.projection_scope if algorithm_class.reads_rows else Scope.JOINT
        projections = releases("projection", scope, dimension, ())
        basis = combination("basis_aggregation", projections, "basis") if scope is Scope.PARTY else None
        used = [basis.key] if basis else [release.key for release in projections]
        dimension = build(projections[0]).output_dimension(dimension)
    models = releases("trainer", arrangement.trainer_scope, dimension, used)
    model = combination("model_aggregation", models, "model") if arrangement.trainer_scope is Scope.PARTY else None

    claim = _claim(system.claim if system else None, config) or (
        None if system else _claim(lookup("trainers", parts["trainer"].name).claim, config)
    )
    counterpart = system.sound_counterpart if system else lookup("trainers", parts["trainer"].name).sound_counterpart
    evaluations: tuple[PlannedRelease, ...] = ()
    if config.evaluate_privately and dataset.private:
        if held_out is None or not dataset.classes:
            raise InputError("a charged evaluation needs held-out rows with classes: choose --test-fraction above 0")
        path = [*models[0].upstream, model.key if model else models[0].key]
        if model is None and len(models) > 1:
            raise InputError(
                "a charged evaluation is of one model, and here each party has its own: choose --aggregation"
            )
        evaluations = _evaluations(config, held_out, path, common, classes)

    run_key = identity(
        models=[release.key for release in models],
        model=model.key if model else None,
        dataset=dataset.model_dump(mode="json"),
        system=name,
        evaluation=[config.test_fraction, config.evaluate_privately],
        target=[config.epsilon, config.delta],
    )
    return RunPlan(
        run_key=run_key,
        system=name,
        paper=system.paper if system else "",
        trust=trust,
        projections=projections,
        basis=basis,
        models=models,
        model=model,
        evaluations=evaluations,
        normalisation=dataset.normalisation,
        split=split,
        claim=claim,
        sound_counterpart=counterpart,
        epsilon=config.epsilon,
        delta=config.delta,
    )


def _evaluations(
    config: TrainingConfig, held_out: ShardRef, path: Sequence[str], common: Mapping[str, Any], classes: int
) -> tuple[PlannedRelease, ...]:
    """Plan a noisy confusion matrix and score histograms of the held-out rows, sharing mu² equally.

    The held-out rows belong to no party that trains, so they have the run's whole budget to themselves.
    """
    if config.epsilon is None:
        raise ParameterError("a charged evaluation draws noise: give a total budget, for example --epsilon 1")
    specs = [AlgorithmSpec("evaluators", "confusion-matrix"), AlgorithmSpec("evaluators", "score-histogram")]
    losses = allocate([GaussianMu] * len(specs), [1 / len(specs)] * len(specs), config.epsilon, config.delta).losses
    setting = Setting(
        sizes=(held_out.rows,), dimension=1 if classes == 2 else classes, classes=classes, trust=Trust.CENTRAL
    )
    planned = []
    for spec, loss in zip(specs, losses, strict=True):
        fields: dict[str, Any] = {
            "kind": spec.kind,
            "name": spec.name,
            "parameters": {},
            "budget": loss_to_json(loss),
            "setting": _setting_to_json(setting),
            "parties": (held_out.party,),
            "upstream": tuple(path),
        }
        key = identity(**{**common, "partition": held_out.partition}, **fields)
        planned.append(PlannedRelease(key=key, label=f"{spec.name} of held-out rows", seed=config.seed, **fields))
    return tuple(planned)


def _claim(claim: Claim | None, config: TrainingConfig) -> dict[str, Any] | None:
    if claim is None:
        return None
    return {"epsilon": config.epsilon, "delta": config.delta, **dataclasses.asdict(claim)}
