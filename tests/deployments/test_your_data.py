"""The walk of docs/your-data.md: its script, its schema and what it says comes out."""

from __future__ import annotations

import re
import runpy
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

PAGE = Path("docs/your-data.md").read_text("utf-8")


def walk_schema() -> str:
    """Return the schema of step 1 with the corrections of step 2."""
    steps = dict(re.findall(r"^### (\d)\. .*?\n(.*?)(?=^##)", PAGE, flags=re.M | re.S))
    first = re.search(r"    format_version.*?(?=\n\n)", steps["1"], flags=re.S)
    assert first is not None
    lines = textwrap.dedent(first[0]).splitlines()
    corrected = {line.split('"')[1]: line.strip() for line in steps["2"].splitlines() if "- {name:" in line}
    assert set(corrected) == {"Raucher", "Station"}
    named = [(line, re.search(r'name: "(\w+)"', line)) for line in lines]
    return "\n".join(f"  {corrected[found[1]]}" if found and found[1] in corrected else line for line, found in named)


def test_the_walk_up_to_its_rows(commands: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, new, schema = tmp_path / "visits.csv", tmp_path / "new_visits.csv", tmp_path / "visits.yaml"
    monkeypatch.setattr(sys, "argv", ["make_visits.py", str(rows), str(new)])
    runpy.run_path("docs/examples/make_visits.py", run_name="__main__")
    schema.write_text(walk_schema())
    assert "F000000;70153;57;163,5;4,5;nein;Nord" in rows.read_text("cp1252")
    checked = commands("schema", "check", schema, "--path", rows).out
    people = "1837 people by column Patient: 2.72 rows each, up to 40"
    assert people in checked
    assert people in PAGE
    words = ("--path", rows, "--schema", schema, "--account", "hospital-2025", "--on-violation", "clip")
    given = ("--epsilon-cap", 3, "--delta-cap", 1e-6)
    out = commands("ingest", "visits", "--format", "csv", *words, *given).out
    for line in (
        "visits: 1837 people × 36, private, account hospital-2025",
        "5000 read, 5000 kept, 843 incomplete, 36 outside",
        "of the 5000 rows of train that are kept, 5000 can train: 0 are beyond the 64 of a person, 0 are of people who",
        "What is protected is a person (column Patient): whoever has 5 rows has the same ε as whoever has one.",
    ):
        assert line in out
        assert line in PAGE
