"""One self-contained page an experiment: readable on a phone and on paper, with no link to anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader

from tasks.experiments.figures import Drawing, axis_label
from tasks.experiments.points import PointResult
from tasks.experiments.records import Experiment


def _inline(svg: bytes) -> str:
    """Return a picture without its XML prologue and its fixed size, so that it fits any width."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1), count=1
    )


def _guarantees(results: Sequence[PointResult]) -> list[dict[str, str | None]]:
    found: dict[tuple[str, str], list[PointResult]] = {}
    for result in results:
        found.setdefault((result.label, result.trust), []).append(result)
    return [
        {
            "label": label,
            "trust": trust,
            "proved": _proved(mine),
            "claim": mine[0].claim,
            "flaw": mine[0].flaw,
            "sound": None if mine[0].status == "proved" else mine[0].sound_counterpart,
        }
        for (label, trust), mine in found.items()
    ]


def _proved(results: Sequence[PointResult]) -> str:
    statements = list(dict.fromkeys(result.proved for result in results if result.proved))
    if not statements:
        return '<span class="fails">none</span>'
    numerics = ", ".join(dict.fromkeys(result.numerics for result in results if result.numerics))
    several = f"{statements[0]} to {statements[-1]}" if len(statements) > 1 else statements[0]
    return f'<span class="holds">{several}</span>, {numerics} numerics'


def _is_number(cell: str) -> bool:
    return bool(re.match(r"^-?[\d.]+(e[+-]?\d+)?( \(.*\))?$", cell))


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
    environment.globals.update(axis_label=axis_label, is_number=_is_number, number=_number, where=_where)
    return environment.get_template("report.html").render(
        e=experiment,
        figure=_inline(drawing.svg) if drawing is not None else None,
        guarantees=_guarantees(experiment.results),
    )
