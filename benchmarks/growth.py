"""How time and memory grow with rows, features and parties: a table, fitted exponents, and log-log plots.

``python benchmarks/growth.py rows --most 1000000 --plot docs/images/growth-rows.svg``. Each point is a process of its
own: rows are made in a stream and stored, then a covariance and ten gradient sums are taken of the stored rows, nothing
kept between passes (``--keep`` bytes may be). Seconds are processor seconds of that process, so that a busy machine
changes them little; the peak is its resident memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

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
    parser.add_argument("--point", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point is not None:
        print(json.dumps(measure(arguments.axis, arguments.point, arguments.keep)))
        return
    points = [point for point in _POINTS[arguments.axis] if point <= arguments.most]
    found = []
    print(f"| {arguments.axis} | " + " | ".join(f"{name}, s" for name in _SHOWN) + " | peak, MiB |")
    print("|---" * (len(_SHOWN) + 2) + "|")
    for point in points:
        command = [sys.executable, __file__, arguments.axis, "--point", str(point), "--keep", str(arguments.keep)]
        # As behind the door: blocks go over the cores, a matrix product does not.
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}
        output = subprocess.run(command, check=True, capture_output=True, text=True, env=alone).stdout
        found.append(json.loads(output.splitlines()[-1]))
        cells = " | ".join(f"{found[-1][name]:.2f}" for name in _SHOWN)
        print(f"| {point:,} | {cells} | {found[-1]['peak']:.0f} |", flush=True)
    exponents = " | ".join(f"{exponent(points, [one[name] for one in found]):.2f}" for name in _SHOWN)
    peaks = exponent(points, [one["peak"] for one in found])
    print(f"| fitted exponent | {exponents} | {peaks:.2f} |")
    if arguments.plot is not None:
        draw(arguments.axis, points, found, arguments.plot)


def measure(axis: str, point: int, keep: int) -> dict[str, float]:
    """Return the processor seconds of each stage and the peak of this process."""
    from dpalgos.gradient_sums import GradientSums
    from dpalgos.gram_sums import packed_gram
    from dpalgos.guarantees import Setting
    from dpalgos.linear import LinearTask
    from dpalgos.losses import Softmax
    from dpalgos.memory import set_memory_limit
    from dpalgos.rows import ArrayRows, Rows
    from storage.refs import Labels
    from storage.rowfiles import RowFormat, RowWriter, StoredRows

    rows, features = {"rows": (point, _FEATURES), "features": (_ROWS, point)}.get(axis, (200_000, 20))
    set_memory_limit(keep)
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        layout = RowFormat(features, Labels.CLASSES)
        with Timed(seconds, "stored"):
            writer = RowWriter(Path(folder), layout)
            for block in made_up(rows, features, layout.block_rows):
                writer.write(layout.encode(block, (block[:, 0] > 0).astype(np.int32)))
            stored = StoredRows.open(Path(folder), layout, writer.close())
        with Timed(seconds, "reading"):
            for _ in stored.blocks():
                pass
        parties: list[Rows] = [stored]
        if axis == "parties":
            blocks = list(stored.blocks())
            held, labels = (np.concatenate([block[part] for block in blocks]) for part in (0, 1))
            bounds = np.linspace(0, rows, point + 1).astype(int)
            parties = [ArrayRows(held[a:b], labels[a:b]) for a, b in pairwise(bounds)]
        with Timed(seconds, "covariance"):
            for party in parties:
                packed_gram(party.blocks(), lambda block, _: block, features, 2.0**14)
        setting = Setting(sizes=tuple(party.count for party in parties), dimension=features, classes=10)
        sums = GradientSums(task=LinearTask(loss=Softmax()), clip=0.5, scale=2.0**14)
        with Timed(seconds, "gradients"):
            prepared = GradientSums.merge([sums.prepare(party, setting) for party in parties])
            weights = np.zeros((10, features))
            for _ in range(_PASSES):
                total = sum(sums.total(weights, party, setting) for party in prepared)
                weights = weights - sums.decode(np.asarray(total)) / rows
    seconds["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return seconds


class Timed:
    """Add the processor seconds of a block under a name."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._started = time.process_time()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._name] = time.process_time() - self._started


def made_up(rows: int, features: int, block: int) -> Iterator[np.ndarray]:
    """Yield rows of norm 1 in blocks."""
    random = np.random.default_rng(1)
    for start in range(0, rows, block):
        made = random.standard_normal((min(block, rows - start), features), dtype=np.float32)
        yield made / np.linalg.norm(made, axis=1, keepdims=True)


def exponent(points: list[int], values: list[float]) -> float:
    """Return the slope of a line through the last three points in logarithms: the constant part has faded there."""
    if len(points) < 2:
        return math.nan
    return float(np.polyfit(np.log(points[-3:]), np.log(np.maximum(values[-3:], 1e-9)), 1)[0])


def draw(axis: str, points: list[int], found: list[dict[str, float]], path: Path) -> None:
    """Draw seconds and memory over the points, both axes logarithmic."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5))
    for name in _SHOWN:
        left.loglog(points, [one[name] for one in found], marker="o", label=name)
    left.set(xlabel=axis, ylabel="processor seconds")
    left.legend()
    right.loglog(points, [one["peak"] for one in found], marker="o", color="black")
    right.set(xlabel=axis, ylabel="peak memory, MiB", ylim=(100, 10_000))
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
