"""The audit of a whole chain: runs on two neighbouring private data sets, and all their traces compared."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd

from dpalgos.algorithms import Refused, admission
from dpalgos.audit.bounds import Comparison, Value, compare
from dpalgos.audit.experiment import USUAL, AuditOptions, BoundReport, Verdict
from dpalgos.guarantees import Neighbours
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup
from dpalgos.systems.system import System
from storage.errors import RefusedError
from storage.refs import OnViolation, Visibility
from tasks.auditing.systems import parts_of
from tasks.auditing.traces import fields_of, observe, told_before
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.progress import report_runs
from tasks.runtime.settings import current_layout, isolated_root
from tasks.tracking.results import Chained, Proved

Chain = Callable[[TrainingConfig], Chained]
"""Runs the whole chain without an engine: ``flows.federated_training.chain_inline``."""
_NAME = "synthetic"
_ROWS, _TEST_ROWS, _FEATURES = 40, 12, 4
# To train on where a system looks at columns first: at epsilon 1 enough that it counts them.
_TABLE_ROWS = 600
_CLASSES = ("no", "yes")
_PARTIES = 2
# The column of people, and rows of one who has many.
_PERSON, _HEAVY = "person", 50
# Synthetic rows need not outlive a power cut: what a run waits for is mostly the disk.
_MEMORY = Path("/dev/shm")
# Beyond what any audited budget can cost: the cap is not what is audited.
_CAP = 1e6
_MOST_STEPS = 3
_TRIALS = 48
Tables = Mapping[str, pd.DataFrame]
"""The rows to train on, ``train``, and those held out, ``test``: features in (−1, 1), a label at the end."""


def synthetic_tables(neighbours: Neighbours, part: str, rows: int = _ROWS) -> tuple[Tables, Tables]:
    """Return two private data sets that differ in one record: a row far from all others against the relation's other.

    Under ``replace-one`` that is the opposite row of the other class, under ``replace-special`` a null record: a row
    that the schema rejects. Where the records are people, one has many rows far from all others, against one row.

    Parameters
    ----------
    neighbours : Neighbours
    part : {"train", "test", "person"}
        Where the record is, or that it is a person who trains.
    rows : int
        To train on.
    """
    random = np.random.default_rng(7)
    base = {"train": _crowd(rows, random), "test": _crowd(_TEST_ROWS, random)}
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
    """Run a proved system on neighbouring synthetic private tables and compare all public outputs.

    Each run is a whole one, a charged evaluation included, in a fresh root with its own secrets: rows are ingested
    as private, the plan is charged, the noise comes from the door. What is compared: see
    :func:`~tasks.auditing.traces.observe`. One pair differs in a row that trains; where the evaluation is charged,
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
    neighbours, (epsilon, delta) = options.neighbours or Neighbours.REPLACE_ONE, options.budget()
    config = chain_config(name, epsilon, delta, neighbours)
    refused = any(isinstance(admission(part), Refused) for part in parts_of(name))
    parts = ("train", "test", *(() if refused else (_PERSON,)))
    return compare_chains(
        name,
        options,
        {part: synthetic_tables(neighbours, part, rows_of(name)) for part in parts},
        lambda tables: run_once(config, tables, chain),
        claimed_epsilon=None if lookup("systems", name).claim is None else epsilon,
    )


def compare_chains(
    name: str,
    options: AuditOptions,
    pairs: Mapping[str, tuple[Tables, Tables]],
    run: Callable[[Tables], tuple[dict[str, Value], Proved]],
    *,
    claimed_epsilon: float | None = None,
) -> ChainReport:
    """Run a chain on both sides of each pair of neighbours many times, and compare all that is seen.

    Parameters
    ----------
    name : str
        Of what is audited.
    options : AuditOptions
    pairs : mapping of part to (Tables, Tables)
        Parts as of :func:`synthetic_tables`.
    run : callable
        Runs the chain once in a separate root; returns what is seen and what is proved.
    claimed_epsilon : float, optional
    """
    trials, confidence = _TRIALS if options.trials is None else options.trials, options.confidence
    if trials < 2:
        raise ParameterError(f"trials is {trials}; the audit of a chain needs at least 2, and 48 for a useful bound")
    neighbours, (_, delta) = options.neighbours or Neighbours.REPLACE_ONE, options.budget()
    started = time.monotonic()
    # Each pair at its share of the error.
    each = 1.0 - (1.0 - confidence) / len(pairs)
    reports = {}
    for number, (part, pair) in enumerate(pairs.items()):
        seen: list[list[dict[str, Value]]] = [[], []]
        # In turn, so that any drift meets both worlds alike.
        for trial in range(trials):
            for world, tables in enumerate(pair):
                observed, proved = run(tables)
                seen[world].append(observed)
                report_runs(2 * (number * trials + trial) + world + 1, 2 * trials * len(pairs))
        reports[part] = compare(seen[0], seen[1], delta=delta, confidence=each)
    worst = max(pairs, key=lambda part: (reports[part].lower_bound, len(reports[part].differing)))
    most = replace(
        reports[worst],
        differing=tuple(f"{part}: {field}" for part in pairs for field in reports[part].differing),
        fields=max(one.fields for one in reports.values()),
    )
    return ChainReport(
        **vars(most),
        algorithm=name,
        claimed_epsilon=claimed_epsilon,
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


def rows_of(name: str) -> int:
    """Return how many rows a system is audited on."""
    system: System = lookup("systems", name)
    return _ROWS if system.table_normalisation is None else _TABLE_ROWS


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
    with fresh_folder() as folder, isolated_root(folder / "root"):
        ingest(request_of(tables, folder, config.neighbours, size=rows_of(str(config.algorithm))))
        before = dict(fields_of("--plan before the run", told_before(config)))
        finished = chain(config)
        if finished.result.proved is None:
            raise RefusedError(
                f"{config.algorithm} has no proved guarantee at delta {config.stated_delta:g}; choose a delta above 0"
            )
        return {**before, **observe(current_layout(), config, finished)}, finished.result.proved


def request_of(
    tables: Tables,
    folder: Path,
    relation: Neighbours | None,
    types: Mapping[object, str] = {},  # read alone
    *,
    size: int,
    head: Sequence[str] = (),
) -> IngestRequest:
    """Write tables and their schema to a folder, and return how they are ingested, as private rows.

    Parameters
    ----------
    tables : mapping of part to data frame
    folder : Path
    relation : Neighbours or None
        Of the account.
    types : mapping of column to str
        Declared types, with what they have. Default: a number in [−1, 1]; the label and people are known.
    size : int
        Public number that the cap's delta follows from: neighbours of people differ in how many rows there are.
    head : sequence of str
        Further lines of the schema.
    """
    schema = folder / "schema.yaml"
    classes = ", ".join(f'"{one}"' for one in _CLASSES)
    known = {_PERSON: "person", "y": f"label, classes: [{classes}]", **types}
    columns = [
        f"  - {{name: c{place}, type: {known.get(name, 'numeric, range: [-1, 1]')}}}"
        for place, name in enumerate(tables["train"].columns)
    ]
    schema.write_text("\n".join(["header: false", *head, "columns:", *columns]) + "\n")
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
        delta_cap=0.5 / size,
        on_violation=OnViolation.DROP,
        allow_idealised=True,
        relation=relation,
    )


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """Yield a folder for one run's root and rows, which is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="unitball-audit-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
