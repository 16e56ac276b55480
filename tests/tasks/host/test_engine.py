"""The engine: databases made whole or not at all, one server a process, nothing left behind, nothing sent anywhere."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from prefect import tags
from prefect.client.orchestration import SyncPrefectClient
from prefect.context import TagsContext
from sqlalchemy import NullPool, create_engine

from storage.errors import StorageError
from storage.layout import Layout
from tasks.host import engine, engine_process, interrupted
from tasks.host.engine import (
    EngineError,
    GuardedProcess,
    ask_server,
    prefect_database,
    prepare_databases,
    prepare_engine,
    prepare_tracking,
    wait_for_server,
)
from tasks.runtime.services import Credentials
from tasks.runtime.steps import unmarked
from tests.support.stating import stating

# Installed in every process of a run: nothing but loopback may be contacted or even looked up.
OFFLINE = """
import sys
def _guard(event, arguments):
    if event == "socket.connect":
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else "local"
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    if host not in ("127.0.0.1", "::1", "localhost", "local", None, b"127.0.0.1"):
        open({path!r}, "a").write(f"{{event}} {{host}}\\n")
        raise OSError(f"the network is not there: {{host}}")
sys.addaudithook(_guard)
"""
RUN = """
import os, sys
os.environ["UNITBALL_ROOT"] = sys.argv[1]
from pathlib import Path
from tasks.host.engine import prepare_engine, quick_flows
prepare_engine(Path(sys.argv[1]))
from prefect import flow, task
@task
def double(number):
    return 2 * number
@flow
def total():
    return sum(future.result() for future in double.map([1, 2, 3]))
with quick_flows():
    print("total", total(), flush=True)
"""


def clean_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without what an earlier test's engine has put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW", "UNITBALL"))}
    return {**kept, "PYTHONPATH": str(Path(engine.__file__).parents[2]), **more}


def start(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(**environment),
        start_new_session=True,
    )


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return condition()


def processes_of(root: Path) -> list[int]:
    """Return the engine's processes that work for a root."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
            if "engine_process" in line and str(root) in line:
                found.append(int(entry.name))
    return found


def intact(database: Path) -> bool:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return bool(connection.execute("PRAGMA integrity_check").fetchone() == ("ok",))


