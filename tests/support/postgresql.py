"""A PostgreSQL server of the tests' own: Debian's programs, a temporary directory, a Unix socket, no network."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_SERVER_USER = "postgres"


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: path.parts[-3].zfill(4))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    if on_path:
        return Path(on_path).resolve().parent
    pytest.skip("PostgreSQL's server programs are not installed (Debian: apt-get install postgresql)")


def _server_user() -> str | None:
    """PostgreSQL refuses to run as root: then it runs as the user that Debian's package makes."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(_SERVER_USER)
    except KeyError:
        pytest.skip(f"PostgreSQL does not run as root and there is no user {_SERVER_USER!r} to run it as")
    return _SERVER_USER


@dataclass(frozen=True)
class PostgreSQL:
    """A server under a temporary directory, which a test may kill, back up and restore."""

    place: Path
    programs: Path
    user: str | None

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[PostgreSQL]:
        """Start a server, and remove everything afterwards; skips the test where programs or a user are missing."""
        programs, user = _programs(), _server_user()
        # The name of a Unix socket has about 100 characters at most, so not under pytest's own directory.
        server = cls(Path(tempfile.mkdtemp(prefix="unitball-pg-")), programs, user)
        try:
            if user is not None:
                shutil.chown(server.place, user=user)
            initdb = ["-A", "trust", "-U", "unitball", "--no-sync", "-E", "UTF8", "--locale=C"]
            server.run("initdb", "-D", str(server.data), *initdb)
            server.start()
            try:
                yield server
            finally:
                if (server.data / "postmaster.pid").exists():
                    server.stop()
        finally:
            shutil.rmtree(server.place, ignore_errors=True)

    @property
    def data(self) -> Path:
        """Its directory of data."""
        return self.place / "data"

    def url(self, database: str, user: str = "unitball") -> str:
        """Return the URL of a database by the Unix socket."""
        return f"postgresql://{user}@/{database}?host={self.place}"

    def run(self, program: str, *arguments: str) -> str:
        """Run one of its programs as its user; return what it prints."""
        done = subprocess.run(
            [self.programs / program, *arguments],
            user=self.user,
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{program} failed: {done.stderr or done.stdout}"
        return done.stdout

    def start(self) -> None:
        """Start it."""
        options = (
            f"-c listen_addresses='' -c unix_socket_directories='{self.place}' -c max_connections=120 -c fsync=off "
            "-c shared_buffers=32MB"
        )
        self.run("pg_ctl", "start", "-w", "-D", str(self.data), "-l", str(self.place / "log"), "-o", options)

    def stop(self, mode: str = "immediate") -> None:
        """Stop it: at once, as a power cut would, or in another of its modes."""
        self.run("pg_ctl", "stop", "-w", "-m", mode, "-D", str(self.data))

    def sql(self, database: str, statement: str) -> str:
        """Run one statement; return its rows."""
        return self.run("psql", "-h", str(self.place), "-U", "unitball", "-d", database, "-Atc", statement)


@contextmanager
def running_postgresql() -> Iterator[str]:
    """Start a server and yield the URL of an empty database."""
    with PostgreSQL.running() as server:
        server.run("createdb", "-h", str(server.place), "-U", "unitball", "ledger")
        yield server.url("ledger")
