"""Specifications of sweeps and reproductions, as YAML states them: axes, checks, plots and the points to run."""

import difflib
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from dpalgos.parameters import ParameterError
from storage.documents import parse_yaml
from tasks.planning.configuration import TrainingConfig, faults
from tasks.planning.identity import identity

_PARAMETER = "param."
_SEEDS = "seeds"
"""An axis that sets the noise's seed and the partition's together, so that a spread shows both."""
NOISE_AXES = (_SEEDS, "seed", "partition_seed", "replicate")
"""Axes that repeat a point rather than ask another question."""
_AXES = (*TrainingConfig.model_fields, _SEEDS)
_MOST_POINTS = 100_000
_M = TypeVar("_M", bound=BaseModel)


class _Specification(BaseModel, frozen=True, extra="forbid"):
    """Model of a specification in YAML."""


def _known(name: str) -> str:
    if name.startswith(_PARAMETER) and len(name) > len(_PARAMETER):
        return name
    if name not in _AXES or name == "parameters":
        near = difflib.get_close_matches(name, _AXES, n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(near)}; " if near else ""
        raise ValueError(
            f"{name!r} is not a setting of a run ({hint}an algorithm's own parameter is written param.NAME)"
        )
    return name


def _grid(axes: dict[str, list[object]]) -> dict[str, list[object]]:
    for name, values in axes.items():
        if not values:
            raise ValueError(f"{name} has no values; give at least one, for example {name}: [1]")
        repeated = [value for place, value in enumerate(values) if value in values[:place]]
        if repeated:
            raise ValueError(f"{name} has the value {repeated[0]!r} twice; list it once")
    return axes


_Name = Annotated[str, AfterValidator(_known)]
Settings = Annotated[dict[_Name, object], Field(description="Fields of a run, or param.NAME.")]
Grid = Annotated[
    dict[_Name, list[object]], AfterValidator(_grid), Field(description="The same names, each with values.")
]


class SweepBlock(_Specification):
    """Points that share settings: ``set`` is fixed, ``grid`` is varied, every combination once."""

    label: Annotated[str | None, Field(description="Name of these points in a figure.")] = None
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
        """Digest of the point's request and its series."""
        return identity(config=self.config.model_dump(mode="json"), label=self.label)

    @property
    def description(self) -> str:
        """The point's request, for people."""
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
    """The name and the question of an experiment, in its specification and on its page."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$", description="Of the experiment.")]
    title: Annotated[str, Field(description="Title of the figure. Default: the name.")] = ""
    question: Annotated[str, Field(description="Question of the experiment, for its page.")] = ""
    paper: Annotated[str, Field(description="Paper, for its page.")] = ""
    figure: Annotated[str, Field(description="Figure or table, for its page.")] = ""


class Runs(_Specification):
    """The runs of an experiment: every point of a grid, or of blocks with their own settings and grids."""

    workers: Annotated[
        int | None, Field(ge=1, le=256, description="Parallel runs. Default: by the machine's cores.")
    ] = None
    set: Annotated[Settings, Field(examples=[{"dataset": "digits", "algorithm": "noisy-gd"}])] = {}
    grid: Annotated[Grid, Field(examples=[{"epsilon": [0.5, 1, 2], "seeds": [0, 1, 2]}])] = {}
    blocks: Annotated[list[SweepBlock], Field(description="Parts with their own settings. Default: one part.")] = []


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
        for one in (SweepBlock(set=self.set, grid=self.grid), *self.blocks):
            if twice := sorted(set(one.set) & set(one.grid)):
                where = f"{self.name}, block {one.label}" if one.label else self.name
                raise ParameterError(f"{where}: {twice[0]} is in `set` and in `grid`; omit one of them")
        for number, block in enumerate(self.blocks or [SweepBlock()], start=1):
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
    file: Annotated[str | None, Field(description="File inside --path. Default: --path itself.")] = None
    schema_name: str | None = None
    dimension: int | None = None
    on_violation: str = "refuse"
    scaling: Annotated[str | None, Field(description="Scaling of numbers, if the paper states one.")] = None
    of: Annotated[str | None, Field(description="Data set from which it is made: the user's or a bundled one.")] = None
    features: Annotated[list[int], Field(description="Places of its features, from 0.")] = []
    files: Annotated[str, Field(description="Files that the user needs, for the list.")] = ""
    set: Settings = {}

    def place(self, path: Path) -> Path:
        """Return where the files are: under ``--path``, or what it names itself."""
        return path / self.file if self.file is not None and (path / self.file).exists() else path


class Scale(Runs):
    """The scale of an experiment: its data, and its settings in addition to the common ones."""

    data: Annotated[list[DataNeed], Field(min_length=1)]


class Plot(_Specification):
    """A plot: a metric against an axis, one line or bar per series, one panel per data set."""

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
    over: Annotated[Literal["mean", "worst"], Field(description="worst: the point with the least margin.")] = "mean"
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
    differs: Annotated[list[str], Field(description="How the measured numbers differ, and why.")] = []
    computed: Annotated[
        Literal["noise-phases", "noise-scales", "curvature"] | None,
        Field(description="A table that is computed without training."),
    ] = None
    quick: Scale
    full: Scale | None = None
    plot: Plot | None = None
    table: Annotated[list[str], Field(description="Metrics shown in the table.")] = ["accuracy"]
    columns: Annotated[
        list[str], Field(description="Axes shown in the table, in addition to data set and series.")
    ] = []
    risk: Annotated[RiskNeed | None, Field(description="Adds the metric objective, J of the released model.")] = None
    derived: list[Derived] = []
    checks: list[Check] = []
    paper_values: list[PaperValue] = []

    def sweep(self, scale: Scale, data: Sequence[DataNeed]) -> SweepSpec:
        """Return the runs of one scale on the data sets that are there."""
        every = [
            SweepBlock(
                label=block.label,
                set={**block.set, "dataset": need.name, **need.set},
                grid={name: values for name, values in block.grid.items() if name not in need.set},
            )
            for need in data
            for block in scale.blocks or self.blocks or [SweepBlock()]
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
            If the name is unknown.
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
        raise ParameterError(f"{place} is not a specification: it must be a mapping with a name and a grid")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ParameterError(f"{place}: {'; '.join(faults(error))}") from None
