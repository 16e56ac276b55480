"""The deployments as served: what each refuses and runs, what a training starts, and that no row is seen anywhere."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import is_valid

from flows.party import answer_request
from storage.layout import Layout
from tests.support.leaks import found_in, needles_of
from tests.support.private_rows import ingestion, write_rows
from tests.support.serving import UNITBALL, Served, in_seconds, prepared, started, wait_for

ENUMERATED = {
    "train": "noisy-gd",
    "audit": "fed-dpdr-dpml",
    "reproduce": "wang2024-table1",
}


def deployment(served: Served, name: str) -> dict[str, Any]:
    (found,) = [one for one in served.ask("/deployments/filter") if one["name"] == name]
    return dict(found)


@pytest.mark.parametrize(
    ("name", "parameters", "named"),
    [
        ("score", {"model": "", "input": "/x"}, "model"),
        ("score", {"model": "a.b"}, "input"),
        ("compare", {"model": "a.b/1", "epsilon": -1}, "epsilon"),
        ("train", {"dataset": "iris", "algorithm": "no-such"}, "algorithm"),
        ("train", {"dataset": "iris", "epsilon": -3}, "epsilon"),
        ("train", {"dataset": "no-such-set", "epsilon": 1}, "no-such-set"),
        ("train", {"config": {"dataset": "iris", "epsilon": 1}}, "config"),
        ("synthesise", {"dataset": "clinic"}, "epsilon"),
        ("synthesise", {"dataset": "clinic", "epsilon": 1, "output": "/x.csv"}, "output"),
        ("reduce", {"dataset": "iris", "epsilon": 1, "components": 0}, "components"),
        ("sweep", {"name": "two points", "set": {"dataset": "iris"}, "grid": {}}, "name"),
        ("reproduce", {"name": "no-such-figure"}, "no-such-figure"),
        ("audit", {"algorithm": "no-such"}, "no-such"),
    ],
)
def test_a_bad_value_of_every_deployment_is_refused(
    name: str, parameters: dict[str, Any], named: str, served: Served
) -> None:
    """Before a run is made, as the form and a program do; names to choose from are in the schema."""
    found = deployment(served, name)
    body = {"parameters": parameters, "enforce_parameter_schema": True}
    with pytest.raises(urllib.error.HTTPError) as refused:
        served.ask(f"/deployments/{found['id']}/create_flow_run", **body)
    said = refused.value.read().decode()
    assert 400 <= refused.value.code < 500
    assert all(part in said for part in named.split(".")), said
    if name in ENUMERATED:
        assert ENUMERATED[name] in json.dumps(found["parameter_openapi_schema"])


def test_a_field_of_a_run_has_one_name() -> None:
    """As a coordinator asks parties."""
    schema = parameter_schema(answer_request).model_dump_for_openapi()
    for name in ("replicate", "repetition"):
        parameters = {"request": {"config": {"dataset": "iris", name: 1}, "ask": "reserve"}}
        assert is_valid(parameters, schema) is (name == "replicate"), name
    fields = schema["definitions"]["TrainingConfig"]["properties"]
    assert {"replicate", "deadline_miss"} < set(fields)


ALGORITHM = "noisy-gd"
MODEL = f"clinic.{ALGORITHM}"
QUICK = {"algorithm": ALGORITHM, "epsilon": 1.0, "trials": 40, "canaries": 0, "chain_trials": 0, "seed": 1}


@pytest.fixture(scope="module")
def day(prepare_served: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a private data set whose owner has a file scored after each training, and better models promoted."""
    folder = tmp_path_factory.mktemp("day")
    prepare_served(folder / "root")
    write_rows(folder / "clinic.txt", 1200)
    # What is learnt from the first version is wrong of nearly every row of the second, whatever the noise.
    rows = write_rows(folder / "turned.txt", 1200)
    turned = {"+": "-", "-": "+"}
    lines = rows.path.read_text().splitlines(keepends=True)
    rows.path.write_text("".join(turned[line[0]] + line[1:] for line in lines))
    new = write_rows(folder / "new.txt", 40, seed=9)
    pq.write_table(pa.table({"features": new.features.tolist()}), folder / "new.parquet")

    def prepare(root: Path) -> None:
        prepared(root, *ingestion(rows, epsilon=9.0))
        run = ("--cron", "0 0 1 1 *", "--algorithm", ALGORITHM, "--epsilon", "1", "--parties", "2")
        after = ("--score-input", str(folder / "new.parquet"), "--compare-epsilon", "2", "--promote")
        prepared(root, "schedule", "clinic", *run, "--test-fraction", "0.25", *after)

    with started(folder, prepare=prepare) as served:
        yield served


