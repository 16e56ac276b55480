"""The forms of what is deployed: few fields, in their order, in words; what is in ``more`` is checked like the rest."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.settings import Settings
from prefect.utilities.schema_tools.validation import is_valid

from deployments.runner import form_shown
from deployments.serving import DEPLOYMENTS, Serving
from deployments.specifications import read_deployments
from dpalgos.parameters import ParameterError
from dpalgos.registry import names
from flows import asked as asked_flows
from flows import federated_training
from flows.asked import Called, train
from storage.layout import Layout
from tasks.planning.asked import FIELDS, asked_config, asked_of
from tasks.planning.configuration import SecureSettings, TrainingConfig
from tasks.runtime import ending
from tasks.tracking.runs import experiment_of, name_run, tracking_client

FORMS: dict[str, Flow[Any, Any]] = {
    spec["name"]: load_flow_from_entrypoint(spec["entrypoint"]) for spec in read_deployments(DEPLOYMENTS)
}
MOST_FIELDS = 8


def schema_of(name: str) -> dict[str, Any]:
    """Return a form as the runner offers it."""
    return form_shown(FORMS[name].parameters.model_dump_for_openapi(), ["digits", "iris"])


def in_order(schema: dict[str, Any]) -> list[str]:
    return sorted(schema["properties"], key=lambda name: schema["properties"][name]["position"])


def test_deployments_are_called_as_the_commands_are() -> None:
    assert set(FORMS) == {
        "train",
        "sweep",
        "reproduce",
        "score",
        "compare",
        "audit",
        "budget",
        "describe",
        "synthesise",
        "reduce",
    }


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_short_flat_and_speaks(name: str) -> None:
    """At most eight fields, each with a title and a text for its reader; nothing nested, no default that is a thing."""
    schema = schema_of(name)
    assert len(schema["properties"]) <= MOST_FIELDS
    assert schema.get("definitions", {}) == {}
    assert "$ref" not in json.dumps(schema)
    for field, shown in schema["properties"].items():
        assert shown["title"][0].isupper(), field
        assert len(shown["description"]) > 10, field
        # Pages show such a default as [object Object]; an empty one is an empty editor.
        assert not shown.get("default") or not isinstance(shown["default"], dict | list), field
        # They send it as it is: a default of nothing was refused in a form that nobody had touched.
        assert "default" not in shown or is_valid(shown["default"], {**shown, "required": []}), field
        assert {"type": "null"} not in shown.get("anyOf", []) or shown["anyOf"][0]["type"] == "boolean", field
    description = str(FORMS[name].description)
    assert "----" not in description, "a docstring is for who reads the code"
    assert description.count("\n") == 0


def test_a_training_asks_in_this_order() -> None:
    schema = schema_of("train")
    assert in_order(schema) == ["dataset", "epsilon", "algorithm", "trust", "features", "name", "seed", "more"]
    assert schema["properties"]["algorithm"]["enum"] == list(names("systems"))
    assert schema["properties"]["trust"]["enum"] == list(names("trusts"))
    assert schema["properties"]["dataset"]["enum"] == ["digits", "iris"]
    assert schema["required"] == ["dataset"]


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"dataset": "digits"}, True),
        ({"dataset": "digits", "more": {"parties": 3}}, True),
        ({"dataset": "digits", "epsilon": 0}, False),
        ({"dataset": "digits", "epsilon": 1001}, False),
        ({"dataset": "digits", "trust": "nobody"}, False),
        ({"dataset": "digits", "more": "parties=3"}, False),
        ({"dataset": "elsewhere"}, False),
        ({"dataset": "digits", "parties": 3}, False),
        ({"config": {"dataset": "digits"}}, False),
    ],
)
def test_the_form_itself_refuses_what_is_out_of_bounds(given: dict[str, Any], fits: bool) -> None:
    assert is_valid(given, schema_of("train")) is fits


CONFIGS = [
    TrainingConfig(dataset="digits", epsilon=1.0),
    TrainingConfig(
        dataset="digits", epsilon=0.1, trust="secagg", secure=SecureSettings(dropouts=1, colluders=2), parties=4
    ),
    TrainingConfig(dataset="digits", epsilon=1.0, trainer="noisy-gd", projection="wishart-pca", dimension=3),
    TrainingConfig(dataset="digits", epsilon=1.0, sizes=(3, 4), class_weight={"1": 0.5}, parameters={"clip": 0.5}),
    TrainingConfig(dataset="digits", epsilon=1.0, class_weight="balanced", roc=True, aim="cost=1:20", deadline=9.5),
    TrainingConfig(dataset="digits", epsilon=1.0, horizon=365, participations=4, separation=90, bands=7),
    TrainingConfig(dataset="digits", algorithm="non-private", seed=7, tune={"clip": (0.5, 0.25)}, features="hog"),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_what_a_schedule_asks_is_what_its_form_asks(config: TrainingConfig) -> None:
    """By way of JSON, in which the server keeps it: not a field is lost, and none of its defaults is spelt out."""
    asked = json.loads(json.dumps(asked_of(config)))
    assert is_valid(asked, schema_of("train"))
    fields = {name: asked.get(name) for name in FIELDS}
    assert asked_config({**fields, "algorithm": asked.get("algorithm", "unitball")}, asked["more"]) == config
    assert not set(asked["more"]) & set(FIELDS)
    for name, value in asked["more"].items():
        assert value != TrainingConfig.model_fields[name].get_default(), name


def asked(more: dict[str, Any], **fields: Any) -> TrainingConfig:
    usual = {name: TrainingConfig.model_fields[name].default for name in FIELDS}
    return asked_config({**usual, "epsilon": 1.0, **fields}, more)


def test_more_is_merged_into_the_configuration() -> None:
    config = asked({"parties": 3, "dropouts": 1, "parameters": {"clip": 0.5}}, trust="secagg")
    assert (config.parties, config.secure, config.trust) == (3, SecureSettings(dropouts=1), "secagg")
    assert config.parameters == {"clip": 0.5}
    # The form fills in the usual system, which a trainer of one's own stands instead of.
    assert asked({"trainer": "noisy-gd"}).system == "noisy-gd"
    # A box that was emptied again.
    assert asked({}, features="", trust="") == asked({})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"partys": 3}, ["'partys'", "3", "parties"]),
        ({"epsilon": 2.0}, ["epsilon", "2.0", "separate field"]),
        ({"dataset": "iris"}, ["dataset", "'iris'", "omit it here"]),
        ({"parties": 0}, ["parties", "greater than or equal to 1", "got 0"]),
        ({"delta": "much"}, ["delta", "'much'"]),
        ({"projection": "no-such"}, ["no-such", "nearest"]),
        ({"trainer": "noisy-gd", "algorithm": "unitball"}, ["algorithm", "separate field"]),
        ({"config": {"parties": 3}}, ["'config'", "nearest"]),
    ],
)
def test_what_is_wrong_in_more_is_refused_with_its_value_and_the_way_out(more: dict[str, Any], says: list[str]) -> None:
    with pytest.raises(ParameterError) as refused:
        asked(more)
    assert all(part in str(refused.value) for part in says), refused.value


def test_every_fault_is_said_at_once() -> None:
    with pytest.raises(ParameterError, match=r"'partys'.*epsilon"):
        asked({"partys": 3, "epsilon": 2.0})


def test_a_run_of_wrong_parameters_begins_and_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """It crashed over its own name, without a word."""
    told: list[dict[str, str]] = []
    monkeypatch.setattr(ending, "announce", lambda event, about, payload, **_: told.append(payload))
    monkeypatch.setattr(asked_flows, "flow_run", SimpleNamespace(parameters={"dataset": "iris", "more": {"partys": 3}}))
    named = train.flow_run_name
    assert isinstance(named, Called)
    assert named() == "iris"
    with pytest.raises(ParameterError, match="'partys'"):
        train.fn("iris", 1.0, more={"partys": 3})
    (payload,) = told
    assert "'partys'" in payload["reason"]


def test_a_named_run_is_the_run_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One flow run, not one within another: what does the work is called as a function."""
    seen: list[TrainingConfig] = []

    def fake(config: TrainingConfig) -> str:
        seen.append(config)
        return "a state"

    monkeypatch.setattr(federated_training.train, "fn", fake)
    assert train.fn("digits", 0.5, name="mine", more={"parties": 3}) == "a state"  # type: ignore[comparison-overlap]
    assert seen == [TrainingConfig(dataset="digits", epsilon=0.5, parties=3)]


def test_the_name_of_a_run_is_shown_by_mlflow(root: Path) -> None:
    layout = Layout(root).prepare()
    with tracking_client(layout.root) as client:
        experiment = experiment_of(client, layout.root, "clinic")
        run = client.create_run(experiment, run_name="noisy-gd")
    name_run(layout.root, run.info.run_id, "after the flood")
    with tracking_client(layout.root) as client:
        assert client.get_run(run.info.run_id).info.run_name == "after the flood"


def test_prefects_pages_advertise_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that this Prefect does not know would change nothing, and nobody would be told."""
    for name, value in Serving(root=tmp_path).prefect_settings().items():
        monkeypatch.setenv(name, value)
    assert Settings().server.ui.show_promotional_content is False
