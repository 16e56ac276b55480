"""A root's databases on one PostgreSQL server: made, moved there from files, and never in two places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import InputError, SecretError, StorageError
from storage.layout import Layout
from storage.ledger.charges import Cap
from storage.ledger.ledger import Ledger
from storage.ledger.moving import make_databases
from tasks.host.places import settle
from tasks.runtime import stores
from tasks.runtime.settings import PARTS, DatabaseServer, ledger_url, recorded_server
from tasks.runtime.stores import open_ledger_database, use_database_server
from tests.support.ledgers import SumOfEpsilons, release, request, spent
from tests.support.postgresql import PostgreSQL


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgreSQL]:
    with PostgreSQL.running() as server:
        yield server


@pytest.fixture
def server(postgresql: PostgreSQL) -> Iterator[DatabaseServer]:
    """A server without databases of ours."""
    yield (found := DatabaseServer(postgresql.url("clinic")))
    for part in PARTS:
        postgresql.sql("postgres", f'DROP DATABASE IF EXISTS "{found.name(part)}" WITH (FORCE)')


def the_ledger() -> Ledger:
    return Ledger(open_ledger_database(), SumOfEpsilons())


@pytest.fixture
def charged(root: Path) -> Path:
    """A root with a ledger in a file, and something charged."""
    ledger = the_ledger()
    ledger.open_account("clinic", Cap(3, 1e-5))
    ledger.charge(request(release("a"), release("b", 0.5)), {"0": "s0"})
    return root


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://h/x", "mysql"),
        ("h:5432/x", "postgresql://"),
        ("postgresql://h/../etc", "prefix"),
        ("postgresql://h/Clinic", "'Clinic'"),
        ("postgresql://[h/x", "read"),
    ],
)
def test_other_urls_are_refused(url: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        DatabaseServer(url)


def test_a_password_does_not_show_itself() -> None:
    server = DatabaseServer("postgresql://us%40er:pass%25word@db.example:5433/clinic?password=pass%25word")
    assert "pass" not in f"{server} {server!r} {server.shown}"
    assert server.shown == "postgresql://db.example:5433/clinic"
    assert server.user == "us@er"
    wanted = "postgresql+asyncpg://us%40er:pass%25word@db.example:5433/clinic_prefect?password=pass%25word"
    assert server.database("prefect", "asyncpg") == wanted
    assert DatabaseServer("postgresql://db.example").prefix == "unitball"


@pytest.mark.postgresql
def test_who_may_not_make_databases_is_shown_the_statements(postgresql: PostgreSQL, server: DatabaseServer) -> None:
    postgresql.sql("postgres", "CREATE ROLE clerk LOGIN")
    names = [server.name(part) for part in PARTS]
    as_clerk = DatabaseServer(postgresql.url("clinic", user="clerk"))
    with pytest.raises(StorageError) as caught:
        make_databases(as_clerk.of_name("postgres"), names, shown=as_clerk.shown, owner=as_clerk.user)
    assert "\n" not in str(caught.value)
    for statement in str(caught.value).partition("run: ")[2].split(";")[:-1]:
        postgresql.sql("postgres", statement)
    make_databases(as_clerk.of_name("postgres"), names, shown=as_clerk.shown, owner=as_clerk.user)
    owners = postgresql.sql(
        "postgres", "SELECT datname FROM pg_database JOIN pg_roles r ON datdba = r.oid WHERE rolname = 'clerk'"
    )
    assert sorted(owners.split()) == sorted(names)
    for name in names:
        postgresql.sql("postgres", f'DROP DATABASE "{name}"')
    postgresql.sql("postgres", "DROP ROLE clerk")


@pytest.mark.postgresql
def test_a_server_that_does_not_answer_is_one_line(root: Path) -> None:
    with pytest.raises(StorageError, match=r"start it.*URL") as caught:
        use_database_server(root, DatabaseServer("postgresql://unitball:hidden@127.0.0.1:1/clinic"))
    assert "hidden" not in str(caught.value)
    assert recorded_server(root) is None


@pytest.mark.postgresql
def test_a_ledger_is_moved_and_charged_on(charged: Path, server: DatabaseServer) -> None:
    before = the_ledger()
    use_database_server(charged, server)
    ledger = the_ledger()
    assert ledger_url() == server.url.replace("/clinic", "/clinic_ledger")
    assert spent(ledger) == 1.5
    assert ledger.charge(request(release("a")), {"0": "s0"}).already_charged == ("a",)
    ledger.charge(request(release("c")), {"0": "s0"})
    assert spent(the_ledger()) == 2.5
    assert ledger.verify() == []
    # What still holds the file of before charges nothing any more.
    with pytest.raises(StorageError):
        before.charge(request(release("d")), {"0": "s0"})
    assert not Layout(charged).ledger.exists()
    use_database_server(charged, server)
    assert spent(the_ledger()) == 2.5


@pytest.mark.postgresql
def test_a_process_that_waits_for_the_file_is_refused_when_it_has_moved(charged: Path, server: DatabaseServer) -> None:
    before = the_ledger()
    retired = Layout(charged).ledger
    use_database_server(charged, server)
    retired.with_name("ledger.sqlite.moved").rename(retired)
    with pytest.raises(StorageError, match="moved to PostgreSQL"):
        before.charge(request(release("d")), {"0": "s0"})
    with pytest.raises(StorageError, match="interrupted"):
        the_ledger()
    use_database_server(charged, server)
    assert spent(the_ledger()) == 1.5


@pytest.mark.postgresql
@pytest.mark.parametrize("step", ["make_databases", "move_ledger", "record_server", "after"])
def test_a_move_killed_anywhere_is_repeated(
    step: str, charged: Path, server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Passes every handler, as a kill does."""

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if step == "after":
            patch.setattr(Path, "replace", die)
        else:
            patch.setattr(stores, step, die)
        with pytest.raises(Killed):
            use_database_server(charged, server)
    if step not in ("record_server", "after"):
        # The old place is still in force, and what is charged there is not lost.
        the_ledger().charge(request(release("between", 0.25)), {"0": "s0"})
    use_database_server(charged, server)
    assert spent(the_ledger()) == (1.5 if step in ("record_server", "after") else 1.75)
    assert the_ledger().verify() == []