def made(served: Served, flow_run: str) -> dict[str, Any]:
    run = served.finished(flow_run)
    assert run["state_type"] == "COMPLETED", run["state"]["message"]
    return run


def start(served: Served, found: dict[str, Any], parameters: dict[str, Any]) -> str:
    body = {"parameters": parameters, "enforce_parameter_schema": True, "state": {"type": "SCHEDULED"}}
    return str(served.ask(f"/deployments/{found['id']}/create_flow_run", **body)["id"])


def runs_named(served: Served, name: str) -> list[dict[str, Any]]:
    return [run for run in served.runs() if run["name"].startswith(name)]


def ended(served: Served, name: str, count: int) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        return [run for run in runs_named(served, name) if run["end_time"]]

    wait_for(f"{count} ended: {name}", lambda: len(found()) >= count, 400)
    return found()


@pytest.mark.nightly
def test_two_schedules_that_fire_at_once(day: Served) -> None:
    """On one data set: the second waits and meets the cache, one charge; another data set's run is not held up."""
    before, moment = {run["id"] for run in day.runs()}, in_seconds(60)
    schedules = [
        {
            "schedule": {"interval": 3600, "anchor_date": moment},
            "active": True,
            "slug": f"at-once-{number}",
            "parameters": {"dataset": name, "algorithm": ALGORITHM, "epsilon": 1.5},
        }
        for number, name in enumerate(("breast_cancer", "breast_cancer", "iris"))
    ]
    train = deployment(day, "train")
    day.call("POST", f"/deployments/{train['id']}/schedules", schedules)
    # New schedules alone are looked at once a minute, and a moment that has passed by then is left out for good: the
    # next one is an hour later. A deployment that was changed is looked at within five seconds.
    day.call("PATCH", f"/deployments/{train['id']}", {"description": train["description"]})

    def scheduled() -> bool:
        found = day.ask("/flow_runs/filter", flow_runs={"expected_start_time": {"before_": moment, "after_": moment}})
        return len(found) == 3

    wait_for("three runs of one moment", scheduled, 55)

    def fired() -> list[dict[str, Any]]:
        ours = [run for run in day.runs() if run["id"] not in before and run["auto_scheduled"]]
        return [run for run in ours if run["parameters"].get("epsilon") == 1.5]

    runs = wait_for("three runs", lambda: found if len(found := fired()) == 3 else None)
    assert len({run["expected_start_time"] for run in runs}) == 1
    for run in runs:
        made(day, run["id"])
    spans = {run["id"]: work(day, run["id"]) for run in runs}
    one, other = sorted(spans[run["id"]] for run in runs if run["parameters"]["dataset"] == "breast_cancer")
    assert one[1] <= other[0], "two runs of one data set worked at the same time"
    parties = json.loads(day.unitball("budget", "breast_cancer", "--json"))["parties"]
    assert {len({charge["plan"] for charge in party["charges"]}) for party in parties} == {1}, "one charge"
    (apart,) = [spans[run["id"]] for run in runs if run["parameters"]["dataset"] == "iris"]
    assert apart[0] < other[1], "another data set's run waited for those that wait"


def work(served: Served, run_id: str) -> tuple[str, str]:
    steps = [task for task in served.tasks(run_id) if task["end_time"]]
    return min(task["start_time"] for task in steps), max(task["end_time"] for task in steps)


