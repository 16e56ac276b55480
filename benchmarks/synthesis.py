"""Synthetic rows: how near drawn rows are to the rows that were counted, and what a model learns from them.

    UNITBALL_DATA=/path/to/data python benchmarks/synthesis.py [--sets adult,…] [--epsilons 0.1,0.3,1,3] [--seeds 2]
        [--systems tree,independent,rule,real] [--held-out] [--peers] [--output FILE.json] [--table]

Each cell (set, epsilon, system, seed) is computed once and kept in the output file, so that a run that was stopped goes
on where it was; ``--table`` prints what the file holds and computes nothing. Delta is 10⁻⁶, one curator, replace-one.
As many rows are drawn as were counted. ``--held-out`` counts four fifths of the training rows, and tests models on the
others: the numbers of ``dpalgos/synthesis/stages.py`` are chosen there. ``--peers`` adds other libraries, each in a
separate environment in the folder ``--peers-in`` (``benchmarks/peers-synthesis.txt``), at most 600 seconds of CPU per
cell.

* ``rule``: stages as ``stages_for`` chooses them; ``tree`` and ``independent``: always with the tree of columns, and
  always with columns that are independent given the class.
* ``real``: the counted rows themselves.

Total variation between drawn and counted rows: the mean over all single columns, pairs and triples of columns, with the
label as a column. Numbers are compared in the deciles of the counted rows. AUC (macro one-vs-rest for many classes) on
rows that were not counted, of scikit-learn's HistGradientBoosting with its defaults and LogisticRegression of
standardised numbers and one-hot categories. Seconds are CPU seconds of counting and drawing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from shared import cells_of, head, keep, line
from table_sets import Part, Table
from tables import auc, command, key_of, lacking, of_table, store, systems_of

from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.synthesis.drawing import Drawing
from dpalgos.synthesis.stages import Stages, stages_for

DELTA = 1e-6
SETS = ("adult", "nursery", "letter", "churn")
OURS = ("tree", "independent", "rule", "real")
PEERS = ("dpmm-mst", "dpmm-aim", "mbi-mst", "smartnoise-mst", "smartnoise-aim")
_ENVIRONMENTS = {"smartnoise": "smartnoise-synth"}
METRICS = ("one", "two", "three", "auc boosting", "auc logistic", "seconds")
_RESULTS = Path(__file__).parent / "results" / "synthesis.json"
# Points of the public grid in a bin, as the product draws numbers.
_POINTS = 64
# CPU seconds of a cell of another library.
_LIMIT = 600
_DECILES = np.arange(1, 10) / 10.0

Cell = dict[str, Any]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute the cells that are missing, and print the table."""
    parser = command(__doc__, sets=SETS, epsilons="0.1,0.3,1,3", seeds=2, systems=OURS, results=_RESULTS)
    parser.add_argument("--peers-in", type=Path, default=Path(".peers-synthesis"))
    given = parser.parse_args(arguments)
    if not given.table:
        compute(given, systems_of(given, PEERS))
    show(given.output)


def compute(given: argparse.Namespace, systems: Sequence[str]) -> None:
    """Compute what the output file lacks, a cell at a time."""
    found = cells_of(given.output)
    for table, missing in lacking(given, systems, found, "real"):
        for cell in missing:
            same = [one for one in found if _same(table, one, cell)]
            found.append({**same[0], "system": "rule"} if same else measured(table, cell, given.peers_in))
            keep(given.output, {"cells": found}, f"mean of {given.seeds} seeds")


def _same(table: Table, known: Cell, cell: Cell) -> bool:
    """Return whether a cell of the rule is one that is known: the stages, and so the rows, are equal."""
    at = {"system": known["system"]}
    if cell["system"] != "rule" or known["system"] not in ("tree", "independent") or key_of(known) != key_of(cell | at):
        return False
    mu = mu_from_epsilon_delta(cell["epsilon"], DELTA)
    return replace(staged("rule", table, mu), reason="") == replace(staged(known["system"], table, mu), reason="")


def measured(table: Table, cell: Cell, environments: Path) -> Cell:
    """Return a cell with what was measured."""
    if cell["system"] in PEERS:
        return of_peer(table, cell, environments)
    started = time.process_time()
    drawn, chosen = (table.train, None) if cell["system"] == "real" else ours(table, cell)
    seconds = round(time.process_time() - started, 2)
    edges = {} if chosen is None else {"edges": chosen}
    return {**cell, **metrics(table, drawn, cell["seed"]), "seconds": seconds, **edges}


def of_peer(table: Table, cell: Cell, environments: Path) -> Cell:
    """Run another library's side in its own environment; the cell says why where it has no rows."""
    library = str(cell["system"]).partition("-")[0]
    if not (python := environments / _ENVIRONMENTS.get(library, library) / "bin" / "python").exists():
        sys.exit(f"{python} is not there: make the environment as benchmarks/peers-synthesis.txt says")
    with tempfile.TemporaryDirectory() as folder:
        stored, drawn = Path(folder) / "table.npz", Path(folder) / "drawn.npz"
        store(table, stored)
        try:
            said = subprocess.run(
                [str(python), str(Path(__file__).with_name("synthesis_peers.py")), cell["system"], str(stored)],
                input=json.dumps({**cell, "delta": DELTA, "drawn": str(drawn)}),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (_LIMIT, _LIMIT + 5)),
            )
        except subprocess.CalledProcessError as ended:
            late = ended.returncode == -signal.SIGXCPU
            said_so = f"no rows within {_LIMIT} CPU s" if late else f"ended with exit status {ended.returncode}"
            return {**cell, "error": said_so}
        answer = json.loads(said.stdout)
        if "error" in answer:
            return {**cell, "error": answer["error"], "seconds": round(answer["seconds"], 2)}
        held = np.load(drawn)
        part = Part(held["numbers"], held["codes"], held["labels"])
    return {**cell, **metrics(table, part, cell["seed"]), "seconds": round(answer["seconds"], 2)}


