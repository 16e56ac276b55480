"""Events that schedules, triggers, the webhook and log collectors read."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, Field

from storage.atomic import locked_directory
from storage.layout import Layout
from tasks.runtime.services import running_servers, use_own_server
from tasks.runtime.settings import EMBEDDED_VARIABLE, current_root

FILE_BYTES = 2_000_000
"""A file that is larger is put aside."""
FILES = 5
"""How many files are kept, the newest included."""


class LogLine(BaseModel, frozen=True, extra="forbid"):
    """One line: public text and numbers that follow from charges alone.

    Attributes
    ----------
    time : datetime
        In UTC.
    event : str
    run : str or None
        Identity of the flow run.
    dataset, account : str or None
    details : mapping
    """

    time: AwareDatetime
    event: str = Field(pattern=r"^unitball(\.[a-z-]+)+$")
    run: str | None = None
    dataset: str | None = None
    account: str | None = None
    details: dict[str, str | float | None] = {}


def events_file(root: Path) -> Path:
    """Return the newest file; older ones are ``events.1.jsonl`` and so on."""
    return Layout(root).root / "logs" / "events.jsonl"


def log_event(
    event: str,
    *,
    dataset: str | None = None,
    account: str | None = None,
    details: Mapping[str, str | float | None] | None = None,
) -> None:
    """Append a line to the current root's log; a log that cannot be written stops nothing."""
    line = LogLine(
        time=datetime.now(UTC),
        event=event,
        run=_run(),
        dataset=dataset,
        account=account,
        details=dict(details or {}),
    )
    path = events_file(current_root())
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One writer at a time: a line is never cut, and nobody appends to a file that was just put aside.
        with locked_directory(path.parent):
            _rotate(path)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(line.model_dump_json(exclude_none=True).encode() + b"\n")


def _run() -> str | None:
    """Return the flow run that this is a part of, without importing Prefect for it."""
    if "prefect" not in sys.modules:
        return None
    from prefect.runtime import flow_run

    return str(flow_run.id) if flow_run.id else None


def _rotate(path: Path) -> None:
    if not path.exists() or path.stat().st_size < FILE_BYTES:
        return
    for number in range(FILES - 1, 0, -1):
        older = path.with_name(f"events.{number - 1}.jsonl") if number > 1 else path
        if older.exists():
            older.replace(path.with_name(f"events.{number}.jsonl"))


class Event(StrEnum):
    """Names of all events. What they carry is public: names, and numbers that follow from charges alone."""

    REGISTERED = "unitball.dataset.registered"
    """A new version of a data set that was known before."""
    TRAINED = "unitball.training.completed"
    """A deployed run has trained a model and registered it."""
    REFUSED = "unitball.run.refused"
    """A deployed run was refused for privacy: nothing was charged."""
    FAILED = "unitball.run.failed"
    """A run failed for another reason."""
    BUDGET_LOW = "unitball.budget.low"
    """More than 80 % of an account's cap is spent."""
    VIOLATED = "unitball.audit.violated"
    """An audit has refuted the statement of an algorithm."""
    UNWELL = "unitball.doctor.failed"
    """A check of ``unitball doctor`` has found a problem."""

    @classmethod
    def alerts(cls) -> tuple[Event, ...]:
        """Return the messages that need a person's attention."""
        return (cls.REFUSED, cls.FAILED, cls.BUDGET_LOW, cls.VIOLATED, cls.UNWELL)


def dataset_resource(dataset: str) -> str:
    """Return what an event about a data set is about."""
    return f"unitball.dataset.{dataset}"


def account_resource(account: str) -> str:
    """Return what an event about an account is about."""
    return f"unitball.account.{account}"


def announce(
    event: Event, resource: str, payload: Mapping[str, str | float | None], *, labels: Mapping[str, str] | None = None
) -> None:
    """Log that something happened, and tell a Prefect server; public text only, in labels (which triggers match) too.

    The server is the one of ``PREFECT_API_URL``, or else the one by which ``unitball serve`` serves this root. Without
    either there is no recipient.
    """
    subject = {prefix: resource.removeprefix(f"unitball.{prefix}.") for prefix in ("dataset", "account")}
    named = {name: value for name, value in subject.items() if value != resource}
    details = {name: value for name, value in payload.items() if name not in subject}
    log_event(str(event), **named, details=details if named else {**details, "about": resource})
    if not os.environ.get("PREFECT_API_URL"):
        served = running_servers(current_root()).get("prefect")
        # Prefect reads its settings when it is imported.
        if served is None or "prefect" in sys.modules:
            return
        os.environ["PREFECT_API_URL"] = served
    if os.environ["PREFECT_API_URL"] == os.environ.get(EMBEDDED_VARIABLE):
        # A server of this command's own, which nobody watches.
        return
    use_own_server(current_root())
    from prefect.events import emit_event

    # While it sends the event, it counts what is left to send, on the console of whoever ingests.
    logging.getLogger("EventsWorker").setLevel(logging.ERROR)
    emit_event(event=str(event), resource={"prefect.resource.id": resource, **(labels or {})}, payload=dict(payload))
