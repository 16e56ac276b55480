"""The same refusal names an option on the command line, and a parameter in a notebook."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import unitball
from dpalgos.parameters import ParameterError
from storage.errors import InputError, RefusedError
from tests.support.command_line import CommandLine
from unitball import PrivateClassifier
from unitball.wording import in_python

SCHEMA = {
    "columns": [
        {"name": "age", "type": "numeric", "range": [18, 100]},
        {"name": "outcome", "type": "label", "classes": ["well", "ill"]},
    ]
}


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("delta 1 is above the cap's: choose --delta 1e-06", "delta 1 is above the cap's: choose delta=1e-06"),
        ("choose --delta 0, or", "choose delta=0, or"),
        ("give a total budget, for example --epsilon 1", "give a total budget, for example epsilon=1"),
        ("ask with another --replicate, which is charged", "ask with another replicate, which is charged"),
        ("omit --seed", "omit seed"),
        ("choose --trust central or local", "choose trust='central' or local"),
        ("choose --trust secagg or --trust central", "choose trust='secagg' or trust='central'"),
        ("--no-evaluation, --test-fraction 0, or a --horizon", "evaluation=False, test_fraction=0, or a horizon"),
        ("train two classes with --roc, whose", "train two classes with roc=True, whose"),
        ("the parties' sizes: --sizes 50,100,500", "the parties' sizes: sizes=(50, 100, 500)"),
        ("choose --dimension from 1 to 7", "choose dimension from 1 to 7"),
        ("(--param kernel=linear)", "(parameters={'kernel': 'linear'})"),
        ('--disjoint-people "reason"', 'disjoint_people="reason"'),
        ("give --account clinic, or", "give account='clinic', or"),
        ("remove it: unitball doctor --clean", "remove it: unitball doctor --clean"),
        ("see unitball algorithms --proved. The", "see unitball algorithms --proved. The"),
        ("ask: unitball budget clinic --algorithm noisy-gd --delta 1e-6", None),
        ("unitball ingest … --allow-idealised, or", "open_account(…, allow_idealised=True), or"),
        ("a well-known -- dash, a--b", None),
        ("one party's rows, so --trust has no effect; omit", "one party's rows, so trust has no effect; omit"),
        ("or give a --test-fraction above 0", "or give a test_fraction above 0"),
        ("and --person-from also defines the person", "and person_from also defines the person"),
    ],
)
def test_options_are_parameters(said: str, read: str | None) -> None:
    assert in_python(said) == (said if read is None else read)


def _messages() -> dict[str, str]:
    """Return the texts of this program that name an option, by place."""
    found = {}
    for folder in ("dpalgos", "storage", "tasks"):
        for path in sorted(Path(folder).rglob("*.py")):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if "--" in text else ():
                if isinstance(node, ast.Raise) and node.exc is not None:
                    text = " ".join(
                        part.value
                        for said in (node.exc.args if isinstance(node.exc, ast.Call) else [node.exc])
                        for part in ast.walk(said)
                        if isinstance(part, ast.Constant) and isinstance(part.value, str)
                    )
                    if re.search(r"(?<![\w-])--[a-z]", text):
                        found[f"{path}:{node.lineno}"] = text
    return found


def test_no_message_of_the_program_keeps_an_option_in_python() -> None:
    messages = _messages()
    assert len(messages) > 60, "they are found"
    kept = {
        place: said
        for place, text in messages.items()
        if "--" in re.sub(r"unitball [a-z]+[^;:,()]*", "", said := in_python(text))
    }
    assert kept == {}


# The words that are given to options in messages, where the next word is a value.
VALUES = frozenset(
    ("central", "clip", "colours", "csv", "dpml", "drop", "even", "ftrl", "ignore", "local", "noisy", "none", "onnx")
) | {"output", "public", "replace", "secagg", "sufficient", "unitball", "white"}


def test_no_word_of_a_sentence_is_taken_for_a_value() -> None:
    sections = Path("tests/templates.txt").read_text("utf-8").split("## ")
    # The command line keeps the options in its messages, and help is of the command line alone.
    lines = [line for one in sections if not one.startswith("deployments/") for line in one.splitlines()]
    messages = [line.partition(": ")[2] for line in lines if not line.startswith("help ")]
    said = [in_python(text) for text in messages if re.search(r"(?<![\w-])--[a-z]", text)]
    assert len(said) > 100, "they are found"
    # A switch is followed by the rest of its sentence: its value is True or False.
    values = {value for text in said for value in re.findall(r"\b[a-z_]+='([a-z]+)", text)}
    assert values <= VALUES


def _refusal(call: Any) -> str:
    with pytest.raises((ParameterError, InputError, RefusedError)) as refused:
        call()
    return str(refused.value)


@pytest.mark.parametrize(
    ("options", "settings", "option", "parameter"),
    [
        (("--epsilon", "1", "--dimension", "99"), {"epsilon": 1, "dimension": 99}, "--dimension", "dimension"),
        (("--epsilon", "1", "--partition", "sized"), {"epsilon": 1, "partition": "sized"}, "--sizes", "sizes=("),
    ],
)
def test_the_spelling_follows_who_asks(
    options: tuple[str, ...], settings: dict[str, Any], option: str, parameter: str, commands: CommandLine
) -> None:
    commands("train", "--dataset", "iris", *options).refused(2, option)
    said = _refusal(lambda: unitball.train("iris", root=commands.root, **settings))
    assert parameter in said
    assert "--" not in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"repetition": 1}, r"train has no parameter 'repetition'; nearest: partition"),
        ({"algoritm": "noisy-gd"}, r"train has no parameter 'algoritm'; nearest: algorithm"),
        ({"epsilon": -1}, r"epsilon: Input should be greater than 0 \(got -1\)"),
    ],
)
def test_a_setting_that_does_not_fit_is_said_in_a_sentence(settings: dict[str, Any], words: str) -> None:
    said = _refusal(lambda: unitball.train("iris", **settings))
    assert re.fullmatch(f"{words}[^\n]*", said)
    assert "pydantic" not in said


@pytest.mark.parametrize(
    ("function", "settings", "words"),
    [
        ("describe", {"epsilon": np.nan}, r"epsilon: Input should be a finite number \(got nan\)"),
        ("describe", {"epsilon": "x"}, r"epsilon: Input should be a valid number.* \(got 'x'\)"),
        ("describe", {"epsilon": 1.0, "delta": np.nan}, r"delta: .* \(got nan\)"),
        ("reduce", {"epsilon": 0.0}, r"epsilon: Input should be greater than 0 \(got 0.0\)"),
        (
            "synthesise",
            {"epsilon": 1.0, "test_fraction": 1.0},
            r"test_fraction: Input should be less than 1 \(got 1.0\)",
        ),
        ("frontier", {"nonsense": 1}, r"frontier has no parameter 'nonsense'; nearest: .*"),
        ("frontier", {"test_fraction": 2}, r"test_fraction: Input should be less than 1 \(got 2\)"),
    ],
    ids=str,
)
def test_a_release_says_so_as_a_run_does(function: str, settings: dict[str, Any], words: str, root: Path) -> None:
    rows = pd.DataFrame({"age": [20.0, 60.0] * 20, "outcome": ["well", "ill"] * 20})
    unitball.describe(rows, schema=SCHEMA, name="stays", visibility="public", plan=True)
    with pytest.raises(ParameterError) as refused:
        getattr(unitball, function)("stays", **settings)
    assert re.fullmatch(words, str(refused.value))


@pytest.mark.parametrize("given", [("plot",), ("against",), ("plot", "against")], ids=str)
def test_a_plan_takes_nothing_that_needs_the_release(given: tuple[str, ...], root: Path) -> None:
    others: dict[str, Any] = dict.fromkeys(given, "other")
    with pytest.raises(ParameterError) as refused:
        unitball.describe("stays", plan=True, **others)
    assert str(refused.value) == f"plan returns the price and reads no row; omit {', '.join(given)}"


def test_rows_that_are_brought_in_say_so_too(tmp_path: Path) -> None:
    said = _refusal(lambda: unitball.describe("clinic", epsilon=1.0, root=tmp_path / "root", pth="rows.csv"))
    assert re.fullmatch(r"describe has no parameter 'pth'; nearest: .*path[^\n]*", said)


def test_an_estimator_reads_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unitball.training._PROCESS_ROOTS", {})
    rows, labels = np.zeros((40, 2)), ["a", "b"] * 20
    model = PrivateClassifier(algorithm="gaussian-svm-that-is-none", bounds=(0, 1), classes=["a", "b"])
    assert "--" not in _refusal(lambda: model.fit(rows, labels))
