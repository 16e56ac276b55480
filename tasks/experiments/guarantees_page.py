"""The page of guarantees, written from the registry: claim beside proof for every release."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dpalgos.guarantees import (
    RELATIONS,
    ApproximateDP,
    GaussianMu,
    Loss,
    Neighbours,
    PureEpsilon,
    Setting,
    Trust,
)
from dpalgos.registry import AlgorithmSpec, lookup, names
from dpalgos.sensitivities import Calibrated, attained
from tasks.planning.algorithms import PARTS, describe_part, describe_system

_PREFACE = """\
# Guarantees

*This page is generated from the registry by `unitball algorithms --markdown`; a test compares the two.*

Every algorithm says two things: what is **proved** about this code, and what its paper **claims**. Where the two differ
the flaw is named, the published algorithm runs on public data only, and its sound counterpart is named beside it.

## What holds for every release

- **Relation.** Neighbouring data sets of n records differ in one of them; n and the parties' sizes are public (they are
  the aggregation weights). Under `replace-one` a record is replaced by any other, under `replace-special` by the *null
  record*, which is counted in n and contributes nothing (`dpalgos/rows.py`): then a signed sum moves by 1 instead of 2
  and a covariance or a count by 1 instead of √2. Null records occur in private data (rows a schema drops), so suprema
  under `replace-one` include them. An account keeps one relation; a release proved under `replace-special` enters an
  account of `replace-one` as a group of two (μ → 2μ, ε → 2ε, ρ → 4ρ, δ → (1 + e^ε) δ), never the other way.
  `add-remove-one` is refused: n shows in manifests, sizes of shards, grids and calibrations, and an audit told forty of
  forty neighbouring pairs apart by it. Releases that were charged under it are accounted as groups of two. The unit of
  privacy is the row; an owner who declares k rows a person (`--group-size`) is charged for groups.
- **Who may see what.** `local`: the server sees each party's noisy release. `central`: one trusted curator sees the
  rows and adds the noise once. `secagg`: the server sees only a masked sum to which the parties' noise shares were
  added before.
- **Composition.** A run's releases are one plan, known beforehand and composed tightly. A plan enters an account by a
  bound on its whole trade-off curve (least mu, least rho, or its tight epsilon at the delta it states), never by one
  (epsilon, delta) point; across plans only filters that hold under full adaptivity count
  (`dpalgos/accounting/domination.py` and `filters.py` have the proofs, [accounting](accounting.md) the numbers). What
  is guaranteed of an account is its cap; "spent" is a reading. A raised cap is the old cap and a new filter with its
  own part of delta (`successive.py`). A party pays for what reads its rows; partitions of the same rows add up.
- **Exactly once.** A release is charged before noise exists and keyed by its identity; see [design](design.md).
- **Numerics.** `exact`: the noise is drawn in integers and the guarantee holds for the released bits, up to a total
  variation below 2⁻¹⁰⁰ a draw. `idealised`: floating-point noise, the guarantee holds in real arithmetic; on private
  data this needs the owner's word (`--allow-idealised`).
- **Totality.** Behind the door nothing raises, stops or branches to another release because of what rows contain.
- **Where a row goes** is decided by its position and by public facts, never by what any row holds, so that neighbours
  differ in one row at one place. A null record keeps its place. A test changes one row (equal to another, null, first,
  last, of another label) and finds every other one where it was (`tests/tasks/test_partitioning.py`); another finds
  that what a row adds to an integer sum depends on that row alone, seen through a released basis or model too
  (`tests/dpalgos/test_spreading.py`). Maps by products of real numbers (`random-fourier`, `public-whitening`, those
  learnt on public rows) may round a row by its place, which is its own, never by what stands beside it.

