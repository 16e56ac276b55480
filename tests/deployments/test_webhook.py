"""The webhook: https alone, or this machine; the address kept; each alert sent."""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deployments import alerts, serving
from storage.errors import InputError
from storage.layout import Layout
from tasks.runtime import events as event_log
from tasks.runtime.events import Event, LogLine, announce, dataset_resource, events_file, log_event
from tasks.runtime.settings import WEBHOOK_VARIABLE, webhook_address
from tests.support.serving import receiving

ADDRESS = "https://hooks.example/T/secret"


@pytest.mark.parametrize("address", ["https://hooks.example/T/secret", "http://127.0.0.1:8080/x", "http://localhost/x"])
def test_where_alerts_may_go(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WEBHOOK_VARIABLE, address)
    assert webhook_address() == address


@pytest.mark.parametrize("address", ["http://hooks.example/token", "ftp://127.0.0.1/token", "token", "https:///token"])
def test_where_they_may_not(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WEBHOOK_VARIABLE, address)
    with pytest.raises(InputError, match=f"{WEBHOOK_VARIABLE}.*https://") as error:
        webhook_address()
    assert "token" not in str(error.value)


@pytest.mark.parametrize(
    "address",
    ["https://[token", "https://hooks.example:99999/token", "https://hooks.example/a token", "https://h/tökén"],
)
def test_what_is_no_address_is_refused_before_it_is_kept(
    address: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was kept, and no alert was ever sent."""
    monkeypatch.setenv(WEBHOOK_VARIABLE, address)
    with pytest.raises(InputError, match=f"{WEBHOOK_VARIABLE}.*https://HOST/PATH") as error:
        serving.keep_webhook(root)
    assert "tok" not in str(error.value)
    assert serving.read_webhook(root) is None


@pytest.mark.parametrize("kept", [b"\xff\xfe", b"nonsense", b"", b"https://[x"])
def test_a_kept_address_that_is_none_is_said_and_loses_no_alert(
    kept: bytes, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Layout(root).prepare()
    (Layout(root).private / "webhook.url").write_bytes(kept)
    with pytest.raises(InputError, match=r"webhook\.url"):
        serving.read_webhook(root)
    sent: list[str] = []

    async def follow() -> None:
        monkeypatch.setattr(alerts, "_PAUSES", (0.0, 0.0, 0.0))
        monkeypatch.setattr(alerts, "_ALERT_SECONDS", 0.01)
        task = asyncio.create_task(alerts.send_alerts(root, lambda address, alert: sent.append(alert.event)))
        await asyncio.sleep(0.05)
        log_event(str(Event.UNWELL))
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if "alerts cannot be sent" in caplog.text:
                break
        (Layout(root).private / "webhook.url").write_text(ADDRESS)
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if sent:
                break
        task.cancel()

    asyncio.run(follow())
    assert sent == [str(Event.UNWELL)]


def test_without_a_setting_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WEBHOOK_VARIABLE, "  ")
    assert webhook_address() is None


def test_the_address_is_kept_in_the_root_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Layout(root).prepare()
    monkeypatch.setenv(WEBHOOK_VARIABLE, ADDRESS)
    serving.keep_webhook(root)
    assert serving.read_webhook(root) == ADDRESS
    assert WEBHOOK_VARIABLE not in os.environ, "what is started from now on would have it"
    (file,) = [path for path in root.rglob("*") if path.is_file() and ADDRESS.encode() in path.read_bytes()]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.parent == Layout(root).private
    serving.keep_webhook(root)
    assert serving.read_webhook(root) == ADDRESS, "a start without the setting keeps it"
    monkeypatch.setenv(WEBHOOK_VARIABLE, "")
    serving.keep_webhook(root)
    assert serving.read_webhook(root) is None


def read(root: Path, stop: int = 100) -> list[str]:
    """Return the reasons of the alerts that are new, as a runner that is started now reads them."""
    found = itertools.takewhile(lambda one: one is not None, alerts.new_alerts(root))
    return [str(one and one.details["reason"]) for one in itertools.islice(found, stop)]


def refuse(reason: str) -> None:
    announce(Event.REFUSED, dataset_resource("clinic"), {"reason": reason})


def test_every_alert_is_read_once_whoever_reads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first start, after it, by a runner that was started again, across files put aside, in pieces."""
    Layout(root).prepare()
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    refuse("before")
    assert read(root) == []
    refuse("one")
    log_event("unitball.plan.charged")
    refuse("two")
    assert read(root) == ["one", "two"]
    assert read(root) == []
    refuse("lost")
    assert read(root, stop=1) == ["lost"], "a runner that dies before it goes on"
    assert read(root) == ["lost"], "is asked again"
    following = alerts.new_alerts(root)
    assert next(following) is None
    monkeypatch.setattr(event_log, "FILE_BYTES", 600)
    refuse("three")
    for number in range(4):
        refuse(f"more {number}")
    assert [str(one.details["reason"]) for one in itertools.takewhile(bool, following) if one] == [
        "three",
        *(f"more {number}" for number in range(4)),
    ]
    with events_file(root).open("ab") as file:
        line = events_file(root).read_bytes().splitlines()[-1].replace(b"more 3", b"in pieces")
        file.write(line[:40])
        file.flush()
        assert next(following) is None
        file.write(line[40:] + b"\nno line of ours\n")
    assert [one and one.details["reason"] for one in itertools.takewhile(bool, following)] == ["in pieces"]


def test_what_is_sent_and_how_often_it_is_tried(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Layout(root).prepare()
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(alerts, "_PAUSES", (0.0, 0.0, 0.0))
    with receiving() as (address, received):
        monkeypatch.setenv(WEBHOOK_VARIABLE, address)
        serving.keep_webhook(root)
        read(root)
        tries: list[str] = []

        def deliver(where: str, alert: LogLine) -> None:
            tries.append(str(alert.details["reason"]))
            if len(tries) < 3:
                raise OSError
            alerts.send(where, alert)

        async def until_received() -> None:
            sending = asyncio.create_task(alerts.send_alerts(root, deliver))
            async with asyncio.timeout(300):
                while not received:
                    await asyncio.sleep(0.05)
            sending.cancel()

        refuse("no")
        asyncio.run(until_received())
    assert tries == ["no"] * 3
    (alert,) = received
    assert alert["event"] == "unitball.run.refused"
    assert alert["about"] == "unitball.dataset.clinic"
    assert alert["payload"] == {"reason": "no", "dataset": "clinic"}


def test_a_redirect_is_not_followed(root: Path) -> None:
    """It might lead from https to anywhere."""
    line = LogLine(time=datetime.now(UTC), event=str(Event.UNWELL), details={"about": "unitball.root"})

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(302)
            self.send_header("Location", address)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return None

    with receiving() as (address, received), ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(OSError, match="302"):
            alerts.send(f"http://127.0.0.1:{server.server_address[1]}/", line)
        server.shutdown()
    assert not received
