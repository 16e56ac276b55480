"""Where state lives: one root folder that holds everything Unitball, MLflow and the embedded Prefect keep."""

from __future__ import annotations

import os
from pathlib import Path

from storage.layout import Layout

__all__ = ["ROOT_VARIABLE", "current_layout", "current_root", "ledger_url"]

ROOT_VARIABLE = "UNITBALL_ROOT"
LEDGER_VARIABLE = "UNITBALL_LEDGER"


def default_root() -> Path:
    """Return the folder used where nothing is said: one place per user, so that budgets do not depend on the folder."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "unitball"


def current_root() -> Path:
    """Return the absolute root: ``UNITBALL_ROOT``, or the user's data folder."""
    value = os.environ.get(ROOT_VARIABLE)
    return (Path(value) if value else default_root()).expanduser().resolve()


def current_layout() -> Layout:
    """Return the layout of the current root, its folders made.

    Raises
    ------
    storage.errors.StorageError
        If the root cannot be written.
    """
    layout = Layout(current_root())
    layout.prepare()
    return layout


def ledger_url() -> str | None:
    """Return the database URL of a shared ledger (``UNITBALL_LEDGER``), or None for the root's own SQLite file."""
    return os.environ.get(LEDGER_VARIABLE) or None
