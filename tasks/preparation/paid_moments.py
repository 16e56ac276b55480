"""Second moments of a version's columns that were released before, on one account: found again, free of charge."""

from __future__ import annotations

from typing import cast

from dpalgos.components import principal_components
from dpalgos.evaluators.second_moments import SecondMoments
from storage.errors import InputError
from storage.refs import DatasetRef
from tasks.accounts.ledger import open_ledger
from tasks.accounts.terms import relation_of
from tasks.planning.configuration import TrainingConfig
from tasks.planning.releases import PlannedRelease
from tasks.planning.resolution import covers, resolve_system
from tasks.preparation.paid_counts import paid_releases
from tasks.runtime.stores import open_releases

NAME = "second-moments"
"""Of the evaluator, as the registry has it."""


def paid_moments(config: TrainingConfig, registered: DatasetRef) -> PlannedRelease:
    """Return the stored release of second moments that a configuration names as its basis, as it was planned.

    It uses the same version's rows, the run's own neighbouring relation, and no more trust than the run states.

    Raises
    ------
    InputError
        If there is none, or several begin so, naming those that there are; or if it does not serve the run.
    """
    wanted, store = str(config.basis), open_releases()
    known = {one.key: one for one in paid_releases(registered.account, registered.version, NAME, alone=False)}
    found = [one for key, one in known.items() if key.startswith(wanted)]
    if not found and (other := _version_of(wanted, registered.account)):
        raise InputError(
            f"basis {wanted} belongs to version {other}, and the run reads version {registered.version} of "
            f"{registered.name}; release the components of this version: unitball reduce {registered.name} --epsilon …"
        )
    if len(found) != 1:
        there = ", ".join(key[:12] for key in known) or "none"
        raise InputError(
            f"basis {wanted} matches {len(found)} releases of components of {registered.name}, version "
            f"{registered.version}; the releases are: {there}. Release one: unitball reduce {registered.name} "
            "--epsilon …"
        )
    (planned,) = found
    assert store.exists(planned.key), "what is listed is stored"
    relation = config.neighbours or relation_of(config.dataset)
    if planned.setting.neighbours != relation:
        raise InputError(
            f"basis {wanted} is proved under {planned.setting.neighbours}, and the run uses {relation}; choose the "
            "same relation"
        )
    _, _, trust, _ = resolve_system(config)
    if not covers(trust, planned.setting.trust):
        raise InputError(
            f"basis {wanted} was released under trust {planned.setting.trust}, and the run uses the stricter trust "
            f"{trust}; choose --trust {planned.setting.trust}"
        )
    return planned


def with_dimension(config: TrainingConfig, registered: DatasetRef) -> TrainingConfig:
    """Return a configuration that says how many components of its basis it takes: those above the noise by default.

    Raises
    ------
    InputError
        As :func:`paid_moments` does, and if none is above the noise and no number is given.
    """
    if config.dimension is not None:
        return config
    planned = paid_moments(config, registered)
    values = open_releases().read(planned.key)[1]["values"]
    moments = cast(SecondMoments, planned.build()).decoded(values, planned.setting)
    if not (above := principal_components(moments).above):
        raise InputError(f"basis {config.basis} has no component above the noise; give the number to use: --dimension")
    return config.model_copy(update={"dimension": above})


def _version_of(wanted: str, account: str) -> str:
    """Return the version of which a release of moments of an account begins so; empty where there is none."""
    store = open_releases()
    for charge in open_ledger().charges(account):
        if charge.key.startswith(wanted) and store.exists(charge.key):
            manifest = store.manifest(charge.key)
            if manifest.get("algorithm", {}).get("name") == NAME:
                return str(manifest.get("dataset", ""))
    return ""
