"""The webhook: what somebody has to look at is sent from the runner to an address that only the root knows."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from storage.atomic import write_bytes
from storage.errors import StorageError
from storage.layout import Layout
from tasks.runtime.events import Event, LogLine, account_resource, dataset_resource, events_file
from tasks.runtime.settings import WEBHOOK_VARIABLE, webhook_address

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


# What an earlier version kept on the server, where whoever has the server's password reads the address.
_EARLIER_AUTOMATION, _EARLIER_BLOCK = "unitball alerts", ("webhook", "unitball-alerts")
_SECONDS, _TIMEOUT, _PAUSES = 1.0, 20.0, (0.0, 2.0, 10.0)


def _address_file(root: Path) -> Path:
    return Layout(root).private / "webhook.url"


def keep_webhook(root: Path) -> None:
    """Keep the address that ``UNITBALL_WEBHOOK`` names in the root, and in no process's environment.

    Not set, the one that is kept stays; set to nothing, it goes.

    Raises
    ------
    storage.errors.InputError
        If alerts may not be sent there.
    """
    address = webhook_address()
    if address is not None:
        write_bytes(_address_file(root), address.encode(), mode=0o600)
    elif WEBHOOK_VARIABLE in os.environ:
        _address_file(root).unlink(missing_ok=True)
    os.environ.pop(WEBHOOK_VARIABLE, None)


def read_webhook(root: Path) -> str | None:
    """Return the address to which alerts go, None where there is none."""
    try:
        return _address_file(root).read_text()
    except FileNotFoundError:
        return None


def remove_earlier(client: SyncPrefectClient) -> None:
    """Remove the automation of an earlier version, and the address that it kept on the server."""
    for automation in client.read_automations_by_name(_EARLIER_AUTOMATION):
        client.delete_automation(automation.id)
    kind, name = _EARLIER_BLOCK
    for block in client.request("GET", "/block_types/slug/{slug}/block_documents", path_params={"slug": kind}).json():
        if block["name"] == name:
            client.request("DELETE", "/block_documents/{id}", path_params={"id": block["id"]})


def new_alerts(root: Path) -> Iterator[LogLine | None]:
    """Yield what somebody has to look at as the root's log of events gets it, and None where nothing is new.

    It goes on where it was when it was asked the last time, by another process, too; the first time at the log's end.
    Nobody but the root's user writes there, so that a holder of a server's password forges no alert.
    """
    path, place = events_file(root), Layout(root).prefect / ".webhook-read"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    file = _opened(path, *_read_place(place))
    kept = -1
    while True:
        # Looked at before reading: what another process put aside after that is read to its end the next time.
        moved = path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino
        while (line := file.readline()).endswith(b"\n"):
            if (alert := _alert(line)) is not None:
                yield alert
        file.seek(-len(line), os.SEEK_CUR)
        if moved:
            file.close()
            file, kept = path.open("rb"), -1
            continue
        if kept != file.tell():
            kept = file.tell()
            write_bytes(place, json.dumps([os.fstat(file.fileno()).st_ino, kept]).encode())
        yield None


def _opened(path: Path, known: int, offset: int) -> IO[bytes]:
    """Open the file that was read last where it was left, perhaps put aside since; without one, the end of the log."""
    for candidate in (path, path.with_name("events.1.jsonl")):
        if candidate.exists() and candidate.stat().st_ino == known:
            break
    else:
        candidate, offset = path, 0 if known else path.stat().st_size
    file = candidate.open("rb")
    file.seek(offset)
    return file


def _read_place(place: Path) -> tuple[int, int]:
    try:
        number, offset = json.loads(place.read_bytes())
    except (FileNotFoundError, ValueError):
        return 0, 0
    return int(number), int(offset)


def _alert(line: bytes) -> LogLine | None:
    try:
        record = LogLine.model_validate_json(line)
    except ValueError:
        return None
    return record if record.event in {str(event) for event in Event.alerts()} else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        # It might lead away from https.
        return None


def send(address: str, alert: LogLine) -> None:
    """Send an alert once.

    Raises
    ------
    OSError, http.client.HTTPException
        If the address does not take it.
    """
    details = dict(alert.details)
    about = details.pop("about", "unitball.root")
    if alert.dataset is not None:
        about = dataset_resource(alert.dataset)
    elif alert.account is not None:
        about = account_resource(alert.account)
    named = {"dataset": alert.dataset, "account": alert.account}
    payload = details | {name: value for name, value in named.items() if value is not None}
    body = {"event": alert.event, "about": about, "at": alert.time.isoformat(), "payload": payload}
    request = urllib.request.Request(
        address, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT).close()


async def send_alerts(root: Path, deliver: Callable[[str, LogLine], None] = send) -> None:
    """Send each new alert of a root, until cancelled; one that is not taken three times is given up, and said."""
    log = logging.getLogger(__name__)
    while True:
        try:
            for alert in new_alerts(root):
                if alert is None:
                    await asyncio.sleep(_SECONDS)
                elif address := read_webhook(root):
                    await _delivered(address, alert, deliver, log)
        except (OSError, StorageError) as error:
            log.warning("the log of events cannot be followed: %s", error)
            await asyncio.sleep(_PAUSES[-1])


async def _delivered(
    address: str, alert: LogLine, deliver: Callable[[str, LogLine], None], log: logging.Logger
) -> None:
    for pause in _PAUSES:
        await asyncio.sleep(pause)
        try:
            await asyncio.to_thread(deliver, address, alert)
        except (OSError, HTTPException, ValueError) as error:
            # Its text may hold the address.
            log.warning("the webhook did not take %s: %s", alert.event, type(error).__name__)
        else:
            return
