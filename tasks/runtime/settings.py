"""Settings of a root: its folder, its databases, the MLflow that its runs go to, and who can reach them."""

import ipaddress
import json
import logging
import math
import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from storage.atomic import write_bytes, writing
from storage.confined import kept_memory
from storage.errors import InputError, StorageError
from storage.layout import Layout
from tasks.runtime.standing import apart

_warned: set[Path] = set()


def keep_private() -> None:
    """Let what this process writes from now on be its user's alone: files 0600, folders 0700."""
    os.umask(0o077)


def use_own_temporary_folder(layout: Layout) -> None:
    """Let this process and its children keep temporary files below the root.

    Prefect's runner works in a folder of one fixed name in the shared one, which the first user that runs one owns.
    """
    folder = layout.prefect / "temporary"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def check_permissions(layout: Layout) -> None:
    """Refuse a root with private rows that others can enter; warn, once a process, of another that they can.

    Raises
    ------
    storage.errors.InputError
        With the command that repairs it.
    """
    mode = stat.S_IMODE(layout.root.stat().st_mode)
    if not mode & 0o077:
        return
    message = (
        f"{layout.root} has mode {mode:04o}: users other than its owner can access it; run: chmod -R go= {layout.root}"
    )
    # Fingerprints are kept of private rows only.
    if any(layout.datasets.glob("*/fingerprints.npy")):
        raise InputError(f"{message} (it holds private rows)")
    if layout.root not in _warned:
        _warned.add(layout.root)
        logging.getLogger(__name__).warning("%s", message)


@contextmanager
def restoring(*beginnings: str) -> Iterator[None]:
    """Put back afterwards what the variables whose names begin so were before, unset ones included.

    The environment is the process's.
    """
    before = {name: value for name, value in os.environ.items() if name.startswith(beginnings)}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(beginnings) and name not in before]:
            del os.environ[name]
        os.environ |= before


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
        If the URL has another scheme, or the prefix is not a name.
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
        try:
            self._parts.port  # noqa: B018 - it is looked at when it is asked for
        except ValueError:
            raise InputError("the database URL's port is not a number from 0 to 65535; correct it") from None

    @property
    def _parts(self) -> SplitResult:
        try:
            return urlsplit(self.url)
        except ValueError:
            raise InputError("the database URL cannot be read; give postgresql://user@host:port/prefix") from None

    @property
    def prefix(self) -> str:
        """Prefix of the names of the databases."""
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
        If the file that states it cannot be read, or is invalid.
    """
    try:
        return DatabaseServer(_file(root).read_text().strip())
    except (FileNotFoundError, NotADirectoryError):
        # A root that cannot be there has no record either; whoever writes there says so.
        return None
    except (InputError, UnicodeDecodeError) as error:
        raise StorageError(
            f"{_file(root)}, which records the place of this root's databases, is damaged ({error}); restore it from "
            "a back-up"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot read {_file(root)}: {error.strerror}; its owner must be able to read it") from error


def record_server(root: Path, server: DatabaseServer) -> None:
    """Note where a root's databases are, for its owner alone."""
    write_bytes(_file(root), f"{server.url}\n".encode(), mode=0o600)


_VARIABLE = "MLFLOW_TRACKING_URI"
# Once, without MLflow's minutes of trying again: somebody waits for an answer.
_AT_ONCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
_GLOBAL = threading.RLock()
# Where MLflow's own functions point, and pointed before, while one root is worked on within another.
_POINTED: list[str] = []


class TrackingError(StorageError):
    """The MLflow server that was named does not answer, or refuses this user."""


def own_database(root: Path) -> str:
    """Return the address of a root's own MLflow database; on a server it may hold a password."""
    server = recorded_server(root)
    return f"sqlite:///{Layout(root).mlflow_database}" if server is None else server.database("mlflow")


def tracking_uri(root: Path) -> str:
    """Return where the runs of a root go: ``MLFLOW_TRACKING_URI``, or the root's own database."""
    # Not while MLflow is pointed elsewhere: it sets the variable itself for that moment.
    with _GLOBAL:
        return os.environ.get(_VARIABLE) or own_database(root)


