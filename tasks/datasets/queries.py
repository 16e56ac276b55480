"""Questions in SQL about public data sets."""

from __future__ import annotations

from storage.memory import kept_memory
from storage.results import query_dataset
from tasks.datasets.description import find_dataset
from tasks.runtime.settings import current_layout, query_seconds


def query(name: str, sql: str) -> list[dict[str, object]]:
    """Run DuckDB SQL over a public set's views ``train`` and ``test``.

    Raises
    ------
    RefusedError
        If the set is private.
    """
    table = query_dataset(current_layout(), find_dataset(name), sql, memory=kept_memory(), seconds=query_seconds())
    return list(table.to_pylist())
