"""Experiments: what is asked of one, the results of its points as one table, what checks say of them, and its page."""

import difflib
import importlib.metadata
import itertools
import json
import math
import operator
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self, TypeVar

import pandas as pd
from jinja2 import Environment, PackageLoader
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from dpalgos.parameters import ParameterError
from storage.atomic import write_bytes
from storage.documents import parse_yaml
from storage.errors import InputError
from storage.layout import path_component
from tasks.planning.configuration import TrainingConfig, faults
from tasks.planning.identity import identity
from tasks.runtime.settings import current_layout
from tasks.tracking.results import RunResult

_PARAMETER = "param."
_SEEDS = "seeds"
"""An axis that sets the noise's seed and the partition's together, so that a spread shows both."""
NOISE_AXES = (_SEEDS, "seed", "partition_seed", "replicate")
"""Axes that repeat a point rather than ask another question."""
_AXES = (*TrainingConfig.model_fields, _SEEDS)
_MOST_POINTS = 100_000
_M = TypeVar("_M", bound=BaseModel)


class _Specification(BaseModel, frozen=True, extra="forbid"):
    """What is written in YAML."""


def _known(name: str) -> str:
    if name.startswith(_PARAMETER) and len(name) > len(_PARAMETER):
        return name
    if name not in _AXES or name == "parameters":
        near = difflib.get_close_matches(name, _AXES, n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(near)}; " if near else ""
        raise ValueError(f"{name!r} is no field of a run ({hint}an algorithm's own parameter is written param.NAME)")
    return name


def _grid(axes: dict[str, list[object]]) -> dict[str, list[object]]:
    for name, values in axes.items():
        if not values:
            raise ValueError(f"{name} has no values; give at least one, for example {name}: [1]")
        repeated = [value for place, value in enumerate(values) if value in values[:place]]
        if repeated:
            raise ValueError(f"{name} has the value {repeated[0]!r} twice; each point runs once")
    return axes


_Name = Annotated[str, AfterValidator(_known)]
Settings = Annotated[dict[_Name, object], Field(description="Fields of a run, or param.NAME.")]
Grid = Annotated[
    dict[_Name, list[object]], AfterValidator(_grid), Field(description="The same names, each with values.")
]


class Block(_Specification):
    """Points that share settings: ``set`` is fixed, ``grid`` is varied, every combination once."""

    label: Annotated[str | None, Field(description="What a figure calls these points.")] = None
    set: Settings = {}
    grid: Grid = {}


class Point(_Specification):
    """One run of a sweep.

    Attributes
    ----------
    label : str
        What a figure calls its series.
    axes : dict
        The varied and set fields, for tables.
    """

    label: str
    axes: dict[str, object]
    config: TrainingConfig

    @property
    def key(self) -> str:
        """What the point asks, for which series, as a digest."""
        return identity(config=self.config.hashed(), label=self.label)

    @property
    def description(self) -> str:
        """What the point asks, for people."""
        settings = {name: value for name, value in self.axes.items() if name not in ("dataset", "algorithm")}
        listed = ", ".join(f"{name}={value}" for name, value in settings.items())
        return f"{self.label} on {self.config.dataset}" + (f" ({listed})" if listed else "")


def _point(label: str | None, settings: dict[str, object], varied: Sequence[str], where: str) -> Point:
    own = {name.removeprefix(_PARAMETER): value for name, value in settings.items() if name.startswith(_PARAMETER)}
    fields = {name: value for name, value in settings.items() if not name.startswith(_PARAMETER)}
    if (seed := fields.pop(_SEEDS, None)) is not None:
        fields = {"seed": seed, "partition_seed": seed, **fields}
    try:
        config = TrainingConfig(**fields, parameters=own)
    except ValidationError as error:
        varied_settings = ", ".join(f"{name}={settings[name]!r}" for name in varied)
        raise ParameterError(f"{where}: point ({varied_settings}): {'; '.join(faults(error))}") from None
    return Point(label=label or config.system, axes=settings, config=config)


