"""``unitball sweep``, ``frontier``, ``reproduce``, ``report``, ``audit``: what many runs of this code show."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from deployments.cli.common import (
    Answer,
    DaskOption,
    YesOption,
    agree,
    answered,
    options_of,
    progress,
    read_text,
    running,
    table,
)
from deployments.cli.entry_point import app
from deployments.cli.explaining import chosen
from deployments.cli.given import refuse_beside, refuse_without
from dpalgos.guarantees import RELATIONS, Neighbours
from dpalgos.parameters import ParameterError
from storage.atomic import write_bytes
from storage.errors import InputError, RefusedError
from tasks.host.cluster import require_scheduler
from tasks.planning.configuration import TrainingConfig
from tasks.runtime import standing
from tasks.runtime.progress import report_progress
from tasks.runtime.settings import current_layout

if TYPE_CHECKING:
    from dpalgos.audit.experiment import AuditOptions, BoundReport
    from tasks.experiments.records import Experiment

_Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Parallel runs. Default: the specification's number, else set by the machine's cores."),
]

# A terminal holds no more; the page has them all.
_COLUMNS = 8


_FRONTIER = "unitball,noisy-gd,fed-dpdr-dpml,fed-dpdr-dpml-published,dppca-svm,unitball-without-noise"


@app.command(epilog="Example: unitball sweep docs/examples/sweep.yaml --workers 2")
@answered
def sweep(
    specification: Annotated[Path, typer.Argument(help="YAML: name, set, grid (page Run a grid of parameters).")],
    workers: _Workers = None,
    dask: DaskOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs; run nothing.")] = False,
    yes: YesOption = False,
) -> Answer:
    """Run a grid of parameters in parallel; record failures."""
    from tasks.datasets.registration import ensure_registered, find_dataset
    from tasks.experiments.specifications import SweepSpec, load

    spec = load(SweepSpec, read_text(specification, "SPECIFICATION"), str(specification))
    points = spec.points()
    if dry_run:
        listed = [point.description for point in points]
        return Answer({"points": listed}, listed)
    names = {point.config.dataset for point in points}
    ensure_registered(*names)
    private = {one.name for one in map(find_dataset, names) if one.private}
    require_scheduler(dask)
    agreed = _agree([point.config for point in points if point.config.dataset in private], yes=yes)
    with running(f"sweep {spec.name}", stages=["points"]):
        from flows.reproduction import report_sweep
        from flows.sweep import run_sweep

        result = run_sweep(spec, workers=workers, dask=dask, agreed=agreed)
        experiment = report_sweep(spec, result, shlex.join(["unitball", "sweep", str(specification)]))
    done = len(result.outcomes) - len(result.failed)
    counts = f"{done} done ({result.reused} of them earlier), {len(result.failed)} failed"
    ending = "." if result.seconds is None else f", {result.seconds:.1f} s."
    for account in standing.charged_before():
        ending += f" Points of account {account} that were charged before were free."
    return Answer(
        result.model_dump(mode="json"), [*_shown(experiment), counts + ending], typer.Exit(1) if result.failed else None
    )


def _agree(configs: Sequence[TrainingConfig], *, yes: bool) -> list[str]:
    """Show what the points of a sweep charge to each private account, and stop where that is not agreed to.

    Returns
    -------
    list of str
        Keys of the releases that the price is of: the points plan again, and are charged for no others.
    """
    from dpalgos.secure.primitives import SecureAggregationError
    from tasks.preparation.prepare import PreparedRun, prepare
    from tasks.release.prices import keys_of, price_of

    plans: dict[str, list[PreparedRun]] = {}
    for config in configs:
        try:
            prepared = prepare(chosen(config))
        except (InputError, ParameterError, RefusedError, SecureAggregationError):
            # A point that cannot be planned charges nothing, and its failure is recorded.
            continue
        if isinstance(prepared, PreparedRun):
            plans.setdefault(prepared.shards.all[0].dataset.account, []).append(prepared)
    for of_account in plans.values():
        agree(price_of(of_account), asks=True, yes=yes, way_out="give --yes")
    return sorted(keys_of([one for of_account in plans.values() for one in of_account]))


@app.command(epilog="Example: unitball frontier --dataset digits")
@options_of(
    TrainingConfig,
    without=[
        "algorithm",
        "projection",
        "trainer",
        "aggregation",
        "features",
        "aim",
        "public_dataset",
        "epsilon",
        "seed",
        "partition_seed",
        "replicate",
        "evaluation",
        "roc",
        "deadline",
        "deadline_miss",
        "tune",
        "tuned_on",
        "parameters",
        "secure",
        "sizes",
    ],
    first=["dataset", "delta", "trust", "parties"],
    as_in_train=True,
)
@answered
def frontier(
    config: TrainingConfig,
    algorithms: Annotated[str, typer.Option(help="Systems of `unitball algorithms`, separated by commas.")] = _FRONTIER,
    epsilons: Annotated[str, typer.Option(help="Values of epsilon, separated by commas.")] = "0.1,0.3,1,3,8",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds (noise and partition), from 0.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder for the files. Default: under the root.")] = None,
    workers: _Workers = None,
) -> Answer:
    """Plot accuracy against epsilon for several algorithms (public data only)."""
    from tasks.datasets.registration import ensure_registered, find_dataset

    ensure_registered(config.dataset)
    if find_dataset(config.dataset).private:
        raise RefusedError(
            f"{config.dataset} is private; `frontier` trains many runs with public seeds; give a public data set"
        )
    budgets = _numbers(epsilons)
    with running(f"frontier of {config.dataset}", stages=["points"]):
        from flows.reproduction import report_sweep
        from flows.sweep import FRONTIER_PLOT, frontier_sweep, run_sweep
        from tasks.tracking.reporting import command_of

        spec = frontier_sweep(config, algorithms.split(","), budgets, seeds)
        result = run_sweep(spec, workers=workers, dask=None)
        own = ["--algorithms", algorithms, "--epsilons", epsilons, "--seeds", str(seeds)]
        command = f"{command_of(config.model_copy(update={'algorithm': None}), 'frontier')} {shlex.join(own)}"
        where = out.absolute() if out else None
        experiment = report_sweep(spec, result, command, plot=FRONTIER_PLOT, scale="frontier", out=where)
    return _answer(experiment)


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(f"--epsilons is {text!r}; give numbers separated by commas, for example 0.1,1,3") from None
    if not all(0 < number <= 1000 for number in numbers) or len(set(numbers)) < len(numbers):
        raise ParameterError(f"--epsilons is {text!r}; each number must be above 0, at most 1000, and given once")
    return numbers


@app.command(epilog="Example: unitball reproduce wang2024-fig3  ·  unitball reproduce --list")
@answered
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Figure or table (unitball reproduce --list).")] = None,
    every: Annotated[
        bool, typer.Option("--list", help="List the figures and tables with the files they need.")
    ] = False,
    scale: Annotated[str, typer.Option(help="quick: bundled data, about a minute; full: the paper's data.")] = "quick",
    dataset: Annotated[str | None, typer.Option(help="Data set to use. Default: the paper's.")] = None,
    path: Annotated[Path | None, typer.Option(help="Files of the data set, or the folder of several.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the files. Default: under the root.")] = None,
    workers: _Workers = None,
    dask: DaskOption = None,
) -> Answer:
    """Reproduce a paper's figure or table, next to the paper's claim."""
    from flows.specs import load_reproduction

    refuse_beside("--list", "lists all figures and tables")
    if every and name is not None:
        raise ParameterError(f"--list lists all figures and tables and takes no name (got {name}): omit one of them")
    if every:
        return _known()
    if name is None:
        raise ParameterError(
            "name a figure or table, for example wang2024-fig3; all of them: unitball reproduce --list"
        )
    if path is not None and scale == "quick":
        raise ParameterError("--scale quick runs on bundled data and takes no --path; use --scale full")
    # What is wrong is said before an engine is started.
    load_reproduction(name).at(scale)
    require_scheduler(dask)
    with running(f"{name} ({scale})", stages=["points"]):
        from flows.reproduction import reproduce as run

        options = {"--scale": scale, "--dataset": dataset, "--path": path}
        arguments = [part for option, value in options.items() if value is not None for part in (option, str(value))]
        experiment = run(
            name,
            scale,
            dataset,
            path.absolute() if path else None,
            shlex.join(["unitball", "reproduce", name, *arguments]),
            out.absolute() if out else None,
            workers,
            dask,
        )
    return _answer(experiment)


def _known() -> Answer:
    from flows.specs import known_reproductions, load_reproduction

    known = [load_reproduction(name) for name in known_reproductions()]
    rows = (
        (
            reproduction.name,
            reproduction.title,
            ", ".join(need.name for need in reproduction.quick.data),
            None if reproduction.full is None else ", ".join(need.name for need in reproduction.full.data),
        )
        for reproduction in known
    )
    shown = table(("name", "what", "quick on", "full on"), rows, title="Figures and tables")
    shown.columns[0].no_wrap = True
    # Once, not with each figure that is drawn from them.
    files = {need.name: need.files for one in known if one.full for need in one.full.data if need.files}
    needed = table(("data set", "files in --path"), sorted(files.items()), title="Data sets for --scale full")
    return Answer({"reproductions": [one.model_dump(mode="json") for one in known]}, [shown, needed])


def _answer(experiment: Experiment) -> Answer:
    return Answer(experiment.model_dump(mode="json"), _shown(experiment), typer.Exit(1) if experiment.failed else None)


def _shown(experiment: Experiment) -> Iterator[RenderableType]:
    from tasks.experiments.records import RESTS_ON, WEIGHED, experiments_folder

    for one in experiment.tables:
        yield table(
            one.head[:_COLUMNS], (body[:_COLUMNS] for body in one.body), title=experiment.title or experiment.name
        )
    if WEIGHED in experiment.setting:
        yield experiment.setting[WEIGHED]
    if RESTS_ON in experiment.setting:
        yield f"The runs rest on {experiment.setting[RESTS_ON]}."
    for verdict in experiment.verdicts:
        yield f"{verdict.summary}: {verdict.says}; measured {verdict.shown}, wanted {verdict.wanted}"
    for number in experiment.compared:
        where = ", ".join(str(value) for value in number.where.values())
        yield f"{where}: {number.metric} {number.measured:.6g}, the paper {number.paper:g}"
    yield from (f"missing: {line}" for line in experiment.missing)
    yield from (f"failed: {line}" for line in experiment.failed)
    folder = experiments_folder() / f"{experiment.name}-{experiment.scale}"
    if folder.is_dir():
        yield f"{os.fspath(folder)}: results, figure, report.html"


@app.command(epilog="Example: unitball report wang2024-fig3-quick --out fig3.html")
@answered
def report(
    name: Annotated[str | None, typer.Argument(help="Experiment that was run. Default: all.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: next to the experiment's results.")] = None,
) -> Answer:
    """Write an HTML page per experiment from its stored results."""
    from tasks.experiments.pages import page
    from tasks.experiments.records import load_experiment, stored_experiments

    chosen = [name] if name is not None else stored_experiments()
    if not chosen:
        raise InputError("this root holds no experiment; run one first (unitball reproduce --list)")
    if out is not None and name is None:
        raise ParameterError("--out takes one page: name the experiment")
    places = {}
    for one in chosen:
        experiment, drawing, folder = load_experiment(one)
        places[one] = out or folder / "report.html"
        write_bytes(places[one].absolute(), page(experiment, drawing).encode())
    return Answer({"pages": places}, map(str, places.values()))


# What a leak is called is told by a few of its fields.
_MOST_FIELDS = 20


def _lines(
    title: str, numbers: Sequence[tuple[str, float | None]], *lines: str, seconds: float | None = None
) -> list[str]:
    """Return a title, named numbers, further lines and how long it took."""
    named = [f"{name}: {'–' if value is None else f'{value:.4g}'}" for name, value in numbers]
    below = (*named, *lines, *([] if seconds is None else [f"{seconds:.1f} s"]))
    return [title, *(f"  {line}" for line in below)]


def _verdict(report: BoundReport) -> str:
    return f"{report.verdict}, at delta {report.delta:g} under {report.neighbours}"


def _exit_of(report: BoundReport, *, differs: bool = False) -> typer.Exit | None:
    """Return the exit of one audit: 1 where it found a violation, so that a script need not read the verdict."""
    from dpalgos.audit.experiment import Verdict

    return typer.Exit(1) if report.verdict is Verdict.VIOLATES or differs else None


def audit_of_neighbours(name: str, kind: str | None, dataset: str | None, options: AuditOptions) -> Answer:
    """Audit a system or a release on synthetic neighbours, or a system on public rows that differ in a canary."""
    from tasks.auditing.public_rows import audit_on_public_rows
    from tasks.auditing.subjects import audit_subject, find_subject

    with progress(f"audit of {name}" + ("" if dataset is None else f" on rows of {dataset}")):
        if dataset is None:
            report = audit_subject(find_subject(name, kind), options)
        else:
            report = audit_on_public_rows(name, dataset, options)
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
    return Answer(report.to_json(), shown, _exit_of(report))


def membership_inference(name: str, options: AuditOptions, dataset: str, out: Path | None) -> Answer:
    """Attack a system's models of public rows: members are to be told from others."""
    from tasks.auditing.figures import draw_membership
    from tasks.auditing.public_rows import infer_membership

    with progress(f"membership inference on {name}"):
        report = infer_membership(name, dataset, options)
    if out is not None:
        write_bytes(out.absolute(), draw_membership(report))
    stated = "proved" if report.proved_epsilon is not None else "claimed"
    shown = _lines(
        f"{name} on {dataset}: {report.models} shadow models of {report.rows} rows, under {report.neighbours}",
        [],
        f"advantage {report.advantage:.4f}, at most {report.advantage_bound:.4f} by the {stated} guarantee",
        f"area under the ROC curve {report.area:.4f}, at most {report.area_bound:.4f}",
        *(
            f"true-positive rate at a false-positive rate of {level:g}: {rate:.4f}, at most {most:.4f}"
            for level, rate, most in report.rates
        ),
        seconds=report.seconds,
    )
    return Answer(report.to_json(), shown)


