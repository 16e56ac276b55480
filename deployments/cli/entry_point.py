"""The entry point of the command line: the application, its commands, exit codes."""

from __future__ import annotations

import errno
import gc
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from deployments.cli.given import Application
from deployments.cli.stopping import watching

app = Application(
    name="unitball",
    help="Train and evaluate models with differential privacy, on one budget per population.",
    epilog='Terms (epsilon, account, release, night, …): page "Glossary" of the documentation',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"unitball {importlib.metadata.version('unitball')}")
        raise typer.Exit


@app.callback()
def _whole(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


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
        "Train, charge, evaluate and log one model.",
    ),
    _Command(
        "compare",
        "deployments.cli.training",
        "Train several algorithms on one data set and compare them.",
    ),
    _Command(
        "frontier",
        "deployments.cli.experiments",
        "Plot accuracy against epsilon for several algorithms (public data only).",
    ),
    _Command(
        "sweep",
        "deployments.cli.experiments",
        "Run a grid of parameters in parallel; record failures.",
    ),
    _Command(
        "reproduce",
        "deployments.cli.experiments",
        "Reproduce a paper's figure or table, next to the paper's claim.",
    ),
    _Command(
        "report",
        "deployments.cli.experiments",
        "Write an HTML page per experiment from its stored results.",
    ),
    _Command(
        "results",
        "deployments.cli.results",
        "Query results in SQL (DuckDB); a query can read only these views.",
    ),
    _Command("ingest", "deployments.cli.data", "Import, validate and register rows under an account."),
    _Command(
        "describe",
        "deployments.cli.describing",
        "Release histograms, or tables of pairs of columns, with margins.",
    ),
    _Command(
        "reduce", "deployments.cli.column_statistics", "Release principal components; reuse them with train --basis."
    ),
    _Command(
        "synthesise",
        "deployments.cli.column_statistics",
        "Draw synthetic rows of a table from released counts of its columns and of pairs of columns.",
    ),
    _Command("datasets", "deployments.cli.data", "List the data sets, or query a public one in SQL."),
    _Command("schema", "deployments.cli.data", "Draft a table's schema, or check it against the rows.", group=True),
    _Command(
        "predict",
        "deployments.cli.results",
        "Predict each row of a file; rows outside the schema get a reason.",
    ),
    _Command("model", "deployments.cli.results", "Show, compare, promote and export models.", group=True),
    _Command(
        "budget",
        "deployments.cli.services",
        "Show the remaining budget, the cap and all charges.",
    ),
    _Command(
        "algorithms",
        "deployments.cli.results",
        "List algorithms with trust models, proofs and papers' claims.",
    ),
    _Command(
        "audit",
        "deployments.cli.experiments",
        "Measure a lower bound on epsilon by running the code many times.",
    ),
    _Command(
        "export",
        "deployments.cli.services",
        "Write a run's releases, charges and proof as one signed archive.",
    ),
    _Command(
        "verify",
        "deployments.cli.services",
        "Check an exported archive or a data set of synthetic rows; exit code 1 if a check fails.",
    ),
    _Command(
        "schedule",
        "deployments.cli.schedules",
        "Create, change, pause or remove a schedule of a data set.",
    ),
    _Command(
        "schedules",
        "deployments.cli.schedules",
        "List all schedules with next dates and projected cost.",
    ),
    _Command(
        "serve",
        "deployments.cli.services",
        "Serve Prefect, MLflow and the flows until Ctrl-C.",
    ),
    _Command("secret", "deployments.cli.services", "Manage the secrets of the Prefect and MLflow servers.", group=True),
    _Command(
        "doctor",
        "deployments.cli.services",
        "Check the root: keys, ledger, releases, disk; exit 0 if healthy.",
    ),
    _Command("ledger", "deployments.cli.services", "Accept a ledger that was restored from a back-up.", group=True),
    _Command(
        "federate",
        "deployments.cli.parties",
        "Train one model, or describe rows, over separate parties (two-phase charging).",
    ),
    _Command(
        "party",
        "deployments.cli.parties",
        "Run one party of a federation, with its own root and account.",
        group=True,
    ),
    _Command("dask", "deployments.cli.services", "Start a Dask scheduler or worker (extra: dask).", group=True),
)


