"""Ratios of processor time to others, kept by commit: each row of ``benchmarks/performance.py`` and each of its sides.

asv runs in the environment of ``benchmarks/peers.txt``, Unitball in its own: ``UNITBALL_PYTHON``, by default
``.venv/bin/python``. Whole runs, which are compared with an empty process, are kept as seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_FOLDER = Path(__file__).parents[1]
_RATIOS = (
    "csv",
    "libsvm",
    "gradient-wide",
    "gradient-long",
    "covariance",
    "dp-pca",
    "hog",
    "smo",
    "charge-growth",
    "gaussian",
)
_SECONDS = ("charge", "help", "algorithms", "train-new", "train", "flow")


def _measured(name: str, *options: str) -> dict[str, dict[str, float]]:
    python = os.environ.get("UNITBALL_PYTHON", str(_FOLDER.parent / ".venv" / "bin" / "python"))
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "row.json"
        command = [python, str(_FOLDER / "performance.py"), name, "--json", str(written), *options]
        subprocess.run(command, check=True, capture_output=True)
        return dict(json.loads(written.read_text())[name])


class Ratios:
    """Ours over the first of the others; below 1 is faster."""

    params = _RATIOS
    param_names = ("work",)
    unit = "ratio of processor time"
    timeout = 600.0

    def track_ratio(self, name: str) -> float:
        """Return the ratio of medians, all sides run in turn."""
        ours, other, *_ = _measured(name, "--peers", sys.executable).values()
        return ours["processor"] / other["processor"]


class Seconds:
    """Wall time of separate processes, of one charge and of a flow."""

    params = _SECONDS
    param_names = ("work",)
    unit = "seconds"
    timeout = 600.0

    def track_seconds(self, name: str) -> float:
        """Return the median."""
        return _measured(name)["unitball"]["wall"]
