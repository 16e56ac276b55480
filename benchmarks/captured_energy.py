"""Captured energy of private principal directions against the number of rows, as in Chaudhuri, Sarwate, Sinha 2013.

    UNITBALL_DATA=/path/to/data python benchmarks/captured_energy.py [--figure captured-energy.png]

Public rows only: captured energy, tr VᵀAV over that of the best k directions, is an exact statistic of them. The rows
are Adult's training set (the paper's own sets are not at hand): numbers mapped to [0, 1], categories one-hot, rows of
norm 1; k = 4, ε = 0.1 and δ = 0.01 as in the paper's section 5, replace-one. Prints a row a method, means over seeds.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd

from dpalgos.algorithms import DirectAlgorithm, fit
from dpalgos.guarantees import ApproximateDP, GaussianMu, PureEpsilon, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.mechanisms.gaussian import mu_from_epsilon_delta
from dpalgos.models import Projection
from dpalgos.projections.analyze_gauss import AnalyzeGauss
from dpalgos.projections.mod_sulq import ModSulq
from dpalgos.projections.ppca import Ppca, PublishedPpca
from dpalgos.projections.pure_epsilon import LaplaceCovariance
from dpalgos.rows import ArrayRows, Floats
from dpalgos.summation import SumAlgorithm

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
    table = pd.read_csv(folder / "adult" / "adult.data", header=None, skipinitialspace=True, na_values="?").dropna()
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
    given = parser.parse_args()
    place = os.environ.get("UNITBALL_DATA")
    if not place:
        parser.error("UNITBALL_DATA is not set: name the folder that holds adult/")
    rows = rows_of(Path(place))
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    whole = rows.T @ rows
    best = float(np.linalg.eigvalsh(whole)[-DIRECTIONS:].sum())
    counts = [300, 1000, 3000, 10_000, len(rows)]
    means = {
        name: [
            float(np.mean([captured(method, rows[:count], best, whole, seed) for seed in range(given.seeds)]))
            for count in counts
        ]
        for name, method in METHODS.items()
    }
    print("| method | " + " | ".join(f"n = {count:,}" for count in counts) + " |")
    print("| --- |" + " --- |" * len(counts))
    for name, values in means.items():
        print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    if given.figure:
        draw(given.figure, counts, means)


def draw(path: Path, counts: list[int], means: dict[str, list[float]]) -> None:
    """Draw the table: proved methods solid, published ones dashed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2))
    for name, values in means.items():
        axes.semilogx(counts, values, "-" if "(proved)" in name else "--", marker="o", label=name)
    axes.set_xlabel("rows n")
    axes.set_ylabel("captured energy (1: the best 4 directions)")
    axes.set_title(f"Adult, ε = {EPSILON:g}, δ = {DELTA:g}")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
