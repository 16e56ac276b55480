"""Schedules of data sets: who may set what, what is served of them, and that nothing runs unasked."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.client.orchestration import PrefectClient

from deployments import runner
from deployments.runner import offer
from deployments.serving import DEPLOYMENTS, SKIPPED
from deployments.specifications import read_deployments, scheduled_deployments
from storage.errors import InputError
from tasks.datasets.schedules import sound_schedules
from tasks.runtime.events import Event, LogLine, events_file
from tasks.runtime.stores import open_catalog
from tests.support.command_line import CommandLine
from tests.support.serving import rows_file


@pytest.fixture
def clinic(unitball: CommandLine, tmp_path: Path) -> CommandLine:
    rows = rows_file(tmp_path / "rows.libsvm", 200)
    declared = ("--dimension", "5", "--classes=-1,1", "--epsilon-cap", "1", "--delta-cap", "1e-5")
    assert unitball("ingest", "clinic", "--format", "libsvm", "--path", rows, *declared).code == 0
    return unitball


def test_what_is_served_by_default_spends_nothing_by_itself() -> None:
    """Unasked run the report of budgets, which makes no release, and a comparison that charges what owners have set."""
    for deployment in read_deployments(DEPLOYMENTS):
        assert not deployment["triggers"] or deployment["entrypoint"] == "flows.comparison.champion_comparison"
        unasked = [schedule for schedule in deployment["schedules"] if schedule.active is not False]
        assert not unasked or deployment["entrypoint"] == "flows.budget_report.budget_report"


def test_rows_to_score_become_a_deployment_that_trainings_start(
    clinic: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    new = tmp_path / "new.parquet"
    pq.write_table(pa.table({"a": [1], "features": [[0.1] * 5]}), new)
    scored = ("--score-input", str(new), "--score-id", "a", "--algorithm", "noisy-gd", "--epsilon", "0.1")
    clinic.succeeds("schedule", "clinic", *scored)
    (scoring,) = scheduled_deployments()
    assert (scoring["name"], scoring["entrypoint"]) == ("clinic", "flows.batch_scoring.batch_scoring")
    (trigger,) = scoring["triggers"]
    assert trigger.expect == {"unitball.training.completed"}
    assert dict(trigger.match.root) == {"prefect.resource.id": "unitball.dataset.clinic"}
    request = trigger.parameters["request"]
    assert (request["input"], request["id_column"], request["prefer_champion"]) == (str(new), "a", True)
    clinic.succeeds("schedule", "clinic", "--nightly", *scored)
    assert [one["entrypoint"].split(".")[1] for one in scheduled_deployments()] == [
        "federated_training",
        "batch_scoring",
    ]


def test_a_form_names_the_data_sets_there_are() -> None:
    """In words: a list to choose from would refuse a set that was registered a moment ago."""
    changed: dict[UUID, Any] = {}

    class Client:
        async def read_deployment(self, deployment: UUID) -> Any:
            field = {"type": "string", "description": "Name of a registered data set."}
            found = {"definitions": {"TrainingConfig": {"properties": {"dataset": field}}, "Other": {}}}
            return SimpleNamespace(parameter_openapi_schema=found, description="Train on clinic, as set: 3 more runs.")

        async def update_deployment(self, deployment: UUID, update: Any) -> None:
            changed[deployment] = update

    number, now = UUID(int=1), ["Score it, as set: …", "Train on clinic, as set: 2 more runs."]
    asyncio.run(offer(cast(PrefectClient, Client()), [number], ["clinic", "digits"], now))
    # What fitted when the server was started is not what fits after a run.
    assert changed[number].description == now[1]
    field = changed[number].parameter_openapi_schema["definitions"]["TrainingConfig"]["properties"]["dataset"]
    assert field == {"type": "string", "description": "A registered data set: clinic, digits."}


def test_a_schedule_says_how_many_runs_fit_and_when_the_first_is_refused(
    clinic: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the terminal and on the deployment's page; the number is the accountant's, the day follows from it."""
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    output = clinic("schedule", "clinic", "--cron", "30 12 * * *", "--algorithm", "noisy-gd", "--epsilon", "0.3").out
    found = re.search(r"(\d+) more runs on new versions fit under the cap; .* is on (\d+-\d+-\d+)", output)
    assert found, output
    left, day = int(found[1]), datetime.fromisoformat(found[2]).date()
    # Two of mu like that of 0.3 are below 1 together, a dozen are not.
    assert 2 <= left <= 11
    now = datetime.now(UTC)
    first = now.date() + timedelta(days=(now.hour, now.minute) >= (12, 30))
    assert day - first in (timedelta(days=left), timedelta(days=left - 1)), "midday may have passed since"
    (deployment,) = scheduled_deployments()
    assert found[0] in deployment["description"]
    assert "fit" not in clinic("schedule", "clinic", "--nightly", "--horizon", "5", "--epsilon", "0.3").out


