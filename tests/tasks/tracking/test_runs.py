"""MLflow: a run is logged once and whole, under the same names for every algorithm, and carries no rows."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.models import LinearModel, Projection
from storage.layout import Layout
from tasks.runtime.settings import own_database
from tasks.tracking.runs import (
    FACTS,
    PARTIES,
    RUN_KEY,
    VIEW_NAME,
    VIEW_TAG,
    ModelReport,
    RunReport,
    track_run,
    tracking_client,
)
from tasks.tracking.sklearn_export import to_sklearn
from tests.support import forks
from tests.support.tracking import a_dataset, comparison_path
from tests.support.untraced import ratio

CLASSES = ("zero", "one", "two")
forks.preload("tests.tasks.tracking.preloaded")


def pipeline() -> Any:
    rng = np.random.default_rng(1)
    return to_sklearn(
        normalisation="clip",
        maps=[Projection(basis=np.linalg.qr(rng.normal(size=(8, 4)))[0])],
        model=LinearModel(rng.normal(size=(3, 4))),
        classes=CLASSES,
        dimension=8,
    )


def a_report(**changes: Any) -> RunReport:
    report = RunReport(
        experiment="digits",
        run_key="key-1",
        name="fed ε=1",
        facts={"algorithm": "fed", "dataset": "digits", "trust": "local", "proved": "(1, 1e-05)-DP", "claim": None},
        params={"epsilon": 1.0, "delta": 1e-5, "parties": 2},
        metrics={"accuracy": 0.8, "epsilon_spent": 1.0, "delta_spent": 1e-5},
        trained_on=a_dataset("v" * 64, account="people"),
        parties=(
            {"party": "party 0", "rows": 10.0, "accuracy": 0.7},
            {"party": "party 1", "rows": 11.0, "accuracy": 0.75},
        ),
        model=ModelReport(pipeline=pipeline(), dimension=8, classes=CLASSES, registered_name="digits.fed"),
        decisive={"accuracy": 0.8},
        files={"result.json": "{}", "deep/curve.bin": b"\x00\x01"},
        note="A **note**.",
    )
    return replace(report, **changes)


@pytest.fixture
def root(tracking_copied: Callable[[Path], None], tmp_path: Path) -> Path:
    """A root of its own, its database a copy of an empty one: migrations take ten seconds."""
    tracking_copied(tmp_path / "root")
    return tmp_path / "root"


def client(root: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=own_database(root), registry_uri=own_database(root))


def all_runs(root: Path, experiment: str = "digits") -> list[Any]:
    found = client(root).get_experiment_by_name(experiment)
    return [] if found is None else list(client(root).search_runs([found.experiment_id]))


def parents(root: Path) -> list[Any]:
    return [run for run in all_runs(root) if "mlflow.parentRunId" not in run.data.tags]


def parties_of(root: Path, run_id: str) -> Any:
    """Return the table of a run's parties, as MLflow's page reads it."""
    import mlflow

    with tracking_client(root):
        table = mlflow.artifacts.load_dict(f"runs:/{run_id}/{PARTIES}")
    return [dict(zip(table["columns"], line, strict=True)) for line in table["data"]]


def test_everything_is_there(root: Path) -> None:
    run_id = track_run(root, a_report())
    run = client(root).get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "fed ε=1"
    assert run.data.params == {
        "algorithm": "fed", "dataset": "digits", "trust": "local", "proved": "(1, 1e-05)-DP", "claim": "none",
        "paper": "none", "neighbours": "none", "numerics": "none", "epsilon": "1.0", "delta": "1e-05", "parties": "2",
    }  # fmt: skip
    assert {name: run.data.tags[name] for name in FACTS} == {name: run.data.params[name] for name in FACTS}
    assert run.data.tags[RUN_KEY] == "key-1"
    assert run.data.tags["mlflow.note.content"].startswith("A **note**.")
    assert run.data.metrics == {"accuracy": 0.8, "epsilon_spent": 1.0, "delta_spent": 1e-5}
    assert [item.info.run_id for item in all_runs(root)] == [run_id], "an experiment counts its runs, and no parts"
    assert parties_of(root, run_id) == [
        {"party": "party 0", "rows": 10.0, "accuracy": 0.7},
        {"party": "party 1", "rows": 11.0, "accuracy": 0.75},
    ]
    assert {item.path for item in client(root).list_artifacts(run_id)} == {"deep", "parties.json", "result.json"}


def test_nothing_is_printed(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """MLflow's functions print where a command has its own lines to print."""
    track_run(root, a_report(parties=()))
    assert capfd.readouterr() == ("", "")


