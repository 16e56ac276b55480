"""Accuracy of the recommended system on MNIST over budgets, relations and seeds, scattering features made once.

    UNITBALL_DATA=/path/to/data python benchmarks/recommended.py [--trust secagg] [--parties 5] [--seeds 5]
        [--epsilons 0.03,0.1,0.3,0.5,1,3] [--relations replace-one,replace-special] [--keep FOLDER]

50,000 of MNIST's training rows (``$UNITBALL_DATA/mnist``) partitioned over the parties, delta 1e-5, the standard 10,000
test rows. Map and trainer are what the system chooses (``dpalgos.systems.recommended``), and the sums are formed by the
trust model as in a run; the other parts of a run (root, ledger, door) are left out, so that scattering is computed once
instead of once per run. One line a point: mean, smallest and largest over the seeds. ``--none`` adds softmax regression
without noise on the same features. ``--keep`` stores the scattering features in a folder for the next time. ``--plot``
draws the figure, with the lines of ``unitball frontier --dataset mnist --algorithms … --out others`` in it where
``--results others/results.parquet`` names them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from shared import mnist

from dpalgos.accounting.costs import allocate
from dpalgos.algorithms import fit
from dpalgos.features.scattering import Scattering
from dpalgos.features.whitening import WhitenedFeatures
from dpalgos.guarantees import GaussianMu, Neighbours, Setting
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.rows import ArrayRows
from dpalgos.systems.recommended import recommend
from dpalgos.systems.system import PublicFacts
from unitball.training import plot

Rows = NDArray[np.float64]
ROWS, DELTA, SIDE = 50_000, 1e-5, 28


def main() -> None:
    """Measure every point and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trust", default="secagg")
    parser.add_argument("--parties", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilons", default="0.03,0.1,0.3,0.5,1,3")
    parser.add_argument("--relations", default="replace-one,replace-special")
    parser.add_argument("--none", action="store_true", help="the reference without noise as well")
    parser.add_argument(
        "--rows", type=int, default=ROWS, help="of MNIST's training part, and so many test rows at most"
    )
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--plot", type=Path, help="draw the figure of docs/accuracy.md")
    parser.add_argument("--results", type=Path, nargs="*", default=[], help="results.parquet of unitball frontier")
    given = parser.parse_args()
    images, runs = Images(given.keep, given.rows), []
    print(f"{given.parties} parties, {given.rows} rows, trust {given.trust}, {given.seeds} seeds")
    print(f"{'relation':<17}{'epsilon':>8}{'mean':>9}{'smallest':>10}{'largest':>9}{'seconds':>9}  choice")
    for relation in given.relations.split(","):
        for epsilon in (float(text) for text in given.epsilons.split(",")):
            runs += measure(images, Neighbours(relation), epsilon, given)
    if given.none:
        model = AlgorithmSpec("trainers", "erm", {"loss": "softmax", "regularisation": 1e-7})
        train, test = images.through(facts_of(Neighbours.REPLACE_ONE, 1000.0, given))
        setting = Setting(sizes=(given.rows,), dimension=train.shape[1], classes=10)
        released: Any = fit(
            model.build(), [ArrayRows(train, images.labels)], setting, KeyedNoise(public_secret(0), "b")
        )
        accuracy = float(np.mean(released.predict(test) == images.test_labels))
        print(f"{'none':<17}{'-':>8}{accuracy:>9.4f}")
        runs.append({"algorithm": "no noise, softmax regression", "epsilon": None, "accuracy": accuracy})
    if given.plot is not None:
        draw(runs, given.results, given.plot)


def draw(runs: list[dict[str, Any]], results: list[Path], path: Path) -> None:
    """Draw accuracies against epsilon, with those of ``unitball frontier``'s results."""
    names = {"axis_epsilon": "epsilon", "metric_accuracy": "accuracy"}
    others = [pd.read_parquet(place).rename(columns=names) for place in results]
    for one in others:
        flaw = np.where(one["proved"].isna() & one["epsilon"].notna(), ", as published: proved nothing", "")
        one["algorithm"] += ", " + one["trust"] + flaw
    axes = plot(pd.concat([pd.DataFrame(runs).astype({"epsilon": float}), *others]))
    axes.set(xlabel="ε (δ = 10⁻⁵), 5 parties × 10,000 rows", ylabel="accuracy on MNIST's 10,000 test rows")
    axes.legend(fontsize=6, labelspacing=0.2, loc=(0.01, 0.575))
    axes.figure.savefig(path, dpi=130)


def facts_of(relation: Neighbours, epsilon: float, given: argparse.Namespace) -> PublicFacts:
    """Return what is public of a point."""
    return PublicFacts(
        sizes=(given.rows // given.parties,) * given.parties,
        dimension=SIDE * SIDE,
        classes=10,
        epsilon=epsilon,
        delta=DELTA,
        neighbours=relation,
        trust=given.trust,
        noise_factor=lookup("trusts", given.trust)().noise_factor(given.parties),
        image_shape=(SIDE, SIDE),
    )


def measure(images: Images, relation: Neighbours, epsilon: float, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Print the line of one point, and return its runs."""
    facts = facts_of(relation, epsilon, given)
    choice = recommend(facts)
    train, test = images.through(facts)
    parties = [ArrayRows(train[i :: given.parties], images.labels[i :: given.parties]) for i in range(given.parties)]
    setting = Setting(
        sizes=tuple(rows.count for rows in parties),
        dimension=train.shape[1],
        classes=10,
        neighbours=relation,
        trust=given.trust,
        noise_factor=facts.noise_factor,
    )
    budget = allocate([GaussianMu], [1.0], epsilon, DELTA).losses[0]
    trainer = choice.arrangement.trainer.with_parameters(budget=budget).build()
    trust = lookup("trusts", given.trust)()
    contributors = trust.noise_contributors([str(party) for party in range(given.parties)])
    found, started = [], time.monotonic()
    for seed in range(given.seeds):
        noises = [
            KeyedNoise(public_secret(seed), f"benchmark/{relation}/{epsilon}/{contributor}")
            for contributor in contributors
        ]
        summation = trust.summation(trainer, setting, noises, f"benchmark-{seed}", None)
        model: Any = fit(trainer, parties, setting, noises[0], summation)
        found.append(float(np.mean(model.predict(test) == images.test_labels)))
    spent = (time.monotonic() - started) / given.seeds
    spec = choice.arrangement.trainer
    print(
        f"{relation:<17}{epsilon:>8g}{statistics.fmean(found):>9.4f}{min(found):>10.4f}{max(found):>9.4f}{spent:>9.1f}"
        f"  k={train.shape[1]} {spec.name} {dict(spec.parameters)}",
        flush=True,
    )
    name = f"unitball, {given.trust}, {relation}"
    return [{"algorithm": name, "epsilon": epsilon, "accuracy": accuracy} for accuracy in found]


class Images:
    """MNIST's rows and their scattering features, 50,000 to train on and the test rows."""

    def __init__(self, keep: Path | None, rows: int = ROWS) -> None:
        chosen = np.random.default_rng(0).permutation(60_000)[:rows]
        (pixels, labels), (test_pixels, test_labels) = mnist("train"), mnist("t10k")
        test_pixels, self.test_labels = test_pixels[:rows], test_labels[:rows]
        self.labels = labels[chosen]
        self._maps: dict[str, tuple[Rows, Rows]] = {}
        stored = keep / "scattering.npz" if keep is not None else None
        if stored is not None and stored.is_file():
            with np.load(stored) as arrays:
                self._train, self._test = arrays["train"], arrays["test"]
            return
        features = Scattering(shape=(SIDE, SIDE)).fit((), Setting(sizes=(), dimension=SIDE * SIDE, classes=10), NOTHING)

        def scattered(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
            rows = pixels.astype(np.float64)
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            parts = [features.transform(rows[start : start + 4096]) for start in range(0, len(rows), 4096)]
            return np.concatenate([part.astype(np.float32) for part in parts])

        self._train = scattered(pixels[chosen])
        self._test = scattered(test_pixels)
        if stored is not None:
            stored.parent.mkdir(parents=True, exist_ok=True)
            np.savez(stored, train=self._train, test=self._test)

    def through(self, facts: PublicFacts) -> tuple[Rows, Rows]:
        """Return training and test rows seen through the map that is chosen."""
        spec = recommend(facts).arrangement.projection
        assert spec is not None
        key = str(sorted(spec.parameters.items()))
        if key not in self._maps:
            made: WhitenedFeatures = spec.build().fit((), Setting(sizes=(), dimension=784, classes=10), NOTHING)
            self._maps = {key: (whitened(made, self._train), whitened(made, self._test))}
        return self._maps[key]


NOTHING = KeyedNoise(public_secret(0), "public map")


def whitened(made: WhitenedFeatures, scattered: NDArray[np.float32]) -> Rows:
    """Return what a whitening makes of scattering features: its transform after its own feature map."""
    turned = (scattered - made.mean.astype(np.float32)) @ made.basis.astype(np.float32)
    return np.asarray(turned / np.linalg.norm(turned, axis=1, keepdims=True), dtype=np.float64)


if __name__ == "__main__":
    main()
