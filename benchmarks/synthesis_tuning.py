"""Tuning on synthetic rows against paid tuning and defaults: accuracy on test rows that no run has read.

    UNITBALL_DATA=/path/to/data python benchmarks/synthesis_tuning.py [--sets nursery,…] [--epsilon 1] [--seeds 2]
        [--rows N] [--output FILE.json] [--table]

Each cell (set, system, seed) is computed once and kept in the output file. Private rows under one curator, replace-one,
delta 10⁻⁶; a seed is a repetition with fresh noise. The candidates are steps of 4, 1 and 12 of ``noisy-gd``.

* ``rules``: the recommended system at ε; ``default``: ``noisy-gd`` with its own defaults at ε.
* ``paid``: ``--tune`` on private rows, within ε.
* ``drawn``: ``--tune --on`` rows that are drawn from a separate synthesis at ε, then a run at ε. ``epsilon of both``
  is that of all that this run rests on.
* ``rules at both``: the recommended system at that ε, without a synthesis.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from shared import cells_of, head, keep, line
from table_sets import Table, load

SETS = ("nursery", "page_blocks", "satimage", "churn", "letter", "adult")
SYSTEMS = ("rules", "default", "paid", "drawn", "rules at both")
_STEPS = (4.0, 1.0, 12.0)
_DELTA = 1e-6
_CAP = 500.0
_RESULTS = Path(__file__).parent / "results" / "synthesis-tuning.json"

Cell = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute the cells that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rows", type=int, help="the first rows of each set alone: to see that it runs")
    parser.add_argument("--output", type=Path, default=_RESULTS)
    parser.add_argument("--table", action="store_true", help="print what the file holds")
    given = parser.parse_args(arguments)
    if not given.table:
        for name in given.sets.split(","):
            compute(name, given)
    show(given.output)


def compute(name: str, given: argparse.Namespace) -> None:
    """Compute what the output file lacks of one set."""
    found = cells_of(given.output)
    there = {(one["set"], one["epsilon"], one["system"], one["seed"]) for one in found}
    missing = [
        {"set": name, "epsilon": given.epsilon, "system": system, "seed": seed}
        for system in SYSTEMS
        for seed in range(given.seeds)
        if (name, given.epsilon, system, seed) not in there
    ]
    if not missing:
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UNITBALL_ROOT"], os.environ["UNITBALL_LEDGER_MARK"] = f"{folder}/root", f"{folder}/marks"
        table = load(name)
        runs = Runs(table.first(given.rows) if given.rows else table, name, given.epsilon)
        for cell in missing:
            found.append({**cell, **runs.measured(cell)})
            keep(given.output, {"cells": found}, f"mean of {given.seeds} seeds")


class Runs:
    """Runs on one set's training rows, which are private, in a separate root."""

    def __init__(self, table: Table, name: str, epsilon: float) -> None:
        from storage.frames import frame_of
        from storage.readers.in_memory import DeclaredFrame
        from tasks.datasets.registration import ingest
        from tasks.datasets.request import IngestRequest

        self._table, self._name, self._epsilon = table, name, epsilon
        self._test = table.frame(table.test)
        frame = table.frame(table.train).assign(y=table.train.labels.astype(str))
        rows = DeclaredFrame(frame=frame_of(frame), schema=table.schema())
        ingest(IngestRequest(name=name, epsilon_cap=_CAP, delta_cap=1e-5), rows=rows)

    def measured(self, cell: Cell) -> Cell:
        """Return the accuracy of a system's run, and what it chose."""
        given: dict[str, Any] = {"algorithm": "noisy-gd", "epsilon": self._epsilon}
        system = cell["system"]
        if system in ("paid", "drawn"):
            given["tune"] = {"step_size": _STEPS}
        if system == "drawn":
            given["tuned_on"] = self._drawn()
        if system.startswith("rules"):
            given["algorithm"] = "unitball"
        if system == "rules at both":
            given["epsilon"] = self._composed()
        result, right = self._trained(cell["seed"], **given)
        chosen = {} if system != "drawn" else {"step": self._chosen(result), "epsilon of both": result.epsilon_spent}
        return {"accuracy": right, **chosen}

    def _trained(self, seed: int, **given: Any) -> tuple[Any, float]:
        import unitball

        common = {"trust": "central", "parties": 1, "delta": _DELTA, "evaluation": False, "test_fraction": 0.0}
        model = unitball.train(self._name, **common, replicate=seed, **given)
        right = np.mean(np.asarray(model.predict(self._test)).astype(str) == self._table.test.labels.astype(str))
        return model.result, round(float(right), 4)

    def _drawn(self) -> str:
        import unitball

        given = {"delta": _DELTA, "test_fraction": 0.0}
        return str(unitball.synthesise(self._name, epsilon=self._epsilon, **given).attrs["name"])

    def _chosen(self, result: Any) -> float:
        from tasks.runtime.stores import open_releases

        manifest = open_releases().manifest(result.releases[-1])
        return float(manifest["algorithm"]["parameters"]["step_size"])

    def _composed(self) -> float:
        from dpalgos.accounting.composition import compose
        from dpalgos.accounting.profiles import mu_from_epsilon_delta
        from dpalgos.guarantees import GaussianMu

        mu = mu_from_epsilon_delta(self._epsilon, _DELTA)
        return float(compose((GaussianMu(mu), GaussianMu(mu))).epsilon(_DELTA))


def show(path: Path) -> None:
    """Print the table of a file of results."""
    runs = pd.DataFrame(cells_of(path))
    head("set", *SYSTEMS)
    for name, of_set in runs.groupby("set", sort=False):
        means = of_set.groupby("system")["accuracy"].mean()
        line(name, *(f"{means[system]:.4f}" if system in means else "–" for system in SYSTEMS))


if __name__ == "__main__":
    main()
