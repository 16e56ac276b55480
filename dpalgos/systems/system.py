"""A system: which projection and trainer run at whom, and how their releases are put together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from dpalgos.algorithms import is_sum_algorithm
from dpalgos.columns import Column
from dpalgos.guarantees import Claim, Setting, Trust
from dpalgos.registry import AlgorithmSpec, lookup, names, register


class Scope(StrEnum):
    """Parties whose rows one release reads."""

    PARTY = "party"
    """Each party makes a release from its own rows; it costs that party."""
    JOINT = "joint"
    """One release from all parties' rows; it costs everyone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The parts of a system under one trust model.

    Parameters
    ----------
    projection : AlgorithmSpec or None
        None keeps all dimensions.
    projection_scope : Scope
    basis_aggregation : AlgorithmSpec or None
        How per-party bases become one; None: each party keeps its own (or there is only one).
    trainer : AlgorithmSpec
    trainer_scope : Scope
    model_aggregation : AlgorithmSpec or None
        How per-party models become one; None: each party keeps its own (or there is only one).
    projection_share : float
        Share of the budget that the projection gets, in (0, 1); unused where only one part draws noise.
    counts : AlgorithmSpec or None
        An evaluator of all parties' rows together, whose release says how the columns of a table are distributed.
    column_map : AlgorithmSpec or None
        The aggregator that makes of it the map that rows are seen through before everything else; of nothing, where
        there are no counts.
    counts_share : float
        Share of the budget that the counts get, in [0, 1).
    """

    trainer: AlgorithmSpec
    trainer_scope: Scope
    projection: AlgorithmSpec | None = None
    projection_scope: Scope = Scope.PARTY
    basis_aggregation: AlgorithmSpec | None = None
    model_aggregation: AlgorithmSpec | None = None
    projection_share: float = 0.5
    counts: AlgorithmSpec | None = None
    column_map: AlgorithmSpec | None = None
    counts_share: float = 0.0


def joint(
    trainer: AlgorithmSpec, projection: AlgorithmSpec | None = None, trusts: Sequence[str] = (Trust.CENTRAL,)
) -> dict[str, Arrangement]:
    """Return one release of each part from all parties' rows, by a trusted curator where nothing else is said."""
    together = Arrangement(
        projection=projection, projection_scope=Scope.JOINT, trainer=trainer, trainer_scope=Scope.JOINT
    )
    return dict.fromkeys(trusts, together)


def summed(trainer: AlgorithmSpec, projection: AlgorithmSpec | None = None) -> dict[str, Arrangement]:
    """Return one release of each part, by a curator or by secure summation; for parts that see noisy sums alone."""
    return joint(trainer, projection, (Trust.CENTRAL, Trust.SECAGG))


def alone(
    trainer: AlgorithmSpec,
    projection: AlgorithmSpec | None = None,
    basis_aggregation: AlgorithmSpec | None = None,
    model_aggregation: AlgorithmSpec | None = None,
) -> dict[str, Arrangement]:
    """Return one release of each part at every party; what the server makes of bases and models, if anything."""
    return {
        Trust.LOCAL: Arrangement(
            projection=projection,
            projection_scope=Scope.PARTY,
            basis_aggregation=basis_aggregation,
            trainer=trainer,
            trainer_scope=Scope.PARTY,
            model_aggregation=model_aggregation,
        )
    }


def averaged(trainer: AlgorithmSpec, projection: AlgorithmSpec | None = None) -> dict[str, Arrangement]:
    """Return one release of each part at every party, bases and models averaged by the server."""
    bases = None if projection is None else AlgorithmSpec("aggregators", "projector-mean")
    return alone(trainer, projection, bases, AlgorithmSpec("aggregators", "weighted-mean"))


