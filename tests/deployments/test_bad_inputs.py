"""Bad input of every kind: one line in the user's terms, exit code 2 or 3, before any engine starts."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.cli.entry_point import app, import_all
from tests.conftest import SEED
from tests.support.bad_inputs import bad_inputs
from tests.support.command_line import CommandLine, Outcome

SAMPLE = 160
# Against what hangs alone: a refusal takes hundredths of a second on a quiet machine, and tenths on a busy one.
HANGS_AFTER = 300


class _EngineStartedError(BaseException):
    """The engine is started for something that had to be refused."""


class _HangingError(BaseException):
    """A refusal does not come."""


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def start(root: Path) -> None:
        raise _EngineStartedError

    def give_up(*_: object) -> None:
        raise _HangingError

    monkeypatch.setattr("tasks.host.engine.prepare_engine", start)
    before = signal.signal(signal.SIGALRM, give_up)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _options() -> dict[str, set[str]]:
    """Return the options of each command, read off its parameters as Typer sees them."""
    import typer.main

    import_all()
    group = typer.main.get_command(app)
    commands = getattr(group, "commands", {})
    return {
        name: {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        for name, command in commands.items()
    }


def _wrong(outcome: Outcome, arguments: list[str], options: dict[str, set[str]]) -> str | None:
    """Return what is wrong with a refusal, if anything."""
    lines = outcome.err.splitlines()
    if outcome.code not in (2, 3):
        return f"exit code {outcome.code}"
    if outcome.out or len(lines) != 1 or not lines[0].startswith("unitball: "):
        return "not one line on stderr"
    if not lines[0].isprintable() or len(lines[0]) > 2000:
        return "a line that a terminal does not show as it is"
    if re.match(r"unitball: \w+(Error|Exception)\b", lines[0]) or "Traceback" in lines[0]:
        return "the words of a Python exception"
    if "match pattern" in lines[0]:
        return "a regular expression in place of what there is"
    # What is advised must be an option of this command, or of another one that is named.
    named = {arguments[0], *re.findall(r"unitball (\w+)", lines[0])}
    allowed = {flag for name in named & options.keys() for flag in options[name]} | {"--help"}
    given = " ".join(arguments)
    advised = {flag for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", lines[0]) if flag not in given}
    if advised - allowed:
        return f"advice that {arguments[0]} cannot follow: {advised - allowed}"
    return None


def _check(commands: CommandLine, inputs: list[tuple[str, list[str]]]) -> None:
    faults = []
    commands("--help")
    options = _options()
    for label, arguments in inputs:
        signal.alarm(HANGS_AFTER)
        try:
            outcome = commands(*arguments)
        except (_EngineStartedError, _HangingError) as error:
            faults.append(f"{label}: {error.__doc__}")
            continue
        finally:
            signal.alarm(0)
        if wrong := _wrong(outcome, arguments, options):
            faults.append(f"{label}: {wrong}: {outcome.code} {outcome.out[:200]!r} {outcome.err[:400]!r}")
    assert not faults, "\n".join(faults)


@pytest.mark.usefixtures("no_engine")
def test_a_sample_of_bad_inputs(commands: CommandLine, tmp_path: Path) -> None:
    inputs = list(bad_inputs(tmp_path))
    _check(commands, random.Random(SEED).sample(inputs, SAMPLE))


@pytest.mark.nightly
@pytest.mark.usefixtures("no_engine")
def test_all_bad_inputs(commands: CommandLine, tmp_path: Path) -> None:
    inputs = list(bad_inputs(tmp_path))
    assert len(inputs) > 900
    _check(commands, inputs)
