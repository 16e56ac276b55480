"""The texts of errors, warnings and help: written into one file from the code, so that its diff is what is reviewed."""

from __future__ import annotations

import importlib.util
from difflib import unified_diff
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "templates.py"
SAMPLE = '''
import typer

LIMIT = 3


def way_out(name) -> str:
    """No text of an error."""
    return f"name another than {name}, or " + "omit it"


def check(x, names):
    """Check."""
    told = f"x is {x!r:>4}"
    if x in names:
        raise ValueError(f"{told}; {way_out(x)}")
    elif not x:
        raise TypeError("no x " f"of {', '.join(names)}; {'give one' if LIMIT else 'none is needed'}")
    logger.warning("odd: %s", x)
    return "text of a result"


@app.command(epilog="Example: go 3")
def go(x: Annotated[int, typer.Option("--x", help="How far   it goes.")] = 1):
    """Go there.

    And back.
    """
'''
EXPECTED = """\
error way_out: name another than {name}, or omit it
error check: x is {x}
error check: {told}; {way_out(x)}
error check: no x of {…}; {…}
error check: give one
error check: none is needed
warning check: odd: %s
help go: Example: go 3
help go.x: How far it goes.
help go: Go there. And back."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("templates", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_what_the_code_says(script: ModuleType) -> None:
    kept, made = script.KEPT.read_text(encoding="utf-8"), script.templates()
    changed = [line for line in unified_diff(kept.splitlines(), made.splitlines(), lineterm="", n=0) if line[0] in "+-"]
    assert kept == made, "run `make templates` and review the diff of tests/templates.txt:\n" + "\n".join(changed[2:40])


def test_which_texts_are_taken(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "tasks" / "odd.py"
    module.parent.mkdir()
    module.write_text(SAMPLE)
    monkeypatch.setattr(script, "REPOSITORY", tmp_path)
    head, made = script.templates().split("## tasks/odd.py\n")
    assert head.startswith("# Made by `make templates`")
    assert sorted(made.strip().splitlines()) == sorted(EXPECTED.splitlines())


def test_moved_and_commented_code_changes_nothing(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "storage" / "odd.py"
    module.parent.mkdir()
    monkeypatch.setattr(script, "REPOSITORY", tmp_path)
    module.write_text(SAMPLE)
    before = script.templates()
    module.write_text("# A comment.\n\n\n" + SAMPLE.replace("LIMIT = 3", "LIMIT = 3\nOTHER = 4"))
    assert script.templates() == before
    module.write_text(SAMPLE.replace("omit it", "choose one"))
    assert script.templates() != before
