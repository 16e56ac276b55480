"""``unitball party`` and ``federate``: separate parties, and the runs over them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deployments.cli.common import (
    Answer,
    RootOption,
    YesOption,
    answered,
    options_of,
    require_readable,
    use_root,
)
from deployments.cli.data import ingest
from deployments.cli.entry_point import app, group_of
from deployments.cli.given import given_options
from deployments.cli.results_table import shown_results
from deployments.cli.stopping import leave_signals
from dpalgos.parameters import ParameterError
from storage.atomic import write_bytes
from storage.errors import InputError, PriceError
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.settings import current_layout, current_root, prefect_address

if TYPE_CHECKING:
    from tasks.federation.coordinator import Transport
    from tasks.federation.messages import Counted, Roster


party = group_of("party")
party.command(epilog="Example: unitball party ingest clinic --format csv --party berlin=rows.csv --schema clinic.yaml")(
    ingest
)


_Dataset = Annotated[str, typer.Argument(help="This party's data set, ingested with one --party NAME=FILE.")]
_Roster = Annotated[
    Path, typer.Option(help="YAML roster, parties: {NAME: FINGERPRINT}. Get each fingerprint from its party.")
]
_NOT_HERE = ("seed", "public_dataset", "partition", "partition_seed", "sizes", "rows_per_party")
_NOR = ("parties", "deadline", "deadline_miss", "tune", "tuned_on", "by", "counts_of", "basis")
_NOR_YET = ("horizon", "participations", "separation", "expected_rows", "bands")


@party.command(epilog="Example: unitball party show clinic")
@answered
def show(dataset: _Dataset) -> Answer:
    """Print this party's line of the roster: its name and the fingerprint of its key."""
    from storage.secrets import root_secret
    from tasks.federation.messages import fingerprint, identity_key
    from tasks.federation.party import own_name

    name, print_of = own_name(dataset), fingerprint(identity_key(root_secret(current_layout())).public_key())
    return Answer({"party": name, "fingerprint": print_of}, [f"{name}: {print_of}"])


@party.command(epilog="Example: unitball party serve clinic --roster roster.yaml")
def serve(dataset: _Dataset, roster: _Roster, root: RootOption = None) -> None:
    """Answer a coordinator's requests at the Prefect server of PREFECT_API_URL, until Ctrl-C."""
    use_root(root)
    current_layout()
    require_readable(roster, "--roster")
    if not prefect_address():
        raise InputError(
            "PREFECT_API_URL is not set; name the coordinator's Prefect server (and PREFECT_API_AUTH_STRING)"
        )
    from tasks.host.engine import keep_quiet
    from tasks.runtime.settings import use_own_temporary_folder

    keep_quiet()
    layout = current_layout()
    use_own_temporary_folder(layout)
    # Its log is its own: it is sent to no server.
    os.environ |= {"PREFECT_LOGGING_TO_API_ENABLED": "false", "PREFECT_HOME": str(layout.prefect)}
    from deployments.federation import serve_party

    # SIGTERM is how it ends; of a run that is under way the engine says that it has crashed.
    leave_signals()
    serve_party(dataset, roster)


@party.command("return", epilog="Example: unitball party return clinic 3f9a1c2b…")
@answered
def give_back(
    dataset: _Dataset,
    run: Annotated[str, typer.Argument(help="Reserved run that was never committed (see unitball budget).")],
) -> Answer:
    """Release a stale reservation of a run that was never committed."""
    from tasks.accounts.ledger import open_ledger
    from tasks.datasets.registration import find_dataset

    open_ledger().give_back(find_dataset(dataset).account, run, why="by its owner")
    return Answer({"returned": run}, [f"returned what was reserved for run {run}"])


_AS_A_STUDY = {
    "dataset": "Any name for the study: that of the MLflow experiment and of the model. Default: digits.",
    "epsilon": "ε of the run, charged in full to each party's account. Default: 1, with --describe 0.2; the price is "
    "then printed, and --yes charges it.",
    "delta": "δ of the run, the same for all parties. Default: 1e-5, for any caps of the parties.",
    "trust": "Trust model: secagg or local. Default: secagg.",
    "dropouts": "secagg: parties that may drop out during the run. Default: 0.",
    "colluders": "secagg: parties that may collude with the coordinator. Default: the roster's floor, else a third of "
    "the parties, rounded up.",
}


