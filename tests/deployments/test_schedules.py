"""Schedules of data sets: who may set what, what is served of them, and that nothing runs unasked."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.exceptions import PrefectHTTPStatusError

from deployments import runner
from deployments.runner import offer
from deployments.serving import DEPLOYMENTS, SKIPPED
from deployments.specifications import read_deployments, scheduled_deployments
from storage.errors import InputError
from tasks.datasets.schedules import allowed_comparison, next_dates, sound_schedules
from tasks.release import forecasts
from tasks.runtime.events import Event, LogLine, events_file
from tasks.runtime.stores import open_catalog
from tests.support.command_line import CommandLine
from tests.support.serving import rows_file


@pytest.fixture
def clinic(commands: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    # What is forecast of years of nights is tests/tasks/release/test_forecasts.py's: each command here looks ahead.
    monkeypatch.setattr(forecasts, "MOST_DATES", 60)
    rows = rows_file(tmp_path / "rows.libsvm", 200)
    declared = ("--dimension", "5", "--classes=-1,1", "--epsilon-cap", "1", "--delta-cap", "1e-5")
    assert commands("ingest", "clinic", "--format", "libsvm", "--path", rows, *declared).code == 0
    return commands


def test_what_is_served_by_default_spends_nothing_by_itself() -> None:
    """Unasked run the report of budgets, which makes no release, and a comparison that charges what owners have set."""
    for deployment in read_deployments(DEPLOYMENTS):
        assert not deployment["triggers"] or deployment["entrypoint"] == "flows.asked.compare"
        unasked = [schedule for schedule in deployment["schedules"] if schedule.active is not False]
        assert not unasked or deployment["entrypoint"] == "flows.budget_report.budget_report"


def test_rows_to_score_become_a_deployment_that_trainings_start(
    clinic: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    new = tmp_path / "new.parquet"
    pq.write_table(pa.table({"a": [1], "features": [[0.1] * 5]}), new)
    scored = ("--score-input", str(new), "--score-id", "a", "--algorithm", "noisy-gd", "--epsilon", "0.1")
    covered = ("--roc", "--score-coverage", "0.9")
    clinic("schedule", "clinic", "--nightly", *scored, "--score-coverage", "0.9").refused(2, "--roc")
    clinic("schedule", "clinic", "--nightly", *scored, "--roc", "--score-coverage", "1.5").refused(
        2, "--score-coverage", "1.5"
    )
    clinic.succeeds("schedule", "clinic", *scored, *covered, "--name", "sets")
    (sets,) = scheduled_deployments()
    assert sets["triggers"][0].parameters["coverage"] == 0.9
    clinic.succeeds("schedule", "clinic", "--remove", "--name", "sets")
    clinic.succeeds("schedule", "clinic", *scored)
    (scoring,) = scheduled_deployments()
    assert (scoring["name"], scoring["entrypoint"]) == ("clinic.scoring", "flows.asked.score")
    (trigger,) = scoring["triggers"]
    assert trigger.expect == {"unitball.training.completed"}
    assert dict(trigger.match.root) == {"prefect.resource.id": "unitball.dataset.clinic"}
    request = trigger.parameters
    assert (request["input"], request["id_column"], request["prefer_champion"]) == (str(new), "a", True)
    clinic.succeeds("schedule", "clinic", "--nightly", *scored)
    # Two schedules of one file: it is scored once after each training.
    served = [(one["name"], one["entrypoint"].split(".")[-1]) for one in scheduled_deployments()]
    assert served == [("clinic.nightly", "train"), ("clinic.nightly", "score")]
    clinic.succeeds("schedule", "clinic", "--pause", "--name", "nightly")
    (_, scoring) = scheduled_deployments()
    assert (scoring["name"], len(scoring["triggers"])) == ("clinic.scoring", 1), "the other one has it scored still"


def test_a_form_lists_the_data_sets_there_are() -> None:
    """Where one has to be told; a figure of a paper may be of a set that is not registered yet."""
    changed: dict[UUID, Any] = {}
    train, redraw = UUID(int=1), UUID(int=2)

    late = {train}

    class Client:
        async def read_flow_runs(self, *, flow_run_filter: Any, limit: int) -> list[Any]:
            (deployment,) = flow_run_filter.deployment_id.any_
            near = flow_run_filter.expected_start_time.before_ - datetime.now(UTC)
            assert timedelta(seconds=10) < near < timedelta(seconds=60)
            return [SimpleNamespace()][:limit] if deployment in late else []

        async def read_deployment(self, deployment: UUID) -> Any:
            if deployment in changed:
                return changed[deployment]
            schema: dict[str, Any] = {"properties": {"dataset": {"type": "string"}, "more": {}}}
            schema |= {"required": ["dataset"]} if deployment == train else {}
            told = "Train on clinic, as set: 3 more runs." if deployment == train else "A figure: it is drawn."
            return SimpleNamespace(parameter_openapi_schema=schema, description=told)

        async def update_deployment(self, deployment: UUID, update: Any) -> None:
            assert deployment not in changed, "said again where nothing is new"
            changed[deployment] = update

    now = ["Score it, as set: …", "Train on clinic, as set: 2 more runs."]

    def offers() -> bool:
        return asyncio.run(offer(cast(PrefectClient, Client()), [train, redraw], ["clinic", "digits"], now))

    # The server would delete the run that waits, and not make it anew.
    assert offers() is False
    assert set(changed) == {redraw}
    late.clear()
    assert offers() is True
    # What fitted when the server was started is not what fits after a run.
    assert changed[train].description == now[1]
    assert changed[redraw].description == "A figure: it is drawn."
    schemas = [changed[one].parameter_openapi_schema for one in (train, redraw)]
    assert [one["additionalProperties"] for one in schemas] == [False, False]
    fields = [one["properties"]["dataset"] for one in schemas]
    assert fields == [{"type": "string", "enum": ["clinic", "digits"]}, {"type": "string"}]
    assert offers() is True


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
    assert (done["schedule"]["cron"], done["schedule"]["name"], done["before"]) == ("0 3 * * *", "nightly", None)
    (deployment,) = scheduled_deployments()
    assert deployment["name"] == "clinic.nightly"
    (schedule,) = deployment["schedules"]
    assert (schedule.schedule.cron, schedule.schedule.timezone) == ("0 3 * * *", "Europe/Berlin")
    (trigger,) = deployment["triggers"]
    assert dict(trigger.match.root) == {"prefect.resource.id": "unitball.dataset.clinic"}
    assert trigger.parameters == deployment["parameters"]
    assert deployment["parameters"] == {"dataset": "clinic", "epsilon": 0.05, "algorithm": "unitball", "more": {}}
    # Another one of its name takes its place, and says what was there.
    again = ("schedule", "clinic", "--cron", "0 5 * * 1", "--name", "nightly", "--epsilon", "0.1")
    told = clinic(*again).out
    assert "changed clinic.nightly, which was: " in told
    for was in ("cron '0 3 * * *'", "timezone 'Europe/Berlin'", "on_new_version True", "epsilon 0.05"):
        assert was in told, told
    assert clinic.succeeds(*again)["before"]["config"]["epsilon"] == 0.1
    (deployment,) = scheduled_deployments()
    assert [each.schedule.cron for each in deployment["schedules"]] == ["0 5 * * 1"]
    assert deployment["triggers"] == []
    assert [one["config"]["epsilon"] for one in clinic.succeeds("schedules")["schedules"]] == [0.1]
    assert "\\n" not in clinic("schedules").out
    clinic.succeeds("schedule", "clinic", "--remove")
    assert scheduled_deployments() == []


def test_a_second_schedule_stands_beside_the_first(clinic: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the first one's place in silence, and nothing trained at night any more."""
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    clinic.succeeds("schedule", "clinic", "--nightly", "--epsilon", "0.05")
    told = clinic("schedule", "clinic", "--on-new-version", "--epsilon", "0.1").out
    assert "other schedules: nightly" in told
    clinic.succeeds("schedule", "clinic", "--cron", "0 5 * * 1", "--epsilon", "0.1", "--name", "mondays")
    served = {one["name"]: (len(one["schedules"]), len(one["triggers"])) for one in scheduled_deployments()}
    assert served == {"clinic.mondays": (1, 0), "clinic.nightly": (1, 0), "clinic.on-new-version": (0, 1)}
    listed = {one["name"]: one for one in clinic.succeeds("schedules")["schedules"]}
    assert {name: len(one["next_dates"]) for name, one in listed.items()} == {
        "mondays": 3,
        "nightly": 3,
        "on-new-version": 0,
    }
    # Of several, the one that is meant is named.
    for flag in ("--remove", "--pause", "--resume"):
        clinic("schedule", "clinic", flag).refused(2, "mondays, nightly, on-new-version", "--name")
        clinic("schedule", "clinic", flag, "--name", "weekly").refused(2, "'weekly'", "nightly")
    clinic.succeeds("schedule", "clinic", "--remove", "--name", "nightly")
    assert [one["name"] for one in scheduled_deployments()] == ["clinic.mondays", "clinic.on-new-version"]


