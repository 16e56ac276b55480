"""One system examined by all audits (the whole chain on two neighbours among them), its figures, and what is kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import secrets
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from pydantic import BaseModel, Field
from scipy.special import ndtr, ndtri
from sqlalchemy import MetaData, NullPool, create_engine, select

from dpalgos.algorithms import Refused, admission
from dpalgos.audit.bounds import (
    Comparison,
    Value,
    compare,
    curve_of,
    epsilon_lower_bound_of_guesses,
    guess,
    mu_lower_bound_of_guesses,
    tail_under_approximate_dp,
    tail_under_curve,
)
from dpalgos.audit.experiment import USUAL, AuditOptions, AuditReport, BoundReport, Verdict
from dpalgos.guarantees import Neighbours
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup
from dpalgos.rows import NULL_LABEL, Floats
from dpalgos.systems.system import System
from storage.errors import RefusedError
from storage.layout import Layout
from storage.refs import OnViolation, Visibility
from tasks.auditing.systems import MembershipReport, SyntheticRun, audit_system, parts_of, require_noise
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import RegisteredName, RelationInForce, TrainingConfig
from tasks.release.preflight import Speeds, expect_run
from tasks.runtime.plots import BLUE, RED, png_of, styled_figure
from tasks.runtime.progress import say_runs
from tasks.runtime.settings import current_layout, isolated_root
from tasks.tracking.models import AUDIT_TAG, AUDITS, VIOLATION
from tasks.tracking.reporting import run_report
from tasks.tracking.results import Chained, Proved
from tasks.tracking.runs import RunReport

_RANDOM = re.compile(r"[0-9a-f]{16,}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[0-9.+:Z]*")
_NUMBERS = (int, float, np.integer, np.floating)


def observe(layout: Layout, config: TrainingConfig, finished: Chained) -> dict[str, Value]:
    """Return everything that a run lets be seen, by field.

    Random identifiers differ in each run, so in the names of fields and in texts each is replaced by its role, and
    is a field of its own beside: one that repeated itself on equal rows would be a digest of them.

    Parameters
    ----------
    layout : Layout
        Of a root that holds this run alone.
    config : TrainingConfig
    finished : Chained
    """
    roles = _roles(layout, finished)
    report = run_report(config, finished)
    views = {
        "--plan": told_before(config),
        "reference": finished.dataset.model_dump(mode="json"),
        "plan": finished.plan.model_dump(mode="json"),
        "result": finished.result.model_dump(mode="json"),
        "MLflow": {
            **{name: getattr(report, name) for name in ("experiment", "name", "facts", "params", "metrics", "curves")},
            **{name: getattr(report, name) for name in ("tags", "files", "note")},
            "dataset": finished.dataset.model_dump(include={"name", "version", "account"}),
            "children": [asdict(one) for one in report.children],
            "model": None
            if report.model is None
            else [report.model.dimension, list(report.model.classes), report.model.registered_name],
        },
    }
    seen: dict[str, Value] = {f"identifier {role}": identifier for identifier, role in roles.items()}
    for source in (_fields("", views), _files(layout)):
        for name, value in source:
            canonical = _canonical(name, roles)
            while canonical in seen:
                canonical += "′"
            seen[canonical] = _canonical(value, roles) if isinstance(value, str) else value
    return seen


def told_before(config: TrainingConfig) -> dict[str, object]:
    """Return what ``--plan`` says of a run on a machine of fixed speed; nothing of a night, which it does not know."""
    return {} if config.horizon is not None else asdict(expect_run(config, _SPEEDS))


def _roles(layout: Layout, finished: Chained) -> dict[str, str]:
    """Return what each identifier of a run stands for."""
    plan = finished.plan
    combined = [one for one in (plan.basis, plan.model) if one is not None]
    releases = [(one.key, f"release {number}") for number, one in enumerate((*plan.releases, *combined))]
    versions = [(path.name, "data version") for path in layout.datasets.iterdir()]
    partitions = [(one.partition, "partition") for one in plan.releases]
    roles: dict[str, str] = {}
    for identifier, role in (*releases, *versions, *partitions, (plan.run_key, "run")):
        roles.setdefault(identifier, f"<{role}>")
    return roles


def _canonical(text: str, roles: Mapping[str, str]) -> str:
    for identifier, role in roles.items():
        text = text.replace(identifier, role)
    return _TIME.sub("<time>", _RANDOM.sub("<random>", text))


def _files(layout: Layout) -> Iterator[tuple[str, Value]]:
    for path in sorted(layout.root.rglob("*")):
        if layout.private in path.parents or path == layout.private:
            continue
        name = str(path.relative_to(layout.root))
        if not path.is_file():
            yield f"{name}/", "folder"
            continue
        yield f"{name} (bytes)", path.stat().st_size
        yield from _READERS.get(path.suffix, _text)(name, path)


def _text(name: str, path: Path) -> Iterator[tuple[str, Value]]:
    yield name, path.read_bytes().decode("utf-8", "replace")


def _json(name: str, path: Path) -> Iterator[tuple[str, Value]]:
    yield from _fields(name, json.loads(path.read_bytes()))


def _arrays(name: str, path: Path) -> Iterator[tuple[str, Value]]:
    with np.load(path, allow_pickle=False) as arrays:
        for part in arrays.files:
            yield f"{name} {part} (shape)", str(arrays[part].shape)
            yield f"{name} {part}", np.asarray(arrays[part], dtype=np.float64).ravel()


def _table(name: str, path: Path) -> Iterator[tuple[str, Value]]:
    yield from _fields(name, pq.read_table(path, partitioning=None).to_pylist())


def _database(name: str, path: Path) -> Iterator[tuple[str, Value]]:
    engine, tables = create_engine(f"sqlite:///{path}", poolclass=NullPool), MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        for table in tables.sorted_tables:
            rows = connection.execute(select(table)).mappings()
            yield from _fields(f"{name} {table.name}", [dict(row) for row in rows])


_READERS = {
    ".json": _json,
    ".npz": _arrays,
    ".parquet": _table,
    ".sqlite": _database,
}


def _fields(name: str, value: object) -> Iterator[tuple[str, Value]]:
    """Yield what is nested by the path to it; lists of numbers stay together."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _fields(f"{name} {key}".strip(), part)
    elif isinstance(value, list | tuple):
        yield f"{name} (entries)", len(value)
        if value and all(isinstance(part, _NUMBERS) for part in value):
            yield name, np.asarray(value, dtype=np.float64)
        else:
            for number, part in enumerate(value):
                yield from _fields(f"{name} {number}", part)
    elif value is None or isinstance(value, str | int | float):
        yield name, value
    else:
        yield name, str(value)


