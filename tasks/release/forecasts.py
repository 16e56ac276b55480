"""Forecast of what schedules cost until a cap is reached: how many runs still fit, and the day of the first refusal.

Nothing here is charged, and nothing is promised: the ledger decides when a run asks. What is said errs on the safe
side. Each run of a clock is taken to find a new version of its data set, which is charged in full and added to what
rows have paid most that were divided otherwise, and every schedule that starts on a new version starts then, too; equal
runs of one moment are one. Each model is taken to be compared with a champion, where that may be charged. Runs in
between, by hand or on versions that no clock sees, leave less.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from dpalgos.accounting.costs import allocate
from dpalgos.guarantees import GaussianMu, Guarantee, Numerics
from dpalgos.parameters import ParameterError
from storage.errors import InputError, RefusedError, StorageError
from storage.ledger.charges import PlanRequest, ReleaseCharge
from tasks.accounts.history import BudgetHistory, budget_history
from tasks.accounts.outlook import Spending, spending
from tasks.accounts.terms import relation_of
from tasks.datasets.registration import find_dataset
from tasks.datasets.schedules import Schedule, sound_schedules
from tasks.planning.configuration import TrainingConfig
from tasks.preparation.prepare import AwaitingPartition, PreparedRun
from tasks.release.admission import request_of
from tasks.release.preflight import require_feasible
from tasks.runtime.stores import open_catalog

# Prefect looks no farther.
MOST_DATES = 1000
# Dates of all schedules of an account together that are looked at.
_MOST_RUNS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast of one schedule.

    Attributes
    ----------
    runs : int or None
        How many of its runs fit if nothing else runs; None where its runs have no separate charge.
    refused : datetime or None
        Its first run that is refused, if all schedules of its account run and each clock finds a new version: its next
        one, where that has a problem. None where none is within the forecast's dates.
    admitted : int
        Its runs before that day.
    problem : str
        Why the next run fails already; empty where it does not.
    """

    runs: int | None = None
    refused: datetime | None = None
    admitted: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountForecast:
    """The forecast of an account whose schedules run.

    Attributes
    ----------
    account : str
    epsilon, cap, delta : float
        Spent after the runs that fit, at the cap's delta; not rounded. The cap is the soft limit where there is
        one.
    promised : float
        The cap, without regard to the soft limit.
    runs : int
        How many fit, of all schedules together, in the order of their dates.
    until : datetime or None
        The last of them.
    refused : (Schedule, datetime) or None
        The first that does not fit.
    """

    account: str
    epsilon: float
    cap: float
    delta: float
    promised: float
    runs: int
    until: datetime | None
    refused: tuple[Schedule, datetime] | None


@dataclass(frozen=True, slots=True)
class _Priced:
    """A schedule, and what one of its runs asks the ledger for; of a horizon, what all of its nights do."""

    schedule: Schedule
    request: PlanRequest | None
    problem: str = ""
    paid: bool = False
    left: int = 0
    again: bool = False
    comparison: PlanRequest | None = None

    @property
    def requests(self) -> list[PlanRequest]:
        """Charges of one of its runs, plan by plan: the training, and the comparison with the champion."""
        return [one for one in (self.request, self.comparison) if one is not None]

    @property
    def once(self) -> bool:
        return self.schedule.config.horizon is not None

    def charged_in(self, night: int) -> bool:
        """Whether the night of this number, from 0, is the first of a horizon that is charged.

        People are in each horizon again, and what horizons cost them is added up. Rows are in one of them, so that what
        a later horizon costs is no more than what the first did.
        """
        if night == 0 and not self.paid:
            return True
        horizon = self.schedule.config.horizon or 1
        return self.again and night >= self.left and (night - self.left) % horizon == 0


def _compared(schedule: Schedule, prepared: PreparedRun, others: Sequence[Schedule]) -> PlanRequest | None:
    """Return what comparing one of its models with the champion is charged: the highest price of all that say one."""
    alike = [one for one in others if (one.dataset, one.config.system) == (schedule.dataset, schedule.config.system)]
    epsilon = max((one.comparison_epsilon for one in alike if one.comparison_epsilon is not None), default=None)
    held_out = prepared.shards.held_out
    if epsilon is None or held_out is None or not held_out.dataset.private:
        return None
    delta = prepared.config.stated_delta
    proved = Guarantee(
        allocate([GaussianMu], [1.0], epsilon, delta).losses,
        neighbours=relation_of(schedule.dataset),
        numerics=Numerics.EXACT,
    )
    charge = ReleaseCharge("a comparison", (held_out.party,), proved.to_json(), "a comparison")
    return PlanRequest(held_out.dataset.account, _to_come(schedule), (charge,), delta, "a comparison")


def _to_come(schedule: Schedule) -> str:
    return f"versions to come, {schedule.full_name}"


def _priced(schedule: Schedule, others: Sequence[Schedule]) -> _Priced:
    try:
        prepared = require_feasible(schedule.config)
        if isinstance(prepared, AwaitingPartition):
            return _Priced(schedule, None)
        plan = prepared.plan
        request, nights = request_of(plan), schedule.config.horizon
        if request is not None:
            # A version to come is divided anew: who pays least here may be who has paid most elsewhere. What equal
            # plans cost in one partition that nobody has is what they cost in one each.
            request = replace(request, partition=_to_come(schedule))
        if request is None or nights is None:
            compared = None if request is None else _compared(schedule, prepared, others)
            return _Priced(schedule, request, comparison=compared)
        horizons, person = open_catalog().horizons(schedule.dataset), find_dataset(schedule.dataset).person
        came = len(horizons[-1].arrivals) if horizons and not horizons[-1].full else 0
        paid = request_of(plan, unpaid=True) is None
        return _Priced(schedule, request, paid=paid, left=nights - came, again=bool(person))
    except (InputError, ParameterError, RefusedError) as refusal:
        return _Priced(schedule, None, f"The next run is refused: {refusal}")
    except StorageError as error:
        return _Priced(schedule, None, f"The next run would fail: {error}")