def test_curves_have_a_history(root: Path) -> None:
    curve = {1: 0.99, 500: 0.4}
    run_id = track_run(root, a_report(curves={"trade_off": curve}))
    found = client(root).get_metric_history(run_id, "trade_off")
    assert {metric.step: metric.value for metric in found} == curve


def test_the_data_set_is_opaque(root: Path) -> None:
    run = client(root).get_run(track_run(root, a_report()))
    (found,) = run.inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.digest, found.dataset.source_type) == ("digits", "v" * 36, "unitball")
    assert json.loads(found.dataset.source) == {"dataset": "digits", "version": "v" * 64, "account": "people"}
    assert not found.dataset.schema
    assert not found.dataset.profile
    assert [(tag.key, tag.value) for tag in found.tags] == [("mlflow.data.context", "training")]


def test_the_logged_model_names_the_data_set_as_the_run_does(root: Path) -> None:
    """MLflow's page of a model lists the data sets of its metrics."""
    run = client(root).get_run(track_run(root, a_report()))
    (model,) = client(root).search_logged_models([run.info.experiment_id])
    (own,) = run.inputs.dataset_inputs
    assert {metric.key for metric in model.metrics} == {"accuracy", "epsilon_spent", "delta_spent"}
    named = {(metric.dataset_name, metric.dataset_digest) for metric in model.metrics}
    assert named == {(own.dataset.name, own.dataset.digest)}


def test_facts_can_be_filtered_on(root: Path) -> None:
    track_run(root, a_report())
    track_run(
        root,
        a_report(run_key="key-2", facts={"algorithm": "published", "trust": "local"}, metrics={"accuracy": 0.1}),
    )
    experiment = client(root).get_experiment_by_name("digits").experiment_id

    def algorithms(filter_string: str) -> set[str]:
        found = client(root).search_runs([experiment], filter_string=filter_string)
        return {run.data.params["algorithm"] for run in found}

    assert algorithms("tags.proved = 'none'") == {"published"}
    assert algorithms("params.proved != 'none' and metrics.epsilon_spent <= 1") == {"fed"}
    assert algorithms("tags.trust = 'local'") == {"fed", "published"}


def test_names_are_the_same_whatever_the_algorithm_says(root: Path) -> None:
    one = client(root).get_run(track_run(root, a_report(facts={"algorithm": "one", "proved": "yes"})))
    two = client(root).get_run(track_run(root, a_report(run_key="2", facts={"algorithm": "two", "paper": "P"})))
    assert set(one.data.params) == set(two.data.params) > set(FACTS)
    assert set(one.data.tags) == set(two.data.tags)


def test_the_same_key_is_logged_once(root: Path) -> None:
    first = track_run(root, a_report())
    assert track_run(root, a_report(name="another name")) == first
    assert len(all_runs(root)) == 1
    assert len(client(root).search_model_versions("name = 'digits.fed'")) == 1
    assert track_run(root, a_report(run_key="key-2")) != first
    assert len(client(root).search_model_versions("name = 'digits.fed'")) == 2


def test_figures_are_drawn_for_what_is_written(root: Path) -> None:
    drawn: list[dict[str, bytes]] = []

    def draw() -> dict[str, bytes]:
        drawn.append({"roc.png": b"\x89PNG"})
        return drawn[-1]

    first, again = (track_run(root, a_report(drawn=draw)) for _ in range(2))
    assert first == again
    assert len(drawn) == 1
    assert {"roc.png", "result.json"} <= {file.path for file in client(root).list_artifacts(first)}


def _track(root: Path, key: str) -> str:
    return track_run(root, a_report(run_key=key))


def test_threads_and_processes_at_once(root: Path) -> None:
    keys = ["a", "b", "a", "b", "a"]
    with ThreadPoolExecutor(5) as threads:
        by_thread = list(threads.map(lambda key: _track(root, key), keys))
    of_processes = ("a", "c", "c")
    by_process = forks.race(3, lambda number: _track(root, of_processes[number]))
    found = set(zip([*keys, *of_processes], [*by_thread, *by_process], strict=True))
    assert len(found) == 3
    assert len(parents(root)) == 3
    assert len(client(root).search_model_versions("name = 'digits.fed'")) == 3