def test_a_paused_schedule_is_started_by_nothing_until_it_is_resumed(
    clinic: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    clinic.succeeds("schedule", "clinic", "--nightly", "--on-new-version", "--epsilon", "0.05")
    clinic.succeeds("schedule", "clinic", "--cron", "0 5 * * 1", "--epsilon", "0.1")
    assert clinic.succeeds("schedule", "clinic", "--pause", "--name", "nightly")["next_dates"] == []
    other, paused = scheduled_deployments()
    assert (paused["name"], [one.active for one in paused["schedules"]], paused["triggers"]) == (
        "clinic.nightly",
        [False],
        [],
    )
    assert "Paused" in paused["description"]
    assert other["schedules"][0].active is True
    (cron, nightly) = clinic.succeeds("schedules")["schedules"]
    assert (len(cron["next_dates"]), nightly["next_dates"], nightly["paused"]) == (3, [], True)
    again = ("ingest", "clinic", "--format", "libsvm", "--path", str(clinic.root.parent / "rows.libsvm"))
    rows_file(clinic.root.parent / "rows.libsvm", 210, seed=8)
    assert "starts" not in clinic(*again, "--dimension", "5", "--classes=-1,1").out
    done = clinic.succeeds("schedule", "clinic", "--resume", "--name", "nightly")
    assert len(done["next_dates"]) == 3
    assert done["schedule"]["config"]["epsilon"] == 0.05
    assert [one.active for one in scheduled_deployments()[1]["schedules"]] == [True]


def test_what_comparing_costs_is_said_by_schedules_of_its_algorithm(
    clinic: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several prices the lowest; what is paused says nothing, and of another algorithm nothing was said."""
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    said = ("--algorithm", "noisy-gd", "--epsilon", "0.05", "--compare-epsilon")
    clinic.succeeds("schedule", "clinic", "--nightly", *said, "0.2", "--promote")
    clinic.succeeds("schedule", "clinic", "--on-new-version", *said, "0.1")
    assert allowed_comparison("clinic", "noisy-gd") == (0.1, True)
    assert allowed_comparison("clinic", "unitball") == (None, False)
    clinic.succeeds("schedule", "clinic", "--pause", "--name", "nightly")
    assert allowed_comparison("clinic", "noisy-gd") == (0.1, False)
    clinic.succeeds("schedule", "clinic", "--pause", "--name", "on-new-version")
    assert allowed_comparison("clinic", "noisy-gd") == (None, False)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("clinic", "--epsilon", "0.1"), "has no trigger"),
        (("nobody", "--nightly", "--epsilon", "0.1"), "data set 'nobody' does not exist"),
        (("clinic", "--cron", "often", "--epsilon", "0.1"), "--cron 'often'"),
        (("clinic", "--nightly", "--timezone", "Mars", "--epsilon", "0.1"), "--timezone 'Mars'"),
        (("clinic", "--nightly", "--cron", "0 5 * * 1", "--epsilon", "0.1"), "give one of them"),
        (("clinic", "--nightly", "--remove"), "no further options"),
        (("clinic", "--nightly", "--pause"), "no further options"),
        (("clinic", "--pause", "--remove"), "give one of them"),
        (("clinic", "--remove"), "has no schedule"),
        (("clinic", "--nightly", "--epsilon", "0.1", "--name", "two words"), "got 'two words'"),
        (("clinic", "--nightly", "--epsilon", "0.1", "--name", "a.b"), "--name: "),
        (("clinic", "--nightly", "--epsilon", "0.1", "--name", ""), "--name"),
        (("clinic", "--nightly", "--epsilon", "0.1", "--score-id", "a"), "add --score-input"),
        (("clinic", "--epsilon", "0.1", "--score-input", "/nowhere.csv"), "/nowhere.csv"),
        (("clinic", "--nightly", "--epsilon", "5"), "cap"),
        (("clinic", "--nightly", "--horizon", "5", "--epsilon", "0.3", "--promote"), "no held-out rows"),
        (("clinic", "--nightly", "--horizon", "5", "--epsilon", "0.3", "--compare-epsilon", "0.1"), "no held-out rows"),
        (("clinic", "--nightly", "--no-evaluation", "--epsilon", "0.1", "--promote"), "train with --test-fraction"),
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
    kept = dict(catalog.schedules()["clinic", "nightly"])
    catalog.set_schedule(dataset, "nightly", {**kept, "config": {**kept["config"], "dataset": dataset}, **changed})


BROKEN: tuple[tuple[dict[str, Any], list[str]], ...] = (
    ({"cron": "0 0 31 2 *"}, ["0 0 31 2 *", "no date"]),
    ({"cron": ""}, ["''"]),
    ({"timezone": "Mars"}, ["Mars"]),
    ({"config": {"dataset": "second", "algorithm": "gone-with-its-plug-in"}}, ["gone-with-its-plug-in"]),
    ({"later": 1}, ["later"]),
    # Kept for one data set, it would train another one at its owner's price.
    ({"config": {"dataset": "clinic", "epsilon": 0.05}}, ["clinic.nightly"]),
)


def test_a_bad_entry_is_skipped_named_and_told_by_the_doctor(
    clinic: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    rows = rows_file(tmp_path / "second.libsvm", 200, seed=4)
    declared = ("--dimension", "5", "--classes=-1,1", "--epsilon-cap", "1", "--delta-cap", "1e-5")
    assert clinic("ingest", "second", "--format", "libsvm", "--path", rows, *declared).code == 0
    clinic.succeeds("schedule", "clinic", "--nightly", "--epsilon", "0.05")
    (check,) = (one for one in clinic.succeeds("doctor")["checks"] if one["check"] == "schedules")
    assert check["problem"] is None
    for changed, says in BROKEN:
        _stored("second", **changed)
        assert [one["name"] for one in scheduled_deployments()] == ["clinic.nightly"], "the others are served"
        (broken,) = sound_schedules().broken
        assert (broken.dataset, broken.name) == ("second", "nightly")
        assert all(word in broken.problem for word in says), broken
        checked = clinic("doctor", "--json")
        assert checked.code == 1
        (check,) = (one for one in checked.json["checks"] if one["check"] == "schedules")
        assert all(word in check["problem"] for word in ("second", *says)), check
        assert "unitball schedule second --name nightly" in check["way_out"]
        assert "second" in clinic("schedules").out
        again = ("ingest", "second", "--format", "libsvm", "--path", rows, *declared[:3])
        assert clinic(*again).code == 0, "ingesting goes on"
        clinic.succeeds("schedule", "second", "--remove")
        assert clinic("doctor").code == 0


class Deployments:
    """What of Prefect's runner and client applying deployments needs; refuses what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: str = "") -> None:
        self.there: dict[UUID, str] = {}
        self.calls: list[tuple[str, str]] = []
        self.schedules: dict[UUID, list[SimpleNamespace]] = {}
        self.refused = refused
        self.ended: list[str] = []
        self.elsewhere = set[str]()
        self.forms = set[UUID]()
        monkeypatch.setattr(runner, "get_client", lambda **_: self)

    def __enter__(self) -> Deployments:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def add_flow(self, _flow: Any, *, name: str, schedules: Any, **_: Any) -> UUID:
        if name == self.refused:
            response = httpx.Response(422, request=httpx.Request("POST", "http://server"))
            raise PrefectHTTPStatusError("no", request=response.request, response=response)
        number = next((one for one, called in self.there.items() if called == name), UUID(int=len(self.calls) + 1))
        self.there[number] = name
        self.calls.append(("add", name))
        # As the server does (issue 23097): it leaves schedules that are not named as they were.
        kept = {one.slug: one for one in self.schedules.get(number, [])}
        kept |= {one.slug: SimpleNamespace(slug=one.slug, id=one.slug, cron=one.schedule.cron) for one in schedules}
        self.schedules[number] = list(kept.values())
        return number

    def read_deployments(self, *, deployment_filter: Any) -> list[SimpleNamespace]:
        assert deployment_filter.tags.all_ == ["unitball"]
        asked = set(deployment_filter.name.any_)
        return [SimpleNamespace(name=one, tags=["unitball", "unitball.root.x"]) for one in asked & self.elsewhere]

    def read_deployment(self, deployment: UUID) -> SimpleNamespace:
        assert deployment in self.there
        return SimpleNamespace(parameter_openapi_schema={"properties": {"dataset": {}}, "required": ["dataset"]})

    def update_deployment(self, deployment: UUID, update: Any) -> None:
        assert "clinic" in update.parameter_openapi_schema["properties"]["dataset"]["enum"]
        self.forms.add(deployment)

    def read_deployment_schedules(self, deployment: UUID) -> list[SimpleNamespace]:
        return list(self.schedules[deployment])

    def delete_deployment_schedule(self, deployment: UUID, schedule: Any) -> None:
        self.schedules[deployment] = [one for one in self.schedules[deployment] if one.id != schedule]

    def delete_deployment(self, deployment: UUID) -> None:
        self.calls.append(("delete", self.there.pop(deployment)))

    def delete_resource_owned_automations(self, resource: str) -> None:
        self.ended.append(resource)


def test_a_served_root_follows_what_is_set_changed_paused_and_removed(
    clinic: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has not changed is left alone, so that runs that wait for it go on waiting."""
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    server = Deployments(monkeypatch)
    served = runner.Served(cast(Any, server), clinic.root)

    def follows(*command: str) -> list[tuple[str, str]]:
        clinic.succeeds("schedule", "clinic", *command)
        before = len(server.calls)
        served.follow()
        return server.calls[before:]

    assert follows("--nightly", "--epsilon", "0.05") == [("add", "clinic.nightly")]
    assert follows("--on-new-version", "--epsilon", "0.05") == [("add", "clinic.on-new-version")]
    assert follows("--nightly", "--epsilon", "0.05") == [], "the same again"
    assert follows("--nightly", "--epsilon", "0.1") == [("add", "clinic.nightly")]
    assert follows("--pause", "--name", "nightly") == [("add", "clinic.nightly")]
    assert follows("--resume", "--name", "nightly") == [("add", "clinic.nightly")]
    # A clock that was taken back goes on ticking on the server unless it is ended there.
    assert follows("--on-new-version", "--name", "nightly", "--epsilon", "0.1") == [("add", "clinic.nightly")]
    assert all(schedules == [] for schedules in server.schedules.values())
    assert follows("--remove", "--name", "on-new-version") == [("delete", "clinic.on-new-version")]
    assert len(served.flows) == 1
    assert server.forms >= set(server.there), "a form that is to be seen is whole"
    (ended,) = server.ended
    assert ended.startswith("prefect.deployment."), "its trigger goes with it"


def test_a_schedule_that_the_server_refuses_stops_none_of_the_others(
    clinic: CommandLine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    for name in ("one", "two", "three"):
        clinic.succeeds("schedule", "clinic", "--nightly", "--name", name, "--epsilon", "0.05")
    server = Deployments(monkeypatch, refused="clinic.three")
    served = runner.Served(cast(Any, server), clinic.root)
    served.follow()
    assert sorted(server.there.values()) == ["clinic.one", "clinic.two"]
    served.follow()
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith(SKIPPED)]
    assert len(lines) == 1, "said once"
    assert "clinic.three" in lines[0]


def test_a_schedule_takes_no_place_of_another_roots_on_a_shared_server(
    clinic: CommandLine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also one that is set while the root is served: what runs there on other rows would run on these."""
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    server = Deployments(monkeypatch)
    served = runner.Served(cast(Any, server), clinic.root, shared=True)
    server.elsewhere = {"clinic.nightly"}
    clinic.succeeds("schedule", "clinic", "--nightly", "--epsilon", "0.05")
    clinic.succeeds("schedule", "clinic", "--nightly", "--name", "ours", "--epsilon", "0.05")
    served.follow()
    assert list(server.there.values()) == ["clinic.ours"]
    assert "another root" in capfd.readouterr().out


def test_rows_that_have_gone_stop_no_other_schedule(
    clinic: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails and says so, on its page beforehand, too; the others are served and listed."""
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    rows = rows_file(tmp_path / "second.libsvm", 200, seed=4)
    version = clinic.succeeds("ingest", "second", "--format", "libsvm", "--path", rows, "--public")["version"]
    for name in ("clinic", "second"):
        clinic.succeeds("schedule", name, "--nightly", "--epsilon", "0.05")
    shutil.rmtree(clinic.root / "private" / "datasets" / version)
    served = {one["name"]: one["description"] for one in scheduled_deployments()}
    assert "more runs on new versions fit" in served["clinic.nightly"]
    assert "The next run " in served["second.nightly"]
    (first, second) = clinic.succeeds("schedules")["schedules"]
    assert first["runs_left"] > 0
    assert (second["runs_left"], len(second["next_dates"])) == (None, 3)
    clinic.succeeds("schedule", "clinic", "--pause")
    clinic.succeeds("schedule", "second", "--remove")
    assert [one["name"] for one in scheduled_deployments()] == ["clinic.nightly"]


def test_the_runner_says_what_it_skips_and_serves_the_rest(
    clinic: CommandLine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where it goes bad while it is served: what was applied of it is ended."""
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    clinic.succeeds("schedule", "clinic", "--nightly", "--epsilon", "0.05")
    clinic.succeeds("schedule", "clinic", "--on-new-version", "--epsilon", "0.05")
    server = Deployments(monkeypatch)
    served = runner.Served(cast(Any, server), clinic.root)
    served.follow()
    _stored("clinic", cron="0 0 31 2 *")
    served.follow()
    assert list(server.there.values()) == ["clinic.on-new-version"]
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith(SKIPPED)]
    assert "clinic.nightly" in line
    assert "0 0 31 2 *" in line
    lines = [LogLine.model_validate_json(one) for one in events_file(clinic.root).read_bytes().splitlines()]
    assert [one.dataset for one in lines if one.event == str(Event.UNWELL)] == ["clinic"], "the webhook is told"


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"])
@pytest.mark.parametrize("cron", ["0 3 * * *", "30 2 * * *", "15 2 * * *"])
def test_a_year_of_nights_has_each_night_once(cron: str, zone: str) -> None:
    """Where clocks are put forward or back, too: no local day is left out, and none has two."""
    dates = next_dates(cron, zone, 366)
    days = [one.astimezone(ZoneInfo(zone)).date() for one in dates]
    assert all(after - day == timedelta(days=1) for day, after in itertools.pairwise(days)), zone
    assert all(after > date for date, after in itertools.pairwise(dates))


def test_a_deployments_file_names_what_never_comes(tmp_path: Path) -> None:
    file = tmp_path / "prefect.yaml"
    entry = "deployments:\n- {name: mine, entrypoint: flows.sweep.sweep, schedules: [{cron: '0 0 31 2 *'}]}\n"
    file.write_text(entry)
    with pytest.raises(InputError, match=r"'mine'.*'0 0 31 2 \*'"):
        read_deployments(file)
    file.write_text("deployments:\n- {name: mine, entrypoint: flows.sweep.nothing_there}\n")
    with pytest.raises(InputError, match=r"'mine'.*flows\.sweep\.nothing_there"):
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
