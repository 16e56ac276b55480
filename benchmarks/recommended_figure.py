"""Draw what benchmarks/recommended.py printed, and others' systems beside it: the figure of docs/accuracy.md for MNIST.

python benchmarks/recommended.py --none > table.txt
unitball frontier --dataset mnist --algorithms … --out others
python benchmarks/recommended_figure.py table.txt docs/images/frontier-mnist.png others/results.parquet
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_LINE = re.compile(r"^(replace-\w+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) ")
_NONE = re.compile(r"^none +- +([\d.]+)$")
_OTHERS = ("tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink")
_STYLES = {"replace-one": ("tab:blue", "o"), "replace-special": ("tab:orange", "s")}


def main() -> None:
    """Draw mean, smallest and largest over the seeds against epsilon, one line a relation."""
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    figure = Figure(figsize=(7.0, 5.0), layout="constrained")
    axes = figure.subplots()
    for relation, (colour, marker) in _STYLES.items():
        points = sorted(
            tuple(map(float, found.groups()[1:]))
            for found in map(_LINE.match, lines)
            if found is not None and found[1] == relation
        )
        if points:
            epsilons, means, smallest, largest = zip(*points, strict=True)
            axes.plot(epsilons, means, color=colour, marker=marker, ms=4, lw=1.5, label=f"unitball, secagg, {relation}")
            axes.fill_between(epsilons, smallest, largest, color=colour, alpha=0.2, lw=0)
    for path in sys.argv[3:]:
        draw_others(axes, Path(path))
    for found in filter(None, map(_NONE.match, lines)):
        axes.axhline(float(found[1]), color="0.4", ls="--", lw=1, label="no noise, softmax regression")
    axes.set_xscale("log")
    axes.set_xticks([0.03, 0.1, 0.5, 1.0, 3.0], ["0.03", "0.1", "0.5", "1", "3"])
    axes.minorticks_off()
    axes.set_xlabel("ε (δ = 10⁻⁵), 5 parties × 10,000 rows")
    axes.set_ylabel("accuracy on MNIST's 10,000 test rows")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=7)
    figure.savefig(Path(sys.argv[2]), dpi=130)


def draw_others(axes: Axes, path: Path) -> None:
    """Draw the lines of ``unitball frontier``, dashed where nothing is proved; mean over its seeds."""
    runs = pq.read_table(path).to_pylist()
    for colour, name in zip(_OTHERS, dict.fromkeys(run["algorithm"] for run in runs), strict=False):
        mine = [run for run in runs if run["algorithm"] == name and run["axis_epsilon"] is not None]
        points = {float(run["axis_epsilon"]): [] for run in mine}
        for run in mine:
            points[float(run["axis_epsilon"])].append(run["metric_accuracy"])
        epsilons = sorted(points)
        means = [sum(points[epsilon]) / len(points[epsilon]) for epsilon in epsilons]
        proved = mine[0]["proved"] is not None
        label = f"{name}, {mine[0]['trust']}" + ("" if proved else ", as published: proved nothing")
        axes.plot(epsilons, means, color=colour, marker="^", ms=3, lw=1, ls="-" if proved else ":", label=label)


if __name__ == "__main__":
    main()