Chain = Callable[[TrainingConfig], Chained]
"""Runs the whole chain without an engine: ``flows.federated_training.chain_inline``."""

_NAME = "synthetic"
_ROWS, _TEST_ROWS, _FEATURES = 40, 12, 4
_CLASSES = ("no", "yes")
_PARTIES = 2
# The column of people, and rows of one who has many.
_PERSON, _HEAVY = "person", 50
# Synthetic rows need not outlive a power cut: what a run waits for is mostly the disk.
_MEMORY = Path("/dev/shm")
# Beyond what any audited budget can cost: the cap is not what is audited.
_CAP = 1e6
_MOST_STEPS = 3
# What is expected of a run must not depend on how busy this machine is: slow, so that every row shows.
_SPEEDS = Speeds(operations=1e6, interpreted=1e-3, cores=2)
_TRIALS = 48

Tables = Mapping[str, pd.DataFrame]
"""The rows to train on, ``train``, and those held out, ``test``: features in (−1, 1), a label at the end."""


def synthetic_tables(neighbours: Neighbours, part: str) -> tuple[Tables, Tables]:
    """Return two private data sets that differ in one record: a row far from all others against the relation's other.

    Under ``replace-one`` that is the opposite row of the other class, under ``replace-special`` a null record: a row
    that the schema rejects. Where the records are people, one has many rows far from all others, against one row.

    Parameters
    ----------
    neighbours : Neighbours
    part : {"train", "test", "person"}
        Where the record is, or that it is a person who trains.
    """
    random = np.random.default_rng(7)
    base = {"train": _crowd(_ROWS, random), "test": _crowd(_TEST_ROWS, random)}
    whose: list[object] = []
    if part == _PERSON:
        part = "train"
        for number, table in enumerate(base.values()):
            table.insert(0, _PERSON, [f"{number}-{row}" for row in range(len(table))])
        whose = ["0-0"]
    left, right = (base[part].copy() for _ in range(2))
    far = np.array([0.05, 0.05, -0.95, 0.95])
    left.loc[0] = [*whose, *far, _CLASSES[1]]
    if whose:
        left = pd.concat([left, *[left[:1]] * (_HEAVY - 1)])
    # What the schema does not admit is a null record.
    outside = [9.0] * _FEATURES
    other = [*-far, _CLASSES[0]] if neighbours is Neighbours.REPLACE_ONE else [*outside, _CLASSES[1]]
    right.loc[0] = [*whose, *other]
    return {**base, part: left}, {**base, part: right}