def chain_audit(name: str, options: AuditOptions) -> Answer:
    """Audit a whole chain."""
    from flows.column_statistics import DRAWING
    from flows.federated_training import chain_inline
    from tasks.auditing.chain import audit_chain
    from tasks.auditing.synthesis_chain import audit_synthesis
    from tasks.planning.column_statistics import SYNTHESIS

    with progress(f"audit of {name}, the whole chain"):
        others = {SYNTHESIS: partial(audit_synthesis, chain=DRAWING.chain_inline)}
        report = others.get(name, partial(audit_chain, name, chain=chain_inline))(options)
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
    return Answer(report.to_json(), shown, _exit_of(report, differs=bool(report.differing)))


def one_run_audit(name: str, options: AuditOptions, canaries: int, rows_per_person: int | None) -> Answer:
    """Audit one training run."""
    from tasks.auditing.one_run import audit_in_one_run

    report = audit_in_one_run(name, options, canaries=canaries, rows_per_person=rows_per_person)
    shown = _lines(
        f"{name}, one run: {_verdict(report)}",
        [
            ("epsilon proved", report.proved_epsilon),
            ("epsilon claimed", report.claimed_epsilon),
            (f"epsilon lower bound at {report.confidence:.12g}", report.lower_bound),
            ("mu proved", report.proved_mu),
            (f"mu lower bound at {report.confidence:.12g}", report.lower_mu),
            ("probability of this result under the stated guarantee, at most", report.p_value),
        ],
        f"{report.correct} of {report.guesses} guesses right, of {report.canaries} canaries",
        seconds=report.seconds,
    )
    return Answer(report.to_json(), shown, _exit_of(report))


