"""The workers of a Dask cluster, as a step that runs on one of them finds the others (:mod:`tasks.runtime.workers`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from distributed import Worker, WorkerPlugin, as_completed, get_worker, worker_client

from tasks.runtime.workers import Made, Part, Workers, find_workers_by


@dataclass(frozen=True, slots=True)
class DaskWorkers:
    """The workers of the cluster on one of which this task runs."""

    def count(self) -> int:
        """Return how many there are."""
        # In its own place among the worker's tasks: it answers at once.
        with worker_client(separate_thread=False) as client:
            return len(client.ncores())

    def map(self, function: Callable[[Part], Made], parts: Sequence[Part]) -> Iterator[Made]:
        """Apply a function to each part, on whichever worker; yield the results as they come.

        A worker reads the parts' files, so it sees the same root; results go over the cluster's TLS.
        """
        with worker_client() as client:
            # Not remembered by their content: each sum is formed once, and kept nowhere.
            futures = client.map(function, parts, pure=False)
            for future in as_completed(futures):
                yield future.result()
                future.release()


def _found() -> Workers | None:
    try:
        get_worker()
    except ValueError:
        # Outside of any task.
        return None
    return DaskWorkers()


class SharedSums(WorkerPlugin):  # type: ignore[misc]  # it has no types
    """Lets the tasks of each worker, those that come later included, share their sums with the others."""

    name = "unitball-shared-sums"
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Begin, on a worker."""
        find_workers_by(_found)
