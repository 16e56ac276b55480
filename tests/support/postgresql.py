"""A PostgreSQL server of the tests' own: Debian's programs, a temporary directory, a Unix socket, no network."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def running_postgresql() -> Iterator[str]:
    """Start a server, yield the URL of an empty database, stop the server and remove everything.

    Skips the test, with the reason, where the programs or a user to run them are missing.
    """
    programs, user = _programs(), _server_user()
    # The name of a Unix socket has about 100 characters at most, so not under pytest's own directory.
    place = Path(tempfile.mkdtemp(prefix="unitball-pg-"))
    data = place / "data"

    def run(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [programs / program, *arguments], user=user, cwd=place, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{program} failed: {done.stderr or done.stdout}"

    try:
        if user is not None:
            shutil.chown(place, user=user)
        run("initdb", "-D", str(data), "-A", "trust", "-U", "unitball", "--no-sync", "-E", "UTF8", "--locale=C")
        options = (
            f"-c listen_addresses='' -c unix_socket_directories='{place}' -c max_connections=120 -c shared_buffers=32MB"
        )
        run("pg_ctl", "start", "-w", "-D", str(data), "-l", str(place / "log"), "-o", options)
        try:
            run("createdb", "-h", str(place), "-U", "unitball", "ledger")
            yield f"postgresql://unitball@/ledger?host={place}"
        finally:
            run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(data))
    finally:
        shutil.rmtree(place, ignore_errors=True)