def _moments(schedules: Sequence[_Priced]) -> Iterator[tuple[datetime, _Priced]]:
    """Yield the runs of one account in the order of their dates, equal ones of one moment once."""
    clocks = [one for one in schedules if one.schedule.cron is not None]
    count = min(MOST_DATES, max(1, _MOST_RUNS // max(len(clocks), 1)))
    dates = {one.schedule.full_name: one.schedule.next_dates(count) for one in clocks}
    # Where the dates of one clock end, those of the others say nothing more of all together.
    last = min((found[-1] for found in dates.values() if found), default=None)
    fired: dict[datetime, list[_Priced]] = {}
    for one in clocks:
        for date in dates[one.schedule.full_name]:
            if last is not None and date <= last:
                fired.setdefault(date, []).append(one)
    nights: list[tuple[TrainingConfig, int]] = []
    for date in sorted(fired):
        named = {one.schedule.dataset for one in fired[date]}
        waiting = [one for one in schedules if one.schedule.on_new_version and one.schedule.dataset in named]
        seen = list[TrainingConfig]()
        for moment in (*fired[date], *waiting):
            config = moment.schedule.config
            if config in seen:
                continue
            seen.append(config)
            if not moment.once:
                yield date, moment
                continue
            # Two schedules of one horizon bring the same nights.
            night = next((count for known, count in nights if known == config), 0)
            nights = [entry for entry in nights if entry[0] != config] + [(config, night + 1)]
            if moment.charged_in(night):
                yield date, moment


def _repeats(spent: Spending, one: _Priced) -> int:
    """Return how many runs of a schedule fit one after the other, each with its comparison."""
    alone = 0 if one.request is None else spent.repeats(one.request)
    if one.comparison is None:
        return alone
    return spent.admitted(one.requests * min(alone, _MOST_RUNS)) // len(one.requests)


def _next_failure(one: _Priced) -> datetime | None:
    """Return when a schedule starts next, whose next run fails."""
    waits = not one.problem or one.schedule.paused or one.schedule.cron is None
    return None if waits else one.schedule.next_dates(1)[0]


def forecast(schedules: Sequence[Schedule]) -> tuple[dict[str, Forecast], list[AccountForecast]]:
    """Return what is to be expected of each schedule, by its full name, and of each account that has a cap.

    Parameters
    ----------
    schedules : sequence of Schedule
        All that stand; those that are paused, or train nothing, are taken not to run.
    """
    priced = [_priced(one, schedules) for one in schedules if one.trains]
    found = {one.schedule.full_name: Forecast(problem=one.problem, refused=_next_failure(one)) for one in priced}
    accounts: dict[str, list[_Priced]] = {}
    for one in priced:
        if one.request is not None:
            accounts.setdefault(one.request.account, []).append(one)
    wholes = []
    for account, ours in accounts.items():
        spent = spending(account)
        if spent is None:
            continue
        for one in ours:
            if not one.once and one.request is not None:
                found[one.schedule.full_name] = Forecast(runs=_repeats(spent, one))
        running = [one for one in ours if not one.schedule.paused]
        moments = list(_moments(running))
        requests = [request for _, one in moments for request in one.requests]
        ends = list(itertools.accumulate(len(one.requests) for _, one in moments))
        # A run fits where all that it is charged does.
        fits = bisect_right(ends, spent.admitted(requests))
        for number, (date, moment) in enumerate(moments):
            name = moment.schedule.full_name
            before = found[name]
            if number < fits:
                found[name] = Forecast(runs=before.runs, admitted=before.admitted + 1)
            elif before.refused is None:
                found[name] = Forecast(runs=before.runs, admitted=before.admitted, refused=date)
        if running:
            wholes.append(
                AccountForecast(
                    account=account,
                    epsilon=spent.epsilon(requests[: ends[fits - 1] if fits else 0]),
                    cap=spent.cap.epsilon,
                    delta=spent.cap.delta,
                    promised=spent.now.promised,
                    runs=fits,
                    until=moments[fits - 1][0] if fits else None,
                    refused=(moments[fits][1].schedule, moments[fits][0]) if fits < len(moments) else None,
                )
            )
    return found, wholes


def budget_histories() -> list[BudgetHistory]:
    """Return the history of every account that a registered data set pays from, private ones first.

    The day from which runs are refused is that of the first scheduled run of the account, by the forecast that
    schedules are shown with (:func:`forecast`). Runs that are started by hand have no date, and are not expected.
    """
    paying: dict[str, list[str]] = {}
    for dataset in open_catalog().datasets():
        paying.setdefault(dataset.account, []).append(dataset.name)
    current = sound_schedules().sound
    expected, _ = forecast(current)
    refused: dict[str, datetime] = {}
    for schedule in current:
        at = expected[schedule.full_name].refused if schedule.trains else None
        if at is not None:
            account = open_catalog().account_of(schedule.dataset).name
            refused[account] = min(at, refused.get(account, at))
    histories = [
        budget_history(account, sorted(set(names))).model_copy(
            update={"refused_from": f"{refused[account]:%Y-%m-%d}" if account in refused else None}
        )
        for account, names in paying.items()
    ]
    return sorted(histories, key=lambda one: (one.cap is None, one.account))
