"""Options derived from a model: every kind of field, nested models, bounds and help, all faults at once."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from pydantic import BaseModel, Field
from typer.testing import CliRunner

from deployments.cli.common import options_of
from dpalgos.parameters import ParameterError
from tasks.planning.configuration import SecureSettings, TrainingConfig
from tests.support.command_line import CommandLine


class _Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class _Inner(BaseModel):
    losses: Annotated[int, Field(ge=0, le=7, description="How many may be lost.")] = 0
    absent: tuple[str, ...] = ()


class _Model(BaseModel):
    name: Annotated[str, Field(description="Whose.", min_length=2)] = "nobody"
    share: Annotated[float | None, Field(gt=0, lt=1, description="Of the whole.")] = None
    sizes: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    colour: _Colour | None = None
    loud: Annotated[bool, Field(description="Say it aloud.")] = False
    polite: bool = True
    inner: _Inner = _Inner()
    anything: dict[str, Any] = {}
    files: dict[str, Path] = {}
    hidden: int = 3


def _application(taken: list[_Model], **options: Any) -> typer.Typer:
    application = typer.Typer()

    @application.command()
    @options_of(_Model, **options)
    def run(config: _Model, twice: Annotated[bool, typer.Option("--twice")] = False) -> None:
        """Take a configuration."""
        taken.extend([config] * (1 + twice))

    return application


def _read(*arguments: str, **options: Any) -> _Model:
    taken: list[_Model] = []
    outcome = CliRunner().invoke(_application(taken, **options), arguments)
    if outcome.exception is not None:
        raise outcome.exception
    return taken[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {}),
        (["--name", "north"], {"name": "north"}),
        (["--share", "1e-3"], {"share": 0.001}),
        (["--sizes", "50,100"], {"sizes": (50, 100)}),
        (["--sizes", "50", "--sizes", "100"], {"sizes": (50, 100)}),
        (["--colour", "blue"], {"colour": _Colour.BLUE}),
        (["--loud"], {"loud": True}),
        (["--no-polite"], {"polite": False}),
        (["--polite"], {}),
        (["--losses", "2"], {"inner": _Inner(losses=2)}),
        (["--absent=1:a,2:b", "--losses=2"], {"inner": _Inner(losses=2, absent=("1:a", "2:b"))}),
        (
            ["--anything", "a=1.5", "--anything", "b=x", "--anything", "c=null"],
            {"anything": {"a": 1.5, "b": "x", "c": None}},
        ),
        (["--files", "a=1"], {"files": {"a": Path("1")}}),
    ],
)
def test_every_kind_of_field_is_read(arguments: list[str], expected: dict[str, Any]) -> None:
    assert _read(*arguments) == _Model(**expected)


def test_names_defaults_and_fields_that_are_no_options() -> None:
    options: dict[str, Any] = {"named": {"anything": "--param"}, "defaults": {"share": 0.5}, "without": ["hidden"]}
    assert _read("--param", "a=1", **options) == _Model(anything={"a": 1}, share=0.5)
    assert _read("--share", "0.1", **options) == _Model(share=0.1)
    assert CliRunner().invoke(_application([], **options), ["--hidden", "4"]).exit_code == 2


def test_help_has_description_bounds_default_and_choices_once() -> None:
    shown = CliRunner().invoke(_application([], defaults={"share": 0.25}), ["--help"], env={"COLUMNS": "200"}).output
    text = re.sub(r"[│\s]+", " ", shown)
    assert "Whose. (default nobody)" in text
    assert "Of the whole. (> 0, < 1; default 0.25)" in text
    assert "How many may be lost. (≥ 0, ≤ 7; default 0)" in text
    assert "red|blue" in text
    assert "--loud" in text
    assert "--twice" in text


def test_all_faults_at_once_by_option() -> None:
    with pytest.raises(ParameterError) as caught:
        _read(
            "--name=x",
            "--share=2",
            "--sizes=3,x,0",
            "--colour=green",
            "--losses=9",
            "--files=a",
            "--anything=b=1",
            "--anything=b=2",
        )
    faults = str(caught.value).split("; ")
    assert [fault.split(":")[0] for fault in faults[2:]] == [
        "--name",
        "--share",
        "--sizes",
        "--sizes",
        "--colour",
        "--losses",
    ]
    assert faults[0] == "--anything b is given twice"
    assert "--files 'a' is not NAME=VALUE" in faults[1]
    assert "less than 1 (got '2')" in faults[3]


def test_two_fields_of_one_name_are_a_programming_error() -> None:
    class Outer(BaseModel):
        losses: int = 1
        inner: _Inner = _Inner()

    with pytest.raises(ValueError, match="--losses"):
        options_of(Outer)


def test_train_shows_every_field_with_its_description_and_bounds(
    commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the model says of a field is what the command line says: nothing is written twice."""
    monkeypatch.setenv("COLUMNS", "300")
    text = re.sub(r"[│\s]+", "", commands("train", "--help-all").out)
    schema = TrainingConfig.model_json_schema()["properties"]
    for name, field in TrainingConfig.model_fields.items():
        assert schema[name]["description"] == field.description
    fields = {**TrainingConfig.model_fields, **SecureSettings.model_fields}
    for name, field in fields.items():
        if name == "secure":
            continue
        assert field.description, name
        # Fields stand in backticks, and options in their place.
        described = re.sub(r"`(\w+)`", lambda found: "--" + found[1].replace("_", "-"), field.description)
        assert re.sub(r"\s+", "", described) in text, name
        called = {"parameters": "--param", "tuned_on": "--on"}
        assert called.get(name, "--" + name.replace("_", "-")) in text
    assert ">0,≤1000" in text


def _help(model: type[BaseModel]) -> str:
    application = typer.Typer()

    @application.command()
    @options_of(model)
    def run(asked: Any) -> None:
        """Take a request."""

    return CliRunner().invoke(application, ["--help"], env={"COLUMNS": "200"}).output


def test_weights_of_classes_are_offered_by_name_or_as_a_word() -> None:
    assert "balanced|NAME=VALUE" in re.sub(r"[│\s]+", " ", _help(TrainingConfig))


def test_only_relations_that_can_be_in_force_are_offered() -> None:
    from flows.asked import audit
    from tasks.datasets.request import IngestRequest

    relations = ["replace-one", "replace-special"]
    models = [(TrainingConfig.model_json_schema(), "neighbours"), (IngestRequest.model_json_schema(), "relation")]
    for schema, field in models:
        assert "add-remove-one" not in json.dumps(schema)
        assert schema["properties"][field]["anyOf"][0]["enum"] == relations
    assert audit.parameters.properties["neighbours"]["enum"] == relations
    for request in (TrainingConfig, IngestRequest):
        shown = re.sub(r"[│\s]+", " ", _help(request))
        assert "replace-one|replace-special" in shown
        assert "add-remove-one" not in shown
    with pytest.raises(ValueError, match="'add-remove'"):
        TrainingConfig(dataset="digits", neighbours="add-remove")
