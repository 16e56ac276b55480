"""Experiments on disk: results, tables, figure, verdict and the page of each, in a folder of its own."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
from jinja2 import Environment, PackageLoader
from pydantic import AliasChoices, BaseModel, Field

from storage.atomic import write_bytes
from storage.errors import InputError
from storage.layout import path_component
from tasks.experiments.figures import Drawing, axis_label
from tasks.experiments.points import Compared, PointResult, Verdict, column, table_of
from tasks.runtime.settings import current_layout

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


_PACKAGES = ("unitball", "numpy", "scipy", "scikit-learn", "prefect", "mlflow", "dp-accounting", "matplotlib")


class Experiment(BaseModel, frozen=True):
    """Everything a page says of an experiment.

    Attributes
    ----------
    missing : list of str
        What could not be run: systems that are not registered, files that are not there.
    seconds : float or None
        None where private rows were read, of which durations tell.
    """

    name: str
    scale: str
    paper: str = ""
    figure: str = ""
    title: str = ""
    question: str = ""
    paper_says: list[str] = []
    differs: list[str] = []
    setting: dict[str, str] = {}
    results: Annotated[list[PointResult], Field(validation_alias=AliasChoices("results", "rows"))] = []
    tables: list[Table] = []
    verdicts: list[Verdict] = []
    compared: list[Compared] = []
    failed: list[str] = []
    missing: list[str] = []
    command: str = ""
    versions: dict[str, str] = {}
    seconds: float | None = 0.0
    mlflow_run_id: str = ""


def versions() -> dict[str, str]:
    """Return the versions an experiment rests on."""
    installed = {package: importlib.metadata.version(package) for package in _PACKAGES}
    return {"python": platform.python_version(), **installed}


def experiments_folder() -> Path:
    """Return the folder of all experiments."""
    return current_layout().root / "experiments"


def _parquet(results: list[PointResult]) -> bytes:
    table = table_of(results).infer_objects()
    for name in table:
        # Arrow refuses columns in which some values are texts and others are not.
        if pd.api.types.infer_dtype(table[name]).startswith("mixed"):
            table[name] = table[name].map(str, na_action="ignore")
    return bytes(table.to_parquet(compression="zstd", index=False))


def write(experiment: Experiment, drawing: Drawing | None, page: str, folder: Path | None = None) -> Path:
    """Write an experiment's files and return their folder.

    Raises
    ------
    StorageError
        If the folder cannot be written.
    """
    place = folder or experiments_folder() / path_component(f"{experiment.name}-{experiment.scale}", "experiment")
    write_bytes(place / "experiment.json", experiment.model_dump_json(indent=2).encode())
    if experiment.results:
        write_bytes(place / "results.parquet", _parquet(experiment.results))
    if drawing is not None:
        write_bytes(place / "figure.png", drawing.png)
        write_bytes(place / "figure.svg", drawing.svg)
    write_bytes(place / "report.html", page.encode())
    return place


def stored_experiments() -> list[str]:
    """Return the names of the folders that hold an experiment."""
    return sorted(path.parent.name for path in experiments_folder().glob("*/experiment.json"))


def load_experiment(name: str) -> tuple[Experiment, Drawing | None, Path]:
    """Read an experiment that was run before.

    Raises
    ------
    InputError
        Naming those that there are.
    """
    place = experiments_folder() / path_component(name, "experiment")
    if not (place / "experiment.json").is_file():
        known = ", ".join(stored_experiments()) or "none yet: run unitball reproduce or unitball sweep"
        raise InputError(f"no experiment {name!r} was run in this root; there are: {known}")
    experiment = Experiment.model_validate_json((place / "experiment.json").read_bytes())
    png, svg = (place / name for name in ("figure.png", "figure.svg"))
    return experiment, Drawing(png=png.read_bytes(), svg=svg.read_bytes()) if svg.is_file() else None, place


def _inline(svg: bytes) -> str:
    """Return a picture without its XML prologue and its fixed size, so that it fits any width."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1), count=1
    )


def _guarantees(results: Sequence[PointResult]) -> list[dict[str, str | None]]:
    guarantees: dict[tuple[str, str], list[PointResult]] = {}
    for result in results:
        guarantees.setdefault((result.label, result.trust), []).append(result)
    return [
        {
            "label": label,
            "trust": trust,
            "proved": _proved(mine),
            "claim": mine[0].claim,
            "flaw": mine[0].flaw,
            "sound": None if mine[0].status == "proved" else mine[0].sound_counterpart,
        }
        for (label, trust), mine in guarantees.items()
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
