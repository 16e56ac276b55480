"""What schedules will cost until a cap: the accountant's number, and days that follow from it, on the safe side."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dpalgos.accounting.costs import allocate
from dpalgos.guarantees import GaussianMu, Guarantee
from flows.federated_training import chain_inline
from storage.errors import OverspendError
from storage.ledger.charges import PlanRequest, ReleaseCharge
from tasks.accounts.ledger import open_ledger
from tasks.accounts.outlook import spending
from tasks.datasets.registration import ensure_registered
from tasks.datasets.schedules import Schedule, set_schedule
from tasks.planning.asked import FIELDS, asked_config, asked_of
from tasks.planning.configuration import Json, TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.preparation.prepare import prepare, whole
from tasks.release.admission import admit_plan, request_of
from tasks.release.forecasts import _Priced, _priced, budget_histories, forecast
from tasks.runtime.stores import open_catalog
from tests.support.chains import charges, ingest_private

RUN = {"dataset": "clinic", "algorithm": "noisy-gd", "parties": 2, "test_fraction": 0.0, "evaluation": False}


@pytest.fixture
def clinic(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=2.0)


def schedule(name: str, cron: str | None = "0 3 * * *", epsilon: float = 0.5, **more: Any) -> Schedule:
    config = TrainingConfig(**{**RUN, "epsilon": epsilon, **more.pop("config", {})})
    return Schedule(name=name, config=config, cron=cron, **more)


def plan_of(config: TrainingConfig) -> RunPlan:
    return whole(prepare(config)).plan


def charge(config: TrainingConfig) -> Json:
    return admit_plan(plan_of(config), whole(prepare(config)).shards.all)


def charged(config: TrainingConfig, times: int) -> None:
    for replicate in range(1, times + 1):
        charge(config.model_copy(update={"replicate": replicate}))


@pytest.mark.usefixtures("clinic")
def test_one_schedule_is_refused_on_the_day_after_the_runs_that_fit() -> None:
    one = schedule("nightly")
    (expected,), (account,) = [*forecast([one])[0].values()], forecast([one])[1]
    assert expected.runs is not None
    assert expected.runs > 2
    assert expected.admitted == account.runs == expected.runs
    dates = one.next_dates(expected.runs + 1)
    assert (account.until, expected.refused) == (dates[-2], dates[-1])
    assert account.refused == (one, dates[-1])
    assert 0 < account.epsilon <= account.cap == 2.0
    # The ledger agrees: so many are admitted, and no more.
    charged(one.config, expected.runs)
    with pytest.raises(OverspendError):
        charge(one.config.model_copy(update={"replicate": expected.runs + 1}))
    after = spending("clinic")
    assert after is not None
    assert after.epsilon([]) == pytest.approx(account.epsilon, rel=1e-9)
    found, accounts = forecast([one])
    assert "The next run is refused" in found[one.full_name].problem
    assert found[one.full_name].refused == one.next_dates(1)[0]
    assert accounts == []


@pytest.mark.usefixtures("clinic")
def test_budgets_and_schedules_name_one_day() -> None:
    """The attack of a user: one command said 2026-11-29 and the other 2027-01-19, of one account."""
    one = schedule("nightly")
    charged(one.config, 2)
    (before,) = budget_histories()
    assert before.runs_left
    assert before.refused_from is None, "runs by hand have no date"
    set_schedule(one)
    expected, (account,) = forecast([one])
    assert account.refused is not None
    (told,) = budget_histories()
    assert told.refused_from == f"{account.refused[1]:%Y-%m-%d}" == f"{expected[one.full_name].refused:%Y-%m-%d}"


@pytest.mark.usefixtures("clinic")
def test_schedules_of_one_account_are_refused_earlier_than_each_alone() -> None:
    """Each is told what fits alone, and the day on which they all are refused together."""
    early, late = schedule("early", "0 1 * * *"), schedule("late", "0 2 * * *", epsilon=0.6)
    alone = {one.name: forecast([one])[0][one.full_name] for one in (early, late)}
    found, (account,) = forecast([early, late])
    for timed in (early, late):
        both, single = found[timed.full_name], alone[timed.name]
        assert both.runs == single.runs
        assert both.refused is not None
        assert single.refused is not None
        assert both.refused < single.refused, timed.name
    assert account.runs < min(one.runs for one in alone.values() if one.runs is not None) * 2
    # What is paused costs nothing and is told what would fit.
    found, (account,) = forecast([early.model_copy(update={"paused": True}), late])
    assert found[late.full_name] == alone["late"]
    assert (found[early.full_name].runs, found[early.full_name].refused) == (alone["early"].runs, None)


@pytest.mark.usefixtures("clinic")
def test_runs_on_versions_to_come_are_added_to_what_the_test_rows_have_paid() -> None:
    """Comparisons charge test rows alone; a version to come divides anew, and whoever was held out may train then."""
    one = schedule("nightly", epsilon=0.3, config={"test_fraction": 0.3, "evaluation": False})
    asked = request_of(plan_of(one.config))
    assert asked is not None
    guarantee = Guarantee((GaussianMu(0.3),)).to_json()
    comparison = PlanRequest("clinic", asked.partition, (ReleaseCharge("c", ("test",), guarantee, "c"),), 1e-6, "c")
    open_ledger().charge(comparison, {})
    found, (account,) = forecast([one])

    def admits(number: int) -> bool:
        releases = tuple(replace(release, key=f"{number} {release.key}") for release in asked.releases)
        try:
            open_ledger().charge(replace(asked, releases=releases, partition=f"version {number}"), {})
        except OverspendError:
            return False
        return True

    admitted = next(number for number in itertools.count() if not admits(number))
    assert admitted > 2
    assert found[one.full_name].runs == found[one.full_name].admitted == account.runs == admitted


@pytest.mark.usefixtures("clinic")
def test_what_comparisons_with_the_champion_cost_is_told() -> None:
    """Each run's is charged to its test rows, which have paid for its evaluation already."""
    measured = {"test_fraction": 0.3, "evaluation": True}
    one = schedule("nightly", epsilon=0.3, config=measured, comparison_epsilon=0.6)
    (account,) = forecast([one])[1]
    (without,) = forecast([one.model_copy(update={"comparison_epsilon": None})])[1]
    assert 0 < account.runs < without.runs / 2
    asked = request_of(plan_of(one.config))
    assert asked is not None
    loss = allocate([GaussianMu], [1.0], 0.6, asked.delta).losses

    def admits(number: int) -> bool:
        releases = tuple(replace(release, key=f"{number} {release.key}") for release in asked.releases)
        comparison = ReleaseCharge(f"{number}", ("test",), Guarantee(loss).to_json(), "comparison")
        try:
            for charged_together in (releases, (comparison,)):
                open_ledger().charge(replace(asked, releases=charged_together, partition=f"version {number}"), {})
        except OverspendError:
            return False
        return True

    assert account.runs == next(number for number in itertools.count() if not admits(number))
    found = forecast([one])[0][one.full_name]
    assert (found.runs or 0) == found.admitted == 0
    # Of another schedule of the same system each model is compared as well.
    silent = schedule("silent", "0 4 * * *", epsilon=0.2, config=measured)
    assert _priced(silent, [one, silent]).comparison is not None
    assert _priced(silent, [silent]).comparison is None