def ours(table: Table, cell: Cell) -> tuple[Part, int]:
    """Return drawn rows, a category that is drawn as missing with the code behind its last, and the tree's edges."""
    # The chain of the product's releases in memory.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.synthesis import Chain

    columns, cells = of_table(table)
    mu = mu_from_epsilon_delta(cell["epsilon"], DELTA)
    labels = table.train.labels.astype(np.float64)
    stages = staged(cell["system"], table, mu)
    chain = Chain(cells(table.train), labels, columns, table.classes, mu, cell["seed"], stages=stages)
    synthesis = chain.run()
    drawing = Drawing(cell["seed"], len(labels))
    drawn, bins = synthesis.draw(drawing), int(synthesis.bins[0])
    low, high = table.ranges.T
    numbers = len(table.ranges)
    points = np.stack(
        [drawing.points(str(at), drawn.places[:, at], np.full(bins + 1, _POINTS)) for at in range(numbers)] or [labels],
        1,
    )[:, :numbers]
    shares = (drawn.places[:, :numbers] + (points + 0.5) / _POINTS) / bins
    return Part(low + (high - low) * shares, drawn.places[:, numbers:], drawn.labels), int(
        (synthesis.parents >= 0).sum()
    )


def staged(system: str, table: Table, mu: float) -> Stages:
    """Return the stages of a system."""
    facts = len(table.train), len(table.ranges) + len(table.sizes), table.classes, mu
    return stages_for(*facts, values=table.sizes, tree={"tree": True, "independent": False}.get(system))


def metrics(table: Table, drawn: Part, seed: int) -> dict[str, float]:
    """Return total variation of columns, pairs and triples, and AUC of models of drawn rows."""
    cuts = [_cuts(column) for column in table.train.numbers.T]
    sizes = [*(len(one) + 1 for one in cuts), *(size + 1 for size in table.sizes), table.classes]
    real, others = (_coded(part, cuts) for part in (table.train, drawn))
    found: dict[str, float] = {}
    for name, several in (("one", 1), ("two", 2), ("three", 3)):
        each = [_variation(real, others, sizes, at) for at in itertools.combinations(range(len(sizes)), several)]
        found[name] = round(float(np.mean(each)), 4)
    return found | learnt(table, drawn, seed)


def _cuts(column: Floats) -> Floats:
    """Return the deciles, each moved half way to the value below: a value that is frequent is not on a cut."""
    values = np.unique(column)
    at = np.unique(np.searchsorted(values, np.quantile(column, _DECILES, method="lower")))
    return np.asarray((values[at[at > 0]] + values[at[at > 0] - 1]) / 2.0)


def _coded(part: Part, cuts: Sequence[Floats]) -> Ints:
    numbers = [np.searchsorted(one, column, side="right") for one, column in zip(cuts, part.numbers.T, strict=True)]
    return np.stack([*numbers, *part.codes.T, part.labels]).astype(np.int64)


def _variation(real: Ints, drawn: Ints, sizes: Sequence[int], at: Sequence[int]) -> float:
    shape = [sizes[one] for one in at]
    shares = [
        np.bincount(np.ravel_multi_index(rows[list(at)], shape), minlength=int(np.prod(shape))) / rows.shape[1]
        for rows in (real, drawn)
    ]
    return float(np.abs(shares[0] - shares[1]).sum() / 2.0)


def learnt(table: Table, drawn: Part, seed: int) -> dict[str, float]:
    """Return the AUC of models of drawn rows on the test rows."""
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers, categories = len(table.ranges), len(table.sizes)
    rows, test = (np.hstack([part.numbers, part.codes]) for part in (drawn, table.test))
    at = list(range(numbers)), list(range(numbers, numbers + categories))
    values = [np.arange(size + 1, dtype=np.float64) for size in table.sizes]
    encoder = make_column_transformer((StandardScaler(), at[0]), (OneHotEncoder(categories=values), at[1]))
    models = {
        "auc boosting": HistGradientBoostingClassifier(random_state=seed, categorical_features=at[1]),
        "auc logistic": make_pipeline(encoder, LogisticRegression(max_iter=300)),
    }
    found = {}
    for name, model in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chances = np.zeros((len(test), table.classes))
            fitted = model.fit(rows, drawn.labels)
            chances[:, fitted.classes_] = fitted.predict_proba(test)
        labels = table.test.labels
        there = [k for k in range(table.classes) if 0 < np.count_nonzero(labels == k) < len(labels)]
        found[name] = round(float(np.mean([auc(chances[:, k], labels == k) for k in there])), 4)
    return found


def show(path: Path) -> None:
    """Print the table of a file of results."""
    cells = cells_of(path)
    runs = pd.DataFrame(cells, columns=list(dict.fromkeys([*METRICS, *(key for one in cells for key in one)])))
    means = runs.groupby(["set", "epsilon", "system"], dropna=False)[list(METRICS)].mean()
    head("set", "ε", "system", *METRICS)
    for (name, epsilon, system), row in means.iterrows():
        line(name, f"{epsilon:g}", system, *(f"{one:.4f}" for one in row[:-1]), f"{row.iloc[-1]:.1f}")


if __name__ == "__main__":
    main()
