"""Ctrl-C: exit code 130 and one line, whatever library the signal meets."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from deployments.cli import entry_point
from tasks.runtime.engine import prefect_database
from tests.support.command_line import Outcome, start_command
from tests.support.processes import clean_environment, has_ended
from tests.support.serving import processes_of, wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="signals and /proc of Linux")


def _interrupted(root: Path, when: Callable[[subprocess.Popen[str]], object], *arguments: object) -> Outcome:
    """Interrupt a command once something is the case; it is killed where it does not end."""
    process = start_command(root, *arguments)
    try:
        wait_for("the moment", lambda: process.poll() is not None or when(process), 60, every=0.02)
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return Outcome(process.returncode, out, err)


def _computes_in_a_thread(process: subprocess.Popen[str]) -> bool:
    """Whether a thread besides the main one has used a second of processor time."""
    used = []
    for thread in Path(f"/proc/{process.pid}/task").glob("[0-9]*"):
        if int(thread.name) != process.pid:
            # Threads end while they are read.
            with contextlib.suppress(OSError):
                user, system = (thread / "stat").read_text().rpartition(")")[2].split()[11:13]
                used.append(int(user) + int(system))
    return any(ticks >= os.sysconf("SC_CLK_TCK") for ticks in used)


def test_a_query_that_would_run_for_ever(tmp_path: Path) -> None:
    """DuckDB turns the signal into an error of its own."""
    endless = "SELECT count(*) FROM range(10000000000) a, range(10000) b"
    ended = _interrupted(tmp_path / "root", _computes_in_a_thread, "datasets", "iris", "--sql", endless)
    ended.refused(130, "interrupted")


def test_a_run_while_the_engine_starts(tmp_path: Path) -> None:
    root = tmp_path / "root"

    def starts(_: object) -> bool:
        return any("engine_process" in line for _, line in processes_of(root))

    _interrupted(root, starts, "train", "--epsilon", 1).refused(130, "interrupted")
    assert not prefect_database(root).exists(), "the interrupt came too late"
    wait_for("the end of the engine", lambda: not processes_of(root), 30)


def test_an_interrupt_that_meets_a_finaliser_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python ignores what is raised there; the command ends all the same, a moment later, and prints no traceback."""

    class Thing:
        pass

    def command(**_: object) -> int:
        thing = Thing()
        dropped = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
        del thing
        assert dropped() is None
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            time.sleep(0.01)
        return 0

    monkeypatch.setattr(entry_point, "command_group", lambda _: command)
    before, began = signal.signal(signal.SIGINT, signal.default_int_handler), time.monotonic()
    try:
        with pytest.raises(SystemExit, match="130"):
            entry_point.main([])
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() < began + 15, "it went on"
    assert capfd.readouterr() == ("", "unitball: interrupted\n")


@pytest.mark.parametrize("heeds", ["SIG_DFL", "SIG_IGN"])
def test_what_a_test_session_starts_ends_with_it(heeds: str) -> None:
    """With a session that was killed; in a session of the system's own, and without our variables, too."""
    child = f"import signal, time; signal.signal(signal.SIGTERM, signal.{heeds}); time.sleep(600)"
    code = (
        "import subprocess, sys, time; from tests.support import ending, processes; guard = ending.guard_session(1.0)\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True,\n"
        "    env=processes.clean_environment())\n"
        "print(child.pid, guard.pid, flush=True); time.sleep(600)"
    )
    session = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=clean_environment())
    assert session.stdout is not None
    pids = [int(word) for word in session.stdout.readline().split()]
    assert len(pids) == 2
    session.kill()
    session.communicate()
    for pid in pids:
        wait_for(f"the end of {pid}", partial(has_ended, pid), 30, every=0.05)
