"""Basis of drawn rows: releases of a synthesis, whose rows these counted, and which private runs may use them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from storage.errors import RefusedError
from storage.refs import DatasetRef
from tasks.accounts.terms import relation_of
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import AlgorithmSettings
from tasks.planning.nights import PlannedNight, release_of
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedRelease
from tasks.runtime.stores import open_catalog, open_releases


@dataclass(frozen=True, slots=True)
class Drawn:
    """The origin of drawn rows: of derived data sets, or of public ones that were recognised as drawn.

    Attributes
    ----------
    names, syntheses : tuple of str
        Of the data sets, and the keys of what their rows are drawn by.
    releases : tuple of PlannedRelease
        All releases of rows that the syntheses are made of, each once; of rows drawn from counts of drawn rows, those
        that the latter rest on too.
    sources : tuple of DatasetRef
        Whose rows these releases counted.
    """

    names: tuple[str, ...] = ()
    syntheses: tuple[str, ...] = ()
    releases: tuple[PlannedRelease, ...] = ()
    sources: tuple[DatasetRef, ...] = ()

    @property
    def person(self) -> str:
        """The column that names the people who are protected; empty where a row is."""
        return next((source.person for source in self.sources if source.person), "")

    def under(self, plan: RunPlan) -> RunPlan:
        """Return a plan whose results rest on these releases, if there are any.

        Raises
        ------
        ParameterError
            If nothing is proved of them under the plan's relation: said before anything is charged.
        """
        if not self.releases:
            return plan
        resting = {"drawn": self.releases, "synthetic": self.names, "drawn_person": self.person}
        found: RunPlan = plan.model_copy(update=resting)
        found.composed_by_party()
        return found


def drawn_behind(datasets: Iterable[DatasetRef]) -> Drawn:
    """Return what data sets rest on; nothing of those that are not drawn. No row is read.

    Raises
    ------
    RefusedError
        If a release of the chain is not stored here: no epsilon could be stated.
    """
    used = {one.name: one for one in datasets if one.synthesis}
    releases = {planned.key: planned for one in used.values() for planned in _releases_of(one)}
    sources = dict[str, DatasetRef]()
    for planned in releases.values():
        sources.setdefault(planned.dataset, require_counted(planned.dataset))
    syntheses = tuple(sorted({one.synthesis for one in used.values()}))
    return Drawn(tuple(used), syntheses, tuple(releases.values()), tuple(sources.values()))


def require_same_population(drawn: DatasetRef, registered: DatasetRef) -> None:
    """Refuse drawn rows in a run on private rows, unless both have one account, relation and unit.

    Raises
    ------
    RefusedError
        Naming what differs: the losses of two populations, or under two relations, compose to no epsilon of either.
    """
    for source in drawn_behind([drawn]).sources:
        facts = {
            "account": (source.account, registered.account),
            "relation": (str(relation_of(source.name)), str(relation_of(registered.name))),
            "unit": (str(source.unit), str(registered.unit)),
        }
        for what, (theirs, own) in facts.items():
            if theirs != own:
                raise RefusedError(
                    f"{drawn.name} is drawn from releases of {source.name}, whose {what} is {theirs}, but that of "
                    f"{registered.name} is {own}: a run on both would have no valid epsilon. Choose rows drawn from "
                    f"{registered.name}, or public rows",
                    value=theirs,
                    bound=own,
                )


def tuned_on(config: AlgorithmSettings, registered: DatasetRef) -> DatasetRef | None:
    """Return the data set on whose rows a configuration's parameters were chosen, or are to be; None where none were.

    Raises
    ------
    RefusedError
        If its rows are private, or drawn from releases of another account, relation or unit than a private run's.
    """
    if config.tuned_on is None:
        return None
    found = find_dataset(config.tuned_on)
    if found.private:
        raise RefusedError(
            f"{found.name} is private: a choice made on its rows would have to be charged. Give synthetic rows "
            f"(unitball synthesise {registered.name}) or public rows, or omit --on: --tune then chooses on the "
            "private rows, within the run's budget"
        )
    if found.synthesis and registered.private:
        require_same_population(found, registered)
    return found


def _releases_of(dataset: DatasetRef) -> list[PlannedRelease]:
    """Return the releases of rows that a synthesis rests on, by the manifests of all that it names."""
    store, waiting, seen = open_releases(), [dataset.synthesis], set[str]()
    found = []
    while waiting:
        key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        if not store.exists(key):
            raise RefusedError(
                f"{dataset.name} rests on release {key[:12]}, which is not stored here; restore it from a back-up, or "
                "use the set in the root where it was drawn"
            )
        manifest = store.manifest(key)
        made = manifest.get("post_processing")
        if made is not None:
            waiting += made["upstream"]
            continue
        known = {name: manifest[name] for name in PlannedNight.model_fields if name in manifest}
        planned = release_of({**known, "seed": manifest["public_seed"], "account": "", "delta": 0.0})
        if planned.key != key:
            raise RefusedError(
                f"the manifest of release {key[:12]} describes a different release; restore it from a back-up"
            )
        waiting += [*planned.upstream, *planned.drawn_from]
        if planned.reads_rows:
            found.append(planned)
    return found


def require_counted(version: str) -> DatasetRef:
    """Return the registered version whose rows a release of a synthesis has counted.

    Raises
    ------
    RefusedError
        If it is not registered here.
    """
    for one in open_catalog().registrations():
        if one.version == version:
            return DatasetRef.model_validate(one.manifest["reference"])
    raise RefusedError(
        f"synthetic rows are drawn from counts of version {version}, which is not registered here, and the unit that "
        "they protect is unknown; use them in the root where they were drawn"
    )
