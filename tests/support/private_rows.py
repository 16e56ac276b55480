"""Private rows for tests: a file whose numbers nobody meets by accident, so that any copy of them can be found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DIMENSION = 6
CLASSES = ("-1", "1")


@dataclass(frozen=True)
class PrivateRows:
    """A LIBSVM file, and what is in it."""

    path: Path
    features: NDArray[np.float64]
    labels: NDArray[np.int64]

    def needles(self) -> list[bytes]:
        """Return what must be found nowhere outside the private folder: numbers as text and as stored bytes."""
        found = []
        for row in self.features[:: max(1, len(self.features) // 40)]:
            value = float(row[0])
            found.append(f"{value:.6f}".encode())
            # A single float32 has four bytes, which random files contain by chance; two in a row do not.
            found.append(row[:2].astype("<f4").tobytes())
            found.append(row[:2].astype("<f8").tobytes())
        return found


def write_rows(path: Path, count: int, seed: int = 0, dimension: int = DIMENSION) -> PrivateRows:
    """Write two classes that a line nearly separates."""
    random = np.random.default_rng(seed)
    labels = np.where(np.arange(count) % 2 == 0, -1, 1)
    features = random.normal(size=(count, dimension)) * 0.3 + labels[:, None] * np.linspace(0.6, 0.1, dimension)
    features = np.round(features, 6)
    # No number has fewer than six digits behind the point, so that its text is as rare as it looks.
    features[np.abs(features) < 0.1] += 0.123457
    lines = [
        f"{label:+d} " + " ".join(f"{place}:{value:.6f}" for place, value in enumerate(row, 1))
        for label, row in zip(labels.tolist(), features.tolist(), strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return PrivateRows(path, features, labels)


def ingestion(rows: PrivateRows, name: str = "clinic", epsilon: float = 3.0, delta: float = 1e-4) -> list[str]:
    """Return the arguments of ``unitball ingest`` for these rows, private and with a cap."""
    declared = ["--format", "libsvm", "--path", str(rows.path), "--dimension", str(rows.features.shape[1])]
    cap = ["--epsilon-cap", str(epsilon), "--delta-cap", str(delta)]
    return ["ingest", name, *declared, "--classes=-1,1", *cap]
