"""The application: its commands, and what every error becomes (one line on stderr, an exit code, no traceback)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
import typer
from pydantic import ValidationError

from dpalgos.errors import ParameterError
from storage.errors import InputError, RefusedError

__all__ = ["app", "main"]

DONE, FAILED, BAD_INPUT, REFUSED = 0, 1, 2, 3

app = typer.Typer(
    name="unitball",
    help="Differentially private training over several parties, with proofs, budgets and audits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _one_line(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "configuration"
        return f"{field}: {first['msg'].removeprefix('Value error, ')} (got {first['input']!r})"
    return " ".join(str(error).split()) or type(error).__name__


def _say(error: BaseException) -> None:
    sys.stderr.write(f"unitball: {_one_line(error)}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave: 0 done, 2 bad arguments or input, 3 refused for privacy, 1 otherwise."""
    # The modules add their commands to the application when they are imported.
    from deployments.cli import accounts, catalogue, data, training

    del accounts, catalogue, data, training
    if os.environ.get("UNITBALL_DEBUG"):
        app(args=list(arguments) if arguments is not None else None, standalone_mode=False)
        sys.exit(DONE)
    try:
        code = app(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except click.UsageError as error:
        context = f" (see: {error.ctx.command_path} --help)" if error.ctx else ""
        sys.stderr.write(f"unitball: {error.format_message()}{context}\n")
        sys.exit(BAD_INPUT)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.stderr.write("unitball: stopped\n")
        sys.exit(FAILED)
    except RefusedError as error:
        _say(error)
        sys.exit(REFUSED)
    except (InputError, ParameterError, ValidationError) as error:
        _say(error)
        sys.exit(BAD_INPUT)
    except BrokenPipeError:
        sys.exit(DONE)
    except Exception as error:
        _say(error)
        sys.stderr.write("unitball: run again with UNITBALL_DEBUG=1 to see where\n")
        sys.exit(FAILED)
    sys.exit(code if isinstance(code, int) else DONE)
