"""What a released model says of the rows of a file; nothing of it leaves the file that is written."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, Field

from dpalgos.rows import Floats
from storage.atomic import PREFIX
from storage.encoder import TableEncoder
from storage.errors import InputError, StorageError
from storage.readers.tables import PARQUET, expected_rows, raw_rows
from storage.schema import Table
from tasks.runtime.progress import say
from tasks.tracking.flavor import scores_of
from tasks.tracking.models import CHAMPION, find_model

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


class ScoringRequest(BaseModel, frozen=True, extra="forbid"):
    """A file of rows and the registered model that predicts them.

    Predictions are written below ``private/predictions`` of the root, readable by its owner alone.
    """

    model: Annotated[
        str,
        Field(
            min_length=1,
            description="NAME, NAME@ALIAS or NAME/VERSION; a name alone is its newest version.",
            examples=["clinic.noisy-gd@champion"],
        ),
    ]
    input: Annotated[
        str,
        Field(
            min_length=1,
            description="CSV or Parquet on the machine that serves, with the columns of the model's table.",
            examples=["/srv/clinic/new-rows.csv"],
        ),
    ]
    id_column: Annotated[str | None, Field(description="A column of the input that is kept.", examples=["patient"])] = (
        None
    )
    prefer_champion: Annotated[bool, Field(description=f"Score with NAME@{CHAMPION} instead, where there is one.")] = (
        False
    )


def chosen_model(root: Path, request: ScoringRequest) -> str:
    """Return the name of the model that a request means."""
    if not request.prefer_champion:
        return request.model
    version = find_model(root, request.model)
    return request.model if version.champion is None else f"{version.name}@{CHAMPION}"


_ROWS = 4096
_FEATURES = "features"


@dataclass(frozen=True, slots=True)
class Predicted:
    """How many rows there were.

    Attributes
    ----------
    rows : int
    refused : int
        Those that have a reason in the column ``refusal`` instead of a prediction.
    """

    rows: int
    refused: int


def predict_file(
    pipeline: Pipeline,
    source: Path,
    output: Path,
    *,
    id_column: str | None = None,
    threshold: float | None = None,
) -> Predicted:
    """Predict each row of a file and write a Parquet file beside it, streaming.

    Post-processing of a release: it costs nothing. What it writes is about the rows that were given, and so is for
    their owner alone: the file is readable by nobody else, and no count goes to a log, a tracker or an event.

    Parameters
    ----------
    pipeline : sklearn.pipeline.Pipeline
        A logged model. One of a table takes the table's columns, whose layout in text is that of the table it was
        trained on; any other takes a Parquet file with a column ``features`` of lists.
    source : Path
    output : Path
        Gets ``row`` (the line of text, or the row of Parquet, from 1), the id column, ``prediction``, the scores, and
        ``refusal``: why a row has no prediction. It appears when it is whole.
    id_column : str, optional
        A column of the source that is kept as it is.
    threshold : float, optional
        See :func:`tasks.tracking.flavor.scores_of`.

    Raises
    ------
    InputError
        If the source cannot be read or lacks a column, or there is an output already.
    StorageError
        If the output cannot be written.
    """
    encoder = pipeline[0] if isinstance(pipeline[0], TableEncoder) else None
    if encoder is None and source.suffix not in PARQUET:
        raise InputError(f"{source}: this model takes arrays; give a Parquet file with a column {_FEATURES!r} of lists")
    if output.exists():
        raise InputError(f"{output} exists; name another output, or remove it first")
    done = refused = 0
    expected, tables = expected_rows(source), _predicted(pipeline, encoder, source, id_column, threshold)
    aside = output.parent / f"{PREFIX}{output.name}-{os.getpid()}"
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}; name an output in a folder of yours") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            first = next(tables, None)
            if first is None:
                raise InputError(f"{source} holds no rows; it must hold at least one")
            with pq.ParquetWriter(file, first.schema) as writer:
                for table in itertools.chain([first], tables):
                    writer.write_table(table)
                    done += table.num_rows
                    refused += table.num_rows - table["refusal"].null_count
                    say("predicting", f"{done:,} rows", done / expected if expected else None)
        aside.replace(output)
    finally:
        aside.unlink(missing_ok=True)
    return Predicted(done, refused)


def _predicted(
    pipeline: Pipeline, encoder: TableEncoder | None, source: Path, id_column: str | None, threshold: float | None
) -> Iterator[pa.Table]:
    """Yield tables of one schema, of some thousand rows each."""
    for rows in raw_rows(source, None if encoder is None else encoder.declared, _ROWS):
        if id_column is not None and id_column not in rows.columns:
            raise InputError(f"{source} has no column {id_column!r}; it has: {', '.join(rows.columns)}")
        features, reasons = _encoded(pipeline, encoder, rows)
        refused = np.array([reason is not None for reason in reasons])
        scores = scores_of(pipeline[1:] if encoder is not None else pipeline, features, threshold)
        kept = {} if id_column is None else {id_column: _as_array(rows.columns[id_column])}
        yield pa.table(
            {
                "row": pa.array(rows.lines, pa.int64()),
                **kept,
                **{name: pa.array(scores[name].to_numpy(), mask=refused) for name in scores.columns},
                "refusal": pa.array(reasons, pa.string()),
            }
        )


def _as_array(cells: Sequence[object] | pa.Array) -> pa.Array:
    return cells if isinstance(cells, pa.Array) else pa.array(cells, pa.string())


def _encoded(pipeline: Pipeline, encoder: TableEncoder | None, rows: Table) -> tuple[Floats, list[str | None]]:
    """Return the features of rows, and why some have none."""
    if encoder is None:
        return _lists(pipeline, rows)
    encoding = encoder.encode(rows.columns)
    faults = rows.faults or [None] * len(rows.lines)
    return encoding.features, [fault or why for fault, why in zip(faults, encoding.refusals, strict=True)]


def _lists(pipeline: Pipeline, rows: Table) -> tuple[Floats, list[str | None]]:
    if _FEATURES not in rows.columns:
        raise InputError(f"the rows have no column {_FEATURES!r}, they have: {', '.join(rows.columns)}")
    width = int(pipeline[0].n_features_in_)
    features = np.zeros((len(rows.lines), width))
    reasons: list[str | None] = [None] * len(features)
    for row, cell in enumerate(rows.columns[_FEATURES].to_pylist()):
        try:
            numbers = np.asarray(cell, dtype=np.float64)
        except (TypeError, ValueError):
            numbers = np.full(width, np.nan)
        if numbers.shape != (width,):
            reasons[row] = f"column {_FEATURES}: {numbers.size} numbers, the model takes {width}"
        elif not np.isfinite(numbers).all():
            reasons[row] = f"column {_FEATURES}: a number is missing or not finite"
        else:
            features[row] = numbers
    return features, reasons
