"""A paper's figure or table from honest runs: the sweep, the figure, the verdict, the page."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.context import FlowRunContext
from pydantic import Field

from flows.specs import known_reproductions, load_reproduction
from flows.sweep import SweepResult, run_sweep
from storage.errors import InputError
from storage.refs import Visibility
from tasks.datasets.registration import describe_datasets, ensure_registered, find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.experiments.comparisons import compare_with_paper, derive, verdicts
from tasks.experiments.computed import COMPUTED, Risk, decision_boundaries, ingest_features
from tasks.experiments.figures import draw
from tasks.experiments.pages import means_table, page
from tasks.experiments.point_results import PointResult
from tasks.experiments.records import RESTS_ON, WEIGHED, Drawing, Experiment, versions, write
from tasks.experiments.specifications import NOISE_AXES, DataNeed, Plot, Reproduction, Scale, SweepSpec
from tasks.planning.identity import identity
from tasks.runtime.settings import current_root
from tasks.tracking.artifacts import show_figure
from tasks.tracking.results import about_people, synthetic_of
from tasks.tracking.runs import log_files, tracking_client

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
        wanted = [scale.data[0].model_copy(update={"name": dataset, "file": None, "files": ""})]
    if path is not None:
        several = [one for one in wanted if one.file is not None and (path / one.file).exists()]
        for one in several or wanted[:1]:
            _bring_in(one, path)
    ensure_registered(*(name for one in wanted for name in (one.name, one.of)))
    for one in wanted:
        if one.of is not None and one.of in _registered():
            ingest_features(one.of, one.features, one.name)
    there = [one for one in wanted if one.name in _registered()]
    missing = [f"{one.name}: missing; it needs {one.files or 'to be ingested'}" for one in wanted if one not in there]
    if not there:
        raise InputError(
            "this reproduction needs data sets that are missing: "
            + "; ".join(missing)
            + ". Name the files with --path (and one set with --dataset)"
        )
    return there, missing


def _registered() -> set[str]:
    return {str(entry["name"]) for entry in describe_datasets()}


def _bring_in(need: DataNeed, path: Path) -> None:
    if need.format is None:
        raise InputError(f"{need.name} is bundled and takes no --path")
    ingest(
        IngestRequest(
            name=need.of or need.name,
            format=need.format,
            path=need.place(path),
            visibility=Visibility.PUBLIC,
            dimension=need.dimension,
            schema_path=Path(need.schema_name) if need.schema_name else None,
            on_violation=need.on_violation,
            scaling=need.scaling,
        )
    )


def _size(name: str) -> str:
    dataset = find_dataset(name)
    tests = f" + {dataset.test_rows} test rows" if dataset.test_rows else ""
    return f"{name}: {dataset.rows} rows{tests} × {dataset.dimension}, {len(dataset.classes)} classes"


def _setting(spec: SweepSpec, result: SweepResult | None) -> dict[str, str]:
    listed = {name: str(value) for name, value in spec.set.items()}
    listed |= {name: ", ".join(str(value) for value in values) for name, values in spec.grids()}
    outcomes = () if result is None else result.outcomes
    about = {said for one in outcomes if one.result is not None and (said := about_people(one.result))}
    synthetic = synthetic_of([one.result for one in outcomes if one.result is not None])
    return listed | ({WEIGHED: " ".join(sorted(about))} if about else {}) | ({RESTS_ON: synthetic} if synthetic else {})


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
    dataset: Annotated[
        str | None, Field(description="One of its data sets, or any registered data set instead.")
    ] = None,
    path: Annotated[Path | None, Field(description="The set's files, or a folder that holds several sets'.")] = None,
    command: Annotated[str, Field(description="Command that was typed, for the page.")] = "",
    out: Annotated[Path | None, Field(description="Folder for the files. Default: under the root.")] = None,
    workers: Annotated[
        int | None, Field(ge=1, le=256, description="Parallel runs. Default: by the machine's cores.")
    ] = None,
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
        Command that was typed, for the page.
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
    scaled = repro.at(scale)
    at_scale = _at_papers_scale(repro, scale, dataset)
    if not at_scale:
        repro = repro.model_copy(update={"title": f"{repro.title}, not at the paper's scale"})
    data, missing = _data(scaled, dataset, path)
    spec = repro.sweep(scaled, data)
    result: SweepResult | None = None
    if repro.computed is not None:
        results, tables = COMPUTED[repro.computed](spec.points())
    else:
        result = run_sweep(spec, workers=workers, dask=dask)
        results = derive(_with_risks(repro, result), repro.derived)
        tables = [means_table(results, repro.columns, repro.table)] if results else []
    title, drawing = f"{repro.title} ({repro.paper}, {repro.figure})", None
    if repro.plot is not None and results:
        boundary = repro.plot.kind == "boundary"
        drawing = decision_boundaries(results, title) if boundary else draw(repro.plot, results, title)
    experiment = Experiment(
        **repro.model_dump(include=set(Experiment.model_fields)),
        scale=scale if dataset is None else f"{scale}-{dataset}",
        setting={"data": "; ".join(_size(one.name) for one in data), **_setting(spec, result)},
        results=results,
        tables=tables,
        verdicts=verdicts(results, repro.checks, at_scale=at_scale),
        compared=compare_with_paper(results, repro.paper_values),
        missing=missing,
        command=command,
        seconds=round(time.monotonic() - started, 1),
    )
    return _published(experiment, result, drawing, out)


def _with_risks(repro: Reproduction, result: SweepResult) -> list[PointResult]:
    if repro.risk is None:
        return result.finished()
    results = []
    # One after another: the rows of one partition are held in memory for all models trained on them.
    known: tuple[str, Risk] | None = None
    configs = (one.point.config for one in result.outcomes if one.result is not None)
    for config, trained in zip(configs, result.finished(), strict=True):
        place = identity(
            asked=[config.dataset, config.normalisation, config.partition, config.parties, config.partition_seed],
            sizes=[config.sizes, config.rows_per_party, config.test_fraction],
        )
        if known is None or known[0] != place:
            known = place, Risk(config, loss=repro.risk.loss, regularisation=repro.risk.regularisation)
        results.append(trained.with_metric("objective", known[1].of(trained.releases[-1])))
    return results


def _published(
    experiment: Experiment, result: SweepResult | None, drawing: Drawing | None, out: Path | None
) -> Experiment:
    """Write an experiment's files, show its figure in Prefect, and keep both with its sweep in MLflow."""
    failed, run_id = (result.errors(), result.mlflow_run_id) if result else ([], "")
    experiment = experiment.model_copy(update={"failed": failed, "mlflow_run_id": run_id, "versions": versions()})
    files = write(experiment, drawing, page(experiment, drawing), out)
    # What draws a sweep that has ended is no run of Prefect's; the page has the figure all the same.
    if drawing is not None and FlowRunContext.get() is not None:
        show_figure(experiment.name, experiment.title or experiment.name, drawing.png, verdict_text(experiment))
    if run_id:
        shown = [
            files / name for name in ("report.html", "figure.png", "figure.svg") if drawing or name == "report.html"
        ]
        with tracking_client(current_root()) as client:
            log_files(client, run_id, {file.name: file.read_bytes() for file in shown})
    return experiment


