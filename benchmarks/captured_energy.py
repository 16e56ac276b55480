"""Captured energy of private principal directions against the number of rows, as in Chaudhuri, Sarwate, Sinha 2013.

    UNITBALL_DATA=/path/to/data python benchmarks/captured_energy.py [--figure captured-energy.png]

Public rows only: captured energy, tr VᵀAV over that of the best k directions, is an exact statistic of them. The rows
are Adult's training set (the paper's own sets are not at hand): numbers mapped to [0, 1], categories one-hot, rows of
norm 1; k = 4, ε = 0.1 and δ = 0.01 as in the paper's section 5, replace-one. Prints a row a method, means over seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from shared import data, draw, head, keep_table, line

from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.algorithms import DirectAlgorithm, SumAlgorithm, fit
from dpalgos.guarantees import ApproximateDP, GaussianMu, PureEpsilon, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import Projection
from dpalgos.projections.covariance import AnalyzeGauss, LaplaceCovariance, ModSulq
from dpalgos.projections.ppca import Ppca
from dpalgos.published.projections import PublishedPpca
from dpalgos.rows import ArrayRows, Floats

EPSILON, DELTA, DIRECTIONS = 0.1, 0.01, 4
PURE, BOTH = PureEpsilon(EPSILON), ApproximateDP(EPSILON, DELTA)
METHODS: dict[str, DirectAlgorithm | SumAlgorithm] = {
    "PPCA, direction by direction (proved)": Ppca(budget=PURE, components=DIRECTIONS),
    "PPCA, Gibbs sampling (published)": PublishedPpca(budget=PURE, components=DIRECTIONS),
    "Laplace covariance (proved)": LaplaceCovariance(budget=PURE, components=DIRECTIONS),
    "MOD-SuLQ (published noise)": ModSulq(budget=BOTH, components=DIRECTIONS),
    "Analyze Gauss (proved)": AnalyzeGauss(
        budget=GaussianMu(mu_from_epsilon_delta(EPSILON, DELTA)), components=DIRECTIONS
    ),
}


def rows_of(folder: Path) -> Floats:
    """Return Adult's complete training rows, of norm 1."""
    table = pd.read_csv(folder / "adult.data", header=None, skipinitialspace=True, na_values="?").dropna()
    numbers = table[[0, 2, 4, 10, 11, 12]].astype(float)
    scaled = (numbers - numbers.min()) / (numbers.max() - numbers.min())
    categories = pd.get_dummies(table[[1, 3, 5, 6, 7, 8, 9, 13]])
    rows = np.hstack([scaled.to_numpy(), categories.to_numpy(dtype=np.float64)])
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def captured(method: DirectAlgorithm | SumAlgorithm, rows: Floats, best: float, whole: Floats, seed: int) -> float:
    """Return the share of the best k directions' energy, over all rows."""
    data = ArrayRows(rows, np.zeros(len(rows), dtype=np.int64))
    setting = Setting(sizes=(len(rows),), dimension=rows.shape[1], classes=2, trust=Trust.CENTRAL)
    found = fit(method, [data], setting, KeyedNoise(public_secret(seed), "captured energy"))
    assert isinstance(found, Projection)
    return float(np.trace(found.basis.T @ whole @ found.basis)) / best


def main() -> None:
    """Print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--output", type=Path, help="Keep the table as JSON.")
    given = parser.parse_args()
    rows = rows_of(data("adult"))
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    whole = rows.T @ rows
    best = float(np.linalg.eigvalsh(whole)[-DIRECTIONS:].sum())
    counts = [300, 1000, 3000, 10_000, len(rows)]
    means = pd.DataFrame(
        {
            name: [np.mean([captured(method, rows[:n], best, whole, s) for s in range(given.seeds)]) for n in counts]
            for name, method in METHODS.items()
        },
        index=counts,
    )
    head("method", *(f"n = {count:,}" for count in counts))
    for name in means:
        line(name, *(f"{value:.3f}" for value in means[name]))
    if given.output is not None:
        keep_table(given.output, f"means of {given.seeds} seeds")
    if given.figure:
        # Proved methods solid, published ones dashed.
        style = ["o-" if "(proved)" in name else "o--" for name in means]
        labels = {"xlabel": "rows n", "ylabel": "captured energy (1: the best 4 directions)", "xscale": "log"}
        draw(means, given.figure, style=style, title=f"Adult, ε = {EPSILON:g}, δ = {DELTA:g}", **labels)


if __name__ == "__main__":
    main()
