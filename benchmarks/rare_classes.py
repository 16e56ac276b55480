"""Rare classes: the recommended system with and without balanced classes, and scikit-learn; docs/rare-classes.md.

    UNITBALL_DATA=/path/to/data python benchmarks/rare_classes.py [--seeds 5] [--sets claims,ijcnn1,letter,adult,musk]

The rare class is that of docs/examples/make_claims.py (3.9 %), the smaller one of ijcnn1 (9.6 %), one letter against
all others (A, 3.9 %), and in adult and musk a class of which every eighth or third row is kept (4 %, 6 %). Rows are
brought to norm 1; four fifths train, one measures, by another random partition each seed. One curator, replace-one,
delta 1e-6. The recommended system by its rules, the whole budget spent on training; scikit-learn on the same rows.
A line is the mean over the seeds of: the balanced accuracy of the model as it is, and at its best threshold; average
precision; the area under the ROC curve.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from shared import data, head, keep_table, line
from sklearn.datasets import load_svmlight_file
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from small_sets import recommended, trained

from dpalgos.guarantees import Setting, Trust
from dpalgos.rows import ArrayRows
from storage.refs import OnViolation
from storage.source import ReadOptions, read_source

DELTA, EPSILONS = 1e-6, (0.1, 0.5, 1.0, 3.0)
EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"


def claims():
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "claims.csv"
        subprocess.run([sys.executable, EXAMPLES / "make_claims.py", table, Path(folder) / "new.csv"], check=True)
        return declared(table, EXAMPLES / "claims.yaml", "fraud")


def adult():
    return thinned(*declared(data("adult"), Path("adult"), ">50K"), keep=8)


def musk():
    lines = [text.split(",") for text in (data("musk") / "clean2.data").read_text().split()]
    return thinned(np.array([cells[2:-1] for cells in lines], float), [cells[-1] == "1." for cells in lines], keep=3)


def letter():
    return listed("letter/letter.scale.bz2", "letter/letter.scale.t.bz2")


def ijcnn1():
    return listed("libsvm/ijcnn1.trn.bz2")


def listed(*files: str):
    rows, labels = zip(*(load_svmlight_file(str(data("") / file)) for file in files), strict=True)
    return np.vstack([part.toarray() for part in rows]), np.concatenate(labels) == 1


def declared(path: Path, schema: Path, rare: str):
    options = ReadOptions(discover=True, schema=schema, on_violation=OnViolation.CLIP)
    blocks = [block for part in read_source("csv", path, options).parts.values() for block in part]
    return np.concatenate([block.features for block in blocks]), np.concatenate(
        [block.labels for block in blocks]
    ) == rare


def thinned(rows, labels, keep: int):
    labels = np.asarray(labels)
    kept = ~labels | (np.cumsum(labels) % keep == 0)
    return rows[kept], labels[kept]


def main() -> None:
    """Measure every set and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", default="claims,ijcnn1,letter,adult,musk")
    parser.add_argument("--output", type=Path, help="keep the table as JSON")
    given = parser.parse_args()
    sets: dict[str, Callable] = {set_.__name__: set_ for set_ in (claims, ijcnn1, letter, adult, musk)}
    head("set", "ε", "classes", "own threshold", "best threshold", "average precision", "AUC")
    for name in given.sets.split(","):
        rows, labels = sets[name]()
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        labels = labels.astype(int)
        print(f"{name}: {len(rows)} rows, {rows.shape[1]} features, {labels.mean():.3f} rare")
        for epsilon in (*EPSILONS, None):
            for weight in ((), "balanced"):
                found = [once(rows, labels, epsilon, weight, seed) for seed in range(given.seeds)]
                cells = (
                    f"{mean:.3f} ± {spread:.3f}"
                    for mean, spread in zip(np.mean(found, 0), np.std(found, 0), strict=True)
                )
                line(name, epsilon or "scikit-learn", weight or "as they are", *cells)
    if given.output is not None:
        keep_table(given.output, f"{given.seeds} divisions, mean ± standard deviation")


def once(rows, labels, epsilon, weight, seed):
    test, training = np.split(np.random.default_rng(seed).permutation(len(rows)), [len(rows) // 5])
    if epsilon is None:
        peer = LogisticRegression(C=100, class_weight=weight or None, max_iter=1000)
        scores = peer.fit(rows[training], labels[training]).decision_function(rows[test])
    else:
        scores = scorer(ArrayRows(rows[training], labels[training]), epsilon, weight, seed)(rows[test])
    true = labels[test]
    false_alarms, found, _ = roc_curve(true, scores)
    own = (np.mean(scores[true == 1] > 0) + np.mean(scores[true == 0] <= 0)) / 2
    best = np.max(1 + found - false_alarms) / 2
    return own, best, average_precision_score(true, scores), roc_auc_score(true, scores)


def scorer(rows, epsilon, weight, seed):
    setting = Setting(sizes=(rows.count,), dimension=rows.dimension, classes=2, trust=Trust.CENTRAL)
    chosen = recommended(setting, epsilon, DELTA)
    parts = [chosen.projection, chosen.trainer.with_parameters(class_weight=weight)]
    seen, model = trained(parts, chosen.projection_share, rows, setting, epsilon, DELTA, seed)
    return lambda features: model.scores(seen(features))[:, 0]


if __name__ == "__main__":
    main()
