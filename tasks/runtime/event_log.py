"""What happened on a root as JSON lines, for whoever collects logs: one object a line, rotated, a bounded size."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, Field

from storage.atomic import locked_directory
from storage.layout import Layout
from tasks.runtime.settings import current_root

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
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One writer at a time: a line is never cut, and nobody appends to a file that was just put aside.
        with locked_directory(path.parent):
            _rotate(path)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(line.model_dump_json(exclude_none=True).encode() + b"\n")
    except OSError:
        return


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
