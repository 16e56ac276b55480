"""What an exception becomes: an exit code and one line for stderr."""

from __future__ import annotations

import os
from typing import Any

import typer

# What somebody has pasted by mistake is not printed whole; paths are.
_LONGEST, _LONGEST_LINE = 300, 1500

DONE, FAILED, BAD_INPUT, REFUSED, INTERRUPTED = 0, 1, 2, 3, 130

# Typer brings Click along under a private name; what is public of it is enough to name its error for bad usage.
_UsageError: Any = typer.BadParameter.__base__


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the line for an exception: 2 bad input, 3 refused for privacy, 130 Ctrl-C, 1 otherwise.

    Nothing of the program is imported before something has gone wrong.
    """
    if isinstance(error, _UsageError):
        return BAD_INPUT, _usage(error)
    if isinstance(error, (typer.Abort, KeyboardInterrupt)):
        return INTERRUPTED, "interrupted"
    if isinstance(error, ImportError):
        # What follows could not be imported either.
        return BAD_INPUT, printable(str(error))
    from pydantic import ValidationError

    from dpalgos.errors import ParameterError
    from dpalgos.secure.errors import SecureAggregationError
    from storage.errors import InputError, RefusedError, SecretError, StorageError
    from tasks.runtime.engine import EngineError

    # In order: the first class that fits decides. A secret that is missing or that others can read is for its owner
    # to put right, like any bad input.
    codes: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
        ((RefusedError,), REFUSED),
        ((InputError, ParameterError, ValidationError, SecretError), BAD_INPUT),
        ((StorageError, EngineError, SecureAggregationError), FAILED),
    )
    for classes, code in codes:
        if isinstance(error, classes):
            return code, _one_line(error)
    if (refusal := _prefects_refusal(error)) is not None:
        return FAILED, refusal
    return FAILED, f"{type(error).__name__}: {_one_line(error)} (UNITBALL_DEBUG=1 shows where)"


def _prefects_refusal(error: BaseException) -> str | None:
    """Return what there is to say where a Prefect server that the user named refuses or does not answer."""
    address = os.environ.get("PREFECT_API_URL")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if address and status in (401, 403):
        said = f"refuses ({status})"
    elif address and "Failed to reach API at" in str(error):
        said = "does not answer"
    else:
        return None
    return printable(
        f"Prefect at {address} {said}: check PREFECT_API_URL and PREFECT_API_AUTH_STRING, or unset PREFECT_API_URL for "
        "a server of this command's own"
    )


def _one_line(error: BaseException) -> str:
    from pydantic import ValidationError

    from deployments.cli.options import faults

    text = "; ".join(faults(error)) if isinstance(error, ValidationError) else str(error)
    return printable(text) or type(error).__name__


def printable(text: str) -> str:
    """Return text on one line of bounded length, control characters escaped: the fault may be one nobody can see."""
    words = (word if len(word) <= _LONGEST else word[:_LONGEST] + "…" for word in text.split())
    line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in " ".join(words))
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…"


def _usage(error: Any) -> str:
    where = f" (see: {error.ctx.command_path} --help)" if error.ctx else ""
    return f"{printable(error.format_message().replace('Value error, ', ''))}{where}"