def has_own_database(root: Path) -> bool:
    """Whether the runs of a root go to its own database."""
    return tracking_uri(root) == own_database(root)


def server_address() -> str | None:
    """Return the address of the server that was named, without a user or password in it; None where there is none."""
    parts = urlsplit(os.environ.get(_VARIABLE, ""))
    if parts.scheme not in ("http", "https"):
        return None
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")


@contextmanager
def use_tracking_uri(root: Path) -> Iterator[None]:
    """Point MLflow's own functions to where the runs of a root go, for this thread alone, and back afterwards."""
    with _GLOBAL:
        _POINTED.append(tracking_uri(root))
        try:
            _point(_POINTED[-1])
            yield
        finally:
            _POINTED.pop()
            _point(_POINTED[-1] if _POINTED else os.environ.get(_VARIABLE))


def _point(uri: str | None) -> None:
    """Point MLflow's own functions to an address, or nowhere, and keep ``MLFLOW_TRACKING_URI`` as the user has it.

    MLflow puts the address into its variable, too, where whoever looks meanwhile (another root that is worked on
    within, another thread, a process that starts) would take it for the user's choice, and might put it back for good.
    """
    import mlflow

    with restoring(_VARIABLE):
        mlflow.set_tracking_uri(uri)


def require_server(root: Path) -> None:
    """Ask the server that was named whether it lets this user in, so that a run that cannot be logged never begins.

    Raises
    ------
    TrackingError
        If it does not answer or refuses, naming the variables to set.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    with _GLOBAL, restoring(*_AT_ONCE):
        os.environ.update(_AT_ONCE)
        try:
            MlflowClient(tracking_uri=tracking_uri(root)).search_experiments(max_results=1)
        except MlflowException as error:
            raise refusal(error) from error


def refusal(error: Exception) -> TrackingError:
    """Return what a server has refused, in one line without secrets."""
    address = server_address() or _VARIABLE
    message = " ".join(str(error).replace(os.environ.get(_VARIABLE, address).rstrip("/"), address).split())
    return TrackingError(
        f"MLflow at {address} refuses: {message:.300}; check {_VARIABLE}, MLFLOW_TRACKING_USERNAME and "
        f"MLFLOW_TRACKING_PASSWORD, or unset {_VARIABLE} to log under the root"
    )


ROOT_VARIABLE = "UNITBALL_ROOT"
LEDGER_VARIABLE = "UNITBALL_LEDGER"
MARK_VARIABLE = "UNITBALL_LEDGER_MARK"
MLFLOW_VARIABLE = "UNITBALL_MLFLOW_URL"
SQL_VARIABLE = "UNITBALL_SQL_SECONDS"
WEBHOOK_VARIABLE = "UNITBALL_WEBHOOK"
PREFECT_VARIABLE = "PREFECT_API_URL"
_PORTS = {"UNITBALL_PREFECT_PORT": "4210", "UNITBALL_MLFLOW_PORT": "5000"}
EMBEDDED_VARIABLE = "UNITBALL_EMBEDDED_API_URL"
"""Says that PREFECT_API_URL is a command's own server, gone when the command is, and not the user's choice."""


def current_root() -> Path:
    """Return the absolute root: ``UNITBALL_ROOT``, or one place per user, so that budgets depend on no folder."""
    if named := os.environ.get(ROOT_VARIABLE):
        return _path(os.path.realpath(Path(named).expanduser() if named.startswith("~") else named))
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return (data / "unitball").expanduser().resolve()


@lru_cache(maxsize=64)
def _path(absolute: str) -> Path:
    # A run asks a thousand times, and making a path takes as long as asking the disk for it.
    return Path(absolute)


@contextmanager
def isolated_root(root: Path) -> Iterator[None]:
    """Work on a root that shares nothing with the user's: no ledger, mark, secret or server that the environment names.

    The environment belongs to the whole process, so no other thread may work on a root meanwhile.
    """
    with apart(), restoring("UNITBALL_", "MLFLOW_"):
        for name in [name for name in os.environ if name.startswith(("UNITBALL_", "MLFLOW_"))]:
            del os.environ[name]
        os.environ |= {ROOT_VARIABLE: str(root), MARK_VARIABLE: str(root.with_name(f"{root.name}-marks"))}
        yield


def current_layout() -> Layout:
    """Return the layout of the current root, its folders made; this process then writes for its user alone.

    Raises
    ------
    storage.errors.InputError
        If it holds private rows and others can enter it.
    storage.errors.StorageError
        If the root cannot be written.
    """
    keep_private()
    layout = Layout(current_root())
    with writing(layout.root):
        # An empty folder is about to become a root, and its owner's alone.
        if not layout.marker.exists() and layout.root.is_dir() and not any(layout.root.iterdir()):
            layout.root.chmod(0o700)
    layout.prepare()
    check_permissions(layout)
    return layout


def ledger_url() -> str | None:
    """Return the database URL of a ledger that is not the root's own SQLite file, None where it is that.

    ``UNITBALL_LEDGER`` names one that several roots share; a root that is served from PostgreSQL has its own there.

    Raises
    ------
    storage.errors.InputError
        If both do and differ (one population must never have two ledgers), or the value is not a URL.
    storage.errors.StorageError
        If the root's ledger was being moved when that was killed.
    """
    shared, server = os.environ.get(LEDGER_VARIABLE) or None, recorded_server(current_root())
    if shared is not None and "://" not in shared:
        # A file's name would mean another ledger, with its whole budget, from another folder.
        raise InputError(
            f"{LEDGER_VARIABLE} is not a URL; give postgresql://user@host/database, or unset it to use the root's own "
            "ledger"
        )
    if server is None:
        return shared
    own = server.database("ledger").replace("+psycopg", "", 1)
    if shared not in (None, own):
        raise InputError(
            f"{LEDGER_VARIABLE} names a database that differs from that of this root's ledger (on {server.shown}); "
            f"unset {LEDGER_VARIABLE}"
        )
    if Layout(current_root()).ledger.exists():
        raise StorageError(
            f"moving the ledger of {current_root()} to {server.shown} was interrupted; nothing was charged. Finish it: "
            "unitball serve --database …"
        )
    return own


def _servers_file(root: Path) -> Path:
    return Layout(root).prefect / "servers.json"


def record_servers(root: Path, addresses: Mapping[str, str]) -> None:
    """Note at which addresses this root is being served; nothing where it no longer is."""
    if addresses:
        write_bytes(_servers_file(root), json.dumps(dict(addresses)).encode(), mode=0o600)
    else:
        _servers_file(root).unlink(missing_ok=True)


def recorded_servers(root: Path) -> dict[str, str]:
    """Return the addresses of the root's own servers by name: ``prefect`` (its API) and ``mlflow``."""
    try:
        servers = json.loads(_servers_file(root).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return {str(name): str(address) for name, address in servers.items()} if isinstance(servers, dict) else {}


def marks_folder() -> Path:
    """Return where high-water marks of ledgers lie, outside every root: ``UNITBALL_LEDGER_MARK``, or per user.

    Raises
    ------
    storage.errors.InputError
        If that is a relative path.
    """
    value = os.environ.get(MARK_VARIABLE)
    if value and not Path(value).expanduser().is_absolute():
        # From another folder it would name marks that nobody has written, and an older ledger would pass.
        raise InputError(f"{MARK_VARIABLE} is {value!r}; give an absolute path")
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return Path(value).expanduser().absolute() if value else state / "unitball" / "ledgers"


def query_seconds() -> float:
    """Return how long SQL of the user's may take: ``UNITBALL_SQL_SECONDS``, or five minutes.

    Raises
    ------
    storage.errors.InputError
        If it is not a positive number.
    """
    value = os.environ.get(SQL_VARIABLE, "").strip() or "300"
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"{SQL_VARIABLE} is {value!r}; give seconds, such as 600")
    return seconds


