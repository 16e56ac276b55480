"""The command line in a test: in this process, or as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_group

from tests.support.processes import clean_environment

# A test run in the background of a script has SIGINT ignored, and so would have its processes.
_MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from deployments.cli import main; main()"
)


@cache
def _commands(*registered: int) -> Any:
    """Return Typer's commands as Click's: a process makes them once, and a worker of the tests a thousand times."""
    from deployments.cli import entry_point

    return get_group(entry_point.app)


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        return json.loads(self.out)

    def refused(self, code: int, *words: str) -> None:
        """Check the way every failure looks: nothing on stdout, one line on stderr that says what is wrong.

        Before it there may be the price of what was to be charged.
        """
        assert self.code == code, self
        assert self.out == "", self
        lines = [line for line in self.err.splitlines() if not line.startswith("price: ")]
        assert len(lines) == 1, self
        assert lines[0].startswith("unitball: "), self
        assert all(word in lines[0] for word in words), (words, lines[0])


class CommandLine:
    """The command line run in this process: as a person's, but without another start of the engine."""

    def __init__(self, root: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capture = capture

    def __call__(self, *arguments: object) -> Outcome:
        from deployments.cli import entry_point

        def made_once(app: Any) -> Any:
            return _commands(len(app.registered_commands), len(app.registered_groups))

        self._capture.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(entry_point, "get_group", made_once)
            with pytest.raises(SystemExit) as ended:
                entry_point.main([str(argument) for argument in arguments])
        out, err = self._capture.readouterr()
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else 0, out, err)

    def succeeds(self, *arguments: object) -> Any:
        """Return the JSON of a command that must succeed."""
        outcome = self(*arguments, "--json")
        assert outcome.code == 0, outcome
        return outcome.json

    def trained(self, *arguments: object) -> dict[str, Any]:
        """Return the JSON of a training run that must succeed."""
        result: dict[str, Any] = self.succeeds("train", *arguments)
        return result


def start_command(root: Path, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start the command line as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", _MAIN, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(UNITBALL_ROOT=str(root), **environment),
        cwd=root.parent,
    )


def run_command(root: Path, *arguments: object, **environment: str) -> Outcome:
    """Run the command line as a process of its own."""
    process = start_command(root, *arguments, **environment)
    out, err = process.communicate(timeout=300)
    return Outcome(process.returncode, out, err)
