"""Run a command that ends, with all it has started, when whoever started it is gone.

Run by file name with the command behind it; standard input is the leash: a pipe that ends with the parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

MARK = "UNITBALL_LEASH"
"""Environment variable by which what the command has started is found again, in whatever session it runs."""

GRACE_SECONDS = 20.0


def main() -> int:
    """Run the command; at the end of standard input, or at SIGTERM, end it and everything that bears its mark."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    let_go = threading.Event()

    def hold() -> None:
        while os.read(0, 1024):
            pass
        let_go.set()

    signal.signal(signal.SIGTERM, lambda *_: let_go.set())
    # Ctrl-C reaches the whole terminal; the order of stopping is the parent's to choose.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=hold, daemon=True).start()
    while child.poll() is None and not let_go.wait(0.1):
        pass
    if not let_go.is_set():
        # It ended by itself. What it has started may finish: a run does not need its worker.
        return child.returncode if child.returncode >= 0 else 128 - child.returncode
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_SECONDS)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in marked(os.environ.get(MARK, "")):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        if not _wait_for_none():
            break
    return 0


def _wait_for_none() -> bool:
    """Wait a few seconds; return whether marked processes are left."""
    waiting = threading.Event()
    for _ in range(50):
        if not any(marked(os.environ.get(MARK, ""))):
            return False
        waiting.wait(0.1)
    return True


def marked(mark: str) -> Iterator[int]:
    """Yield the processes of this user, other than this one, that bear a mark."""
    entry = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark and int(folder.name) != os.getpid() and entry in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


if __name__ == "__main__":
    raise SystemExit(main())
