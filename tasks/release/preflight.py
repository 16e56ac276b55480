"""Preflight: what a run is refused for, and the largest epsilon that fits, told from its plan before it starts."""

from typing import cast

from dpalgos.parameters import ParameterError
from dpalgos.secure.primitives import SecureAggregationError
from storage.errors import InputError, OverspendError, RefusedError
from tasks.accounts.ledger import open_ledger
from tasks.accounts.room import OneMore, largest_that_fits, most_that_fits, one_more_run
from tasks.accounts.terms import tenth
from tasks.planning.configuration import TrainingConfig
from tasks.preparation.prepare import AwaitingPartition, Prepared, prepare, whole
from tasks.release.admission import require_plan_admissible
from tasks.runtime.stores import open_catalog

# A replicate that nobody asks for, so that what was paid already is no answer.
_ANOTHER = 10**18


def charged_before(prepared: Prepared) -> str | None:
    """Return the private account that has paid for all that a run releases, as by one that was stopped; or None."""
    if isinstance(prepared, AwaitingPartition):
        return None
    paid = {release.key: release.account for release in prepared.plan.releases if release.reads_rows}
    if not paid or open_ledger().charged(paid) != paid.keys():
        return None
    account = next(iter(paid.values()))
    return account if open_ledger().account(account).private else None


def require_feasible(config: TrainingConfig) -> Prepared:
    """Return the plan of a run, or refuse it for any reason that is known without reading rows and without an engine.

    Checked are the data set, names, parameters and their ranges, what does not fit the number of rows or features, what
    may not touch private rows, and whether the account has enough left. What only the rows' content decides (a
    partition by label) is left to the run.

    Returns
    -------
    Prepared
        What would run; an :class:`~tasks.preparation.prepare.AwaitingPartition` where only the rows' content decides.

    Raises
    ------
    InputError, ParameterError
        Naming every fault.
    RefusedError
        If the plan may not read private rows, or exceeds the cap, and has no other fault. In the second case the
        message begins with the largest epsilon of such a run that would be admitted.
    """
    prepared = prepare(config)
    if isinstance(prepared, AwaitingPartition):
        return prepared
    try:
        require_plan_admissible(prepared.plan, prepared.shards.all)
    except OverspendError as refusal:
        account = open_catalog().account_of(config.dataset)
        if config.epsilon is None or config.horizon is not None:
            # All nights are one charge of Gaussian noise.
            room = one_more_run(account.name)
            raise refusal.leaving("" if room is None else room.said) from None
        left = _left(prepared.config)
        said = left.said
        if account.cap is not None and left.delta > account.cap.delta:
            said += f", which is above the cap's: choose --delta {tenth(account.cap.delta):g}"
        said += f"; epsilon {prepared.config.epsilon:g} does not fit"
        raise refusal.leaving(said, left.epsilon) from None
    return prepared


def _left(config: TrainingConfig) -> OneMore:
    return OneMore(epsilon=_largest(config), delta=config.stated_delta, run=_run_of(config))


def _run_of(config: TrainingConfig) -> str:
    return f"one more run of {config.system}"


def largest_epsilon(config: TrainingConfig) -> OneMore:
    """Return the largest epsilon of one more run that would be admitted now, to four digits, rounded down.

    Found by planning such runs and asking the ledger, so that it is the number of the run's own option, for any unit of
    the account: this one is admitted, and a thousandth more is not.

    Parameters
    ----------
    config : TrainingConfig
        Without epsilon, or with the most that is looked for.

    Raises
    ------
    InputError, ParameterError, RefusedError
        Where no such run may be made at any epsilon.
    """
    cap = open_catalog().account_of(config.dataset).cap
    if cap is None:
        raise InputError(f"{config.dataset} is public: its runs have no cap, so any epsilon fits")
    most = most_that_fits(cap.epsilon)
    tried = prepare(config.model_copy(update={"epsilon": config.epsilon or most, "replicate": _ANOTHER})).config
    delta = tried.stated_delta
    if delta > cap.delta:
        raise InputError(f"delta {delta:g} is above the cap's: choose --delta {tenth(cap.delta):g}")
    try:
        prepared = require_feasible(tried)
    except OverspendError as refusal:
        return OneMore(epsilon=refusal.fits, delta=delta, run=_run_of(config))
    fits = 0.0 if isinstance(prepared, AwaitingPartition) else cast(float, tried.epsilon)
    return OneMore(epsilon=fits, delta=delta, run=_run_of(config))


def _largest(config: TrainingConfig) -> float:
    """Return the largest epsilon below a refused one that is admitted.

    A run at another epsilon may hold out other rows and take other parts, which the ledger cannot know.
    """

    def fits(epsilon: float) -> bool:
        try:
            tried = whole(prepare(config.model_copy(update={"epsilon": epsilon})))
            require_plan_admissible(tried.plan, tried.shards.all)
        except (InputError, ParameterError, RefusedError, SecureAggregationError):
            return False
        return True

    # What charges alone admit is at most as much, and mostly equal: it is found without a plan.
    near = one_more_run(open_catalog().account_of(config.dataset).name, config.stated_delta)
    return largest_that_fits(fits, cast(float, config.epsilon), None if near is None else near.epsilon)