class Stated(BaseModel, frozen=True):
    """What an experiment is called and asks, in its specification and on its page."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$", description="Of the experiment.")]
    title: Annotated[str, Field(description="What a figure is headed by; the name if empty.")] = ""
    question: Annotated[str, Field(description="What the experiment asks, for its page.")] = ""
    paper: Annotated[str, Field(description="Of which paper, for its page.")] = ""
    figure: Annotated[str, Field(description="Of which figure or table, for its page.")] = ""


class Runs(_Specification):
    """Which runs there are: every point of a grid, or of blocks with settings and grids of their own."""

    workers: Annotated[int | None, Field(ge=1, le=256, description="Points at once; by the machine if empty.")] = None
    set: Annotated[Settings, Field(examples=[{"dataset": "digits", "algorithm": "noisy-gd"}])] = {}
    grid: Annotated[Grid, Field(examples=[{"epsilon": [0.5, 1, 2], "seeds": [0, 1, 2]}])] = {}
    blocks: Annotated[list[Block], Field(description="Parts with settings of their own; one if empty.")] = []


class SweepSpec(Runs, Stated):
    """A grid of runs: ``set`` and ``grid`` at the top hold for every block, or for the only one where none is given."""

    def points(self) -> list[Point]:
        """Return every point once, in order.

        Raises
        ------
        ParameterError
            Naming the point, the field, the value and the bound.
        """
        by_key: dict[str, Point] = {}
        for one in (Block(set=self.set, grid=self.grid), *self.blocks):
            if twice := sorted(set(one.set) & set(one.grid)):
                where = f"{self.name}, block {one.label}" if one.label else self.name
                raise ParameterError(f"{where}: {twice[0]} is in `set` and in `grid`; leave one of them out")
        for number, block in enumerate(self.blocks or [Block()], start=1):
            grid = {**self.grid, **block.grid}
            # What a block sets is not varied in it.
            grid = {name: values for name, values in grid.items() if name not in block.set}
            where = self.name + (f", block {block.label or number}" if self.blocks else "")
            if (size := math.prod(map(len, grid.values()))) > _MOST_POINTS:
                raise ParameterError(f"{where}: the grid has {size} points; at most {_MOST_POINTS} run in one sweep")
            for values in itertools.product(*grid.values()):
                varied = dict(zip(grid, values, strict=True))
                point = _point(block.label, {**self.set, **block.set, **varied}, list(varied), where)
                by_key.setdefault(point.key, point)
        return list(by_key.values())

    def grids(self) -> Iterator[tuple[str, list[object]]]:
        """Yield every axis that is varied somewhere, with its values there."""
        for grid in (self.grid, *(block.grid for block in self.blocks)):
            yield from grid.items()

    def varied(self) -> list[str]:
        """Return which parameters differ between points, as runs call them; replicates by another seed are none.

        A parameter that only some parts have (``param.NAME`` without the part) has no single name there.
        """
        names = {name.removeprefix(_PARAMETER): name for name, _ in self.grids() if name not in NOISE_AXES}
        return [called for called, name in names.items() if called == name or "." in called]


class DataNeed(_Specification):
    """A data set of an experiment: bundled where no format is given, otherwise in files that the user has."""

    name: str
    format: str | None = None
    file: Annotated[str | None, Field(description="Inside --path; --path itself if empty.")] = None
    schema_name: str | None = None
    dimension: int | None = None
    on_violation: str = "refuse"
    scaling: Annotated[str | None, Field(description="What numbers become where the paper says so.")] = None
    of: Annotated[str | None, Field(description="Made from another set of the user's or a bundled one.")] = None
    features: Annotated[list[int], Field(description="Which of its features, from 0.")] = []
    files: Annotated[str, Field(description="What the user needs, for the list.")] = ""
    set: Settings = {}

    def place(self, path: Path) -> Path:
        """Return where the files are: under ``--path``, or what it names itself."""
        return path / self.file if self.file is not None and (path / self.file).exists() else path


class Scale(Runs):
    """How large an experiment is run: on which data, with which settings beyond the common ones."""

    data: Annotated[list[DataNeed], Field(min_length=1)]


class Plot(_Specification):
    """What is drawn: a metric against an axis, a line or bar a series, a panel a data set."""

    kind: Literal["lines", "bars", "boundary"] = "lines"
    x: str = "epsilon"
    y: Annotated[list[str], Field(min_length=1)] = ["accuracy"]
    x_title: str = ""
    y_title: str = ""
    log_x: bool = False
    log_y: Annotated[list[str], Field(description="Metrics on a logarithmic axis.")] = []
    panels: str = "dataset"


class Derived(_Specification):
    """A metric made of two: a point's and that of the reference with the same ``match``."""

    name: str
    metric: str
    against: dict[str, object]
    match: list[str] = ["dataset"]
    how: Literal["difference", "absolute-difference", "ratio"] = "difference"


