"""A paper's figure or table from honest runs: the sweep, the figure, the verdict, the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from prefect import flow

from dpalgos.errors import ParameterError
from dpalgos.registry import names
from flows.specs import load_reproduction
from flows.sweep import SweepResult, errors_of, run_sweep
from storage.errors import InputError
from storage.refs import Visibility
from tasks.experiments.boundaries import make_narrow, plane_of
from tasks.experiments.computed import COMPUTED
from tasks.experiments.figures import Drawing, draw, draw_plane
from tasks.experiments.pages import page
from tasks.experiments.points import Row, compare_with_paper, derive, row_of, verdicts
from tasks.experiments.records import Experiment, Table, versions, write
from tasks.experiments.risk import Risk
from tasks.experiments.specification import DataNeed, Point, Reproduction, Scale, SweepSpec
from tasks.experiments.tables import means_table
from tasks.ingestion import IngestRequest, describe_datasets, find_dataset, ingest
from tasks.planning.identity import identity
from tasks.runtime.settings import current_root
from tasks.tracking.artifacts import show_figure
from tasks.tracking.results import RunResult
from tasks.tracking.sweeps import attach_files

__all__ = ["missing_of", "report_sweep", "reproduce"]


def missing_of(points: Sequence[Point]) -> dict[str, str]:
    """Return what the points name and nothing is registered under: label to what is missing."""
    known = {kind: set(names(kind)) for kind in ("systems", "trainers", "projections", "aggregators")}
    missing: dict[str, str] = {}
    for point in points:
        config = point.config
        asked = {
            "systems": None if config.trainer else config.algorithm,
            "trainers": config.trainer,
            "projections": config.projection,
            "aggregators": config.aggregation,
        }
        for kind, name in asked.items():
            if name is not None and name not in known[kind]:
                missing[point.label] = f"{kind.removesuffix('s')} {name} is not registered"
    return missing


def _data(scale: Scale, dataset: str | None, path: Path | None) -> tuple[list[DataNeed], list[str]]:
    """Return the data sets to run on, ingested where files were named, and what is missing.

    Raises
    ------
    InputError
        If none is there, naming the files that are needed.
    """
    wanted = [one for one in scale.data if dataset is None or one.name == dataset]
    if not wanted:
        first = scale.data[0]
        wanted = [first.model_copy(update={"name": dataset, "file": None, "files": ""})]
    if path is not None:
        several = [one for one in wanted if one.file is not None and (path / one.file).exists()]
        wanted_here = several or wanted[:1]
        for one in wanted_here:
            _bring_in(one, path)
    for one in wanted:
        if one.of is not None and _is_there(one.of):
            make_narrow(one.of, one.features, one.name)
    registered = {entry["name"] for entry in describe_datasets()}
    there = [one for one in wanted if one.name in registered]
    missing = [f"{one.name}: not there; it needs {one.files or 'to be ingested'}" for one in wanted if one not in there]
    if not there:
        raise InputError(
            "none of the data sets is there: "
            + "; ".join(missing)
            + ". Name the files with --path (and one set with --dataset)"
        )
    return there, missing


def _is_there(name: str) -> bool:
    return name in {entry["name"] for entry in describe_datasets()}


def _bring_in(need: DataNeed, path: Path) -> None:
    if need.format is None:
        raise InputError(f"{need.name} comes along and takes no --path")
    place = need.place(path)
    ingest(
        IngestRequest(
            name=need.of or need.name,
            format=need.format,
            path=place,
            visibility=Visibility.PUBLIC,
            dimension=need.dimension,
            schema_path=Path(need.schema_name) if need.schema_name else None,
            on_violation=need.on_violation,
        )
    )


def _setting(spec: SweepSpec, data: Sequence[DataNeed]) -> dict[str, str]:
    listed = {name: str(value) for name, value in spec.set.items()}
    grids = {
        name: values for grid in (spec.grid, *(block.grid for block in spec.blocks)) for name, values in grid.items()
    }
    listed |= {name: ", ".join(str(value) for value in values) for name, values in grids.items()}
    sizes = []
    for one in data:
        reference = find_dataset(one.name)
        tests = f" + {reference.test_rows} test rows" if reference.test_rows else ""
        sizes.append(
            f"{one.name}: {reference.rows} rows{tests} × {reference.dimension}, {len(reference.classes)} classes"
        )
    return {"data": "; ".join(sizes), **listed}


def _lines(repro: Reproduction, rows: Sequence[Row]) -> Drawing | None:
    assert repro.plot is not None
    return draw(repro.plot, rows, f"{repro.title} ({repro.paper}, {repro.figure})")


def _boundary(repro: Reproduction, rows: Sequence[Row]) -> Drawing | None:
    return draw_plane(plane_of(rows), f"{repro.title} ({repro.paper}, {repro.figure})")


_DRAWN: Mapping[str, Callable[[Reproduction, Sequence[Row]], Drawing | None]] = MappingProxyType(
    {"lines": _lines, "bars": _lines, "boundary": _boundary}
)


@flow(name="reproduction", flow_run_name="{name} ({scale})", persist_result=False)
def reproduce(
    name: str,
    scale: str = "quick",
    dataset: str | None = None,
    path: Path | None = None,
    command: str = "",
    out: Path | None = None,
    workers: int | None = None,
    dask: str | None = None,
) -> Experiment:
    """Run a reproduction and write rows, figure, verdict and page.

    Parameters
    ----------
    name : str
        One of :func:`flows.specs.known_reproductions`.
    scale : str
        ``"quick"`` on bundled data, ``"full"`` on the paper's.
    dataset : str, optional
        One of the scale's data sets, or any registered one instead of them.
    path : Path, optional
        Where the user's files are: a set's own, or a folder of several.
    command : str
        What was typed, for the page.
    out : Path, optional
        Where to write; under the root otherwise.

    Returns
    -------
    Experiment
    """
    started = time.monotonic()
    repro = load_reproduction(name)
    scales = dict(repro.scales())
    if scale not in scales:
        raise ParameterError(f"{name} has no scale {scale!r}; it has: {', '.join(scales)}")
    data, missing = _data(scales[scale], dataset, path)
    spec = repro.sweep(scales[scale], data)
    tables: list[Table] = []
    rows: list[Row] = []
    result: SweepResult | None = None
    if repro.computed is not None:
        rows, tables = COMPUTED[repro.computed](spec.points())
    else:
        absent = missing_of(spec.points())
        missing += [f"{label}: {what}" for label, what in absent.items()]
        kept = [block for block in spec.blocks if _label(spec, block.label, block.set) not in absent]
        if not kept:
            raise InputError(f"{name} cannot be reproduced: " + "; ".join(missing))
        result = run_sweep(spec.model_copy(update={"blocks": kept}), workers=workers, dask=dask)
        finished = [(one.point, one.result) for one in result.outcomes if one.result is not None]
        rows = derive(_with_risks(repro, finished), repro.derived)
        tables = [means_table(rows, repro.columns, repro.table)] if rows else []
    drawing = _DRAWN[repro.plot.kind](repro, rows) if repro.plot is not None and rows else None
    experiment = Experiment(
        name=name,
        scale=scale if dataset is None else f"{scale}-{dataset}",
        paper=repro.paper,
        figure=repro.figure,
        title=repro.title,
        question=repro.question,
        paper_says=repro.paper_says,
        differs=repro.differs,
        setting=_setting(spec, data),
        rows=rows,
        tables=tables,
        verdicts=verdicts(rows, repro.checks),
        compared=compare_with_paper(rows, repro.paper_values),
        failed=errors_of(result.outcomes) if result else [],
        missing=missing,
        command=command,
        versions=versions(),
        seconds=round(time.monotonic() - started, 1),
        mlflow_run_id=result.mlflow_run_id if result else "",
    )
    _publish(experiment, drawing, out)
    return experiment


def _with_risks(repro: Reproduction, finished: Sequence[tuple[Point, RunResult]]) -> list[Row]:
    rows = [row_of(point, result) for point, result in finished]
    if repro.risk is None:
        return rows
    # One after another: the rows of one partition are held in memory for all models trained on them.
    risks: dict[str, Risk] = {}
    for number, (point, _) in enumerate(finished):
        config = point.config
        place = identity(
            asked=[config.dataset, config.normalisation, config.partition, config.parties, config.partition_seed],
            sizes=[config.sizes, config.rows_per_party, config.test_fraction],
        )
        if place not in risks:
            risks = {place: Risk(config, loss=repro.risk.loss, regularisation=repro.risk.regularisation)}
        value = risks[place].of(rows[number].releases[-1])
        rows[number] = rows[number].model_copy(update={"metrics": {**rows[number].metrics, "objective": value}})
    return rows


def _label(spec: SweepSpec, label: str | None, settings: Mapping[str, object]) -> str:
    merged = {**spec.set, **settings}
    return label or str(merged.get("algorithm", "noisy-gd"))


def _publish(experiment: Experiment, drawing: Drawing | None, out: Path | None) -> None:
    text = page(experiment, drawing)
    write(experiment, drawing, text, out)
    if drawing is not None:
        show_figure(experiment.name, experiment.title or experiment.name, drawing.png, verdict_text(experiment))
    if experiment.mlflow_run_id:
        files_of: dict[str, str | bytes] = {"report.html": text}
        if drawing is not None:
            files_of |= {"figure.png": drawing.png, "figure.svg": drawing.svg}
        attach_files(current_root(), experiment.mlflow_run_id, files_of)


def verdict_text(experiment: Experiment) -> str:
    """Return the verdict as Markdown."""
    lines = ["| what the paper says | measured | wanted | verdict |", "|---|---|---|---|"]
    for one in experiment.verdicts:
        measured = "–" if one.measured is None else f"{one.measured:.4g}"
        lines.append(f"| {one.says} | {measured} | {one.wanted} | {one.word} |")
    return "\n".join([*lines, *(f"\n- {line}" for line in experiment.missing)])


def report_sweep(spec: SweepSpec, result: SweepResult, command: str) -> Experiment:
    """Keep a sweep as an experiment, so that it has rows, tables and a page like a reproduction."""
    finished = [(one.point, one.result) for one in result.outcomes if one.result is not None]
    rows = [row_of(point, done) for point, done in finished]
    axes = list(dict.fromkeys(name for grid in (spec.grid, *(block.grid for block in spec.blocks)) for name in grid))
    columns = [name for name in axes if name not in ("dataset", "algorithm", "seeds", "seed", "partition_seed")]
    experiment = Experiment(
        name=spec.name,
        scale="sweep",
        paper=spec.paper,
        figure=spec.figure,
        title=spec.title,
        question=spec.question,
        setting={name: str(value) for name, value in spec.set.items()}
        | {name: ", ".join(str(value) for value in values) for name, values in spec.grid.items()},
        rows=rows,
        tables=[means_table(rows, columns, ["accuracy", "epsilon_spent", "seconds"])] if rows else [],
        failed=errors_of(result.outcomes),
        command=command,
        versions=versions(),
        seconds=result.seconds,
        mlflow_run_id=result.mlflow_run_id,
    )
    write(experiment, None, page(experiment, None))
    return experiment
