"""``unitball serve``, ``secret``, ``dask``, ``doctor``, ``budget``, ``ledger``, ``export``, ``verify``: operation."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from deployments.cli.common import (
    Answer,
    RootOption,
    answered,
    coloured,
    console,
    print_root,
    require_readable,
    table,
    use_root,
)
from deployments.cli.entry_point import app, group_of
from deployments.cli.given import refuse_beside, refuse_without
from deployments.cli.stopping import leave_signals
from dpalgos.guarantees import rounded_up
from dpalgos.parameters import ParameterError, UnknownNameError
from storage.atomic import write_bytes
from storage.errors import InputError, RefusedError, StorageError
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.settings import DatabaseServer, current_layout, current_root, recorded_servers

if TYPE_CHECKING:
    from tasks.accounts.reports import BudgetReport, PartyBudget, PlanLine
    from tasks.accounts.room import OneMore

secret = group_of("secret")


@secret.command(epilog="Example: unitball secret rotate")
@answered
def rotate() -> Answer:
    """Replace the root's secret; running servers keep the old one until a restart."""
    from tasks.runtime.services import rotate_credentials

    path = rotate_credentials(current_root())
    served = sorted(recorded_servers(current_root()).values())
    again = [f"restart the server at {address}: it still accepts the old secret" for address in served]
    return Answer({"secret_file": str(path), "to_restart": served}, [f"new secret in {path}", *again])


@secret.command(epilog="Example: unitball secret add anna --reader")
@answered
def add(
    name: Annotated[str, typer.Argument(help="Name: small letters, digits, - and _.")],
    reader: Annotated[bool, typer.Option("--reader", help="Allow reading MLflow's pages, but no writing.")] = False,
) -> Answer:
    """Create or replace a person's own secret for MLflow."""
    from deployments.mlflow_server import add_reader

    if not reader:
        raise InputError(f"{name} has no role: add --reader, the only role for people")
    path = add_reader(current_layout().root, name)
    return Answer(
        {"reader": name, "secret_file": str(path)},
        [f"{name} may read MLflow's pages; name and password for them are in {path}: hand them over, not the root's"],
    )


@secret.command(epilog="Example: unitball secret remove anna")
@answered
def remove(name: Annotated[str, typer.Argument(help="Name of the reader.")]) -> Answer:
    """Revoke a reader's secret; MLflow may accept it for five more minutes."""
    from deployments.mlflow_server import remove_reader

    remove_reader(current_root(), name)
    return Answer({"reader": name}, [f"{name} can read for five more minutes at most"])


@app.command(epilog="Example: unitball serve --runs 2")
def serve(
    prefect_port: Annotated[int, typer.Option(envvar="UNITBALL_PREFECT_PORT", help="Port of Prefect's pages.")] = 4210,
    mlflow_port: Annotated[int, typer.Option(envvar="UNITBALL_MLFLOW_PORT", help="Port of MLflow's pages.")] = 5000,
    runs: Annotated[int, typer.Option(help="Parallel trainings. Up to four further runs may wait.")] = 2,
    prefect_file: Annotated[
        Path | None, typer.Option(help="YAML file of deployments. Default: Unitball's own.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            envvar="UNITBALL_DATABASE",
            help="Move the root's databases to this PostgreSQL server: postgresql://user@host/prefix. "
            "Default: databases stay where they are; a new root has them in files.",
        ),
    ] = None,
    runner_only: Annotated[
        bool, typer.Option("--runner-only", help="Serve only the flows, on the Prefect server of PREFECT_API_URL.")
    ] = False,
    keep_days: Annotated[
        int, typer.Option(help="Days to keep flow runs, cached results and deleted MLflow runs.")
    ] = 30,
    systemd_unit: Annotated[
        bool, typer.Option("--systemd-unit", help="Print a systemd user unit for this root and exit.")
    ] = False,
    root: RootOption = None,
) -> None:
    """Serve Prefect, MLflow and the flows until Ctrl-C."""
    from deployments.serving import DEPLOYMENTS, Serving, run, unit_of

    refuse_beside("--systemd-unit", "prints a unit that serves the root as it is without options, for you to edit")
    refuse_beside(
        "--runner-only", "serves flows on a Prefect server of yours", ["--prefect-port", "--mlflow-port", "--database"]
    )
    use_root(root)
    if systemd_unit:
        typer.echo(unit_of(current_root()), nl=False)
        raise typer.Exit
    # It stops its parts in order, and the runs say what they have charged.
    leave_signals()
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


