"""From a configuration to the parts of a system: names looked up, overrides applied, parameters handed out."""

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence

from dpalgos.accounting.profiles import gaussian_epsilon, mu_from_epsilon_delta
from dpalgos.algorithms import Algorithm
from dpalgos.columns import Column
from dpalgos.guarantees import ApproximateDP, Neighbours, Trust
from dpalgos.normalisation import Normalisation
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup, names
from dpalgos.systems.system import Arrangement, PublicFacts, Scope, System
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef
from tasks.planning.configuration import (
    AlgorithmSettings,
    BudgetSettings,
    SystemSettings,
    TrainingConfig,
    split_features,
)

UNIT_NORM = "unit-norm"
ON_BASIS = "+principal-components"
"""What the name of a system ends with whose rows are seen through a released basis."""
# Parameters of what is not a part of a system.
_OTHERS = ("partition.", "trust.", "features.", "public.", "tuned.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The system and parameters that a configuration requests.

    Parameters
    ----------
    name : str
        Of the system, or of the parts put together.
    system : System
        Without its claim where that does not speak of what runs.
    trust : str
    arrangement : Arrangement
        Who does what; its own specifications are superseded by ``parts``.
    parts : mapping
        ``trainer``, and where there are ``counts``, ``column_map``, ``projection``, ``basis_aggregation``,
        ``model_aggregation``, with parameters.
    reasons : tuple of str
        Why these parts, where the system chooses them.
    warning : str or None
        What to say before anything is spent.
    """

    name: str
    system: System
    trust: str
    arrangement: Arrangement
    parts: Mapping[str, AlgorithmSpec]
    reasons: tuple[str, ...] = ()
    warning: str | None = None


def resolve(
    config: TrainingConfig,
    dataset: DatasetRef,
    sizes: Sequence[int] = (),
    relation: Neighbours = Neighbours.REPLACE_ONE,
    *,
    counted: float = 0.0,
    nightly: float | None = None,
) -> Resolved:
    """Return the parts of what a configuration asks for.

    Parameters
    ----------
    config : TrainingConfig
    dataset : DatasetRef
        A declared range of numeric labels is handed to a trainer that was given none.
    sizes : sequence of int
        Rows of each party; an even split of all rows where it is not known yet.
    relation : Neighbours
        The account's, in force where the configuration names none.
    counted : float
        The mu of histograms of these columns that were released before; 0 where there are none.
    nightly : float, optional
        Of a horizon of nights, how well these tell ranks.

    Raises
    ------
    UnknownNameError, ParameterError
        For names and parameters that do not fit.
    InputError
        For a target dimension above the data's.
    """
    if config.dimension is not None:
        # Whether or not the system reduces at all: who asks for the impossible has mistaken the data set.
        _require_dimension(config.dimension, dataset.dimension)
    name, system, trust, arrangement = resolve_system(config)
    choice = None
    if system.choose is not None:
        facts = _facts(config, dataset, sizes, relation, trust, arrangement, counted)
        choice = system.choose(dataclasses.replace(facts, nightly=nightly))
        arrangement = dataclasses.replace(choice.arrangement, **_changes(config))  # type: ignore[arg-type]  # fields by name
    if config.basis is not None:
        # A plan names the number; what is looked at before it need not.
        arrangement = _on_basis(arrangement, config.dimension or min(20, dataset.dimension))
        name, system = f"{name}{ON_BASIS}", dataclasses.replace(system, claim=None)
    offered = {
        "trainer": arrangement.trainer,
        "projection": arrangement.projection,
        "basis_aggregation": arrangement.basis_aggregation,
        "model_aggregation": arrangement.model_aggregation,
        "counts": arrangement.counts,
        "column_map": arrangement.column_map,
    }
    for spec in filter(None, offered.values()):
        lookup(spec.kind, spec.name)
    parts = with_given({part: spec for part, spec in offered.items() if spec is not None}, config, dataset)
    reasons = choice.reasons if choice is not None else ()
    if config.tuned_on is not None:
        reasons = (*reasons, _chosen(config))
    if parameters_of(config, "tuned") and not config.tune:
        raise ParameterError("parameters of tuned are given without --tune: add --tune NAME=A,B,C")
    if config.tune:
        parts["trainer"], reason = _tuned(config, config, parts, trust)
        # What a paper says of its system is not said of the best of several.
        name, system, reasons = f"{name}+tuned", dataclasses.replace(system, claim=None), (*reasons, reason)
    return Resolved(
        name=name,
        system=system,
        trust=trust,
        arrangement=arrangement,
        parts=parts,
        reasons=reasons,
        warning=choice.warning if choice is not None else None,
    )


def _chosen(config: AlgorithmSettings) -> str:
    """Return on which rows parameters were chosen.

    Raises
    ------
    ParameterError
        If they are still to be chosen: a plan is of one value each.
    """
    if config.tune:
        raise ParameterError(
            f"tune has candidates of {', '.join(config.tune)}, which are compared on {config.tuned_on} before a run is "
            "planned: plan the run with the values that were chosen"
        )
    given = ", ".join(f"{name}={value}" for name, value in config.parameters.items()) or "defaults"
    return f"parameters were chosen on the rows of {config.tuned_on}, at no charge: {given}"


def _on_basis(arrangement: Arrangement, components: int) -> Arrangement:
    """Return an arrangement whose rows are seen through released components and through nothing else."""
    basis = AlgorithmSpec("aggregators", "principal-components", {"components": components})
    return dataclasses.replace(
        arrangement, projection=None, basis_aggregation=None, counts=None, column_map=basis, counts_share=0.0
    )


def with_given(
    parts: Mapping[str, AlgorithmSpec], config: AlgorithmSettings, dataset: DatasetRef
) -> dict[str, AlgorithmSpec]:
    """Return parts with what a configuration says of them, and with the data set's range of numeric labels.

    Raises
    ------
    ParameterError, InputError
        For what none of them takes.
    """
    own = {field: value for field, value in _given(config).items() if not field.startswith(_OTHERS)}
    if "mirror" in own and not any("mirror" in _fields(spec) for spec in parts.values()):
        raise ParameterError(
            "mirror is declared, and no part of this run uses it. It applies to images (ingest --image-shape) under "
            "unitball or a map such as --features scattering; omit it"
        )
    given = _with_parameters(parts, own)
    if "projection" in given:
        given["projection"] = _with_components(given["projection"], config, dataset.dimension)
    if config.class_weight:
        given["trainer"] = _with_class_weight(given["trainer"], config.class_weight, dataset.classes)
    if dataset.label_range is not None and "label_range" in _fields(given["trainer"]):
        given["trainer"] = given["trainer"].with_parameters(
            **{"label_range": list(dataset.label_range), **given["trainer"].parameters}
        )
    return given


def _tuned(
    config: AlgorithmSettings, budget: BudgetSettings, parts: Mapping[str, AlgorithmSpec], trust: str
) -> tuple[AlgorithmSpec, str]:
    """Return private selection among the trainers of a grid, and a sentence of what it costs.

    Raises
    ------
    ParameterError
        Where every candidate would be seen, and so charged; where another part draws noise too; for a parameter that
        the trainer does not have.
    """
    grid = {name.removeprefix("trainer."): list(values) for name, values in config.tune.items()}
    count, trainer = math.prod(len(values) for values in grid.values()), parts["trainer"]
    if budget.epsilon is None or not lookup(trainer.kind, trainer.name).budgets:
        raise ParameterError(f"{trainer.name} draws no noise here; private tuning needs a trainer with a budget")
    alone = mu_from_epsilon_delta(budget.epsilon, budget.stated_delta) if budget.stated_delta > 0 else 0.0
    if trust != Trust.CENTRAL:
        each = gaussian_epsilon(alone / math.sqrt(count), budget.stated_delta) if alone else budget.epsilon / count
        raise ParameterError(
            f"under trust {trust} all candidates are visible, so each of the {count} candidates is a separate charged "
            f"release. Train them with `unitball sweep`: within epsilon {budget.epsilon:g} in total each may have "
            f"about {each:.2g}. Or choose --trust central, where private selection chooses the best within one budget"
        )
    others = [spec for part, spec in parts.items() if part == "projection"]
    noisy = [spec.name for spec in others if lookup(spec.kind, spec.name).budgets]
    if noisy:
        raise ParameterError(
            f"{noisy[0]} also draws noise, and tuning covers only one release: choose a trainer without it, for "
            "example --trainer noisy-gd"
        )
    _with_parameters({"trainer": trainer}, grid)
    weighed = {"class_weight"} if config.class_weight else set()
    given = weighed | {name.rpartition(".")[2] for name in config.parameters}
    if twice := sorted(given & set(grid)):
        raise ParameterError(f"{twice[0]} is both fixed and tuned; omit one of the two")
    fixed = {name: value for name, value in trainer.parameters.items() if name not in grid}
    parameters = parameters_of(config, "tuned")
    if set(parameters) - {"enters", "held_out"}:
        raise ParameterError(
            f"tuned has no parameter {min(set(parameters) - {'enters', 'held_out'})!r} here; it has: enters, held_out"
        )
    spec = AlgorithmSpec(
        "trainers", "tuned", {**parameters, "trainer": trainer.name, "parameters": fixed, "grid": grid}
    )
    tuned = spec.with_parameters(budget=ApproximateDP(budget.epsilon, budget.stated_delta)).build()
    values = "; ".join(f"{name} {', '.join(map(str, listed))}" for name, listed in grid.items())
    return spec, (
        f"tuned on private rows: {count} candidates of {trainer.name} ({values}), each trained with the noise of "
        f"mu = {tuned.mu:.3g} on {1 - tuned.held_out:.0%} of the rows and scored on the others; secret coins say "
        f"which compete (each with probability {tuned.chance:.2g}), the best is released, and all is charged as "
        f"({budget.epsilon:g}, {budget.stated_delta:g}); one "
        f"training untuned has mu = {alone:.3g}, and {count} that are all charged {alone / math.sqrt(count):.3g} each"
        + (
            "; these numbers are of the whole budget, of which the counts of columns, released once for all "
            "candidates, take their share first"
            if "counts" in parts
            else ""
        )
    )


def _facts(
    config: TrainingConfig,
    dataset: DatasetRef,
    sizes: Sequence[int],
    relation: Neighbours,
    trust: str,
    usual: Arrangement,
    counted: float,
) -> PublicFacts:
    """Return what a system chooses by; of its usual arrangement, whether there is noise to choose for."""
    noisy = any(lookup(part.kind, part.name).budgets for part in (usual.projection, usual.trainer) if part is not None)
    if config.epsilon is None and noisy:
        raise ParameterError(f"{config.algorithm} draws noise: give a total budget, for example --epsilon 1")
    parties = min(config.parties, dataset.rows)
    known = tuple(sizes) or tuple((dataset.rows + party) // parties for party in range(parties))
    # Scores of components are neither columns nor images, and need no other map.
    seen = config.basis is not None
    return PublicFacts(
        sizes=known,
        dimension=(config.dimension or dataset.dimension) if seen else dataset.dimension,
        classes=max(len(dataset.classes), 1),
        epsilon=config.epsilon or math.inf,
        delta=config.stated_delta,
        neighbours=config.neighbours or relation,
        trust=trust,
        noise_factor=resolve_trust(config, trust).build().noise_factor(len(known)),
        image_shape=None if seen else dataset.image_shape,
        encoded=config.features is not None or config.public_dataset is not None,
        public_head=bool(parameters_of(config, "public").get("head")),
        components=config.dimension,
        projection="principal-components" if seen else config.projection,
        mirror=config.mirror,
        columns=() if seen else tuple(Column(**one.model_dump()) for one in dataset.columns),
        label_range=dataset.label_range,
        counted=counted,
    )


def _with_class_weight(
    trainer: AlgorithmSpec, weights: Mapping[str, float] | str, classes: Sequence[str]
) -> AlgorithmSpec:
    if "class_weight" not in _fields(trainer):
        raise ParameterError(
            f"{trainer.name} has no class weights: omit class_weight (class means treat all classes equally), or "
            "choose a gradient trainer, for example --algorithm noisy-gd (for a horizon --trainer ftrl)"
        )
    if isinstance(weights, str):
        return trainer.with_parameters(class_weight=weights)
    unknown = sorted(set(weights) - set(classes))
    if unknown:
        raise ParameterError(
            f"class_weight names {unknown[0]!r}, which is not a class; the classes are {', '.join(classes) or 'none'}"
        )
    return trainer.with_parameters(class_weight=[weights.get(name, 1.0) for name in classes])


def _with_components(projection: AlgorithmSpec, config: AlgorithmSettings, dimension: int) -> AlgorithmSpec:
    if "components" not in _fields(projection):
        return projection
    components = projection.parameters.get("components", config.dimension or min(20, dimension))
    if isinstance(components, int):
        # Anything else is refused by the projection itself.
        _require_dimension(components, dimension)
    return projection.with_parameters(components=components)


def _require_dimension(components: int, dimension: int) -> None:
    if components > dimension:
        raise InputError(
            f"the target dimension {components} exceeds the data set's {dimension}; choose --dimension from 1 to "
            f"{dimension}"
        )


def _fields(spec: AlgorithmSpec) -> set[str]:
    return {field.name for field in dataclasses.fields(lookup(spec.kind, spec.name)) if field.init} - {"budget"}


def _with_parameters(parts: Mapping[str, AlgorithmSpec], parameters: Mapping[str, object]) -> dict[str, AlgorithmSpec]:
    """Hand each ``NAME`` or ``part.NAME`` to the part that has such a field."""
    result = dict(parts)
    for name, value in parameters.items():
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
            raise ParameterError(f"parameter {name!r} is ambiguous: give one of {options}")
        result[owners[0]] = result[owners[0]].with_parameters(**{field: value})
    return result


def resolve_system(config: SystemSettings) -> tuple[str, System, str, Arrangement]:
    """Return name, system, trust and arrangement that a configuration asks for, overrides applied.

    Raises
    ------
    UnknownNameError, ParameterError
        For a name that is not registered or a trust that is not supported.
    """
    composed = config.trainer is not None
    system: System = _composed(config) if composed else lookup("systems", str(config.algorithm))
    supported = system.supported()
    if not supported:
        raise ParameterError(f"{config.projection} and {config.trainer} have no trust model in common")
    trust = config.trust or next(iter(supported))
    if trust not in supported:
        raise ParameterError(f"{config.system} does not run under trust {trust}; it runs under: {', '.join(supported)}")
    changes = {} if composed else _changes(config)
    name = "+".join([config.system, *(value.name for value in changes.values())])
    # With a part exchanged the paper's claim for the whole no longer speaks of what runs.
    system = dataclasses.replace(system, claim=None) if changes else system
    return name, system, trust, dataclasses.replace(supported[trust], **changes)  # type: ignore[arg-type]  # fields by name


def _changes(config: AlgorithmSettings) -> dict[str, AlgorithmSpec]:
    """Return the parts of an arrangement that a configuration names instead of the system's."""
    named = {
        "projection": ("projections", config.projection),
        "model_aggregation": ("aggregators", config.aggregation),
    }
    return {part: AlgorithmSpec(kind, name) for part, (kind, name) in named.items() if name is not None}


def resolve_normalisation(config: AlgorithmSettings, declared: str | None, *, table: bool = False) -> str:
    """Return the row-local map of a run: asked for, what an encoder wants, declared with the set, or the system's.

    Parameters
    ----------
    config : AlgorithmSettings
    declared : str or None
        With the data set.
    table : bool
        Whether it is known which features are which column's, so that a system may look at columns first.
    """
    if config.basis is not None:
        return "none"
    if config.normalisation is not None:
        return config.normalisation
    name = split_features(config.features)[0] if config.features is not None else ""
    if name in names("encoders"):
        return str(lookup("encoders", name).normalisation)
    if declared is not None:
        return declared
    if config.trainer is not None:
        return UNIT_NORM
    system: System = lookup("systems", str(config.algorithm))
    encoded = config.features is not None or config.public_dataset is not None
    return system.normalisation if encoded or not table else system.table_normalisation or system.normalisation


def admitted_normalisation(name: str, dataset: str, *, private: bool) -> type[Normalisation]:
    """Return the class of a normalisation that may run on a data set.

    Raises
    ------
    UnknownNameError
        If the name is unknown.
    RefusedError
        If it looks at other rows and the data set is private.
    """
    cls: type[Normalisation] = lookup("normalisations", name)
    if private and not cls.row_local:
        local = ", ".join(one for one in names("normalisations") if lookup("normalisations", one).row_local)
        raise RefusedError(
            f"{name} reads all rows without a release, and {dataset} is private; choose --normalisation {local}"
        )
    return cls


def _composed(config: SystemSettings) -> System:
    """Return the parts that a configuration names, as a separate system."""
    trainer = lookup("trainers", str(config.trainer))
    projection = lookup("projections", config.projection) if config.projection else None
    readers = [part for part in (projection, trainer) if part is not None and part.reads_rows]
    named = [trust for trust in trainer.trusts if all(trust in part.trusts for part in readers)]
    return System(
        summary="",
        source="",
        arrangements={str(trust): _arranged(config, projection, trust) for trust in named},
        claim=trainer.claim,
        sound_counterpart=trainer.sound_counterpart,
    )


def _arranged(config: AlgorithmSettings, projection: type[Algorithm] | None, trust: str) -> Arrangement:
    """Return who does what where parts are put together: each party by itself, or all of them, as the trust has it."""
    scope = lookup("trusts", trust).scope
    alone = scope is Scope.PARTY
    return Arrangement(
        projection=AlgorithmSpec("projections", config.projection) if config.projection else None,
        projection_scope=scope,
        basis_aggregation=AlgorithmSpec("aggregators", "projector-mean")
        if projection is not None and projection.reads_rows and alone
        else None,
        trainer=AlgorithmSpec("trainers", str(config.trainer)),
        trainer_scope=scope,
        model_aggregation=AlgorithmSpec("aggregators", config.aggregation or "weighted-mean") if alone else None,
    )


def covers(trust: str, other: str) -> bool:
    """Whether parties who trust as ``trust`` says have trusted enough for what was released under ``other``."""
    # From nobody, over whoever forms masked sums, to a curator.
    order = list(Trust)
    return order.index(Trust(other)) <= order.index(Trust(trust))


def resolve_trust(config: SystemSettings, name: str) -> AlgorithmSpec:
    """Return a run's trust model with its settings: those of ``secure``, and parameters named ``trust.…``.

    Raises
    ------
    UnknownNameError
        If there is no trust model of this name.
    ParameterError
        If a setting is given that it does not have.
    """
    secure = config.secure.model_dump(exclude_defaults=True)
    parameters = {**secure, **parameters_of(config, "trust")}
    known = [field.name for field in dataclasses.fields(lookup("trusts", name))]
    for field in parameters:
        if field not in known:
            raise ParameterError(
                f"{field} is for "
                + ("secure aggregation" if field in secure else "another trust model")
                + f" and this run is under {name}; choose --trust secagg, or omit it"
            )
    return AlgorithmSpec("trusts", name, parameters)


def parameters_of(config: AlgorithmSettings, wanted: str) -> dict[str, object]:
    """Return the parameters whose owner is named: those of ``features.…``, ``public.…``."""
    named = ((name.rpartition("."), value) for name, value in _given(config).items())
    return {field: value for (owner, _, field), value in named if owner == wanted}


def _given(config: AlgorithmSettings) -> dict[str, object]:
    """Return the parameters; what is declared of mirror images is one, of the public map that is asked for or a part.

    Names without an owner are of parts.
    """
    if config.mirror is None:
        return config.parameters
    return {"mirror" if config.features is None else "features.mirror": config.mirror, **config.parameters}
