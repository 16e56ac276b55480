"""Nights of tables: second moments of functions of columns at the noise of a horizon's last night, on held-out rows.

    UNITBALL_DATA=/path/to/data python benchmarks/nightly_tables.py [--sets adult,…] [--epsilons 0.1,0.3,1,3,10]
        [--seeds 3] [--nights 365] [--output FILE.json] [--table]

What a horizon learns of a table's columns was chosen by it (``dpalgos.systems.tables.learning_of_nights``). Each cell
is a set, an epsilon of the horizon, a level of functions (``linear``: the product's encoding, rows of norm 1), how well
the histograms tell ranks (q, ``rank_error``), and a seed, on a fifth of the training rows: the mechanism of one release
on the budget over ``error_of(nights)``, which has the noise of the running sum of the last night. Delta is 10⁻⁶,
replace-one, one curator. Numeric labels are clipped to the range that the histograms say. A cell that the output file
holds is not computed again; ``--table`` prints what it holds, with what the rule takes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from shared import cells_of, head, keep, line
from table_sets import Table, load
from tables import DELTA, encoded, facts_of, metrics, of_table, setting_of

from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.algorithms import fit
from dpalgos.column_maps import LearntColumns, how_counted
from dpalgos.evaluators.column_histograms import ColumnHistograms, bins_for, rank_error
from dpalgos.guarantees import GaussianMu
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.mechanisms.factorisation import ToeplitzFactor
from dpalgos.normalisation import UnitNorm
from dpalgos.rows import ArrayRows, Floats
from dpalgos.systems.tables import level_of_nights
from dpalgos.trainers.discriminant import SufficientStatistics

SETS = (
    "adult", "churn", "ijcnn1", "letter", "page_blocks", "pendigits", "phoneme", "ring", "satimage",
    "cpu_act", "house_16H", "wind",
)  # fmt: skip
LEVELS = ("linear", "scores", "univariate", "products")
RANKS = (0.03, 0.1, 0.3)
_RESULTS = Path(__file__).parent / "results" / "nightly-tables.json"

Cell = dict[str, Any]


def main() -> None:
    """Compute the cells that are missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--epsilons", default="0.1,0.3,1,3,10")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--output", type=Path, default=_RESULTS)
    parser.add_argument("--table", action="store_true", help="print what the file holds")
    given = parser.parse_args()
    found = cells_of(given.output)
    there = {(cell["set"], cell["seed"]) for cell in found}
    for name in () if given.table else given.sets.split(","):
        for seed in range(given.seeds):
            if (name, seed) not in there:
                epsilons = [float(one) for one in given.epsilons.split(",")]
                found += measured(load(name).held_out(), seed, epsilons, given.nights)
                keep(given.output, {"cells": found}, f"{given.seeds} seeds per set")
    show(pd.DataFrame(found))


def measured(table: Table, seed: int, epsilons: list[float], nights: int) -> Iterator[Cell]:
    """Yield the cells of a set and a seed."""
    error = ToeplitzFactor(nights=nights).error_of(nights)
    for level, q, rows, ends in seen(table, seed):
        for epsilon in epsilons:
            mu = mu_from_epsilon_delta(epsilon, DELTA) / error
            given = {"label_range": ends} if table.classes == 1 else {}
            trainer = SufficientStatistics(budget=GaussianMu(mu), **given)
            noise = KeyedNoise(public_secret(seed), "nights")
            train = ArrayRows(rows[0], table.train.labels)
            scores = np.asarray(fit(trainer, [train], setting_of(table, rows[0]), noise).scores(rows[1]))
            scores = scores[:, 0] if scores.shape[1] == 1 else scores
            scores = np.clip(scores, *table.label_range) if table.classes == 1 else scores
            yield {
                "set": table.name, "epsilon": epsilon, "level": level, "q": q, "seed": seed, **metrics(scores, table),
                "taken": taken(table, epsilon, error, q),
            }  # fmt: skip


def taken(table: Table, epsilon: float, error: float, q: float | None) -> str:
    """Return the level that the rule takes at histograms of this noise."""
    columns, cells = of_table(table)
    dimension = cells(table.test.at(np.arange(1))).shape[1]
    facts = replace(facts_of(table, epsilon, dimension), columns=columns, nightly=np.inf if q is None else q)
    return level_of_nights(facts, len(table.train) * mu_from_epsilon_delta(epsilon, DELTA) / error)


def seen(table: Table, seed: int) -> Iterator[tuple[str, float | None, list[Floats], tuple[float, float]]]:
    """Yield each level, q, the training and held-out rows seen so, and the range of a numeric label."""
    parts = (table.train, table.test)
    yield "linear", None, [np.asarray(UnitNorm()(encoded(table, part))) for part in parts], table.label_range
    columns, cells = of_table(table)
    raw = [cells(part) for part in parts]
    setting = setting_of(table, raw[0])
    ends = table.label_range if table.classes == 1 else None
    for q in RANKS:
        mu, bins = 1.0, 1024
        for _ in range(8):
            bins = bins_for(len(raw[0]), len(columns) + 1, mu)
            mu *= rank_error(len(raw[0]), len(columns) + 1, mu, bins) / q
        counts = ColumnHistograms(budget=GaussianMu(mu), columns=columns, bins=bins, label_range=ends)
        noise = KeyedNoise(public_secret(seed), "counts")
        released: Any = fit(counts, [ArrayRows(raw[0], table.train.labels)], setting, noise)
        for level in LEVELS[1:]:
            made = LearntColumns(
                level=level, columns=columns, dimension=raw[0].shape[1], classes=table.classes, label_range=ends,
                releases=[how_counted(counts, setting)],
            ).combine([released], np.ones(1))  # fmt: skip
            low, high = made.label_range if table.classes == 1 else table.label_range
            yield level, q, [made.apply(part) for part in raw], (float(low), float(high))


def show(found: pd.DataFrame) -> None:
    """Print each metric's means over seeds, linear columns → what the rule takes."""
    for metric in ("accuracy", "auc", "r2"):
        if metric not in found:
            continue
        known = found[found[metric].notna()]
        for q in RANKS[:2]:
            print(f"\n{ {'r2': 'R²', 'auc': 'AUC'}.get(metric, metric.capitalize()) }, histograms of q = {q:g}\n")
            epsilons = sorted(known["epsilon"].unique())
            head("set", *(f"ε = {epsilon:g}" for epsilon in epsilons))
            for name in [name for name in SETS if name in set(known["set"])]:
                cells = []
                for epsilon in epsilons:
                    here = known[(known["set"] == name) & (known["epsilon"] == epsilon)]
                    linear = here[here["level"] == "linear"]
                    learnt = here[(here["q"] == q) & (here["level"] == here["taken"])]
                    means = [part[metric].mean() for part in (linear, linear if learnt.empty else learnt)]
                    cells.append(" → ".join(f"{mean:.3f}" for mean in means))
                line(name, *cells)


if __name__ == "__main__":
    main()
