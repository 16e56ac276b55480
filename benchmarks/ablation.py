"""Ablation: accuracy with map, whitening or head left out or exchanged, on MNIST's held-out training rows.

    UNITBALL_DATA=/path/to/data python benchmarks/ablation.py [--rows 20000] [--seeds 2] [--epsilons 0.1 1]

``--rows`` of MNIST's training rows are trained on, 5,000 others are public, and 5,000 others are measured; the test
rows stay untouched. Curator, replace-one, delta 1e-5, 400 directions. Rows are mapped once and the heads are the
product's own. ``--cache FOLDER`` holds ``scattering.npy``, the scattering features of all training rows, where they
have been computed before.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shared import head, keep_table, line, mnist

from dpalgos.accounting.costs import allocate
from dpalgos.algorithms import fit
from dpalgos.features.whitening import CentredDirections, PublicRowsWhitening
from dpalgos.guarantees import GaussianMu, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.normalisation import UnitNorm
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import ArrayRows

PUBLIC = HELD_OUT = 5_000
COMPONENTS, FLOOR = 400, 1e-4
BLOCK = 2048
HEADS = ("discriminant-gd", "class-means", "noisy-gd")
Matrix = NDArray[np.float64]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--output", type=Path, help="keep the table as JSON")
    given = parser.parse_args()
    pixels, labels = mnist("train")
    order = np.random.default_rng(0).permutation(len(pixels))[: given.rows + PUBLIC + HELD_OUT]
    labels, pixels = labels[order], UnitNorm()(pixels[order].astype(np.float64))
    scattered = scattering(pixels, order, given.cache)
    seeds = range(given.seeds)
    public, held_out = slice(given.rows, given.rows + PUBLIC), slice(given.rows + PUBLIC, None)
    maps = {
        "scattering, whitened": whitened("scattering", scattered),
        "scattering, not whitened": scattered,
        "pixels, whitened": whitened("identity", pixels),
        "pixels": pixels,
    }
    learner = PublicRowsWhitening(components=COMPONENTS)
    made = learner.learn([(scattered[public], labels[public])], scattered.shape[1], PUBLIC, 10)
    maps["scattering, whitened by 5,000 public rows"] = made.transform(scattered)
    head("map", "head", *(f"ε = {epsilon:g}" for epsilon in given.epsilons))
    for name, features in maps.items():
        rows = ArrayRows(features[: given.rows], labels[: given.rows])
        for trainer in HEADS:
            means = [
                np.mean([accuracy(trainer, rows, features[held_out], labels[held_out], epsilon, s) for s in seeds])
                for epsilon in given.epsilons
            ]
            line(name, f"`{trainer}`", *(f"{mean:.4f}" for mean in means))
    if given.output is not None:
        keep_table(given.output, f"{given.seeds}, means")


def scattering(pixels: Matrix, order: NDArray[np.int64], cache: Path | None) -> Matrix:
    """Return scattering features, from the cache where all training rows' are there."""
    if cache is not None and (file := cache / "scattering.npy").exists():
        return np.load(file, mmap_mode="r")[order].astype(np.float64)
    made = made_of("scattering")
    return np.concatenate([made.transform(pixels[start : start + BLOCK]) for start in range(0, len(pixels), BLOCK)])


def whitened(name: str, features: Matrix) -> Matrix:
    """Return features of a map whitened by deformations of synthetic strokes."""
    made = made_of("public-whitening", features=name, components=COMPONENTS, floor=FLOOR)
    return CentredDirections(mean=made.mean, basis=made.basis).transform(features)


def made_of(name: str, **parameters: object) -> Any:
    """Return a public map of MNIST's images."""
    setting = Setting(sizes=(), dimension=784, classes=10)
    return AlgorithmSpec("projections", name, parameters).build().fit((), setting, KeyedNoise(public_secret(0), name))


def accuracy(
    trainer: str, rows: ArrayRows, held_out: Matrix, labels: NDArray[np.int64], epsilon: float, seed: int
) -> float:
    """Train a head at (epsilon, 1e-5) and return its accuracy on held-out rows."""
    budget = allocate([GaussianMu], [1.0], epsilon, 1e-5).losses[0]
    setting = Setting(sizes=(rows.count,), dimension=rows.dimension, classes=10, trust=Trust.CENTRAL)
    algorithm = AlgorithmSpec("trainers", trainer, {"budget": budget}).build()
    model = fit(algorithm, [rows], setting, KeyedNoise(public_secret(seed), f"{trainer} {epsilon}"))
    return float((model.predict(held_out) == labels).mean())


if __name__ == "__main__":
    main()
