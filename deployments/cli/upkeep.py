"""``unitball doctor``, ``ledger``, ``export`` and ``verify``: a root checked, a run's proof taken elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from deployments.cli.common import Answer, answered, require_readable, table
from deployments.cli.entry_point import app


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
    from tasks.runtime.settings import current_layout, current_root
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
        report.to_json(),
        [table(("checked", "", "found", "rests on"), rows, title=title), *([vouched] if report.words else [])],
        None if report.holds else typer.Exit(1),
    )
