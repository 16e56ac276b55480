"""The accountant as the ledger calls it: what plans cost, and whether one more fits under an account's cap."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dpalgos.accounting.composition import as_selected
from dpalgos.accounting.costs import PlanCost, Totals, losses_under, price
from dpalgos.accounting.spending import apply_filter, worst_totals
from dpalgos.guarantees import ApproximateDP, GaussianMu, Guarantee, Loss, Neighbours, NoGuarantee, ZeroConcentrated
from dpalgos.sentences import coded
from storage.ledger.charges import AccountTerms, Decision, History, ReleaseCharge
from tasks.accounts.filters import FilterStatus, counted_as, finite_or_none, sum_plans
from tasks.planning.plans import RunPlan

_NO_TERMS = AccountTerms()
# The promised cap decides nothing: a charge goes by the limit in force.
_DECIDED_BY = ("epsilon", "delta", "earlier", "reserved")


@dataclass(frozen=True, slots=True)
class AccountingPolicy:
    """The accountant as the ledger sees it: prices plans and decides, from charges alone."""

    def decide(
        self, history: History, new: Sequence[ReleaseCharge], *, partition: str, delta: float, terms: AccountTerms
    ) -> Decision:
        """Price the new releases and compare with the cap; public data (no cap) are priced and admitted.

        A release proved under another relation than the account's is converted at its price or refused
        (:func:`dpalgos.accounting.costs.losses_under`). What has two prices (:meth:`prices`) is recorded with
        the one that leaves more: that admits the plan, and then that after which one more Gaussian plan may be largest.
        Costs and history alone decide on it, before anything is released, as they decide on the plan itself; so what is
        added up is chosen in view of earlier outputs at most, which is what filters allow. The charge records the price
        chosen, and nothing asks again.

        Raises
        ------
        ValueError
            For an unknown relation, and for add-remove-one.
        """
        prices, partition = self.prices(new, delta, terms), counted_as(history, partition)
        if terms.cap is None:
            return Decision(admitted=True, costs=_written(prices[0]))
        now = FilterStatus.of(history, terms.cap, terms)
        decision = apply_filter(now.summed, (partition, prices[0]), now.limit, otherwise=prices[1:])
        after = sum_plans(history, terms).with_plan(partition, decision.costs)
        return Decision(
            admitted=decision.admitted and now.broken is None,
            costs=_written({party: decision.costs.get(party, cost) for party, cost in prices[0].items()}),
            reason=now.broken or decision.reason,
            details={
                "spent_before": finite_or_none(decision.before.epsilon),
                "spent_after": finite_or_none(decision.after.epsilon),
                "filter": decision.after.filter,
                "cap": {name: getattr(decision.cap, name) for name in _DECIDED_BY},
            },
            totals={name: finite_or_none(value) for name, value in worst_totals(after)._asdict().items()},
        )

    def prices(
        self, new: Sequence[ReleaseCharge], delta: float, terms: AccountTerms = _NO_TERMS
    ) -> list[dict[str, PlanCost]]:
        """Return what each party may be charged for new releases: one price, or two where one is a private selection.

        A selection is proved twice over (:class:`~dpalgos.guarantees.PrivateSelection`), and is recorded as all of its
        candidates, which spends no delta, or at its own (epsilon, delta).

        Raises
        ------
        ParameterError
            Where nothing is proved under the account's relation.
        """
        relation = Neighbours(terms.relation).in_force()
        guarantees = [(one.parties, Guarantee.from_json(dict(one.guarantee))) for one in _counted_once(new)]
        releases = [(parties, losses_under(guarantee, relation)) for parties, guarantee in guarantees]
        priced = [price(releases, delta, rows_per_person=terms.group_size)]
        if any(as_selected(losses) for _, losses in releases):
            selected = [(parties, as_selected(losses) or losses) for parties, losses in releases]
            # As the only plan of a row it is read off the whole curve, however it is added up with others.
            priced.append(
                {
                    party: replace(cost, losses=priced[0][party].losses)
                    for party, cost in price(selected, delta, rows_per_person=terms.group_size).items()
                }
            )
        return priced

    def shortfall(
        self, history: History, totals: Mapping[str, float | None], terms: AccountTerms = _NO_TERMS
    ) -> dict[str, object]:
        """Return the cost of one plan, paid by every row, that brings a history at least to these running totals."""
        now = worst_totals(sum_plans(history, terms))._asdict()
        wanted = {name: math.inf if value is None else float(value) for name, value in totals.items()}
        # A difference is rounded up; from nothing it is exact.
        lacks = {
            name: math.nextafter(wanted[name] - spent, math.inf) if 0 < spent < wanted[name] else wanted[name] - spent
            for name, spent in now.items()
        }
        lacks = {name: max(value, 0.0) if not math.isnan(value) else math.inf for name, value in lacks.items()}
        return PlanCost(_losses(lacks), Totals(**lacks)).to_json()

    def stated(self, epsilon: float, delta: float) -> dict[str, object]:
        """Return the cost of a plan of which nothing is known but (epsilon, delta)."""
        return PlanCost.of([ApproximateDP(epsilon, delta)], delta).to_json()


def _written(costs: Mapping[str, PlanCost]) -> dict[str, dict[str, object]]:
    # Parties mostly pay the same.
    each = {cost: cost.to_json() for cost in set(costs.values())}
    return {party: each[cost] for party, cost in costs.items()}


def epsilon_of_person(plan: RunPlan, rows: int, delta: float | None = None) -> float:
    """Return what a run costs a person of up to so many rows, at the run's delta if none is given."""
    releases = [(one.parties, one.guarantee().losses) for one in plan.releases if one.reads_rows]
    return max(
        (
            cost.totals.epsilon
            for cost in price(releases, plan.delta if delta is None else delta, rows_per_person=rows).values()
        ),
        default=0.0,
    )


def _counted_once(new: Sequence[ReleaseCharge]) -> list[ReleaseCharge]:
    """Return the charges, of those of one stream the first: its guarantee is that of all of them together.

    Raises
    ------
    ValueError
        If releases of one stream do not say the same.
    """
    kept: dict[str, ReleaseCharge] = {}
    for charge in new:
        first = kept.setdefault(charge.stream or charge.key, charge)
        if charge.stream and (first.guarantee, first.parties) != (charge.guarantee, charge.parties):
            raise ValueError(f"releases of the stream {charge.stream} differ in their guarantee or their parties")
    return list(kept.values())


def _losses(lacks: Mapping[str, float]) -> tuple[Loss, ...]:
    """Return what plans cost that are known by their sums alone, by the first filter under which these are finite."""
    if math.isfinite(lacks["mu_squared"]) and lacks["slack"] < 1:
        return GaussianMu(math.nextafter(math.sqrt(lacks["mu_squared"]), math.inf)), ApproximateDP(0.0, lacks["slack"])
    if math.isfinite(lacks["rho"]) and lacks["slack"] < 1:
        return ZeroConcentrated(lacks["rho"]), ApproximateDP(0.0, lacks["slack"])
    if math.isfinite(lacks["epsilon"]) and lacks["delta"] < 1:
        return (ApproximateDP(lacks["epsilon"], lacks["delta"]),)
    return (NoGuarantee(coded("lost-ledger")),)
