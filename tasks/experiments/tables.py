"""Tables of an experiment: means and spreads over seeds, one line a question and answer."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tasks.experiments.points import PointResult
from tasks.experiments.records import Table

__all__ = ["means_table"]

_PROVED = {"proved": "proved", "unproved": "✗ not proved", "non-private": "no privacy"}


def _spread(values: Sequence[float]) -> str:
    middle = fmean(values)
    if len(values) == 1 or max(values) == min(values):
        return f"{middle:.4g}"
    return f"{middle:.4g} ({min(values):.4g} – {max(values):.4g})"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return ", ".join(str(part) for part in value) if isinstance(value, (list, tuple)) else str(value)


def means_table(results: Sequence[PointResult], columns: Sequence[str], metrics: Sequence[str]) -> Table:
    """Return the mean of each metric, with the smallest and largest over seeds where they differ."""
    groups: dict[tuple[str, ...], list[PointResult]] = {}
    for result in results:
        place = (result.dataset, result.label, _PROVED[result.status], *(_cell(result.value(name)) for name in columns))
        groups.setdefault(place, []).append(result)
    shown = [name for name in metrics if any(name in result.metrics for result in results)]
    body = []
    for place, mine in groups.items():
        values = [[result.metrics[name] for result in mine if name in result.metrics] for name in shown]
        body.append([*place, *(_spread(found) if found else "–" for found in values), str(len(mine))])
    return Table(head=["data set", "series", "proved", *columns, *shown, "runs"], body=body)
