"""Task runner on Dask: it says what it waits for, before the flow begins and hence before any charge.

And where all workers go in the middle: Dask keeps their tasks for others that may come, and says nothing.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Self

from distributed import Client, get_worker
from distributed import TimeoutError as NotInTime
from prefect_dask import DaskTaskRunner

from tasks.host.dask_workers import SharedSums
from tasks.runtime.progress import WAITING, WORKERS, report_progress

# How often it is looked whether a worker has come, after the first look, which most find one at.
_LOOK_SECONDS = 1.0


class WaitingTaskRunner(DaskTaskRunner):  # type: ignore[misc]  # it has no types
    """Connects when it is started, and waits for the first worker; Prefect's own connects at the first task."""

    def __enter__(self) -> Self:
        """Start, and return when tasks can run."""
        super().__enter__()
        with suppress(ValueError):
            get_worker()
            # A task's own copy, in which nothing is run.
            return self
        if self.address is None:
            report_progress(WAITING, f"{self.cluster_kwargs['n_workers']} Dask workers start on this machine")
        client, said = self.client, self.address is None
        client.register_plugin(SharedSums())
        while not client.scheduler_info()["workers"]:
            if not said:
                start = f"unitball dask worker {self.address}"
                report_progress(WAITING, f"the scheduler has no worker yet; start one under the same root: {start}")
            said = True
            try:
                client.wait_for_workers(1, timeout=_LOOK_SECONDS)
            except NotInTime:
                continue
        count = len(client.scheduler_info()["workers"])
        at_once = sum(client.nthreads().values())
        report_progress(WORKERS, f"{count} Dask worker{'s' * (count != 1)} at the start, {at_once} tasks at once")
        if self.address is not None:
            # Dask starts those of this machine again by itself.
            ended = threading.Event()
            looking = threading.Thread(target=self._look, args=[client, ended], name="workers", daemon=True)
            looking.start()
            self._exit_stack.callback(looking.join)
            self._exit_stack.callback(ended.set)
        return self

    def _look(self, client: Client, ended: threading.Event) -> None:
        """Say it once each time that the last worker has gone."""
        were = True
        while not ended.wait(_LOOK_SECONDS):
            try:
                are = bool(client.nthreads())
            except Exception:
                # The scheduler has gone as well: whoever waits for a task says that.
                return
            if were and not are:
                start = f"unitball dask worker {self.address}"
                report_progress(WAITING, f"no worker is left; the run continues when one connects: {start}")
            were = are
