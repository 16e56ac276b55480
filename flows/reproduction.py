"""A paper's figure or table from honest runs: the sweep, the figure, the verdict, the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from dpalgos.errors import ParameterError
from flows.specs import known_reproductions, load_reproduction
from flows.sweep import SweepResult, errors_of, run_sweep
from storage.errors import InputError
from storage.refs import Visibility
from tasks.datasets.description import describe_datasets, find_dataset
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.experiments.boundaries import decision_boundaries, ingest_features
from tasks.experiments.computed import COMPUTED
from tasks.experiments.figures import Drawing, draw, draw_boundaries
from tasks.experiments.pages import page
from tasks.experiments.points import PointResult, compare_with_paper, derive, point_result, verdicts
from tasks.experiments.records import Experiment, Table, versions, write
from tasks.experiments.risk import Risk
from tasks.experiments.specification import DataNeed, Plot, Point, Reproduction, Scale, SweepSpec
from tasks.experiments.tables import means_table
from tasks.planning.identity import identity
from tasks.runtime.settings import current_root
from tasks.tracking.artifacts import show_figure
from tasks.tracking.results import RunResult
from tasks.tracking.sweeps import attach_files

__all__ = ["report_sweep", "reproduce"]

# From this ratio of largest to smallest on, an axis is logarithmic.
_WIDE = 20.0


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
            ingest_features(one.of, one.features, one.name)
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
            scaling=need.scaling,
        )
    )


def _about(asked: Reproduction | SweepSpec, result: SweepResult | None, command: str) -> dict[str, Any]:
    """Return what a page states of any experiment."""
    return {
        **asked.model_dump(include={"name", "paper", "figure", "title", "question"}),
        "failed": errors_of(result.outcomes) if result else [],
        "command": command,
        "versions": versions(),
        "mlflow_run_id": result.mlflow_run_id if result else "",
    }


def _size(name: str) -> str:
    found = find_dataset(name)
    tests = f" + {found.test_rows} test rows" if found.test_rows else ""
    return f"{name}: {found.rows} rows{tests} × {found.dimension}, {len(found.classes)} classes"


def _setting(spec: SweepSpec, data: Sequence[DataNeed]) -> dict[str, str]:
    listed = {"data": "; ".join(_size(one.name) for one in data)} if data else {}
    listed |= {name: str(value) for name, value in spec.set.items()}
    return listed | {name: ", ".join(str(value) for value in values) for name, values in spec.grids()}


def _lines(repro: Reproduction, results: Sequence[PointResult]) -> Drawing | None:
    assert repro.plot is not None
    return draw(repro.plot, results, f"{repro.title} ({repro.paper}, {repro.figure})")


def _boundary(repro: Reproduction, results: Sequence[PointResult]) -> Drawing | None:
    return draw_boundaries(decision_boundaries(results), f"{repro.title} ({repro.paper}, {repro.figure})")


_DRAWN: Mapping[str, Callable[[Reproduction, Sequence[PointResult]], Drawing | None]] = MappingProxyType(
    {"lines": _lines, "bars": _lines, "boundary": _boundary}
)


def _at_papers_scale(repro: Reproduction, scale: str, dataset: str | None) -> bool:
    """Whether the paper's data are read at the paper's sizes; so too where a figure needs no data of the paper's."""
    if repro.full is None:
        return True
    return scale == "full" and (dataset is None or dataset in {one.name for one in repro.full.data})


