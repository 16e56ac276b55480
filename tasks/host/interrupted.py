"""Flow runs whose process has died: marked crashed at the next start, so that no list shows them as running."""

import fcntl
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from prefect import tags
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Crashed

from storage.atomic import locked_file
from storage.layout import Layout
from tasks.runtime.steps import PROCESS_TAG

UNFINISHED = FlowRunFilterState(
    type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
)
"""Runs that a server takes to go on."""


def _folder(root: Path) -> Path:
    folder = Layout(root).prefect / "processes"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@contextmanager
def marked_runs(root: Path) -> Iterator[None]:
    """Tag the flow runs made in the context with this process, whose life a lock shows that the kernel drops."""
    folder = _folder(root)
    with locked_file(folder / ".lock"):
        file = tempfile.NamedTemporaryFile(dir=folder, prefix="")  # noqa: SIM115 - open for as long as the process lives
        fcntl.flock(file, fcntl.LOCK_EX)
    with file, tags(PROCESS_TAG + Path(file.name).name):
        yield


def _dead(root: Path) -> Iterator[Path]:
    """Yield the marks of processes that have died, each while nobody else looks; the caller removes them."""
    folder = _folder(root)
    with locked_file(folder / ".lock"):
        for path in sorted(folder.glob("[!.]*")):
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield path


def has_dead_processes(root: Path) -> bool:
    """Whether a process has died in the middle of its runs; costs no question to a server."""
    return any(True for _ in _dead(root))


def crash_interrupted_runs(client: SyncPrefectClient, root: Path, deployments: Collection[UUID] = ()) -> int:
    """Mark unfinished flow runs of dead processes as crashed; return how many.

    Parameters
    ----------
    client : SyncPrefectClient
        Of the server that knows the root's runs.
    root : Path
    deployments : collection of UUID
        Whose runs have died too: only the one runner of a root, before it starts its own runs, knows that of the
        root's deployments. Those of others on the same server are not looked at.
    """
    count = 0
    for path in _dead(root):
        count += _crash(client, FlowRunFilter(state=UNFINISHED, tags=FlowRunFilterTags(all_=[PROCESS_TAG + path.name])))
        path.unlink()
    if deployments:
        deployed = FlowRunFilterDeploymentId(any_=list(deployments))
        count += _crash(client, FlowRunFilter(state=UNFINISHED, deployment_id=deployed))
    return count


def _crash(client: SyncPrefectClient, filter_: FlowRunFilter) -> int:
    count = 0
    while runs := client.read_flow_runs(flow_run_filter=filter_):
        for run in runs:
            message = "The process of this run died; this was found at the next start."
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
        count += len(runs)
    return count
