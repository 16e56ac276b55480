"""The entry point of the command line: find the commands, run one, leave with its exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from deployments.cli.commands import command_group
from deployments.cli.exits import DONE, explain

# Seconds after which an interrupt that Python ignored is sent again: a finaliser has ended by then.
_A_MOMENT = 0.05


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave: 0 done, 2 bad arguments or input, 3 refused for privacy, 130 Ctrl-C, 1 otherwise.

    Every error is one line on stderr; ``UNITBALL_DEBUG=1`` shows its traceback.
    """
    given = list(arguments) if arguments is not None else sys.argv[1:]
    code: object = DONE
    with _noticing_interrupts() as interrupted:
        try:
            # First, because it says when a file of the user's own hides one of our packages.
            importlib.import_module("unitball")
            code = command_group(given)(args=given, prog_name="unitball", standalone_mode=False)
            if interrupted.is_set():
                raise KeyboardInterrupt
        except BrokenPipeError:
            # Whoever reads has seen enough; Python must not try to write the rest when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (Exception, KeyboardInterrupt) as error:
            if os.environ.get("UNITBALL_DEBUG"):
                raise
            # Libraries turn Ctrl-C into exceptions of their own.
            code, line = explain(KeyboardInterrupt() if interrupted.is_set() else error)
            sys.stderr.write(f"unitball: {line}\n")
    sys.exit(code if isinstance(code, int) else DONE)


@contextmanager
def _noticing_interrupts() -> Iterator[threading.Event]:
    """Remember that Ctrl-C was pressed, besides interrupting what runs.

    Python ignores what is raised while an object is finalised, and a whole run would go on after it: then the signal
    is sent once more, a moment later.
    """
    pressed = threading.Event()

    def interrupt(*_: object) -> None:
        pressed.set()
        raise KeyboardInterrupt

    def ignored(what: sys.UnraisableHookArgs) -> None:
        if isinstance(what.exc_value, KeyboardInterrupt):
            threading.Timer(_A_MOMENT, again).start()
        else:
            hook(what)

    def again() -> None:
        if signal.getsignal(signal.SIGINT) is interrupt:
            # To the main thread, which may wait for something.
            signal.pthread_kill(main, signal.SIGINT)

    main = threading.get_ident()
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield pressed
        return
    before, hook = signal.signal(signal.SIGINT, interrupt), sys.unraisablehook
    sys.unraisablehook = ignored
    try:
        yield pressed
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, before)
