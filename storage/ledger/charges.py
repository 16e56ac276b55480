"""What is charged, and the policy that prices it and compares it with an account's cap."""

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
    """

    cap: Cap
    before: Cap
    by: str
    why: str
    recorded_at: str
    sequence: int = 0


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
    """One charged plan, or one that is set aside.

    Parameters
    ----------
    partition : str
    costs : mapping of party to JSON
        What each party paid; the policy's own JSON.
    sequence : int
        Number of its entry, see :class:`CapChange`.
    delta : float
        The delta at which its run states its cost.
    run : str
    releases : tuple of str
        Keys of what was charged with it; none where a restored ledger recorded it.
    key_ids : mapping of party to str
        Identities of the secrets in force when it was charged: noise may be drawn with these only.
    recharge : bool
        Whether a release was charged once more because a recomputation gave other bytes.
    recorded_at : str
        Informational time in UTC.
    """

    partition: str
    costs: Mapping[str, Mapping[str, Any]]
    sequence: int = 0
    delta: float = 0.0
    run: str = ""
    releases: tuple[str, ...] = ()
    key_ids: Mapping[str, str] = field(default_factory=dict)
    recharge: bool = False
    recorded_at: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """What an account has spent, as the policy sees it.

    Parameters
    ----------
    plans : sequence of PlanRecord
        Charged, oldest first.
    pending : sequence of PlanRecord
        Set aside, and counted as if it were charged now, which is the latest that it can have been.
    notes : dict
        What a policy has made of the plans, so that it need not add them up again: the ledger may hand it out again
        with a history that begins with these plans.
    """

    plans: Sequence[PlanRecord] = ()
    pending: Sequence[PlanRecord] = ()
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
    totals : mapping
        What the account has spent with this plan, as :meth:`ChargePolicy.lacking` reads it; stored with the plan and
        in the high-water marks.
    """

    admitted: bool
    costs: Mapping[str, Mapping[str, Any]]
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, Any] = field(default_factory=dict)


class ChargePolicy(Protocol):
    """Composition, handed to the ledger by its caller: storage knows no accounting.

    Must be a pure function of its arguments, and must raise for anything it does not understand.
    """

    def decide(
        self,
        history: History,
        new: Sequence[ReleaseCharge],
        *,
        partition: str,
        delta: float,
        cap: Cap | None,
        terms: AccountTerms,
    ) -> Decision:
        """Price the new releases and compare with the cap; ``cap`` None (public data) admits everything."""
        ...

    def lacking(self, history: History, totals: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the cost of one plan, paid by every row, that brings a history at least to these running totals."""
        ...

    def stated(self, epsilon: float, delta: float) -> Mapping[str, Any]:
        """Return the cost of a plan of which nothing is known but (epsilon, delta)."""
        ...
