"""Groups: a person's k rows anywhere in the parties, by brute force over all placements; what is not Gaussian."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpalgos.accounting import costs, spending
from dpalgos.accounting.composition import compose
from dpalgos.accounting.costs import PlanCost, Totals, group_loss, price
from dpalgos.accounting.profiles import epsilon_of_mu, mu_from_epsilon_delta, mu_of_pure, rho_of_pure
from dpalgos.accounting.spending import FilterCap, SummedHistory, apply_filter, repeats_left, spent, status
from dpalgos.guarantees import (
    ApproximateDP,
    GaussianMu,
    Loss,
    NoGuarantee,
    PrivateSelection,
    PureEpsilon,
    SlackGaussian,
    ZeroConcentrated,
)

D = 1e-6
PARTIES = ("0", "1", "2")
Placement = Mapping[str, int]
Releases = Sequence[tuple[Sequence[str], Sequence[Loss]]]


def placements(rows: int, parties: Sequence[str] = PARTIES) -> Iterator[Placement]:
    """Yield every way in which so many rows of one person may lie in the parties."""
    for places in itertools.combinations_with_replacement(parties, rows):
        yield {party: places.count(party) for party in parties}


def reads(placement: Placement, parties: Sequence[str]) -> int:
    return sum(placement[party] for party in set(parties))


def paid(releases: Releases, placement: Placement) -> list[Loss]:
    """Return what the releases really cost a person: each one that of the rows it reads."""
    return [
        group_loss(loss, read) for parties, losses in releases if (read := reads(placement, parties)) for loss in losses
    ]


some_parties = st.lists(st.sampled_from(PARTIES), min_size=1, max_size=3, unique=True).map(tuple)
a_gaussian_release = st.tuples(some_parties, st.lists(st.floats(0.01, 0.3).map(GaussianMu), min_size=1, max_size=2))
gaussian_releases = st.lists(a_gaussian_release, min_size=1, max_size=6)


# ── one plan ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(releases=gaussian_releases, rows=st.integers(1, 5), epsilon=st.floats(0.0, 3.0))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_worst_place_for_a_persons_rows_is_one_party(releases: Releases, rows: int, epsilon: float) -> None:
    """No placement costs more than the dearest party is charged, and one costs as much."""
    charged = price(releases, D, rows_per_person=rows)
    largest = max(compose(cost.losses).delta(epsilon) for cost in charged.values())
    really = [compose(paid(releases, one)).delta(epsilon) for one in placements(rows)]
    assert max(really) == pytest.approx(largest, rel=1e-9)
    squares = [
        sum(loss.mu**2 for loss in paid(releases, one) if isinstance(loss, GaussianMu)) for one in placements(rows)
    ]
    assert max(squares) == pytest.approx(max(cost.totals.mu_squared for cost in charged.values()), rel=1e-12)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(lambda loss, rows: costs.scaled(loss, rows**0.5), id="as so many people"),
        pytest.param(lambda loss, rows: costs.scaled(loss, max(rows - 1, 1)), id="one row too few"),
    ],
)
def test_a_group_that_is_charged_too_little_is_caught(
    mutant: Callable[[Loss, int], Loss], monkeypatch: pytest.MonkeyPatch
) -> None:
    releases: Releases = [(["0"], [GaussianMu(0.1)]), (["1"], [GaussianMu(0.2)]), (PARTIES, [GaussianMu(0.1)])]
    real = max(compose(paid(releases, one)).delta(0.5) for one in placements(3))
    monkeypatch.setattr(costs, "group_loss", mutant)
    charged = price(releases, D, rows_per_person=3)
    assert max(compose(cost.losses).delta(0.5) for cost in charged.values()) < real * (1 - 1e-6)


def test_a_party_that_pays_for_its_own_releases_alone_is_caught() -> None:
    """Without what is read of all parties together, which every row of a person moves."""
    releases: Releases = [(["0"], [GaussianMu(0.1)]), (PARTIES, [GaussianMu(0.1)])]
    own = price([one for one in releases if len(one[0]) == 1], D, rows_per_person=2)
    real = max(compose(paid(releases, one)).delta(0.3) for one in placements(2))
    assert max(compose(cost.losses).delta(0.3) for cost in own.values()) < real


@pytest.mark.parametrize(
    "other",
    [
        PureEpsilon(0.1),
        ZeroConcentrated(0.01),
        ApproximateDP(0.1, 1e-9),
        PrivateSelection(0.1, 1e-8, 0.02, 2, 0.5),
        SlackGaussian(0.1, 1e-9),
        NoGuarantee("none"),
    ],
)
def test_nothing_but_gaussian_losses_is_placed(other: Loss) -> None:
    """Where one loss is of another type, parties that pay unlike are charged everything, as before."""
    releases: Releases = [(["0"], [GaussianMu(0.1)]), (["1"], [other])]
    charged = price(releases, D, rows_per_person=2)
    everything = PlanCost.of([group_loss(GaussianMu(0.1), 2), group_loss(other, 2)], D)
    assert charged == {"0": everything, "1": everything}


# ── several plans ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Plan:
    """A plan's partition, releases, and the delta at which its cost is stated."""

    partition: str
    releases: Releases
    delta: float = D

    def really(self, placement: Placement) -> Totals:
        """Return each quantity that a person of this placement pays, in closed form: Gaussian or pure losses."""
        losses = paid(self.releases, placement)
        squares, rho = (sum(each) for each in zip(*map(_added, losses), strict=True)) if losses else (0.0, 0.0)
        spends = self.delta if any(isinstance(one, GaussianMu) for one in losses) else 0.0
        return Totals(squares, rho, 0.0, compose(losses).epsilon(spends), spends)