class Check(_Specification):
    """A sentence of the paper as a number: the mean over all points of a metric, or of its difference to another's."""

    says: str
    metric: str = "accuracy"
    of: str
    against: str | None = None
    how: Literal["value", "difference", "ratio"] = "difference"
    over: Annotated[Literal["mean", "worst"], Field(description="worst: the point where it holds least.")] = "mean"
    where: dict[str, object] = {}
    ignoring: Annotated[list[str], Field(description="Axes in which the two compared may differ.")] = []
    at_least: float | None = None
    at_most: float | None = None


class PaperValue(_Specification):
    """A number printed in the paper."""

    where: dict[str, object]
    metric: str
    value: float


class RiskNeed(_Specification):
    """The risk that models are measured by, on public training rows."""

    loss: str = "logistic"
    regularisation: Annotated[float, Field(gt=0)] = 1e-3


class Reproduction(SweepSpec):
    """A figure or table of a paper: the runs, the plot, what the paper says and what is checked."""

    paper_says: list[str]
    differs: Annotated[list[str], Field(description="Where the measured numbers differ, and why.")] = []
    computed: Annotated[
        Literal["noise-phases", "noise-scales", "curvature"] | None,
        Field(description="A table that is worked out instead of trained."),
    ] = None
    quick: Scale
    full: Scale | None = None
    plot: Plot | None = None
    table: Annotated[list[str], Field(description="Metrics shown in the table.")] = ["accuracy"]
    columns: Annotated[list[str], Field(description="Axes shown in the table beside data set and series.")] = []
    risk: Annotated[RiskNeed | None, Field(description="Adds the metric objective, J of the released model.")] = None
    derived: list[Derived] = []
    checks: list[Check] = []
    paper_values: list[PaperValue] = []

    def sweep(self, scale: Scale, data: Sequence[DataNeed]) -> SweepSpec:
        """Return the runs of one scale on the data sets that are there."""
        every = [
            Block(
                label=block.label,
                set={**block.set, "dataset": one.name, **one.set},
                grid={name: values for name, values in block.grid.items() if name not in one.set},
            )
            for one in data
            for block in scale.blocks or self.blocks or [Block()]
        ]
        return SweepSpec(
            **self.model_dump(include=set(Stated.model_fields)),
            workers=scale.workers,
            set={**self.set, **scale.set},
            grid={**self.grid, **scale.grid},
            blocks=every,
        )

    def scales(self) -> dict[str, Scale]:
        """Return the scales that there are, by name."""
        return {"quick": self.quick} | ({"full": self.full} if self.full is not None else {})

    def at(self, scale: str) -> Scale:
        """Return one of the scales.

        Raises
        ------
        ParameterError
            If there is none of this name.
        """
        if scale not in self.scales():
            raise ParameterError(f"{self.name} has no scale {scale!r}; it has: {', '.join(self.scales())}")
        return self.scales()[scale]


def load(model: type[_M], text: str, place: str) -> _M:
    """Read a specification from YAML.

    Raises
    ------
    InputError, ParameterError
        Naming the place, the field, the value and what is expected.
    """
    data = parse_yaml(text, place)
    if not isinstance(data, dict):
        raise ParameterError(f"{place} is no specification: it must be a mapping with a name and a grid")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ParameterError(f"{place}: {'; '.join(faults(error))}") from None


_WHO = ("algorithm", "trainer", "projection", "aggregation", "trust")
_FACTS = ("label", "dataset", "algorithm", "trust", "status")

Status = Literal["proved", "unproved", "non-private"]


class PointResult(BaseModel, frozen=True):
    """One finished point.

    Attributes
    ----------
    label : str
        Its series.
    status : {"proved", "unproved", "non-private"}
        Unproved: noise is drawn, or a claim is made, and nothing is proved.
    axes : dict
        What was set or varied.
    """

    label: str
    dataset: str
    algorithm: str
    trust: str
    status: Status
    axes: dict[str, object]
    metrics: dict[str, float]
    proved: str | None = None
    numerics: str | None = None
    claim: str | None = None
    flaw: str | None = None
    sound_counterpart: str | None = None
    releases: tuple[str, ...] = ()

    def value(self, axis: str) -> object:
        """Return where the result is on an axis; None where the axis does not concern it."""
        return getattr(self, axis) if axis in _FACTS else self.axes.get(axis)

    def with_metric(self, name: str, value: float) -> Self:
        """Return the result with one more metric."""
        return self.model_copy(update={"metrics": {**self.metrics, name: value}})