WRITES = [
    "create_experiment", "set_experiment_tag", "create_run", "create_logged_model", "log_outputs", "log_batch",
    "log_inputs", "log_artifacts", "set_tag", "log_model_artifacts", "create_registered_model",
    "_create_model_version", "set_logged_model_tags", "set_terminated",
]  # fmt: skip


def _log_until_killed(root: Path, after: int, left: Any) -> None:
    """Log a run, killed right before one of MLflow's calls; counts those that were left."""
    from mlflow import MlflowClient

    left.value = after

    def counted(name: str) -> Any:
        original = getattr(MlflowClient, name)

        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            if left.value == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left.value -= 1
            return original(self, *arguments, **named)

        return call

    for name in WRITES:
        setattr(MlflowClient, name, counted(name))
    track_run(root, a_report())


def _killed(root: Path, after: int) -> tuple[int | None, int]:
    """Return the exit code and how many calls were left."""
    left = forks.Value("i", after)
    process = forks.start(_log_until_killed, root, after, left)
    process.join(300)
    return process.exitcode, int(left.value)


def writes_of_one_run(root: Path) -> int:
    """Return how many of MLflow's calls one run makes."""
    code, left = _killed(root, 1000)
    assert code == 0
    return 1000 - left


def _check_killed_after(root: Path, after: int) -> None:
    assert _killed(root, after)[0] == -signal.SIGKILL
    run_id = track_run(root, a_report())
    (run,) = parents(root)
    assert (run.info.run_id, run.info.status) == (run_id, "FINISHED")
    assert run.data.metrics == {"accuracy": 0.8, "epsilon_spent": 1.0, "delta_spent": 1e-5}
    assert len(parties_of(root, run_id)) == 2
    versions = client(root).search_model_versions("name = 'digits.fed'")
    assert [version.run_id for version in versions] == [run_id]
    models = client(root).search_logged_models([run.info.experiment_id])
    assert [(model.source_run_id, str(model.status)) for model in models] == [(run_id, "READY")]
    tags = client(root).get_experiment_by_name("digits").tags
    assert VIEW_TAG in tags


@pytest.mark.parametrize("after", [3, 9, 14, -1])
def test_killed_in_the_middle_and_logged_again(
    root: Path, tmp_path: Path, tracking_copied: Callable[[Path], None], after: int
) -> None:
    """A killed writer leaves something half-written; the next one with its key leaves one whole run and no remains."""
    if after < 0:
        tracking_copied(tmp_path / "counting")
        # Right before the parent run is marked as finished.
        after += writes_of_one_run(tmp_path / "counting")
    _check_killed_after(root, after)


@pytest.mark.nightly
def test_killed_before_every_call(tmp_path: Path, tracking_copied: Callable[[Path], None]) -> None:
    def fresh(name: str) -> Path:
        tracking_copied(tmp_path / name)
        return tmp_path / name

    for after in range(writes_of_one_run(fresh("counting"))):
        _check_killed_after(fresh(f"root-{after}"), after)


def test_model_is_registered_and_predicts_raw_rows(root: Path) -> None:
    """That it needs nothing of the process that logged it, test_sklearn_export shows."""
    import mlflow

    report = a_report()
    run_id = track_run(root, report)
    (version,) = client(root).search_model_versions("name = 'digits.fed'")
    assert version.run_id == run_id
    assert version.tags["proved"] == "(1, 1e-05)-DP"
    (logged,) = client(root).search_logged_models([client(root).get_run(run_id).info.experiment_id])
    assert version.source == f"models:/{logged.model_id}"
    assert (logged.params["epsilon"], logged.tags["algorithm"]) == ("1.0", "fed")
    assert {metric.key for metric in logged.metrics} == set(report.metrics)
    raw = np.random.default_rng(2).normal(size=(20, 8))
    assert report.model is not None
    want = report.model.pipeline.predict(raw).tolist()
    with tracking_client(root):
        info = mlflow.models.get_model_info("models:/digits.fed/1")
        assert mlflow.sklearn.load_model("models:/digits.fed/1").predict(raw).tolist() == want
        assert list(map(str, mlflow.pyfunc.load_model("models:/digits.fed/1").predict(raw))) == want
    assert list(info.signature.inputs.inputs[0].shape) == [-1, 8]
    assert info.flavors["sklearn"]["serialization_format"] == "skops"
    files = [path.name for path in Layout(root).artifacts.rglob("*") if path.is_file()]
    assert "model.skops" in files
    assert not [name for name in files if name.endswith((".pkl", ".pickle", ".joblib"))]
    requirements = next(Layout(root).artifacts.rglob("requirements.txt")).read_text().split()
    assert all("==" in line for line in requirements)
    assert any(line.startswith("scikit-learn==") for line in requirements)