def _added(loss: Loss) -> tuple[float, float]:
    """Return mu^2 and rho of a Gaussian or pure loss."""
    if isinstance(loss, GaussianMu):
        return loss.mu**2, loss.mu**2 / 2
    assert isinstance(loss, PureEpsilon)
    return mu_of_pure(loss.epsilon) ** 2, rho_of_pure(loss.epsilon)


Plans = Sequence[Plan]


def summed(plans: Plans, rows: int) -> SummedHistory:
    history = [(one.partition, price(one.releases, one.delta, rows_per_person=rows)) for one in plans]
    whole, step_by_step = SummedHistory.of(history, groups=rows > 1), SummedHistory(groups=rows > 1)
    for one in history:
        step_by_step = step_by_step.with_plan(*one)
    assert set(step_by_step.rows()) == set(whole.rows())
    return whole


def uncovered(plans: Plans, rows: int) -> list[Any]:
    """Return the placements that no bound that is compared with a cap covers in every quantity that adds up."""
    bounds = [one.totals for one in summed(plans, rows).rows()]
    partitions = sorted({one.partition for one in plans})
    found = []
    for places in itertools.product(*(list(placements(rows)) for _ in partitions)):
        where = dict(zip(partitions, places, strict=True))
        really = Totals(*map(sum, zip(*(one.really(where[one.partition]) for one in plans), strict=True)))
        if not any(
            all(mine <= most * (1 + 1e-9) for mine, most in zip(really, bound, strict=True)) for bound in bounds
        ):
            found.append(where)
    return found


a_pure_plan = st.builds(
    lambda partition, parties, epsilon: Plan(partition, [(parties, [PureEpsilon(epsilon)])]),
    st.sampled_from(["even", "by-site"]),
    some_parties,
    st.sampled_from([0.05, 0.2]),
)
a_gaussian_plan = st.builds(Plan, st.sampled_from(["even", "by-site"]), gaussian_releases, st.sampled_from([1e-7, D]))
some_plans = st.lists(st.one_of(a_gaussian_plan, a_gaussian_plan, a_pure_plan), min_size=1, max_size=4)


@given(plans=some_plans, rows=st.integers(2, 3))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_every_placement_is_covered_by_one_bound(plans: Plans, rows: int) -> None:
    """Whatever plans were chosen, one filter's sum bounds the person's: so on every path of an adaptive choice."""
    assert uncovered(plans, rows) == []


APART = (Plan("even", [(["0"], [GaussianMu(0.1)])]), Plan("even", [(["1"], [GaussianMu(0.1)])]))
OF_TWO_KINDS = (Plan("even", [(["0"], [PureEpsilon(0.2)])]), Plan("even", [(["1"], [GaussianMu(0.1)])]))


def test_the_examples_are_covered() -> None:
    assert uncovered(APART, 2) == uncovered(OF_TWO_KINDS, 2) == []