def test_a_schedule_becomes_a_deployment_of_its_data_set_and_goes_again(
    clinic: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    assert scheduled_deployments() == []
    done = clinic.succeeds(
        "schedule", "clinic", "--nightly", "--timezone", "Europe/Berlin", "--on-new-version", "--epsilon", "0.05"
    )
    assert done["schedule"]["cron"] == "0 3 * * *"
    (deployment,) = scheduled_deployments()
    assert deployment["name"] == "clinic"
    (schedule,) = deployment["schedules"]
    assert (schedule.schedule.cron, schedule.schedule.timezone) == ("0 3 * * *", "Europe/Berlin")
    (trigger,) = deployment["triggers"]
    assert dict(trigger.match.root) == {"prefect.resource.id": "unitball.dataset.clinic"}
    config = deployment["parameters"]["config"]
    assert trigger.parameters == {"config": config}
    assert (config["dataset"], config["epsilon"]) == ("clinic", 0.05)
    # Another one takes its place.
    clinic.succeeds("schedule", "clinic", "--cron", "0 5 * * 1", "--epsilon", "0.1")
    (deployment,) = scheduled_deployments()
    assert [each.schedule.cron for each in deployment["schedules"]] == ["0 5 * * 1"]
    assert deployment["triggers"] == []
    assert [one["config"]["epsilon"] for one in clinic.succeeds("schedules")["schedules"]] == [0.1]
    clinic.succeeds("schedule", "clinic", "--remove")
    assert scheduled_deployments() == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("clinic", "--epsilon", "0.1"), "nothing starts it"),
        (("nobody", "--nightly", "--epsilon", "0.1"), "no data set 'nobody'"),
        (("clinic", "--cron", "often", "--epsilon", "0.1"), "--cron 'often'"),
        (("clinic", "--nightly", "--timezone", "Mars", "--epsilon", "0.1"), "--timezone 'Mars'"),
        (("clinic", "--nightly", "--cron", "0 5 * * 1", "--epsilon", "0.1"), "give one of them"),
        (("clinic", "--nightly", "--remove"), "give it alone"),
        (("clinic", "--nightly", "--epsilon", "0.1", "--score-id", "a"), "say which with --score-input"),
        (("clinic", "--epsilon", "0.1", "--score-input", "/nowhere.csv"), "no file or folder /nowhere.csv"),
        (("clinic", "--nightly", "--epsilon", "5"), "cap"),
    ],
)
def test_what_cannot_be_is_refused_at_once(given: tuple[str, ...], says: str, clinic: CommandLine) -> None:
    clinic("schedule", *given).refused(3 if says == "cap" else 2, says)
    assert clinic.succeeds("schedules")["schedules"] == []


IMPOSSIBLE = [
    "0 0 31 2 *",
    "0 0 30 2 *",
    "0 0 31 2,4,6,9,11 *",
    "",
    " ",
    "0 0 * * * *",
    "@daily",
    "0 3 * *",
    "61 0 * * *",
]


@pytest.mark.parametrize("cron", IMPOSSIBLE)
def test_an_expression_that_never_comes_is_refused_by_name(cron: str, clinic: CommandLine) -> None:
    """It was stored, and `unitball serve` then started for nobody."""
    for given in (("--cron", cron), ("--cron", cron, "--on-new-version"), ("--nightly", "--cron", cron)):
        clinic("schedule", "clinic", *given, "--epsilon", "0.1").refused(2, "--cron")
    clinic("schedule", "clinic", "--cron", cron, "--epsilon", "0.1").refused(2, f"--cron {cron!r}: ")
    assert clinic.succeeds("schedules")["schedules"] == []


def test_the_next_three_dates_are_said_in_the_schedules_own_time(clinic: CommandLine) -> None:
    given = ("schedule", "clinic", "--cron", "30 12 * * *", "--timezone", "Asia/Tokyo", "--epsilon", "0.05")
    dates = [datetime.fromisoformat(one) for one in clinic.succeeds(*given)["next_dates"]]
    first = dates[0]
    assert [one - first for one in dates] == [timedelta(days=day) for day in range(3)]
    assert (first.hour, first.minute, first.utcoffset()) == (12, 30, timedelta(hours=9))
    assert timedelta(0) < first - datetime.now(UTC) + timedelta(minutes=5) <= timedelta(days=1, minutes=5)
    shown = clinic(*given).out
    assert all(f"{one:%Y-%m-%d %H:%M}" in shown for one in dates), shown
    assert clinic.succeeds("schedule", "clinic", "--on-new-version", "--epsilon", "0.05")["next_dates"] == []


