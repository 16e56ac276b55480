"""The entry point of the command line: find the commands, run one, leave with its exit code."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

from deployments import cli
from deployments.cli.app import app
from deployments.cli.exits import DONE, explain

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave: 0 done, 2 bad arguments or input, 3 refused for privacy, 130 Ctrl-C, 1 otherwise.

    Every error is one line on stderr; ``UNITBALL_DEBUG=1`` shows its traceback.
    """
    given = list(arguments) if arguments is not None else None
    code: object = DONE
    try:
        # First, because it says when a file of the user's own hides one of our packages.
        importlib.import_module("unitball")
        # Modules beside this one add their commands to the application when they are imported.
        for module in pkgutil.iter_modules(cli.__path__, f"{cli.__name__}."):
            importlib.import_module(module.name)
        code = app(args=given, prog_name="unitball", standalone_mode=False)
    except BrokenPipeError:
        # Whoever reads has seen enough; Python must not try to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("UNITBALL_DEBUG"):
            raise
        code, line = explain(error)
        sys.stderr.write(f"unitball: {line}\n")
    sys.exit(code if isinstance(code, int) else DONE)
