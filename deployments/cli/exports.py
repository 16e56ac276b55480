"""``unitball export`` and ``unitball verify``: a run's proof, taken to another machine and checked there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deployments.cli.answers import Answer, answered, table
from deployments.cli.app import app
from deployments.cli.common import require_readable

_WORDS = {True: "holds", False: "[red]FAILS[/]", None: "–"}


@app.command(epilog="Example: unitball export digits.noisy-gd -o run.zip")
@answered
def export(
    run: Annotated[
        str, typer.Argument(help="A registered model that it made, or (how begins) its key or MLflow's id of it.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The archive to write.")],
) -> Answer:
    """Write a run's releases, charges, proof, audit verdict and package versions as one signed archive."""
    from storage.atomic import write_bytes
    from tasks.exports.collecting import export_run

    data, key, signer = export_run(run)
    write_bytes(out.absolute(), data)
    return Answer(
        {"run": key, "archive": str(out.absolute()), "bytes": len(data), "signer": signer},
        [
            f"{out}: run {key[:12]}, {len(data):,} bytes",
            f"signed by {signer}",
            "Tell this fingerprint by another channel than the archive's; then there: "
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
    from tasks.exports.confinement import verify_confined

    found = verify_confined(require_readable(archive, "ARCHIVE"), signer=signer)
    title = f"{found.algorithm} on {found.dataset}, run {found.run[:12]}" if found.run else "what it says does not hold"
    rows = ((check.what, _WORDS[check.holds], check.detail, check.word) for check in found.checks)
    vouched = table(("who", "on whose word alone"), found.words.items(), title="What nobody can check here")
    return Answer(
        found.to_json(),
        [table(("checked", "", "found", "rests on"), rows, title=title), *([vouched] if found.words else [])],
        None if found.holds else typer.Exit(1),
    )
