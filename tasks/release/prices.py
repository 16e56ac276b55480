"""Prices: what plans would charge to a private account, told before anything is charged."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dpalgos.guarantees import rounded_up
from storage.errors import PriceError
from storage.ledger.charges import PERSON, Account, AccountTerms, PlanRequest, of_cap
from storage.refs import DatasetRef
from tasks.accounts.filters import finite_or_none
from tasks.accounts.ledger import open_ledger
from tasks.accounts.outlook import spending
from tasks.accounts.pricing import AccountingPolicy
from tasks.planning.configuration import TrainingConfig
from tasks.planning.parts import draws_noise
from tasks.preparation.prepare import AwaitingPartition, Prepared, PreparedRun
from tasks.release.admission import request_of

RUN_EPSILON = 1.0
"""Epsilon of a run for which nobody states one: it is used on public rows and proposed for private ones."""
DESCRIPTION_EPSILON = 0.2
"""The same of a description of a table's columns."""
REDUCTION_EPSILON = 0.5
"""The same of the second moments of a table's columns."""
COMPARISON_EPSILON = 0.1
"""The same of a comparison with the champion."""
_DIGITS = 4
# Releases of a plan that are named.
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One plan of a price.

    Attributes
    ----------
    run : str
        What runs, for people.
    epsilon : float or None
        What the plan's unpaid releases cost the party that pays most, at ``delta``; None where it is infinite.
    delta : float
    releases : tuple of str
        The labels of the unpaid releases.
    """

    run: str
    epsilon: float | None
    delta: float
    releases: tuple[str, ...]

    def __str__(self) -> str:
        amount = "unbounded" if self.epsilon is None else f"{rounded_up(self.epsilon, _DIGITS):g}"
        more = len(self.releases) - _MOST_SHOWN
        shown = ", ".join(self.releases[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
        what = self.run if self.releases == (self.run,) else f"{self.run} ({shown})"
        return f"{what}, epsilon {amount} at delta {rounded_up(self.delta, _DIGITS):g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of plans to one private account, all of them in order.

    Attributes
    ----------
    account : str
    whose : str
        Who loses at most that much: a row, a person, or a person of several rows.
    items : tuple of Item
        Plans of which nothing is left to charge have none.
    before, after : float or None
        Epsilon of the account at ``cap_delta``, now and after all plans; None where it is infinite. What is charged is
        at most that.
    cap, cap_delta : float
        What charges go by: the cap, or the soft limit below it.
    promised : float
        The cap.
    """

    account: str
    whose: str
    items: tuple[Item, ...]
    before: float | None
    after: float | None
    cap: float
    cap_delta: float
    promised: float

    def __str__(self) -> str:
        # Not from the next float above a sum: after a raise from 2, that would print 2.001.
        before, after = (
            "∞" if one is None else f"{rounded_up(math.nextafter(one, 0.0), _DIGITS):g}"
            for one in (self.before, self.after)
        )
        return (
            f"{'; '.join(map(str, self.items))}, for {self.whose}; account {self.account} goes from epsilon {before} "
            f"to {after} of {of_cap(self.cap, self.promised)} at delta {self.cap_delta:g}"
        )

    def refusal(self, way_out: str) -> PriceError:
        """Return the error of a charge to which the user has not agreed."""
        return PriceError(f"nothing was charged; the price is {self}; {way_out}", self)


def with_epsilon(config: TrainingConfig, dataset: DatasetRef) -> TrainingConfig:
    """Return a configuration that states an epsilon where its run draws noise: its own, or :data:`RUN_EPSILON`."""
    if config.epsilon is not None or not draws_noise(config, dataset):
        return config
    return config.model_copy(update={"epsilon": RUN_EPSILON})


def price_of_requests(requests: Sequence[PlanRequest]) -> Price | None:
    """Return the price of plans that are charged to one account in this order.

    Returns
    -------
    Price or None
        None where the account has no cap, and where all releases are charged already.
    """
    if not requests or (spent := spending(account := requests[0].account)) is None:
        return None
    ledger = open_ledger()
    left, known = list[PlanRequest](), set[str]()
    for request in requests:
        keys = {release.key for release in request.releases}
        known |= ledger.charged(keys)
        if unpaid := tuple(release for release in request.releases if release.key not in known):
            left.append(replace(request, releases=unpaid))
        known |= keys
    if not left:
        return None
    return Price(
        account=account,
        whose=_whose(ledger.account(account)),
        items=tuple(_items(left, spent.terms)),
        before=finite_or_none(spent.epsilon([])),
        after=finite_or_none(spent.epsilon(left)),
        cap=spent.cap.epsilon,
        cap_delta=spent.cap.delta,
        promised=spent.now.promised,
    )


def _items(requests: Sequence[PlanRequest], terms: AccountTerms) -> Iterator[Item]:
    for request in requests:
        costs = AccountingPolicy().prices(request.releases, request.delta, terms)[0]
        yield Item(
            run=request.run,
            epsilon=finite_or_none(max(cost.totals.epsilon for cost in costs.values())),
            delta=request.delta,
            releases=tuple(dict.fromkeys(release.label for release in request.releases)),
        )


def _whose(terms: Account) -> str:
    if terms.unit == PERSON:
        return "a person"
    return "a row" if terms.group_size == 1 else f"a person of {terms.group_size} rows"


def price_of(prepared: Sequence[Prepared]) -> Price | None:
    """Return what these plans would charge in this order, where all belong to one account.

    Returns
    -------
    Price or None
        None for public rows, where all is charged already, and where a plan waits for what public rows contain.
    """
    requests = [request_of(one.plan) for one in prepared if isinstance(one, PreparedRun)]
    return price_of_requests([one for one in requests if one is not None])


def keys_of(prepared: Sequence[Prepared]) -> set[str]:
    """Return the keys of all releases that a price of these plans is of, those that are charged already among them."""
    requests = [request_of(one.plan) for one in prepared if isinstance(one, PreparedRun)]
    return {release.key for one in requests if one is not None for release in one.releases}


def measures_later(prepared: Prepared) -> bool:
    """Whether the models of a plan are charged already, and something that measures them is not.

    Such a charge comes on top of what the run's epsilon has bought.
    """
    if isinstance(prepared, AwaitingPartition):
        return False
    ledger = open_ledger()
    models = {one.key for one in prepared.plan.models if one.reads_rows}
    measuring = {one.key for one in prepared.plan.evaluations if one.reads_rows}
    return bool(models) and ledger.charged(models) == models and ledger.charged(measuring) != measuring
