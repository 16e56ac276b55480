"""The step that brings rows into the unit ball."""

from __future__ import annotations

from storage.refs import DatasetRef
from tasks.preparation.mapping import is_stored_whole, map_rows
from tasks.runtime.progress import say
from tasks.runtime.steps import step


@step(task_run_name="normalise {dataset.name}", whole=is_stored_whole)
def normalise(dataset: DatasetRef, name: str) -> DatasetRef:
    """Store a version of a data set whose rows are mapped as a run wants them; a version that is there is reused."""
    result = map_rows(dataset, name)
    say("normalisation", f"{result.rows} rows to {name}")
    return result
