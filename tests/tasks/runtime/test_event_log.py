"""The log of events: one JSON object a line, by its schema, bounded, whole under many writers."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tasks.runtime import events as event_log
from tasks.runtime.events import (
    FILES,
    Event,
    LogLine,
    account_resource,
    announce,
    dataset_resource,
    events_file,
    log_event,
)
from tests.support.forks import race


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


def lines(root: Path) -> list[LogLine]:
    return [LogLine.model_validate_json(line) for line in events_file(root).read_text().splitlines()]


def test_what_is_announced_is_logged_by_the_schema(root: Path) -> None:
    announce(Event.REGISTERED, dataset_resource("clinic"), {"dataset": "clinic"})
    announce(Event.BUDGET_LOW, account_resource("patients"), {"account": "patients", "spent": 0.81, "left": None})
    for event in Event:
        announce(event, "unitball.root", {"reason": 'three\nlines\nof "text"'})
    found = lines(root)
    assert [line.event for line in found[:2]] == ["unitball.dataset.registered", "unitball.budget.low"]
    assert (found[0].dataset, found[0].account, found[0].run) == ("clinic", None, None)
    assert (found[1].account, found[1].details["spent"]) == ("patients", 0.81)
    assert len(found) == 2 + len(Event)
    assert stat.S_IMODE(events_file(root).stat().st_mode) == 0o600
    for text in events_file(root).read_text().splitlines():
        assert set(json.loads(text)) <= {"time", "event", "run", "dataset", "account", "details"}


@pytest.mark.parametrize(
    "line",
    [
        {"event": "unitball.run.failed"},
        {"time": "2026-01-01T00:00:00", "event": "unitball.run.failed"},
        {"time": "2026-01-01T00:00:00Z", "event": "other"},
        {"time": "2026-01-01T00:00:00Z", "event": "unitball.run.failed", "rows": [1, 2]},
        {"time": "2026-01-01T00:00:00Z", "event": "unitball.run.failed", "details": {"x": [1.5]}},
    ],
)
def test_the_schema_refuses_other_lines(line: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        LogLine.model_validate_json(json.dumps(line))


def test_its_size_is_bounded_and_the_newest_stay(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "FILE_BYTES", 2000)
    for number in range(300):
        log_event("unitball.test.line", details={"number": float(number)})
    files = sorted(events_file(root).parent.glob("events*"))
    assert len(files) == FILES
    assert all(file.stat().st_size < 2200 for file in files)
    kept = sorted(
        float(str(LogLine.model_validate_json(line).details["number"])) for file in files for line in file.open()
    )
    assert kept == [float(number) for number in range(300 - len(kept), 300)]


@pytest.mark.nightly
def test_many_writers_cut_no_line(root: Path) -> None:
    def body(number: int) -> None:
        event_log.FILE_BYTES = 5000
        event_log.FILES = 1000
        for each in range(40):
            log_event("unitball.test.line", dataset=f"set-{number}", details={"n": float(each)})

    race(6, body)
    found = [
        LogLine.model_validate_json(line) for file in events_file(root).parent.glob("events*") for line in file.open()
    ]
    assert sorted((line.dataset, line.details["n"]) for line in found) == [
        (f"set-{number}", float(each)) for number in range(6) for each in range(40)
    ]


def test_a_log_that_cannot_be_written_stops_nothing(root: Path) -> None:
    root.mkdir()
    (root / "logs").write_text("in the way")
    log_event("unitball.test.line")
