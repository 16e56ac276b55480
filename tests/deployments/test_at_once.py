"""Runs of one data set from a schedule, an event and the form at once: one charge, and nobody else waits for them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving import Served, rows_file, wait_for


@pytest.mark.nightly
def test_from_schedule_event_and_form_at_once(served: Served, tmp_path: Path) -> None:
    """The second and the third wait, and find all they need in the cache; a run of another set works meanwhile."""
    (deployment,) = [one for one in served.ask("/deployments/filter") if one["name"] == "arrivals.nightly"]
    before, earlier = plans(served), {run["id"] for run in served.runs()}
    # Other rows are another version, whose event starts a run.
    path = rows_file(tmp_path / "rows.libsvm", 260, seed=4)
    served.unitball("ingest", "arrivals", "--format", "libsvm", "--path", path, "--public")
    served.ask(f"/deployments/{deployment['id']}/create_flow_run", parameters=deployment["parameters"])
    given = deployment["parameters"]
    served.start_run(**{name: value for name, value in given.items() if name != "more"}, **given["more"])
    other = served.start_run(dataset="wine", algorithm="noisy-gd", epsilon=1.0, replicate=9)

    def ended() -> list[dict[str, Any]]:
        mine = [run for run in served.runs() if run["id"] not in earlier and dataset_of(run) == "arrivals"]
        return mine if len(mine) == 3 and all(run["end_time"] for run in mine) else []

    runs = wait_for("three runs", ended)
    assert {run["state_type"] for run in runs} == {"COMPLETED"}
    assert served.finished(other)["state_type"] == "COMPLETED"
    assert len(plans(served) - before) == 1, "one charge"
    spans = sorted(work(served, run["id"]) for run in runs)
    assert all(one[1] <= after[0] for one, after in itertools.pairwise(spans)), "two worked at once"
    assert work(served, other)[0] < spans[-1][1], "another data set's run waited for those that wait"


def dataset_of(run: dict[str, Any]) -> object:
    return run["parameters"].get("dataset")


def plans(served: Served) -> set[int]:
    report = json.loads(served.unitball("budget", "arrivals", "--json"))
    return {charge["plan"] for party in report["parties"] for charge in party["charges"]}


def work(served: Served, run_id: str) -> tuple[str, str]:
    steps = [task for task in served.tasks(run_id) if task["end_time"]]
    return min(task["start_time"] for task in steps), max(task["end_time"] for task in steps)