@pytest.mark.nightly
def test_a_training_starts_scoring_and_the_comparison_with_the_champion(day: Served) -> None:
    """By events alone: the first model is scored with; the second is compared, promoted and scored with."""
    (clinic,) = [
        one for one in day.ask("/deployments/filter") if one["name"] == "clinic.cron" and "dataset" in one["parameters"]
    ]
    given = clinic["parameters"]
    made(day, start(day, clinic, clinic["parameters"]))
    (scored,) = ended(day, f"score with {MODEL}/1", 1)
    assert scored["state_type"] == "COMPLETED", scored["state"]["message"]
    folder = Layout(day.root).private / "predictions"
    (file,) = folder.iterdir()
    assert pq.read_table(file).num_rows == 40
    assert file.stat().st_mode & 0o077 == 0

    refused = day.command(*UNITBALL, "model", "promote", f"{MODEL}/1")
    assert "was not audited" in refused.stderr
    made(day, start(day, deployment(day, "audit"), QUICK))
    assert "champion" in day.unitball("model", "promote", f"{MODEL}/1")

    rows = str(day.root.parent / "clinic.txt")
    day.unitball("ingest", "clinic", "--format", "libsvm", "--path", rows, "--dimension", "6", "--classes=-1,1")
    made(day, start(day, clinic, {**given, "epsilon": 4.0}))
    (compared,) = ended(day, f"{MODEL}/2 against the champion", 1)
    assert compared["state_type"] == "COMPLETED", compared["state"]["message"]
    found = json.loads(day.unitball("model", "show", f"{MODEL}@champion", "--json"))
    assert found["version"] == "2", "better, and its owner has said so"
    (again,) = ended(day, f"score with {MODEL}/2", 1)
    assert again["state_type"] == "COMPLETED", again["state"]["message"]
    assert len(list(folder.iterdir())) == 2


@pytest.mark.nightly
def test_a_sweep_and_a_reproduction_run(day: Served) -> None:
    spec = {"name": "two-points", "set": {"dataset": "iris", "algorithm": ALGORITHM}, "grid": {"epsilon": [1, 2]}}
    sweep = start(day, deployment(day, "sweep"), spec)
    redraw = start(day, deployment(day, "reproduce"), {"name": "wang2024-table1"})
    made(day, sweep)
    made(day, redraw)
    assert (day.root / "experiments" / "wang2024-table1-quick" / "report.html").exists()


@pytest.mark.nightly
def test_no_row_and_no_secret_is_seen_after_such_a_day(day: Served) -> None:
    """In no file outside the private folder, opened as far as it goes: databases, logs as lines and as JSON, pages of
    budgets, exports, artifacts, results; nor in what the webhook was sent, or on the screen.
    """
    folder = day.root.parent
    refused = day.finished(day.start_run(dataset="clinic", algorithm=ALGORITHM, epsilon=50.0))
    assert refused["state_name"] == "BudgetExhausted"
    wait_for("the webhook", lambda: day.alerts)
    made(day, start(day, deployment(day, "budget"), {}))
    day.unitball("budget", "--out", str(folder / "budgets.html"))
    day.unitball("export", f"{MODEL}@champion", "-o", str(folder / "run.zip"))
    day.unitball("doctor")
    (folder / "alerts.json").write_text(json.dumps(day.alerts))
    rows, new = (write_rows(folder / "again.txt", count, seed=seed) for count, seed in ((1200, 0), (40, 9)))
    layout = Layout(day.root)
    secrets = [layout.root_secret.read_bytes(), day.secret.password.encode()]
    secrets += [path.read_bytes() for path in layout.parties.glob("*/secret.key")]
    forms = [form for secret in secrets for form in (secret, secret.hex().encode())]
    needles = needles_of(rows.features) + needles_of(new.features, every=1)
    private = [path for path in layout.private.rglob("*") if path.is_file()]
    assert found_in(private, needles), "the needles are of the rows"
    public = [path for path in day.root.rglob("*") if path.is_file() and layout.private not in path.parents]
    assert {"events.jsonl", "ledger.sqlite", "mlflow.db", "prefect.db"} <= {path.name for path in public}
    written = [folder / name for name in ("alerts.json", "budgets.html", "run.zip")] + [day.output]
    assert found_in([*public, *written], [*needles, *forms]) == []
