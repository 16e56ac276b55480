"""Runs that died unheard: crashed at the second look, and nobody else's."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID, uuid4

from prefect.client.orchestration import PrefectClient

from deployments.runner import reap_orphaned_runs


class Client:
    """Stands for Prefect's client: unfinished runs by deployment."""

    def __init__(self, runs: dict[UUID, UUID]) -> None:
        self.runs = runs
        self.crashed: list[UUID] = []

    async def read_flow_runs(self, flow_run_filter: Any) -> list[Any]:
        ours = flow_run_filter.deployment_id.any_
        return [type("Run", (), {"id": run}) for run, its in self.runs.items() if its in ours]

    async def set_flow_run_state(self, run: UUID, state: Any, force: bool) -> None:
        assert (state.name, force) == ("Crashed", True)
        self.crashed.append(run)
        del self.runs[run]


def test_who_has_no_process_twice_has_died() -> None:
    ours, theirs = uuid4(), uuid4()
    alive, dead, beginning, foreign = (uuid4() for _ in range(4))
    client = Client({alive: ours, dead: ours, beginning: ours, foreign: theirs})

    def look(living: set[UUID], suspects: set[UUID]) -> set[UUID]:
        return asyncio.run(reap_orphaned_runs(cast(PrefectClient, client), [ours], living, suspects))

    suspects = look({alive}, set())
    assert suspects == {dead, beginning}
    assert client.crashed == []
    suspects = look({alive, beginning}, suspects)
    assert client.crashed == [dead]
    assert look({alive, beginning}, suspects) == set()
    assert set(client.runs) == {alive, beginning, foreign}
