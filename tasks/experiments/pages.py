"""An experiment as one HTML page, with its tables for people."""

import re
from collections.abc import Sequence

import pandas as pd
from jinja2 import Environment, PackageLoader

from dpalgos.sentences import sentence
from tasks.experiments.point_results import PointResult, axis_label, column, table_of
from tasks.experiments.records import Drawing, Experiment, Table

_PROVED = {"proved": "proved", "unproved": "✗ not proved", "non-private": "no privacy"}


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


def _inline(svg: bytes) -> str:
    """Return a figure without its XML prologue and its fixed size, so that it fits any width."""
    text = svg.decode()
    # The first of each is the picture's own.
    return re.sub(r' (width|height)="[^"]*"', "", text[text.index("<svg") :], count=2)


def _guarantees(results: Sequence[PointResult]) -> list[dict[str, str | None]]:
    guarantees = []
    for (label, trust), own in table_of(results).groupby(["label", "trust"], sort=False):
        first, statements = own.iloc[0], own["proved"].dropna().unique()
        proved = '<span class="fails">none</span>'
        if len(statements):
            several = f"{statements[0]} to {statements[-1]}" if len(statements) > 1 else statements[0]
            proved = f'<span class="holds">{several}</span>, {", ".join(own["numerics"].dropna().unique())} numerics'
        sound = None if first["status"] == "proved" else first["sound_counterpart"]
        claim, flaw = first[["claim", "flaw"]]
        flaw = sentence(flaw) if isinstance(flaw, str) else flaw
        guarantees.append(
            {"label": label, "trust": trust, "proved": proved, "claim": claim, "flaw": flaw, "sound": sound}
        )
    return guarantees


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.2f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def _where(where: dict[str, object]) -> str:
    return ", ".join(str(value) if name in ("label", "dataset") else f"{name} {value}" for name, value in where.items())


def page(experiment: Experiment, drawing: Drawing | None) -> str:
    """Return the page of an experiment as one HTML file.

    Parameters
    ----------
    experiment : Experiment
    drawing : Drawing or None
        Put in as SVG.
    """
    environment = Environment(
        loader=PackageLoader("tasks.experiments"), autoescape=True, trim_blocks=True, keep_trailing_newline=True
    )
    environment.globals.update(
        axis_label=axis_label,
        is_number=re.compile(r"-?[\d.]+(e[+-]?\d+)?( \(.*\))?$").match,
        number=_number,
        where=_where,
    )
    return environment.get_template("report.html").render(
        e=experiment,
        figure=_inline(drawing.svg) if drawing is not None else None,
        guarantees=_guarantees(experiment.results),
    )