def group_of(name: str) -> typer.Typer:
    """Return one of the groups of commands, made and added to the application."""
    group = Application(help=next(one.help for one in _COMMANDS if one.name == name), no_args_is_help=True)
    app.add_typer(group, name=name)
    return group


def import_all() -> None:
    """Import every module of the command line: each adds its commands to the application."""
    for one in _COMMANDS:
        importlib.import_module(one.module)


def command_group(arguments: list[str]) -> TyperGroup:
    """Return the application as the group of all commands; imported is the one that the arguments begin with."""
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    for one in _COMMANDS:
        if one.name == named:
            importlib.import_module(one.module)
    group = get_group(app)
    # The others stand in by name and help alone.
    group.commands = {
        command.name: group.commands.get(command.name)
        or (TyperGroup if command.group else TyperCommand)(name=command.name, help=command.help)
        for command in _COMMANDS
    }
    return group


# What somebody has pasted by mistake is not printed whole; paths are.
_LONGEST, _LONGEST_LINE = 300, 1500

DONE, FAILED, BAD_INPUT, REFUSED, UNAGREED, INTERRUPTED = 0, 1, 2, 3, 4, 130

# Typer brings Click along under a private name; what is public of it is enough to name its error for bad usage.
_UsageError: Any = typer.BadParameter.__base__


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the line for an exception.

    2 for bad input, 3 refused for privacy, 4 where a price was shown and not agreed to, 130 for Ctrl-C, 1 otherwise.

    Nothing of the program is imported before something has gone wrong.
    """
    if isinstance(error, _UsageError):
        if not error.format_message():
            # No argument at all: the help was printed.
            return BAD_INPUT, ""
        where = f" (see: {error.ctx.command_path} --help)" if error.ctx else ""
        return BAD_INPUT, f"{printable(error.format_message().replace('Value error, ', ''))}{where}"
    if isinstance(error, (typer.Abort, KeyboardInterrupt)):
        return INTERRUPTED, "interrupted"
    if isinstance(error, ImportError):
        # What follows could not be imported either.
        return BAD_INPUT, printable(str(error))
    from pydantic import ValidationError

    from dpalgos.parameters import ParameterError
    from dpalgos.secure.primitives import SecureAggregationError
    from storage.errors import InputError, PriceError, RefusedError, SecretError, StorageError
    from tasks.host.engine import EngineError

    # In order: the first class that fits decides. A secret that is missing or that others can read is for its owner
    # to put right, like any bad input.
    codes: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
        ((PriceError,), UNAGREED),
        ((RefusedError,), REFUSED),
        ((InputError, ParameterError, ValidationError, SecretError), BAD_INPUT),
        ((StorageError, EngineError, SecureAggregationError), FAILED),
    )
    for classes, code in codes:
        if isinstance(error, classes):
            return code, _one_line(error)
    if (refusal := _prefects_refusal(error) or _prefects_failure(error)) is not None:
        return FAILED, refusal
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.ENOSPC, errno.EDQUOT):
        place = f"{error.filename} " if error.filename else ""
        ways = "make it writable, or choose another root with --root or another file"
        if error.errno != errno.EROFS:
            ways = "free some space there"
        return FAILED, printable(f"cannot write {place}({error.strerror}): {ways}")
    if isinstance(error, PermissionError) and error.filename:
        return FAILED, printable(
            f"cannot open {error.filename}: {error.strerror}. All files of a root belong to the user who runs it; "
            "give back what another user has made there (as sudo does): chown -R USER ROOT"
        )
    return FAILED, f"{type(error).__name__}: {_one_line(error)} (UNITBALL_DEBUG=1 shows where)"


# What Prefect's client, httpx, calls a server that cannot be reached.
_UNREACHED = ("ConnectError", "ConnectTimeout", "UnsupportedProtocol", "InvalidURL")


def _prefects_refusal(error: BaseException) -> str | None:
    """Return what there is to say where a Prefect server that the user named refuses or does not answer."""
    address = os.environ.get("PREFECT_API_URL")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if address and status in (401, 403):
        answer = f"refuses ({status})"
    elif address and ("Failed to reach API at" in str(error) or type(error).__name__ in _UNREACHED):
        answer = "does not answer"
    else:
        return None
    return printable(
        f"Prefect at {address} {answer}: check PREFECT_API_URL and PREFECT_API_AUTH_STRING, or unset PREFECT_API_URL "
        "for a server of this command's own"
    )


def _prefects_failure(error: BaseException) -> str | None:
    """Return what there is to say where a Prefect server fails, as it does on a full disk; what was charged stands."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if type(error).__name__ != "PrefectHTTPStatusError" or status is None or status < 500:
        return None
    from tasks.host.engine import is_full
    from tasks.runtime import standing
    from tasks.runtime.settings import current_root

    said = f"Prefect's server failed ({status})"
    if is_full(root := current_root()):
        said += f": the disk that holds {root} is full; {standing.stands()}. Free some space there and run again"
    else:
        said += f"; {standing.stands()}. Its log says why: {os.environ.get('PREFECT_API_URL') or root}"
    return printable(said)


