"""``unitball audit``: what a system or a release leaks, measured on synthetic neighbours."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deployments.cli.common import Answer, answered, progress, table
from deployments.cli.entry_point import app
from tasks.runtime.progress import say
from tasks.runtime.settings import current_layout

if TYPE_CHECKING:
    from dpalgos.audit.experiment import AuditOptions, AuditReport, BoundReport
    from tasks.auditing.systems import Subject


# What a leak is called is told by a few of its fields.
_MOST_FIELDS = 20


def _lines(
    title: str, numbers: Sequence[tuple[str, float | None]], *lines: str, seconds: float | None = None
) -> list[str]:
    """Return a title, named numbers, further lines and how long it took."""
    named = [f"{name}: {'–' if value is None else f'{value:.4g}'}" for name, value in numbers]
    below = (*named, *lines, *([] if seconds is None else [f"{seconds:.1f} s"]))
    return [title, *(f"  {line}" for line in below)]


def subject_audit(subject: Subject, options: AuditOptions) -> Answer:
    """Audit a system or a release on synthetic neighbours."""
    from tasks.auditing.systems import audit_subject

    with progress(f"audit of {subject.name}"):
        report = audit_subject(subject, options)
    return _answer(report)


def audit_on_rows(name: str, options: AuditOptions, dataset: str) -> Answer:
    """Audit a system on public rows that differ in a canary."""
    from tasks.auditing.systems import audit_on_public_rows

    with progress(f"audit of {name} on rows of {dataset}"):
        report = audit_on_public_rows(name, dataset, options)
    return _answer(report)


def _verdict(report: BoundReport) -> str:
    return f"{report.verdict}, at delta {report.delta:g} under {report.neighbours}"


def _answer(report: AuditReport) -> Answer:
    errors = [f"  {alpha:.3g}, {beta:.3g}" for alpha, beta in report.curve[:: max(1, len(report.curve) // 5)]]
    shown = _lines(
        f"{report.algorithm} ({report.kind}): {_verdict(report)}",
        [
            ("epsilon proved", report.proved_epsilon),
            ("epsilon claimed", report.claimed_epsilon),
            (f"epsilon at least, at {report.confidence:.12g}", report.lower_bound),
            ("largest epsilon that this number of runs can show", report.ceiling),
            ("epsilon at least, if Gaussian", report.gaussian_bound),
            ("mu proved", report.proved_mu),
            ("mu at least", report.lower_mu),
            ("mu at least, if Gaussian", report.gaussian_mu),
        ],
        "tests of one neighbour against the other, type I and type II errors at most:",
        *errors,
        f"neighbours: {report.pair}",
        f"event: {report.event}",
        f"{report.trials} runs counted on each neighbour, {report.seconds:.1f} s",
    )
    return Answer(report.to_json(), shown)


def membership_inference(name: str, options: AuditOptions, dataset: str, out: Path | None) -> Answer:
    """Attack a system's models of public rows: members are to be told from others."""
    from storage.atomic import write_bytes
    from tasks.auditing.examination import draw_membership
    from tasks.auditing.systems import infer_membership

    with progress(f"membership inference on {name}"):
        report = infer_membership(name, dataset, options)
    if out is not None:
        write_bytes(out.absolute(), draw_membership(report))
    stated = "proved" if report.proved_epsilon is not None else "claimed"
    shown = _lines(
        f"{name} on {dataset}: {report.models} shadow models of {report.rows} rows, under {report.neighbours}",
        [],
        f"advantage {report.advantage:.4f}, at most {report.advantage_bound:.4f} by what is {stated}",
        f"area under the ROC curve {report.area:.4f}, at most {report.area_bound:.4f}",
        *(
            f"members recognised at {level:g} false alarms: {rate:.4f}, at most {most:.4f}"
            for level, rate, most in report.rates
        ),
        seconds=report.seconds,
    )
    return Answer(report.to_json(), shown)


def chain_audit(name: str, options: AuditOptions) -> Answer:
    """Audit a whole chain."""
    from flows.federated_training import chain_inline
    from tasks.auditing.examination import audit_chain

    with progress(f"audit of {name}, the whole chain"):
        report = audit_chain(name, options, chain=chain_inline)
    shown = _lines(
        f"{name}, the whole chain: {_verdict(report)}",
        [("epsilon proved", report.proved_epsilon)],
        f"epsilon lower bound at {report.confidence:.12g}: {report.lower_bound:.4g}, and {report.ceiling:.4g} at most "
        f"from {report.trials} counted runs on each neighbour",
        f"{report.fields} fields compared, {len(report.differing)} differ without noise",
        *(f"  {field}" for field in report.differing[:_MOST_FIELDS]),
        f"neighbours: {report.pair}",
        f"event: {report.event}",
        seconds=report.seconds,
    )
    return Answer(report.to_json(), shown)


