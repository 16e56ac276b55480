"""A unit for systemd, logs of parts that stay small, and what goes after its time."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deployments.serving import Serving, unit_of
from deployments.tidying import remove_deleted_runs, remove_old_results
from storage.layout import Layout
from tasks.host import engine
from tasks.host.engine import GuardedProcess, prefect_database
from tasks.runtime.settings import own_database
from tests.support.command_line import CommandLine
from tests.support.engines import Engine
from tests.support.processes import clean_environment
from tests.support.serving import wait_for


def complaints(unit: Path) -> str:
    """Return what systemd says of a unit."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", unit],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "XDG_RUNTIME_DIR": str(unit.parent)},
    )
    return "\n".join(line for line in done.stderr.splitlines() if unit.name in line or done.returncode)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["root", 'a "quoted" 100% $root\\'])
def test_the_unit_is_one_that_systemd_takes(name: str, tmp_path: Path) -> None:
    unit = tmp_path / "unitball.service"
    unit.write_text(unit_of(tmp_path / name))
    assert complaints(unit) == ""
    unit.write_text(unit_of(tmp_path / name).replace("KillMode=mixed", "KillMode=some"))
    assert "some" in complaints(unit), "a wrong unit is noticed"


def test_serve_prints_the_unit(commands: CommandLine) -> None:
    done = commands("serve", "--systemd-unit")
    assert done.code == 0
    assert f"UNITBALL_ROOT={commands.root}" in done.out
    assert sys.executable in done.out


def test_the_log_of_a_part_is_cut_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_LOG_LIMIT", 50_000)
    code = "import time\nfor n in range(10**6): print(f'{n:08d}', flush=True); time.sleep(0.0001)"
    log = tmp_path / "log"
    part = GuardedProcess([sys.executable, "-c", code], log, os.environ)
    try:
        for _ in range(3):
            wait_for("a full log", lambda: log.stat().st_size > 50_000, every=0.02)
            part.trim_log()
            assert log.stat().st_size < 50_000
        assert (tmp_path / "log.1").stat().st_size > 50_000
        assert part.poll() is None
        assert len(list(tmp_path.iterdir())) == 2
    finally:
        part.stop()


def test_prefect_takes_the_settings_of_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    from prefect.settings import Settings

    for name, value in Serving(root=tmp_path, keep_days=9).prefect_settings().items():
        monkeypatch.setenv(name, value)
    vacuum = Settings().server.services.db_vacuum
    assert vacuum.enabled_vacuum_types >= {"events", "flow_runs"}
    assert vacuum.retention_period == timedelta(days=9)
    assert Settings().server.events.retention_period == timedelta(days=7)
    assert "filesystem" in Settings().server.concurrency.lease_storage
    assert not Settings().server.memoize_block_auto_registration


_VACUUM = """
import asyncio
from prefect.server.database import provide_database_interface
from prefect.server.services import db_vacuum

async def once():
    database = provide_database_interface()
    await db_vacuum.vacuum_old_flow_runs(db=database)
    await db_vacuum.vacuum_events_with_retention_overrides(db=database)
    await db_vacuum.vacuum_old_events(db=database)

asyncio.run(once())
"""
_OF_RUNS = ("flow_run", "flow_run_state", "task_run", "task_run_state", "log", "artifact")
_OF_EVENTS = ("events", "event_resources")


def _counts(database: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(database)) as opened:
        tables = (*_OF_RUNS, *_OF_EVENTS)
        return {table: opened.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}


def _make_older(database: Path, days: int) -> None:
    """Move everything that has happened to some days earlier."""
    with contextlib.closing(sqlite3.connect(database)) as opened, opened:
        for table in (*_OF_RUNS, *_OF_EVENTS):
            columns = [row[1] for row in opened.execute(f"PRAGMA table_info({table})") if row[2].upper() == "TIMESTAMP"]
            columns += [row[1] for row in opened.execute(f"PRAGMA table_info({table})") if row[2].upper() == "DATETIME"]
            # To the microsecond: states of one run that follow at once would be one in milliseconds.
            moved = ", ".join(
                f"{name} = strftime('%Y-%m-%d %H:%M:%S', substr({name}, 1, 19), '-{days} days') || substr({name}, 20)"
                for name in columns
            )
            opened.execute(f"UPDATE {table} SET {moved}")