def verdict_text(experiment: Experiment) -> str:
    """Return the verdict as Markdown."""
    lines = ["| what the paper says | measured | wanted | verdict |", "|---|---|---|---|"]
    lines += [f"| {one.says} | {one.shown} | {one.wanted} | {one.summary} |" for one in experiment.verdicts]
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
    results = result.finished()
    axes = dict.fromkeys(name for name, _ in spec.grids())
    columns = [name for name in axes if name not in ("dataset", "algorithm", *NOISE_AXES)]
    experiment = Experiment(
        **spec.model_dump(include=set(Experiment.model_fields)),
        scale=scale,
        setting=_setting(spec, result),
        results=results,
        tables=[means_table(results, columns, ["accuracy", "epsilon_spent", "seconds"])] if results else [],
        command=command,
        seconds=result.seconds,
    )
    plot = plot or _plot_of(spec, results)
    drawing = draw(plot, results, spec.title or spec.name) if plot is not None and results else None
    return _published(experiment, result, drawing, out)


def _plot_of(spec: SweepSpec, results: Sequence[PointResult]) -> Plot | None:
    """Return the accuracy against the first axis of numbers that is varied; None where there is none."""
    for name, values in spec.grids():
        numbers = {float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)}
        known = any(result.value(name) is not None for result in results)
        if name not in NOISE_AXES and known and len(numbers) >= max(len(values), 2):
            return Plot(x=name, log_x=min(numbers) > 0 and max(numbers) / min(numbers) >= _WIDE)
    return None
