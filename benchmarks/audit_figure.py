"""Draw measured trade-off curves against those stated: the figure of docs/audit.md.

python benchmarks/audit_figure.py docs/images/audit-curves.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

from dpalgos.audit.experiment import Effort
from dpalgos.audit.releases import audit_release

SHOWN = (
    ("trainers", "class-means", 4.0, 1e-5),
    ("projections", "laplace-pca", 2.0, 1e-5),
    ("projections", "analyze-gauss-published", 4.0, 1e-4),
    ("trainers", "mpc-op", 1.0, 1e-5),
)
EFFORT = Effort(numbers=2_000_000, most=400_000, pilot=40)


def main() -> None:
    """Audit four releases and draw a panel each."""
    figure = Figure(figsize=(10.0, 3.0), layout="constrained")
    for axes, (kind, name, epsilon, delta) in zip(figure.subplots(1, len(SHOWN), sharey=True), SHOWN, strict=True):
        report = audit_release(kind, name, epsilon=epsilon, delta=delta, effort=EFFORT)
        axes.plot([0, 1], [1, 0], color="0.8", lw=1)
        axes.plot(*zip(*report.stated_curve, strict=True), color="tab:blue", label="stated: no test below")
        axes.plot(*zip(*report.curve, strict=True), ".", ms=4, color="tab:red", label="measured, at most")
        axes.set_title(f"{name}, ε = {epsilon:g}\n{report.verdict}", fontsize=8)
        axes.set_xlabel("type I error", fontsize=8)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.tick_params(labelsize=7)
    figure.axes[0].set_ylabel("type II error", fontsize=8)
    figure.axes[0].legend(fontsize=7, loc="upper right")
    figure.savefig(Path(sys.argv[1]), dpi=130)


if __name__ == "__main__":
    main()