def _crowd(rows: int, random: np.random.Generator) -> pd.DataFrame:
    features = 0.2 * random.standard_normal((rows, _FEATURES))
    features[:, 0] += np.where(np.arange(rows) % 2, 0.4, -0.4)
    return pd.DataFrame(np.clip(features, -0.99, 0.99)).assign(y=np.resize(_CLASSES, rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReport(BoundReport, Comparison):
    """The outcome of an audit of a whole chain: what was compared, and which pair of neighbours showed most."""

    pair: str


def audit_chain(name: str, options: AuditOptions = USUAL, *, chain: Chain) -> ChainReport:
    """Run a proved system on neighbouring synthetic private tables and compare everything that everybody may see.

    Each run is a whole one, a charged evaluation included, in a fresh root with secrets of its own: rows are ingested
    as private, the plan is charged, the noise comes from the door. What is compared: see
    :func:`~tasks.auditing.examination.observe`. One pair differs in a row that trains; where the evaluation is charged,
    another differs in a held-out row; of a system that takes people, a third differs in how many rows a person has.

    Guarantee
    ---------
    Runs are independent, so a lower bound above ``proved_epsilon`` has probability at most 1 − confidence where the
    guarantee holds for all that is seen (:func:`~dpalgos.audit.bounds.compare`). Nothing follows from a small
    bound but that so many runs, on this pair, showed no more: it cannot exceed ``ceiling``.

    Parameters
    ----------
    name : str
        Of a registered system that is proved: others do not run on private rows.
    options : AuditOptions
        48 trials, half of them to learn an event on; a run takes about a third of a second. The noise is secret and has
        no seed.
    chain : callable

    Raises
    ------
    ParameterError, UnknownNameError
        For a name that is not registered, or numbers out of range.
    RefusedError
        For a system of which nothing is proved.

    Notes
    -----
    Sets ``UNITBALL_ROOT`` for this process while it runs, so no other thread may work on a root meanwhile.
    """
    trials, confidence = _TRIALS if options.trials is None else options.trials, options.confidence
    if trials < 2:
        raise ParameterError(f"trials is {trials}; the audit of a chain needs two at the least, and 48 to show much")
    neighbours, (epsilon, delta) = options.neighbours or Neighbours.REPLACE_ONE, options.budget()
    config = chain_config(name, epsilon, delta, neighbours)
    started = time.monotonic()
    refused = any(isinstance(admission(part), Refused) for part in parts_of(name))
    parts = ("train", "test", *(() if refused else (_PERSON,)))
    # Each pair at its share of the error.
    each = 1.0 - (1.0 - confidence) / len(parts)
    reports = {}
    for number, part in enumerate(parts):
        seen: list[list[dict[str, Value]]] = [[], []]
        pair = synthetic_tables(neighbours, part)
        # In turn, so that whatever drifts meets both worlds alike.
        for trial in range(trials):
            for world, tables in enumerate(pair):
                observed, proved = run_once(config, tables, chain)
                seen[world].append(observed)
                say_runs(2 * (number * trials + trial) + world + 1, 2 * trials * len(parts))
        reports[part] = compare(seen[0], seen[1], delta=delta, confidence=each)
    worst = max(parts, key=lambda part: (reports[part].lower_bound, len(reports[part].differing)))
    most = replace(
        reports[worst],
        differing=tuple(f"{part}: {field}" for part in parts for field in reports[part].differing),
        fields=max(one.fields for one in reports.values()),
    )
    return ChainReport(
        **vars(most),
        algorithm=name,
        claimed_epsilon=None if lookup("systems", name).claim is None else epsilon,
        proved_epsilon=proved.epsilon,
        proved_mu=proved.mu,
        delta=delta,
        confidence=confidence,
        verdict=Verdict.VIOLATES if most.lower_bound > proved.epsilon else Verdict.CONSISTENT,
        pair=f"a {_PAIRS[worst]} far from all others against "
        + ("a null record" if neighbours is Neighbours.REPLACE_SPECIAL else "its opposite of the other class"),
        seconds=round(time.monotonic() - started, 2),
        neighbours=str(neighbours),
    )


_PAIRS = {"train": "training record", "test": "held-out record", _PERSON: f"person with {_HEAVY} rows"}


def chain_config(name: str, epsilon: float, delta: float, neighbours: Neighbours) -> TrainingConfig:
    """Return the run that is audited: all that may be measured, few steps of a descent."""
    system: System = lookup("systems", name)
    arrangement = next(iter(system.supported().values()))
    known = {field.name for field in fields(lookup("trainers", arrangement.trainer.name))}
    return TrainingConfig(
        algorithm=name,
        dataset=_NAME,
        epsilon=epsilon,
        delta=delta,
        parties=_PARTIES,
        dimension=2 if arrangement.projection is not None else None,
        roc=True,
        neighbours=neighbours,
        # Each step of a descent is the same mechanism at a share of the budget.
        parameters={"trainer.iterations": _MOST_STEPS} if "iterations" in known else {},
    )


def run_once(config: TrainingConfig, tables: Tables, chain: Chain) -> tuple[dict[str, Value], Proved]:
    """Ingest tables as private rows of a fresh root, run the chain, and return what is seen and proved."""
    folder = Path(tempfile.mkdtemp(prefix="unitball-audit-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        with isolated_root(folder / "root"):
            ingest(_request(config, tables, folder))
            before = dict(_fields("--plan before the run", told_before(config)))
            finished = chain(config)
            if finished.result.proved is None:
                raise RefusedError(f"nothing is proved of {config.algorithm} at delta {config.stated_delta:g}")
            return {**before, **observe(current_layout(), config, finished)}, finished.result.proved
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _request(config: TrainingConfig, tables: Tables, folder: Path) -> IngestRequest:
    schema = folder / "schema.yaml"
    classes = ", ".join(f'"{one}"' for one in _CLASSES)
    types = {_PERSON: "person", "y": f"label, classes: [{classes}]"}
    columns = [
        f"  - {{name: c{place}, type: {types.get(name, 'numeric, range: [-1, 1]')}}}"
        for place, name in enumerate(tables["train"].columns)
    ]
    schema.write_text("\n".join(["header: false", "columns:", *columns]) + "\n")
    rows = {part: folder / f"{part}.csv" for part in tables}
    for part, table in tables.items():
        table.to_csv(rows[part], header=False, index=False, float_format="%.6f")
    return IngestRequest(
        name=_NAME,
        format="csv",
        path=rows["train"],
        test_path=rows["test"],
        schema_path=schema,
        visibility=Visibility.PRIVATE,
        epsilon_cap=_CAP,
        delta_cap=0.5 / _ROWS,
        on_violation=OnViolation.DROP,
        allow_idealised=True,
        relation=config.neighbours,
    )


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
    :mod:`dpalgos.audit.bounds`. A system that passes is not proved sound: one run is far from tight.

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
