"""Intervals for single predictions: how wide they are against exact conformal intervals of the same rows.

    python benchmarks/intervals.py simulated [--runs 1000] [--output benchmarks/results/intervals-simulated.json]
    UNITBALL_DATA=/path/to/data python benchmarks/intervals.py tables [--sets wind,cpu_act,house_16H] [--releases 9]
        [--output benchmarks/results/intervals-tables.json]

``simulated``: errors of three laws are held out, counted and released with noise, without training. ``tables``:
``PrivateRegressor`` with its defaults, a quarter of the training rows held out, and the errors of the test rows. Both
at ε = 1, δ = 10⁻⁶, replace-one and a coverage of 0.9; exact intervals have the same choice of sides.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from shared import head, keep_table, line
from table_sets import load

EPSILON, DELTA, COVERAGE, FRACTION = 1.0, 1e-6, 0.9, 0.25
Floats = NDArray[np.float64]
# Of a label between 0 and 1 that is predicted as 0.5.
LAWS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal errors": lambda random, rows: 0.02 * random.standard_normal(rows),
    "Student's t, 2 degrees of freedom": lambda random, rows: 0.01 * random.standard_t(2, rows),
    "lognormal errors": lambda random, rows: 0.01 * (random.lognormal(size=rows) - 2.0),
}
ROWS = (1_321, 1_638, 4_128, 20_000)
SIDES = {1: "one distance", 2: "two ends"}


def exact(errors: Floats, rows: int, sides: int) -> float:
    """Return the width of the conformal interval of so many rows with errors of this law."""
    if sides == 1:
        return 2.0 * float(np.quantile(np.abs(errors), np.ceil((rows + 1) * COVERAGE) / rows))
    rank = np.ceil((rows + 1) * (1.0 + COVERAGE) / 2.0) / rows
    return float(np.quantile(errors, rank) - np.quantile(errors, 1.0 - rank))


def simulated(runs: int) -> None:
    """Print the median width of released intervals over exact ones, for each law and number of rows."""
    from dpalgos.accounting.profiles import mu_from_epsilon_delta
    from dpalgos.conformal import HeldOutErrors
    from dpalgos.error_margins import ErrorCounts
    from dpalgos.evaluators.error_distribution import ErrorDistribution, parts_for
    from dpalgos.guarantees import GaussianMu, Setting
    from dpalgos.rows import ArrayRows

    mu = mu_from_epsilon_delta(EPSILON, DELTA)
    head("held-out rows", "sides", *LAWS)
    for rows in ROWS:
        algorithm = ErrorDistribution(budget=GaussianMu(mu), parts=parts_for(rows, mu))
        setting = Setting(sizes=(rows,), dimension=1, classes=1)
        sigma, ratios, sides = algorithm.distribution(setting).sigma, [], 0
        for draw in LAWS.values():
            random, widths = np.random.default_rng(rows), []
            for _ in range(runs):
                held = ArrayRows(np.full((rows, 1), 0.5), 0.5 + draw(random, rows))
                sums = algorithm.contribution(algorithm.initial(setting), held, setting)
                sums = sums + np.rint(sigma * random.standard_normal(sums.shape)).astype(np.int64)
                counts = ErrorCounts.of_release(algorithm.result(sums, setting).values, algorithm, setting)
                found = HeldOutErrors.of_counts(counts)
                sides = found.sides(COVERAGE)
                widths.append(sum(found.distances(COVERAGE)))
            ratios.append(float(np.median(widths)) / exact(draw(random, 1_000_000), rows, sides))
        line(f"{rows:,}", SIDES[sides], *(f"{one:.2f}" for one in ratios))


def tables(sets: list[str], releases: int) -> None:
    """Print the median width of released intervals over exact ones of each table, and the test rows covered."""
    from dpalgos.conformal import HeldOutErrors
    from unitball import PrivateRegressor

    head("table", "held-out rows", "sides", "median width against exact", "test rows that are covered")
    for name in sets:
        table = load(name)
        truth = np.clip(table.test.labels, *table.label_range)
        ratios, covered, said = [], [], set()
        for seed in range(releases):
            model = PrivateRegressor(
                EPSILON, DELTA, schema=table.schema(), on_violation="clip", public=True, random_state=seed,
                test_fraction=FRACTION,
            ).fit(table.frame(table.train), table.train.labels)  # fmt: skip
            test = table.frame(table.test)
            intervals = model.predict_interval(test, COVERAGE)
            errors = truth - np.clip(np.asarray(model.predict(test)), *table.label_range)
            found = model._require_held_out()
            assert isinstance(found, HeldOutErrors)
            sides, rows = found.sides(COVERAGE), found.held_out.count
            said.add((rows, SIDES[sides]))
            ratios.append(sum(found.distances(COVERAGE)) / exact(errors, rows, sides))
            covered.append(float(np.mean((intervals[:, 0] <= truth) & (truth <= intervals[:, 1]))))
        held_out, sides_said = zip(*sorted(said), strict=True)
        line(
            name, " to ".join(f"{one:,}" for one in dict.fromkeys((held_out[0], held_out[-1]))),
            ", ".join(dict.fromkeys(sides_said)), f"{float(np.median(ratios)):.2f}",
            f"{min(covered):.3f} to {max(covered):.3f}",
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["simulated", "tables"])
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--sets", default="wind,cpu_act,house_16H")
    parser.add_argument("--releases", type=int, default=9)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.what == "simulated":
        simulated(given.runs)
        seeds = f"{given.runs:,} releases each"
    else:
        tables(given.sets.split(","), given.releases)
        seeds = f"{given.releases} releases each"
    if given.output:
        keep_table(given.output, seeds)


if __name__ == "__main__":
    main()
