"""The walks of docs/your-data.md, describe-a-table.md and coded-columns.md: what the pages say comes out."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
import textwrap
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.command_line import CommandLine

PAGE = Path("docs/your-data.md").read_text("utf-8")
DESCRIBED = Path("docs/describe-a-table.md").read_text("utf-8")


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
        "5000 of the 5000 kept rows of train can train: 0 exceed the 64 rows per person, 0 belong to people who count",
        "The unit of protection is a person (column Patient): a person with 5 rows has the same ε as a person "
        "with one.",
    ):
        assert line in out
        assert line in PAGE
    # What is drawn afresh is another number, and another bar, each time; of categories only those that stand out.
    assert "    $ unitball describe visits --epsilon 0.5\n" in DESCRIBED
    told = " ".join(DESCRIBED.split())
    described = commands("describe", "visits", "--epsilon", 0.5).out
    assert "charged: epsilon 0.5 at delta 8.20312e-07 (mu 0.1229) for a person (column Patient)" in described
    for line in described.splitlines()[1:4]:
        # A description is named by its identity, which is another in each root.
        assert re.sub(r"[0-9a-f]{12}", "41d0c9a27b6e", line) in told
    for line in (
        "Wiederkehr (classes)",
        "Alter (number)",
        "Raucher (category)",
        "  (cells clipped to the declared range)",
    ):
        assert line in described
        assert line in DESCRIBED


SECTION = Path("docs/coded-columns.md").read_text("utf-8")


def blocks() -> list[tuple[list[str], str]]:
    """Return each command of the section, and what the page says it prints."""
    parts = re.split(r"^    \$ ", SECTION, flags=re.M)[1:]
    found = []
    for part in parts:
        command, said = re.split(r"(?<!\\)\n", part, maxsplit=1)
        indented = [line for line in re.split(r"^(?! {4}|$)", said, maxsplit=1, flags=re.M)[0].splitlines() if line]
        found.append((shlex.split(command.replace("\\\n", " ")), "\n".join(indented)))
    return found


def walked(command_line: CommandLine, folder: Path, patch: pytest.MonkeyPatch, *commands: str) -> None:
    """Run commands of the section as they stand there, and hold what the page says of each against what it prints."""
    walk = blocks()
    assert [words[1] for words, _ in walk[1:]] == ["schema", "schema", "ingest", "train", "predict"]
    assert all(said for _, said in walk[1:])
    schema = Path("docs/examples/encounters.yaml").read_text("utf-8")
    shown = re.findall(r"^```yaml\n(.*?)^```", SECTION, flags=re.M | re.S)
    assert len(shown) == 1
    assert all(piece in schema for piece in shown[0].split("…\n"))
    (folder / "docs").symlink_to(Path("docs").resolve())
    patch.chdir(folder)
    patch.setattr(sys, "argv", walk[0][0][1:])
    runpy.run_path(walk[0][0][1], run_name="__main__")
    for words, said in walk[1:]:
        if words[1] not in commands:
            continue
        outcome = command_line(*words[1:])
        assert outcome.code == 0, outcome
        # What is drawn afresh is another number each time.
        if words[1] != "train":
            printed = " ".join(outcome.out.split())
            for piece in " ".join(said.split()).split("…"):
                assert piece.strip() in printed, piece


def test_encounters_up_to_their_rows(commands: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked(commands, tmp_path, monkeypatch, "schema", "ingest")
    # Other meanings of codes, columns left out and rows without their people do not make them other rows.
    schema = Path("docs/examples/encounters.yaml").read_text("utf-8")
    for old, new in (
        ("type: person, namespace: diabetics", "type: ignore"),
        ("Asian: other", "Asian: white"),
        ('"250*": diabetes', '"250*": heart'),
        ("names: [metformin, repaglinide", "names: [repaglinide"),
        ("names: [encounter_id", "names: [metformin, encounter_id"),
    ):
        assert old in schema
        schema = schema.replace(old, new)
    Path("other.yaml").write_text(schema, "utf-8")
    given = ("--epsilon-cap", 3, "--delta-cap", 1e-6, "--on-violation", "clip", "--account", "others")
    again = commands("ingest", "again", "--format", "csv", "--path", "encounters.csv", "--schema", "other.yaml", *given)
    again.refused(again.code, "--account diabetics-2026")
    assert again.code


@pytest.mark.nightly
def test_encounters_from_a_draft_to_predictions(
    unitball: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked(unitball, tmp_path, monkeypatch, "schema", "ingest", "train", "predict")
    found = pq.read_table("predicted.parquet").to_pandas()
    brackets = ", ".join(f"[{low}-{low + 10})" for low in range(0, 100, 10))
    assert found["refusal"].dropna().tolist() == [f"column age: '75' is not one of {brackets}"]
    assert set(found["prediction"].dropna()) == {"stays away", "comes back"}
