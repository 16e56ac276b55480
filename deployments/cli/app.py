"""The application: its commands, and what every error becomes (one line on stderr, an exit code, no traceback)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from pydantic import ValidationError

from dpalgos.errors import ParameterError
from dpalgos.secure.errors import SecureAggregationError
from storage.errors import InputError, RefusedError, SecretError, StorageError
from tasks.runtime.engine import EngineError

__all__ = ["app", "main"]

DONE, FAILED, BAD_INPUT, REFUSED = 0, 1, 2, 3

# Typer brings Click along under a private name; what is public of it is enough to name its error for bad usage.
_UsageError: Any = typer.BadParameter.__base__

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


def _say(words: str) -> None:
    sys.stderr.write(f"unitball: {words}\n")


def _usage(error: Any) -> str:
    """Return what is wrong with the arguments; for a bare command, its help."""
    where = f" (see: {error.ctx.command_path} --help)" if error.ctx else ""
    return f"{' '.join(error.format_message().split())}{where}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave: 0 done, 2 bad arguments or input, 3 refused for privacy, 1 otherwise."""
    # The modules add their commands to the application when they are imported.
    from deployments.cli import accounts, catalogue, data, experiments, results, training

    del accounts, catalogue, data, experiments, results, training
    given = list(arguments) if arguments is not None else None
    if os.environ.get("UNITBALL_DEBUG"):
        app(args=given, prog_name="unitball", standalone_mode=False)
        sys.exit(DONE)
    try:
        code = app(args=given, prog_name="unitball", standalone_mode=False)
    except _UsageError as error:
        _say(_usage(error))
        sys.exit(BAD_INPUT)
    except (typer.Abort, KeyboardInterrupt):
        _say("stopped")
        sys.exit(FAILED)
    except RefusedError as error:
        _say(_one_line(error))
        sys.exit(REFUSED)
    # A secret that is missing or that others can read is for its owner to put right, like any bad input.
    except (InputError, ParameterError, ValidationError, SecretError) as error:
        _say(_one_line(error))
        sys.exit(BAD_INPUT)
    except BrokenPipeError:
        # Whoever reads has seen enough; Python must not try to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(DONE)
    except (StorageError, EngineError, SecureAggregationError) as error:
        _say(_one_line(error))
        sys.exit(FAILED)
    except Exception as error:
        _say(f"{type(error).__name__}: {_one_line(error)} (UNITBALL_DEBUG=1 shows where)")
        sys.exit(FAILED)
    sys.exit(code if isinstance(code, int) else DONE)
