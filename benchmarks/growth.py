"""Growth of time and memory with rows, features and parties: a table, fitted exponents, and log-log plots.

``python benchmarks/growth.py rows --most 1000000 --output FILE.json --plot FILE.svg``. Each point is a separate
process: rows are made in a stream and stored, then a covariance and ten gradient sums are taken of the stored rows,
nothing kept between passes (``--keep`` bytes may be). Seconds are processor seconds of that process, so that a busy
machine changes them little; the peak is its resident memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from shared import Stage, draw, head, in_a_process, keep_table, line, stored_rows

from dpalgos.guarantees import Setting
from dpalgos.integer_sums import GradientSums, packed_gram
from dpalgos.linear import LinearTask
from dpalgos.losses import Softmax
from dpalgos.resources import set_memory_limit
from dpalgos.rows import ArrayRows, Rows

_FEATURES, _ROWS = 125, 20_000
_PASSES = 10
_POINTS: dict[str, tuple[int, ...]] = {
    "rows": (10_000, 100_000, 1_000_000, 16_000_000),
    "features": (50, 200, 784, 3_072),
    "parties": (5, 50, 500, 5_000, 50_000),
}
_SHOWN = ("stored", "reading", "covariance", "gradients")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("axis", choices=_POINTS)
    parser.add_argument("--most", type=int, default=10**9, help="Leave out larger points.")
    parser.add_argument("--keep", type=int, default=0, help="Bytes of rows that may be kept between passes.")
    parser.add_argument("--plot", type=Path, help="Draw the table as an SVG file.")
    parser.add_argument("--output", type=Path, help="Keep the table as JSON.")
    parser.add_argument("--point", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point is not None:
        print(json.dumps(measure(given.axis, given.point, given.keep)))
        return
    found = pd.DataFrame(columns=[*_SHOWN, "peak"], dtype=float)
    head(given.axis, *(f"{name}, s" for name in _SHOWN), "peak, MiB")
    for point in _POINTS[given.axis]:
        if point <= given.most:
            found.loc[point] = in_a_process(__file__, given.axis, "--point", point, "--keep", given.keep)
            line(f"{point:,}", *(f"{found.loc[point, name]:.2f}" for name in _SHOWN), f"{found.loc[point, 'peak']:.0f}")
    if len(found) > 1:
        # A line through the last three points: the constant part has faded there.
        logarithms = np.log(np.maximum(found, 1e-9))[-3:]
        slopes = np.polyfit(np.log(found.index[-3:].to_numpy(float)), logarithms, 1)[0]
        line("fitted exponent", *(f"{slope:.2f}" for slope in slopes))
    if given.output is not None:
        keep_table(given.output, "none")
    if given.plot is not None:
        draw(found, given.plot, style="o-", subplots=[_SHOWN, ("peak",)], xlabel=given.axis, xscale="log", yscale="log")


def measure(axis: str, point: int, keep: int) -> dict[str, float]:
    """Return the processor seconds of each stage and the peak of this process."""
    rows, features = {"rows": (point, _FEATURES), "features": (_ROWS, point)}.get(axis, (200_000, 20))
    set_memory_limit(keep)
    with tempfile.TemporaryDirectory() as folder:
        with Stage() as storing:
            stored = stored_rows(Path(folder), rows, features)
        with Stage() as reading:
            for _ in stored.blocks():
                pass
        parties: list[Rows] = [stored]
        if axis == "parties":
            features_of, labels_of, _ = zip(*stored.blocks(), strict=True)
            held, labels = np.concatenate(features_of), np.concatenate(labels_of)
            bounds = np.linspace(0, rows, point + 1).astype(int)
            parties = [ArrayRows(held[a:b], labels[a:b]) for a, b in pairwise(bounds)]
        with Stage() as covariance:
            for party in parties:
                packed_gram(party.blocks(), lambda block, _: block, features, 2.0**14)
        setting = Setting(sizes=tuple(party.count for party in parties), dimension=features, classes=10)
        sums = GradientSums(task=LinearTask(loss=Softmax()), clip=0.5, scale=2.0**14)
        with Stage() as gradients:
            prepared = GradientSums.merge([sums.prepare(party, setting) for party in parties])
            weights = np.zeros((10, features))
            for _ in range(_PASSES):
                total = sum(sums.total(weights, party, setting) for party in prepared)
                weights = weights - sums.decode(np.asarray(total)) / rows
    seconds = [stage.seconds for stage in (storing, reading, covariance, gradients)]
    return {**dict(zip(_SHOWN, seconds, strict=True)), "peak": gradients.peak}


if __name__ == "__main__":
    main()