def mlflow_page(run_id: str) -> str:
    """Return the address of a run's page: on a server that was named, at ``UNITBALL_MLFLOW_URL``, or as usual."""
    usual = f"http://127.0.0.1:{os.environ.get('UNITBALL_MLFLOW_PORT') or 5000}"
    served = os.environ.get(MLFLOW_VARIABLE) or recorded_servers(current_root()).get("mlflow", usual)
    return f"{(server_address() or served).rstrip('/')}/#/runs/{run_id}"


def prefect_pages(api: str) -> str:
    """Return where a Prefect server's pages are, from its API's address.

    A server has two versions of its pages, below ``/`` and below ``/v2``. It opens the second by itself, and every link
    of ours leads there.
    """
    return f"{api.rstrip('/').removesuffix('/api')}/v2"


def flow_run_page(flow_run_id: str) -> str:
    """Return the address of a flow run's page: at ``PREFECT_API_URL``, the served root or the default."""
    api = os.environ.get("PREFECT_API_URL")
    # The embedded server has no pages and is gone afterwards; `unitball serve` shows its runs.
    if not api or api == os.environ.get(EMBEDDED_VARIABLE):
        usual = f"http://127.0.0.1:{os.environ.get('UNITBALL_PREFECT_PORT') or 4210}/api"
        api = recorded_servers(current_root()).get("prefect", usual)
    return f"{prefect_pages(api)}/runs/flow-run/{flow_run_id}"