dask = group_of("dask")


@dask.command(epilog="Example: unitball dask scheduler --host 0.0.0.0")
def scheduler(
    host: Annotated[str, typer.Option(help="Address to listen on. Other machines must reach it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8786,
    root: RootOption = None,
) -> None:
    """Run a scheduler until Ctrl-C; clients need the root's certificate."""
    _serve_dask("Scheduler", root, host=host, port=port, dashboard=False)


@dask.command(epilog="Example: unitball dask worker tls://10.0.0.1:8786 --threads 4")
def worker(
    address: Annotated[str, typer.Argument(help="Address of the scheduler: tls://HOST:PORT.")],
    threads: Annotated[int | None, typer.Option(min=1, help="Parallel tasks. Default: by the machine's cores.")] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on for other workers; 0: any free port.")
    ] = 0,
    root: RootOption = None,
) -> None:
    """Run a worker until Ctrl-C; it needs the same root (shared file system)."""
    from tasks.host.cluster import await_scheduler

    use_root(root)
    await_scheduler(address, waiting=lambda: typer.echo(f"waiting: for a scheduler at {address}", err=True))
    _serve_dask("Worker", root, address, nthreads=threads or os.cpu_count() or 1, port=port)


def _serve_dask(part: str, root: Path | None, *address: str, **options: object) -> None:
    """Run a part of Dask until it is stopped; import the modules of runs before clients connect.

    Scheduler and worker unpickle it in their event loops, and a loop that waits for imports answers nobody: on a slow
    machine that takes longer than the half minute after which Dask gives a connection up.
    """
    from tasks.host.cluster import NO_DASHBOARD, security

    use_root(root)
    secured = security(current_layout())
    for module in ("flows.federated_training", "flows.sweep"):
        importlib.import_module(module)
    import distributed

    async def serve() -> None:
        secure = {"protocol": "tls", "security": secured, "dashboard_address": NO_DASHBOARD}
        async with getattr(distributed, part)(*address, **secure, **options) as running:
            of = "".join(f" of {one}" for one in address)
            console().print(f"{part.lower()}  {running.address}{of}", highlight=False, markup=False, soft_wrap=True)
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
            help="First remove leftovers of killed processes and damaged releases, and rebuild lost fingerprints.",
        ),
    ] = False,
) -> Answer:
    """Check the root: keys, ledger, releases, disk; exit 0 if healthy."""
    from tasks.runtime.events import Event, announce
    from tasks.upkeep.checks import check_root, sweep_everything

    cleaned = sweep_everything(current_layout()) if clean else []
    findings = check_root()
    failed = sorted({finding.check for finding in findings if finding.problem is not None})
    if failed:
        announce(Event.UNWELL, "unitball.root", {"checks": ", ".join(failed)})
    rows = (
        (one.check, coloured("OK", "green") if one.problem is None else coloured(one.problem, "red"), one.way_out)
        for one in findings
    )
    return Answer(
        {"root": str(current_root()), "ok": not failed, "cleaned": cleaned, "checks": [*map(asdict, findings)]},
        [*cleaned, table(("check", "result", "what to do"), rows)],
        typer.Exit(1) if failed else None,
    )


ledger = group_of("ledger")


@ledger.command(epilog='Example: unitball ledger restore --reason "disk lost, back-up of Monday"')
@answered
def restore(
    reason: Annotated[str, typer.Option(help="Reason; recorded.")],
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="If the high-water marks are lost: upper bound on the epsilon charged since this back-up, for each "
            "private account. Default: what the marks record."
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of that bound. Required with --epsilon.")] = None,
) -> Answer:
    """Accept a ledger older than its high-water marks; the gap is recorded as spent."""
    from tasks.accounts.ledger import restore_ledger

    accounts = restore_ledger(reason, epsilon, delta)
    return Answer(
        {"booked": list(accounts)},
        [f"Accepted the ledger. Recorded the gap as spent for {', '.join(accounts) or 'no account'}."],
    )