def _one_line(error: BaseException) -> str:
    from pydantic import ValidationError

    from tasks.planning.configuration import faults

    text = "; ".join(faults(error)) if isinstance(error, ValidationError) else str(error)
    return printable(text) or type(error).__name__


def printable(text: str) -> str:
    """Return text on one line of bounded length, control characters escaped: the faulty character may be invisible."""
    words = (word if len(word) <= _LONGEST else word[:_LONGEST] + "…" for word in text.split())
    line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in " ".join(words))
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…"


def _open_closed_streams() -> None:
    """Let what was started without a standard stream have one that leads nowhere.

    The next file opened would take its number, be it a database, and what is printed would be written into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is the one that is missing.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - for as long as the process lives


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave: 0 done, 2 bad arguments or input, 3 refused for privacy, 4 price, 1 otherwise.

    Stopped by Ctrl-C it leaves with 130, by SIGTERM with 143. Every error is one line on stderr; ``UNITBALL_DEBUG=1``
    shows its traceback.
    """
    words = list(arguments) if arguments is not None else sys.argv[1:]
    code: object = DONE
    _open_closed_streams()
    # Modules are what is made first, and stay: looking for garbage among them takes a tenth of a command's start.
    gc.set_threshold(50_000)
    # A caller that passes its own arguments goes on afterwards.
    with watching(to_the_end=arguments is None) as watch:
        try:
            # First, because it says when a file of the user's own hides one of our packages.
            importlib.import_module("unitball")
            from tasks.runtime import standing

            watch.saying = standing.stop
            if watch.stopped:
                raise KeyboardInterrupt
            code = command_group(words)(args=words, prog_name="unitball", standalone_mode=False)
            # The output so far is complete, also if an error follows while the process ends.
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever reads has seen enough; Python must not try to write the rest when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (Exception, KeyboardInterrupt) as error:
            if os.environ.get("UNITBALL_DEBUG"):
                raise
            # Libraries turn Ctrl-C into their own exceptions.
            if not watch.stopped:
                code, line = explain(error)
                if code == INTERRUPTED:
                    from tasks.runtime import standing

                    line = f"{line}; {standing.stands()}"
                if line:
                    sys.stderr.write(f"unitball: {line}\n")
        except BaseException:
            if not watch.stopped:
                raise
        if watch.stopped:
            code = watch.code()
    sys.exit(code if isinstance(code, int) else DONE)