def _stored(dataset: str, **changed: Any) -> None:
    """Put an entry into the catalogue untried."""
    catalog = open_catalog()
    kept = dict(catalog.schedules()["clinic"])
    catalog.set_schedule(dataset, {**kept, "config": {**kept["config"], "dataset": dataset}, **changed})


BROKEN: list[tuple[dict[str, Any], list[str]]] = [
    ({"cron": "0 0 31 2 *"}, ["0 0 31 2 *", "no date"]),
    ({"cron": ""}, ["''"]),
    ({"timezone": "Mars"}, ["Mars"]),
    ({"config": {"dataset": "second", "algorithm": "gone-with-its-plug-in"}}, ["gone-with-its-plug-in"]),
    ({"later": 1}, ["later"]),
]


@pytest.mark.parametrize(("changed", "says"), BROKEN)
def test_a_bad_entry_is_skipped_named_and_told_by_the_doctor(
    changed: dict[str, Any], says: list[str], clinic: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    rows = rows_file(tmp_path / "second.libsvm", 200, seed=4)
    declared = ("--dimension", "5", "--classes=-1,1", "--epsilon-cap", "1", "--delta-cap", "1e-5")
    assert clinic("ingest", "second", "--format", "libsvm", "--path", rows, *declared).code == 0
    clinic.succeeds("schedule", "clinic", "--nightly", "--epsilon", "0.05")
    (check,) = (one for one in clinic.succeeds("doctor")["checks"] if one["check"] == "schedules")
    assert check["problem"] is None
    _stored("second", **changed)

    assert [one["name"] for one in scheduled_deployments()] == ["clinic"], "the others are served"
    (broken,) = sound_schedules().broken
    assert broken.dataset == "second"
    assert all(word in broken.problem for word in says), broken
    checked = clinic("doctor", "--json")
    assert checked.code == 1
    (check,) = (one for one in checked.json["checks"] if one["check"] == "schedules")
    assert all(word in check["problem"] for word in ("second", *says)), check
    assert "unitball schedule second" in check["way_out"]
    assert "second" in clinic("schedules").out
    again = ("ingest", "second", "--format", "libsvm", "--path", rows, *declared[:3])
    assert clinic(*again).code == 0, "ingesting goes on"
    clinic.succeeds("schedule", "second", "--remove")
    assert clinic("doctor").code == 0


def test_the_runner_says_what_it_skips_and_serves_the_rest(
    clinic: CommandLine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    clinic.succeeds("schedule", "clinic", "--nightly", "--epsilon", "0.05")
    _stored("clinic", cron="0 0 31 2 *")
    served: list[Any] = []
    monkeypatch.setattr(runner, "_serve", lambda *given, **_: served.extend(given))
    monkeypatch.setattr("sys.argv", ["runner", "--prefect-file", str(DEPLOYMENTS), "--runs", "1"])
    runner.main()
    assert [one["name"] for one in served[0]] == [one["name"] for one in read_deployments(DEPLOYMENTS)]
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith(SKIPPED)]
    assert "clinic" in line
    assert "0 0 31 2 *" in line
    lines = [LogLine.model_validate_json(one) for one in events_file(clinic.root).read_bytes().splitlines()]
    assert [one.dataset for one in lines if one.event == str(Event.UNWELL)] == ["clinic"], "the webhook is told"


def test_a_deployments_file_names_what_never_comes(tmp_path: Path) -> None:
    file = tmp_path / "prefect.yaml"
    entry = "deployments:\n- {name: mine, entrypoint: flows.sweep.sweep, schedules: [{cron: '0 0 31 2 *'}]}\n"
    file.write_text(entry)
    with pytest.raises(InputError, match=r"deployment 'mine'.*'0 0 31 2 \*'.*no date"):
        read_deployments(file)
    file.write_text("deployments:\n- {name: mine, entrypoint: flows.sweep.nothing_there}\n")
    with pytest.raises(InputError, match=r"deployment 'mine'.*flows\.sweep\.nothing_there"):
        read_deployments(file)


def test_rows_to_score_are_looked_at_when_their_schedule_is_set(clinic: CommandLine, tmp_path: Path) -> None:
    """A column that is not there would fail every night, after each training was charged."""
    given = ("schedule", "clinic", "--nightly", "--epsilon", "0.05", "--score-input")
    rows = tmp_path / "new.parquet"
    pq.write_table(pa.table({"who": ["a"], "features": [[0.1] * 5]}), rows)
    clinic(*given, rows, "--score-id", "nobody").refused(2, "'nobody'", "who, features")
    clinic.succeeds(*given, rows, "--score-id", "who")
    text = tmp_path / "new.csv"
    text.write_text("a\n1\n")
    clinic(*given, text).refused(2, str(text), "Parquet")
    rows.unlink()
    (check,) = (one for one in clinic("doctor", "--json").json["checks"] if one["check"] == "schedules")
    assert str(rows) in check["problem"]
