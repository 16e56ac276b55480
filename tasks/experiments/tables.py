"""Tables of an experiment: means and spreads over seeds, one line a question and answer."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from pydantic import BaseModel

from tasks.experiments.points import PointResult, column, table_of

_PROVED = {"proved": "proved", "unproved": "✗ not proved", "non-private": "no privacy"}


class Table(BaseModel, frozen=True):
    """A table for people."""

    title: str = ""
    head: list[str]
    body: list[list[str]]


def _spread(values: pd.Series) -> str:
    if values.isna().all():
        return "–"
    middle, low, high = values.agg(["mean", "min", "max"])
    return f"{middle:.4g}" + ("" if low == high else f" ({low:.4g} – {high:.4g})")


def means_table(results: Sequence[PointResult], columns: Sequence[str], metrics: Sequence[str]) -> Table:
    """Return the mean of each metric, with the smallest and largest over seeds where they differ."""
    table = table_of(results).replace({"status": _PROVED})
    shown = [name for name in metrics if f"metric_{name}" in table]
    places = table.reindex(columns=["dataset", "label", "status", *map(column, columns)]).fillna("–").astype(str)
    body = [
        [*place, *(_spread(own[f"metric_{name}"]) for name in shown), str(len(own))]
        for place, own in table.groupby([places[name] for name in places], sort=False)
    ]
    return Table(head=["data set", "series", "proved", *columns, *shown, "runs"], body=body)