@pytest.fixture(scope="module")
def made(prepare_served: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root whose databases are made; tests that change them take a copy."""
    root = tmp_path_factory.mktemp("made") / "root"
    prepare_served(root)
    return root


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment in which no engine was prepared; put back afterwards."""
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(("PREFECT", "MLFLOW", "UNITBALL_EMBEDDED", "DO_NOT_TRACK")):
            monkeypatch.delenv(name)
    yield monkeypatch
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.nightly
def test_three_processes_at_once_on_a_fresh_root_offline(tmp_path: Path) -> None:
    root, contacted = tmp_path / "root", tmp_path / "contacted"
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(OFFLINE.format(path=str(contacted)))
    path = os.pathsep.join([str(site), str(Path(engine.__file__).parents[2])])
    runs = [start(RUN, root, PYTHONPATH=path) for _ in range(3)]
    for run in runs:
        out, err = run.communicate(timeout=300)
        assert run.returncode == 0, err
        assert out.strip() == "total 12"
        assert err == "", "the console belongs to the command"
    assert not contacted.exists(), contacted.read_text()
    assert intact(prefect_database(root))
    assert intact(Layout(root).mlflow_database)
    assert not list(Layout(root).prefect.glob(".making-*"))
    assert not processes_of(root)
    with contextlib.closing(sqlite3.connect(prefect_database(root))) as connection:
        states = connection.execute("SELECT state_type, count(*) FROM flow_run GROUP BY state_type").fetchall()
        tasks = connection.execute("SELECT count(*) FROM task_run WHERE state_type = 'COMPLETED'").fetchone()
    assert states == [("COMPLETED", 3)]
    assert tasks == (9,), "each run's tasks were recorded before its server ended"


def test_the_guard_of_the_offline_test_bites(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(OFFLINE.format(path=str(tmp_path / "contacted")))
    process = start("import socket; socket.create_connection(('192.0.2.1', 9), 1)", PYTHONPATH=str(tmp_path))
    assert process.wait(300) != 0
    assert "192.0.2.1" in (tmp_path / "contacted").read_text()


@pytest.mark.parametrize(
    ("package", "size"),
    [
        pytest.param("prefect", 0, marks=pytest.mark.nightly),
        pytest.param("prefect", 400_000, marks=pytest.mark.nightly),
        pytest.param("prefect", 1, marks=pytest.mark.nightly),
        pytest.param("prefect", 1_000_000, marks=pytest.mark.nightly),
        pytest.param("mlflow", 200_000, marks=pytest.mark.nightly),
        pytest.param("mlflow", 0, marks=pytest.mark.nightly),
    ],
)
def test_killed_in_its_first_migration(tmp_path: Path, package: str, size: int) -> None:
    """Killed when the file being made has a certain size: nothing has its real name, and the next run makes it."""
    root = tmp_path / "root"
    layout = Layout(root).prepare()
    target = prefect_database(root) if package == "prefect" else layout.mlflow_database
    making = layout.prefect / f".making-{target.name}"
    missing = engine._missing_databases(root)[package == "mlflow"]
    asked = json.dumps({"workplace": str(layout.prefect), **missing})

    def child() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", engine_process.__file__, asked],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment(),
        )

    def grown() -> bool:
        sizes = []
        for path in layout.prefect.glob(f"{making.name}*"):
            # SQLite takes its journal away at any moment.
            with contextlib.suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        return bool(sizes) and sum(sizes) >= size

    killed = child()
    assert wait_until(grown, 300), "the migration never came so far"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not target.exists()
    again = child()
    assert again.wait(300) == 0, again.stderr and again.stderr.read().decode()
    assert intact(target)
    assert engine_process.high_water_mark_of(target) == engine._mark(package)
    assert not list(layout.prefect.glob(".making-*"))


_MADE = """
import sqlite3, sys, time
from pathlib import Path
from tasks.host.engine_process import make_database
def migrate(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE made (step)")
    print("begun", flush=True)
    if sys.argv[2] == "slowly":
        time.sleep(600)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE whole (step)")
make_database(Path(sys.argv[1]), 3, Path(sys.argv[1]).parent, migrate)
"""


def test_killed_in_a_migration_of_two_steps(tmp_path: Path) -> None:
    """As by night in those of Prefect and MLflow, which take seconds."""
    target = tmp_path / "made.db"
    killed = start(_MADE, target, "slowly")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "begun\n", killed.stderr and killed.stderr.read()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert list(tmp_path.glob(".making-*"))
    assert not target.exists()
    again = start(_MADE, target, "at once")
    _, said = again.communicate(timeout=300)
    assert again.returncode == 0, said
    assert engine_process.high_water_mark_of(target) == 3
    with contextlib.closing(sqlite3.connect(target)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master ORDER BY 1").fetchall() == [("made",), ("whole",)]
    assert not list(tmp_path.glob(".making-*"))


def run_states(root: Path) -> list[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(prefect_database(root))) as connection:
        return connection.execute("SELECT name, state_type FROM flow_run").fetchall()


@pytest.mark.nightly
def test_a_killed_command_leaves_no_server_and_no_run_that_runs_for_ever(made: Path, tmp_path: Path) -> None:
    root = copy_of(made, tmp_path / "root")
    code = RUN + (
        "import time\n"
        "@flow(flow_run_name='killed')\n"
        "def endless():\n"
        "    print(os.environ['PREFECT_API_URL'], flush=True)\n"
        "    time.sleep(600)\n"
        "with quick_flows():\n"
        "    endless()\n"
    )
    run = start(code, root)
    assert run.stdout is not None
    assert run.stdout.readline().strip() == "total 12", run.stderr and run.stderr.read()
    port = int(run.stdout.readline().rsplit(":", 1)[1].split("/")[0])
    with socket.create_connection(("127.0.0.1", port), 5):
        pass
    assert processes_of(root)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert wait_until(lambda: not processes_of(root), 300)
    assert intact(prefect_database(root))
    assert ("killed", "RUNNING") in run_states(root), "the kill came too early"
    assert start(RUN, root).wait(300) == 0
    states = run_states(root)
    assert ("killed", "CRASHED") in states
    assert sorted(state for _, state in states) == ["COMPLETED", "COMPLETED", "CRASHED"]


class Client:
    """Stands for Prefect's client: unfinished runs by tag, and which were called crashed."""

    def __init__(self, runs: dict[str, str], deployed: dict[str, UUID] | None = None) -> None:
        self.runs, self.deployed = runs, deployed or {}
        self.crashed: list[str] = []

    def read_flow_runs(self, flow_run_filter: Any) -> list[Any]:
        if flow_run_filter.deployment_id is not None:
            found = [
                run for run, deployment in self.deployed.items() if deployment in flow_run_filter.deployment_id.any_
            ]
        else:
            (tag,) = flow_run_filter.tags.all_
            found = [run for run, its in self.runs.items() if its == tag]
        return [type("Run", (), {"id": run}) for run in found if run not in self.crashed]

    def set_flow_run_state(self, run: str, state: Any, force: bool) -> None:
        assert state.name == "Crashed"
        assert force
        self.crashed.append(run)


def test_only_runs_of_dead_processes_are_called_crashed(tmp_path: Path) -> None:
    """This process lives, so its runs do; a process that was killed has dropped its lock."""
    layout = Layout(tmp_path / "root").prepare()
    folder = layout.prefect / "processes"
    with interrupted.marked_runs(layout.root):
        (living,) = (path.name for path in folder.glob("[!.]*"))
        (folder / "dead").touch()
        runs = {"a": f"unitball.process.{living}", "b": "unitball.process.dead"}
        assert interrupted.has_dead_processes(layout.root)
        ours = uuid4()
        client = Client(runs, deployed={"c": ours, "somebody else's": uuid4()})
        assert interrupted.crash_interrupted_runs(cast(SyncPrefectClient, client), layout.root) == 1
        assert client.crashed == ["b"]
        assert not (folder / "dead").exists()
        assert not interrupted.has_dead_processes(layout.root)
        assert interrupted.crash_interrupted_runs(cast(SyncPrefectClient, client), layout.root, [ours]) == 1
        assert client.crashed == ["b", "c"]
    assert not list(folder.glob("[!.]*")), "a clean end leaves no mark"


def test_task_runs_are_not_marked(tmp_path: Path) -> None:
    """Their tags are limits of concurrency, which the server is asked for before each of them; flow runs are marked."""
    layout = Layout(tmp_path / "root").prepare()
    layout.prefect.mkdir(exist_ok=True)
    with tags("mine"), interrupted.marked_runs(layout.root):
        marked = TagsContext.get().current_tags
        assert len(marked) == 2
        with unmarked():
            assert TagsContext.get().current_tags == {"mine"}
        assert TagsContext.get().current_tags == marked


def test_nothing_is_started_where_all_is_there(made: Path, environment: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    environment.setattr(subprocess, "Popen", refuse)

    # What would start a process raises.
    prepare_databases(made)
    prepare_tracking(made)


def test_settings_lie_under_the_root_and_the_users_own_are_kept(made: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "DEBUG")
    prepare_databases(made)
    assert os.environ["PREFECT_HOME"] == str(made / "prefect")
    assert os.environ["PREFECT_LOCAL_STORAGE_PATH"].startswith(str(made))
    assert str(made) in os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"]
    assert os.environ["DO_NOT_TRACK"] == "1"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] == "DEBUG"


def test_the_users_server_is_used(made: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PREFECT_API_URL", "http://127.0.0.1:4210/api")
    environment.setattr(engine, "sys", type("Bare", (), {"modules": {}, "executable": sys.executable}))
    prepare_engine(made)
    assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:4210/api"
    assert "PREFECT_HOME" not in os.environ
    assert "PREFECT_SERVER_DATABASE_CONNECTION_URL" not in os.environ
    # Results are this root's, whoever serves the API.
    assert os.environ["PREFECT_LOCAL_STORAGE_PATH"].startswith(str(made))


def test_a_parents_embedded_server_is_not_taken_for_the_users(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert not engine._own_server_wanted()
    environment.setenv("UNITBALL_EMBEDDED_API_URL", "http://127.0.0.1:9/api")
    assert engine._own_server_wanted()


def test_a_server_that_is_started_beside_checks_ends_where_they_refuse(
    tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    class Started:
        running = True

        def stop(self) -> None:
            self.running = False

    begun: list[Any] = []

    def begin(root: Path) -> Any:
        asked = http.client.HTTPConnection("127.0.0.1", 9)
        begun.append(engine._Starting(Started(), asked, Started()))  # type: ignore[arg-type]
        return begun[-1]

    environment.setattr(engine, "_begin", begin)
    environment.delitem(sys.modules, "prefect", raising=False)
    before = dict(os.environ)
    with pytest.raises(KeyError), engine.started_ahead(tmp_path, module="no.such.checks"):
        raise KeyError
    assert [process.running for process in (begun[0].server, begun[0].migration)] == [False, False]
    assert engine._ahead == {}
    assert os.environ == before, "a later run of this process is set up by itself"
    with engine.started_ahead(tmp_path, module="no.such.checks"):
        pass
    kept: Any = engine._ahead.pop(tmp_path)
    assert kept.server.running, "for the run that follows"
    with engine.started_ahead(tmp_path, module="tests"):
        assert len(begun) == 2, "checks that are imported already are quicker than a server"


def test_a_copy_that_is_synced_when_whole_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    def synced() -> int:
        database = create_engine(f"sqlite:///{tmp_path / 'new.db'}", poolclass=NullPool)
        with database.connect() as connection:
            return int(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())

    usual = synced()
    with engine_process.unsynced():
        assert synced() == 0
    assert synced() == usual > 0, "other databases of this process wait"


def test_unwritable_root(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for prepare in (prepare_databases, prepare_engine, prepare_tracking):
        with pytest.raises(StorageError, match="--root", check=stating(way_out="--root")) as caught:
            prepare(tmp_path / "file" / "root")
        assert "\n" not in str(caught.value)


def test_a_root_that_no_database_address_can_carry(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match=r"'\?'"):
        prepare_databases(tmp_path / "what?")
    assert not (tmp_path / "what?").exists()


def copy_of(made: Path, root: Path) -> Path:
    layout = Layout(root).prepare()
    for source, target in (
        (prefect_database(made), prefect_database(root)),
        (Layout(made).mlflow_database, layout.mlflow_database),
    ):
        target.write_bytes(source.read_bytes())
    return root


def made_by_another_version(root: Path, database: Path) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA user_version = 7")
    engine_process.stamp_of(database, Layout(root).prefect).unlink(missing_ok=True)


def other_versions(made: Path, root: Path, *databases: Path) -> Path:
    """Copy a root whose databases are of another version, and name the experiment that is there."""
    copy_of(made, root)
    # A copy has a number of its own, by which the note beside it goes.
    copied = prefect_database(root)
    stamp = f"{engine_process.high_water_mark_of(copied)} {copied.stat().st_ino}"
    engine_process.stamp_of(copied, Layout(root).prefect).write_text(stamp)
    with contextlib.closing(sqlite3.connect(Layout(root).mlflow_database)) as connection:
        connection.execute("UPDATE experiments SET name = 'kept'")
        connection.commit()
    for database in databases:
        made_by_another_version(root, database)
    return root


def assert_upgraded(root: Path) -> None:
    database = Layout(root).mlflow_database
    assert engine_process.high_water_mark_of(database) == engine._mark("mlflow")
    assert engine_process.high_water_mark_of(prefect_database(root)) == engine._mark("prefect")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT name FROM experiments").fetchall() == [("kept",)]


@pytest.mark.nightly
def test_another_version_upgrades_a_copy_and_keeps_what_is_there(
    made: Path, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    other_versions(made, root, Layout(root).mlflow_database, prefect_database(root))
    prepare_databases(root)
    assert_upgraded(root)


def test_no_upgrade_under_somebodys_feet(made: Path, tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    """Afterwards a copy is upgraded, and keeps what is there."""
    root = tmp_path / "a root with spaces, ü"
    database = Layout(root).mlflow_database
    other_versions(made, root, database)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM experiments").fetchone()
        with pytest.raises(EngineError, match=r"mlflow.db|in use"):
            prepare_tracking(root)
        # Looking whether a database is made must not drop the locks of this process's own connections to it.
        other = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0.1).execute('PRAGMA journal_mode = DELETE')"
        assert start(other, database).wait(300) != 0, "the lock was dropped"
    assert engine_process.high_water_mark_of(database) == 7
    prepare_databases(root)
    assert_upgraded(root)


def test_a_damaged_database_is_said_to_be_one(made: Path, tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    root = copy_of(made, tmp_path / "root")
    database = Layout(root).mlflow_database
    database.write_bytes(b"no database at all" * 1000)
    with pytest.raises(EngineError, match="damaged") as caught:
        prepare_tracking(root)
    assert "\n" not in str(caught.value)
    assert database.read_bytes().startswith(b"no database"), "what was there is still there"


def test_a_server_that_ends_at_once_is_known_to_have(tmp_path: Path) -> None:
    """Also where the port stays open for its next start."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = "import sys; sys.exit('a setting is wrong')"
        process = GuardedProcess([sys.executable, "-c", code], tmp_path / "log", os.environ)
        # Whoever waited to the end would say that it did not answer.
        with pytest.raises(EngineError, match="setting"):
            wait_for_server(ask_server(listener.getsockname()[:2], Credentials("a" * 20)), process)


def schema_of(database: Path) -> dict[str, object]:
    """Return tables, indices and triggers; in which order constraints stand, Prefect leaves to chance."""
    schema: dict[str, object] = {}
    with contextlib.closing(sqlite3.connect(database)) as connection:
        for kind, name, text in connection.execute("SELECT type, name, sql FROM sqlite_master"):
            schema[name] = text
            if kind == "table":
                columns = connection.execute(f"PRAGMA table_xinfo('{name}')").fetchall()
                foreign = {str(key[2:]) for key in connection.execute(f"PRAGMA foreign_key_list('{name}')")}
                indices = connection.execute(f"SELECT * FROM pragma_index_list('{name}')").fetchall()
                parts = [
                    str((index[2:], connection.execute(f"PRAGMA index_info('{index[1]}')").fetchall()))
                    for index in indices
                ]
                schema[name] = sorted(str(column[1:]) for column in columns), foreign, sorted(parts)
        schema["version"] = connection.execute("SELECT * FROM alembic_version").fetchall()
    return schema


@pytest.mark.nightly
def test_a_new_database_has_the_schema_that_prefects_own_command_makes(tmp_path: Path) -> None:
    home = {**os.environ, "PREFECT_HOME": str(tmp_path / "home")}
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    code = "import sys, pathlib, tasks.host.engine_process as e; e.migrate_prefect(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, ours], env=home, check=True)
    url = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{theirs}"}
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    subprocess.run(command, env={**home, **url}, check=True)
    assert schema_of(ours) == schema_of(theirs)
