"""Alerts: messages of a root's event log that need a person's attention, sent to the webhook."""

import asyncio
import json
import logging
import os
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from deployments.serving import read_webhook
from storage.atomic import write_bytes
from storage.errors import InputError, StorageError
from storage.layout import Layout
from tasks.runtime.events import Event, LogLine, account_resource, dataset_resource, events_file

_ALERT_SECONDS, _TIMEOUT, _PAUSES = 1.0, 20.0, (0.0, 2.0, 10.0)


def new_alerts(root: Path) -> Iterator[LogLine | None]:
    """Yield messages that need attention as the root's event log receives them, and None where nothing is new.

    It goes on where it was when it was asked the last time, by another process, too; the first time at the log's end.
    Only the root's user writes there, so a holder of a server's password cannot forge an alert.
    """
    path, place = events_file(root), Layout(root).prefect / ".webhook-read"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    file = _opened(path, place)
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


def _opened(path: Path, place: Path) -> IO[bytes]:
    """Open the file that was read last where it was left, perhaps put aside since; without one, the end of the log."""
    try:
        known, offset = map(int, json.loads(place.read_bytes()))
    except (FileNotFoundError, ValueError):
        known, offset = 0, 0
    for candidate in (path, path.with_name("events.1.jsonl")):
        if candidate.exists() and candidate.stat().st_ino == known:
            break
    else:
        candidate, offset = path, 0 if known else path.stat().st_size
    file = candidate.open("rb")
    file.seek(offset)
    return file


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
    payload = details | alert.model_dump(include={"dataset", "account"}, exclude_none=True)
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
                    await asyncio.sleep(_ALERT_SECONDS)
                elif address := read_webhook(root):
                    await _delivered(address, alert, deliver, log)
        except (OSError, StorageError, InputError) as error:
            # What was read and not sent is read again once that is mended.
            log.warning("alerts cannot be sent: %s", error)
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
