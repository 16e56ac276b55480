"""Where a root's databases are: files under the root, or databases of one PostgreSQL server.

Prefect, MLflow, MLflow's users and the ledger (with the catalogue, which is part of its chain) each have a database of
their own, since Prefect and MLflow share names of tables. Which server it is stands in a file of the root, so that no
command on that root can charge another ledger by forgetting a variable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from storage.atomic import write_bytes
from storage.errors import InputError, StorageError
from storage.layout import Layout

PARTS = ("prefect", "mlflow", "mlflow_users", "ledger")
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,40}")


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """A PostgreSQL server and the prefix of a root's databases on it.

    Parameters
    ----------
    url : str
        ``postgresql://user@host:port/prefix``; the prefix is ``unitball`` where none is given. It may hold a password
        and does not show itself.

    Raises
    ------
    storage.errors.InputError
        If the URL is of another kind, or the prefix is no name.
    """

    url: str = field(repr=False)

    def __post_init__(self) -> None:
        parts = self._parts
        if parts.scheme not in ("postgresql", "postgres"):
            raise InputError(
                f"the database URL begins with {parts.scheme or 'no scheme'!r}; give postgresql://user@host:port/prefix"
            )
        if not _PREFIX.fullmatch(self.prefix):
            raise InputError(
                f"databases cannot be named {self.prefix!r}: the URL's path is the prefix of their names, 1 to 41 "
                "small letters, digits and '_', beginning with a letter"
            )

    @property
    def _parts(self) -> SplitResult:
        try:
            return urlsplit(self.url)
        except ValueError:
            raise InputError("the database URL cannot be read; give postgresql://user@host:port/prefix") from None

    @property
    def prefix(self) -> str:
        """What the names of the databases begin with."""
        return self._parts.path.strip("/") or "unitball"

    @property
    def user(self) -> str:
        """The user that the URL names, empty where it names none."""
        return unquote(self._parts.username or "")

    @property
    def shown(self) -> str:
        """The URL without a user or password, for people."""
        return f"postgresql://{self._parts.netloc.rpartition('@')[2]}/{self.prefix}"

    def name(self, part: str) -> str:
        """Return the name of one database."""
        return f"{self.prefix}_{part}"

    def database(self, part: str, driver: str = "psycopg") -> str:
        """Return SQLAlchemy's URL of one database; it may hold the password."""
        return self.of_name(self.name(part), driver)

    def of_name(self, name: str, driver: str = "psycopg") -> str:
        """Return SQLAlchemy's URL of any database of the server."""
        # By hand: where there is no host, urlunsplit leaves "//" out.
        query = f"?{self._parts.query}" if self._parts.query else ""
        return f"postgresql+{driver}://{self._parts.netloc}/{name}{query}"


def _file(root: Path) -> Path:
    return Layout(root).private / "database.url"


def recorded_server(root: Path) -> DatabaseServer | None:
    """Return the server that holds a root's databases, None where they are files under the root.

    Raises
    ------
    storage.errors.StorageError
        If what says so cannot be read.
    """
    try:
        return DatabaseServer(_file(root).read_text().strip())
    except (FileNotFoundError, NotADirectoryError):
        # A root that cannot be there has no record either; whoever writes there says so.
        return None
    except OSError as error:
        raise StorageError(f"cannot read {_file(root)}: {error.strerror}; its owner must be able to read it") from error


def record_server(root: Path, server: DatabaseServer) -> None:
    """Note where a root's databases are, for its owner alone."""
    write_bytes(_file(root), f"{server.url}\n".encode(), mode=0o600)
