"""Class means of many unequal classes: MNIST, USPS and letter thinned to frequencies 1, 1/2, 1/3, …, and krkopt.

    UNITBALL_DATA=/path/to/data python benchmarks/unequal_classes.py [--sets mnist,usps,letter,krkopt] [--equal]
        [--epsilons 0.1,0.3,1,3] [--seeds 3] [--trainers class-means,discriminant-gd] [--version after]
        [--class-weights none,balanced] [--held-out] [--keep FOLDER] [--output FILE.json]

Classes are put into a random order by a public seed, and of the c-th one every c-th row is kept, of training and test
rows alike; krkopt is as it is. Images pass through the recommended map, with as many directions as its rule takes at
that budget; rows of tables are brought to norm 1. One curator, replace-one, delta 1e-6, the whole budget. Cells that
the output file holds are not computed again; ``--version`` says in them which code computed them. ``--equal`` thins no
class. ``--held-out`` measures on a fifth of the training rows: what constants are chosen on. ``--keep`` keeps the
features of images between runs. The trainer ``recommended`` is that of the recommended system, after its centring for
tables; ``--class-weights`` is for it: class means take all classes alike.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from shared import cells_of, keep, mnist
from table_sets import Table, load
from tables import encoded

from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.algorithms import fit
from dpalgos.features.whitening import moved_to_zero
from dpalgos.guarantees import GaussianMu, Neighbours, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.normalisation import UnitNorm
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import ArrayRows
from dpalgos.systems.recommended import recommend
from dpalgos.systems.system import PublicFacts

DELTA, SEED = 1e-6, 63
IMAGES = {"mnist": 28, "usps": 16, "digits": 8}
SETS = ("mnist", "usps", "letter", "krkopt")
_WEIGHED = ("discriminant-gd", "noisy-gd")
_RESULTS = Path(__file__).parent / "results" / "unequal-classes.json"

Floats = NDArray[np.float64]
Rows = tuple[Any, Any]


def main() -> None:
    """Compute the cells that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--epsilons", default="0.1,0.3,1,3")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trainers", default="class-means,discriminant-gd")
    parser.add_argument("--version", default="after")
    parser.add_argument("--class-weights", default="none")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--output", type=Path, default=_RESULTS)
    given = parser.parse_args()
    found = cells_of(given.output)
    for name in given.sets.split(","):
        rows = Seen(name, equal=given.equal, held_out=given.held_out, folder=given.keep)
        for epsilon in map(float, given.epsilons.split(",")):
            train, test = rows.at(epsilon)
            for trainer, weight in itertools.product(given.trainers.split(","), given.class_weights.split(",")):
                for seed in range(given.seeds):
                    cell = {
                        "set": name, "equal": given.equal, "epsilon": epsilon, "trainer": trainer, "seed": seed,
                        "version": given.version,
                    }  # fmt: skip
                    cell |= {} if weight == "none" else {"class_weight": weight}
                    if any(_alike(cell, one) for one in found):
                        continue
                    if trainer == "recommended":
                        predicted, by = rows.recommended(train, test[0], epsilon, seed, weight)
                        cell |= {"by": by}
                    else:
                        predicted = trained(trainer, train, rows.classes, epsilon, seed).predict(test[0])
                    found.append({**cell, **measures(predicted, test[1])})
                    keep(given.output, {"cells": found}, f"{given.seeds} seeds")
                said = [one for one in found if _alike({**cell, "seed": one["seed"]}, one)]
                means = {key: np.mean([one[key] for one in said]).round(4) for key in ("accuracy", "balanced")}
                print(f"{name:<8}{epsilon:<6g}{trainer:<18}{weight:<9}k={train[0].shape[1]:<5}{means}", flush=True)


