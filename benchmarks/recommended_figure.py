"""Draw what benchmarks/recommended.py printed: the figure of docs/accuracy.md for MNIST.

python benchmarks/recommended.py --none > table.txt
python benchmarks/recommended_figure.py table.txt docs/images/frontier-mnist.png
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from matplotlib.figure import Figure

_LINE = re.compile(r"^(replace-\w+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) ")
_NONE = re.compile(r"^none +- +([\d.]+)$")
_STYLES = {"replace-one": ("tab:blue", "o"), "replace-special": ("tab:orange", "s")}


def main() -> None:
    """Draw mean, smallest and largest over the seeds against epsilon, one line a relation."""
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    for relation, (colour, marker) in _STYLES.items():
        points = sorted(
            tuple(map(float, found.groups()[1:]))
            for found in map(_LINE.match, lines)
            if found is not None and found[1] == relation
        )
        if points:
            epsilons, means, smallest, largest = zip(*points, strict=True)
            axes.plot(epsilons, means, color=colour, marker=marker, ms=4, lw=1.5, label=relation)
            axes.fill_between(epsilons, smallest, largest, color=colour, alpha=0.2, lw=0)
    for found in filter(None, map(_NONE.match, lines)):
        axes.axhline(float(found[1]), color="0.4", ls="--", lw=1, label="no noise, softmax regression")
    axes.set_xscale("log")
    axes.set_xticks([0.03, 0.1, 0.5, 1.0, 3.0], ["0.03", "0.1", "0.5", "1", "3"])
    axes.minorticks_off()
    axes.set_xlabel("ε (δ = 10⁻⁵), 5 parties × 10,000 rows, secure aggregation")
    axes.set_ylabel("accuracy on MNIST's 10,000 test rows")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(Path(sys.argv[2]), dpi=130)


if __name__ == "__main__":
    main()