_EPSILONS = {
    "claimed": "claimed_epsilon",
    "proved": "proved_epsilon",
    "at least": "lower_bound",
    "if Gaussian": "gaussian_bound",
}


def all_audits(options: AuditOptions) -> Answer:
    """Audit all that is registered and draws noise."""
    from dpalgos.audit.experiment import Verdict
    from tasks.auditing.subjects import KINDS, audit_all, subjects

    wanted = subjects()
    folder = current_layout().root / "audits"
    reports: list[Mapping[str, object]] = []
    with progress("audits"):
        for subject, report in audit_all(wanted, options, folder, processes=os.cpu_count() or 1):
            reports.append(report)
            report_progress("audits", f"{subject.name} {report['verdict']}", len(reports) / len(wanted))
    reports.sort(key=lambda one: (KINDS.index(str(one["kind"])), str(one["algorithm"])))
    numbers = ("δ", *(f"ε {heading}" for heading in _EPSILONS), "runs", "seconds")
    rows = (
        (
            audited["kind"],
            audited["algorithm"],
            audited["verdict"],
            *map(_number, (audited["delta"], *(audited[field] for field in _EPSILONS.values()))),
            f"{audited['trials']:,}",
            _number(audited["seconds"]),
        )
        for audited in reports
    )
    title = f"Audits at confidence {options.confidence:.12g}"
    shown = [table(("kind", "name", "verdict", *numbers), rows, title=title, right=numbers)]
    # Claims of refuted papers are among all audits and are violated each time.
    refuted = any(one["verdict"] == Verdict.VIOLATES and one["proved_epsilon"] is not None for one in reports)
    return Answer({"audits": reports}, shown, typer.Exit(1) if refuted else None)


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "–"


