"""A root's services, Prefect's server and MLflow's: the secret that all of them ask for, and which of them run."""

import fcntl
import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from storage.atomic import write_bytes, write_once
from storage.errors import SecretError
from storage.layout import Layout
from tasks.runtime.settings import recorded_servers

USER = "unitball"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Name and password of a root's services, one for all of them.

    The password never shows itself (``repr`` leaves it out); it is handed to processes in their environment, which
    only their own user can read, and never on a command line.
    """

    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """Name and password as basic authentication joins them; Prefect's page asks for it in this form."""
        return f"{USER}:{self.password}"

    def derived(self, purpose: str) -> str:
        """Return a key for one purpose that does not reveal the password."""
        return hmac.digest(self.password.encode(), purpose.encode(), "sha256").hex()


def credentials_file(root: Path) -> Path:
    """Return the file that holds a root's secret: one line, ``unitball:<password>``."""
    return Layout(root).private / "services.secret"


def _fresh() -> bytes:
    return f"{USER}:{secrets.token_urlsafe(32)}\n".encode()


def credentials(root: Path) -> Credentials:
    """Return the credentials of a root's services; made at first use.

    Raises
    ------
    storage.errors.SecretError
        If others than the owner can reach the file, or it is not of its form.
    storage.errors.StorageError
        If the root cannot be written.
    """
    path = credentials_file(root)
    if not path.exists():
        write_once(path, _fresh())
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(1000).decode(errors="replace").strip()
    except OSError as error:
        raise SecretError(f"cannot read {path}: {error.strerror}; its owner must be able to read it") from error
    if mode & 0o077:
        raise SecretError(
            f"{path} has mode {mode:04o}: users other than its owner can access it; "
            f"run: chmod 600 {path} && unitball secret rotate"
        )
    name, _, password = text.partition(":")
    if name != USER or len(password) < 20 or not password.isprintable():
        raise SecretError(f"{path} is damaged (its content is not shown); run: unitball secret rotate")
    return Credentials(password)


def rotate_credentials(root: Path) -> Path:
    """Give a root's services a new secret and return its file; what already runs keeps the old one until it ends.

    Raises
    ------
    storage.errors.StorageError
        If the root cannot be written.
    """
    path = credentials_file(root)
    write_bytes(path, _fresh(), mode=0o600)
    return path


def use_own_server(root: Path) -> None:
    """Let this process's Prefect show the secret where ``PREFECT_API_URL`` is the root's own server, and only there."""
    address = os.environ.get("PREFECT_API_URL")
    if address and address == recorded_servers(root).get("prefect"):
        os.environ.setdefault("PREFECT_API_AUTH_STRING", credentials(root).basic)


def served_lock(root: Path) -> Path:
    """Return the file whose lock is held by the process that serves a root."""
    return Layout(root).prefect / ".lock-served"


def running_servers(root: Path) -> dict[str, str]:
    """Return the addresses of the servers of a root that is being served now: ``prefect`` (its API) and ``mlflow``.

    What a killed process has noted down is not among them: its ports may belong to another process, which must not
    receive the secret. The process that holds the lock keeps Prefect's port open as long.
    """
    try:
        with served_lock(root).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return {}
    except BlockingIOError:
        return recorded_servers(root)
    return {}
