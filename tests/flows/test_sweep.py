"""Sweeps: each point once, failures recorded, a kill resumed, one parent and comparable children in MLflow."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.specs import known_reproductions
from flows.sweep import _all_public, _progress, _seconds
from tasks.datasets.registration import ensure_registered
from tasks.experiments.specifications import SweepSpec
from tasks.tracking.runs import FACTS, VIEW_TAG
from tests.support.chains import ingest_private
from tests.support.command_line import CommandLine, run_command, start_command

pytestmark = pytest.mark.usefixtures("engine")

GRID: dict[str, Any] = {
    "name": "trial",
    "question": "Does it run?",
    "paper": "x-2024",
    "figure": "Fig. 1",
    "set": {"dataset": "iris", "algorithm": "noisy-gd", "parties": 2, "param.iterations": 5},
    "grid": {"epsilon": [1.0, 2.0], "seeds": [0, 1]},
}


def children_of(root: Path, parent: str, status: str = "FINISHED") -> list[Any]:
    from mlflow import MlflowClient

    from tasks.runtime.settings import own_database

    client = MlflowClient(tracking_uri=own_database(root))
    experiment = client.get_run(parent).info.experiment_id
    found = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent}'", max_results=1000)
    return [run for run in found if run.info.status == status]


def view_of(root: Path, experiment: str) -> dict[str, Any]:
    """Return the state of the view that MLflow shows for an experiment."""
    from mlflow import MlflowClient

    from tasks.runtime.settings import own_database

    tags = MlflowClient(tracking_uri=own_database(root)).get_experiment_by_name(experiment).tags
    return dict(json.loads(json.loads(tags[VIEW_TAG])["state"]))


def found_by(root: Path, experiment: str, search: str) -> list[Any]:
    from mlflow import MlflowClient

    from tasks.runtime.settings import own_database

    client = MlflowClient(tracking_uri=own_database(root))
    return list(client.search_runs([client.get_experiment_by_name(experiment).experiment_id], search))


def test_a_sweep_is_finished_once_and_tracked_under_one_parent(tracked_root: Path) -> None:
    """And a point gives what a training run gives."""
    from flows.federated_training import chain_inline
    from flows.reproduction import report_sweep
    from flows.sweep import run_sweep

    spec = SweepSpec.model_validate(GRID)
    first = run_sweep(spec, workers=2)
    assert [outcome.error for outcome in first.outcomes] == [None] * 4
    assert first.reused == 0
    results = [outcome.result for outcome in first.outcomes]
    assert len({result.run_key for result in results if result}) == 4
    assert [outcome.point for outcome in first.outcomes] == spec.points(), "in the order of the specification"
    point = first.outcomes[-1]
    alone = chain_inline(point.point.config).result
    assert point.result is not None
    assert (point.result.run_key, point.result.metrics, point.result.proved) == (
        alone.run_key,
        alone.metrics,
        alone.proved,
    )
    assert set(point.result.releases) == set(alone.releases)

    again = run_sweep(spec, workers=2)
    assert again.reused == 4
    assert [outcome.result for outcome in again.outcomes] == results
    assert again.mlflow_run_id == first.mlflow_run_id

    children = children_of(tracked_root, first.mlflow_run_id)
    assert len(children) == 4
    state = view_of(tracked_root, "trial")
    assert {run.info.run_id for run in found_by(tracked_root, "trial", state["searchFilter"])} == {
        run.info.run_id for run in children
    }, "the view shows the points, not their parent"
    parallel = next(card for card in state["compareRunCharts"] if card["type"] == "PARALLEL")
    assert parallel["selectedParams"] == ["algorithm", "epsilon"]
    names = [(set(run.data.params), set(run.data.metrics)) for run in children]
    assert all(one == names[0] for one in names), "names line up, so that MLflow compares them"
    with warnings.catch_warnings():
        # Prefect's, of what is shown there by no run of its.
        warnings.simplefilter("error", FutureWarning)
        assert report_sweep(spec, first, "unitball sweep").results
    for run in children:
        assert set(FACTS) <= set(run.data.params)
        assert (run.data.tags["paper"], run.data.tags["figure"]) == ("x-2024", "Fig. 1")
        assert run.data.tags["proved"] == run.data.params["proved"] != "none"
        assert {"accuracy", "epsilon_spent", "delta_spent"} <= set(run.data.metrics)


def test_a_failing_point_is_recorded_and_the_rest_goes_on(tracked_root: Path) -> None:
    from flows.sweep import run_sweep

    spec = SweepSpec.model_validate({**GRID, "name": "failing", "grid": {"test_fraction": [0.2, 0.001, 0.3]}})
    spec = spec.model_copy(update={"set": {**spec.set, "epsilon": 1.0}})
    result = run_sweep(spec)
    assert [outcome.error is not None for outcome in result.outcomes] == [False, True, False]
    (failed,) = result.failed
    assert "test fraction" in str(failed.error)
    assert "\n" not in str(failed.error)
    (child,) = children_of(tracked_root, result.mlflow_run_id, "FAILED")
    assert child.data.tags["error"] == failed.error
    assert len(children_of(tracked_root, result.mlflow_run_id)) == 2
    assert len(run_sweep(spec).failed) == 1, "a failure is tried again, not remembered as an answer"
    assert len(children_of(tracked_root, result.mlflow_run_id, "FAILED")) == 1


def test_points_that_share_a_release_make_it_once(tracked_root: Path) -> None:
    from flows.sweep import run_sweep
    from storage.layout import Layout
    from storage.releases import ReleaseStore

    own = {"dataset": "iris", "algorithm": "fed-dpdr-dpml", "parties": 2, "dimension": 2, "epsilon": 5.0, "seeds": 0}
    spec = SweepSpec.model_validate(
        {"name": "shared", "set": own, "grid": {"param.trainer.regularisation": [0.01, 0.1, 1.0]}}
    )
    result = run_sweep(spec, workers=3)
    assert not result.failed
    keys = [set(outcome.result.releases) for outcome in result.outcomes if outcome.result]
    assert set.intersection(*keys), "the covariances do not depend on the trainer's parameter"
    store = ReleaseStore(Layout(tracked_root))
    assert all(store.exists(key) for one in keys for key in one)


@pytest.mark.nightly
def test_a_killed_sweep_resumes(unitball: CommandLine, tmp_path: Path) -> None:
    """Both runs are processes of their own: what one finished, the other finds where the root says."""
    spec = tmp_path / "sweep.yaml"
    spec.write_text(yaml.safe_dump({**GRID, "name": "killed", "workers": 1, "grid": {"epsilon": list(range(1, 41))}}))
    process = start_command(unitball.root, "sweep", spec)
    runs = unitball.root / "results" / "runs"
    _wait_until(lambda: len(list(runs.glob("*.parquet"))) >= 5, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(list(runs.glob("*.parquet")))
    again = run_command(unitball.root, "sweep", spec, "--json")
    assert again.code == 0, again
    result = again.json
    assert len(result["outcomes"]) == 40
    assert all(outcome["error"] is None for outcome in result["outcomes"])
    assert done - 2 <= result["reused"] < 40
    assert len(children_of(unitball.root, result["mlflow_run_id"])) == 40


def _wait_until(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not there():
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.nightly
def test_dask_gives_what_threads_give(tracked_root: Path) -> None:
    from flows.sweep import run_sweep

    spec = SweepSpec.model_validate({**GRID, "name": "dask"})
    over_dask = run_sweep(spec, workers=2, dask="local")
    assert not over_dask.failed
    threads = run_sweep(spec.model_copy(update={"name": "threads"}), workers=2)
    assert threads.reused == 4, "finished points are found whoever ran them"
    values, others = (
        [outcome.result.metrics for outcome in one.outcomes if outcome.result] for one in (over_dask, threads)
    )
    assert values == others


def test_the_command_line_says_what_is_wrong(commands: CommandLine, tmp_path: Path) -> None:
    spec = tmp_path / "sweep.yaml"
    spec.write_text("name: a\ngrid: {epsilom: [1]}\n")
    commands("sweep", spec).refused(2, "epsilom", "epsilon")
    commands("sweep", tmp_path / "absent.yaml").refused(2, "absent.yaml")
    commands("reproduce", "wang2024-fig9").refused(2, "wang2024-fig3")
    commands("reproduce", "wang2024-fig3", "--scale", "huge").refused(2, "huge", "quick, full")
    commands("reproduce", "wang2024-fig3", "--path", tmp_path).refused(2, "--scale full")
    commands("reproduce").refused(2, "--list")
    commands("report").refused(2, "unitball reproduce")
    commands("report", "absent").refused(2, "absent")
    listed = commands("reproduce", "--list", "--json")
    assert listed.code == 0
    assert len(listed.json["reproductions"]) == len(known_reproductions())


def test_durations_of_private_points_are_not_published(root: Path, tmp_path: Path) -> None:
    """Neither in the result nor as an estimate of what is left, which is as good."""
    ingest_private(tmp_path / "input")
    ensure_registered("iris", "digits")
    assert _all_public({"iris", "digits"})
    assert not _all_public({"iris", "clinic"})
    assert not _all_public({"nobody has registered this"})
    assert _seconds(0.0, timed=True) is not None
    assert _seconds(0.0, timed=False) is None
    assert "about 10 s" in _progress(3, 1, 0, 0, 5.0)
    assert _progress(3, 1, 0, 0, None) == "1 done, 0 failed, 2 left"
