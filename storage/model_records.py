"""What is on record of models: what each version is made of, what audits and comparisons have said, who is champion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
        What it is made of and guaranteed, as whoever registered it wrote it: JSON.
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
    """What an audit has said of an algorithm.

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
    """Entries of the ledger's chain: whoever may write to a tracker's registry changes nothing here.

    Parameters
    ----------
    database : Database
        Of ledger and catalogue.
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

    def record_comparison(self, model: str, version: str, outcome: Mapping[str, Any]) -> None:
        """Record how a version has compared with the champion."""
        append(self._database, Kind.COMPARISON, subject=model, content={"version": version, "outcome": dict(outcome)})

    def comparison(self, model: str, version: str) -> Mapping[str, Any] | None:
        """Return how a version has compared with the champion the last time; None where it has not."""
        comparisons = [
            entry.content
            for entry in found(self._database, Kind.COMPARISON, subject=model)
            if entry.content["version"] == version
        ]
        outcome: Mapping[str, Any] | None = comparisons[-1]["outcome"] if comparisons else None
        return outcome

    def record_champion(self, model: str, version: str, *, back: bool = False) -> None:
        """Record that a version is champion now, or with ``back`` is so again, the one after it being none any more."""
        append(self._database, Kind.CHAMPION, subject=model, content={"version": version, "back": back})

    def champions(self, model: str) -> list[str]:
        """Return the versions that were champion, in order, the present one last."""
        entered: list[str] = []
        for entry in found(self._database, Kind.CHAMPION, subject=model):
            if entry.content["back"]:
                entered.pop()
            else:
                entered.append(entry.content["version"])
        return entered
