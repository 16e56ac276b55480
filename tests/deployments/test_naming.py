"""Scheduled runs are called by what they will do before they start."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from deployments.runner import name_waiting_runs, run_name
from flows.asked import audit, score, train

CLINIC = {"dataset": "clinic", "algorithm": "noisy-gd", "epsilon": 0.5}


def test_a_name_says_what_the_parameters_will_do() -> None:
    assert run_name(train, CLINIC) == "noisy-gd on clinic"
    assert run_name(train, {**CLINIC, "name": "after the flood"}) == "after the flood"
    parts = {"trainer": "noisy-gd", "projection": "wishart-pca"}
    assert run_name(train, {"dataset": "clinic", "epsilon": 1.0, "more": parts}) == "wishart-pca+noisy-gd on clinic"
    assert run_name(score, {"model": "clinic.fed", "input": "x.csv"}) == "score with clinic.fed"
    assert run_name(train, {"dataset": "clinic", "algorithm": "none-such"}) is None
    assert run_name(train, {}) is None
    assert run_name(audit, {}) == "audit of the algorithms in use"
    assert run_name(audit, {"algorithm": "noisy-gd"}) == "audit of noisy-gd"


class Server:
    def __init__(self, runs: list[Any]) -> None:
        self.runs = runs
        self.named: dict[Any, str] = {}

    async def read_flow_runs(self, *, limit: int, offset: int, **_: Any) -> list[Any]:
        return self.runs[offset : offset + limit]

    async def update_flow_run(self, run: Any, *, name: str) -> None:
        self.named[run] = name


def test_each_waiting_run_is_named_once() -> None:
    deployment = uuid4()
    runs = [
        SimpleNamespace(id=uuid4(), deployment_id=deployment, parameters=CLINIC, name="odd-owl") for _ in range(210)
    ]
    runs.append(SimpleNamespace(id=uuid4(), deployment_id=deployment, parameters={}, name="bad-bee"))
    server: Any = Server(runs)
    known: set[Any] = set()
    asyncio.run(name_waiting_runs(server, {deployment: train}, known))
    assert server.named == {run.id: "noisy-gd on clinic" for run in runs[:210]}
    server.named.clear()
    asyncio.run(name_waiting_runs(server, {deployment: train}, known))
    assert server.named == {}
