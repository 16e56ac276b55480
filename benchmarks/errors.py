"""Numeric labels: what a run reports of its errors, and what these are exactly.

    UNITBALL_DATA=/path/to/data python benchmarks/errors.py [--sets cpu_act,house_16H,wind] [--epsilons 0.1,0.5,1]
        [--widths 1,10,40] [--output FILE.json]

``PrivateRegressor`` with its defaults and a fifth of the training rows held out, (ε, 10⁻⁶), replace-one, seed 0. The
range of the label is as declared, and 10 and 40 times as wide around the same middle. R²_B counts errors up to B in
both of its parts, the mean absolute error up to B; exact numbers are those of the same held-out rows.
"""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from shared import head, keep_table, line
from table_sets import load

from tasks.preparation.partitions import _places

DELTA, FRACTION = 1e-6, 0.2


def up_to(labels: NDArray[Any], predictions: NDArray[Any], bound: float) -> dict[str, float]:
    """Return the exact numbers of clipped labels and predictions with errors counted up to a bound, and R² without."""
    errors = np.abs(labels - predictions)
    places = np.linspace(*np.quantile(labels, [0.01, 0.99]), 2000)
    least = min(float(np.square(np.minimum(np.abs(labels - place), bound)).sum()) for place in places)
    return {
        "r2_b": 1.0 - float(np.square(np.minimum(errors, bound)).sum()) / least,
        "r2": 1.0 - float(np.square(errors).sum() / np.square(labels - labels.mean()).sum()),
        "mae_b": float(np.minimum(errors, bound).mean()),
        "mae": float(errors.mean()),
    }


def said(metrics: Any, name: str, form: str) -> str:
    """Return a reported number with its margin, or that it cannot be measured."""
    if math.isnan(metrics[name]):
        return "cannot be measured"
    return f"{metrics[name]:{form}} ({metrics[name + '_low']:{form}} to {metrics[name + '_high']:{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="cpu_act,house_16H,wind")
    parser.add_argument("--epsilons", default="0.1,0.5,1")
    parser.add_argument("--widths", default="1,10,40")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    from unitball import PrivateRegressor

    reported, exact = ("reported R²_B", "reported MAE_B"), ("exact R²_B", "exact R²", "exact MAE_B", "exact MAE")
    head("set", "range", "ε", "held out", "B", reported[0], *exact[:2], reported[1], *exact[2:])
    for name in given.sets.split(","):
        declared = load(name)
        low, high = declared.label_range
        for times in map(int, given.widths.split(",")):
            more = (times - 1) * (high - low) / 2.0
            table = replace(declared, label_range=(low - more, high + more))
            rows, labels = table.frame(table.train), table.train.labels
            held = _places(0, "", len(labels)) < FRACTION
            for epsilon in map(float, given.epsilons.split(",")):
                model = PrivateRegressor(
                    epsilon, DELTA, schema=table.schema(), on_violation="clip", public=True, random_state=0,
                    test_fraction=FRACTION,
                ).fit(rows, labels)  # fmt: skip
                metrics = model.measured_
                truth = np.clip(labels[held], *table.label_range)
                predicted = np.clip(np.asarray(model.predict(rows[held])), *table.label_range)
                found = up_to(truth, predicted, metrics["error_bound"])
                form = ".2f" if high - low < 1000 else ",.0f"
                line(
                    name, "as declared" if times == 1 else f"× {times}", f"{epsilon:g}", f"{int(held.sum()):,}",
                    f"{metrics['error_bound']:{form}}", said(metrics, "r2", ".3f"), f"{found['r2_b']:.3f}",
                    f"{found['r2']:.3f}", said(metrics, "mae", form), f"{found['mae_b']:{form}}",
                    f"{found['mae']:{form}}",
                )  # fmt: skip
    if given.output:
        keep_table(given.output, "seed 0")


if __name__ == "__main__":
    main()
