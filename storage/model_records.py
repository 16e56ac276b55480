"""The record of models: what each version is made of, what audits and comparisons have said, and who is champion."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from storage.ledger.database import Database
from storage.ledger.entries import Kind, append, found

WITHDRAWN = "withdrawn"
"""Outcome of an entry by which an owner takes back what audits have said of an algorithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """A version of a registered model, as it was when it was registered.

    Parameters
    ----------
    model, version : str
        Of the registry.
    run : str
        The run of the tracker that logged it.
    digest : str
        SHA-256 of its file.
    facts : mapping
        Its inputs and guarantee, as written at registration: JSON.
    sequence : int
        The order of all records.
    """

    model: str
    version: str
    run: str
    digest: str
    facts: Mapping[str, Any]
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """The outcome of an audit of an algorithm.

    Parameters
    ----------
    algorithm, outcome, reason : str
    run : str
        The run of the tracker that shows it.
    numbers : mapping of str to float
    sequence : int
        The order of all records.
    """

    algorithm: str
    outcome: str
    reason: str
    run: str
    numbers: Mapping[str, float]
    sequence: int


class ModelRecords:
    """Models by name and algorithms that were audited, in the ledger's database and its chain of entries.

    Write access to a tracker's registry changes nothing here.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def record_version(self, model: str, version: str, *, run: str, digest: str, facts: Mapping[str, Any]) -> None:
        """Record a version that was registered."""
        append(
            self._database,
            Kind.MODEL,
            subject=model,
            content={"version": version, "run": run, "digest": digest, "facts": dict(facts)},
        )

    def versions(self, model: str | None = None) -> list[VersionRecord]:
        """Return the versions on record, oldest first; of one model where it is named."""
        return [
            VersionRecord(model=entry.subject, sequence=entry.sequence, **entry.content)
            for entry in found(self._database, Kind.MODEL, subject=model)
        ]

    def record_audit(
        self, algorithm: str, outcome: str, reason: str, *, run: str = "", numbers: Mapping[str, float] | None = None
    ) -> None:
        """Record what an audit has said, or with the outcome :data:`WITHDRAWN` that its owner takes that back."""
        content = {"outcome": outcome, "reason": reason, "run": run, "numbers": dict(numbers or {})}
        append(self._database, Kind.AUDIT, subject=algorithm, content=content)

    def audits(self, algorithm: str) -> list[AuditRecord]:
        """Return the audits of an algorithm that stand, oldest first: those after the last withdrawal."""
        selected = [
            AuditRecord(algorithm=entry.subject, sequence=entry.sequence, **entry.content)
            for entry in found(self._database, Kind.AUDIT, subject=algorithm)
        ]
        withdrawn = max((number for number, one in enumerate(selected, 1) if one.outcome == WITHDRAWN), default=0)
        return selected[withdrawn:]

    def record_comparison(self, model: str, version: str, *, run: str, outcome: Mapping[str, Any]) -> None:
        """Record how a version has compared with the champion."""
        content = {"version": version, "run": run, "outcome": dict(outcome)}
        append(self._database, Kind.COMPARISON, subject=model, content=content)

    def comparison(self, version: VersionRecord) -> Mapping[str, Any] | None:
        """Return how a version has compared with the champion the last time; None where it has not."""
        comparisons = [
            entry.content
            for entry in found(self._database, Kind.COMPARISON, subject=version.model)
            if (entry.content["version"], entry.content["run"]) == (version.version, version.run)
        ]
        return cast(Mapping[str, Any] | None, comparisons[-1]["outcome"] if comparisons else None)

    def record_champion(self, version: VersionRecord, *, back: bool = False) -> None:
        """Record that a version is champion now, or with ``back`` is so again, those after it being none any more."""
        content = {"version": version.version, "run": version.run, "back": back}
        append(self._database, Kind.CHAMPION, subject=version.model, content=content)

    def champions(self, model: str) -> list[VersionRecord]:
        """Return the versions that were champion, in order, the present one last.

        A version is meant by its number and its run: a tracker whose model was deleted gives its numbers away again.
        """
        versions = {(one.version, one.run): one for one in self.versions(model)}
        entered: list[VersionRecord] = []
        for entry in found(self._database, Kind.CHAMPION, subject=model):
            version = versions[entry.content["version"], entry.content["run"]]
            if not entry.content["back"]:
                entered.append(version)
            elif version in entered:
                # Of two who roll back at once, the second changes nothing.
                while entered[-1] != version:
                    entered.pop()
        return entered
