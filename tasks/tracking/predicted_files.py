"""Predictions of the rows of a file, written to a Parquet file in pieces."""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpalgos.rows import Floats
from storage.atomic import PREFIX
from storage.cells import column_name
from storage.encoder import Clipped, Encoder, PictureEncoder, TableEncoder
from storage.errors import InputError, StorageError
from storage.names import require_kept
from storage.readers.picture_files import PATH, asked_pictures, count_asked, passed_over
from storage.readers.raw_tables import PARQUET, expected_rows, names_of, raw_rows
from storage.schema import Table
from storage.source import predicting
from tasks.datasets.schedules import FEATURES, require_columns
from tasks.runtime.progress import report_progress
from tasks.tracking.coverings import NO_COVERING, SET, Cover, Covering, covering_columns
from tasks.tracking.row_scores import ENCODERS, scored

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


_ROWS = 4096
# Numbers of pictures at once.
_NUMBERS = 1 << 22
# What an output is not written as, though its name would say so.
_OTHER_FORMATS = frozenset((".csv", ".tsv", ".txt", ".json", ".jsonl", ".xls", ".xlsx"))


@dataclass(frozen=True, slots=True)
class Predicted:
    """Number of rows.

    Attributes
    ----------
    rows : int
    refused : int
        Those that have a reason in the column ``refusal`` instead of a prediction.
    clipped : mapping of column to Clipped
        Cells outside the schema that rows were predicted with, clipped: what they hold and how many they are is for
        the caller only, and goes to no log, artifact or file. Rows as in the file.
    passed_over : str
        Which files of a folder are not images, in a sentence; for the caller alone as well.
    """

    rows: int
    refused: int
    clipped: Mapping[str, Clipped] = field(default_factory=dict)
    passed_over: str = ""


class Why(Protocol):
    """Explains the score of each row."""

    @property
    def rows_at_once(self) -> int:
        """Number of rows that are explained at a time."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that it writes."""

    def columns(self, features: Floats) -> dict[str, pa.Array]:
        """Return these columns of some encoded rows."""