def one_run_audit(name: str, options: AuditOptions, canaries: int, rows_per_person: int | None) -> Answer:
    """Audit one training run."""
    from tasks.auditing.examination import audit_in_one_run

    report = audit_in_one_run(name, options, canaries=canaries, rows_per_person=rows_per_person)
    shown = _lines(
        f"{name}, one run: {_verdict(report)}",
        [
            ("epsilon proved", report.proved_epsilon),
            ("epsilon claimed", report.claimed_epsilon),
            (f"epsilon lower bound at {report.confidence:.12g}", report.lower_bound),
            ("mu proved", report.proved_mu),
            (f"mu lower bound at {report.confidence:.12g}", report.lower_mu),
            ("probability of as many under what is stated, at most", report.p_value),
        ],
        f"{report.correct} of {report.guesses} guesses right, of {report.canaries} canaries",
        seconds=report.seconds,
    )
    return Answer(report.to_json(), shown)


_COLUMNS = {
    "claimed": "claimed_epsilon",
    "proved": "proved_epsilon",
    "at least": "lower_bound",
    "if Gaussian": "gaussian_bound",
}


def all_audits(options: AuditOptions) -> Answer:
    """Audit all that is registered and draws noise."""
    from tasks.auditing.systems import KINDS, audit_all, subjects

    wanted = subjects()
    folder = current_layout().root / "audits"
    reports: list[Mapping[str, object]] = []
    with progress("audits"):
        for subject, report in audit_all(wanted, options, folder, processes=os.cpu_count() or 1):
            reports.append(report)
            say("audits", f"{subject.name} {report['verdict']}", len(reports) / len(wanted))
    reports.sort(key=lambda one: (KINDS.index(str(one["kind"])), str(one["algorithm"])))
    numbers = ("δ", *(f"ε {heading}" for heading in _COLUMNS), "runs", "seconds")
    rows = (
        (
            one["kind"],
            one["algorithm"],
            one["verdict"],
            *map(_number, (one["delta"], *(one[field] for field in _COLUMNS.values()))),
            f"{one['trials']:,}",
            _number(one["seconds"]),
        )
        for one in reports
    )
    title = f"Audits at confidence {options.confidence:.12g}"
    return Answer({"audits": reports}, [table(("kind", "name", "verdict", *numbers), rows, title=title, right=numbers)])


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "–"


@app.command(epilog="Example: unitball audit wishart-svm --trials 200")
@answered
def audit(
    name: Annotated[
        str | None, typer.Argument(help="A registered system, or else a projection, trainer or evaluator.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Audit everything that draws noise; finished audits are not repeated.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A quarter of the usual runs, or fewer.")] = False,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Which one is meant, if several have the name: systems, projections, trainers or evaluators."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Epsilon that it is run at; if empty 1, or one at which its published flaw shows."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta of the bound; if empty 1e-5, or one at which its flaw shows.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Runs on each neighbouring data set: some choose the event, the others count it; by cost if empty."
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Confidence of the lower bound; at 0.99 one audit in a hundred errs.")
    ] = 0.99,
    neighbours: Annotated[
        str | None, typer.Option(help="replace-one or replace-special; if empty the relation of the guarantee.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the public noise; the same seed repeats every run.")] = 0,
    chain: Annotated[
        bool, typer.Option("--chain", help="Audit everything that a private run shows: files, ledger, numbers, MLflow.")
    ] = False,
    canaries: Annotated[
        int | None, typer.Option(help="Audit by one training run with this many synthetic canaries (some hundreds).")
    ] = None,
    rows_per_person: Annotated[
        int | None, typer.Option(min=1, help="With --canaries: each canary is a person of one to this many rows.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Audit on rows of this public data set that differ in a canary.")
    ] = None,
    membership: Annotated[
        str | None, typer.Option(help="Attack models of rows of this public data set: who was in the training set?")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --membership: PNG file to write the ROC curve to.")] = None,
) -> Answer:
    """Bound epsilon from below: run the training code many times on synthetic data sets that differ in one row."""
    from dpalgos.audit.experiment import QUICK, AuditOptions, Effort
    from dpalgos.errors import ParameterError
    from dpalgos.guarantees import RELATIONS, Neighbours
    from tasks.auditing.systems import find_subject

    known = [str(one) for one in RELATIONS]
    if neighbours is not None and neighbours not in known:
        raise ParameterError(f"--neighbours {neighbours!r} is none of {', '.join(known)}")
    if not 0 < confidence < 1:
        raise ParameterError(f"--confidence is {confidence!r}; it must lie strictly between 0 and 1")
    relation = None if neighbours is None else Neighbours(neighbours)
    if every == (name is not None):
        raise ParameterError("give the name of a system or release, or --all")
    chosen = [every, chain, canaries is not None, dataset is not None, membership is not None]
    if sum(chosen) > 1:
        raise ParameterError("--all, --chain, --canaries, --dataset and --membership are different audits: choose one")
    if rows_per_person is not None and canaries is None:
        raise ParameterError("--rows-per-person is of canaries: give --canaries too")
    options = AuditOptions(
        epsilon=epsilon,
        delta=delta,
        trials=trials,
        confidence=confidence,
        neighbours=relation,
        seed=seed,
        effort=QUICK if quick else Effort(),
    )
    if name is None:
        return all_audits(options)
    if canaries is not None:
        return one_run_audit(name, options, canaries, rows_per_person)
    if membership is not None:
        return membership_inference(name, options, membership, out)
    if dataset is not None:
        return audit_on_rows(name, options, dataset)
    return chain_audit(name, options) if chain else subject_audit(find_subject(name, kind), options)
