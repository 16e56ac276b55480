"""What help and listings cost: none of the heavy libraries, and no engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import clean_environment

_HEAVY = ("prefect", "mlflow", "sklearn", "scipy", "duckdb", "pandas", "matplotlib")
_PROGRAM = f"""
import sys
from deployments.cli import main
try:
    main(sys.argv[1:])
finally:
    found = [name for name in {_HEAVY!r} if name in sys.modules]
    print("imported:", *found, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--help"], set()),
        (["train", "--help"], set()),
        (["ingest", "--help"], set()),
        (["reproduce", "--help"], set()),
        (["nonsense"], set()),
        # What is proved is computed, with SciPy's functions.
        (["algorithms"], {"scipy"}),
    ],
)
def test_nothing_heavy_is_imported(arguments: list[str], allowed: set[str], tmp_path: Path) -> None:
    environment = clean_environment(UNITBALL_ROOT=str(tmp_path / "root"))
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == (2 if arguments == ["nonsense"] else 0), done
    last = done.stderr.splitlines()[-1]
    assert last.startswith("imported:")
    assert set(last.split()[1:]) <= allowed
    if arguments != ["algorithms"]:
        assert not (tmp_path / "root").exists(), "help makes no root"
