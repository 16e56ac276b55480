"""PrivateClassifier compared with diffprivlib's LogisticRegression on Adult; the table of docs/accuracy.md.

    python benchmarks/diffprivlib_adult.py encode DATA/adult adult.npz       # Unitball's environment
    python benchmarks/diffprivlib_adult.py ours adult.npz ours.json
    OTHER/bin/python benchmarks/diffprivlib_adult.py theirs adult.npz theirs.json   # diffprivlib 0.6.6
    python benchmarks/diffprivlib_adult.py table ours.json theirs.json

Both see the same features: the columns that Adult's schema declares, encoded from declarations alone, each row clipped
to norm 1, which is what diffprivlib is told as ``data_norm``. Both guarantees are under replace-one. Theirs is a pure
epsilon (objective perturbation, Chaudhuri, Monteleoni, Sarwate 2011); ours stands at delta = 0 and at 10^-6.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

EPSILONS = (0.1, 0.5, 1.0, 3.0)
SEEDS = range(20)


def encode(folder: str, output: str) -> None:
    from storage.source import ReadOptions, read_source

    source = read_source("csv", Path(folder), ReadOptions(discover=True, schema=Path("adult")))
    arrays = {}
    for part, blocks in source.parts.items():
        features, labels = zip(*[(block.features, block.labels) for block in blocks], strict=True)
        rows = np.concatenate(features)
        arrays[f"x_{part}"] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
        arrays[f"y_{part}"] = np.concatenate(labels) == ">50K"
    np.savez(output, **arrays)


def run(path: str, output: str, make) -> None:
    data = np.load(path)
    found = []
    for name, epsilon, seed, model in ((n, e, s, m) for e in EPSILONS for s in SEEDS for n, m in make(e, s)):
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(data["x_train"], data["y_train"].astype(int))
        seconds = time.perf_counter() - started
        accuracy = float(model.score(data["x_test"], data["y_test"].astype(int)))
        found.append({"name": name, "epsilon": epsilon, "seed": seed, "accuracy": accuracy, "seconds": seconds})
        Path(output).write_text(json.dumps(found))


def ours(path: str, output: str) -> None:
    from unitball import PrivateClassifier

    def make(epsilon: float, seed: int) -> list:
        # The features are encoded already: bounds of the schema's own coordinates leave them as they are, scaled.
        given = {"bounds": (-1, 1), "public": True, "random_state": seed}
        return [(f"Unitball, δ = {delta:g}", PrivateClassifier(epsilon, delta, **given)) for delta in (0, 1e-6)]

    run(path, output, make)


def theirs(path: str, output: str) -> None:
    from diffprivlib.models import LogisticRegression

    def make(epsilon: float, seed: int) -> list:
        given = {"epsilon": epsilon, "data_norm": 1.0, "max_iter": 300, "random_state": seed}
        return [(f"diffprivlib, C = {c:g}", LogisticRegression(C=c, **given)) for c in (1.0, 100.0)]

    run(path, output, make)


def table(*paths: str) -> None:
    import pandas as pd

    runs = pd.concat([pd.read_json(path) for path in paths])
    found = runs.groupby(["name", "epsilon"])["accuracy"].agg(["mean", "std"]).stack().unstack([1, 2])
    found["seconds"] = runs.groupby("name")["seconds"].median()
    print(found.sort_index(ascending=False).to_string(float_format="{:.4f}".format))


if __name__ == "__main__":
    {"encode": encode, "ours": ours, "theirs": theirs, "table": table}[sys.argv[1]](*sys.argv[2:])