def webhook_address() -> str | None:
    """Return the address that ``UNITBALL_WEBHOOK`` names, or None.

    Raises
    ------
    InputError
        As :func:`require_webhook` does.
    """
    address = os.environ.get(WEBHOOK_VARIABLE, "").strip()
    return require_webhook(address, WEBHOOK_VARIABLE) if address else None


def require_webhook(address: str, called: str) -> str:
    """Return an address if alerts may and can be sent there.

    Parameters
    ----------
    address : str
        It may hold a token, and no message shows it.
    called : str
        What messages call it.

    Raises
    ------
    InputError
        If it is not an address, or neither https nor on this machine: the messages name data sets and budgets.
    """
    parts = _address(address)
    if parts is None or re.search(r"[^!-~]", address):
        raise InputError(f"{called} is not an address; write https://HOST/PATH, in letters without spaces or accents")
    host = parts.hostname or ""
    if host and (parts.scheme == "https" or (parts.scheme == "http" and _is_local(host))):
        return address
    raise InputError(f"{called} must begin with https://, or with http:// on this machine")


def _address(text: str) -> SplitResult | None:
    """Return the parts of an address, None where it is none."""
    try:
        parts = urlsplit(text)
        return parts if parts.port is None or parts.port > 0 else None
    except ValueError:
        # A bracket that stays open, or a port beyond 65535.
        return None


def prefect_address() -> str:
    """Return the address of the Prefect server that ``PREFECT_API_URL`` names; empty where it names none.

    Raises
    ------
    InputError
        If it is not an address.
    """
    address = os.environ.get(PREFECT_VARIABLE, "")
    parts = _address(address)
    if address and (parts is None or parts.scheme not in ("http", "https") or not parts.hostname):
        raise InputError(f"{PREFECT_VARIABLE} is {address!r}; give a server's API, as in http://127.0.0.1:4210/api")
    return address


def misread_settings() -> Iterator[str]:
    """Yield what is wrong with what the environment says, and with what a root remembers of it, one sentence each."""
    checks: tuple[Callable[[], object], ...] = (
        webhook_address,
        prefect_address,
        query_seconds,
        kept_memory,
        marks_folder,
        ledger_url,
        *(partial(_served_port, name) for name in _PORTS),
    )
    for check in checks:
        try:
            check()
        except (InputError, StorageError) as error:
            yield str(error)


def _served_port(name: str) -> str:
    value = os.environ.get(name) or _PORTS[name]
    if not (value.isascii() and value.isdecimal() and 0 < int(value) < 2**16):
        raise InputError(f"{name} is {value!r}; give a port, from 1 to 65535")
    return value


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