def _alike(cell: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two cells are of one run."""
    return all(other.get(name) == cell.get(name) for name in (*cell, "class_weight") if name != "by")


def trained(trainer: str, train: Rows, classes: int, epsilon: float, seed: int) -> Any:
    """Return a model on the whole budget."""
    budget = GaussianMu(mu_from_epsilon_delta(epsilon, DELTA))
    setting = Setting(sizes=(len(train[1]),), dimension=train[0].shape[1], classes=classes, trust=Trust.CENTRAL)
    algorithm = AlgorithmSpec("trainers", trainer, {"budget": budget}).build()
    return fit(algorithm, [ArrayRows(*train)], setting, KeyedNoise(public_secret(seed), "unequal classes"))


def measures(predicted: NDArray[np.int64], labels: NDArray[np.int64]) -> dict[str, float]:
    """Return accuracy, balanced accuracy over the classes there are, and what guessing gives."""
    recalls = [float((predicted[labels == one] == one).mean()) for one in np.unique(labels)]
    guessing = np.bincount(labels).max() / len(labels)
    measured = {"accuracy": (predicted == labels).mean(), "balanced": np.mean(recalls), "guessing": guessing}
    return {name: round(float(value), 4) for name, value in measured.items()}


class Seen:
    """A set's training and test rows as a trainer sees them."""

    def __init__(self, name: str, *, equal: bool, held_out: bool, folder: Path | None) -> None:
        self.name = name
        stored = (
            folder and folder / f"{name}-{'equal' if equal else 'unequal'}-{'held-out' if held_out else 'test'}.npz"
        )
        if stored and stored.is_file():
            with np.load(stored) as arrays:
                self.train, self.test = ((arrays[part], arrays[f"{part}_labels"]) for part in ("train", "test"))
        else:
            self.train, self.test = self._made(equal=equal, held_out=held_out)
            if stored:
                stored.parent.mkdir(parents=True, exist_ok=True)
                (train, labels), (test, test_labels) = self.train, self.test
                np.savez(stored, train=train, train_labels=labels, test=test, test_labels=test_labels)
        self.classes = int(self.train[1].max()) + 1

    def _made(self, *, equal: bool, held_out: bool) -> Sequence[Rows]:
        parts: Sequence[Rows] = self._read()
        if held_out:
            rows, labels = parts[0]
            test, train = np.split(np.random.default_rng(SEED).permutation(len(labels)), [len(labels) // 5])
            parts = ((rows[train], labels[train]), (rows[test], labels[test]))
        if not equal and self.name != "krkopt":
            parts = (thinned(*parts[0]), thinned(*parts[1]))
        if self.name in IMAGES:
            parts = self._mapped(parts)
        return parts

    def _read(self) -> Sequence[Rows]:
        if self.name == "mnist":
            parts = (mnist(part) for part in ("train", "t10k"))
            return tuple((UnitNorm()(pixels.astype(np.float64)), labels) for pixels, labels in parts)
        if self.name == "digits":
            from sklearn.datasets import load_digits

            pixels, labels = load_digits(return_X_y=True)
            order = np.random.default_rng(0).permutation(len(labels))
            return tuple((UnitNorm()(pixels[o]), labels[o]) for o in (order[360:], order[:360]))
        table: Table = load(self.name)
        rows = (part.numbers if self.name in IMAGES else encoded(table, part) for part in (table.train, table.test))
        return tuple((UnitNorm()(own), part.labels) for own, part in zip(rows, (table.train, table.test), strict=True))

    def _mapped(self, parts: Sequence[Rows]) -> Sequence[Rows]:
        """Return images' features in all directions of the map, in its order, of any norm."""
        spec = recommend(self._facts(len(parts[0][1]), 1000.0)).arrangement.projection
        assert spec is not None
        setting = Setting(sizes=(), dimension=IMAGES[self.name] ** 2, classes=10)
        made: Any = spec.build().fit((), setting, KeyedNoise(public_secret(0), "public map"))

        def turned(rows: Floats) -> NDArray[np.float32]:
            each = (rows[start : start + 1024] for start in range(0, len(rows), 1024))
            inner = (made.map.transform(moved_to_zero(part)) - made.mean for part in each)
            return np.concatenate([(part @ made.basis).astype(np.float32) for part in inner])

        return tuple((turned(rows), labels) for rows, labels in parts)

    def _facts(self, rows: int, epsilon: float) -> PublicFacts:
        shape = (IMAGES[self.name],) * 2 if self.name in IMAGES else None
        return PublicFacts(
            sizes=(rows,), dimension=self.train[0].shape[1] if shape is None else shape[0] ** 2,
            classes=10 if shape else self.classes, epsilon=epsilon, delta=DELTA, neighbours=Neighbours.REPLACE_ONE,
            trust=Trust.CENTRAL, image_shape=shape,
        )  # fmt: skip

    def recommended(
        self, train: Rows, test: Floats, epsilon: float, seed: int, weight: str
    ) -> tuple[NDArray[np.int64], str]:
        """Return what the recommended system predicts of test rows at a budget, and its trainer.

        Class means take all classes alike, and have no weights.
        """
        arrangement = recommend(self._facts(len(train[1]), epsilon)).arrangement
        rows, shares = [train[0], test], {"projections": arrangement.projection_share}
        shares["trainers"] = 1.0 - shares["projections"] if arrangement.projection is not None else 1.0
        specs = [arrangement.trainer]
        if self.name in IMAGES:
            # The map is public, and these rows are seen through it.
            shares["trainers"] = 1.0
        elif arrangement.projection is not None:
            specs = [arrangement.projection, arrangement.trainer]
        seen: list[Any] = []
        for spec in specs:
            mu = mu_from_epsilon_delta(epsilon, DELTA) * shares[spec.kind] ** 0.5
            given = {"class_weight": weight} if weight != "none" and spec.name in _WEIGHED else {}
            algorithm = spec.with_parameters(budget=GaussianMu(mu), **given).build().informed(seen)
            setting = Setting(
                sizes=(len(train[1]),), dimension=rows[0].shape[1], classes=self.classes, trust=Trust.CENTRAL
            )
            made: Any = fit(
                algorithm, [ArrayRows(rows[0], train[1])], setting, KeyedNoise(public_secret(seed), spec.name)
            )
            seen.append(made)
            if spec is not arrangement.trainer:
                rows = [made.apply(part) for part in rows]
        return seen[-1].predict(rows[1]), arrangement.trainer.name

    def at(self, epsilon: float) -> Sequence[Rows]:
        """Return training and test rows as they are seen at a budget: images' in the directions that its rule takes."""
        if self.name not in IMAGES:
            return self.train, self.test
        spec = recommend(self._facts(len(self.train[1]), epsilon)).arrangement.projection
        assert spec is not None
        first = slice(0, int(cast(int, spec.parameters["components"])))
        return tuple(
            (UnitNorm()(rows[:, first].astype(np.float64)), labels) for rows, labels in (self.train, self.test)
        )


def thinned(rows: Floats, labels: NDArray[np.int64]) -> Rows:
    """Return every c-th row of the c-th class in a random order."""
    order = np.random.default_rng(SEED).permutation(int(labels.max()) + 1)
    kept = np.zeros(len(labels), bool)
    for every, name in enumerate(order, start=1):
        kept[np.flatnonzero(labels == name)[::every]] = True
    return rows[kept], labels[kept]


if __name__ == "__main__":
    main()