def _status(result: RunResult) -> Status:
    if result.proved is not None:
        return "proved"
    return "unproved" if result.claim is not None or result.split else "non-private"


def point_result(point: Point, result: RunResult) -> PointResult:
    """Return a finished point as a result."""
    proved, claim = result.proved, result.claim or {}
    measured = {
        "epsilon_spent": result.epsilon_spent,
        "delta_spent": result.delta_spent,
        "seconds": result.seconds,
        "releasing_seconds": result.releasing_seconds,
    }
    return PointResult(
        label=point.label,
        dataset=result.dataset,
        algorithm=result.algorithm,
        trust=result.trust,
        status=_status(result),
        axes=point.axes,
        metrics={**{name: value for name, value in measured.items() if value is not None}, **result.metrics},
        proved=proved.summary() if proved else None,
        numerics=proved.numerics if proved else None,
        claim=claim.get("statement"),
        flaw=claim.get("flaw"),
        sound_counterpart=result.sound_counterpart,
        releases=result.releases,
    )


def column(axis: str) -> str:
    """Return the column of :func:`table_of` that holds an axis, or a fact that is asked for like one."""
    return axis if axis in _FACTS or axis.startswith("axis_") else f"axis_{axis}"


def table_of(results: Sequence[PointResult]) -> pd.DataFrame:
    """Return results as one table, a line each: facts, then ``axis_NAME``, then ``metric_NAME``; missing is none."""
    lines = [
        {
            **result.model_dump(mode="json", exclude={"axes", "metrics", "releases"}),
            **{f"axis_{name}": _cell(value) for name, value in result.axes.items()},
            **{f"metric_{name}": value for name, value in result.metrics.items()},
        }
        for result in results
    ]
    names = list(dict.fromkeys([*_FACTS, *(name for line in lines for name in line)]))
    # Axes keep their own kinds of values: a whole number gets no point because another result has none.
    table = pd.DataFrame(lines, columns=names, dtype=object)
    return table.astype({name: float for name in names if name.startswith("metric_")})


def _cell(value: object) -> object:
    """Return what stands in a table for the value of an axis: lists as text, as people write them."""
    return json.dumps(value).strip("[]") if isinstance(value, (list, tuple, dict)) else value


def _at(table: pd.DataFrame, where: Mapping[str, object], *, or_none: bool = False) -> pd.DataFrame:
    """Return the lines at these values of their axes; with ``or_none`` those too that an axis does not concern."""
    for name, value in where.items():
        cells = table.get(column(name), pd.Series(None, table.index, dtype=object))
        table = table[(cells == _cell(value)) | (or_none & cells.isna())]
    return table


def _values(table: pd.DataFrame, metric: str) -> pd.Series:
    """Return a metric where it was measured."""
    return table.get(f"metric_{metric}", pd.Series(dtype=float)).dropna()


_HOW: Mapping[str, Callable[[pd.Series, pd.Series], pd.Series]] = MappingProxyType(
    {
        "value": lambda one, other: one,
        "difference": operator.sub,
        "absolute-difference": lambda one, other: abs(one - other),
        "ratio": operator.truediv,
    }
)


def derive(results: Sequence[PointResult], wanted: Sequence[Derived]) -> list[PointResult]:
    """Add metrics that compare each result with the mean of its reference's; without a reference there is none."""
    derived = list(results)
    for one in wanted:
        match, metric = [column(name) for name in one.match], f"metric_{one.metric}"
        table = table_of(derived)
        table = table.reindex(columns=list(dict.fromkeys([*table, *match, metric])))
        references = _at(table, one.against).groupby(match, dropna=False)[metric].mean().rename("reference")
        values = _HOW[one.how](table[metric], table.merge(references, how="left", on=match)["reference"])
        derived = [
            result if pd.isna(value) else result.with_metric(one.name, float(value))
            for result, value in zip(derived, values, strict=True)
        ]
    return derived


class Verdict(BaseModel, frozen=True):
    """A sentence of the paper beside the number measured here.

    Attributes
    ----------
    holds : bool or None
        None where there was nothing to measure it on.
    at_scale : bool
        Whether it was measured on the paper's data at the paper's sizes; anywhere else the paper is neither confirmed
        nor refuted.
    """

    says: str
    measured: float | None
    wanted: str
    holds: bool | None
    points: int
    at_scale: bool = True

    @property
    def shown(self) -> str:
        """What was measured, for people."""
        return "–" if self.measured is None else f"{self.measured:.4g}"

    @property
    def summary(self) -> str:
        """The verdict in a few words."""
        outcome = {True: "holds", False: "does not hold", None: "not measured"}[self.holds]
        return (
            outcome if self.at_scale or self.holds is None else f"not tested at the paper's scale (here it {outcome})"
        )


