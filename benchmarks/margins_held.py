"""Margins of numeric labels, of groups, and intervals: in how many simulated runs they hold, and how wide they are.

    python benchmarks/margins_held.py [--kinds errors,groups,differences,intervals] [--runs 10000]
        [--output benchmarks/results/margins.json]

The simulations of the nightly tests: released vectors are drawn without training. Cells that are in the file already
are not made again; delete it after a change of the margins. All of it takes half an hour on one core.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# The simulations are those of the tests, which are not installed.
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import numpy as np
from shared import cells_of, keep

Cell = dict[str, Any]


def counted(found: Any) -> Cell:
    """Return how often margins of one number held, and their median width over the spread of the estimates."""
    wide = found.width / found.spread if found.spread > 0 else None
    return {
        "runs": found.runs,
        "held": found.held,
        "shown": found.shown,
        "held_of_shown": found.held_of_shown,
        "width": None if wide is None else round(wide, 3),
    }


def errors(runs: int, done: Callable[[Cell], bool]) -> Iterator[list[Cell]]:
    """Yield the cells of each population of errors, one for each metric."""
    from tests.dpalgos.test_error_margins import NIGHT, examined, world

    for name, rows, epsilon, given in NIGHT:
        at = {"kind": "errors", "of": name, "rows": rows, "epsilon": epsilon, **given}
        at["relation"] = str(given.get("relation", "replace-one"))
        if not done(at):
            each = examined(world(name, rows, epsilon, **given), runs, seed=4)
            yield [{**at, "metric": metric, **counted(found)} for metric, found in each.items()]


def groups(runs: int, done: Callable[[Cell], bool]) -> Iterator[list[Cell]]:
    """Yield the cells of each group, one for each rate."""
    from dpalgos import margins
    from tests.dpalgos.test_by_group import GROUPS, RELEASES, examined

    margins._MOST = 1_000
    for (name, table), noise in itertools.product(GROUPS.items(), RELEASES):
        at = {"kind": "groups", "of": name, "noise": noise}
        if not done(at):
            each = examined(table, runs, of=noise)
            yield [{**at, "metric": metric, **counted(found)} for metric, found in each.items()]


def differences(runs: int, done: Callable[[Cell], bool]) -> Iterator[list[Cell]]:
    """Yield the cells of each two groups, one for each difference of a rate."""
    from dpalgos import margins
    from tests.dpalgos.test_by_group import PAIRS, RELEASES, examined_differences

    margins._MOST = 1_000
    for noise, (name, tables) in itertools.product(RELEASES, PAIRS.items()):
        at = {"kind": "differences", "of": name, "noise": noise}
        if not done(at):
            each = examined_differences(tables, runs, of=noise)
            yield [{**at, "metric": f"difference_{metric}", **counted(found)} for metric, found in each.items()]


def intervals(runs: int, done: Callable[[Cell], bool]) -> Iterator[list[Cell]]:
    """Yield the cell of each law of errors, whose interval of coverage 0.9 is claimed in 0.95 of the runs."""
    from tests.dpalgos.test_conformal import DAY, LAWS, NIGHT, covered, profile, released

    for law, wider in [*DAY, *NIGHT]:
        for name, draw in LAWS.items():
            at = {"kind": "intervals", "of": name, "rows": law.rows, "epsilon": law.epsilon, "wider": wider}
            at |= {"relation": str(law.relation), "metric": "interval"}
            if not done(at):
                of = profile(draw, wider)
                good, _ = covered(*released(np.random.default_rng(law.rows), of, law, runs), law, of, 0.9)
                yield [{**at, "runs": runs, "held": int(good.sum())}]


KINDS = {"errors": errors, "groups": groups, "differences": differences, "intervals": intervals}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "margins.json")
    given = parser.parse_args()
    cells = cells_of(given.output)

    def done(at: Cell) -> bool:
        return any(all(one.get(key) == value for key, value in at.items()) for one in cells)

    for kind in given.kinds.split(","):
        for case in KINDS[kind](given.runs, done):
            cells += case
            keep(given.output, {"cells": cells}, f"{given.runs:,} runs each")


if __name__ == "__main__":
    main()
