"""What is charged: plans of releases, the caps they meet, and the policy that composes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Cap", "ChargePolicy", "Decision", "PlanRecord", "PlanRequest", "ReleaseCharge"]


@dataclass(frozen=True, slots=True)
class Cap:
    """The most an account may spend over its life: (epsilon, delta)."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class ReleaseCharge:
    """One release to be paid for.

    Parameters
    ----------
    key : str
        The release's identity.
    parties : tuple of str
        The parties of the partition whose rows it reads (one, or all of them).
    guarantee : mapping
        The guarantee as JSON; stored as it is, understood by the policy alone.
    label : str
        For people: ``"projection"``, ``"model of party 3"``.
    """

    key: str
    parties: tuple[str, ...]
    guarantee: Mapping[str, Any]
    label: str = ""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """All releases of one run, known before it starts and charged together.

    Parameters
    ----------
    account : str
    partition : str
        Identity of the partition the parties belong to.
    releases : tuple of ReleaseCharge
    delta : float
        The delta at which the run's cost is stated.
    run : str
        Free text for people (which algorithm, which run).
    """

    account: str
    partition: str
    releases: tuple[ReleaseCharge, ...]
    delta: float
    run: str = ""


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """One charged plan as the policy sees it: the partition, and what each party paid (the policy's own JSON)."""

    partition: str
    costs: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy says about a plan.

    Parameters
    ----------
    admitted : bool
    costs : mapping of party to JSON
        What each party pays for the new releases; stored with the plan.
    reason : str
        For a refusal: what is left and the largest epsilon that would still fit.
    details : mapping
        Public numbers for reports: spent before, spent after, left, the filter in force.
    """

    admitted: bool
    costs: Mapping[str, Mapping[str, Any]]
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


class ChargePolicy(Protocol):
    """Composition, handed to the ledger by its caller: storage knows no accounting.

    Must be a pure function of its arguments, and must raise for anything it does not understand.
    """

    def decide(
        self,
        history: Sequence[PlanRecord],
        new: Sequence[ReleaseCharge],
        *,
        partition: str,
        delta: float,
        cap: Cap | None,
    ) -> Decision:
        """Price the new releases and compare with the cap; ``cap`` None (public data) admits everything."""
        ...
