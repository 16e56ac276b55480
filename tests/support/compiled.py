"""A pytest plugin: what one worker has compiled, and where it has rewritten assertions, the others read.

Each worker collects all tests. In a fresh checkout all would compile the same file at the same time, so each begins
with files of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path

import pytest

# Python looks once, when it starts, whether it is forbidden.
sys.dont_write_bytecode = False

TESTS = Path(__file__).parents[1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the worker's part of all test files, where all are to be collected."""
    worker: dict[str, int | str] | None = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    first = int(str(worker["workerid"]).removeprefix("gw"))
    for file in sorted(TESTS.rglob("test_*.py"))[first :: int(worker["workercount"])]:
        # Whoever collects it says what is wrong with it, or that it is skipped.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))
