"""A root that was moved, copied or put back at another path: it works there, and of two copies one alone charges."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unitball as notebook
from storage.errors import StorageError
from storage.layout import Layout
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.host.places import settle
from tests.support import forks
from tests.support.called import runs_called
from tests.support.command_line import CommandLine
from tests.support.private_rows import CLASSES, DIMENSION, PrivateRows, write_rows

MODEL = "clinic.noisy-gd"
TRAIN = ("--dataset", "clinic", "--algorithm", "noisy-gd", "--param", "trainer.iterations=2")
# What names files that are read: in messages between processes, in the model's own description, nowhere else.
PLACES = {
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
}


def settled(root: Path) -> bool:
    layout = Layout(root)
    return settle(f"sqlite:///{layout.mlflow_database}", layout.artifacts, shown=str(layout.mlflow_database))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> PrivateRows:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.libsvm", 300, seed=5)


@pytest.fixture(scope="module")
def pattern(rows: PrivateRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a root, and its marks, of private rows and a model that was trained and measured on them."""
    folder = tmp_path_factory.mktemp("pattern")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(folder / "root"))
        patch.setenv("UNITBALL_LEDGER_MARK", str(folder / "marks"))
        ingest(
            IngestRequest(
                name="clinic",
                format="libsvm",
                path=rows.path,
                dimension=DIMENSION,
                classes=CLASSES,
                epsilon_cap=3.0,
                delta_cap=1e-4,
            )
        )
        notebook.train("clinic", algorithm="noisy-gd", parameters={"trainer.iterations": 2}, epsilon=0.5)
    return folder


@pytest.fixture
def asked(rows: PrivateRows, tmp_path: Path) -> Path:
    """Rows to predict."""
    pq.write_table(pa.table({"features": rows.features.tolist()}), tmp_path / "asked.parquet")
    return tmp_path / "asked.parquet"


