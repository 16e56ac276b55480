"""The cost of help and listings: none of the heavy libraries, and no engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import clean_environment

_SCIPY = tuple(f"scipy.{name}" for name in ("fft", "linalg", "optimize", "sparse", "spatial", "special", "stats"))
_HEAVY = ("prefect", "mlflow", "sklearn", "scipy", "duckdb", "pandas", "matplotlib", *_SCIPY)
_PROGRAM = f"""
import json, sys
from deployments.cli import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as ended:
        found = [name for name in {_HEAVY!r} if name in sys.modules]
        print("ended:", ended.code, *found, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("commands", "allowed"),
    [
        # One after another: what one has imported is there for those that follow.
        ([["--help"], ["train", "--help"], ["ingest", "--help"], ["reproduce", "--help"], ["nonsense"]], set()),
        # SciPy's own module only: what is proved is computed without any of its functions.
        ([["algorithms"]], {"scipy"}),
    ],
    ids=["help", "algorithms"],
)
def test_nothing_heavy_is_imported(commands: list[list[str]], allowed: set[str], tmp_path: Path) -> None:
    environment = clean_environment(UNITBALL_ROOT=str(tmp_path / "root"))
    program = [sys.executable, "-c", _PROGRAM, json.dumps(commands)]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=tmp_path)
    lines = [line.split() for line in done.stderr.splitlines() if line.startswith("ended:")]
    assert [line[1] for line in lines] == ["2" if arguments == ["nonsense"] else "0" for arguments in commands], done
    assert set(lines[-1][2:]) <= allowed
    if ["algorithms"] not in commands:
        assert not (tmp_path / "root").exists(), "help makes no root"


def test_the_table_of_commands_is_what_their_modules_register(tmp_path: Path) -> None:
    """Names, groups and the lines that the list of commands shows, in a process that has imported none yet.

    A command imports its own module alone.
    """
    program = """
import json, sys, typer.main
from deployments.cli import entry_point as commands
from deployments.cli.entry_point import app
listed = commands.command_group(["--help"]).commands
before = [name for name in sys.modules if name.startswith("deployments.cli.")]
commands.command_group(["algorithms"])
imported = [name for name in sys.modules if name.startswith("deployments.cli.")]
commands.import_all()
shown = lambda found: [[name, hasattr(one, "commands"), one.get_short_help_str(1000)] for name, one in found.items()]
print(json.dumps([shown(listed), shown(typer.main.get_group(app).commands), before, imported]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=clean_environment(),
        cwd=tmp_path,
        check=True,
    )
    listed, registered, before, imported = json.loads(done.stdout)
    assert len(listed) > 20
    assert sorted(listed) == sorted(registered)
    of_all = {"training", "data", "services", "experiments", "results"}
    assert not {name.rpartition(".")[2] for name in before} & of_all
    assert {name.rpartition(".")[2] for name in imported} & of_all == {"results"}
