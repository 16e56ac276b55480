"""Fixtures of all tests: one engine a session, a root a test, seeds that are told, real data where there are any."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.support import data, distribution, ledgers
from tests.support.command_line import CommandLine
from tests.support.ending import guard_session
from tests.support.engines import Engine, pattern_name, prepare_served, tracking_copied
from tests.support.serving import Served, started

# A developer's own server is not for tests.
for _name in [name for name in os.environ if name.startswith("MLFLOW_TRACKING_")]:
    del os.environ[_name]

# Hundreds of tests start Python, which would compile our modules each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

SEED = int(os.environ.get("UNITBALL_TEST_SEED", "20240917"))


_guards: list[subprocess.Popen[bytes]] = []


# Of memory, for the tests' folders: most of what they wait for is a disk that confirms each commit.
_IN_MEMORY, _ENOUGH_BYTES = Path("/dev/shm"), 8 * 2**30


def pytest_configure() -> None:
    _guards.append(guard_session())
    # As a command does: most of what is made are modules, which stay.
    gc.set_threshold(50_000)
    with contextlib.suppress(OSError):
        found = os.statvfs(_IN_MEMORY)
        if found.f_bavail * found.f_frsize >= _ENOUGH_BYTES and not found.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))


def pytest_report_header() -> str:
    return f"seed {SEED} (UNITBALL_TEST_SEED); each test draws from a generator keyed by it and its own name"


@pytest.fixture(params=[True, False], ids=["memory", "no-memory"])
def with_and_without_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each case with what ledgers remember between transactions, and again without."""
    if not request.param:
        monkeypatch.setattr(ledgers, "Memory", lambda: None)


@pytest.fixture
def random(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return the test's own generator."""
    return np.random.default_rng([SEED, zlib.crc32(request.node.nodeid.encode())])


@pytest.fixture(scope="session")
def real_data() -> Callable[..., Path]:
    """Return a function from path steps to a real data set; it skips the test where there is none."""
    return data.real_data


@pytest.fixture(scope="session")
def engine(
    tmp_path_factory: pytest.TempPathFactory, databases: Path, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    """Return the session's Prefect server; it takes ten seconds to start, so only tests that run flows ask for it."""
    server = Engine.started(tmp_path_factory.mktemp("engine"), databases)
    with request.config.stash[distribution.ENDING]["engine"] as serving:
        yield serving.enter_context(server)


@pytest.fixture(scope="session", name="databases")
def _databases(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return the root whose databases others are copies of: kept between sessions, since migrations take 15 seconds."""
    cache = getattr(request.config, "cache", None)
    folder = _shared(tmp_path_factory) if cache is None else cache.mkdir(pattern_name())
    return Path(folder) / "pattern"


@pytest.fixture(scope="session", autouse=True, name="tracking_copied")
def _tracking_copied(databases: Path) -> Iterator[Callable[[Path], None]]:
    """Return what makes MLflow's database of a root, as a copy of the first."""
    with tracking_copied(databases) as prepared:
        yield prepared


@pytest.fixture(scope="session", autouse=True)
def _figures_remembered() -> Iterator[None]:
    # Here, since the process that hands out the tests runs none: it would import for seconds before it starts others.
    from tests.support.tracking import figures_remembered

    with figures_remembered():
        yield


def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a session: its workers have one above theirs."""
    session = tmp_path_factory.getbasetemp()
    return session.parent if os.environ.get("PYTEST_XDIST_WORKER") else session


@pytest.fixture(scope="session", autouse=True)
def _nothing_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep roots, and the high-water marks of ledgers, out of the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(tmp_path_factory.mktemp("unnamed") / "root"))
        patch.setenv("UNITBALL_LEDGER_MARK", str(tmp_path_factory.mktemp("marks")))
        yield


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a root of the test's own, the current one while the test runs."""
    path = tmp_path / "root"
    monkeypatch.setenv("UNITBALL_ROOT", str(path))
    # Tests copy roots, and a mark knows a ledger by its identity wherever it lies.
    monkeypatch.setenv("UNITBALL_LEDGER_MARK", str(tmp_path / "marks"))
    return path


@pytest.fixture
def commands(root: Path, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Return the command line for what needs no engine: everything but a run."""
    return CommandLine(root, capfd)


@pytest.fixture
def tracked_root(root: Path, tracking_copied: Callable[[Path], None]) -> Path:
    """Return a root of the test's own whose runs MLflow can be asked for."""
    tracking_copied(root)
    return root


@pytest.fixture
def unlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record descriptions among the results alone; tests/tasks/tracking/test_descriptions.py looks at MLflow."""
    monkeypatch.setattr("tasks.tracking.descriptions.track_run", lambda root, report: "0" * 32)


@pytest.fixture
def unitball(engine: Engine, root: Path, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Return the command line, run in this process on a root of the test's own, whose runs are flows."""
    engine.prepare(root)
    return CommandLine(root, capfd)


@pytest.fixture
def called(tracked_root: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    """Return the command line for runs of which no test looks at the engine: they are plain calls."""
    from tests.support.called import runs_called

    with runs_called():
        yield CommandLine(tracked_root, capfd)


@pytest.fixture(scope="session", name="prepare_served")
def _prepare_served(databases: Path) -> Callable[[Path], None]:
    """Return what makes both databases of a root that is to be served, as copies of the first."""
    return partial(prepare_served, databases)


@pytest.fixture(scope="session")
def served(
    prepare_served: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Served]:
    """Return the session's `make serve`: it takes a quarter of a minute to start, and ends after the last who asks."""
    folder = tmp_path_factory.mktemp("serving")
    prepare_served(folder / "root")
    with request.config.stash[distribution.ENDING]["served"] as serving:
        yield serving.enter_context(started(folder))


@pytest.fixture
def served_commands(served: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Return the command line in this process, on the root that is served: a process of its own imports for seconds."""
    monkeypatch.setenv("UNITBALL_ROOT", str(served.root))
    return CommandLine(served.root, capfd)


def _kept_tracking_uri() -> Iterator[None]:
    before = os.environ.get("MLFLOW_TRACKING_URI")
    yield
    after = os.environ.pop("MLFLOW_TRACKING_URI", None)
    if before is not None:
        os.environ["MLFLOW_TRACKING_URI"] = before
    assert after == before, f"MLFLOW_TRACKING_URI was left at {after!r}"


# MLflow writes where it is pointed into the environment, where the next test's root would take it for a user's wish.
_of_a_test = pytest.fixture(autouse=True, name="kept_tracking_uri")(_kept_tracking_uri)
_of_a_module = pytest.fixture(autouse=True, scope="module", name="kept_tracking_uri_of_module")(_kept_tracking_uri)
