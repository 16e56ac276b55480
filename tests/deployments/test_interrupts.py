"""Ctrl-C: exit code 130 and one line, whatever library the signal meets."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from deployments.cli import stopping
from tasks.accounts.ledger import open_ledger
from tasks.host.engine import prefect_database
from tasks.runtime.services import credentials
from tests.support import forks
from tests.support.called import runs_called
from tests.support.command_line import CommandLine, Outcome, start_command
from tests.support.engines import Engine
from tests.support.processes import clean_environment, has_ended
from tests.support.serving import processes_of, wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="signals and /proc of Linux")


@dataclass(frozen=True)
class _Program:
    """A program that was started as by ``python -c``."""

    pid: int
    code: Callable[[], int | None]
    """Its exit code, None while it runs."""
    out: Path
    err: Path

    def ended(self) -> Outcome:
        """Wait for its end."""
        wait_for("its end", lambda: self.code() is not None, every=0.01)
        code = self.code()
        assert code is not None
        return Outcome(code, self.out.read_text(), self.err.read_text())


def _runs(program: str, arguments: Sequence[str], out: Path, err: Path) -> None:
    for number, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), number)
    sys.argv[:] = ["-c", *arguments]
    exec(program, {"__name__": "__main__"})


@contextlib.contextmanager
def _started(program: str, *arguments: object, fresh: bool = False, **environment: str) -> Iterator[_Program]:
    """Start a program, killed where it does not end: forked from a process that has done the imports, or fresh."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        words = [*map(str, arguments)]
        out.touch()
        err.touch()
        process: ForkServerProcess | subprocess.Popen[bytes]
        if fresh:
            command, variables = [sys.executable, "-c", program, *words], clean_environment(**environment)
            process = subprocess.Popen(command, stdout=out.open("ab"), stderr=err.open("ab"), env=variables)
            code = process.poll
        else:
            with pytest.MonkeyPatch.context() as patch:
                for name in set(os.environ) - set(clean_environment()):
                    patch.delenv(name)
                for name, value in environment.items():
                    patch.setenv(name, value)
                process = forks.start(partial(_runs, program, words, out, err))
            code = partial(getattr, process, "exitcode")
        assert process.pid is not None
        try:
            yield _Program(process.pid, code, out, err)
        finally:
            process.kill()
            wait_for("its end", lambda: code() is not None, every=0.01)


_QUERY = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from deployments.cli import main; main()"
)


def _computes_in_a_thread(process: _Program) -> bool:
    """Whether a thread besides the main one has used a fifth of a second of processor time."""
    used = []
    for thread in Path(f"/proc/{process.pid}/task").glob("[0-9]*"):
        if int(thread.name) != process.pid:
            # Threads end while they are read.
            with contextlib.suppress(OSError):
                user, system = (thread / "stat").read_text().rpartition(")")[2].split()[11:13]
                used.append(int(user) + int(system))
    return any(5 * ticks >= os.sysconf("SC_CLK_TCK") for ticks in used)


def test_a_query_that_would_run_for_ever(tmp_path: Path) -> None:
    """DuckDB turns the signal into an error of its own."""
    endless = "SELECT count(*) FROM range(10000000000) a, range(10000) b"
    asked = ("datasets", "iris", "--sql", endless)
    with _started(_QUERY, *asked, UNITBALL_ROOT=str(tmp_path / "root")) as process:
        wait_for("the query", partial(_computes_in_a_thread, process), every=0.02)
        os.kill(process.pid, signal.SIGINT)
        process.ended().refused(130, "interrupted")


def test_a_run_while_the_engine_starts(tmp_path: Path) -> None:
    root = tmp_path / "root"

    def starts(_: object) -> bool:
        return any("engine_process" in line for _, line in processes_of(root))

    process = start_command(root, "train", "--epsilon", 1)
    try:
        wait_for("the engine", lambda: process.poll() is not None or starts(process), every=0.02)
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    Outcome(process.returncode, out, err).refused(130, "interrupted")
    assert not prefect_database(root).exists(), "the interrupt came too late"
    wait_for("the end of the engine", lambda: not processes_of(root))


# A command of a test's own, in a process of its own.
_COMMAND = """
import signal, sys, threading, time, weakref
from deployments.cli import entry_point, stopping
signal.signal(signal.SIGINT, signal.default_int_handler)
{command}
entry_point.command_group = lambda _: command
entry_point.main()
"""


def _ended(command: str) -> Outcome:
    with _started(_COMMAND.format(command=textwrap.dedent(command))) as process:
        return process.ended()


