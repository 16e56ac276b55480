"""The same refusal names an option on the command line, and a parameter in a notebook."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unitball
from dpalgos.parameters import ParameterError
from storage.errors import InputError, RefusedError
from tests.support.command_line import CommandLine
from unitball import PrivateClassifier
from unitball.wording import in_python


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


def test_rows_that_are_brought_in_say_so_too(tmp_path: Path) -> None:
    said = _refusal(lambda: unitball.describe("clinic", epsilon=1.0, root=tmp_path / "root", pth="rows.csv"))
    assert re.fullmatch(r"describe has no parameter 'pth'; nearest: .*path[^\n]*", said)


def test_an_estimator_reads_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unitball.training._PROCESS_ROOTS", {})
    rows, labels = np.zeros((40, 2)), ["a", "b"] * 20
    model = PrivateClassifier(algorithm="gaussian-svm-that-is-none", bounds=(0, 1), classes=["a", "b"])
    assert "--" not in _refusal(lambda: model.fit(rows, labels))
