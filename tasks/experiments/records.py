"""An experiment that was run, kept as files in a folder of the root."""

import importlib.metadata
import platform
from pathlib import Path

import pandas as pd
from pydantic import BaseModel

from storage.atomic import write_bytes
from storage.errors import InputError
from storage.layout import path_component
from tasks.experiments.comparisons import Compared, Verdict
from tasks.experiments.point_results import PointResult, table_of
from tasks.experiments.specifications import Stated
from tasks.runtime.settings import current_layout


class Drawing(BaseModel, frozen=True):
    """A figure as files."""

    png: bytes
    svg: bytes


class Table(BaseModel, frozen=True):
    """A table for people."""

    title: str = ""
    head: list[str]
    body: list[list[str]]


WEIGHED = "metrics"
"""What a setting says metrics weigh, where it is people."""
RESTS_ON = "rests on"
"""What a setting says runs rest on, where they use synthetic rows."""

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
        raise InputError(f"this root has no experiment {name!r}; it has: {known}")
    experiment = Experiment.model_validate_json((place / "experiment.json").read_bytes())
    png, svg = (place / name for name in ("figure.png", "figure.svg"))
    return experiment, Drawing(png=png.read_bytes(), svg=svg.read_bytes()) if svg.is_file() else None, place