_WORDS = {True: coloured("holds", ""), False: coloured("FAILS", "red"), None: coloured("–", "")}


@app.command(epilog="Example: unitball export digits.noisy-gd -o run.zip")
@answered
def export(
    run: Annotated[str, typer.Argument(help="Registered model, or the beginning of the run's key or MLflow id.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Archive to write.")],
) -> Answer:
    """Write a run's releases, charges and proof as one signed archive."""
    from tasks.exports.archive import export_run

    data, key, signer = export_run(run)
    write_bytes(out.absolute(), data)
    return Answer(
        {"run": key, "archive": str(out.absolute()), "bytes": len(data), "signer": signer},
        [
            f"{out}: run {key[:12]}, {len(data):,} bytes",
            f"signed by {signer}",
            "Send this fingerprint by another channel than the archive. The receiver of both checks them with: "
            f"unitball verify {out.name} --signer {signer}",
        ],
    )


@app.command(epilog="Example: unitball verify run.zip")
@answered
def verify(
    archive: Annotated[
        Path, typer.Argument(help="Archive of `unitball export`, or the name of a data set of synthetic rows.")
    ],
    signer: Annotated[str | None, typer.Option(help="Fingerprint of the expected signer.")] = None,
) -> Answer:
    """Check an exported archive or a data set of synthetic rows; exit code 1 if a check fails."""
    from tasks.release.drawn_rows import is_derived, redrawn

    if not archive.exists() and is_derived(str(archive)):
        found = redrawn(str(archive))
        return Answer({"dataset": str(archive), "holds": True, "checks": found}, found)
    from tasks.exports.verifying import verify_confined

    report = verify_confined(require_readable(archive, "ARCHIVE"), signer=signer)
    title = (
        f"{report.algorithm} on {report.dataset}, run {report.run[:12]}"
        if report.run
        else "the archive's claims do not hold"
    )
    rows = ((check.what, _WORDS[check.holds], check.detail, check.basis) for check in report.checks)
    vouched = table(("vouched for by", "statements"), report.unverified.items(), title="Not verifiable here")
    return Answer(
        report.model_dump(mode="json"),
        [table(("checked", "", "found", "basis"), rows, title=title), *([vouched] if report.unverified else [])],
        None if report.holds else typer.Exit(1),
    )


_RECOMMENDED = "unitball"


