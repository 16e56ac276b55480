"""One algorithm examined by all audits, its figures, and what is kept of it in MLflow."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, Field
from scipy.special import ndtr, ndtri

from dpalgos.audit.experiment import USUAL, AuditOptions, AuditReport, BoundReport, Verdict
from dpalgos.audit.membership import (
    curve_of,
    epsilon_lower_bound_of_guesses,
    guess,
    mu_lower_bound_of_guesses,
    tail_under_approximate_dp,
    tail_under_curve,
)
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Neighbours
from dpalgos.rows import NULL_LABEL, Floats
from tasks.auditing.chain import Chain, ChainReport, audit_chain
from tasks.auditing.systems import MembershipReport, SyntheticRun, audit_system, require_noise
from tasks.planning.configuration import RegisteredName, RelationInForce
from tasks.runtime.plots import BLUE, RED, png_of, styled_figure
from tasks.tracking.models import AUDIT_TAG, AUDITS, VIOLATION
from tasks.tracking.runs import RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Of the coins, those that the output says most of; more guesses are worse ones.
_GUESSED = 0.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OneRunReport(BoundReport):
    """The outcome of an audit from one run.

    Parameters
    ----------
    canaries, guesses, correct : int
        Coins, how many were guessed, and how many rightly.
    lower_mu : float
        That the run is Gaussian-DP with any smaller mu is refuted at the confidence.
    p_value : float
        The largest probability of so many right guesses or more under what is proved, or, where nothing is, claimed.
    """

    canaries: int
    guesses: int
    correct: int
    lower_mu: float
    p_value: float


def audit_in_one_run(
    name: str, options: AuditOptions = USUAL, *, canaries: int = 1000, rows_per_person: int | None = None
) -> OneRunReport:
    """Train a registered system once, on rows that are all canaries, and guess the state of each from its model.

    A canary is a synthetic row of norm 1 in a random direction. Its coin says, under ``replace-one``, whether it is
    that row or its opposite, with the same label; under ``replace-special``, whether it is there or a null record. Its
    score is the margin of the row in the model of its party, or of all, in input coordinates; nothing is learnt from
    other runs. There are four times as many features as canaries a party, so that canaries hardly get in each other's
    way. What a release tells beside the model is not looked at here.

    With ``rows_per_person`` a canary is a person: that row as often as a draw from 1 to so many says, so that a system
    that lets a person with many rows weigh more gives itself away.

    Guarantee
    ---------
    If the run is private as stated, ``p_value`` is at most a with probability at most a: see
    :mod:`dpalgos.audit.membership`. A system that passes is not proved sound: one run is far from tight.

    Parameters
    ----------
    name : str
    options : AuditOptions
        The seed is that of rows, coins and noise: all are synthetic.
    canaries : int
        At least 10.
    rows_per_person : int, optional
        The most rows of a person, at least 1; None: each row is a canary.

    Raises
    ------
    UnknownNameError, ParameterError
        For a name that is not registered, numbers out of range, a system that draws no noise, one whose model is not
        linear in the features of a row, or people where it takes none.
    """
    if canaries < 10:
        raise ParameterError(
            f"{canaries} canaries; an audit from one run needs ten at the least, and hundreds to show much"
        )
    require_noise(name)
    started = time.monotonic()
    rows = -(-canaries // 2)
    neighbours, (epsilon, delta) = options.neighbours or Neighbours.REPLACE_ONE, options.budget()
    seed, confidence = options.seed, options.confidence
    run = SyntheticRun.of(
        name,
        epsilon=epsilon,
        delta=delta,
        rows=rows,
        dimension=4 * rows,
        neighbours=neighbours,
        rows_per_person=rows_per_person,
    )
    random = np.random.default_rng(seed)
    coins = random.choice([-1, 1], 2 * rows)
    directions = random.standard_normal((2 * rows, 4 * rows))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    # Every other canary of either party is of the one class.
    labels = np.arange(2 * rows) // 2 % 2
    features, of_class = coins[:, None] * directions, labels
    if neighbours is Neighbours.REPLACE_SPECIAL:
        features, of_class = np.where(coins[:, None] == 1, directions, 0.0), np.where(coins == 1, labels, NULL_LABEL)
    each = None if rows_per_person is None else random.integers(1, rows_per_person + 1, 2 * rows)
    scores = run.margins(
        (features, of_class, each), directions, labels, hashlib.sha256(f"one run/{seed}".encode()).digest()
    )
    guesses = max(1, round(_GUESSED * len(scores)))
    correct = int((guess(scores, guesses) == coins).sum())
    stated, counts = run.stated, (correct, guesses, len(scores))
    if stated.costs is not None:
        p_value = max(tail_under_curve(*counts, curve_of(cost)) for cost in stated.costs)
    else:
        claimed = stated.claimed_epsilon
        p_value = 1.0 if claimed is None else tail_under_approximate_dp(*counts, claimed, delta)
    return OneRunReport(
        algorithm=name,
        claimed_epsilon=stated.claimed_epsilon,
        proved_epsilon=stated.proved_epsilon,
        proved_mu=stated.proved_mu,
        delta=delta,
        canaries=len(scores),
        guesses=guesses,
        correct=correct,
        lower_bound=epsilon_lower_bound_of_guesses(*counts, delta=delta, confidence=confidence),
        lower_mu=mu_lower_bound_of_guesses(*counts, confidence=confidence),
        p_value=p_value,
        confidence=confidence,
        verdict=Verdict.VIOLATES if p_value < 1.0 - confidence else Verdict.CONSISTENT,
        seconds=round(time.monotonic() - started, 2),
        neighbours=str(neighbours),
        seed=seed,
    )


def audit_report(examined: Examined) -> RunReport:
    """Return an audit as MLflow shows it."""
    one = examined.mechanism
    numbers = {
        "epsilon_lower_bound": one.lower_bound,
        "epsilon_ceiling": one.ceiling,
        "epsilon_proved": one.proved_epsilon,
        "epsilon_claimed": one.claimed_epsilon,
        "epsilon_lower_bound_if_gaussian": one.gaussian_bound,
        "mu_lower_bound": one.lower_mu,
        "mu_proved": one.proved_mu,
        "seconds": examined.seconds,
    }
    if examined.one_run is not None:
        numbers |= {
            "one_run_epsilon_lower_bound": examined.one_run.lower_bound,
            "one_run_mu_lower_bound": examined.one_run.lower_mu,
            "one_run_p_value": examined.one_run.p_value,
        }
    if examined.chain is not None:
        numbers |= {
            "chain_epsilon_lower_bound": examined.chain.lower_bound,
            "chain_epsilon_ceiling": examined.chain.ceiling,
            "chain_fields_differing": float(len(examined.chain.differing)),
        }
    reports = (("mechanism", one), ("one_run", examined.one_run), ("chain", examined.chain))
    reports_by_name = {name: report.to_json() for name, report in reports if report is not None}
    return RunReport(
        experiment=AUDITS,
        run_key=f"audit-{uuid.uuid4().hex}",
        name=f"{examined.algorithm}: {examined.outcome}",
        facts={
            "algorithm": examined.algorithm,
            "dataset": "synthetic rows",
            "proved": None if one.proved_epsilon is None else f"({one.proved_epsilon:.6g}, {one.delta:g})-DP",
            "claim": None if one.claimed_epsilon is None else f"({one.claimed_epsilon:.6g}, {one.delta:g})-DP",
            "neighbours": one.neighbours,
        },
        params={"confidence": one.confidence, "trials": one.trials, "seed": one.seed, "pair": one.pair},
        metrics={name: float(value) for name, value in numbers.items() if value is not None},
        # The step is the type I error in thousandths.
        curves={
            "trade_off": {round(1000 * alpha): beta for alpha, beta in one.stated_curve},
            "trade_off_measured": {round(1000 * alpha): beta for alpha, beta in one.curve},
        },
        tags={AUDIT_TAG: examined.outcome},
        files={
            "audit.json": json.dumps(reports_by_name, indent=2, default=str),
            "trade-off.png": draw_trade_offs([one]),
        },
        note=_note(examined),
    )


def _note(examined: Examined) -> str:
    one = examined.mechanism
    stated = one.proved_epsilon if one.proved_epsilon is not None else one.claimed_epsilon
    status = "proved" if one.proved_epsilon is not None else "claimed"
    lines = [
        f"**{examined.algorithm}**: {examined.outcome}.",
        f"ε ≥ {one.lower_bound:.4g} at δ = {one.delta:g}, confidence {one.confidence:.12g}; "
        + (f"{status} ε = {stated:.4g}" if stated is not None else "nothing is stated")
        + (f", μ = {one.proved_mu:.4g}." if one.proved_mu is not None else "."),
        *examined.reasons,
    ]
    return "\n\n".join(lines)


def draw_trade_offs(reports: Sequence[AuditReport]) -> bytes:
    """Return a PNG: the curve that is proved or claimed, and the errors that the best tests found were held to.

    Below the blue line no test may be, at any pair of neighbours; each red cross is an upper bound on both errors of
    one test, all at the audit's confidence together. A cross in the shaded region refutes what is stated. A panel a
    report.
    """
    alphas = np.linspace(0.0, 1.0, 401)
    with styled_figure(5.0 * len(reports), 4.6) as figure:
        for axes, report in zip(figure.subplots(1, len(reports), squeeze=False).flat, reports, strict=True):
            stated = _stated(report, alphas)
            axes.fill_between(alphas, 0.0, stated, color=BLUE, alpha=0.12, linewidth=0)
            axes.plot(alphas, stated, color=BLUE, linewidth=1.8, label=f"{_status(report)}: no test lies below")
            axes.plot(alphas, 1.0 - alphas, color="#000000", linestyle=":", linewidth=1.2, label="nothing leaks")
            if report.curve:
                title = "measured: the truth lies below"
                axes.plot(*np.array(report.curve).T, "x", color=RED, markersize=5, label=title)
            axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="type I error", ylabel="type II error")
            _finish(axes, f"{report.algorithm}: {report.verdict}, ε ≥ {report.lower_bound:.3g}", "upper right")
        return png_of(figure, 150)


def _status(report: AuditReport | MembershipReport) -> str:
    return "claimed" if report.proved_epsilon is None else "proved"


def _finish(axes: Axes, title: str, place: str) -> None:
    axes.set_aspect("equal")
    axes.set_title(title, fontsize=9)
    axes.legend(loc=place, fontsize=8)


def _stated(report: AuditReport, alphas: Floats) -> Floats:
    """Return the type II error below which no test is, by what is proved or claimed."""
    if report.proved_mu is not None:
        return np.asarray(ndtr(ndtri(1.0 - alphas) - report.proved_mu))
    # Between points that are proved the curve is convex, so that below the chords nothing is said: steps are safe.
    levels, values = np.array(sorted(report.stated_curve)).reshape(-1, 2).T
    stated: Floats = np.append(values, 0.0)[np.searchsorted(levels, alphas, side="left")]
    epsilon = report.proved_epsilon if report.proved_epsilon is not None else report.claimed_epsilon
    if epsilon is None:
        return stated
    # What the one point (epsilon, delta) says by itself is known everywhere.
    lines = (1 - report.delta - np.exp(epsilon) * alphas, np.exp(-epsilon) * (1 - report.delta - alphas))
    return np.asarray(np.maximum(stated, np.maximum(*lines)))


def draw_membership(report: MembershipReport) -> bytes:
    """Return a PNG: how many members an attack recognises at each rate of false alarms, and how many it may.

    Both axes are logarithmic, since what counts is the attack that accuses few wrongly.
    """
    least = 1e-3
    with styled_figure(5.0, 4.6) as figure:
        axes = figure.subplots()
        if report.bound:
            rates, bound = np.maximum(np.array(report.bound), least / 10).T
            axes.fill_between(rates, bound, 1.0, color=BLUE, alpha=0.12, linewidth=0)
            axes.plot(rates, bound, color=BLUE, linewidth=1.8, label=f"{_status(report)}: no attack lies above")
        measured = np.maximum(np.array(report.curve), least / 10)
        axes.plot(*measured.T, color=RED, linewidth=1.4, label="measured")
        axes.plot([least, 1.0], [least, 1.0], color="#000000", linestyle=":", linewidth=1.2, label="guessing")
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        advantage = f"advantage {report.advantage:.3f}, at most {report.advantage_bound:.3f}"
        _finish(axes, f"{report.algorithm} on {report.dataset}: {advantage}", "lower right")
        return png_of(figure, 150)


WARNING, CONSISTENT = "warning", "consistent"
_SUSPECTS, _CERTAIN = 0.99, 1 - 1e-9
# What leaks beside a release does not depend on its budget, and a small one is refuted by fewer runs.
_CHAIN_EPSILON = 1.0
# As many as refute epsilon 1 at 1 − 10⁻⁹ where one field tells the neighbours apart each time.
_CHAIN_TRIALS_AGAIN = 160
_TRIALS_AGAIN = 400
_MOST_FIELDS = 5


class AuditRequest(BaseModel, frozen=True, extra="forbid"):
    """What a scheduled audit examines; rows are synthetic, so nothing is charged."""

    algorithm: Annotated[
        Annotated[str, RegisteredName("systems")] | None,
        Field(description="A system; those of the registered models if left out."),
    ] = None
    epsilon: Annotated[float | None, Field(gt=0, description="Budget; that of the newest model if left out.")] = None
    delta: Annotated[float | None, Field(gt=0, lt=1, description="That of the newest model if left out.")] = None
    neighbours: Annotated[
        RelationInForce | None,
        Field(title="Neighbours", description="Neighbouring relation; that of the newest model if left out."),
    ] = None
    trials: Annotated[int, Field(ge=8, description="Runs of the mechanism on each neighbour.")] = 1000
    canaries: Annotated[int, Field(ge=0, description="Canaries of the audit from one run; 0 leaves it out.")] = 200
    chain_trials: Annotated[
        int, Field(ge=0, description="Whole runs on each neighbour of a pair; 0 leaves them out.")
    ] = 24
    seed: Annotated[int | None, Field(ge=0, description="Of rows and noise; drawn anew if left out.")] = None


class Examined(BaseModel, frozen=True, arbitrary_types_allowed=True):
    """What the audits of one algorithm say together.

    Attributes
    ----------
    outcome : str
        ``"violation"`` at confidence 1 − 10⁻⁹, ``"warning"`` at 99 %, or ``"consistent"``.
    reasons : tuple of str
        One a finding.
    mechanism, one_run, chain
        The reports that the outcome rests on; None where an audit was left out.
    mlflow_run_id : str or None
        Where it is on record.
    """

    algorithm: str
    outcome: str
    reasons: tuple[str, ...]
    seconds: float
    mechanism: AuditReport
    one_run: OneRunReport | None = None
    chain: ChainReport | None = None
    mlflow_run_id: str | None = None


def examine_system(
    name: str, request: AuditRequest, *, epsilon: float, delta: float, neighbours: Neighbours, chain: Chain
) -> Examined:
    """Audit a system at 99 % confidence, and what is suspected then once more on fresh noise at 1 − 10⁻⁹.

    Guarantee
    ---------
    Of a sound system, each audit warns with probability at most 1 %, and finds a violation with probability at most
    10⁻⁹: the repetition is an experiment of its own, and the p-value of the audit from one run holds at every level.
    """
    started = time.monotonic()
    seed = secrets.randbelow(2**31) if request.seed is None else request.seed
    options = AuditOptions(epsilon=epsilon, delta=delta, neighbours=neighbours, confidence=_SUSPECTS, seed=seed)
    findings: list[tuple[bool, str]] = []
    mechanism = audit_system(name, dataclasses.replace(options, trials=request.trials))
    if mechanism.verdict is Verdict.VIOLATES:
        trials = max(request.trials, _TRIALS_AGAIN)
        again = audit_system(name, dataclasses.replace(options, trials=trials, confidence=_CERTAIN, seed=seed + 1))
        certain = again.verdict is Verdict.VIOLATES
        mechanism = again if certain else mechanism
        findings.append(
            (
                certain,
                f"epsilon is {mechanism.lower_bound:.4g} at least, at confidence {mechanism.confidence:.12g} "
                f"({mechanism.pair}; {mechanism.event})",
            )
        )
    one_run = None
    if request.canaries:
        one_run = audit_in_one_run(name, options, canaries=request.canaries)
        if one_run.verdict is Verdict.VIOLATES:
            findings.append(
                (
                    one_run.p_value < 1.0 - _CERTAIN,
                    f"{one_run.correct} of {one_run.guesses} canaries were guessed in one run, which has probability "
                    f"{one_run.p_value:.2g} at most",
                )
            )
    whole = None
    if request.chain_trials and mechanism.proved_epsilon is not None:
        smaller = dataclasses.replace(options, epsilon=min(epsilon, _CHAIN_EPSILON), trials=request.chain_trials)
        whole = audit_chain(name, smaller, chain=chain)
        if whole.verdict is Verdict.VIOLATES or whole.differing:
            again_options = dataclasses.replace(smaller, trials=_CHAIN_TRIALS_AGAIN, confidence=_CERTAIN)
            whole = audit_chain(name, again_options, chain=chain)
            fields = ", ".join(whole.differing[:_MOST_FIELDS]) or whole.event
            findings.append((whole.verdict is Verdict.VIOLATES, f"beside the releases neighbours differ: {fields}"))
    suspicion = VIOLATION if any(certain for certain, _ in findings) else WARNING
    return Examined(
        algorithm=name,
        outcome=suspicion if findings else CONSISTENT,
        reasons=tuple(reason for _, reason in findings),
        seconds=round(time.monotonic() - started, 1),
        mechanism=mechanism,
        one_run=one_run,
        chain=whole,
    )
