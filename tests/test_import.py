"""Importing Unitball beside files that bear its packages' common names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import clean_environment


def _python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code as a notebook does: the working folder comes first on the import path."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=clean_environment()
    )


@pytest.mark.parametrize("shadow", ["tasks.py", "storage/__init__.py", "flows.py", "dpalgos/__init__.py"])
def test_a_file_in_the_way_is_named(shadow: str, tmp_path: Path) -> None:
    file = tmp_path / shadow
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    named = tmp_path / Path(shadow).parts[0]
    for code in ("import unitball", "import tasks, storage, flows, dpalgos; import unitball"):
        done = _python(tmp_path, code)
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith(f"ImportError: {named} hides"), done.stderr
        assert "rename it" in last
    done = _python(tmp_path, "from deployments.cli import main; main(['algorithms'])")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"unitball: {named} hides"), line


@pytest.mark.parametrize("beside", ["notes.py", "storage/rows.csv"])
def test_what_is_not_in_the_way_does_no_harm(beside: str, tmp_path: Path) -> None:
    file = tmp_path / beside
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    assert _python(tmp_path, "import unitball, storage.layout").returncode == 0