@pytest.mark.nightly
def test_prefects_vacuum_takes_what_is_older_than_its_time(
    engine: Engine, prepare_served: Callable[[Path], None], unitball: CommandLine, tmp_path: Path
) -> None:
    """Under the settings of `unitball serve`, on the database of a run: events after 7 days, the rest after 30."""
    unitball.trained("--dataset", "wine", "--algorithm", "noisy-gd", "--epsilon", 1)
    served = tmp_path / "served"
    prepare_served(served)
    database = prefect_database(served)
    # As it is after a run, writes of the moment included.
    with (
        contextlib.closing(sqlite3.connect(prefect_database(engine.root))) as used,
        contextlib.closing(sqlite3.connect(database)) as opened,
    ):
        used.backup(opened)
    with contextlib.closing(sqlite3.connect(database)) as opened, opened:
        # Other tests' runs may be under way or have been broken off; a start of `unitball serve` ends those.
        opened.execute("DELETE FROM flow_run WHERE state_type != 'COMPLETED'")
        for table in ("flow_run_state", "log", "artifact"):
            opened.execute(f"DELETE FROM {table} WHERE flow_run_id NOT IN (SELECT id FROM flow_run)")

    def vacuum() -> dict[str, int]:
        settings = {
            **Serving(root=served).prefect_settings(),
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}",
            "PREFECT_HOME": str(tmp_path / "home"),
        }
        subprocess.run([sys.executable, "-c", _VACUUM], env=clean_environment(**settings), check=True, timeout=300)
        return _counts(database)

    young = _counts(database)
    assert all(young.values()), young
    assert vacuum() == young
    _make_older(database, 8)
    assert vacuum() == young | dict.fromkeys(_OF_EVENTS, 0)
    _make_older(database, 23)
    assert not any(vacuum()[table] for table in ("flow_run", "flow_run_state", "log", "artifact", *_OF_EVENTS))
    with contextlib.closing(sqlite3.connect(database)) as opened:
        # The file keeps its size; what is free in it is used before it grows again.
        assert opened.execute("PRAGMA freelist_count").fetchone()[0] > 20


def test_old_results_and_deleted_runs_go(tracked_root: Path) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import ViewType

    client = MlflowClient(tracking_uri=own_database(tracked_root))
    kept, deleted = (client.create_run("0") for _ in range(2))
    for run in (kept, deleted):
        client.log_param(run.info.run_id, "a", 1)
    client.delete_run(deleted.info.run_id)
    results = Layout(tracked_root).prefect / "results"
    results.mkdir(parents=True)
    for name, days in (("old", 40), ("new", 1)):
        (results / name).write_text("{}")
        os.utime(results / name, (time.time() - days * 86400,) * 2)
    assert remove_old_results(tracked_root, 30) == 1
    assert [path.name for path in results.iterdir()] == ["new"]
    remove_deleted_runs(tracked_root, 30)
    assert client.get_run(deleted.info.run_id).info.lifecycle_stage == "deleted"
    remove_deleted_runs(tracked_root, 0)
    assert [run.info.run_id for run in client.search_runs(["0"], run_view_type=ViewType.ALL)] == [kept.info.run_id]


def test_mlflow_is_asked_to_remove_where_anything_was_deleted(
    tracked_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run, an experiment or a model; otherwise not, since it takes seconds to import."""
    from mlflow import MlflowClient

    asked: list[int] = []
    monkeypatch.setattr("mlflow.cli.gc", lambda *_, **__: asked.append(1))
    client = MlflowClient(tracking_uri=own_database(tracked_root))
    empty = client.create_experiment("empty")
    run, model = client.create_run("0").info.run_id, client.create_logged_model("0").model_id
    remove_deleted_runs(tracked_root, 30)
    assert asked == []
    client.delete_run(run)
    remove_deleted_runs(tracked_root, 30)
    client.restore_run(run)
    client.delete_experiment(empty)
    remove_deleted_runs(tracked_root, 30)
    client.restore_experiment(empty)
    client.delete_logged_model(model)
    remove_deleted_runs(tracked_root, 30)
    assert len(asked) == 3
