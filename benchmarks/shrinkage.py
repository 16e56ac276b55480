"""How class means are shrunk: block sizes, when means stay plain, and alternatives, on training rows of unequal sets.

    UNITBALL_DATA=/path/to/data python benchmarks/shrinkage.py [--sets digits,mnist,usps,letter,krkopt]
        [--epsilons 0.05,0.1,0.3,0.5,1,3,10] [--seeds 8] [--keep FOLDER] [--output FILE.json]

The sets of ``unequal_classes.py`` and digits, a fifth of the training rows held out. A row of the table is the mean
over sets and seeds of accuracy / balanced accuracy. All variants see the same noisy sums.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shared import head, keep_table, line
from unequal_classes import DELTA, Seen, measures

from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.algorithms import fit
from dpalgos.class_means import SHRINKAGE, ClassMeans, Shrinkage
from dpalgos.guarantees import GaussianMu, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.rows import ArrayRows, Ints, squared_norms
from dpalgos.trainers.discriminant import ClassMeansDiscriminant

Floats = NDArray[np.float64]
Scored = tuple[Floats, Floats]
SETS = ("digits", "mnist", "usps", "letter", "krkopt")
_ONE_BLOCK = 10**6


class Means(ClassMeansDiscriminant):
    """Class means as they are before they are shrunk."""

    def result(self, state: Ints, setting: Setting) -> ClassMeans:  # type: ignore[override]
        """Return the means."""
        sigma = self.distribution(setting).sigma * setting.noise_factor
        return self.class_sums(setting).means(state, sigma, setting)


def noise_subtracted(means: ClassMeans) -> Scored:
    """Return the discriminant before: plain means, the noise's part subtracted from their squared norms."""
    lengths = squared_norms(means.means) - means.means.shape[1] * means.variance
    return means.means, -0.5 * np.maximum(lengths, 0.0)


def plain(means: ClassMeans) -> Scored:
    """Return the discriminant of plain means."""
    return means.means, -0.5 * squared_norms(means.means)


def with_frequencies(means: ClassMeans) -> Scored:
    """Return that of shrunk means with log-frequencies, at the variance that is left of rows of norm 1."""
    weights, scores = means.discriminant()
    rest = max(1.0 - math.fsum(means.shares * squared_norms(weights)), 0.05) / weights.shape[1]
    return weights, scores + rest * np.log(means.shares) * weights.any()


def shrunk(**constants: float) -> Callable[[ClassMeans], Scored]:
    """Return what makes the discriminant with other constants."""
    return lambda means: means.discriminant(Shrinkage(**constants))  # type: ignore[arg-type]


VARIANTS: dict[str, Callable[[ClassMeans], Scored]] = {
    "noise subtracted from ‖m‖² (before)": noise_subtracted,
    "plain means": plain,
    "shrunk, first block 2": shrunk(first=2),
    "… 8": shrunk(first=8),
    "… 16": shrunk(first=16),
    f"… {SHRINKAGE.first} (now)": ClassMeans.discriminant,
    "… 64": shrunk(first=64),
    "… one block": shrunk(first=_ONE_BLOCK),
    "plain above 1 v": shrunk(plain_from=1.0),
    "… 2 v": shrunk(plain_from=2.0),
    "… 5 v": shrunk(plain_from=5.0),
    "… 10 v": shrunk(plain_from=10.0),
    "… never": shrunk(plain_from=math.inf),
    "now, with log-frequencies": with_frequencies,
}


def main() -> None:
    """Measure all variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--epsilons", default="0.05,0.1,0.3,0.5,1,3,10")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    epsilons = given.epsilons.split(",")
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for name in given.sets.split(","):
        rows = Seen(name, equal=False, held_out=True, folder=given.keep)
        for epsilon in epsilons:
            (train, labels), (test, test_labels) = rows.at(float(epsilon))
            setting = Setting(sizes=(len(labels),), dimension=train.shape[1], classes=rows.classes, trust=Trust.CENTRAL)
            trainer = Means(budget=GaussianMu(mu_from_epsilon_delta(float(epsilon), DELTA)))
            for seed in range(given.seeds):
                noise = KeyedNoise(public_secret(seed), "shrinkage")
                means: Any = fit(trainer, [ArrayRows(train, labels)], setting, noise)
                for variant, discriminant in VARIANTS.items():
                    weights, scores = discriminant(means)
                    measured = measures((test @ weights.T + scores).argmax(axis=1), test_labels)
                    found.setdefault((variant, epsilon), []).append((measured["accuracy"], measured["balanced"]))
    head("means", *(f"ε = {epsilon}" for epsilon in epsilons), "all")
    for variant in VARIANTS:
        each = [np.mean(found[variant, epsilon], axis=0) for epsilon in epsilons]
        line(variant, *(" / ".join(f"{value:.3f}" for value in pair) for pair in (*each, np.mean(each, axis=0))))
    if given.output is not None:
        keep_table(given.output, f"{given.seeds} seeds of {len(given.sets.split(','))} sets")


if __name__ == "__main__":
    main()