@flow(name="reproduction", flow_run_name="{name} ({scale})", persist_result=False)
def reproduce(
    name: Annotated[str, Field(description="A figure or table.", json_schema_extra={"enum": [*known_reproductions()]})],
    scale: Annotated[
        str, Field(description="quick: bundled data; full: the paper's.", json_schema_extra={"enum": ["quick", "full"]})
    ] = "quick",
    dataset: Annotated[str | None, Field(description="One of its data sets, or any registered one instead.")] = None,
    path: Annotated[Path | None, Field(description="The set's files, or a folder that holds several sets'.")] = None,
    command: Annotated[str, Field(description="What was typed, for the page.")] = "",
    out: Annotated[Path | None, Field(description="Where to write; under the root if empty.")] = None,
    workers: Annotated[int | None, Field(ge=1, le=256, description="Points at once; by the machine if empty.")] = None,
    dask: Annotated[str | None, Field(description="`local`, or the address of a scheduler with the same root.")] = None,
) -> Experiment:
    """Run a reproduction and write results, figure, verdict and page.

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
    workers : int, optional
        Points at once; by the specification or the machine otherwise.
    dask : str, optional
        ``"local"``, or the address of a scheduler whose workers see the same root.

    Returns
    -------
    Experiment
    """
    started = time.monotonic()
    repro = load_reproduction(name)
    scales = dict(repro.scales())
    if scale not in scales:
        raise ParameterError(f"{name} has no scale {scale!r}; it has: {', '.join(scales)}")
    at_scale = _at_papers_scale(repro, scale, dataset)
    if not at_scale:
        repro = repro.model_copy(update={"title": f"{repro.title}, not at the paper's scale"})
    data, missing = _data(scales[scale], dataset, path)
    spec = repro.sweep(scales[scale], data)
    tables: list[Table] = []
    results: list[PointResult] = []
    result: SweepResult | None = None
    if repro.computed is not None:
        results, tables = COMPUTED[repro.computed](spec.points())
    else:
        result = run_sweep(spec, workers=workers, dask=dask)
        finished = [(one.point, one.result) for one in result.outcomes if one.result is not None]
        results = derive(_with_risks(repro, finished), repro.derived)
        tables = [means_table(results, repro.columns, repro.table)] if results else []
    drawing = _DRAWN[repro.plot.kind](repro, results) if repro.plot is not None and results else None
    experiment = Experiment(
        **_about(repro, result, command),
        scale=scale if dataset is None else f"{scale}-{dataset}",
        paper_says=repro.paper_says,
        differs=repro.differs,
        setting=_setting(spec, data),
        results=results,
        tables=tables,
        verdicts=verdicts(results, repro.checks, at_scale=at_scale),
        compared=compare_with_paper(results, repro.paper_values),
        missing=missing,
        seconds=round(time.monotonic() - started, 1),
    )
    _publish(experiment, drawing, out)
    return experiment


def _with_risks(repro: Reproduction, finished: Sequence[tuple[Point, RunResult]]) -> list[PointResult]:
    results = [point_result(point, result) for point, result in finished]
    if repro.risk is None:
        return results
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
        value = risks[place].of(results[number].releases[-1])
        results[number] = results[number].model_copy(
            update={"metrics": {**results[number].metrics, "objective": value}}
        )
    return results


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
        lines.append(f"| {one.says} | {measured} | {one.wanted} | {one.summary} |")
    return "\n".join([*lines, *(f"\n- {line}" for line in experiment.missing)])


def report_sweep(
    spec: SweepSpec,
    result: SweepResult,
    command: str,
    *,
    plot: Plot | None = None,
    scale: str = "sweep",
    out: Path | None = None,
) -> Experiment:
    """Keep a sweep as an experiment, so that it has results, tables, a figure and a page like a reproduction.

    Unless a plot is given, its accuracy is drawn against its first axis of numbers.
    """
    finished = [(one.point, one.result) for one in result.outcomes if one.result is not None]
    results = [point_result(point, done) for point, done in finished]
    axes = dict.fromkeys(name for name, _ in spec.grids())
    columns = [name for name in axes if name not in ("dataset", "algorithm", "seeds", "seed", "partition_seed")]
    experiment = Experiment(
        **_about(spec, result, command),
        scale=scale,
        setting=_setting(spec, ()),
        results=results,
        tables=[means_table(results, columns, ["accuracy", "epsilon_spent", "seconds"])] if results else [],
        seconds=result.seconds,
    )
    plot = plot or _plot_of(spec, results)
    drawing = draw(plot, results, spec.title or spec.name) if plot is not None and results else None
    _publish(experiment, drawing, out)
    return experiment


def _plot_of(spec: SweepSpec, results: Sequence[PointResult]) -> Plot | None:
    """Return the accuracy against the first axis of numbers that is varied; None where there is none."""
    for name, values in spec.grids():
        numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if name in ("seeds", "seed", "partition_seed", "repetition") or len(set(numbers)) < max(len(values), 2):
            continue
        if all(result.value(name) is None for result in results):
            continue
        wide = min(numbers) > 0 and max(numbers) / min(numbers) >= _WIDE
        return Plot(x=name, log_x=wide)
    return None
