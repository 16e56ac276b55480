"""Public rows of two features and the lines released models draw through them."""

from __future__ import annotations

from collections.abc import Sequence

from storage.datasets import open_dataset
from storage.errors import InputError
from storage.refs import ReleaseRef
from tasks.door import read_release
from tasks.ingestion import find_dataset
from tasks.plotting import Plane
from tasks.rows import Row
from tasks.settings import current_layout

__all__ = ["plane_of"]


def plane_of(rows: Sequence[Row]) -> Plane:
    """Return the rows of a public set of two features, and the line of each series' first model.

    Raises
    ------
    InputError
        If the set is private or has other than two features.
    """
    dataset = find_dataset(rows[0].dataset)
    if dataset.private or dataset.dimension != 2:
        raise InputError(f"{dataset.name} has {dataset.dimension} features; the picture is of public rows with two")
    shown = [
        (float(row[0]), float(row[1]), int(label))
        for features, labels in open_dataset(current_layout(), dataset).blocks()
        for row, label in zip(features, labels, strict=True)
    ]
    lines = []
    for label in dict.fromkeys(row.label for row in rows):
        row = next(row for row in rows if row.label == label)
        model = read_release(ReleaseRef(key=row.releases[-1], kind="model", party="all"))
        a, b = (float(weight) for weight in model.weights[0])
        lines.append((label, row.status, a, b, float(model.intercept[0])))
    return Plane(rows=shown, lines=lines)