def test_a_regression_has_numbers_as_output(root: Path) -> None:
    model = to_sklearn(normalisation="none", maps=[], model=LinearModel(np.ones((1, 8))), classes=(), dimension=8)
    track_run(root, a_report(model=ModelReport(pipeline=model, dimension=8, classes=(), registered_name="r")))
    signature = next(Layout(root).artifacts.rglob("MLmodel")).read_text()
    assert '"dtype": "float64"' in signature.split("outputs:")[1]


def test_numbers_that_are_not_finite_become_tags(root: Path) -> None:
    metrics = {"accuracy": 0.5, "epsilon_spent": float("inf")}
    run = client(root).get_run(track_run(root, a_report(metrics=metrics, model=None)))
    assert run.data.metrics == {"accuracy": 0.5}
    assert run.data.tags["epsilon_spent"] == "inf"


def test_long_and_many_entries(root: Path) -> None:
    params = {f"p{index}": "x" * 7000 for index in range(120)}
    metrics = {f"m{index}": float(index) for index in range(250)}
    run = client(root).get_run(
        track_run(root, a_report(params=params, metrics=metrics, tags={"t": "y" * 9000}, model=None))
    )
    assert len(run.data.params) == 120 + len(FACTS)
    assert run.data.params["p119"] == "x" * 6000
    assert run.data.metrics == metrics
    assert run.data.tags["t"] == "y" * 8000


def test_the_chart_is_a_view_of_the_experiment(root: Path) -> None:
    assert comparison_path(root, "digits") is None
    track_run(root, a_report())
    found = client(root).get_experiment_by_name("digits")
    path = comparison_path(root, "digits")
    assert path is not None
    key = path.rsplit("viewStateShareKey=", 1)[1]
    view = json.loads(found.tags[f"mlflow.sharedViewState.{key}"])
    assert view["name"] == VIEW_NAME
    state = json.loads(view["state"])
    assert state["selectedColumns"][:2] == ["metrics.`accuracy`", "metrics.`epsilon_spent`"]
    assert state["columnOrder"] == state["selectedColumns"]
    # Children are found by no search of the view: its count is that of the lines that are shown.
    found_by_search = client(root).search_runs([found.experiment_id], filter_string=state["searchFilter"])
    assert [run.info.run_id for run in found_by_search] == [run.info.run_id for run in parents(root)]
    assert len(all_runs(root)) == 1
    scatter = state["compareRunCharts"][0]
    assert (scatter["xaxis"]["key"], scatter["yaxis"]["key"]) == ("epsilon_spent", "accuracy")
    assert path in found.tags["mlflow.note.content"]


def test_a_deleted_experiment_comes_back(root: Path) -> None:
    track_run(root, a_report())
    experiment = client(root).get_experiment_by_name("digits").experiment_id
    client(root).delete_experiment(experiment)
    track_run(root, a_report(run_key="key-2"))
    assert client(root).get_experiment(experiment).lifecycle_stage == "active"


def test_names_of_data_sets_do_not_leave_the_artifacts(root: Path) -> None:
    track_run(root, a_report(experiment="../outside"))
    location = client(root).get_experiment_by_name("../outside").artifact_location
    assert location.startswith(Layout(root).artifacts.as_uri() + "/")
    assert not (root / "outside").exists()


@pytest.mark.nightly
def test_a_run_that_is_logged_already_costs_less_than_half_of_one_that_is_not(root: Path) -> None:
    numbers = count()

    def again() -> None:
        track_run(root, a_report())

    def anew() -> None:
        # None of them the key of the other: one that is found again is no new run.
        track_run(root, a_report(run_key=f"another-{next(numbers)}"))

    assert ratio(again, anew, bound=0.5) <= 0.5
