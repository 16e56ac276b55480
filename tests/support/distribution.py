"""A pytest plugin: which worker runs which file, and in which order, under `--dist loadfile`."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from types import ModuleType
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
# Who asks for the session's engine goes to another one: it takes a worker a quarter of a minute of a core to start it.
ENGINE = frozenset(
    {
        "tests/deployments/test_examples.py",
        "tests/deployments/test_federation.py",
        "tests/deployments/test_interrupts.py",
        "tests/deployments/test_moved_roots.py",
        "tests/flows/test_champion.py",
        "tests/flows/test_clipped_cells.py",
        "tests/flows/test_federated_training.py",
        "tests/flows/test_nightly.py",
        "tests/flows/test_object_store.py",
        "tests/flows/test_privacy_audit.py",
        "tests/flows/test_reproduction.py",
        "tests/flows/test_secagg.py",
        "tests/flows/test_sweep.py",
        "tests/flows/test_column_statistics.py",
        "tests/flows/test_walks.py",
        "tests/security/test_embedded_server.py",
        "tests/tasks/host/test_engine.py",
        "tests/tasks/runtime/test_caching.py",
        "tests/tasks/runtime/test_end_states.py",
        "tests/tasks/test_by_group.py",
        "tests/tasks/test_side_channels.py",
    }
)
# Who asks for the session's models of tables goes to one worker: it takes seconds to train the three of them.
TRAINED = frozenset(
    f"tests/tasks/tracking/test_{name}.py" for name in ("effects", "explanations", "onnx_export", "table_models")
)
# Who starts children from the server of tests/support/forks.py goes to one worker: it takes ten seconds to import.
FORKED = frozenset(
    {
        "tests/flows/test_crashes.py",
        "tests/flows/test_nightly_tables.py",
        "tests/security/test_bombs.py",
        "tests/security/test_storms.py",
        *(
            f"tests/storage/test_{name}.py"
            for name in (
                "atomic",
                "catalog",
                "confined",
                "database",
                "kept_rows",
                "kills",
                "layout",
                "ledger_faults",
                "ledger_postgresql",
                "ledger_races",
                "objects",
                "releases",
                "secrets",
            )
        ),
        "tests/tasks/release/test_counts_in_runs.py",
        "tests/tasks/release/test_paid_counts.py",
        "tests/tasks/release/test_records.py",
        "tests/tasks/runtime/test_event_log.py",
        "tests/tasks/test_secure_rounds.py",
        "tests/tasks/tracking/test_runs.py",
        "tests/tasks/upkeep/test_doctor.py",
        "tests/test_memory_limit.py",
    }
)
# What takes minutes a file comes first; what takes seconds fills the end, so that no worker waits for another.
ORDER = ("tests/deployments/", "tests/security/", "tests/flows/", "tests/tasks/", "tests/test_", "tests/unitball/")


_FORKS = "tests.support.forks"
ENDING = pytest.StashKey[dict[str, ExitStack]]()
"""What ends the served root, and the engine."""


def pytest_configure(config: pytest.Config) -> None:
    """Have a place for what is to end before the session does."""
    config.stash[ENDING] = {"served": ExitStack(), "engine": ExitStack()}


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the served root, and by day the engine, after the last test of the files that ask for it: they never rest.

    In a worker these files are one after another; without workers, and by night those with an engine, they may come
    back.
    """
    if not hasattr(item.config, "workerinput"):
        return
    for name, files in (("served", SERVED), *([("engine", ENGINE)] if _by_day(item.config) else [])):
        if _file(item.nodeid) in files and (nextitem is None or _file(nextitem.nodeid) not in files):
            item.config.stash[ENDING][name].close()


def _by_day(config: pytest.Config) -> bool:
    return bool(config.option.markexpr != "nightly")


def _file(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


def _rank(item: pytest.Item) -> int:
    file = _file(item.nodeid)
    if file in SERVED or file in ENGINE:
        return -2 if file in SERVED else -1
    return next((number for number, folder in enumerate(ORDER) if file.startswith(folder)), len(ORDER))


def _forks(module: ModuleType) -> bool:
    """Return whether a test module starts children from the server of ``tests/support/forks.py``."""
    return any(getattr(each, "__module__", getattr(each, "__name__", "")) == _FORKS for each in vars(module).values())


class Distribution(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A file is a unit, and so are those that share the served root, the engine, models, or a parent of forks.

    By night a test of an algorithm is one.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        if file in SERVED:
            return "served"
        # By night they are too many for one worker.
        if file in ENGINE and _by_day(self.config):
            return "engine"
        if file in TRAINED:
            return "trained"
        if file in FORKED and _by_day(self.config):
            return "forked"
        # A family of audits takes an hour of one core; its cases share nothing.
        return nodeid if not _by_day(self.config) and file.startswith("tests/dpalgos/") else file


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
    for fixture, known, twice in (("served", SERVED, "served"), ("engine", SERVED | ENGINE, "an engine is started")):
        stray = {_file(item.nodeid) for item in items if fixture in getattr(item, "fixturenames", ())} - known
        if stray and _by_day(config):
            warnings.warn(f"tests/support/distribution.py does not name {stray}: {twice} twice", stacklevel=1)
    modules = {_file(item.nodeid): item.module for item in items if isinstance(item, pytest.Function)}
    if stray := {file for file, module in modules.items() if _forks(module)} - FORKED - ENGINE:
        warnings.warn(f"tests/support/distribution.py does not name {stray}: children are prepared twice", stacklevel=1)
    items.sort(key=_rank)
