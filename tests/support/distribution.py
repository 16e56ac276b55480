"""A pytest plugin: which worker runs which file, and in which order, under `--dist loadfile`."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

# Who asks for the session's `unitball serve` goes to one worker, so that it is started once and not beside itself.
SERVED = frozenset(
    {
        "tests/deployments/test_at_once.py",
        "tests/deployments/test_deployments.py",
        "tests/deployments/test_existing_servers.py",
        "tests/deployments/test_prefect_page.py",
        "tests/deployments/test_serving.py",
        "tests/deployments/test_serving_killed.py",
        "tests/deployments/test_serving_postgresql.py",
        "tests/security/test_parties.py",
        "tests/security/test_services.py",
    }
)
# What takes minutes a file comes first; what takes seconds fills the end, so that no worker waits for another.
ORDER = ("tests/deployments/", "tests/security/", "tests/flows/", "tests/tasks/", "tests/test_", "tests/unitball/")


SERVING = pytest.StashKey[ExitStack]()
"""What ends the served root."""


def pytest_configure(config: pytest.Config) -> None:
    """Have a place for what is to end before the session does."""
    config.stash[SERVING] = ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the served root after the last test of the files that ask for it: its processes never quite rest.

    In a worker these files are one after another; without workers they may come back.
    """
    if not hasattr(item.config, "workerinput"):
        return
    if _file(item.nodeid) in SERVED and (nextitem is None or _file(nextitem.nodeid) not in SERVED):
        item.config.stash[SERVING].close()


def _file(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


def _rank(item: pytest.Item) -> int:
    file = _file(item.nodeid)
    if file in SERVED:
        return -1
    return next((number for number, folder in enumerate(ORDER) if file.startswith(folder)), len(ORDER))


class Distribution(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A file is a unit, and those that share the served root are one; by night a test of an algorithm is."""

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        if file in SERVED:
            return "served"
        # A family of audits takes an hour of one core; its cases share nothing.
        return nodeid if self.config.option.markexpr == "nightly" and file.startswith("tests/dpalgos/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Distribution | None:
    """Return the scheduler in place of xdist's, which begins with the files that have the most tests."""
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return Distribution(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring the tests of a worker into the order in which their files are handed out."""
    if not hasattr(config, "workerinput"):
        return
    stray = {_file(item.nodeid) for item in items if "served" in getattr(item, "fixturenames", ())} - SERVED
    if stray:
        warnings.warn(f"tests/support/distribution.py does not name {stray}: served twice", stacklevel=1)
    items.sort(key=_rank)
