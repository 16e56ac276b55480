"""Task runners: threads, a Dask cluster on this machine, or one on several, over TLS with the root's certificate.

Dask's scheduler and workers run all code that is sent to them. So they talk over TLS alone, and each side shows a
certificate: the root's own, whose key lies in its private folder. Who may use a root's cluster is who may read the root
anyway. The plain protocol is refused, on this machine too: any other user of it could connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import importlib.util
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from storage.atomic import write_once, writing
from storage.errors import InputError, SecretError, first_line
from storage.layout import Layout
from tasks.host.engine import EngineError
from tasks.runtime.settings import current_layout
from tasks.runtime.standing import stands

if TYPE_CHECKING:
    from distributed import Security

    # Commands look at a scheduler before the engine is prepared, and Prefect reads its settings when it is imported.
    from prefect.futures import PrefectFuture
    from prefect.task_runners import TaskRunner


NO_DASHBOARD = "127.0.0.1:0"
"""Where Dask's HTTP server listens, which cannot be switched off; without pages, see :func:`security`."""

_YEARS = 10
_ANSWER_SECONDS, _BETWEEN_SECONDS = 20.0, 0.5


def certificate(layout: Layout) -> Path:
    """Return the file that holds the root's certificate and its key (PEM, mode 0600), made at first use.

    Elliptic curve P-256, signed by itself, for ten years: both sides of a connection show this one certificate and
    trust no other. Removed, the next start makes another, and machines of the old one are let in no more.

    Raises
    ------
    SecretError
        If others than its owner can reach the file.
    storage.errors.StorageError
        If the root cannot be written.
    """
    path = layout.private / "dask.pem"
    if not path.exists():
        with writing(path):
            write_once(path, *_made())
    if path.stat().st_mode & 0o077:
        raise SecretError(f"{path} can be accessed by users other than its owner; run: chmod 600 {path}")
    return path


def _made() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "unitball-dask")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def security(layout: Layout) -> Security:
    """Return what Dask needs to connect with the root's certificate and nothing else; in this process it has no pages.

    Raises
    ------
    InputError
        If the extra ``dask`` is not installed.
    SecretError, storage.errors.StorageError
        As :func:`certificate` does.
    """
    _require_installed()
    import dask
    from distributed import Security

    # Its HTTP server starts without a dashboard too, and tells of tasks, their logs and results to whoever asks.
    dask.config.set({f"distributed.{role}.http.routes": [] for role in ("scheduler", "worker")})
    file = str(certificate(layout))
    roles = {f"tls_{role}_{part}": file for role in ("client", "scheduler", "worker") for part in ("cert", "key")}
    return Security(require_encryption=True, tls_ca_file=file, **roles)


def _require_installed() -> None:
    if importlib.util.find_spec("prefect_dask") is None:
        raise InputError(
            "Dask is not installed; in a clone of Unitball: pip install '.[dask]', "
            "with a wheel: pip install 'FILE.whl[dask]'"
        )


class NoSchedulerError(InputError):
    """Nothing listens at a scheduler's address yet."""


def await_scheduler(address: str, waiting: Callable[[], None]) -> None:
    """Wait until something listens at a scheduler's address, and check it as :func:`require_scheduler` does.

    Parameters
    ----------
    address : str
    waiting : callable
        Called once, where nothing listens there yet.

    Raises
    ------
    InputError, SecretError, storage.errors.StorageError
        As :func:`require_scheduler` does.
    """
    told = False
    while True:
        try:
            return require_scheduler(address)
        except NoSchedulerError:
            if not told:
                waiting()
            told = True
        time.sleep(_BETWEEN_SECONDS)


