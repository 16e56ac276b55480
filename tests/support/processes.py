"""Processes of a test's own: with an environment that no earlier test has touched."""

from __future__ import annotations

import os
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]
_OURS = ("PREFECT", "MLFLOW", "UNITBALL")
# Where a test keeps high-water marks: copies of a root must not share those in a home directory.
_KEPT = ("UNITBALL_LEDGER_MARK",)


def clean_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without what an earlier test's engine has put there."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(_OURS)}
    return {**kept, "PYTHONPATH": str(_REPOSITORY), "OPENBLAS_NUM_THREADS": "1", **more}


def has_ended(pid: int) -> bool:
    """Whether a process has gone, or only waits for its parent to ask how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
