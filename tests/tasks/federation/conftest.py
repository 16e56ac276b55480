"""Federations in one process: parties are asked one by one, and what would be logged is kept."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.planning.configuration import TrainingConfig
from tasks.tracking.reporting import Columns
from tasks.tracking.results import Chained
from tests.tasks.federation.test_federation import _OneByOne

LOGGED: list[tuple[TrainingConfig, Chained, Columns]] = []


@pytest.fixture
def logged_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask one party after the other, and keep the last run in :data:`LOGGED` instead of in MLflow."""

    def keep(config: TrainingConfig, run: Chained, columns: Columns) -> Any:
        LOGGED[:] = [(config, run, columns)]
        return run.result

    monkeypatch.setattr("tasks.federation.coordinator.ThreadPoolExecutor", _OneByOne)
    monkeypatch.setattr("tasks.federation.coordinator.keep_run", keep)
