"""Data frames as data sets: the rows that a notebook has, under a schema, brought in as a file of theirs would be."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from dpalgos.parameters import ParameterError
from storage.cells import canonical, column_name
from storage.encoder import columns_of
from storage.errors import InputError, RefusedError
from tasks.datasets.registration import ingest
from tasks.datasets.request import AccountRequest, IngestRequest
from tasks.runtime.settings import current_layout
from unitball.wording import checked

TERMS = (*AccountRequest.model_fields, "on_violation", "visibility")
"""What may be said of rows that are brought in, beside their name and their schema."""


def bring_in(
    rows: Any, schema: Mapping[str, Any] | str | os.PathLike[str] | None, name: str | None, terms: Mapping[str, Any]
) -> str:
    """Register the rows of a data frame as a version of a data set in the current root, and return its name.

    Equal rows under an equal schema are the version that is there.

    Parameters
    ----------
    rows : data frame, Arrow table, mapping of column to cells, or what gives an Arrow stream, such as polars' frames
        The label is one of its columns.
    schema : mapping or path
    name : str
    terms : mapping
        Of :data:`TERMS`.

    Raises
    ------
    ParameterError
        Where schema or name are missing.
    storage.errors.InputError, storage.errors.RefusedError
        As :func:`tasks.datasets.registration.ingest` does.
    """
    if schema is None or name is None:
        missing = [what for what, given in (("name", name), ("schema", schema)) if given is None]
        are = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
        raise ParameterError(
            f"the rows are a {type(rows).__name__}, and {are} missing: name='visits' is what data set and model "
            "will go by, and schema= says what each column may hold, the label's too (docs/schema.md)"
        )
    table = _arrow(rows)
    layout = current_layout()
    layout.private.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=layout.private, prefix="frame-") as folder:
        path, declared = Path(folder, "rows.parquet"), Path(folder, "schema.yaml")
        pq.write_table(table, path)
        if isinstance(schema, Mapping):
            declared.write_text(yaml.safe_dump(dict(schema), allow_unicode=True, sort_keys=False), "utf-8")
        else:
            declared = Path(schema)
        request = {"name": name, "format": "parquet", "path": path, "schema_path": declared, **terms}
        with _spoken_of_frames({str(path): "the data frame", str(Path(folder, "schema.yaml")): "schema"}):
            ingest(checked("train", IngestRequest, request))
    return name


@contextmanager
def _spoken_of_frames(called: Mapping[str, str]) -> Iterator[None]:
    """Let errors call files that nobody has made, and that are gone by then, what they stand for."""
    try:
        yield
    except (InputError, RefusedError) as error:
        said = str(error)
        for path, name in called.items():
            said = said.replace(path, name)
        error.args = (said, *error.args[1:])
        raise


def _arrow(rows: Any) -> pa.Table:
    """Return rows as an Arrow table, each column under its canonical name."""
    if not isinstance(rows, (pd.DataFrame, Mapping, pa.Table)) and hasattr(rows, "__arrow_c_stream__"):
        rows = pa.table(rows)
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    columns = []
    for places in columns_of(rows).values():
        columns += [rows.iloc[:, place] if isinstance(rows, pd.DataFrame) else rows[place] for place in places]
    names = [name for name, places in columns_of(rows).items() for _ in places]
    return pa.Table.from_arrays([_column(cells) for cells in columns], names=[column_name(name) for name in names])


def _column(cells: Any) -> Any:
    """Return a column as Arrow has it; what has cells of several kinds as their canonical texts."""
    if isinstance(cells, (pa.Array, pa.ChunkedArray)):
        return cells
    try:
        return pa.Array.from_pandas(cells) if isinstance(cells, pd.Series) else pa.array(list(cells))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return canonical(cells if isinstance(cells, pd.Series) else list(cells))
