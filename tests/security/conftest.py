"""Fixtures of attacks: a clinic's private rows, registered in a root of the test's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest

ROWS, COLUMNS = 400, 8


@pytest.fixture
def rows(random: np.random.Generator) -> NDArray[np.float64]:
    """Return features and, in the last column, classes 0 and 1."""
    features = random.normal(size=(ROWS, COLUMNS)).astype(np.float32).astype(np.float64)
    return np.column_stack([features, np.arange(ROWS) % 2])


@pytest.fixture
def clinic(root: Path, tmp_path: Path, rows: NDArray[np.float64]) -> Path:
    """Register the rows as the private set ``clinic`` and return their file."""
    path = tmp_path / "clinic.csv"
    write_csv(path, rows)
    ingest(request_for(path, "clinic"))
    return path


def write_csv(path: Path, rows: NDArray[np.float64]) -> Path:
    """Write rows with the class in the last column as CSV, with a schema beside it."""
    lines = [",".join([*(repr(float(value)) for value in row[:-1]), str(int(row[-1]))]) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    schema_for(path, rows.shape[1] - 1, 8 if np.abs(rows[:, :-1]).max() <= 8 else 2048)
    return path


def schema_for(path: Path, columns: int, reach: int = 8) -> Path:
    """Write the schema of such a file beside it."""
    fields = "\n".join(
        f"  - {{name: x{column}, type: numeric, range: [-{reach}, {reach}]}}" for column in range(columns)
    )
    label = "  - {name: label, type: label, classes: ['0', '1']}"
    schema = path.with_suffix(".yaml")
    schema.write_text(f"format_version: 1\nheader: false\ncolumns:\n{fields}\n{label}\n")
    return schema


def request_for(path: Path, name: str, **more: object) -> IngestRequest:
    """Return the request that registers such a file, private and with a cap unless told otherwise."""
    given: dict[str, object] = {
        "name": name,
        "format": path.suffix.removeprefix("."),
        "path": path,
        "schema_path": path.with_suffix(".yaml"),
        "epsilon_cap": 2.0,
        "delta_cap": 1e-4,
        **more,
    }
    return IngestRequest.model_validate(given)
