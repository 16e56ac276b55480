"""``unitball party`` and ``unitball federate``: rows that stay with their party, and a run over several of them."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from deployments.cli.common import (
    Answer,
    RootOption,
    answered,
    options_of,
    require_readable,
    use_root,
)
from deployments.cli.data import ingest
from deployments.cli.entry_point import app
from deployments.cli.training import shown_results
from storage.errors import InputError
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.settings import current_layout, current_root

party = typer.Typer(
    name="party",
    help="Act as a separate party: with rows, user, root, secrets and account of its own.",
    no_args_is_help=True,
)
app.add_typer(party)
party.command(epilog="Example: unitball party ingest clinic --format csv --party berlin=rows.csv --schema clinic.yaml")(
    ingest
)

_Dataset = Annotated[str, typer.Argument(help="The party's data set, ingested with one --party NAME=FILE.")]
_Roster = Annotated[Path, typer.Option(help="YAML: parties: {NAME: FINGERPRINT}, brought by each party itself.")]
_NOT_HERE = ("seed", "public_dataset", "partition", "partition_seed", "sizes", "rows_per_party")
_NOR = ("parties", "deadline", "overrun", "tune")
_NOR_YET = ("horizon", "participations", "separation", "expected_rows", "bands")


@party.command(epilog="Example: unitball party show clinic")
@answered
def show(dataset: _Dataset) -> Answer:
    """Print this party's line of the roster: its name and the fingerprint of its key."""
    from storage.layout import root_secret
    from tasks.federation.party import own_name
    from tasks.federation.protocol import fingerprint, identity_key

    name, print_of = own_name(dataset), fingerprint(identity_key(root_secret(current_layout())).public_key())
    return Answer({"party": name, "fingerprint": print_of}, [f"{name}: {print_of}"])


@party.command(epilog="Example: unitball party serve clinic --roster roster.yaml")
def serve(dataset: _Dataset, roster: _Roster, root: RootOption = None) -> None:
    """Answer a coordinator's requests at the Prefect server of PREFECT_API_URL, until Ctrl-C."""
    use_root(root)
    current_layout()
    require_readable(roster, "--roster")
    if not os.environ.get("PREFECT_API_URL"):
        raise InputError(
            "PREFECT_API_URL is not set; name the coordinator's Prefect server (and PREFECT_API_AUTH_STRING)"
        )
    from tasks.runtime.engine import keep_quiet
    from tasks.runtime.settings import use_own_temporary_folder

    keep_quiet()
    layout = current_layout()
    use_own_temporary_folder(layout)
    # Its log is its own: it is sent to nobody's server.
    os.environ |= {"PREFECT_LOGGING_TO_API_ENABLED": "false", "PREFECT_HOME": str(layout.prefect)}
    from deployments.federation import serve_party

    serve_party(dataset, roster)


@party.command("return", epilog="Example: unitball party return clinic 3f9a1c2b…")
@answered
def give_back(
    dataset: _Dataset,
    run: Annotated[str, typer.Argument(help="A run that was reserved for and never committed (unitball budget).")],
) -> Answer:
    """Take back what was reserved for a run whose coordinator does not come back; refused once it was committed."""
    from tasks.accounts.budget import open_ledger
    from tasks.datasets.registration import find_dataset

    open_ledger().give_back(find_dataset(dataset).account, run, why="by its owner")
    return Answer({"returned": run}, [f"returned what was reserved for run {run}"])


@app.command(epilog="Example: unitball federate --roster docs/examples/roster.yaml --dataset study --epsilon 1")
@options_of(TrainingConfig, without=[*_NOT_HERE, *_NOR, *_NOR_YET], named={"parameters": "--param"})
@answered
def federate(
    config: TrainingConfig,
    roster: _Roster,
    patience: Annotated[float, typer.Option(min=1, help="Seconds that a party has for an answer.")] = 120.0,
    measure_on: Annotated[
        str | None,
        typer.Option(help="Public data set here to measure the model on; no party holds out rows then."),
    ] = None,
) -> Answer:
    """Train one model over separate parties: all reserve, all commit, no row leaves its party; log the model."""
    from tasks.runtime.engine import keep_quiet, running_servers, use_own_server

    os.environ.setdefault("PREFECT_API_URL", running_servers(current_root()).get("prefect", ""))
    if not os.environ["PREFECT_API_URL"]:
        raise InputError("no Prefect server: start `unitball serve` under this root, or name one with PREFECT_API_URL")
    os.environ.setdefault("PREFECT_HOME", str(current_layout().prefect))
    keep_quiet()
    use_own_server(current_root())
    from deployments.federation import posting
    from flows.party import read_roster
    from tasks.federation.coordinator import federate as run

    parties = read_roster(require_readable(roster, "--roster"))
    result = run(config, parties, posting(patience), measured_on=measure_on, progress=partial(typer.echo, err=True))
    paid = (
        f"model {result.model.key[:12]} of {', '.join(result.took_part)}; each party's account paid for epsilon "
        f"{result.epsilon:g} at delta {result.delta:g}, for a {result.result.identity.dataset.unit}"
    )
    return Answer(result.model_dump(mode="json"), [paid, *shown_results([result.result], elsewhere=True)])
