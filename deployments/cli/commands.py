"""The commands, each with the module that has it: only the one that is asked for is imported."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from deployments.cli.app import app


class _Command(NamedTuple):
    """A command, or a group of commands, and the line that the list of commands shows."""

    name: str
    module: str
    help: str
    group: bool = False


_COMMANDS = (
    _Command(
        "train",
        "deployments.cli.training",
        "Train one model over the parties' rows, charge what it costs, evaluate and log it.",
    ),
    _Command(
        "compare",
        "deployments.cli.training",
        "Train several algorithms on one data set at one budget and show them side by side.",
    ),
    _Command(
        "frontier",
        "deployments.cli.experiments",
        "Draw accuracy against epsilon: the recommended system, the papers' and training without privacy. Public sets.",
    ),
    _Command(
        "sweep",
        "deployments.cli.experiments",
        "Run a grid over any parameters: side by side, each point once, failures recorded.",
    ),
    _Command(
        "reproduce",
        "deployments.cli.experiments",
        "Redraw a paper's figure or table from honest runs, beside what the paper claims.",
    ),
    _Command(
        "report",
        "deployments.cli.experiments",
        "Write one self-contained HTML page an experiment, from what was stored when it ran.",
    ),
    _Command(
        "results",
        "deployments.cli.results",
        "Ask the results something in SQL (DuckDB); the query sees these views and no file.",
    ),
    _Command("ingest", "deployments.cli.data", "Bring rows in: validated, stored, registered under an account."),
    _Command("datasets", "deployments.cli.data", "List the data sets, or ask a public one something in SQL."),
    _Command("schema", "deployments.cli.schemas", "Draft a table's schema, and check it against the rows.", group=True),
    _Command(
        "predict",
        "deployments.cli.predictions",
        "Predict each row of a file; rows that the schema refuses get a reason instead of a prediction.",
    ),
    _Command("model", "deployments.cli.models", "Registered models.", group=True),
    _Command(
        "budget",
        "deployments.cli.accounts",
        "Show the cap, which is what is guaranteed, what was charged of it and what is left, per party, or of all.",
    ),
    _Command(
        "algorithms",
        "deployments.cli.catalogue",
        "List the algorithms: name, kind, trust, what is proved, what is claimed, source.",
    ),
    _Command(
        "audit",
        "deployments.cli.audit",
        "Bound epsilon from below: the code that trains, run many times on synthetic rows that differ in one.",
    ),
    _Command(
        "export",
        "deployments.cli.exports",
        "Write a run's releases, charges, proof, audit verdict and package versions as one signed archive.",
    ),
    _Command(
        "verify",
        "deployments.cli.exports",
        "Check an export: digests, identities, guarantees, prices, epsilon; exit code 1 where something fails.",
    ),
    _Command(
        "schedule",
        "deployments.cli.schedules",
        "Set when a data set is trained on without being asked, and how; `unitball serve` applies it when it starts.",
    ),
    _Command(
        "schedules",
        "deployments.cli.schedules",
        "List which data sets are trained on without being asked, when, and how.",
    ),
    _Command(
        "serve",
        "deployments.cli.services",
        "Serve Prefect, MLflow and the deployed flows on this machine until Ctrl-C.",
    ),
    _Command("secret", "deployments.cli.services", "The secret of a root's Prefect and MLflow servers.", group=True),
    _Command(
        "doctor",
        "deployments.cli.doctor",
        "Check permissions, keys, ledger, marks, releases, data sets, left-overs, formats and disk; 0 if all is well.",
    ),
    _Command("ledger", "deployments.cli.ledger", "Restore a root's privacy ledger from a back-up.", group=True),
    _Command(
        "federate",
        "deployments.cli.parties",
        "Train one model over parties of their own: all reserve, all commit, and no row leaves its party; log it.",
    ),
    _Command(
        "party",
        "deployments.cli.parties",
        "A party of its own: its rows, user, root, secrets and account are nobody else's.",
        group=True,
    ),
    _Command(
        "dask", "deployments.cli.dask", "Machines for sweeps and for the tasks of a run (extra: dask).", group=True
    ),
)


def import_all() -> None:
    """Import every module of the command line: each adds its commands to the application."""
    for one in _COMMANDS:
        importlib.import_module(one.module)


def command_group(arguments: list[str]) -> TyperGroup:
    """Return the application as the group of all commands; imported is the one that the arguments begin with."""
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    for one in _COMMANDS:
        if one.name == asked:
            importlib.import_module(one.module)
    group = get_group(app)
    group.commands = {one.name: group.commands.get(one.name) or _stand_in(one) for one in _COMMANDS}
    return group


def _stand_in(one: _Command) -> TyperCommand | TyperGroup:
    return (TyperGroup if one.group else TyperCommand)(name=one.name, help=one.help)
