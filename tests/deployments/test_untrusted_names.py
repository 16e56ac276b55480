"""Names, values and cells are anybody's text: printed as it is, never obeyed by Rich or by a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deployments.cli.common import coloured, table
from storage.errors import InputError
from storage.names import visible
from storage.schema import parse_schema
from storage.source import ReadOptions, read_source
from tests.support.command_line import CommandLine
from tests.support.pictures import write_pictures

MARKUP = ("[/x]", "[unknown]", "[red]x[/]", "[link=file:///etc/passwd]x[/link]")
OBEYED = (
    "a\x1b[2Jb",
    "a\x1b]0;owned\x07b",
    "a\x9b31mb",
    "a\u202eb",
    "a\u2066b",
    "a\nb",
    "a\u2028b",
    "a\x7fb",
    "a\x00b",
)
SHOWN = ("क्‍ष", "می‌خواهم", "שלום \u200fא", "a\u00a0b", "ﬀ", "😀")
"""Text of other scripts, joiners and marks of a direction included: a name like others."""


def _printed(*arguments: Any, **named: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=400, force_terminal=True, color_system="truecolor").print(table(*arguments, **named))
    return out.getvalue()


def test_cells_headings_and_titles_are_text() -> None:
    for text in MARKUP:
        printed = _printed([text], [[text]], title=f"T{text}")
        assert printed.count(text) == 3, printed
    for text in OBEYED:
        printed = _printed([text], [[text], [coloured(text, "")]], title=text)
        assert text not in printed
        assert printed.count(visible(text)) == 4
    assert "–" in _printed(["x"], [[None]])
    assert "\x1b[31mbad" in _printed(["x"], [[coloured("bad", "red")]]), "a colour of our own stays"


def _schema(place: str, text: str) -> dict[str, Any]:
    said: dict[str, Any] = {"column": "c", "values": ["a", "b"], "codes": {"1": "m"}, "classes": ["x", "y"]}
    said[place] = {"column": text, "values": ["a", text], "codes": {"1": text}, "classes": ["x", text]}[place]
    kind = {"name": said["column"], "type": "category", "values": said["codes" if place == "codes" else "values"]}
    return {"columns": [kind, {"name": "y", "type": "label", "classes": said["classes"]}]}


@pytest.mark.parametrize("place", ["column", "values", "codes", "classes"])
def test_what_a_terminal_would_obey_is_no_name(place: str) -> None:
    for text in OBEYED:
        with pytest.raises(InputError, match=rf"S.*U\+{ord(text[1]):04X}") as refused:
            parse_schema(_schema(place, text), "S")
        assert visible(str(refused.value)) == str(refused.value)
    for text in (*MARKUP, *SHOWN):
        parse_schema(_schema(place, text), "S")


def test_nor_is_the_name_of_a_class_or_of_a_folder(tmp_path: Path) -> None:
    for number, text in enumerate(text for text in OBEYED if "\0" not in text):
        folder = write_pictures(tmp_path / str(number), {f"{text}/a.png": 1, "dog/b.png": 2})
        with pytest.raises(InputError, match=rf"class.*U\+{ord(text[1]):04X}"):
            read_source("images", folder, ReadOptions(discover=True))
        with pytest.raises(InputError, match=rf"class.*U\+{ord(text[1]):04X}"):
            read_source("libsvm", _svm(tmp_path), ReadOptions(discover=True, classes=("1", text)))


def _svm(folder: Path) -> Path:
    path = folder / "rows.svm"
    path.write_text("1 1:0.5\n-1 1:0.25\n")
    return path


def test_cells_of_a_file_from_elsewhere_do_not_stop_a_check(commands: CommandLine, tmp_path: Path) -> None:
    schema, rows = tmp_path / "s.yaml", tmp_path / "r.csv"
    schema.write_text('columns:\n- {name: "c[/x]", type: category, values: ["[/x]", "[unknown]"]}\n'
                      "- {name: y, type: label, classes: [a, b]}\n")  # fmt: skip
    rows.write_text("c[/x],y\n[/y],a\n\x1b[2J,b\n")
    outcome = commands("schema", "check", schema, "--path", rows)
    assert outcome.code == 0, outcome
    assert "\x1b" not in outcome.out + outcome.err
    for text in ("c[/x]", "[/x], [unknown]", "'[/y]'", r"\x1b[2J"):
        assert text in outcome.out
