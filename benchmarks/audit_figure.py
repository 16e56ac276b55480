"""Draw measured trade-off curves against those stated: the figure of docs/audit.md.

python benchmarks/audit_figure.py docs/images/audit-curves.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from dpalgos.audit.experiment import AuditOptions, Effort
from dpalgos.audit.releases import audit_release
from tasks.auditing.figures import draw_trade_offs

SHOWN = (
    ("trainers", "class-means", 4.0, 1e-5),
    ("projections", "laplace-pca", 2.0, 1e-5),
    ("projections", "analyze-gauss-published", 4.0, 1e-4),
    ("trainers", "mpc-op", 1.0, 1e-5),
)
EFFORT = Effort(numbers=2_000_000, most=400_000, pilot=40)


if __name__ == "__main__":
    reports = [
        audit_release(kind, name, AuditOptions(epsilon=e, delta=delta, effort=EFFORT)) for kind, name, e, delta in SHOWN
    ]
    Path(sys.argv[1]).write_bytes(draw_trade_offs(reports))
