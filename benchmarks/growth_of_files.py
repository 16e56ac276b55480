"""Growth of time and peak memory with rows where files are ingested, partitioned, predicted and evaluated.

``python benchmarks/growth_of_files.py [--most 1000000]`` prints a table. Each point is a separate process, which does
one thing with rows of 20 features that were written before: seconds are its processor seconds after its imports, and
the peak is its resident memory beyond what it held before the first row was read.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from shared import Stage, head, in_a_process, keep_table, line, write_lists, write_schema
from sklearn.datasets import dump_svmlight_file

from dpalgos.models import LinearModel
from storage.refs import Visibility
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.preparation.partitions import make_partition, plan_partition
from tasks.release.metrics import measure_rows
from tasks.release.seen_rows import rows_of
from tasks.tracking.predicted_files import predict_file
from tasks.tracking.sklearn_export import to_sklearn

_FEATURES, _CLASSES = 20, 3
_POINTS = (100_000, 1_000_000, 4_000_000)
_NAMES = tuple("abc")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=10**9, help="Leave out larger points.")
    parser.add_argument("--only", default=",".join(STAGES), help="Stages, separated by commas.")
    parser.add_argument("--output", type=Path, help="Keep the table as JSON.")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stage is not None:
        work = STAGES[given.stage](given.folder)
        # The peak is counted from the memory held now, so that imports do not count.
        Path("/proc/self/clear_refs").write_text("5")
        with Stage() as stage:
            work()
        print(json.dumps({"seconds": stage.seconds, "peak": stage.taken}))
        return
    points = [point for point in _POINTS if point <= given.most] or [given.most]
    head("stage", *(f"{point:,} rows" for point in points))
    with tempfile.TemporaryDirectory() as folder:
        for point in points:
            write(Path(folder, str(point)), point)
        for stage in given.only.split(","):
            each = [in_a_process(__file__, "--stage", stage, "--folder", Path(folder, str(point))) for point in points]
            line(stage, *(f"{found['seconds']:.1f} s, {found['peak']:.0f} MiB" for found in each))
    if given.output is not None:
        keep_table(given.output, "none")


def write(folder: Path, rows: int) -> None:
    """Write the same rows, of four decimals, as text with a schema, as LIBSVM text and as Parquet."""
    folder.mkdir()
    random = np.random.default_rng(1)
    features, labels = np.round(random.random((rows, _FEATURES)), 4), random.integers(0, _CLASSES, rows)
    names, single = pa.array(np.array(_NAMES)[labels]), features.astype(np.float32)
    write_schema(folder / "rows.yaml", _FEATURES, (0, 1), _NAMES)
    columns = {f"x{number}": pa.array(column) for number, column in enumerate(single.T)}
    pyarrow.csv.write_csv(pa.table({**columns, "y": names}), folder / "rows.csv")
    write_lists(folder / "rows.parquet", single, names)
    dump_svmlight_file(features, labels, str(folder / "rows.svm"), zero_based=False)


def ingesting(format: str, *, private: bool = False) -> Callable[[Path], Callable[[], object]]:
    """Return what reads, checks and stores the rows of a file."""

    def prepared(folder: Path) -> Callable[[], object]:
        os.environ["UNITBALL_ROOT"] = str(folder / f"root-{format}-{private}")

        path = folder / {"csv": "rows.csv", "libsvm": "rows.svm", "parquet": "rows.parquet"}[format]
        visibility = Visibility.PRIVATE if private else Visibility.PUBLIC
        asked = IngestRequest(
            name="rows",
            path=path,
            format=format,
            visibility=visibility,
            **({"schema_path": folder / "rows.yaml"} if format == "csv" else {}),
            **({"account": "rows", "epsilon_cap": 1.0, "delta_cap": 1e-9} if private else {}),
            **({"dimension": _FEATURES, "classes": _NAMES} if private and format == "parquet" else {}),
        )
        return lambda: ingest(asked)

    return prepared


def partitioning(folder: Path) -> Callable[[], Any]:
    """Return what divides stored rows among five parties and holds a fifth out, positions included."""
    ingesting("parquet")(folder)

    dataset, config = find_dataset("rows"), TrainingConfig(dataset="rows", algorithm="noisy-gd", epsilon=1.0)
    return lambda: make_partition(plan_partition(dataset, config))


def predicting(folder: Path) -> Callable[[], object]:
    """Return what predicts the rows of a Parquet file."""
    model = LinearModel(np.eye(_CLASSES, _FEATURES))
    pipeline = to_sklearn(normalisation="clip", maps=[], model=model, classes=_NAMES, dimension=_FEATURES)
    return lambda: predict_file(pipeline, folder / "rows.parquet", folder / "predicted.parquet")


def evaluating(folder: Path) -> Callable[[], object]:
    """Return what measures a model exactly on the fifth of the rows that is held out."""
    held_out = partitioning(folder)().held_out
    assert held_out is not None

    model = LinearModel(np.eye(_CLASSES, _FEATURES))
    return lambda: measure_rows(rows_of(held_out, [model.apply], _CLASSES), held_out.dataset)


STAGES: dict[str, Callable[[Path], Callable[[], object]]] = {
    "ingest CSV": ingesting("csv"),
    "ingest private CSV": ingesting("csv", private=True),
    "ingest LIBSVM": ingesting("libsvm"),
    "ingest Parquet": ingesting("parquet"),
    "partition over five parties": partitioning,
    "predict a file": predicting,
    "evaluate a fifth": evaluating,
}

if __name__ == "__main__":
    main()
