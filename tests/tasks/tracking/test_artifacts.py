"""The progress of a run: stages are shown in order up to the last, and the run does not wait for it."""

from __future__ import annotations

import threading
from uuid import uuid4

import pytest

from tasks.runtime import progress
from tasks.tracking import artifacts


def test_progress_is_shown_in_order_and_the_run_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def show(artifact: object, *, progress: float, description: str) -> None:
        begun.set()
        assert go_on.wait(300)
        shown.append(f"{progress:g} {description}")

    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda **_: uuid4())
    monkeypatch.setattr(artifacts, "update_progress_artifact", show)
    with artifacts.showing_progress():
        for name in ("resolve_dataset", "charge", "record"):
            progress.OBSERVER.get()(name)
            assert begun.wait(300)
        assert not shown
        go_on.set()
    assert shown == ["10 resolve_dataset: 1 of 10 steps", "100 record: 10 of 10 steps"]


def test_what_fails_in_showing_is_raised_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda **_: uuid4())
    monkeypatch.setattr(artifacts, "update_progress_artifact", refuse)
    done = []

    def run() -> None:
        with artifacts.showing_progress():
            progress.OBSERVER.get()("resolve_dataset")
            done.append("the rest of the run")

    with pytest.raises(ConnectionError, match="gone"):
        run()
    assert done