@pytest.mark.usefixtures("clinic")
def test_equal_runs_of_one_moment_are_one_and_others_are_not() -> None:
    """Exactly-once holds by identity: what two schedules ask alike is charged once, whatever they are called."""
    one = schedule("one")
    twin = schedule("twin", on_new_version=True)
    other = schedule("other", epsilon=0.6)
    (alone,) = forecast([one])[1]
    assert forecast([one, twin])[1][0].runs == alone.runs
    assert forecast([one, other])[1][0].epsilon != alone.epsilon
    keys = [sorted(release.key for release in plan_of(each.config).releases) for each in (one, twin, other)]
    assert keys[0] == keys[1]
    assert not set(keys[0]) & set(keys[2])
    outcomes = [charge(each.config) for each in (one, twin, other)]
    assert [bool(outcome["charged"]) for outcome in outcomes] == [True, False, True]
    # At another hour the same words meet another version, where each run finds one.
    noon = schedule("noon", "0 12 * * *")
    (both,) = forecast([one, noon])[1]
    assert both.until is not None
    (now,) = forecast([one])[1]
    assert now.until is not None
    assert both.until < now.until


@pytest.mark.usefixtures("clinic")
def test_what_starts_on_a_new_version_starts_with_each_clock_of_its_data_set() -> None:
    clock, trigger = schedule("clock"), schedule("trigger", None, epsilon=0.6, on_new_version=True)
    (alone,) = forecast([clock])[1]
    found, (both,) = forecast([clock, trigger])
    assert both.until is not None
    assert alone.until is not None
    assert both.until < alone.until
    assert found[trigger.full_name].refused is not None
    # No clock, no day: but how many fit is known.
    found, (only,) = forecast([trigger])
    assert found[trigger.full_name].runs is not None
    assert (only.runs, only.until, only.refused) == (0, None, None)