def require_scheduler(address: str | None) -> None:
    """Refuse what ``--dask`` cannot use, before an engine is started and anything is charged.

    The scheduler is asked as a run's client asks it: over TLS, each side showing the current root's certificate.

    Raises
    ------
    InputError
        For another protocol than TLS, an address that is none, one where no scheduler answers that takes and shows the
        root's certificate, or without the extra.
    SecretError, storage.errors.StorageError
        As :func:`certificate` does.
    """
    if address is None:
        return
    _require_installed()
    if address == "local":
        return
    try:
        place = urlsplit(address)
        if not (place.scheme and place.hostname and place.port):
            raise ValueError("it is not SCHEME://HOST:PORT")
    except ValueError as error:
        raise InputError(f"--dask {address!r}: {error}; give tls://HOST:8786, or --dask local") from None
    if place.scheme != "tls":
        raise InputError(
            f"--dask {address!r}: Dask's plain protocol runs code from any client that can connect; start the "
            "scheduler with: unitball dask scheduler, and give tls://HOST:PORT"
        )
    layout = current_layout()
    secured = security(layout)
    try:
        # On its own loop, whichever thread this is.
        with ThreadPoolExecutor(max_workers=1) as apart:
            kind = apart.submit(asyncio.run, _kind_of(place.hostname, place.port, secured)).result()
    except ssl.SSLError as error:
        raise InputError(
            f"--dask {address!r}: the scheduler there and this root have different certificates ({error.reason}); "
            f"start the scheduler with: unitball dask scheduler --root {layout.root}; or give --dask local"
        ) from None
    except TimeoutError:
        raise InputError(
            f"--dask {address!r}: no Dask scheduler answered there within {_ANSWER_SECONDS:g} s; "
            "start one, or give --dask local"
        ) from None
    except ConnectionRefusedError as error:
        raise NoSchedulerError(
            f"--dask {address!r}: no Dask scheduler answers there ({first_line(error)}); or give --dask local"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"--dask {address!r}: no Dask scheduler answers there ({first_line(error)}); or give --dask local"
        ) from None
    if kind != "Scheduler":
        raise InputError(f"--dask {address!r}: a {kind.lower()} answers there; give the address of its scheduler")


async def _kind_of(host: str, port: int, secured: Security) -> str:
    """Connect as a run's client does, and return what the other side says that it is."""
    from distributed.core import rpc

    connection = secured.get_connection_args("client")
    async with asyncio.timeout(_ANSWER_SECONDS):
        # Once, and whole, so that the scheduler has nothing to warn of: Dask's own tries a closed port until its time
        # is up. Whether the other side takes our certificate shows when it sends: it speaks first.
        reader, writer = await asyncio.open_connection(host, port, ssl=connection["ssl_context"])
        greeting = await reader.read(1)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        if not greeting:
            raise ConnectionError("it closed the connection")
        async with rpc(f"tls://{host}:{port}", timeout=_ANSWER_SECONDS, connection_args=connection) as other:
            return str((await other.identity()).get("type", "server"))


def task_runner(layout: Layout, workers: int | None, dask: str | None) -> TaskRunner[PrefectFuture[object]]:
    """Return what runs a flow's tasks: threads, a Dask cluster on this machine (``local``), or one by its address.

    Parameters
    ----------
    layout : Layout
        Whose certificate is used.
    workers : int or None
        Tasks at once, here; by the machine where nothing is said.
    dask : str or None
        ``"local"``, or ``tls://HOST:PORT`` of a scheduler whose workers see the same root.
    """
    from tasks.runtime.steps import most_at_once, threads

    if dask is None:
        return threads(workers)
    require_scheduler(dask)
    secured = security(layout)
    from tasks.host.dask_runner import WaitingTaskRunner

    if dask != "local":
        runner = WaitingTaskRunner(address=dask, client_kwargs={"security": secured})
    else:
        cluster = {"n_workers": workers or most_at_once(), "threads_per_worker": 1, "dashboard_address": None}
        runner = WaitingTaskRunner(
            cluster_kwargs={**cluster, "protocol": "tls", "security": secured}, client_kwargs={"security": secured}
        )
    return cast("TaskRunner[PrefectFuture[object]]", runner)


class ClusterError(EngineError):
    """A Dask cluster went away while tasks ran on it; the message says what stands."""


@contextmanager
def over_cluster(dask: str | None) -> Iterator[None]:
    """Say in words what is lost where a Dask cluster goes away in the middle of what is within, and what stands.

    Raises
    ------
    ClusterError
        In place of what Dask raises then.
    """
    # It tells of a lost connection with a traceback, and of nothing else.
    logger = logging.getLogger("distributed.client")
    before = logger.level
    if dask is not None and not os.environ.get("UNITBALL_DEBUG"):
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    except Exception as error:
        if dask is None or not _is_lost(error):
            raise
        where = "on this machine" if dask == "local" else f"at {dask}"
        raise ClusterError(
            f"the Dask scheduler {where} or its workers stopped before the tasks had ended; {stands()}"
        ) from error
    finally:
        logger.setLevel(before)


def _is_lost(error: BaseException) -> bool:
    """Whether an error is what Dask makes of a scheduler or of workers that have gone."""
    from concurrent.futures import CancelledError

    from distributed import KilledWorker
    from distributed.client import FutureCancelledError
    from distributed.comm import CommClosedError

    return isinstance(error, (CancelledError, CommClosedError, FutureCancelledError, KilledWorker))
