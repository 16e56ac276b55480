"""Data frames as data sets: the rows that a notebook has, under a schema, registered as those of a file would be."""

import difflib
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dpalgos.parameters import ParameterError
from storage.frames import frame_of
from storage.hidden_cells import cells_hidden
from storage.readers.in_memory import DeclaredFrame
from storage.recognition import lineage_of_rows
from storage.refs import Visibility
from tasks.datasets.registration import ingest
from tasks.datasets.request import AccountRequest, IngestRequest
from unitball.screen import tell
from unitball.wording import checked

TERMS = (*AccountRequest.model_fields, "on_violation", "visibility", "not_derived")
"""What may be said of rows that are given, in addition to their name and their schema."""


def require_given(dataset: Any, schema: object, name: object) -> None:
    """Refuse a schema or a name for a data set that is registered already."""
    if isinstance(dataset, str) and (schema is not None or name is not None):
        raise ParameterError(
            f"schema and name apply to rows in memory, and {dataset!r} is a registered data set; omit them"
        )


def bring_in(
    function: str,
    rows: Any,
    schema: Mapping[str, Any] | str | os.PathLike[str] | None,
    name: str | None,
    terms: Mapping[str, Any],
) -> str:
    """Register the rows of a data frame as a version of a data set in the current root, and return its name.

    Equal rows under an equal schema are the version that is there.

    Parameters
    ----------
    function : str
        Which function was called, for messages.
    rows : frame
        As of :func:`storage.frames.frame_of`. The label is one of its columns.
    schema : mapping or path
    name : str
    terms : mapping
        Of :data:`TERMS`.

    Raises
    ------
    ParameterError
        Where schema or name are missing.
    storage.errors.InputError, storage.errors.RefusedError
        As :func:`tasks.datasets.registration.ingest` does; of private rows without a cell.
    """
    if schema is None or name is None:
        missing = [what for what, given in (("name", name), ("schema", schema)) if given is None]
        are = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
        raise ParameterError(
            f"the rows are a {type(rows).__name__}, and {are} missing: name='visits' names data set and model, and "
            "schema= declares what each column may hold, including the label (page The schema of a table)"
        )
    declared = schema if isinstance(schema, Mapping) else Path(schema)
    for key in terms:
        if key not in TERMS:
            near = difflib.get_close_matches(key, TERMS, n=3, cutoff=0.4) or [*TERMS]
            raise ParameterError(f"{function} has no parameter {key!r} of rows in memory; nearest: {', '.join(near)}")
    request = checked(function, IngestRequest, {"name": name, **terms})
    with nullcontext() if request.visibility is Visibility.PUBLIC else cells_hidden():
        ingest(
            request, told=tell, rows=DeclaredFrame(frame=frame_of(rows), schema=declared, lineage=lineage_of_rows(rows))
        )
    return name