NIGHTS = {"algorithm": None, "trainer": "class-means", "horizon": 5, "test_fraction": None, "evaluation": True}


@pytest.mark.usefixtures("clinic")
def test_a_horizon_is_charged_in_its_first_night_and_by_one_of_two_schedules() -> None:
    nights = schedule("nights", epsilon=1.0, config=NIGHTS)
    again = schedule("again", "0 4 * * *", epsilon=1.0, config=NIGHTS)
    found, (account,) = forecast([nights, again])
    first = min(one.next_dates(1)[0] for one in (nights, again))
    assert (account.runs, account.until, account.refused) == (1, first, None)
    assert found[nights.full_name].runs is None
    # Both run in one night: it is recorded once, and paid once.
    paid = []
    for timed in (nights, again):
        asked = json.loads(json.dumps(asked_of(timed.config)))
        chain_inline(asked_config({name: asked.get(name) for name in FIELDS}, asked["more"]))
        (horizon,) = open_catalog().horizons("clinic")
        assert [arrival.night for arrival in horizon.arrivals] == [1]
        paid.append((len(charges("clinic")), spending("clinic").epsilon([])))  # type: ignore[union-attr]
    assert paid[0] == paid[1]
    # What is paid already costs nothing more, whatever nights come.
    assert [one.runs for one in forecast([nights, again])[1]] in ([], [0])
    assert "refused" not in forecast([nights])[0][nights.full_name].problem


@pytest.mark.usefixtures("clinic")
def test_a_schedule_whose_next_run_is_refused_says_why_and_hides_no_other() -> None:
    too_much, fine = schedule("too-much", epsilon=50.0), schedule("fine")
    gone = schedule("gone", config={"dataset": "nobody"})
    found, (account,) = forecast([too_much, gone, fine])
    assert "refused" in found[too_much.full_name].problem
    assert "nobody" in found[gone.full_name].problem
    assert found[fine.full_name] == forecast([fine])[0][fine.full_name]
    assert account.runs > 0


@pytest.mark.usefixtures("root")
def test_public_rows_cost_no_account() -> None:
    ensure_registered("iris")
    one = schedule("nightly", config={"dataset": "iris"})
    found, accounts = forecast([one])
    assert (found[one.full_name].runs, found[one.full_name].problem, accounts) == (None, "", [])


@pytest.mark.usefixtures("clinic")
def test_how_many_of_several_plans_fit_is_what_the_ledger_would_say() -> None:
    """The mutant that counts one more is caught: it is admitted one by one, too."""
    configs = [TrainingConfig(**RUN, epsilon=epsilon) for epsilon in (0.7, 0.2, 0.9, 0.4, 1.1, 0.3)] * 3
    account = spending("clinic")
    assert account is not None
    requests = [request_of(plan_of(config)) for config in configs]
    fits = account.admitted([one for one in requests if one is not None])
    assert 1 < fits < len(configs)
    admitted = 0
    for number, config in enumerate(configs):
        try:
            charge(config.model_copy(update={"replicate": number + 1}))
        except OverspendError:
            break
        admitted += 1
    assert fits == admitted


@pytest.mark.usefixtures("clinic")
def test_a_schedule_that_was_set_begins_after_now() -> None:
    dates, before = set_schedule(schedule("nightly"))
    assert before is None
    assert datetime.now(UTC) < dates[0] <= datetime.now(UTC) + timedelta(days=1, minutes=1)


@pytest.mark.parametrize(("again", "charged"), [(True, [0, 3, 8, 13]), (False, [0])])
def test_a_horizon_of_people_is_charged_anew_when_it_is_over(again: bool, charged: list[int]) -> None:
    """People come into each horizon again; rows do not, and a later horizon costs them no more than the first did."""
    nights = schedule("nights", config=NIGHTS)
    found = [night for night in range(14) if _Priced(nights, None, left=3, again=again).charged_in(night)]
    assert found == charged
    paid = _Priced(nights, None, paid=True, left=3, again=again)
    assert [night for night in range(14) if paid.charged_in(night)] == charged[1:]