@dataclass(frozen=True, kw_only=True)
class PublicFacts(Setting):
    """Public facts about a run, known before any row is read: a choice of parts may depend only on these.

    Parameters
    ----------
    sizes, dimension, classes, neighbours, trust, noise_factor, rows_per_person
        See :class:`~dpalgos.guarantees.Setting`.
    epsilon, delta : float
        Total budget.
    image_shape : tuple of int or None
        Of rows that are declared to be images.
    encoded : bool
        Whether rows have passed through a public map that was asked for: an encoder, public rows.
    public_head : bool
        Whether the last K of them are the scores of a head trained on public rows.
    components : int or None
        The target dimension k, where one is asked for.
    projection : str or None
        Name of the projection that is asked for in place of what the rules would choose.
    mirror : bool or None
        Whether an image and its mirror image are the same thing, where that is declared.
    columns : tuple of Column
        Of a table, which features are which declared column's; empty otherwise.
    label_range : (float, float) or None
        Declared range of numeric labels.
    counted : float
        The μ of histograms of these columns that were released before; 0 where there are none.
    nightly : float or None
        Of a horizon of nights how well histograms that were released before tell ranks, the deviation of a rank's noise
        over all rows (:func:`dpalgos.evaluators.column_histograms.rank_error`), infinite where there are none; None
        where everything is released at once.
    """

    epsilon: float
    delta: float
    image_shape: tuple[int, ...] | None = None
    encoded: bool = False
    public_head: bool = False
    components: int | None = None
    projection: str | None = None
    mirror: bool | None = None
    columns: tuple[Column, ...] = ()
    label_range: tuple[float, float] | None = None
    counted: float = 0.0
    nightly: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An arrangement chosen from public facts.

    Parameters
    ----------
    arrangement : Arrangement
    reasons : tuple of str
        What was chosen and why, a sentence each.
    warning : str or None
        Said before anything is spent.
    """

    arrangement: Arrangement
    reasons: tuple[str, ...]
    warning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A named composition of registered parts.

    Parameters
    ----------
    summary : str
        One sentence.
    source : str
        Paper and algorithm number.
    claim : Claim or None
        What the paper says of the whole.
    sound_counterpart : str or None
        For a published system without proof: the name of the sound one.
    arrangements : mapping of trust model to Arrangement
        Supported trust models, the default first.
    normalisation : str
        The row-local map the system expects; ``"none"`` for systems on raw public rows.
    table_normalisation : str or None
        That of rows whose declared columns are known, where it is another one.
    paper : str
        Short name of the paper for filtering (``"wang-2024"``), empty for our own.
    choose : callable, optional
        Chooses the arrangement of a run from public facts; ``arrangements`` are then examples of what it chooses.
    """

    summary: str
    source: str
    arrangements: Mapping[str, Arrangement]
    claim: Claim | None = None
    sound_counterpart: str | None = None
    normalisation: str = "unit-norm"
    table_normalisation: str | None = None
    paper: str = ""
    choose: Callable[[PublicFacts], Choice] | None = None

    def supported(self) -> dict[str, Arrangement]:
        """Return the arrangements by trust model, the default first; then those that trust models derive from them."""
        found = dict(self.arrangements)
        for name in names("trusts"):
            derived = lookup("trusts", name).derived(self.arrangements)
            if name not in found and derived is not None:
                found[name] = derived
        return found


def sums_only(arrangement: Arrangement) -> bool:
    """Return whether every part of an arrangement that looks at rows sees them through sums over all parties."""
    scopes = {arrangement.trainer_scope}
    parts = [lookup("trainers", arrangement.trainer.name)]
    if arrangement.projection is not None:
        projection = lookup("projections", arrangement.projection.name)
        if projection.reads_rows:
            parts.append(projection)
            scopes.add(arrangement.projection_scope)
    return scopes == {Scope.JOINT} and all(is_sum_algorithm(part) for part in parts)


def register_systems(paper: str, systems: Mapping[str, System]) -> None:
    """Register the systems of a paper, each under its name; those of no paper are our own."""
    for name, system in systems.items():
        register("systems", name)(replace(system, paper=paper))
