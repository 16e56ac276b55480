"""``unitball serve``, ``secret``, ``dask``, ``doctor``, ``ledger``, ``export`` and ``verify``: for a root's keeper."""

import asyncio
import importlib
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from deployments.cli.common import (
    Answer,
    RootOption,
    answered,
    console,
    print_root,
    require_readable,
    table,
    use_root,
)
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


@app.command(epilog="Example: unitball doctor --clean")
@answered
def doctor(
    clean: Annotated[
        bool,
        typer.Option(
            "--clean",
            help="First remove what killed processes left and damaged releases; make lost fingerprints again.",
        ),
    ] = False,
) -> Answer:
    """Check permissions, keys, ledger, marks, releases, data sets, left-overs, formats and disk; exit 0 if well."""
    from tasks.runtime.events import Event, announce
    from tasks.upkeep.checks import check_root, sweep_everything

    cleaned = sweep_everything(current_layout()) if clean else []
    findings = check_root()
    failed = sorted({finding.check for finding in findings if finding.problem is not None})
    if failed:
        announce(Event.UNWELL, "unitball.root", {"checks": ", ".join(failed)})
    rows = (
        (one.check, "[green]OK[/]" if one.problem is None else f"[red]{one.problem}[/]", one.way_out)
        for one in findings
    )
    return Answer(
        {"root": str(current_root()), "ok": not failed, "cleaned": cleaned, "checks": [*map(asdict, findings)]},
        [*cleaned, table(("check", "", "way out"), rows)],
        typer.Exit(1) if failed else None,
    )


ledger = typer.Typer(help="Restore a root's privacy ledger from a back-up.", no_args_is_help=True)
app.add_typer(ledger, name="ledger")


@ledger.command(epilog='Example: unitball ledger restore --reason "disk lost, back-up of Monday"')
@answered
def restore(
    reason: Annotated[str, typer.Option(help="Why; recorded.")],
    epsilon: Annotated[
        float | None, typer.Option(help="The most that was spent beyond this back-up, where no mark says it.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The delta of that.")] = None,
) -> Answer:
    """Accept a ledger that is older than its high-water marks: what it lacks is recorded as spent."""
    from tasks.accounts.budget import restore_ledger

    accounts = restore_ledger(reason, epsilon, delta)
    return Answer(
        {"booked": list(accounts)},
        [f"restored; recorded as spent what was missing for {', '.join(accounts) or 'no account'}"],
    )


_WORDS = {True: "holds", False: "[red]FAILS[/]", None: "–"}


@app.command(epilog="Example: unitball export digits.noisy-gd -o run.zip")
@answered
def export(
    run: Annotated[
        str, typer.Argument(help="A registered model of the run, or the beginning of its key or of its MLflow id.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The archive to write.")],
) -> Answer:
    """Write a run's releases, charges, proof, audit verdict and package versions as one signed archive."""
    from storage.atomic import write_bytes
    from tasks.exports.archive import export_run

    data, key, signer = export_run(run)
    write_bytes(out.absolute(), data)
    return Answer(
        {"run": key, "archive": str(out.absolute()), "bytes": len(data), "signer": signer},
        [
            f"{out}: run {key[:12]}, {len(data):,} bytes",
            f"signed by {signer}",
            "Send this fingerprint by another channel than the archive. Whoever receives both checks them with: "
            f"unitball verify {out.name} --signer {signer}",
        ],
    )


@app.command(epilog="Example: unitball verify run.zip")
@answered
def verify(
    archive: Annotated[Path, typer.Argument(help="What unitball export has written.")],
    signer: Annotated[str | None, typer.Option(help="The fingerprint that its owner has given.")] = None,
) -> Answer:
    """Check an export: digests, identities, guarantees, prices, epsilon; exit code 1 where something fails."""
    from tasks.exports.verifying import verify_confined

    report = verify_confined(require_readable(archive, "ARCHIVE"), signer=signer)
    title = (
        f"{report.algorithm} on {report.dataset}, run {report.run[:12]}" if report.run else "what it says does not hold"
    )
    rows = ((check.what, _WORDS[check.holds], check.detail, check.word) for check in report.checks)
    vouched = table(("who vouches", "for what"), report.words.items(), title="What nobody can check here")
    return Answer(
        report.model_dump(mode="json"),
        [table(("checked", "", "found", "rests on"), rows, title=title), *([vouched] if report.words else [])],
        None if report.holds else typer.Exit(1),
    )
