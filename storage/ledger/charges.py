"""What is charged: plans of releases, the caps they meet, and the policy that composes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

DEFAULT_RELATION = "replace-one"
"""The neighbouring relation of accounts that were opened before accounts named theirs."""


@dataclass(frozen=True, slots=True)
class Cap:
    """The most an account may spend over its life: (epsilon, delta)."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapChange:
    """One recorded change of a cap.

    Parameters
    ----------
    cap, before : Cap
    by, why : str
    recorded_at : str
    sequence : int
        Number of its entry: plans with a smaller number were charged under `before`, later ones under `cap`.
    terms : mapping
        The policy's own JSON, such as which term of the account's series of deltas the new filter spends.
    """

    cap: Cap
    before: Cap
    by: str
    why: str
    recorded_at: str
    sequence: int = 0
    terms: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountTerms:
    """What an account agreed at opening, and how its cap has changed since.

    Parameters
    ----------
    relation : str
        The neighbouring relation its guarantees are stated under, fixed at opening.
    deltas : mapping
        The series of deltas that later caps may spend, fixed at opening; the policy's own JSON.
    changes : tuple of CapChange
        Oldest first.
    """

    relation: str = DEFAULT_RELATION
    deltas: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[CapChange, ...] = ()


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
    stream : str
        What this is one release of: the guarantee is of all releases of the stream together, so that of those that are
        charged in one plan it counts once. Empty where the guarantee is the release's own.
    again : mapping
        What this release costs where it is drawn once more, as a guarantee; empty where that is the guarantee.
    """

    key: str
    parties: tuple[str, ...]
    guarantee: Mapping[str, Any]
    label: str = ""
    stream: str = ""
    again: Mapping[str, Any] = field(default_factory=dict)


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
    """One charged plan as the policy sees it.

    Parameters
    ----------
    partition : str
    costs : mapping of party to JSON
        What each party paid; the policy's own JSON, as corrected if its guarantee turned out wrong.
    loss : mapping
        The plan's loss as a whole, such as a curve; the policy's own JSON, empty where it gave none.
    totals : mapping
        The account's running totals with this plan; the policy's own JSON, empty where it gave none.
    sequence : int
        Number of its entry, see :class:`CapChange`.
    notes : dict
        What a policy has made of the history up to this plan, so that it need not add it up again. The ledger hands out
        the same record behind the same records before it, or another one.
    """

    partition: str
    costs: Mapping[str, Mapping[str, Any]]
    loss: Mapping[str, Any] = field(default_factory=dict, compare=False)
    totals: Mapping[str, Any] = field(default_factory=dict, compare=False)
    sequence: int = field(default=0, compare=False)
    notes: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy says about a plan.

    Parameters
    ----------
    admitted : bool
    costs : mapping of party to JSON
        What each party pays for the new releases; stored with the plan.
    reason : str
        For a refusal: what would be spent and what is left.
    details : mapping
        Public numbers for reports: spent before, spent after, left, the filter in force.
    loss : mapping
        The plan's loss as a whole, such as a curve; stored with the plan and handed back with the history.
    totals : mapping
        What the account has spent with this plan, as :meth:`ChargePolicy.lacking` reads it; stored with the plan and
        in the high-water marks.
    """

    admitted: bool
    costs: Mapping[str, Mapping[str, Any]]
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, Any] = field(default_factory=dict)


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
        terms: AccountTerms,
    ) -> Decision:
        """Price the new releases and compare with the cap; ``cap`` None (public data) admits everything."""
        ...

    def lacking(self, history: Sequence[PlanRecord], totals: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the cost of one plan, paid by every row, that brings a history at least to these running totals."""
        ...

    def stated(self, epsilon: float, delta: float) -> Mapping[str, Any]:
        """Return the cost of a plan of which nothing is known but (epsilon, delta)."""
        ...
