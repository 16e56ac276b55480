"""What a run over parties of their own is: everybody derives the same plan from what the parties have signed."""

from __future__ import annotations

from collections.abc import Sequence

from dpalgos.guarantees import Neighbours, Trust
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef, Labels, ShardRef, Visibility
from tasks.federation.messages import Description, Purpose, Roster, Signed
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import identity
from tasks.planning.planner import plan_run
from tasks.planning.plans import PlannedRelease, RunPlan

__all__ = ["described", "federated_plan", "own_releases", "run_name"]

_SHARED = ("dimension", "classes", "label_range", "normalisation", "table", "relation")
_NOT_HERE = ("seed", "features", "public_dataset", "partition", "sizes", "rows_per_party", "test_fraction", "horizon")


def described(roster: Roster, said: Sequence[Signed]) -> tuple[Description, ...]:
    """Return what the parties have said of their rows, each signed by the roster's key, in the roster's order.

    Raises
    ------
    RefusedError
        If one is missing, is signed by another key, or their rows do not fit together, naming what differs.
    """
    found = tuple(Description.model_validate_json(roster.check(one, Purpose.DESCRIPTION, "")) for one in said)
    if tuple(one.party for one in found) != roster.names or any(
        one.party != by.party for one, by in zip(found, said, strict=True)
    ):
        raise RefusedError(f"rows were described by {[one.party for one in found]}, the roster names {roster.names}")
    for name in _SHARED:
        values = {str(getattr(one, name)): one.party for one in found}
        if len(values) > 1:
            differing = "; ".join(f"{party}: {value[:60]}" for value, party in values.items())
            raise RefusedError(f"the parties' rows differ in {name} ({differing}); ingest them under one schema")
    return found


def run_name(config: TrainingConfig, said: Sequence[Signed]) -> str:
    """Return the identity of a run: of its configuration, and of who brings which rows."""
    return identity(federated=config, descriptions=[[one.party, one.body, one.key] for one in said])


def federated_plan(
    config: TrainingConfig,
    descriptions: Sequence[Description],
    run: str,
    own: tuple[DatasetRef, str] | None = None,
) -> RunPlan:
    """Return the plan of a run over the parties' rows.

    Parameters
    ----------
    config : TrainingConfig
    descriptions : sequence of Description
    run : str
        Its identity, see :func:`run_name`.
    own : (DatasetRef, str), optional
        A party's own rows and partition, which its part of the releases is bound to. Without them the plan is the one
        that everybody shares: its keys name the session.

    Raises
    ------
    RefusedError
        For what is not carried out over parties of their own, naming it.
    ParameterError, UnknownNameError
        For names and parameters that do not fit.
    """
    _require_carried(config)
    total, first = sum(one.rows for one in descriptions), descriptions[0]
    if own is None:
        dataset = DatasetRef(
            name=config.dataset,
            version=run[:32],
            account=config.dataset,
            visibility=Visibility.PRIVATE,
            rows=total,
            test_rows=0,
            dimension=first.dimension,
            labels=Labels.CLASSES if first.classes else Labels.REAL,
            classes=first.classes,
            label_range=first.label_range,
            normalisation=first.normalisation,
        )
        partition = run[:32]
    else:
        dataset, partition = own[0].model_copy(update={"rows": total}), own[1]
    shards = [ShardRef(dataset=dataset, partition=partition, party=one.party, rows=one.rows) for one in descriptions]
    plan = plan_run(config, shards, relation=Neighbours(first.relation))
    if any(release.reads_rows for release in plan.projections):
        raise RefusedError(
            f"{plan.system} learns a basis from the rows first; over parties of their own one release follows from "
            "the rows: choose a system without a projection, such as noisy-gd (local) or secagg-output-perturbation"
        )
    return plan


def _require_carried(config: TrainingConfig) -> None:
    defaults = TrainingConfig.model_fields
    given = [name for name in _NOT_HERE if getattr(config, name) != defaults[name].default]
    given += ["trust central"] if config.trust == Trust.CENTRAL else []
    given += ["absent"] if config.secure.absent else []
    given += ["evaluation"] if config.evaluation else []
    if given:
        raise RefusedError(f"{', '.join(given)}: not carried out over parties of their own (docs/parties.md)")


def own_releases(plan: RunPlan, party: str) -> tuple[PlannedRelease, ...]:
    """Return the releases that read a party's rows: its own model, or the one of all.

    Raises
    ------
    RefusedError
        If a joint release is not one secure sum, which is all that travels.
    """
    found = tuple(release for release in plan.models if party in release.parties)
    for release in found:
        if len(release.parties) > 1 and not release.in_rounds:
            raise RefusedError(
                f"{plan.system} under trust {plan.trust} forms sums over all parties step by step; parties of their "
                "own form one secure sum (secagg-output-perturbation, sufficient-statistics), or train alone "
                "(--trainer output-perturbation --trust local)"
            )
    if not found:
        raise InputError(f"nothing in this plan reads the rows of party {party!r}")
    return found
