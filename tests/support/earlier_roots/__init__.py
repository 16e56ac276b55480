"""A root as an earlier version of Unitball left it: private rows, ledger, releases, results and logged models."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["EarlierModels", "unpack"]

_HERE = Path(__file__).parent
# Where the root lay when it was made; MLflow keeps absolute addresses of artifacts.
_MADE_AT = "file:///srv/unitball/root"
_ADDRESSES = {
    "experiments": ("artifact_location",),
    "runs": ("artifact_uri",),
    "logged_models": ("artifact_location",),
    "model_versions": ("source", "storage_location"),
}


@dataclass(frozen=True)
class EarlierModels:
    """Raw rows, and what each registered model predicted for them under the version that made it."""

    raw: list[list[float]]
    predictions: dict[str, list[str]]

    @classmethod
    def read(cls) -> EarlierModels:
        found: dict[str, Any] = json.loads((_HERE / "predictions.json").read_text("utf-8"))
        return cls(found["raw"], found["models"])


def unpack(folder: Path) -> Path:
    """Put the root into a folder, as one that was moved there, and return its place."""
    with tarfile.open(_HERE / "root.tar.xz") as archive:
        archive.extractall(folder, filter="tar")
    root = folder / "root"
    # Earlier versions left it to the umask; the refusal asks its owner for this.
    root.chmod(0o700)
    database = sqlite3.connect(root / "mlflow.db")
    with database:
        for table, columns in _ADDRESSES.items():
            for column in columns:
                database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (_MADE_AT, root.as_uri()))
    database.close()
    return root
