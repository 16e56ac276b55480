"""What a plan is made of: releases that will be made, and how the server puts them together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from dpalgos.algorithms import is_sum_algorithm
from dpalgos.guarantees import Guarantee, Loss, Neighbours, Setting, Trust, loss_from_json
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.secure.summation import Absences, graph_for, secagg_guarantee
from dpalgos.secure.tolerance import Tolerance

__all__ = ["EVERYONE", "PlannedCombination", "PlannedRelease", "RunPlan", "build", "setting_to_json"]

EVERYONE = "all"
"""Whose release a joint one is: its noise is keyed by the curator's secret."""


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
    tolerance : dict or None
        Under ``secagg``: the fault model, fields of :class:`dpalgos.secure.tolerance.Tolerance`.
    absent : dict
        Simulated dropouts: for each round the numbers of the parties that are gone from it on.
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
    tolerance: dict[str, int] | None = None
    absent: dict[str, tuple[int, ...]] = {}

    @property
    def owner(self) -> str:
        """Whose release it is: the party's own, or everybody's."""
        return self.parties[0] if len(self.parties) == 1 and self.setting["trust"] == Trust.LOCAL else EVERYONE

    @property
    def noise_makers(self) -> tuple[str, ...]:
        """Whose secrets key the noise: each party's its share under ``secagg``, otherwise the owner's."""
        return self.parties if self.tolerance is not None else (self.owner,)

    @property
    def reads_rows(self) -> bool:
        """Whether it looks at rows at all; maps made from public parameters do not, and cost nothing."""
        return bool(lookup(self.kind, self.name).reads_rows)

    @property
    def sums_securely(self) -> bool:
        """Whether rows are seen through sums that are formed by secure aggregation."""
        return self.tolerance is not None and is_sum_algorithm(lookup(self.kind, self.name))

    @property
    def runs_in_rounds(self) -> bool:
        """Whether its rounds are tasks: one sum over parties few enough to mask with each other, a task each."""
        return (
            self.sums_securely and graph_for(self.fault_model()) is None and build(self).steps(self.public_facts()) == 1
        )

    def fault_model(self) -> Tolerance:
        """Return the fault model of a release under ``secagg``."""
        assert self.tolerance is not None
        return Tolerance(**self.tolerance)

    def absences(self) -> Absences:
        """Return who drops out where, in the simulation."""
        return Absences(**{name: frozenset(parties) for name, parties in self.absent.items()})

    def public_facts(self) -> Setting:
        """Return the setting."""
        return _setting_from_json(self.setting)

    def guarantee(self) -> Guarantee:
        """Return what is proved about the release."""
        algorithm = build(self)
        setting = self.public_facts()
        guarantee: Guarantee = algorithm.guarantee(setting)
        if self.tolerance is None:
            return guarantee
        return secagg_guarantee(guarantee, self.fault_model(), algorithm.steps(setting))


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
            return {EVERYONE: [*self.models[0].upstream, self.model.key]}
        named = {release.parties[0] if len(release.parties) == 1 else EVERYONE: release for release in self.models}
        return {name: [*release.upstream, release.key] for name, release in named.items()}

    @property
    def proved(self) -> bool:
        """Whether something is proved of every release that reads rows."""
        return all(release.guarantee().proved for release in self.releases if release.reads_rows)

    def bills(self) -> dict[str, tuple[Loss, ...]]:
        """Return what each party pays: the losses of all releases that read its rows, joint ones included."""
        bills: dict[str, list[Loss]] = {}
        for release in self.releases:
            if release.reads_rows:
                losses = release.guarantee().losses
                for party in release.parties:
                    bills.setdefault(party, []).extend(losses)
        return {party: tuple(losses) for party, losses in bills.items()}

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """All releases that read rows, in order."""
        return self.projections + self.models + self.evaluations


def setting_to_json(setting: Setting) -> dict[str, Any]:
    """Return the public facts as JSON, for identities and manifests."""
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
