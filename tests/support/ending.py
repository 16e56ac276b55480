"""A guard that outlives a test session, and ends whatever the session started.

Processes are known by a variable of their environment, which whatever they start inherits. Run by file name, the guard
waits for the end of its standard input: a pipe that ends with the session's process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "TEST_SESSION_OF"
_PATIENCE_SECONDS = 60.0


def guard_session(grace_seconds: float = 10.0) -> subprocess.Popen[bytes]:
    """Mark what this process starts from now on, and start its guard."""
    token = secrets.token_hex(16)
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, token, str(grace_seconds)],
        stdin=subprocess.PIPE,
        # Neither Ctrl-C in the terminal nor another session's guard is meant for it.
        start_new_session=True,
        env={},
    )
    os.environ[VARIABLE] = token
    return guard


def _left(token: str) -> list[int]:
    mark, found = f"{VARIABLE}={token}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def main() -> None:
    """Wait for the end of the session; end what is left of it: in order if that is quick, and else at once."""
    while os.read(0, 1024):
        pass
    begun, grace = time.monotonic(), float(sys.argv[2])
    asked: set[int] = set()
    while (left := _left(sys.argv[1])) and time.monotonic() - begun < _PATIENCE_SECONDS:
        for pid in left:
            late = time.monotonic() - begun > grace
            if late or pid not in asked:
                asked.add(pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