@app.command(epilog="Example: unitball budget digits --verify")
@answered
def budget(
    dataset: Annotated[str | None, typer.Argument(help="Data set or account. Default: all accounts.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the ledger's hash chain and all stored releases.")
    ] = False,
    raise_epsilon_cap: Annotated[
        float | None,
        typer.Option(help="New epsilon of the cap, higher or lower. Lifts a soft limit. Recorded; delta is unchanged."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Reason for the change; recorded.")] = "",
    algorithm: Annotated[str, typer.Option(help="Show the remaining epsilon for this algorithm.")] = _RECOMMENDED,
    delta: Annotated[float | None, typer.Option(help="Delta of that run. Default: as for train.")] = None,
    out: Annotated[Path | None, typer.Option(help="Draw spending over time: .png, or .html with a table.")] = None,
) -> Answer:
    """Show the remaining budget, the cap and all charges."""
    from tasks.accounts.ledger import change_cap, verify_ledger
    from tasks.accounts.reports import budget_report
    from tasks.accounts.room import OneMore
    from tasks.datasets.registration import ensure_registered

    one_more = ["--algorithm", "--delta"]
    refuse_beside("--verify", "checks the whole ledger", [*one_more, "--out"])
    refuse_beside("--out", "draws what was spent", one_more)
    refuse_without(["--reason"], "--raise-epsilon-cap", "says why a cap is changed")
    if dataset is None:
        refuse_without(one_more, "a data set", "are of one more run on a data set")
    ensure_registered(dataset)
    if raise_epsilon_cap is not None:
        if dataset is None:
            raise InputError("--raise-epsilon-cap changes one account: name its data set")
        change_cap(dataset, raise_epsilon_cap, reason)
    if verify:
        problems = verify_ledger()
        whole = "The ledger's chain is intact, and every stored release equals the charged one."
        if not problems:
            return Answer({"dataset": dataset, "verified": True, "problems": []}, [whole])
        return Answer(
            {"dataset": dataset, "verified": False, "problems": problems},
            [f"✗ {problem}" for problem in problems],
            StorageError(
                f"the ledger and the stored releases differ: {len(problems)} problem(s), the first: {problems[0]}; "
                "restore the damaged files from a back-up"
            ),
        )
    if dataset is None or out is not None:
        return _overview(dataset, out)
    report = budget_report(dataset)
    if report["left"] is None:
        # Of public rows, which have no cap, any run fits; of a ledger that lacks charges none.
        return Answer(dict(report), _shown(report, []))
    left, said = _left(report, OneMore(**report["left"]), dataset, algorithm, delta)
    return Answer({**report, "left": left}, _shown(report, said))


def _left(
    report: BudgetReport, any_run: OneMore, dataset: str, algorithm: str, delta: float | None
) -> tuple[dict[str, object], list[str]]:
    """Return the remaining budget, as JSON and as text, for a run of an algorithm, or for any run where that fails."""
    from tasks.release.preflight import largest_epsilon

    if dataset not in report["datasets"]:
        # An account by its own name: a plan is of rows.
        return asdict(any_run), [any_run.said]
    try:
        found = largest_epsilon(TrainingConfig(dataset=dataset, algorithm=algorithm, delta=delta))
        return asdict(found), [found.said]
    except UnknownNameError:
        raise
    except (InputError, ParameterError, RefusedError) as error:
        asked = f"a run of {algorithm}" + ("" if delta is None else f" at δ = {delta:g}")
        said = [any_run.said, f"{asked} cannot be planned here ({error})"]
        return {**asdict(any_run), "reason": str(error)}, said


def _overview(dataset: str | None, out: Path | None) -> Answer:
    """Show and draw spending: of one data set's account, or of all."""
    from tasks.accounts.ledger import account_named
    from tasks.accounts.pages import budget_page, budget_table, draw_budgets
    from tasks.release.forecasts import budget_histories

    if out is not None and out.suffix not in (".png", ".html"):
        raise InputError(f"--out {out}: give a name that ends in .png (figure) or .html (page)")
    account = None if dataset is None else account_named(dataset).name
    histories = [one for one in budget_histories() if account in (None, one.account)]
    if out is not None:
        picture = draw_budgets(histories)
        written = picture if out.suffix == ".png" else budget_page(histories, picture).encode()
        write_bytes(out.absolute(), written)
    rows = budget_table(histories)
    headings = [*rows[0]] if rows else ["no data set is registered yet"]
    shown = table(headings, (row.values() for row in rows), title="Budgets")
    machine = {"accounts": [one.model_dump(mode="json") for one in histories]}
    return Answer(machine, [shown] if out is None else [shown, f"drawn in {out}"])


def _epsilon(value: float | None) -> str:
    return "unbounded" if value is None else f"{rounded_up(value, 4):g}"


def _delta(value: float) -> str:
    return f"{rounded_up(value, 6):g}"


def _lines(parties: list[PartyBudget]) -> Iterator[tuple[str, ...]]:
    """Yield one line per group of parties with equal spending, and one for the test rows."""
    from tasks.preparation.partitions import HELD_OUT

    alike: dict[tuple[bool, float | None, float], list[PartyBudget]] = {}
    for party in parties:
        key = party["party"] == HELD_OUT, party["epsilon_spent"], party["delta_spent"]
        alike.setdefault(key, []).append(party)
    for (held_out, epsilon, delta), few in alike.items():
        others = f" and {len(few) - 1} others with equal spending" if len(few) > 1 else ""
        counts = sorted({len(party["charges"]) for party in few})
        releases = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
        whose = "held-out test rows" if held_out else few[0]["party"] + others
        yield whose, _epsilon(epsilon), _delta(delta), releases


def _shown(report: BudgetReport, left: Sequence[str]) -> Iterator[RenderableType]:
    from tasks.accounts.reports import cap_of

    cap, named = report["cap"], report["datasets"]
    yield f"account {report['account']}{' (data sets ' + ', '.join(named) + ')' if named else ''}: " + (
        f"cap ε = {(report['promised'] or cap)['epsilon']:g} at δ = {cap['delta']:g}"
        + (f", soft limit ε = {cap['epsilon']:g}" if report["promised"] != cap else "")
        if cap
        else "public, no cap; costs that its runs would have had"
    )
    yield from left
    if rows := list(_lines(report["parties"])):
        numbers = ["ε spent", "δ", "releases"]
        yield table(["party", *numbers], rows, title="spent per party", right=numbers)
    if charges := sorted([*_charged(report), *_restored(report)]):
        numbers = ["ε", "at δ"]
        size = report["group_size"]
        title = "charges" if size == 1 else f"charges, for a person of up to {size} rows"
        yield table(["when (UTC)", "run", *numbers, "releases"], charges, title=title, right=numbers)
    for one in report["disjoint"]:
        yield f"declared disjoint from {', '.join(one['from'])} on {one['recorded_at'][:10]}: {one['reason']}"
    for run in report["reserved"]:
        yield f"reserved, and counted as spent, for run {run}"
    if cap:
        yield f"neighbouring relation: {report['relation']}. {report['meaning']}"
        charged = report["plans"] or report["restored"]
        how = f" (composition over runs and partitions: {report['filter']})"
        if report["epsilon_spent"] == report["earlier"]:
            how = "; nothing was charged " + ("since the cap was raised" if report["earlier"] else "yet")
        size = report["group_size"]
        whose = f"a person of up to {size} rows: " if size > 1 else ""
        if report["behind"]:
            yield (
                "this ledger is older than its high-water marks, and more was spent than it records: "
                f"{report['behind']}. It refuses charges until the newest back-up is restored, or the gap is recorded "
                "as spent: unitball ledger restore"
            )
            how = " at least"
        yield f"{whose}spent ε = {_epsilon(report['epsilon_spent'])} of {cap_of(report)}{how}"
        if report["promised"] != cap:
            yield (
                f"The soft limit can be lifted up to the cap, at no privacy cost: unitball budget {report['account']} "
                f"--raise-epsilon-cap {(report['promised'] or cap)['epsilon']:g} --reason …"
            )
        if report["earlier"]:
            yield (
                f"The spent ε includes the earlier cap of {_epsilon(report['earlier'])}, which counts in full, "
                "also where it was not used up."
            )
        if report["left"] is not None and report["left"]["epsilon"] > cap["epsilon"]:
            yield (
                "The remaining budget may be above that: it is stated at a smaller δ, at which the same "
                "noise is a larger ε."
            )
        if charged:
            yield (
                "Privacy losses compose, so ε values do not add up: neither the charges to the total, nor the total "
                "and the remaining ε to the cap. A charge states its ε at its own δ, the total at the cap's δ."
            )


def _charged(report: BudgetReport) -> Iterator[tuple[str, ...]]:
    """Yield a line a charged plan: when, what ran, its own ε and δ, what it released."""
    labels: dict[int, set[str]] = {}
    for party in report["parties"]:
        for charge in party["charges"]:
            labels.setdefault(charge["plan"], set()).add(charge["label"])
    for plan in report["plans"]:
        released = sorted(labels.get(plan["plan"], ()), key=_by_number)
        among = f"{len(released)} releases, among them " if len(released) > 3 else ""
        again = " (computed again, charged again)" if plan["recharge"] else ""
        yield (
            plan["recorded_at"][:19],
            plan["run"] + again,
            _cost(plan),
            _delta(plan["delta"]),
            among + ", ".join(released[:3]),
        )


def _by_number(label: str) -> list[tuple[int, str]]:
    """Return what puts the second night before the tenth."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", label)]


def _cost(plan: PlanLine) -> str:
    """Return what a plan cost the rows that train, and beside it what it cost the test rows where that is other."""
    from tasks.preparation.partitions import HELD_OUT

    each = plan["parties"]
    training = {epsilon for party, epsilon in each.items() if party != HELD_OUT} or {plan["epsilon"]}
    paid = None if None in training else max(epsilon for epsilon in training if epsilon is not None)
    trained, tested = _epsilon(paid), _epsilon(each.get(HELD_OUT, paid))
    return trained if tested == trained else f"{trained} (test rows {tested})"


def _restored(report: BudgetReport) -> Iterator[tuple[str, ...]]:
    for at in report["restored"]:
        yield (at[:19], "restored ledger", "–", "–", "recorded as spent: the gap after the back-up")
