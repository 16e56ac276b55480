"""``unitball dask``: a scheduler and workers on several machines, over TLS with the root's certificate."""

from __future__ import annotations

import asyncio
import importlib
import os
from typing import Annotated

import typer

from deployments.cli.app import app
from deployments.cli.common import RootOption, console, print_root, use_root

dask = typer.Typer(
    name="dask", help="Machines for sweeps and for the tasks of a run (extra: dask).", no_args_is_help=True
)
app.add_typer(dask)


@dask.command(epilog="Example: unitball dask scheduler --host 0.0.0.0")
def scheduler(
    host: Annotated[
        str, typer.Option(help="Address to listen on; another machine needs one it can reach.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8786,
    root: RootOption = None,
) -> None:
    """Start a scheduler that admits only who shows the root's certificate; without a dashboard; until Ctrl-C."""
    from tasks.runtime.cluster import NO_DASHBOARD, security
    from tasks.runtime.settings import current_layout

    use_root(root)
    secured = security(current_layout())
    _import_tasks()
    from distributed import Scheduler

    async def serve() -> None:
        options = {"protocol": "tls", "security": secured, "dashboard": False, "dashboard_address": NO_DASHBOARD}
        async with Scheduler(host=host, port=port, **options) as running:
            console().print(f"scheduler  {running.address}", highlight=False, soft_wrap=True)
            print_root()
            await running.finished()

    asyncio.run(serve())


@dask.command(epilog="Example: unitball dask worker tls://10.0.0.1:8786 --threads 4")
def worker(
    address: Annotated[str, typer.Argument(help="The scheduler's: tls://HOST:PORT.")],
    threads: Annotated[int | None, typer.Option(min=1, help="Tasks at once; by the machine.")] = None,
    root: RootOption = None,
) -> None:
    """Start a worker of a scheduler; it needs the same root (a shared file system); until Ctrl-C."""
    from tasks.runtime.cluster import NO_DASHBOARD, require_scheduler, security
    from tasks.runtime.settings import current_layout

    use_root(root)
    require_scheduler(address)
    secured = security(current_layout())
    _import_tasks()
    from distributed import Worker

    async def serve() -> None:
        at_once = threads or os.cpu_count() or 1
        options = {"protocol": "tls", "security": secured, "dashboard_address": NO_DASHBOARD}
        async with Worker(address, nthreads=at_once, **options) as running:
            console().print(f"worker  {running.address} of {address}", highlight=False, soft_wrap=True)
            print_root()
            await running.finished()

    asyncio.run(serve())


def _import_tasks() -> None:
    """Import what runs send here, before anybody connects.

    Scheduler and worker unpickle it in their event loops, and a loop that waits for imports answers nobody: on a slow
    machine that takes longer than the half minute after which Dask gives a connection up.
    """
    for module in ("flows.federated_training", "flows.sweep"):
        importlib.import_module(module)