@app.command(epilog="Example: unitball federate --roster docs/examples/roster.yaml --dataset study --epsilon 1")
@options_of(
    TrainingConfig,
    without=[*_NOT_HERE, *_NOR, *_NOR_YET],
    named={"parameters": "--param"},
    first=["dataset", "epsilon", "delta", "algorithm", "trust", "dropouts", "colluders"],
    as_in_train=True,
    described=_AS_A_STUDY,
)
@answered
def federate(
    config: TrainingConfig,
    roster: _Roster,
    patience: Annotated[float, typer.Option(min=1, help="Answer timeout of a party, in seconds.")] = 120.0,
    measure_on: Annotated[
        str | None,
        typer.Option(
            help="Public data set for the evaluation; parties then hold out no rows. Default: the parties' held-out "
            "rows."
        ),
    ] = None,
    describe: Annotated[
        bool, typer.Option("--describe", help="Count all columns instead of training, as `unitball describe` does.")
    ] = False,
    pairs: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="With --describe: count this pair of columns. Repeat for further pairs."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="With --describe: count each other column by this one's groups."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="With --describe: also write the figure (PNG).")] = None,
    yes: YesOption = False,
) -> Answer:
    """Train one model, or describe rows, over separate parties (two-phase charging)."""
    _require_fitting(describe=describe, plot=plot)
    if measure_on is not None and not config.evaluation:
        raise ParameterError("--measure-on and --no-evaluation are both given: omit one of them")
    from tasks.host.engine import keep_quiet
    from tasks.runtime.services import running_servers, use_own_server

    os.environ.setdefault("PREFECT_API_URL", running_servers(current_root()).get("prefect", ""))
    if not prefect_address():
        raise InputError("no Prefect server: start `unitball serve` under this root, or name one with PREFECT_API_URL")
    os.environ.setdefault("PREFECT_HOME", str(current_layout().prefect))
    keep_quiet()
    use_own_server(current_root())
    from deployments.federation import posting
    from flows.party import read_roster
    from tasks.datasets.registration import ensure_registered
    from tasks.federation.coordinator import federate as run
    from tasks.federation.messages import Counted

    parties = read_roster(require_readable(roster, "--roster"))
    ensure_registered(measure_on)
    config = _agreed_budget(config, yes=yes, description=describe)
    if describe:
        counted = Counted(pairs=tuple(pairs or ()), by=by)
        return _described(config, counted, parties, posting(patience), plot)
    result = run(config, parties, posting(patience), measured_on=measure_on, progress=partial(typer.echo, err=True))
    paid = (
        f"model {result.model.key[:12]} of {', '.join(result.took_part)}; each party's account paid for epsilon "
        f"{result.epsilon:g} at delta {result.delta:g}, for a {result.result.identity.dataset.unit}"
    )
    return Answer(result.model_dump(mode="json"), [paid, *shown_results([result.result], elsewhere=True)])


_DESCRIBING = frozenset(
    (
        *("--describe", "--pairs", "--by", "--plot", "--roster", "--patience", "--yes", "--root", "--json"),
        *("--dataset", "--epsilon", "--delta", "--trust", "--replicate"),
        *("--dropouts", "--colluders", "--consistent-survivors"),
    )
)


def _require_fitting(*, describe: bool, plot: Path | None) -> None:
    """Refuse options of a description next to those of training, and a figure's file that exists."""
    given = given_options()
    if describe and (strange := [option for option in given if option not in _DESCRIBING]):
        raise InputError(f"{', '.join(strange)} is for training, and --describe trains nothing; omit one of them")
    if not describe and (strange := [option for option in ("--pairs", "--by", "--plot") if option in given]):
        raise InputError(f"{', '.join(strange)} is for descriptions; add --describe, or omit it")
    if plot is not None and plot.exists():
        raise InputError(f"{plot} exists: give another file name, or remove it first")


def _described(
    config: TrainingConfig, counted: Counted, roster: Roster, transport: Transport, plot: Path | None
) -> Answer:
    """Describe the parties' rows, log the description, and return it."""
    from deployments.cli.describing import lines_of
    from deployments.cli.pair_tables import lines_of_pairs
    from tasks.experiments.description_figure import draw_description
    from tasks.experiments.pair_figure import draw_pairs
    from tasks.federation.coordinator import federate_counts
    from tasks.release.descriptions import Description
    from tasks.tracking.descriptions import record_description

    plan, found = federate_counts(config, counted, roster, transport, progress=partial(typer.echo, err=True))
    if isinstance(found, Description):
        lines, drawn = lines_of(found), partial(draw_description, found)
        record = partial(record_description, plan, found, draw_description)
    else:
        lines, drawn = lines_of_pairs(found), partial(draw_pairs, found)
        record = partial(record_description, plan, found, draw_pairs)
    if plot is not None:
        write_bytes(plot, drawn(), mode=0o644)
    return Answer(found.to_json(), lines, afterwards=record)


def _agreed_budget(config: TrainingConfig, *, yes: bool, description: bool) -> TrainingConfig:
    """Return the configuration of a run over separate parties, whose accounts are theirs, with the budget agreed to."""
    from tasks.release.prices import DESCRIPTION_EPSILON, RUN_EPSILON

    default = DESCRIPTION_EPSILON if description else RUN_EPSILON
    priced = config if config.epsilon is not None else config.model_copy(update={"epsilon": default})
    price = f"epsilon {priced.epsilon:g} at delta {priced.stated_delta:g} in each party's own account"
    if config.epsilon is None and not yes:
        raise PriceError(f"nothing was charged; the price is {price}; give --epsilon, or --yes")
    typer.echo(f"price: {price}", err=True)
    return priced
