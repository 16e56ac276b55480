"""Spending across plans, parties and partitions: brute force over rows, mutants, admission, JSON."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpalgos.accounting import spending
from dpalgos.accounting.composition import compose
from dpalgos.accounting.costs import PlanCost, Totals, additive_costs, allocate, group_loss, price
from dpalgos.accounting.profiles import epsilon_of_mu, mu_from_epsilon_delta
from dpalgos.accounting.spending import FilterCap, SummedHistory, apply_filter, repeats_left, spent, status
from dpalgos.guarantees import ApproximateDP, GaussianMu, Loss, NoGuarantee, PureEpsilon, ZeroConcentrated, rounded_up
from dpalgos.parameters import ParameterError

D = 1e-5
History = list[tuple[str, Mapping[str, PlanCost]]]

# ── brute force over a small population ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Population:
    """Rows with their party in each partition, and plans: partition, releases as (parties, losses), declared delta."""

    rows: tuple[Mapping[str, str], ...]
    plans: tuple[tuple[str, tuple[tuple[tuple[str, ...], tuple[Loss, ...]], ...], float], ...]

    def history(self) -> History:
        return [(partition, price(releases, delta)) for partition, releases, delta in self.plans]

    def paid_by(self, row: Mapping[str, str]) -> list[Loss]:
        """Return every loss of every release that reads the row, one by one."""
        return [
            loss
            for partition, releases, _ in self.plans
            for parties, losses in releases
            if row[partition] in parties
            for loss in losses
        ]


def violations(population: Population, delta: float = D) -> list[str]:
    """Return how what is said to be spent falls short of what some row has really paid.

    A row's truth is the tight composition of its losses: no valid filter can be below it.
    """
    found = spent(population.history(), delta)
    problems = []
    for row in population.rows:
        truth = compose(population.paid_by(row)).epsilon(delta) * (1 - 1e-9)
        if found.epsilon < truth:
            problems.append(f"in all {found.epsilon} < {truth} of {row}")
        for partition, party in row.items():
            epsilon = found.parties.get(partition, {}).get(party)
            if epsilon is not None and epsilon < truth:
                problems.append(f"{partition}/{party}: {epsilon} < {truth}")
    return problems


PARTIES = ("0", "1", "2")
a_loss = st.one_of(
    st.floats(0.01, 0.3).map(GaussianMu),
    st.sampled_from([0.05, 0.2]).map(PureEpsilon),
    st.floats(0.001, 0.02).map(ZeroConcentrated),
    st.sampled_from([ApproximateDP(0.1, 2e-6), ApproximateDP(0.05, 4e-6)]),
)
a_release = st.tuples(
    st.one_of(st.sampled_from([(party,) for party in PARTIES]), st.just(PARTIES)),
    st.lists(a_loss, min_size=1, max_size=2).map(tuple),
)
a_plan = st.tuples(
    st.sampled_from(["even", "by-site"]),
    st.lists(a_release, min_size=1, max_size=3).map(tuple),
    st.sampled_from([1e-7, 1e-6]),
)
a_row = st.fixed_dictionaries({"even": st.sampled_from(PARTIES), "by-site": st.sampled_from(PARTIES)})
populations = st.builds(
    Population,
    rows=st.lists(a_row, min_size=1, max_size=6).map(tuple),
    plans=st.lists(a_plan, min_size=1, max_size=5).map(tuple),
)


@pytest.mark.nightly
@given(population=populations)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_no_row_pays_more_than_is_said(population: Population) -> None:
    assert violations(population) == []


@given(population=populations)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_the_bound_is_the_sum_of_the_partitions_maxima_and_is_attained(population: Population) -> None:
    def of_row(row: Mapping[str, str]) -> Totals:
        return Totals.of(costs[row[partition]] for partition, costs in population.history() if row[partition] in costs)

    summed = SummedHistory.of(population.history())
    bounds = [total_cost.totals for total_cost in summed.rows()]
    crossing = [of_row({"even": a, "by-site": b}) for a in PARTIES for b in PARTIES]
    for index, name in enumerate(Totals._fields):
        largest = max(totals[index] for totals in crossing)
        assert max(bound[index] for bound in bounds) == pytest.approx(largest, rel=1e-12), name
    for row in population.rows:
        assert any(
            all(mine <= limit * (1 + 1e-12) for mine, limit in zip(of_row(row), bound, strict=False))
            for bound in bounds
        )


def gaussian_plan(partition: str, mus: Mapping[str, float], joint: float = 0.0) -> tuple[str, Any, float]:
    releases: list[tuple[tuple[str, ...], tuple[Loss, ...]]] = [
        ((party,), (GaussianMu(mu),)) for party, mu in mus.items()
    ]
    if joint:
        releases.append((PARTIES, (GaussianMu(joint),)))
    return partition, tuple(releases), 1e-6


CROSSING = Population(
    rows=({"even": "0", "by-site": "2"}, {"even": "1", "by-site": "1"}),
    plans=(
        gaussian_plan("even", {"0": 0.2, "1": 0.1}),
        gaussian_plan("by-site", {"2": 0.2, "1": 0.1}),
        gaussian_plan("even", {}, joint=0.1),
    ),
)
LEAKING = Population(
    rows=({"even": "0", "by-site": "0"},),
    plans=tuple(("even", ((PARTIES, (ApproximateDP(0.05, 4e-6),)),), 4e-6) for _ in range(3)),
)
LOCAL_AND_JOINT = Population(
    rows=({"even": "0", "by-site": "0"},),
    plans=(gaussian_plan("even", {"0": 0.15}, joint=0.15), gaussian_plan("even", {"0": 0.15}, joint=0.15)),
)


def test_the_examples_are_accounted_for() -> None:
    for population in (CROSSING, LEAKING, LOCAL_AND_JOINT):
        assert violations(population) == []


def test_a_maximum_over_partitions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def larger(self: Any, other: Any) -> Any:
        return spending._TotalCost(self.totals.largest(other.totals), max(self.plans, other.plans), self.losses)

    monkeypatch.setattr(spending._TotalCost, "beside", larger)
    assert violations(CROSSING)


def test_an_ignored_slack_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "_left", lambda totals, delta: delta)
    assert violations(LEAKING)


def test_forgotten_joint_releases_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def local_only(self: Population) -> History:
        return [
            (partition, price([release for release in releases if len(release[0]) == 1], delta))
            for partition, releases, delta in self.plans
        ]

    monkeypatch.setattr(Population, "history", local_only)
    assert violations(LOCAL_AND_JOINT)


def test_a_sum_that_forgets_a_plan_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SummedHistory.of
    monkeypatch.setattr(SummedHistory, "of", lambda history: honest(list(history)[1:]))
    assert violations(LOCAL_AND_JOINT)


# ── closed forms ─────────────────────────────────────────────────────────────────────────────────────────────────────


def everyone(*losses: Loss, delta: float = 1e-6, parties: Sequence[str] = PARTIES) -> dict[str, PlanCost]:
    return price([(parties, losses)], delta)


def test_nothing_is_spent_on_nothing() -> None:
    found = spent([], D)
    assert (found.epsilon, found.filter, found.parties) == (0.0, "nothing", {})
    free = ("even", everyone(GaussianMu(0.0)))
    assert spent([free, free], D).epsilon == 0.0


def test_a_single_plan_counts_tightly_at_the_full_delta() -> None:
    losses = (GaussianMu(0.1), PureEpsilon(0.2), PureEpsilon(0.1))
    found = spent([("even", everyone(*losses))], D)
    assert found.filter == "single plan"
    assert found.epsilon == compose(losses).epsilon(D)
    assert spent([("even", everyone(PureEpsilon(0.5)))], 0.0).epsilon == 0.5


def test_two_gaussian_plans_are_one_gaussian_at_the_filters_part_of_delta() -> None:
    found = spent([("even", everyone(GaussianMu(0.03))), ("even", everyone(GaussianMu(0.04)))], D)
    assert found.filter == "gdp"
    assert found.epsilon == pytest.approx(epsilon_of_mu(0.05, D * 7 / 8), rel=1e-9)


def test_parties_of_one_partition_pay_in_parallel() -> None:
    history: History = [("even", everyone(GaussianMu(0.1), parties=[party])) for party in PARTIES]
    found = spent(history, D)
    # Each row is touched by one plan only.
    assert found.filter == "single plan"
    assert found.epsilon == pytest.approx(epsilon_of_mu(0.1, D), rel=1e-12)
    assert set(found.parties["even"]) == set(PARTIES)


def test_partitions_add_up() -> None:
    history: History = [("even", everyone(GaussianMu(0.03))), ("by-site", everyone(GaussianMu(0.04), parties=["1"]))]
    found = spent(history, D)
    assert found.epsilon == pytest.approx(epsilon_of_mu(0.05, D * 7 / 8), rel=1e-9)
    assert found.parties["by-site"]["1"] == pytest.approx(found.epsilon)


def test_pure_plans_spend_no_delta_and_take_no_part_of_it() -> None:
    history: History = [("even", everyone(PureEpsilon(0.25)))] * 4
    assert spent(history, 0.0).epsilon == pytest.approx(1.0)
    assert apply_filter(history[:3], history[0], FilterCap(1.0, 0.0)).admitted
    assert not apply_filter(history, history[0], FilterCap(1.0, 0.0)).admitted


@given(population=populations, extra=a_plan, delta=st.sampled_from([1e-7, 1e-5]))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_more_plans_never_cost_less(population: Population, extra: Any, delta: float) -> None:
    history = population.history()
    partition, releases, declared = extra
    longer = [*history, (partition, price(releases, declared))]
    assert spent(longer, delta).epsilon >= spent(history, delta).epsilon * (1 - 1e-9)
    assert spent(history, delta).epsilon >= spent(history, delta * 2).epsilon * (1 - 1e-9)


@given(population=populations, epsilon=st.floats(0.05, 2.0))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_what_was_admitted_stays_within_the_cap(population: Population, epsilon: float) -> None:
    cap = FilterCap(epsilon, D)
    admitted: History = []
    kept = Population(population.rows, ())
    for plan, planned in zip(population.history(), population.plans, strict=True):
        decision = apply_filter(admitted, plan, cap)
        if decision.admitted:
            admitted.append(plan)
            kept = Population(population.rows, (*kept.plans, planned))
            assert status(admitted, cap).admitted
            assert spent(admitted, D).epsilon == decision.after.epsilon <= epsilon
        else:
            assert decision.after.epsilon > epsilon
    for row in population.rows:
        assert compose(kept.paid_by(row)).epsilon(D) <= epsilon * (1 + 1e-9)


# ── admission ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_first_plan_outside_every_filter_is_admitted_and_is_the_last() -> None:
    cap = FilterCap(1.0, D)
    whole = ("even", everyone(*allocate([GaussianMu, PureEpsilon], [0.5, 0.5], 1.0, D).losses, delta=D))
    first = apply_filter([], whole, cap)
    assert first.admitted
    assert first.after.filter == "single plan"
    smallest: list[Loss] = [GaussianMu(1e-6), PureEpsilon(1e-9), ZeroConcentrated(1e-12)]
    for small in smallest:
        assert not apply_filter([whole], ("even", everyone(small)), cap).admitted
    assert status([whole], cap).admitted
    # What costs nothing depends on nobody's rows, and other people's rows are untouched.
    assert apply_filter([whole], ("even", everyone(GaussianMu(0.0))), cap).admitted
    assert apply_filter([whole], ("even", everyone(GaussianMu(0.1), parties=["9"])), cap).admitted


def test_what_proves_nothing_never_fits_a_cap() -> None:
    plan = ("even", everyone(NoGuarantee("chosen indices are records")))
    decision = apply_filter([], plan, FilterCap(1e6, 0.5))
    assert not decision.admitted
    assert "chosen indices are records" in decision.reason
    assert spent([plan], D).epsilon == math.inf


def test_a_refusal_says_from_where_to_where_the_plan_would_lead() -> None:
    history: History = [("even", everyone(GaussianMu(mu_from_epsilon_delta(0.3, 1e-6))))] * 3
    decision = apply_filter(history, history[0], FilterCap(0.5, D))
    assert not decision.admitted
    assert decision.before.epsilon < 0.5 < decision.after.epsilon
    assert "above the cap of epsilon 0.5" in decision.reason
    before, after = (rounded_up(one.epsilon, 4) for one in (decision.before, decision.after))
    assert f"from epsilon {before:g} to {after:g}" in decision.reason
    assert "left" not in decision.reason, "a cap less what is spent is nothing that a plan could have"


PLAN_KINDS: list[tuple[list[type[Loss]], list[float]]] = [
    ([GaussianMu], [1.0]),
    ([GaussianMu, GaussianMu], [0.3, 0.7]),
    ([PureEpsilon], [1.0]),
    ([PureEpsilon, PureEpsilon], [0.5, 0.5]),
    ([ZeroConcentrated], [1.0]),
    ([GaussianMu, PureEpsilon], [0.5, 0.5]),
]


def test_repeats_take_account_of_parties_that_the_plan_does_not_touch() -> None:
    # Party 1 is within the cap by gdp alone, so that basic sums hold for nobody once partitions cross.
    history: History = [("even", everyone(GaussianMu(0.02), delta=1e-8, parties=["1"]))] * 30
    history += [("by-site", everyone(PureEpsilon(0.01)))] * 2
    plan, cap = ("even", everyone(PureEpsilon(0.05), parties=["0"])), FilterCap(1.0, D)
    count = repeats_left(history, plan, cap)
    assert count > 1
    assert status([*history, *[plan] * count], cap).admitted
    assert not status([*history, *[plan] * (count + 1)], cap).admitted


def test_on_an_empty_account_the_whole_cap_fits() -> None:
    for kinds, shares in PLAN_KINDS:
        # Pure stages are stated at delta 0, and the cap has a delta to spare: a thousandth of epsilon at most.
        for epsilon, fits in ((1.0, True), (1.002, False)):
            plan = ("even", everyone(*allocate(kinds, shares, epsilon, D).losses, delta=D))
            assert apply_filter([], plan, FilterCap(1.0, D)).admitted is fits


def test_repeats_are_counted() -> None:
    cap = FilterCap(1.0, D)
    for losses in ([GaussianMu(0.05)], [PureEpsilon(0.09)], [GaussianMu(0.02), PureEpsilon(0.03)]):
        plan = ("even", everyone(*losses, delta=1e-8))
        count = repeats_left([], plan, cap)
        assert 2 < count < 100
        assert status([plan] * count, cap).admitted
        assert not status([plan] * (count + 1), cap).admitted
        assert repeats_left([plan] * 2, plan, cap) == count - 2
        assert repeats_left([plan] * count, plan, cap) == 0
    assert repeats_left([], ("even", everyone(GaussianMu(0.0))), cap) == 1_000_000


def test_a_lowered_cap_is_noticed() -> None:
    history: History = [("even", everyone(GaussianMu(0.1)))] * 2
    assert status(history, FilterCap(1.0, D)).admitted
    assert not status(history, FilterCap(0.1, D)).admitted
    assert status(history, FilterCap(0.1, D)).reason.startswith("epsilon 0.50")


@pytest.mark.parametrize(("epsilon", "delta"), [(-1.0, D), (math.inf, D), (1.0, 1.0), (1.0, -D), (math.nan, D)])
def test_a_cap_outside_its_range_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ParameterError):
        FilterCap(epsilon, delta)


# ── prices ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plan_is_priced_party_by_party() -> None:
    total_costs = price([(["0"], [GaussianMu(0.1)]), (["1"], [PureEpsilon(0.2)]), (PARTIES, [GaussianMu(0.2)])], 1e-6)
    assert set(total_costs) == set(PARTIES)
    assert total_costs["0"].totals.mu_squared == pytest.approx(0.05)
    (merged,) = total_costs["0"].losses
    assert isinstance(merged, GaussianMu)
    assert merged.mu == pytest.approx(math.sqrt(0.05))
    assert total_costs["1"].totals.epsilon == compose([GaussianMu(0.2), PureEpsilon(0.2)]).epsilon(1e-6)
    assert total_costs["2"].totals.epsilon == compose([GaussianMu(0.2)]).epsilon(1e-6)


def test_pure_plans_are_priced_at_delta_zero() -> None:
    total_cost = everyone(PureEpsilon(0.1), PureEpsilon(0.2))["0"]
    assert total_cost.totals.delta == 0.0
    assert total_cost.totals.epsilon == pytest.approx(0.3)
    assert everyone(PureEpsilon(0.1), GaussianMu(0.2), delta=1e-7)["0"].totals.delta == 1e-7


@given(
    losses=st.lists(a_loss, min_size=1, max_size=3),
    split=st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any),
    epsilon=st.floats(0.0, 3.0),
)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_a_person_with_rows_at_several_parties_pays_no_more_than_the_bill(
    losses: list[Loss], split: list[int], epsilon: float
) -> None:
    rows = sum(split)
    releases: list[tuple[Sequence[str], Sequence[Loss]]] = [((party,), losses) for party in PARTIES]
    releases.append((PARTIES, [GaussianMu(0.05)]))
    total_costs = price(releases, 1e-6, rows_per_person=rows)
    really = [group_loss(loss, count) for count in split if count for loss in losses]
    really.append(group_loss(GaussianMu(0.05), rows))
    if any(isinstance(loss, NoGuarantee) for loss in total_costs["0"].losses):
        return
    assert compose(total_costs["0"].losses).delta(epsilon) >= compose(really).delta(epsilon) * (1 - 1e-6) - 1e-14
    for mine, total_cost in zip(
        additive_costs(really, 1e-6), additive_costs(total_costs["0"].losses, 1e-6), strict=True
    ):
        assert mine <= total_cost * (1 + 1e-9)


def test_unlike_bills_of_groups_are_charged_to_everybody() -> None:
    unlike = price([(["0"], [GaussianMu(0.1)]), (["1"], [PureEpsilon(0.1)])], 1e-6, rows_per_person=2)
    assert set(unlike["0"].losses) == set(unlike["1"].losses) == {GaussianMu(0.2), PureEpsilon(0.2)}
    alike = price([(["0"], [GaussianMu(0.1)]), (["1"], [GaussianMu(0.1)])], 1e-6, rows_per_person=2)
    assert alike["0"].losses == (GaussianMu(0.2),)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(losses=st.lists(st.one_of(a_loss, st.just(NoGuarantee("x"))), max_size=4))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_costs_survive_json(losses: list[Loss]) -> None:
    cost = PlanCost.of(losses, 1e-6)
    assert PlanCost.from_json(json.loads(json.dumps(cost.to_json(), allow_nan=False))) == cost


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1.0},
        {"rho": None, "mu": 0.1},
        {"losses": [{"kind": "gaussian-mu", "sigma": 1.0}]},
        {"losses": [{"kind": "renyi", "alpha": 2.0}]},
        {"losses": [{"kind": "gaussian-mu", "mu": -1.0}]},
        {"losses": [3]},
        {"losses": None},
        {"mu_squared": -1.0},
        {"epsilon": "0.1"},
        {"delta": math.nan},
        {"slack": True},
    ],
)
def test_what_is_not_a_cost_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        PlanCost.from_json(PlanCost.of([GaussianMu(0.1)], 1e-6).to_json() | change)


def test_a_missing_quantity_is_refused() -> None:
    data = PlanCost.of([GaussianMu(0.1)], 1e-6).to_json()
    for key in list(data):
        with pytest.raises(ParameterError, match="'losses'"):
            PlanCost.from_json({name: value for name, value in data.items() if name != key})


@pytest.mark.parametrize("seed", range(4))
def test_books_that_grow_plan_by_plan_are_those_of_the_whole_history(seed: int) -> None:
    """Each sum rounded once, as if all were added at once; adding rounded sums is off in the last bits."""
    rng = random.Random(seed)
    sizes = [1e-12, 0.003, 1 / 3, 1e8]
    history = []
    for _ in range(90):
        parties = rng.sample("abcd", rng.randint(0, 4))
        costs = {
            party: PlanCost((), Totals(*(rng.choice(sizes) * rng.random() for _ in range(5)))) for party in parties
        }
        history.append((rng.choice(["even", "by-site"]), costs))
    grown = SummedHistory.of(history[: 20 * seed])
    for plan in history[20 * seed :]:
        grown = grown.with_plan(*plan)
    assert grown.total_costs == SummedHistory.of(history).total_costs
    assert grown.first == SummedHistory.of(history).first
    paid = [plan[1]["a"] for plan in history if plan[0] == "even" and "a" in plan[1]]
    assert grown.total_costs["even"]["a"].totals == Totals.of(paid)
    # Not ``sum``, which corrects its rounding from Python 3.12 on.
    rounded = [reduce(add, (getattr(cost.totals, name) for cost in paid)) for name in Totals._fields]
    if seed == 0:
        assert grown.total_costs["even"]["a"].totals != Totals(*rounded)
    endless = grown.with_plan("even", {"a": PlanCost((), Totals(math.inf, 1.0, 0.0, 1.0, 0.0))})
    for _ in range(2):
        assert endless.total_costs["even"]["a"].totals.mu_squared == math.inf
        endless = endless.with_plan("even", {"a": PlanCost((), Totals(0.5, 1.0, 0.0, 1.0, 0.0))})


def test_parties_that_pay_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of small parties cost no more thought than one of each kind, and the answers are the same."""
    light, heavy = PlanCost.of([GaussianMu(0.2)], 1e-6), PlanCost.of([GaussianMu(0.3), PureEpsilon(0.01)], 1e-6)
    cap = FilterCap(2.0, 1e-5)

    def answers(parties: int) -> tuple[float, int, float]:
        everybody = {str(number): light for number in range(parties)}
        history = [("a", everybody), ("a", {"1": heavy}), ("b", {"x": light})]
        new = ("a", {**everybody, "2": heavy})
        return (
            spending._room(SummedHistory.of(history), *new, cap),
            repeats_left(history, new, cap),
            spent(history, 1e-5).epsilon,
        )

    few = answers(4)
    looked = []
    original = spending._Candidate.fits

    def fits(self: spending._Candidate, paid: Any, *arguments: Any, **named: Any) -> bool:
        looked.append(len(self.parties))
        return original(self, paid, *arguments, **named)

    monkeypatch.setattr(spending._Candidate, "fits", fits)
    assert answers(3000) == few
    assert max(looked) == 3