def test_each_party_judged_by_itself_is_caught() -> None:
    """A person in both parties pays both plans, in a filter that each party alone does not need."""
    by_party = [
        Totals.of([cost]) for one in OF_TWO_KINDS for cost in price(one.releases, D, rows_per_person=2).values()
    ]
    placement = {"0": 1, "1": 1, "2": 0}
    really = Totals(*map(sum, zip(*(one.really(placement) for one in OF_TWO_KINDS), strict=True)))
    assert not any(all(mine <= most for mine, most in zip(really, bound, strict=True)) for bound in by_party)


def test_deltas_of_plans_that_read_other_parties_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plans that read one party each: basic sums of a person in both have the deltas of both."""
    monkeypatch.setattr(spending, "_common_part", lambda worst, gaussian: Totals())
    monkeypatch.setattr(spending, "_own_part", lambda totals, gaussian: totals)
    assert uncovered(APART, 2)


def test_plans_of_different_partitions_add_up_and_of_one_do_not() -> None:
    """Training parties and held-out rows: of one partition the dearer one is charged, of two both are."""
    one = [Plan("even", [(["0"], [GaussianMu(0.3)])]), Plan("even", [(["1"], [GaussianMu(0.4)])])]
    two = [one[0], Plan("by-site", one[1].releases)]
    (same,), (other,) = summed(one, 2).rows(), summed(two, 2).rows()
    assert same.totals.mu_squared == pytest.approx(4 * 0.16)
    assert other.totals.mu_squared == pytest.approx(4 * 0.25)


@pytest.mark.parametrize(("rows", "before", "now"), [(2, 1.3591, 0.9347), (5, 3.7233, 2.5327)])
def test_a_measured_run_costs_a_person_what_its_dearest_party_pays(rows: int, before: float, now: float) -> None:
    """Training and measuring at epsilon 0.5 and delta 1e-7 each, read at 1e-6; before, every party paid for both."""
    mu = mu_from_epsilon_delta(0.5, 1e-7)
    releases: Releases = [(["0", "1"], [GaussianMu(mu)]), (["test"], [GaussianMu(mu)])]
    history = SummedHistory.of([("even", price(releases, 1e-7, rows_per_person=rows))], groups=True)
    assert spent(history, D).epsilon == pytest.approx(epsilon_of_mu(rows * mu, D), rel=1e-9)
    assert spent(history, D).epsilon == pytest.approx(now, abs=5e-4)
    assert epsilon_of_mu(rows * mu * 2**0.5, D) == pytest.approx(before, abs=5e-4)


def test_an_account_of_groups_admits_and_repeats_alike() -> None:
    """What is admitted one by one is what is told at once, and is within the cap."""
    cap = FilterCap(3.0, D, reserved=1 / 16)
    measured: Releases = [(["0", "1"], [GaussianMu(0.1)]), (["test"], [GaussianMu(0.05)])]
    pure: Releases = [(["0", "1"], [PureEpsilon(0.1)])]
    mixed: Releases = [(["0"], [GaussianMu(0.1)]), (["1"], [PureEpsilon(0.1)])]
    for releases in (measured, pure, mixed):
        plan = ("even", price(releases, 1e-8, rows_per_person=2))
        count, history = repeats_left(SummedHistory(groups=True), plan, cap), SummedHistory(groups=True)
        assert 2 < count < 200
        for _ in range(count):
            assert apply_filter(history, plan, cap).admitted
            history = history.with_plan(*plan)
        assert not apply_filter(history, plan, cap).admitted
        assert status(history, cap).admitted
        assert repeats_left(history, plan, cap) == 0


def test_a_party_that_is_read_for_the_first_time_has_paid_what_everybody_has() -> None:
    """A pure plan of one party is everybody's: what fits after it is what is admitted, whichever party comes next."""
    cap = FilterCap(3.0, D, reserved=1 / 16)
    history = SummedHistory(groups=True)
    for _ in range(3):
        history = history.with_plan("even", price([(["0"], [PureEpsilon(0.05)])], 0.0, rows_per_person=2))
    plan = ("even", price([(["1"], [GaussianMu(0.1)])], 1e-8, rows_per_person=2))
    count = repeats_left(history, plan, cap)
    assert count > 1
    for _ in range(count):
        assert apply_filter(history, plan, cap).admitted
        history = history.with_plan(*plan)
    assert not apply_filter(history, plan, cap).admitted
