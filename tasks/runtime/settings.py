"""Where state lives: one root folder that holds everything Unitball, MLflow and the embedded Prefect keep."""

from __future__ import annotations

import ipaddress
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from storage.atomic import write_bytes, writing
from storage.errors import InputError, StorageError
from storage.layout import Layout
from tasks.runtime.databases import recorded_server
from tasks.runtime.permissions import check_permissions, keep_private, take_empty_folder
from tasks.runtime.tracking_server import server_address

ROOT_VARIABLE = "UNITBALL_ROOT"
LEDGER_VARIABLE = "UNITBALL_LEDGER"
MARK_VARIABLE = "UNITBALL_LEDGER_MARK"
MLFLOW_VARIABLE = "UNITBALL_MLFLOW_URL"
SQL_VARIABLE = "UNITBALL_SQL_SECONDS"
WEBHOOK_VARIABLE = "UNITBALL_WEBHOOK"
EMBEDDED_VARIABLE = "UNITBALL_EMBEDDED_API_URL"
"""Says that PREFECT_API_URL is a command's own server, gone when the command is, and not the user's choice."""


def default_root() -> Path:
    """Return the folder used where nothing is said: one place per user, so that budgets do not depend on the folder."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "unitball"


def current_root() -> Path:
    """Return the absolute root: ``UNITBALL_ROOT``, or the user's data folder."""
    value = os.environ.get(ROOT_VARIABLE)
    return (Path(value) if value else default_root()).expanduser().resolve()


@contextmanager
def isolated_root(root: Path) -> Iterator[None]:
    """Work on a root that shares nothing with the user's: no ledger, mark, secret or server that the environment names.

    The environment belongs to the whole process, so no other thread may work on a root meanwhile.
    """
    before = {name: value for name, value in os.environ.items() if name.startswith(("UNITBALL_", "MLFLOW_"))}
    for name in before:
        del os.environ[name]
    os.environ |= {ROOT_VARIABLE: str(root), MARK_VARIABLE: str(root.with_name(f"{root.name}-marks"))}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(("UNITBALL_", "MLFLOW_"))]:
            del os.environ[name]
        os.environ |= before


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
        take_empty_folder(layout.root)
    layout.prepare()
    check_permissions(layout)
    return layout


def ledger_url() -> str | None:
    """Return the database URL of a ledger that is not the root's own SQLite file, None where it is that.

    ``UNITBALL_LEDGER`` names one that several roots share; a root that is served from PostgreSQL has its own there.

    Raises
    ------
    storage.errors.InputError
        If both do and differ: one population must never have two ledgers.
    storage.errors.StorageError
        If the root's ledger was being moved when that was killed.
    """
    shared, server = os.environ.get(LEDGER_VARIABLE) or None, recorded_server(current_root())
    if server is None:
        return shared
    own = server.database("ledger").replace("+psycopg", "", 1)
    if shared not in (None, own):
        raise InputError(
            f"{LEDGER_VARIABLE} names another database than the one in which this root's ledger is kept (on "
            f"{server.shown}); unset {LEDGER_VARIABLE}"
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
        found = json.loads(_servers_file(root).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return {str(name): str(address) for name, address in found.items()}


def marks_folder() -> Path:
    """Return where high-water marks of ledgers lie, outside every root: ``UNITBALL_LEDGER_MARK``, or per user."""
    value = os.environ.get(MARK_VARIABLE)
    state = os.environ.get("XDG_STATE_HOME")
    default = (Path(state) if state else Path.home() / ".local" / "state") / "unitball" / "ledgers"
    return Path(value).expanduser().absolute() if value else default


def query_seconds() -> float:
    """Return how long SQL of the user's may take: ``UNITBALL_SQL_SECONDS``, or five minutes.

    Raises
    ------
    storage.errors.InputError
        If it is no positive number.
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
    address = server_address() or served
    return f"{address.rstrip('/')}/#/runs/{run_id}"


def flow_run_page(flow_run_id: str) -> str:
    """Return the address of a flow run's page: beside ``PREFECT_API_URL``, where the root is served, or as usual."""
    api = os.environ.get("PREFECT_API_URL")
    # The embedded server has no pages and is gone afterwards; `unitball serve` shows its runs.
    if not api or api == os.environ.get(EMBEDDED_VARIABLE):
        usual = f"http://127.0.0.1:{os.environ.get('UNITBALL_PREFECT_PORT') or 4210}/api"
        api = recorded_servers(current_root()).get("prefect", usual)
    return f"{api.rstrip('/').removesuffix('/api')}/runs/flow-run/{flow_run_id}"


def webhook_address() -> str | None:
    """Return the address that ``UNITBALL_WEBHOOK`` names, or None.

    Raises
    ------
    InputError
        If it is neither https nor on this machine: what is sent names data sets and budgets.
    """
    address = os.environ.get(WEBHOOK_VARIABLE, "").strip()
    if not address:
        return None
    parts = urlsplit(address)
    if parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and _is_local(parts.hostname))):
        return address
    # The address itself may hold a token.
    raise InputError(f"{WEBHOOK_VARIABLE} must begin with https://, or with http:// on this machine")


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