@app.command(epilog="Example: unitball audit wishart-svm --trials 200")
@answered
def audit(
    name: Annotated[str | None, typer.Argument(help="System, projection, trainer or evaluator.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Audit all algorithms that draw noise; skip finished audits.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Use at most a quarter of the usual runs.")] = False,
    kind: Annotated[
        str | None,
        typer.Option(help="Kind, if several have this name: systems, projections, trainers, evaluators."),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Epsilon of the audited runs. Default: 1; for refuted papers the value that shows the flaw."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Delta of the bound. Default: 1e-5; for refuted papers the value that shows the flaw."),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Runs on each neighbouring data set. The first part selects an event, the rest count how often it "
            "occurs. With --membership: shadow models. Default: 4,000 or more by the cost of a run; 400 with "
            "--dataset, 64 with --membership, 48 with --chain."
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Confidence of the lower bound. At 0.99, at most 1 % of audits are wrong.")
    ] = 0.99,
    neighbours: Annotated[
        str | None, typer.Option(help="replace-one or replace-special. Default: the guarantee's relation.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Public seed; an equal seed repeats every run.")] = 0,
    chain: Annotated[
        bool, typer.Option("--chain", help="Audit all outputs of a private run: files, ledger, metrics, MLflow.")
    ] = False,
    canaries: Annotated[
        int | None, typer.Option(help="Audit one training run with this many synthetic canaries (hundreds).")
    ] = None,
    rows_per_person: Annotated[
        int | None,
        typer.Option(min=1, help="With --canaries: a canary is a person with 1 to this many rows. Default: one row."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Audit on this public data set, with and without a canary.")
    ] = None,
    membership: Annotated[
        str | None, typer.Option(help="Membership inference against models trained on this public data set.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --membership: PNG file for the ROC curve.")] = None,
) -> Answer:
    """Measure a lower bound on epsilon by running the code many times."""
    from dpalgos.audit.experiment import QUICK, AuditOptions, Effort
    from tasks.datasets.registration import ensure_registered

    known = [str(one) for one in RELATIONS]
    if neighbours is not None and neighbours not in known:
        raise ParameterError(f"--neighbours {neighbours!r} is unknown; give one of {', '.join(known)}")
    if not 0 < confidence < 1:
        raise ParameterError(f"--confidence is {confidence!r}; it must be above 0 and below 1")
    relation = None if neighbours is None else Neighbours(neighbours)
    if every == (name is not None):
        raise ParameterError("give the name of a system or release, or --all")
    chosen = [every, chain, canaries is not None, dataset is not None, membership is not None]
    if sum(chosen) > 1:
        raise ParameterError(
            "--all, --chain, --canaries, --dataset and --membership are different audits: give one of them"
        )
    refuse_without(["--rows-per-person"], "--canaries", "applies to canaries")
    refuse_without(["--out"], "--membership", "writes the curve of a membership inference")
    refuse_beside("--quick", "sets the number of runs", ["--trials"])
    for option in ("--all", "--chain", "--canaries", "--dataset", "--membership"):
        refuse_beside(option, "audits systems", ["--kind"])
    options = AuditOptions(
        epsilon=epsilon,
        delta=delta,
        trials=trials,
        confidence=confidence,
        neighbours=relation,
        seed=seed,
        effort=QUICK if quick else Effort(),
    )
    ensure_registered(dataset, membership)
    if name is None:
        return all_audits(options)
    if canaries is not None:
        return one_run_audit(name, options, canaries, rows_per_person)
    if membership is not None:
        return membership_inference(name, options, membership, out)
    return chain_audit(name, options) if chain else audit_of_neighbours(name, kind, dataset, options)