def verdicts(results: Sequence[PointResult], checks: Sequence[Check], *, at_scale: bool = True) -> list[Verdict]:
    """Return the verdict of each check, measured at the paper's scale or elsewhere."""
    table = table_of(results)
    return [_verdict(table, check, at_scale) for check in checks]


def _verdict(table: pd.DataFrame, check: Check, at_scale: bool) -> Verdict:
    # Who answers, and with which noise, is not part of the question.
    own = {column(name) for name in (*_WHO, *NOISE_AXES, *check.ignoring)} | {f"axis_{name}" for name in _WHO}
    axes = ["dataset", *(name for name in table if name.startswith("axis_") and name not in own)]
    theirs = _at(_at(table, {"label": check.against}), check.where, or_none=True)
    values = []
    for question, mine in _at(table, {"label": check.of, **check.where}).groupby(axes, dropna=False, sort=False):
        # A reference without the axis (no noise, hence no epsilon) stands beside every point of its data set.
        there = {name: value for name, value in zip(axes, question, strict=True) if pd.notna(value)}
        measured, other = _values(mine, check.metric), _values(_at(theirs, there, or_none=True), check.metric)
        if len(measured) and (check.against is None or len(other)):
            how = _HOW["value" if check.against is None else check.how]
            values.append(float(how(measured.mean(), other.mean())))
    bounds = [(">= ", check.at_least), ("<= ", check.at_most)]
    wanted = " and ".join(f"{sign}{bound:g}" for sign, bound in bounds if bound is not None)
    found, holds = None, None
    if values:
        worst = min if check.at_least is not None else max
        found = float(pd.Series(values).mean()) if check.over == "mean" else worst(values)
        holds = (check.at_least is None or found >= check.at_least) and (
            check.at_most is None or found <= check.at_most
        )
    return Verdict(says=check.says, measured=found, wanted=wanted, holds=holds, points=len(values), at_scale=at_scale)


class Compared(BaseModel, frozen=True):
    """A number printed in the paper beside the one measured here."""

    where: dict[str, object]
    metric: str
    paper: float
    measured: float


def compare_with_paper(results: Sequence[PointResult], values: Sequence[PaperValue]) -> list[Compared]:
    """Return what the paper prints beside what was measured, where there is anything to compare."""
    table = table_of(results)
    same = [(value, _values(_at(table, value.where), value.metric)) for value in values]
    return [
        Compared(where=value.where, metric=value.metric, paper=value.value, measured=measured_value.mean())
        for value, measured_value in same
        if len(measured_value)
    ]


_AXIS_LABELS = MappingProxyType(
    {
        "accuracy": "accuracy",
        "auc": "area under the ROC curve",
        "delta": "δ",
        "dimension": "target dimension k",
        "epsilon": "privacy budget ε",
        "iterations": "iterations",
        "accuracy_change": "accuracy − the optimum's",
        "objective": "objective",
        "optimality_gap": "objective − the optimum's",
        "objective_error": "|objective − WSS 2's|",
        "iteration_ratio": "iterations / WSS 2's",
        "releasing_seconds": "seconds to train",
        "rows_per_party": "rows a party n",
        "parties": "parties N",
        "sizes": "rows of each party",
    }
)


def axis_label(name: str) -> str:
    """Return how an axis or a metric is called for people."""
    return _AXIS_LABELS.get(name, name.removeprefix("param.").replace("_", " "))


class Drawing(BaseModel, frozen=True):
    """A figure as files."""

    png: bytes
    svg: bytes


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


class Experiment(Stated, BaseModel, frozen=True):
    """Everything a page says of an experiment.

    Attributes
    ----------
    missing : list of str
        What could not be run: systems that are not registered, files that are not there.
    seconds : float or None
        None where private rows were read, of which durations tell.
    """

    scale: str
    paper_says: list[str] = []
    differs: list[str] = []
    setting: dict[str, str] = {}
    results: list[PointResult] = []
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
        guarantees.append(
            {"label": label, "trust": trust, "proved": proved, **first[["claim", "flaw"]].to_dict(), "sound": sound}
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