@pytest.mark.postgresql
def test_what_was_charged_after_a_killed_copy_is_copied_too(
    charged: Path, server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(stores, "record_server", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            use_database_server(charged, server)
    the_ledger().charge(request(release("late", 0.25)), {"0": "s0"})
    use_database_server(charged, server)
    assert spent(the_ledger()) == 1.75


@pytest.mark.postgresql
def test_two_roots_cannot_share_one_prefix(
    charged: Path, server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_database_server(charged, server)
    monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / "other"))
    the_ledger().open_account("clinic", Cap(3, 1e-5))
    with pytest.raises(InputError, match=r"clinic_ledger.*another"):
        use_database_server(tmp_path / "other", server)
    monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / "third"))
    use_database_server(tmp_path / "third", server)
    with pytest.raises(SecretError):
        the_ledger()


@pytest.mark.postgresql
def test_another_server_must_hold_the_ledger(charged: Path, server: DatabaseServer, postgresql: PostgreSQL) -> None:
    use_database_server(charged, server)
    with pytest.raises(InputError, match="postgresql:///elsewhere"):
        use_database_server(charged, DatabaseServer(postgresql.url("elsewhere")))
    assert recorded_server(charged) == server


def test_a_second_ledger_by_variable_is_refused(charged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.runtime.settings import record_server

    record_server(charged, DatabaseServer("postgresql://h/clinic"))
    monkeypatch.setenv("UNITBALL_LEDGER", "postgresql://h/theirs")
    with pytest.raises(InputError, match="UNITBALL_LEDGER"):
        ledger_url()


@pytest.mark.postgresql
def test_the_places_of_a_moved_root_are_rewritten_on_the_server(server: DatabaseServer, tmp_path: Path) -> None:
    from sqlalchemy import create_engine, text

    make_databases(server.of_name("postgres"), [server.name("mlflow")], shown=server.shown)
    address = server.database("mlflow")
    engine = create_engine(address)
    here, there = (tmp_path / name / "artifacts" for name in ("here", "there"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE runs (artifact_uri VARCHAR(200), number INTEGER)"))
        connection.execute(text("INSERT INTO runs VALUES (:place, 1)"), {"place": f"{here.as_uri()}/clinic/a"})
    assert not settle(address, here, shown=server.shown)
    assert settle(address, there, shown=server.shown)
    assert not settle(address, there, shown=server.shown)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT artifact_uri FROM runs")).scalar_one() == f"{there.as_uri()}/clinic/a"
    long = tmp_path / ("x" * 180) / "artifacts"
    with pytest.raises(StorageError, match="too long"):
        settle(address, long, shown=server.shown)
    assert not settle(address, there, shown=server.shown), "all of it or nothing"
    engine.dispose()
