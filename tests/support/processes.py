"""Processes of a test's own: with an environment that no earlier test has touched."""

from __future__ import annotations

import os
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]
_OURS = ("PREFECT", "MLFLOW", "UNITBALL")


def clean_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without what an earlier test's engine has put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "PYTHONPATH": str(_REPOSITORY), "OPENBLAS_NUM_THREADS": "1", **more}
