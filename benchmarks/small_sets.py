"""Every registered proved trainer that a curator can run, and the recommended system, on small two-class sets.

    UNITBALL_DATA=/path/to/data python benchmarks/small_sets.py [--seeds 20] [--epsilons 0.5,1] [--sets heart_scale,…]

Sets in LIBSVM's format (``$UNITBALL_DATA/libsvm``), rows brought to norm 1, four fifths to train and one to measure by
another random partition each seed; where the set has its own test rows (``NAME.t``) those. One curator, replace-one,
delta 1e-5; each trainer with its defaults and the whole budget, the recommended system by its rules. One line a set and
budget: mean accuracy of the system, and of each trainer with its difference, paired by seed, ± the standard error of
the mean. Left out is what cannot run there (other relations, nights) and what is proved nothing about.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from shared import data
from sklearn.datasets import load_svmlight_file

from dpalgos.accounting.costs import allocate
from dpalgos.algorithms import fit, is_sum_algorithm
from dpalgos.guarantees import Neighbours, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup, names
from dpalgos.rows import ArrayRows
from dpalgos.systems.recommended import recommend
from dpalgos.systems.system import PublicFacts

DELTA = 1e-5
SETS = "heart_scale,australian_scale,breast-cancer_scale,diabetes,splice,a1a"


def main() -> None:
    """Measure every set and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epsilons", default="0.5,1")
    parser.add_argument("--sets", default=SETS)
    given = parser.parse_args()
    for name in given.sets.split(","):
        for epsilon in map(float, given.epsilons.split(",")):
            measure(name, data("libsvm"), epsilon, given.seeds)


def measure(name: str, folder: Path, epsilon: float, seeds: int) -> None:
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        (rows, labels), (test_rows, test_labels) = split(folder / name, seed)
        setting = Setting(sizes=(len(rows),), dimension=rows.shape[1], classes=2, trust=Trust.CENTRAL)
        chosen = recommended(setting, epsilon, DELTA)
        systems = {"unitball": ((chosen.projection, chosen.trainer), chosen.projection_share)}
        for trainer in names("trainers"):
            if runs(trainer, setting, epsilon):
                systems[trainer] = ((None, AlgorithmSpec("trainers", trainer)), 0.5)
        for system, (parts, share) in systems.items():
            seen, model = trained(parts, share, ArrayRows(rows, labels), setting, epsilon, DELTA, seed)
            found.setdefault(system, []).append(float((model.predict(seen(test_rows)) == test_labels).mean()))
    accuracies = pd.DataFrame(found)
    behind = accuracies.sub(accuracies["unitball"], axis=0)
    behind["unitball"] = accuracies["unitball"]
    table = pd.DataFrame({"mean": accuracies.mean(), "behind": behind.mean(), "standard error": behind.sem()})
    guess = np.bincount(np.concatenate([labels, test_labels])).max() / (len(labels) + len(test_labels))
    print(f"{name} ({len(rows)} rows, guessing {guess:.3f}), epsilon {epsilon:g}, {seeds} seeds")
    print(table.sort_values("mean", ascending=False).to_string(float_format="{:+.3f}".format), flush=True)


def split(path: Path, seed: int):
    def read(file):
        rows, labels = load_svmlight_file(str(file))
        rows = rows.toarray()
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(norms > 0, norms, 1.0), (labels == labels.max()).astype(int)

    rows, labels = read(path)
    own = path.with_name(path.name + ".t")
    if own.exists():
        test_rows, test_labels = read(own)
        # A column in which one of the two files has nothing but zeros is not in it.
        wide = max(rows.shape[1], test_rows.shape[1])
        rows, test_rows = (np.pad(part, ((0, 0), (0, wide - part.shape[1]))) for part in (rows, test_rows))
        return (rows, labels), (test_rows, test_labels)
    order = np.random.default_rng(seed).permutation(len(rows))
    test, training = np.split(order, [len(order) // 5])
    return (rows[training], labels[training]), (rows[test], labels[test])


def runs(name: str, setting: Setting, epsilon: float) -> bool:
    cls = lookup("trainers", name)
    if not cls.budgets or cls.reads_rows is False or hasattr(cls, "nights"):
        return False
    if Trust.CENTRAL not in cls.trusts and not is_sum_algorithm(cls):
        return False
    try:
        (budget,) = allocate([cls.budgets[0]], [1.0], epsilon, DELTA).losses
        return AlgorithmSpec("trainers", name, {"budget": budget}).build().guarantee(setting).proved
    except (ParameterError, TypeError):
        return False


def recommended(setting, epsilon, delta):
    """Return what the recommended system's rules choose for one curator under replace-one."""
    facts = PublicFacts(
        sizes=setting.sizes,
        dimension=setting.dimension,
        classes=setting.classes,
        epsilon=epsilon,
        delta=delta,
        neighbours=Neighbours.REPLACE_ONE,
        trust=Trust.CENTRAL,
    )
    return recommend(facts).arrangement


def trained(parts, share, rows, setting, epsilon, delta, seed):
    """Fit a projection, if any, and a trainer; return what a row passes through, and the model."""
    noisy = [spec for spec in parts if spec is not None]
    shares = [share, 1.0 - share] if len(noisy) == 2 else [1.0]
    kinds = [lookup(spec.kind, spec.name).budgets[0] for spec in noisy]
    seen, made = rows, []
    for spec, budget in zip(noisy, allocate(kinds, shares, epsilon, delta).losses, strict=True):
        algorithm = spec.with_parameters(budget=budget).build()
        made.append(fit(algorithm, [seen], setting, KeyedNoise(public_secret(seed), spec.name)))
        if spec.kind == "projections":
            seen = ArrayRows(made[-1].apply(seen.features), seen.labels)
    *maps, model = made
    return (maps[0].apply if maps else lambda features: features), model


if __name__ == "__main__":
    main()
