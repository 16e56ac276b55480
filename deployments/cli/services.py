"""``unitball serve``, ``unitball secret`` and ``unitball dask``: the services of a root."""

from __future__ import annotations

import asyncio
import importlib
import os
from pathlib import Path
from typing import Annotated

import typer

from deployments.cli.common import Answer, RootOption, answered, console, print_root, use_root
from deployments.cli.entry_point import app
from storage.errors import InputError
from tasks.runtime.settings import DatabaseServer, current_layout, current_root, recorded_servers

secret = typer.Typer(name="secret", help="The secret of a root's Prefect and MLflow servers.", no_args_is_help=True)
app.add_typer(secret)


@secret.command(epilog="Example: unitball secret rotate")
@answered
def rotate() -> Answer:
    """Replace the secret; what is being served keeps the old one until it is started again."""
    from tasks.runtime.engine import rotate_credentials

    path = rotate_credentials(current_root())
    served = sorted(recorded_servers(current_root()).values())
    again = [f"start again what serves {address}: it still accepts the old secret" for address in served]
    return Answer({"secret_file": str(path), "to_restart": served}, [f"new secret in {path}", *again])


@secret.command(epilog="Example: unitball secret add anna --reader")
@answered
def add(
    name: Annotated[str, typer.Argument(help="Small letters, digits, - and _.")],
    reader: Annotated[bool, typer.Option("--reader", help="May see all of MLflow's pages and write nothing.")] = False,
) -> Answer:
    """Give somebody a secret of their own for MLflow, or a new one; the root's secret opens everything else."""
    from deployments.mlflow_server import add_reader

    if not reader:
        raise InputError(f"say what {name} may do: --reader is the only role besides the root's owner")
    path = add_reader(current_layout().root, name)
    return Answer(
        {"reader": name, "secret_file": str(path)},
        [f"{name} may read MLflow's pages; name and password for them are in {path}: hand them over, not the root's"],
    )


@secret.command(epilog="Example: unitball secret remove anna")
@answered
def remove(name: Annotated[str, typer.Argument(help="A reader.")]) -> Answer:
    """Take a reader's secret back; MLflow's server may remember its password for five minutes."""
    from deployments.mlflow_server import remove_reader

    remove_reader(current_root(), name)
    return Answer({"reader": name}, [f"{name} can read for five more minutes at most"])


@app.command(epilog="Example: unitball serve --runs 2")
def serve(
    prefect_port: Annotated[int, typer.Option(envvar="UNITBALL_PREFECT_PORT", help="Port of Prefect's pages.")] = 4210,
    mlflow_port: Annotated[int, typer.Option(envvar="UNITBALL_MLFLOW_PORT", help="Port of MLflow's pages.")] = 5000,
    runs: Annotated[int, typer.Option(help="Trainings at once; up to four more runs may wait.")] = 2,
    prefect_file: Annotated[Path | None, typer.Option(help="Deployments to serve instead of the usual ones.")] = None,
    database: Annotated[
        str | None,
        typer.Option(
            envvar="UNITBALL_DATABASE",
            help="A PostgreSQL server that holds the root's databases from now on: postgresql://user@host/prefix.",
        ),
    ] = None,
    runner_only: Annotated[
        bool, typer.Option("--runner-only", help="Serve the flows alone, on the Prefect that PREFECT_API_URL names.")
    ] = False,
    keep_days: Annotated[
        int, typer.Option(help="Days that flow runs, cached results and deleted MLflow runs are kept.")
    ] = 30,
    systemd_unit: Annotated[
        bool, typer.Option("--systemd-unit", help="Print a systemd user unit that serves this root, and end.")
    ] = False,
    root: RootOption = None,
) -> None:
    """Serve Prefect, MLflow and the deployed flows on this machine until Ctrl-C."""
    from deployments.serving import DEPLOYMENTS, Serving, run, unit_of

    use_root(root)
    if systemd_unit:
        typer.echo(unit_of(current_root()), nl=False)
        raise typer.Exit
    raise typer.Exit(
        run(
            Serving(
                root=current_root(),
                prefect_port=prefect_port,
                mlflow_port=mlflow_port,
                runs=runs,
                prefect_file=prefect_file or DEPLOYMENTS,
                database=DatabaseServer(database) if database else None,
                runner_only=runner_only,
                keep_days=keep_days,
            )
        )
    )


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
    _serve_dask("Scheduler", root, host=host, port=port, dashboard=False)


@dask.command(epilog="Example: unitball dask worker tls://10.0.0.1:8786 --threads 4")
def worker(
    address: Annotated[str, typer.Argument(help="The scheduler's: tls://HOST:PORT.")],
    threads: Annotated[int | None, typer.Option(min=1, help="Tasks at once; by the machine.")] = None,
    root: RootOption = None,
) -> None:
    """Start a worker of a scheduler; it needs the same root (a shared file system); until Ctrl-C."""
    from tasks.runtime.cluster import require_scheduler

    require_scheduler(address)
    _serve_dask("Worker", root, address, nthreads=threads or os.cpu_count() or 1)


def _serve_dask(part: str, root: Path | None, *address: str, **options: object) -> None:
    """Run a part of Dask until it is stopped, what runs send to it imported before anybody connects.

    Scheduler and worker unpickle it in their event loops, and a loop that waits for imports answers nobody: on a slow
    machine that takes longer than the half minute after which Dask gives a connection up.
    """
    from tasks.runtime.cluster import NO_DASHBOARD, security

    use_root(root)
    secured = security(current_layout())
    for module in ("flows.federated_training", "flows.sweep"):
        importlib.import_module(module)
    import distributed

    async def serve() -> None:
        secure = {"protocol": "tls", "security": secured, "dashboard_address": NO_DASHBOARD}
        async with getattr(distributed, part)(*address, **secure, **options) as running:
            of = "".join(f" of {one}" for one in address)
            console().print(f"{part.lower()}  {running.address}{of}", highlight=False, soft_wrap=True)
            print_root()
            await running.finished()

    asyncio.run(serve())