@predicting()
def predict_file(
    pipeline: Pipeline,
    source: Path,
    output: Path,
    *,
    id_column: str | None = None,
    threshold: float | None = None,
    covering: Covering = NO_COVERING,
    why: Why | None = None,
) -> Predicted:
    """Predict each row of a file and write the predictions to a Parquet file, streaming.

    Post-processing of a release, and free. The output describes the given rows and is for their owner only: no other
    user can read the file, and no count goes to a log, a tracker or an event.

    Parameters
    ----------
    pipeline : sklearn.pipeline.Pipeline
        A logged model. One of a table takes the table's columns, whose layout in text is that of the table it was
        trained on; one of images a folder of them, with any folders in it, one file, or a table with a column
        ``path``; any other takes a Parquet file with a column ``features`` of lists.
    source : Path
    output : Path
        Gets ``row`` (the line of text, or the row of Parquet, from 1), of images ``path``, the id column,
        ``prediction``, the scores, and ``refusal``: why a row has no prediction. It appears when it is whole.
    id_column : str, optional
        A column of the source that is kept as it is.
    threshold : float, optional
        See :func:`tasks.tracking.row_scores.scores_of`.
    covering : Covering, optional
        Whether intervals or sets are asked for.
    why : Why, optional
        Adds, after the scores, the columns that say why a row has its score.

    Raises
    ------
    InputError
        If the source cannot be read or lacks a column, or there is an output already. One without rows is read: its
        output has the same columns, and no rows. If the output's name is that of another format. If the id column is
        called as a column that is written.
    StorageError
        If the output cannot be written.
    """
    asked = _Asked(
        pipeline=pipeline,
        source=source,
        id_column=None if id_column is None else column_name(id_column),
        threshold=threshold,
        cover=covering_columns(pipeline, covering),
        why=why,
    )
    if why is not None and asked.id_column is not None:
        require_kept(asked.id_column, *why.names)
    require_columns(source, asked.encoder, asked.id_column)
    if output.suffix.lower() in _OTHER_FORMATS:
        raise InputError(
            f"{output}: predictions are written as Parquet; name an output for that, such as {output.stem}.parquet"
        )
    if output.exists():
        raise InputError(f"{output} exists; name another output, or remove it first")
    done = refused = 0
    clipped: dict[str, Clipped] = {}
    passed = Counter[str]()
    pictures = isinstance(asked.encoder, PictureEncoder)
    expected = count_asked(source, passed) if pictures else expected_rows(source)
    tables = _predicted(asked, clipped)
    aside = output.parent / f"{PREFIX}{output.name}-{os.getpid()}"
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise StorageError(
            f"cannot write {output}: {error.strerror}; name an output in a folder where you can write"
        ) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            first = next(tables, None)
            if first is None:
                first = _of_no_rows(asked)
            with pq.ParquetWriter(file, first.schema) as writer:
                for table in itertools.chain([first], tables):
                    writer.write_table(table)
                    done += table.num_rows
                    refused += table.num_rows - table["refusal"].null_count
                    report_progress("predicting", f"{done:,} rows", done / expected if expected else None)
        aside.replace(output)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageError(
            f"cannot write {output}: {os.strerror(error.errno)}; free some space there, or name an output elsewhere"
        ) from error
    finally:
        aside.unlink(missing_ok=True)
    return Predicted(done, refused, clipped, passed_over(str(source), passed))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Request to a model about a file."""

    pipeline: Pipeline
    source: Path
    id_column: str | None
    threshold: float | None
    cover: Cover
    why: Why | None = None

    @property
    def rows_at_once(self) -> int:
        """Number of rows that are read at a time."""
        return _ROWS if self.why is None else min(_ROWS, self.why.rows_at_once)

    @property
    def encoder(self) -> Encoder | None:
        """Encoder of raw rows; None of a model of numbers."""
        return self.pipeline[0] if isinstance(self.pipeline[0], ENCODERS) else None

    @property
    def width(self) -> int:
        """The number of numbers per row."""
        encoder = self.encoder
        return int(self.pipeline[0].n_features_in_) if encoder is None else encoder.declared.dimension

    def scores(self, features: Floats) -> pd.DataFrame:
        """Return predictions and scores of encoded rows."""
        return scored(
            self.pipeline if self.encoder is None else self.pipeline[1:], features, self.threshold, self.cover
        )

    def explained(self, features: Floats, refused: NDArray[np.bool_]) -> dict[str, pa.Array]:
        """Return why rows have their scores, empty for those that are refused."""
        if self.why is None:
            return {}
        places = pa.array(np.cumsum(~refused) - 1, pa.int64(), mask=refused)
        return {name: cells.take(places) for name, cells in self.why.columns(features[~refused]).items()}


@dataclass(frozen=True, slots=True)
class _Given:
    """Some rows of a file, as numbers.

    Attributes
    ----------
    lines : int array (m,)
    kept : mapping of column to cells
    features : array (m, d)
        Zeros for rows that are refused.
    reasons : sequence of str or None
        Why a row is.
    clipped : mapping of column to Clipped
    """

    lines: NDArray[np.int64]
    kept: Mapping[str, pa.Array]
    features: Floats
    reasons: Sequence[str | None]
    clipped: Mapping[str, Clipped] = field(default_factory=dict)


def _predicted(asked: _Asked, clipped: dict[str, Clipped]) -> Iterator[pa.Table]:
    """Yield tables of one schema, of some thousand rows each; ``clipped`` gets the cells that were."""
    for given in _given(asked):
        for name, more in given.clipped.items():
            first = clipped.get(name, Clipped(0, int(given.lines[more.row]), more.value))
            clipped[name] = replace(first, cells=first.cells + more.cells)
        refused = np.array([reason is not None for reason in given.reasons])
        scores = asked.scores(given.features)
        yield pa.table(
            {
                "row": pa.array(given.lines, pa.int64()),
                **given.kept,
                **{name: _column(name, scores[name], refused) for name in scores.columns},
                **asked.explained(given.features, refused),
                "refusal": pa.array(given.reasons, pa.string()),
            }
        )


def _given(asked: _Asked) -> Iterator[_Given]:
    """Yield the rows of a file as numbers, some at once: a table's, images, or lists of numbers."""
    encoder, source, id_column = asked.encoder, asked.source, asked.id_column
    if isinstance(encoder, PictureEncoder):
        for some in asked_pictures(source, max(16, min(_ROWS, _NUMBERS // asked.width)), id_column):
            encoding = encoder.encode_files(some.paths)
            kept = {PATH: pa.array(some.names, pa.string())}
            if id_column is not None and id_column != PATH:
                kept[id_column] = _as_array(some.cells)
            yield _Given(some.lines, kept, encoding.features, encoding.refusals)
        return
    for rows in raw_rows(source, None if encoder is None else encoder.declared, asked.rows_at_once):
        kept = {} if id_column is None else {id_column: _as_array(rows.columns[id_column])}
        if encoder is None:
            features, reasons = _lists(asked.width, rows)
            yield _Given(rows.lines, kept, features, reasons)
        else:
            encoding = encoder.encode(rows.columns)
            faults = zip(rows.faults or [None] * len(rows.lines), encoding.refusals, strict=True)
            yield _Given(rows.lines, kept, encoding.features, [fault or why for fault, why in faults], encoding.clipped)


def _of_no_rows(asked: _Asked) -> pa.Table:
    """Return the table of a file without rows: the columns of any other, and none in them."""
    encoder, source, id_column = asked.encoder, asked.source, asked.id_column
    if isinstance(encoder, TableEncoder):
        # Refused for its columns, as with rows.
        encoder.encode({name: [] for name in names_of(source, encoder.declared)})
    scores = asked.scores(np.zeros((0, asked.width)))
    kept = {PATH: pa.array([], pa.string())} if isinstance(encoder, PictureEncoder) else {}
    if id_column is not None:
        typed = source.suffix in PARQUET and id_column in pq.read_schema(source).names
        kept[id_column] = pa.array([], pq.read_schema(source).field(id_column).type if typed else pa.string())
    texts = {"prediction"} if hasattr(asked.pipeline, "classes_") else set()
    return pa.table(
        {
            "row": pa.array([], pa.int64()),
            **kept,
            **{name: pa.array([], _typed(name, texts)) for name in scores.columns},
            **asked.explained(np.zeros((0, asked.width)), np.zeros(0, dtype=bool)),
            "refusal": pa.array([], pa.string()),
        }
    )


_LIST = pa.list_(pa.string())


def _column(name: str, cells: pd.Series, refused: NDArray[np.bool_]) -> pa.Array:
    """Return a column of predictions, empty for rows that are refused."""
    if name == SET:
        return pa.array([None if bad else of for of, bad in zip(cells, refused, strict=True)], _LIST)
    return pa.array(cells.to_numpy(), mask=refused)


def _typed(name: str, texts: set[str]) -> pa.DataType:
    if name == SET:
        return _LIST
    return pa.string() if name in texts else pa.float64()


def _as_array(cells: Sequence[object] | pa.Array) -> pa.Array:
    return cells if isinstance(cells, pa.Array) else pa.array(cells, pa.string())


def _lists(width: int, rows: Table) -> tuple[Floats, list[str | None]]:
    """Return the features of rows that are lists of numbers, and why some have none."""
    cells = rows.columns[FEATURES]
    features, sizes = _numbers(cells, width) if _holds_numbers(cells.type) else _parsed(cells, width)
    fits, finite = sizes == width, np.isfinite(features).all(axis=1)
    features[~finite] = 0.0
    reasons: list[str | None] = [None] * len(features)
    for row in np.flatnonzero(~(fits & finite)):
        reasons[row] = (
            f"column {FEATURES}: a number is missing or not finite"
            if fits[row]
            else f"column {FEATURES}: {sizes[row]} numbers, the model takes {width}"
        )
    return features, reasons


def _holds_numbers(kind: pa.DataType) -> bool:
    types = pa.types
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)))


def _numbers(cells: pa.Array, width: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return lists of numbers as rows, NaN where one is missing and zeros for another width, and each list's length."""
    sizes = np.asarray(pc.fill_null(pc.list_value_length(cells), 0), dtype=np.int64)
    features = np.zeros((len(sizes), width))
    whole = sizes == width
    flat = pc.list_flatten(cells.filter(pa.array(whole)))
    features[whole] = flat.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).reshape(-1, width)
    return features, sizes


def _parsed(cells: pa.Array, width: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return the same of cells of any other type, one after the other: texts of numbers, decimals."""
    features, sizes = np.zeros((len(cells), width)), np.zeros(len(cells), dtype=np.int64)
    for row, cell in enumerate(cells.to_pylist()):
        try:
            numbers = np.asarray([] if cell is None else cell, dtype=np.float64)
        except (TypeError, ValueError):
            numbers = np.full(width, np.nan)
        sizes[row] = numbers.size
        # A table of as many numbers is no list of them.
        features[row] = numbers if numbers.shape == (width,) else np.nan
    return features, sizes
