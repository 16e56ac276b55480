"""What the commands share: the root option, a console, machine output."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from storage.errors import FormatVersionError, InputError, StorageError
from tasks.runtime.settings import ROOT_VARIABLE, current_layout

__all__ = ["JsonFlag", "RootOption", "console", "print_json", "use_root"]

RootOption = Annotated[
    Path | None,
    typer.Option(
        "--root", envvar=ROOT_VARIABLE, help="Folder of all state; two roots share nothing.", show_default=False
    ),
]
_PIPE_WIDTH = 132
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


def use_root(root: Path | None) -> None:
    """Make a root the one of this process; everything opened later lives under it.

    Raises
    ------
    InputError
        If it cannot be written: the root is an argument, and the way out is another one.
    """
    if root is not None:
        os.environ[ROOT_VARIABLE] = str(root.expanduser().resolve())
    try:
        current_layout()
    except FormatVersionError:
        raise
    except StorageError as error:
        raise InputError(str(error)) from error


def console() -> Console:
    """Return the console for tables; into a file or a pipe, lines are as long as a table needs."""
    out = Console()
    return out if out.is_terminal else Console(width=max(out.width, _PIPE_WIDTH))


def print_json(value: Any) -> None:
    """Print one JSON object; what is not a finite number is null, which every reader of JSON understands."""
    sys.stdout.write(json.dumps(_finite(value), indent=2, default=str, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
