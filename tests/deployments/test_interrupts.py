"""Ctrl-C: exit code 130 and one line, whatever library the signal meets."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.command_line import Outcome, start_command


def _interrupted(root: Path, seconds: float, *arguments: object) -> Outcome:
    process = start_command(root, *arguments)
    time.sleep(seconds)
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return Outcome(process.returncode, out, err)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_query_that_would_run_for_ever(tmp_path: Path) -> None:
    """DuckDB turns the signal into an error of its own."""
    endless = "SELECT count(*) FROM range(10000000000) a, range(10000) b"
    _interrupted(tmp_path / "root", 8, "datasets", "iris", "--sql", endless).refused(130, "interrupted")


def test_a_run_while_the_engine_starts(tmp_path: Path) -> None:
    _interrupted(tmp_path / "root", 5, "train", "--epsilon", 1).refused(130, "interrupted")