@pytest.fixture
def copied(pattern: Path, root: Path, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """A root of the test's own like that, which knows no other path than its own."""
    for name in ("root", "marks"):
        shutil.copytree(pattern / name, root.with_name(name), symlinks=True)
    assert settled(root)
    return CommandLine(root, capfd)


@pytest.fixture
def used(copied: CommandLine) -> Iterator[CommandLine]:
    """The same, where runs are plain calls."""
    with runs_called():
        yield copied


def go_to(commands: CommandLine, place: Path, patch: pytest.MonkeyPatch) -> None:
    """Let commands of this process work on another root."""
    patch.setenv("UNITBALL_ROOT", str(place))
    commands.root = place.resolve()


def spent(commands: CommandLine) -> float:
    return float(commands.succeeds("budget", "clinic")["epsilon_spent"])


def named_in(database: Path, text: str) -> set[tuple[str, str]]:
    """Return the columns of a database in which a text stands."""
    with closing(sqlite3.connect(database)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {(table, row[1]) for table in tables for row in connection.execute(f'PRAGMA table_info("{table}")')}
        return {
            (table, column)
            for table, column in columns
            if connection.execute(
                f'SELECT 1 FROM "{table}" WHERE instr(CAST("{column}" AS TEXT), ?) LIMIT 1', (text,)
            ).fetchone()
        }


def works(commands: CommandLine, asked: Path, tmp_path: Path, epsilon: float = 0.4) -> None:
    """Show, predict, check, repeat at no charge, and train again at the root of the commands."""
    shown = commands("model", "show", MODEL)
    assert shown.code == 0, shown
    predicted = tmp_path / f"predicted-{epsilon}.parquet"
    commands.succeeds("predict", "--model", f"{MODEL}/1", "--input", asked, "--output", predicted)
    before = spent(commands)
    with runs_called():
        assert commands.trained(*TRAIN, "--epsilon", 0.5)["cached"] is True
    assert spent(commands) == before
    commands.trained(*TRAIN, "--epsilon", epsilon)
    assert spent(commands) > before
    assert all(one["problem"] is None for one in commands.succeeds("doctor")["checks"]), commands("doctor")
    commands.succeeds("export", MODEL, "-o", tmp_path / f"run-{epsilon}.zip")
    assert commands("verify", tmp_path / f"run-{epsilon}.zip").code == 0


def test_what_a_used_root_says_of_its_own_path(used: CommandLine, tmp_path: Path) -> None:
    """MLflow's places in four columns; Prefect's history of results; no catalogue, ledger, result or release."""
    path = str(tmp_path / "root")
    layout = Layout(used.root)
    assert named_in(layout.mlflow_database, path) <= {*PLACES, ("unitball_place", "artifacts")}
    assert named_in(layout.ledger, path) == set()
    for folder in (layout.releases, layout.results, layout.datasets, layout.parties, layout.rounds):
        assert not [one for one in folder.rglob("*") if one.is_file() and path.encode() in one.read_bytes()]


@pytest.mark.usefixtures("engine")
def test_a_moved_root_works(copied: CommandLine, asked: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Its runs are flows, as ever."""
    before, moved = copied.root, tmp_path / "elsewhere" / "räume 2"
    moved.parent.mkdir()
    before.rename(moved)
    go_to(copied, moved, monkeypatch)
    works(copied, asked, tmp_path)
    assert not before.exists()
    # Every place of before is one of now.
    assert named_in(Layout(moved).mlflow_database, before.as_uri()) == set()
    place = Layout(moved).artifacts.as_uri()
    assert named_in(Layout(moved).mlflow_database, place) <= {*PLACES, ("unitball_place", "artifacts")}
    with closing(sqlite3.connect(Layout(moved).mlflow_database)) as connection:
        for (uri,) in connection.execute("SELECT artifact_location FROM logged_models"):
            assert Path(unquote(uri.removeprefix("file://"))).exists()


def test_of_two_copies_one_alone_charges(used: CommandLine, asked: Path, tmp_path: Path, monkeypatch: Any) -> None:
    first, second = used.root, tmp_path / "copy"
    shutil.copytree(first, second, symlinks=True)
    go_to(used, second, monkeypatch)
    # The copy reads its own files, which the original's absence shows.
    first.rename(tmp_path / "away")
    assert used("model", "show", MODEL).code == 0
    used.succeeds("predict", "--model", MODEL, "--input", asked, "--output", tmp_path / "first.parquet")
    (tmp_path / "away").rename(first)
    go_to(used, first, monkeypatch)
    used.trained(*TRAIN, "--epsilon", 0.3)
    gone_on = spent(used)
    go_to(used, second, monkeypatch)
    before = spent(used)
    used("train", *TRAIN, "--epsilon", 0.2).refused(1, "high-water mark", "Nothing was charged", "ledger restore")
    assert spent(used) == before
    assert used("model", "show", MODEL).code == 0
    used.succeeds("predict", "--model", MODEL, "--input", asked, "--output", tmp_path / "second.parquet")
    checks = used("doctor", "--json")
    assert checks.code == 1
    assert "another copy of this root" in checks.out
    # Who declares that the other is lost goes on at its price; then the other is refused.
    used.succeeds("ledger", "restore", "--reason", "the first was lost")
    assert spent(used) >= gone_on
    used.trained(*TRAIN, "--epsilon", 0.2)
    go_to(used, first, monkeypatch)
    used("train", *TRAIN, "--epsilon", 0.1).refused(1, "high-water mark", "Nothing was charged")


def test_an_old_copy_that_is_restored_elsewhere_works(
    used: CommandLine, asked: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    shutil.copytree(used.root, tmp_path / "back-up", symlinks=True)
    used.trained(*TRAIN, "--epsilon", 0.3)
    before = spent(used)
    shutil.rmtree(used.root)
    (tmp_path / "back-up").rename(tmp_path / "restored")
    go_to(used, tmp_path / "restored", monkeypatch)
    used("train", *TRAIN, "--epsilon", 0.2).refused(1, "high-water mark", "Nothing was charged")
    used.succeeds("ledger", "restore", "--reason", "the disk was lost")
    assert spent(used) >= before
    used.succeeds("predict", "--model", MODEL, "--input", asked, "--output", tmp_path / "out.parquet")
    used.trained(*TRAIN, "--epsilon", 0.1)
    assert all(one["problem"] is None for one in used.succeeds("doctor")["checks"])


def test_a_root_is_one_by_whatever_way(used: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(used.root)
    monkeypatch.chdir(used.root / "results")
    before = spent(used)
    for way in (tmp_path / "link", tmp_path / "link" / ".." / "root", Path("..")):
        result = used.succeeds("train", *TRAIN, "--epsilon", 0.5, "--root", str(way))
        assert result["epsilon_spent"] > 0
        assert spent(used) == before
    assert named_in(Layout(used.root).mlflow_database, str(tmp_path / "link")) == set()


def places(root: Path) -> set[str]:
    with closing(sqlite3.connect(Layout(root).mlflow_database)) as connection:
        return {
            uri for table, column in PLACES for (uri,) in connection.execute(f"SELECT {column} FROM {table}") if uri
        }


def _killed_while_settling(root: str) -> None:
    """Die at the last table that is rewritten."""
    import sqlalchemy
    from sqlalchemy import event

    dying = [*sorted(PLACES)][-1]

    def look(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(f"UPDATE {dying[0]} SET {dying[1]}"):
            forks.die()

    event.listen(sqlalchemy.Engine, "after_cursor_execute", look)
    settled(Path(root))


def test_who_is_killed_while_settling_leaves_all_of_it_as_it_was(used: CommandLine, tmp_path: Path) -> None:
    before = places(used.root)
    used.root.rename(tmp_path / "moved")
    forks.killed(partial(_killed_while_settling, str(tmp_path / "moved")))
    assert places(tmp_path / "moved") == before
    assert settled(tmp_path / "moved")
    now = places(tmp_path / "moved")
    assert {uri.replace((tmp_path / "moved").as_uri(), used.root.as_uri()) for uri in now} == before
    assert all(uri.startswith((tmp_path / "moved").as_uri()) for uri in now)
    assert not settled(tmp_path / "moved")


def _settled_by(root: str, _number: int) -> bool:
    return settled(Path(root))


def test_of_several_that_settle_at_once_one_does(used: CommandLine, tmp_path: Path) -> None:
    used.root.rename(tmp_path / "moved")
    assert sorted(forks.race(4, partial(_settled_by, str(tmp_path / "moved")))) == [False, False, False, True]
    assert all(uri.startswith((tmp_path / "moved").as_uri()) for uri in places(tmp_path / "moved"))


def test_places_that_only_begin_alike_stay(tmp_path: Path) -> None:
    """Of ``artifacts-2`` beside ``artifacts``, and of a text with a place in its middle."""
    database = tmp_path / "mlflow.db"
    said = ["file:///a/artifacts", "file:///a/artifacts/x", "file:///a/artifacts-2/x", "see file:///a/artifacts/x"]
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE t (said TEXT, number INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?, 1)", [(one,) for one in said])
        connection.commit()
    address = f"sqlite:///{database}"
    assert not settle(address, Path("/a/artifacts"), shown="")
    assert settle(address, Path("/ä b/artifacts"), shown="")
    with closing(sqlite3.connect(database)) as connection:
        now = [one for (one,) in connection.execute("SELECT said FROM t")]
    place = "file:///%C3%A4%20b/artifacts"
    assert now == [place, f"{place}/x", *said[2:]]
    assert settle(address, Path("/a/artifacts"), shown="")
    assert not settle(address, Path("/a/artifacts"), shown="")


def test_a_database_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"no database, but some text that is long enough" * 100)
    with pytest.raises(StorageError, match=r"mlflow.db"):
        settle(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path, shown="mlflow.db")


def test_files_that_are_gone_are_said_by_doctor_and_by_predict(used: CommandLine, asked: Path, tmp_path: Path) -> None:
    Layout(used.root).artifacts.rename(tmp_path / "lost")
    checks = used("doctor", "--json")
    assert checks.code == 1
    assert f"{MODEL}/1 has no file at" in checks.out
    used("predict", "--model", MODEL, "--input", asked, "--output", tmp_path / "out.parquet").refused(
        1, f"version 1 of {MODEL}", "back-up", "--replicate"
    )
