"""Processes that end with this one, however that happens, their output in a file."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from storage.atomic import writing
from tasks.runtime import leash

_LOG_LIMIT = 1_000_000


class LeashedProcess:
    """A command that ends, with its process group, when this process does.

    Parameters
    ----------
    command : sequence of str
    log : Path
        Where its output goes, behind what is there; begun anew beyond a megabyte.
    environment : mapping of str to str
        The whole of it.
    pass_fds : tuple of int
        Open files that the command gets.

    Raises
    ------
    storage.errors.StorageError
        If the log cannot be written.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], pass_fds: tuple[int, ...] = ()
    ) -> None:
        self.log = log
        with writing(log), os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
            if output.tell() > _LOG_LIMIT:
                output.truncate(0)
            self._logged_from = output.tell()
            self._process = subprocess.Popen(
                # Isolated and without site packages: it needs neither, and starts in a few milliseconds.
                [sys.executable, "-I", "-S", leash.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=pass_fds,
                # Ctrl-C reaches the whole terminal; the order of stopping is this process's to choose.
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """Return the command's exit code, or None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float | None = None) -> int:
        """Wait for the command to end by itself; return its exit code.

        Raises
        ------
        subprocess.TimeoutExpired
            If it takes longer.
        """
        return self._process.wait(seconds)

    def logged(self) -> list[str]:
        """Return the lines that it has written and that are not empty."""
        with self.log.open("rb") as file:
            file.seek(self._logged_from)
            return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]

    def trim_log(self) -> None:
        """Put a log aside that has grown beyond the limit, the one that was aside before it going.

        It is copied and cut, not renamed: the command has it open for appending.
        """
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > _LOG_LIMIT:
                shutil.copyfile(self.log, self.log.with_name(f"{self.log.name}.1"))
                os.truncate(self.log, 0)
                self._logged_from = 0

    def stop(self) -> None:
        """End it, as the end of this process would: SIGTERM, and after a while SIGKILL to its group."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(leash.GRACE_SECONDS + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
