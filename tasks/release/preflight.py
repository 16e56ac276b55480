"""What a run would be refused for, told from configuration, registry, catalogue and ledger before anything starts."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

from dpalgos.accounting.composition import compose
from dpalgos.errors import ParameterError
from dpalgos.features.public_map import PublicMap
from dpalgos.guarantees import ApproximateDP, GaussianMu, Loss, PureEpsilon, ZeroConcentrated
from dpalgos.registry import lookup
from dpalgos.secure.primitives import SecureAggregationError
from dpalgos.validation import rounded_down, rounded_up
from storage.confined import kept_memory
from storage.errors import InputError, OverspendError, RefusedError
from storage.refs import DatasetRef, ShardRef
from tasks.accounts.budget import open_ledger, relation_of, settled, tenth
from tasks.datasets.registration import default_normalisation, find_dataset
from tasks.planning.configuration import TrainingConfig
from tasks.planning.expectation import Expectation, expect, measure_speeds
from tasks.planning.nights import plan_night
from tasks.planning.plans import FeatureStep, PlannedRelease, RunPlan, Shards, plan_run
from tasks.planning.resolution import resolve, resolve_normalisation
from tasks.preparation.mapping import are_kept, featured_ref, find_public_map, mapped_ref, plan_features
from tasks.preparation.partitioning import planned_shards, preview_nights
from tasks.release.admission import require_admissible
from tasks.runtime.engine import has_databases
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog, open_releases

_T = TypeVar("_T")
# Where the search for the largest epsilon begins, in caps, for at a run's smaller delta its epsilon is larger than at
# the cap's; when it ends, so that one per cent more is refused; and below what nothing is looked for.
_MOST, _LARGEST, _CLOSE, _LEAST = 4.0, 1000.0, 1.004, 1e-4
# A repetition that nobody asks for, so that what was paid already is no answer.
_ANOTHER = 10**18
# Any budget of each kind: parameters are checked before it is known how the run's budget is split.
_BUDGETS: dict[type[Loss], Loss] = {
    PureEpsilon: PureEpsilon(1.0),
    GaussianMu: GaussianMu(0.25),
    ZeroConcentrated: ZeroConcentrated(0.03),
    ApproximateDP: ApproximateDP(1.0, 1e-5),
}


class _Faults:
    """Collects what is wrong, each thing once."""

    def __init__(self) -> None:
        self.found: dict[str, Exception] = {}

    def of(self, check: Callable[[], _T]) -> _T | None:
        try:
            return check()
        except (InputError, ParameterError, RefusedError, SecureAggregationError) as error:
            self.found.setdefault(str(error), error)
            return None

    def raise_all(self) -> None:
        """Raise what was found as one error: bad input where there is any, otherwise the refusal."""
        errors = list(self.found.values())
        if len(errors) == 1:
            raise errors[0]
        if errors:
            refused = all(isinstance(error, RefusedError) for error in errors)
            raise (RefusedError if refused else InputError)("; ".join(self.found))


def cost_of_measuring_later(plan: RunPlan) -> str | None:
    """Return what it costs to measure a model that is released already, where that is not paid for; None otherwise."""
    keys = {release.key for release in plan.evaluations if not open_releases().exists(release.key)}
    if (
        len(keys) < len(plan.evaluations)
        or not keys
        or not all(open_releases().exists(release.key) for release in plan.models)
    ):
        return None
    cost = compose([loss for release in plan.evaluations for loss in release.guarantee().losses]).epsilon(plan.delta)
    by = " and ".join(dict.fromkeys(release.algorithm.name for release in plan.evaluations))
    return (
        f"the model is released already; measuring it by {by} is a separate charge to the held-out rows (a second one "
        f"if it was measured before): epsilon {rounded_up(cost, 3):g} at delta {plan.delta:g}"
    )


def require_feasible(config: TrainingConfig) -> RunPlan | None:
    """Refuse a run for whatever can be told without reading rows and without an engine, all of it at once.

    Checked are the data set, names, parameters and their ranges, what does not fit the number of rows or features, what
    may not touch private rows, and whether the account has enough left. What only the rows' content decides (a
    partition by label) is left to the run.

    Returns
    -------
    RunPlan or None
        What would run; None where only the rows' content decides on it.

    Raises
    ------
    InputError, ParameterError
        Naming every fault.
    RefusedError
        If there is nothing else to say against it than that it may not touch private rows, or costs too much.
    """
    faults = _Faults()
    plan: RunPlan | None = None
    dataset = faults.of(lambda: find_dataset(config.dataset))
    if dataset is None:
        faults.raise_all()
        return None
    config = settled(config)
    _check_parts(config, dataset, faults)
    if config.horizon is not None:
        plan = None if faults.found else faults.of(lambda: _tonight(config, dataset))
        faults.raise_all()
        return plan
    partitioned = _partitioned(config, dataset, faults)
    if partitioned is not None and not faults.found:
        plan = faults.of(lambda: _planned(config, partitioned))
        if plan is not None:
            faults.of(lambda: _require_affordable(config, plan, partitioned.shards))
    faults.raise_all()
    return plan


def largest_epsilon(config: TrainingConfig) -> float:
    """Return the largest epsilon of one more run that would be admitted now, to four digits, rounded down.

    Found by planning such runs and asking the ledger, so that it is the number of the run's own option, whatever the
    account's unit: this one is admitted, and one per cent more is not.

    Parameters
    ----------
    config : TrainingConfig
        Without epsilon, or with the most that is looked for.

    Returns
    -------
    float
        0 where none is admitted.

    Raises
    ------
    InputError, ParameterError, RefusedError
        Where no such run may be made at any epsilon.
    """
    cap = open_catalog().account_of(config.dataset).cap
    if cap is None:
        raise InputError(f"{config.dataset} is public: its runs have no cap, and any epsilon fits")
    if settled(config).stated_delta > cap.delta:
        raise InputError(f"delta {config.stated_delta:g} is above the cap's: choose --delta {tenth(cap.delta):g}")
    most = min(_MOST * cap.epsilon, _LARGEST)
    tried = settled(config).model_copy(update={"epsilon": config.epsilon or most, "repetition": _ANOTHER})
    try:
        plan = require_feasible(tried)
    except OverspendError as refusal:
        return refusal.fits
    return 0.0 if plan is None else cast(float, tried.epsilon)


class _Partitioned(NamedTuple):
    """The rows of a run as their references say, mapped and partitioned, and the public maps that they pass through."""

    mapped: DatasetRef
    shards: Shards
    features: tuple[FeatureStep, ...]


def _partitioned(config: TrainingConfig, dataset: DatasetRef, faults: _Faults) -> _Partitioned | None:
    name = resolve_normalisation(config, default_normalisation(config.dataset))
    mapped = faults.of(lambda: mapped_ref(dataset, name)) or dataset
    features = faults.of(lambda: plan_features(mapped, config)) or ()
    shards = faults.of(lambda: planned_shards(featured_ref(mapped, features), config, dataset))
    return None if shards is None else _Partitioned(mapped, shards, features)


def _planned(config: TrainingConfig, partitioned: _Partitioned) -> RunPlan:
    training, held_out = partitioned.shards.training, partitioned.shards.held_out
    return plan_run(config, training, held_out, relation=relation_of(config.dataset), features=partitioned.features)


def _require_affordable(config: TrainingConfig, plan: RunPlan, shards: Shards) -> None:
    """Refuse as :func:`require_admissible` does, naming the largest epsilon at which this run would be admitted.

    A run at another epsilon may hold out other rows and take other parts, which the ledger cannot know.
    """
    try:
        require_admissible(plan, shards.all)
    except OverspendError as refusal:
        if config.epsilon is None:
            raise
        fits, cap = _largest(config), open_catalog().account_of(config.dataset).cap
        delta = f"at delta {config.stated_delta:g}"
        if cap is not None and config.stated_delta > cap.delta:
            delta += f", which is above the cap's: choose --delta {tenth(cap.delta):g}"
        words = (
            f"the largest epsilon that would still fit a plan of this kind is {fits:.4g} {delta}"
            if fits
            else f"no further plan of this kind fits {delta}"
        )
        raise OverspendError(refusal.reason, words, fits) from None


def _largest(config: TrainingConfig) -> float:
    """Return the largest epsilon below a refused one that is admitted."""
    registered = find_dataset(config.dataset)

    def fits(epsilon: float) -> bool:
        tried, faults = config.model_copy(update={"epsilon": epsilon}), _Faults()
        partitioned = _partitioned(tried, registered, faults)
        if partitioned is None or faults.found:
            return False
        try:
            require_admissible(_planned(tried, partitioned), partitioned.shards.all)
        except (InputError, ParameterError, RefusedError, SecureAggregationError):
            return False
        return True

    high = cast(float, config.epsilon)
    while not fits(low := high / 2):
        high = low
        if low < _LEAST:
            return 0.0
    while high > _CLOSE * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return rounded_down(low, 4)


def _tonight(config: TrainingConfig, dataset: DatasetRef) -> RunPlan:
    """Return the plan of the night that a run would be, its whole horizon affordable."""
    nights = preview_nights(config, dataset, resolve_normalisation(config, default_normalisation(config.dataset)))
    night = nights.unreleased[-1]
    plan = plan_night(nights.terms, config, night.night, night.shards, nights.arrived, night.features)
    require_admissible(plan, night.shards)
    return plan


def expect_run(config: TrainingConfig) -> Expectation:
    """Return what a run will ask of this machine, from its plan; no row is read.

    Raises
    ------
    InputError, ParameterError, RefusedError
        As :func:`require_feasible` does, and where only the rows' content decides what would run.
    """
    if config.horizon is not None:
        raise InputError(
            "--plan does not know what a night of a horizon asks of a machine: leave --plan or --horizon out"
        )
    plan = require_feasible(config)
    config = settled(config)
    if plan is None:
        raise InputError(
            f"partition {config.partition} depends on what rows contain: the plan is known only at the run"
        )
    partitioned = _partitioned(config, find_dataset(config.dataset), _Faults())
    assert partitioned is not None, "a run that is feasible has rows"
    rows, layout = partitioned.shards.training[0].dataset, current_layout()
    missing = [
        version for version in {partitioned.mapped.version, rows.version} if not layout.dataset(version).exists()
    ]
    undealt = not all(
        layout.shard(shard.party, shard.partition, shard.dataset.version).exists() for shard in partitioned.shards.all
    )
    return expect(
        plan,
        rows,
        measure_speeds(),
        to_store=len(missing) + undealt,
        limit=kept_memory(),
        new_root=not has_databases(layout.root),
        mapped=_are_mapped(plan, partitioned.shards.all),
        charged=len(open_ledger().charged(release.key for release in plan.releases if release.reads_rows)),
    )


def _are_mapped(plan: RunPlan, shards: Sequence[ShardRef]) -> bool:
    """Whether the shards' rows are kept as the plan's public maps show them."""
    maps = [release for release in plan.projections if not release.reads_rows]
    maps_kept = [find_public_map(release.algorithm, release.setting) for release in maps if _is_kept(release)]
    return len(maps_kept) == len(maps) and all(one is not None and are_kept(shards, one) for one in maps_kept)


def _is_kept(release: PlannedRelease) -> bool:
    algorithm = release.build()
    return isinstance(algorithm, PublicMap) and algorithm.kept


def _check_parts(config: TrainingConfig, dataset: DatasetRef, faults: _Faults) -> None:
    """Look at each part and at each of its parameters alone, so that one fault does not hide another."""
    # A missing budget is a fault of its own; where parts are chosen by it, any tells what they are.
    bare = config.model_copy(update={"parameters": {}, "dimension": None, "epsilon": config.epsilon or 1.0})
    resolved = faults.of(lambda: resolve(bare, dataset))
    if resolved is None:
        return
    faults.of(lambda: resolve(bare.model_copy(update={"dimension": config.dimension}), dataset))
    noisy = [part for name, part in resolved.parts.items() if name in ("projection", "trainer")]
    if config.epsilon is None and any(lookup(part.kind, part.name).budgets for part in noisy):
        missing = ParameterError(f"{resolved.name} draws noise: give a total budget, for example --epsilon 1")
        faults.found.setdefault(str(missing), missing)
    for field, value in config.parameters.items():
        if not field.startswith("partition."):
            faults.of(lambda field=field, value=value: _check_parameter(bare, dataset, field, value))  # type: ignore[misc]  # bound now


def _check_parameter(config: TrainingConfig, dataset: DatasetRef, field: str, value: object) -> None:
    alone = config.model_copy(update={"parameters": {field: value}})
    for part in resolve(alone, dataset).parts.values():
        budgets = getattr(lookup(part.kind, part.name), "budgets", ())
        part.with_parameters(**({"budget": _BUDGETS[budgets[0]]} if budgets else {})).build()
