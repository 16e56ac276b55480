"""The step that a run's rows come in by."""

from __future__ import annotations

from storage.refs import DatasetRef
from tasks.datasets.description import find_dataset
from tasks.runtime.progress import say
from tasks.runtime.steps import step


@step(task_run_name="ingest {name}", cached=False)
def ingest(name: str) -> DatasetRef:
    """Return the newest registered version of a data set, registering a set that scikit-learn brings along.

    Never cached: a name means another version once its owner has registered one. Rows of files are brought in by
    :func:`tasks.datasets.registration.ingest`, at the owner's command and not by a run.
    """
    dataset = find_dataset(name)
    say("ingestion", f"{dataset.rows} rows of {name}")
    return dataset