| what is split | by what |
| --- | --- |
| parties with files of their own (`--partition own`) | the file that the row came in |
| simulated parties (`even`, `sized`) | its position among the rows that train, their number, a public seed |
| simulated parties by label (`by-label`, `dirichlet`) | the labels: refused on private rows |
| the held-out part of private rows | its position in its file, the party's name, a public seed |
| the held-out part of public rows | its position, the number of rows, a public seed |
| training and test files | the file |
| nights of files of their own | the file, and the version that the row came with |
| nights dealt to parties in turn | the version, and its position after the older rows ([when](nights.md#nights)) |
| nights of `continual-class-means`, `continual-ftrl` | its position in its party, modulo the nights |
| the rows that `tuned` scores by | its position in its party, the share that is held out |
| batches of `dp-sgd` | a draw of its own from its holder's secret, for each step |
| blocks, files, workers' parts | its position, the number of features; sums are exact, so the cut changes none |

## Threat model

Protected against: whoever sees all releases, manifests, models, metrics, logs, MLflow and Prefect databases and all
other rows; for `local` and `secagg` also the server and, for `secagg`, as many colluding parties as declared.

Not covered:
- whoever can read a party's own store (rows, its secret) or the process's memory; on one machine the parties are
  simulated and only file modes keep them apart;
- time, without `--deadline`: durations of tasks on private rows are not published by Unitball, but an engine that runs
  them knows when they started and ended. With it each release (and each party's part of a secure sum) appears a public
  number of seconds after its rows could be read; longer work is refused and not tried again, and the declared
  probability of that (`--overrun`, on any rows) is charged as a delta of at least twice its size
  (`dpalgos/accounting/overruns.py` has the proof). Not covered even then: the use of processor, caches, memory and
  files before the deadline, how soon a sleeping process is woken, and an overrun declared rarer than it is. Choose the
  deadline by runs on made-up or public rows of the same sizes;
- a ledger file that is replaced together with its high-water mark by somebody who may write both;
- people in several accounts whose owners declared the people disjoint;
- whose rows an encoder of one's own (`--features onnx:FILE`) was trained on, and the rows of `--public-dataset`: such a
  run names both among its assumptions, and protects the private rows alone;
- what a model says about the population: differential privacy bounds what it says about one row.
"""


def _section(documentation: str, title: str) -> str | None:
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", documentation, flags=re.MULTILINE | re.DOTALL)
    return found.group(1).strip() if found else None


def _lines(entry: dict[str, Any], documentation: str) -> Iterator[str]:
    yield f"### {entry['name']}"
    yield ""
    first = (entry.get("summary") or documentation.split("\n\n")[0]).replace("\n", " ").strip()
    yield first
    yield ""
    facts = [
        ("Source", entry["source"]),
        ("Trust", ", ".join(entry["trust"])),
        *((f"Made of** ({trust})", ", ".join(parts)) for trust, parts in entry.get("parts", {}).items()),
        ("Claim", entry["claim"] and f"{entry['claim']} ({entry['theorem']})"),
        ("Proved", entry["proved"] or "none"),
        ("Why not", entry["reason"]),
        ("Flaw", entry["flaw"]),
        ("Sound counterpart", entry["sound_counterpart"]),
        *(("Assumes", assumption) for assumption in entry["assumptions"]),
    ]
    yield from (f"- **{name}{':' if '**' in name else ':**'} {text}" for name, text in facts if text)
    proof = _section(documentation, "Guarantee")
    if proof:
        yield ""
        yield proof
    yield ""


_TABLE = """\
## Sensitivities

How far one record moves the statistic that the noise of each proved algorithm is calibrated to, at the algorithm's
default parameters (an ε of 1, or a μ of 1), for {parties} parties of {rows} rows with {dimension} features and
{classes} classes; solver tolerances are included, rounding to the grid is not. In brackets the share of it that the
algorithm's own pair of neighbours (`neighbouring_pair`) attains at zero weights. `tests/dpalgos/test_sensitivities.py`
searches for each supremum numerically.
"""
_REFERENCE = Setting(sizes=(200,) * 10, dimension=10, classes=3, trust=Trust.CENTRAL)
_BUDGETS: tuple[Loss, ...] = (GaussianMu(1.0), PureEpsilon(1.0), ApproximateDP(1.0, 1e-5))


def _built(kind: str, name: str) -> Any:
    """Return an algorithm at its defaults with a budget of a type it takes; None where it draws no noise."""
    cls = lookup(kind, name)
    for budget in _BUDGETS:
        if type(budget) in cls.budgets:
            given = {"components": 5} if hasattr(cls, "components") else {}
            return AlgorithmSpec(kind, name, {"budget": budget, **given}).build()
    return None


def _cell(algorithm: Calibrated, relation: Neighbours) -> str:
    setting = replace(_REFERENCE, neighbours=relation)
    return f"{algorithm.sensitivity(setting):.4g} ({attained(algorithm, setting):.2f})"


def _sensitivities() -> Iterator[str]:
    parties, rows = len(_REFERENCE.sizes), _REFERENCE.sizes[0]
    yield _TABLE.format(parties=parties, rows=rows, dimension=_REFERENCE.dimension, classes=_REFERENCE.classes)
    yield "| algorithm | statistic and norm | " + " | ".join(RELATIONS) + " |"
    yield "| --- " * (2 + len(RELATIONS)) + "|"
    for kind in PARTS:
        for name in names(kind):
            algorithm, derived = _built(kind, name), lookup(kind, name).relations
            setting = replace(_REFERENCE, neighbours=derived[0])
            if not isinstance(algorithm, Calibrated) or not _built(kind, name).guarantee(setting).proved:
                continue
            cells = [_cell(algorithm, each) if each in derived else "refused" for each in RELATIONS]
            yield f"| `{name}` | {algorithm.measured} | " + " | ".join(cells) + " |"
    yield ""


def render() -> str:
    """Return the whole page as Markdown."""
    lines = [_PREFACE, *_sensitivities(), "## Systems", ""]
    for name in names("systems"):
        lines += _lines(describe_system(name), "")
    titles = {
        "projections": "Projections",
        "trainers": "Trainers",
        "evaluators": "Evaluations",
    }
    for kind in PARTS:
        if not names(kind):
            continue
        lines += [f"## {titles[kind]}", ""]
        for name in names(kind):
            lines += _lines(describe_part(kind, name), inspect.getdoc(lookup(kind, name)) or "")
    return "\n".join(lines).rstrip() + "\n"
