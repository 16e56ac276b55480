"""Receivers of events: the server that was named, or the one that serves this root, and nobody else's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage.layout import Layout
from tasks.runtime.events import Event, announce, dataset_resource
from tasks.runtime.settings import EMBEDDED_VARIABLE, record_servers

HOLD = """
import sys
from pathlib import Path
from tasks.host.engine import being_served
with being_served(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def emitted(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what was emitted, in a process that has no Prefect yet and no server named."""
    found: list[dict[str, Any]] = []
    import prefect.events

    monkeypatch.setattr(prefect.events, "emit_event", lambda **event: found.append(event))
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", EMBEDDED_VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    Layout(root).prepare()
    return found


def test_without_a_server_nobody_is_told(emitted: list[dict[str, Any]]) -> None:
    announce(Event.REGISTERED, dataset_resource("clinic"), {"dataset": "clinic"})
    assert emitted == []


def test_a_server_that_was_named_is_told(emitted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    announce(Event.TRAINED, dataset_resource("clinic"), {"dataset": "clinic"}, labels={"unitball.champion": "true"})
    (event,) = emitted
    assert event["event"] == "unitball.training.completed"
    assert event["resource"] == {"prefect.resource.id": "unitball.dataset.clinic", "unitball.champion": "true"}
    # A command's own server is gone in a moment, and nobody watches it.
    monkeypatch.setenv(EMBEDDED_VARIABLE, "http://127.0.0.1:9/api")
    announce(Event.TRAINED, dataset_resource("clinic"), {})
    assert len(emitted) == 1


def test_the_server_of_this_root_is_found(
    emitted: list[dict[str, Any]], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it runs: what a killed process has noted down may be anybody's."""
    monkeypatch.setattr("tasks.runtime.events.sys.modules", {k: v for k, v in sys.modules.items() if k != "prefect"})
    record_servers(root, {"prefect": "http://127.0.0.1:9/api"})
    announce(Event.UNWELL, "unitball.root", {})
    assert emitted == []
    command = [sys.executable, "-c", HOLD, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as serving:
        assert serving.stdout is not None
        serving.stdout.readline()
        announce(Event.UNWELL, "unitball.root", {"checks": "disk"})
        serving.kill()
    assert [event["event"] for event in emitted] == ["unitball.doctor.failed"]


def test_names_of_events_are_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "events.md").read_text("utf-8")
    assert [event for event in Event if f"`{event}`" not in text] == []