@pytest.mark.parametrize(("number", "code", "word"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
@pytest.mark.parametrize(
    "goes_on",
    [
        # Nobody hears of it, and it would print results.
        "while True: print('a result', flush=True)",
        # In another thread, for which the end of the process waits.
        "threading.Thread(target=time.sleep, args=[600]).start()",
    ],
)
def test_an_interrupt_that_is_swallowed_ends_the_command(number: str, code: int, word: str, goes_on: str) -> None:
    """One line, nothing on stdout; without the thread that watches the command would never end."""
    ended = _ended(
        f"""
    def command(**_):
        try:
            signal.raise_signal(signal.{number})
            time.sleep(600)
        except BaseException:
            {goes_on}
        return 0
    stopping.GRACE_SECONDS = 0.2
    """
    )
    ended.refused(code, word, "nothing was charged")


def test_nothing_is_charged_once_it_was_said_that_nothing_was() -> None:
    """By whoever has not heard of the interrupt, in whichever thread."""
    ended = _ended(
        """
    from tasks.runtime import standing
    def charges():
        time.sleep(0.3)
        with standing.charging("clinic", lambda: None) as said:
            open(1, "w").write("charged")
            said(standing.Written(1, 0.1, 0.2, 3.0))
    def command(**_):
        thread = threading.Thread(target=charges)
        thread.start()
        try:
            signal.raise_signal(signal.SIGINT)
            time.sleep(600)
        except BaseException:
            thread.join()
            with standing.charging("clinic", lambda: None) as said:
                said(standing.Written(1, 0.1, 0.2, 3.0))
            print("it went on")
        return 0
    """
    )
    ended.refused(130, "interrupted", "nothing was charged")


def test_a_charge_that_is_being_written_is_told_as_it_ends() -> None:
    """The signal comes in the middle of it, in the main thread and in another one."""
    ended = _ended(
        """
    from tasks.runtime import standing
    def command(**_):
        begun = threading.Event()
        def charges():
            with standing.charging("clinic", lambda: None) as said:
                begun.set()
                time.sleep(0.3)
                said(standing.Written(2, 0.41, 0.62, "3"))
        threading.Thread(target=charges).start()
        begun.wait()
        with standing.charging("ward", lambda: standing.Written(1, None, None, "1")):
            signal.raise_signal(signal.SIGTERM)
            time.sleep(600)
    """
    )
    clinic = "charged: 2 releases to account clinic, which has now spent epsilon 0.62 of 3 (0.41 before)"
    ended.refused(143, clinic, "charged: 1 release to account ward")


@pytest.mark.parametrize("step", ["_enter", "asked"])
def test_a_charge_is_told_wherever_the_signal_meets_its_entry(step: str) -> None:
    """After it is written and before it is noted, or a second signal while the ledger is asked for it."""
    ended = _ended(
        f"""
    from tasks.runtime import standing
    enter, written = standing._enter, standing.Written(2, 0.41, 0.62, 3.0)
    def interrupted(*given):
        signal.raise_signal(signal.SIGTERM)
        enter(*given)
    def asked():
        signal.raise_signal(signal.SIGTERM)
        return written
    if {step!r} == "_enter":
        standing._enter = interrupted
    def command(**_):
        with standing.charging("clinic", asked) as said:
            if {step!r} == "_enter":
                said(written)
            else:
                signal.raise_signal(signal.SIGINT)
        return 0
    """
    )
    assert ended.code in (130, 143)
    assert "nothing was charged" not in ended.err
    assert "to account clinic was being written, and is recorded completely or not at all" in ended.err


@pytest.mark.parametrize(("when", "said"), [("meanwhile", "unitball budget"), ("afterwards", "ledger is accepted")])
def test_a_restoration_that_is_stopped_is_not_said_to_have_charged_nothing(when: str, said: str) -> None:
    ended = _ended(
        f"""
    from tasks.accounts import ledger
    def restore(*_, **__):
        if {when!r} == "meanwhile":
            signal.raise_signal(signal.SIGTERM)
        return ("clinic",)
    ledger.restore, ledger.open_ledger_database = restore, lambda: None
    def command(**_):
        ledger.restore_ledger("disk lost", None, None)
        signal.raise_signal(signal.SIGTERM)
    """
    )
    ended.refused(143, "terminated; ", said)
    assert "nothing was charged" not in ended.err


def test_a_command_without_standard_streams_is_stopped(tmp_path: Path) -> None:
    """As a daemon may start it: its files do not take their numbers, so that nothing is printed into one of them."""
    code = (
        "import os, signal, time; from deployments.cli import entry_point\n"
        "def command(**_):\n"
        f"    file = open({str(tmp_path / 'file')!r}, 'w'); open({str(tmp_path / 'begun')!r}, 'w').close()\n"
        "    print('a result', flush=True); time.sleep(600)\n"
        "entry_point.command_group = lambda _: command; entry_point.main()"
    )
    shell = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    process = subprocess.Popen(shell, env=clean_environment())
    try:
        wait_for("its beginning", (tmp_path / "begun").exists, every=0.02)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 143
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("reader", ["gone", "stopped"])
def test_a_command_whose_line_nobody_takes_is_stopped(reader: str) -> None:
    """As with ``| tee``, which Ctrl-C ends first, or ``| less``: a write fails, or waits."""
    taken, given = os.pipe()
    os.set_blocking(given, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(given, b"x" * 4096)
    os.set_blocking(given, True)
    if reader == "gone":
        os.close(taken)
    command = "def command(**_):\n    print('begun', flush=True); time.sleep(600)\nstopping.GRACE_SECONDS = 0.2"
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND.format(command=command)],
        stdout=subprocess.PIPE,
        stderr=given,
        env=clean_environment(),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 143
    finally:
        process.kill()
        process.communicate()
        os.close(given)


def test_what_is_said_of_the_charge_of_one_of_several_is_true_of_all() -> None:
    """Of a comparison, or a sweep, the rest is charged yet when it is asked for again."""
    ended = _ended(
        """
    from tasks.runtime import standing
    def command(**_):
        with standing.charging("clinic", lambda: None) as said:
            said(standing.Written(2, 0.41, 0.62, "3"))
        signal.raise_signal(signal.SIGINT)
    """
    )
    ended.refused(130, "(0.41 before)")
    assert "it costs nothing" not in ended.err


def test_a_second_interrupt_ends_at_once() -> None:
    ended = _ended(
        """
    stopping.GRACE_SECONDS = 600
    def command(**_):
        try:
            signal.raise_signal(signal.SIGINT)
            time.sleep(600)
        except BaseException:
            try:
                signal.raise_signal(signal.SIGINT)
                time.sleep(600)
            except BaseException:
                time.sleep(600)
    """
    )
    ended.refused(130, "interrupted")


def test_an_interrupt_that_meets_a_finaliser_is_not_lost() -> None:
    """Python ignores what is raised there; it is raised once more, and what the command cleans up is cleaned up."""
    ended = _ended(
        """
    stopping.GRACE_SECONDS = 600
    class Thing:
        pass
    def command(**_):
        thing = Thing()
        dropped = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
        del thing
        assert dropped() is None
        while True:
            time.sleep(0.01)
    """
    )
    ended.refused(130, "interrupted")


# The command line, held in a step of the door by one long call that knows nothing of Python's signals.
_HELD = """
import hashlib, pathlib, signal, sys
from deployments.cli import main, stopping
from tasks.release import checkpoints
signal.signal(signal.SIGINT, signal.default_int_handler)
stopping.GRACE_SECONDS = float(sys.argv.pop(1))
step, marker = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
def reached(name):
    if name == step:
        marker.touch()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
checkpoints.reached = reached
main()
"""
_CLINIC = Path("docs/examples/clinic.csv")
_CAP = ("--epsilon-cap", 3, "--delta-cap", "1e-6", "--account", "clinic-2026")


@contextlib.contextmanager
def _held(root: Path, step: str, *arguments: object, grace: float = 600.0, **environment: str) -> Iterator[_Program]:
    """Start a command and wait until it is held in a step, where nothing in it can hear a signal for minutes."""
    marker = root.parent / f"held-{step}"
    # In a process that was forked Prefect has read the settings of another one.
    given = (grace, step, marker, *arguments)
    with _started(_HELD, *given, fresh=arguments[0] == "train", UNITBALL_ROOT=str(root), **environment) as process:
        wait_for(step, lambda: marker.exists() or process.code() is not None, every=0.02)
        assert process.code() is None, process.ended()
        yield process


def _line_before_the_end(process: _Program, number: signal.Signals) -> str:
    """Return the line that comes while the process is still there."""
    os.kill(process.pid, number)

    def said() -> list[str]:
        lines = process.err.read_text().splitlines(keepends=True)
        return [line for line in lines if line.endswith("\n") and not line.startswith("price: ")]

    line: str = wait_for("the line", said, every=0.01)[0]
    assert process.code() is None, "it ended first"
    return line


@pytest.mark.parametrize(("step", "number"), [("declared", signal.SIGINT), ("charged", signal.SIGTERM)])
def test_what_stands_is_said_before_the_process_ends(
    step: str, number: signal.Signals, commands: CommandLine, tmp_path: Path
) -> None:
    """While the main thread hears nothing; the next start says that it was charged, at no charge."""
    ingest = ("ingest", "clinic", "--format", "csv", "--path", _CLINIC, "--schema", _CLINIC.with_suffix(".yaml"), *_CAP)
    assert commands(*ingest).code == 0
    describe = ("describe", "clinic", "--epsilon", 0.5)
    with _held(commands.root, step, *describe) as process:
        line = _line_before_the_end(process, number)
    assert line.startswith("unitball: interrupted; " if number is signal.SIGINT else "unitball: terminated; ")
    before = len(open_ledger().charges("clinic-2026"))
    again = commands(*describe)
    assert again.code == 0
    assert len(open_ledger().charges("clinic-2026")) == 1
    note = "note: account clinic-2026 has already paid for all releases of this command; they are not charged again"
    if step == "declared":
        assert before == 0
        assert line.endswith("; nothing was charged\n")
        assert again.err.startswith("price: ")
    else:
        assert before == 1
        assert "; charged: 1 release to account clinic-2026, which has now spent epsilon 0.49" in line
        assert line.endswith(" of 3 (0 before): run it again: nothing is charged twice\n")
        assert again.err == f"{note}\n"
    assert "charged before" in commands(*describe).out


def test_a_run_that_is_terminated_in_the_engines_hands(engine: Engine, unitball: CommandLine) -> None:
    """Prefect sets a handler of its own, and its threads compute; what was charged is said, and again by the next run.

    Then the process ends, though a thread of it would go on for minutes.
    """
    server = {"PREFECT_API_URL": engine.url, "PREFECT_API_AUTH_STRING": credentials(engine.root).basic}
    ingest = ("ingest", "clinic", "--format", "csv", "--path", _CLINIC, "--schema", _CLINIC.with_suffix(".yaml"), *_CAP)
    assert unitball(*ingest).code == 0
    train = ("train", "--dataset", "clinic", "--algorithm", "noisy-gd", "--epsilon", 0.3)
    with _held(unitball.root, "charged", *train, grace=0.5, **server) as process:
        os.kill(process.pid, signal.SIGTERM)
        ended = process.ended()
    said = "charged: 2 releases to account clinic-2026, which has now spent epsilon 0.2"
    ended.refused(143, "terminated", said)
    (before,) = {charge.plan.sequence for charge in open_ledger().charges("clinic-2026")}
    # What was charged is asked of the ledger, whichever process runs it.
    with runs_called():
        again = unitball(*train)
        after = {charge.plan.sequence for charge in open_ledger().charges("clinic-2026")}
        compared = unitball("compare", *train[1:3], "--algorithms", "noisy-gd,sufficient-statistics", *train[5:])
    assert again.code == 0
    note = "note: account clinic-2026 has already paid for all releases of {}; they are not charged again"
    assert note.format("this command") in again.err
    assert after == {before}
    # Beside one that is to be paid, only this one costs nothing.
    assert compared.code == 0
    notes = [line for line in compared.err.splitlines() if line.startswith("note: ")]
    assert notes == [note.format("noisy-gd")]


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "command",
    [
        ("describe", "clinic", "--epsilon", 0.5),
        ("train", "--dataset", "clinic", "--algorithm", "noisy-gd", "--epsilon", 0.3),
    ],
    ids=lambda command: command[0],
)
def test_five_seconds_with_four_busy_processes_on_two_cores(
    command: Sequence[object], number: signal.Signals, commands: CommandLine
) -> None:
    """The line within five seconds, and the end of the process, too, whose own computing goes on for minutes."""
    ingest = ("ingest", "clinic", "--format", "csv", "--path", _CLINIC, "--schema", _CLINIC.with_suffix(".yaml"), *_CAP)
    assert commands(*ingest).code == 0
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:2])
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        with _held(commands.root, "charged", *command, grace=stopping.GRACE_SECONDS) as process:
            began = time.monotonic()
            line = _line_before_the_end(process, number)
            told = time.monotonic() - began
            process.ended()
            ended = time.monotonic() - began
    finally:
        os.sched_setaffinity(0, cores)
        for one in busy:
            one.kill()
            one.wait()
    print(f"told after {told:.2f} s, ended after {ended:.2f} s")
    assert "to account clinic-2026, which has now spent epsilon" in line
    assert max(told, ended) < 5.0


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
        wait_for(f"the end of {pid}", partial(has_ended, pid), every=0.05)
