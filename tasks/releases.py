"""The steps of releases: the charge, what reads rows behind the door, and what the server makes of it."""

from contextlib import suppress

from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

from dpalgos.guarantees import rounded_up
from dpalgos.secure.rounds import Stage
from storage.refs import ReleaseRef, ShardRef
from tasks.accounts.reports import low_budget
from tasks.planning.column_statistics import SynthesisPlan, SynthesisRequest
from tasks.planning.configuration import Json
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.rows import Shards
from tasks.release.admission import ChargedPlan
from tasks.release.door import charge_plan, combine, make_release
from tasks.release.drawn_rows import SyntheticRows, draw
from tasks.release.metrics import Evaluation, measure
from tasks.release.rounds import Rounds
from tasks.runtime.events import Event, account_resource, announce, log_event
from tasks.runtime.progress import report_progress
from tasks.runtime.steps import RETRIES, is_inline, step
from tasks.runtime.stores import open_releases
from tasks.tracking.artifacts import show_budget


@step(task_run_name="charge {plan.system}", cached=False)
def charge(plan: ChargedPlan, shards: Shards) -> Json:
    """Charge a run's releases; a repetition is free. Never cached: the ledger itself remembers."""
    outcome = charge_plan(plan, shards.all)
    made = "release" if outcome["charged"] == 1 else "releases"
    report_progress("budget", f"{outcome['charged']} {made} charged, {outcome['already_charged']} charged before")
    dataset, account = shards.training[0].dataset, shards.training[0].dataset.account
    paid = {what: str(outcome[what]) for what in ("charged", "already_charged")}
    log_event("unitball.plan.charged", dataset=dataset.name, account=account, details={"system": plan.system, **paid})
    if not is_inline():
        _log(f"{outcome['charged']} {made} charged to account {account}{_spending(outcome)}")
        show_budget(dataset, outcome)
        if outcome["charged"] and (low := low_budget(account)):
            announce(Event.BUDGET_LOW, account_resource(account), low)
    return outcome


def _log(text: str) -> None:
    """Write a line into the log of a flow run, whose own lines say only that tasks have ended."""
    # A task that is called as a function has no flow run, and so no log.
    with suppress(MissingContextError):
        get_run_logger().info(text)


def _spending(outcome: Json) -> str:
    """Return what a charge has made of the account's epsilon; nothing where nothing has a cap or was charged."""
    before, after = outcome.get("spent_before"), outcome.get("spent_after")
    if not isinstance(before, float) or not isinstance(after, float):
        return ""
    return f": epsilon {rounded_up(before, 4):g} to {rounded_up(after, 4):g} at the cap's delta"


def _measured(evaluation: Evaluation) -> str:
    """Return the numbers of an evaluation that a log has room for."""
    known = [name for name in ("accuracy", "balanced_accuracy", "r2", "mae") if evaluation.metrics.is_known(name)]
    return ", ".join(f"{name} {evaluation.metrics[name]:.4g}" for name in known) or "nothing that can be measured"


def _stored(release: PlannedRelease, *_: object) -> bool:
    return open_releases().exists(release.key)


@step(task_run_name="{release.label}", stored=_stored, **RETRIES)
def reduce_dimension(release: PlannedRelease, shards: list[ShardRef], upstream: list[ReleaseRef]) -> ReleaseRef:
    """Learn a basis from rows and release it, or make a public map, which reads none."""
    reference = make_release(release, shards, upstream)
    report_progress("reduction", release.label)
    return reference


@step(task_run_name="{release.label}", stored=_stored, **RETRIES)
def train_model(release: PlannedRelease, shards: list[ShardRef], upstream: list[ReleaseRef]) -> ReleaseRef:
    """Train on rows, seen through a released basis where there is one, and release the model."""
    reference = make_release(release, shards, upstream)
    report_progress("training", release.label)
    return reference


@step(task_run_name="{release.label}", stored=_stored, **RETRIES)
def measure_model(release: PlannedRelease, shards: list[ShardRef], upstream: list[ReleaseRef]) -> ReleaseRef:
    """Release how well a model does on held-out rows, seen through all that its rows pass."""
    reference = make_release(release, shards, upstream)
    report_progress("measuring", release.label)
    return reference


@step(task_run_name="{release.label}: open the rounds", stored=_stored, **RETRIES)
def open_rounds(release: PlannedRelease, shards: list[ShardRef]) -> str:
    """Declare and charge, then fix the session's public parameters."""
    return Rounds(release).open(shards)


@step(task_run_name="{release.label}: {stage} {block}", stored=_stored, **RETRIES)
def answer(
    release: PlannedRelease,
    stage: Stage,
    block: list[int],
    shards: list[ShardRef],
    upstream: list[ReleaseRef],
    message: str,
) -> list[str]:
    """Parties: answer what the server asks in a stage; their own shards are given to the stage that masks alone."""
    return Rounds(release).answer(stage, block, shards, upstream)


@step(task_run_name="{release.label}: decide on {stage}", stored=_stored, **RETRIES)
def decide(release: PlannedRelease, stage: Stage, sent: list[list[str]]) -> str:
    """Server: decide once and for all on the answers of a stage, and ask the next."""
    return Rounds(release).decide(stage, sent)


@step(task_run_name="{release.label}", stored=_stored, **RETRIES)
def open_sum(release: PlannedRelease, sent: list[list[str]]) -> ReleaseRef:
    """Server: open the sum, make the artefact of it and store that as the release."""
    reference = Rounds(release).release(sent)
    report_progress("secure sum", release.label)
    return reference


@step(task_run_name="{combination.label}", stored=_stored)
def aggregate(combination: PlannedCombination, releases: list[ReleaseRef]) -> ReleaseRef:
    """Combine releases into one; takes releases and returns a release, and gets no shard."""
    reference = combine(combination, releases)
    report_progress("aggregation", combination.label)
    return reference


@step(task_run_name="evaluate {plan.system}")
def evaluate(
    plan: RunPlan, models: dict[str, list[ReleaseRef]], measured: dict[str, ReleaseRef], shards: Shards
) -> Evaluation:
    """Report the metrics of the released models, each given by name with the releases that its rows pass through."""
    evaluation = measure(plan, models, measured, shards)
    if not is_inline():
        _log(f"{plan.system} on {evaluation.measured_on or 'no rows'}: {_measured(evaluation)}")
    report_progress("evaluation", plan.system)
    return evaluation


@step(task_run_name="draw rows of {plan.dataset.name}", cached=False)
def draw_rows(plan: SynthesisPlan, request: SynthesisRequest) -> SyntheticRows:
    """Draw rows from a stored synthesis, and register them as a derived data set; no row is read."""
    found = draw(plan, request)
    report_progress("drawing", f"{found.rows} rows")
    return found
