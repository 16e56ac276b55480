"""Examples printed for a newcomer to type work as printed: those of help, the ends of `make run`, README."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.main import get_group

from deployments.cli.entry_point import app, import_all
from tests.support.called import runs_called
from tests.support.command_line import CommandLine

REPOSITORY = Path(__file__).parents[2]
# Minutes of work, and run by tests of their own.
BUDGET = ("--epsilon", "1", "--delta", "1e-6")
LONG = ("compare", "federate", "frontier", "reproduce", "report", "serve")


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)


def examples() -> dict[str, list[str]]:
    """Return the examples of every command's help, as arguments."""
    import_all()
    found = {}
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        text = (command.epilog or "").removeprefix("Example: ")
        for example in text.split("  ·  "):
            program, *arguments = shlex.split(example)
            assert program == "unitball", example
            found[f"{name}: {example}"] = arguments
    return found


def test_files_of_examples_are_there() -> None:
    for example, arguments in examples().items():
        for before, argument in zip(["", *arguments], arguments, strict=False):
            if before != "--output" and re.search(r"\.(csv|ya?ml|parquet)$", argument):
                assert (REPOSITORY / argument).is_file(), example


def test_the_bundled_table_is_what_its_script_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make_clinic.py", str(tmp_path / "clinic.csv")])
    runpy.run_path("docs/examples/make_clinic.py", run_name="__main__")
    assert (tmp_path / "clinic.csv").read_bytes() == Path("docs/examples/clinic.csv").read_bytes()


def test_examples_of_help_are_understood() -> None:
    """Each option and value by the command itself, which is not run."""
    known = examples()
    commands = get_group(app).commands
    for example, (name, *arguments) in known.items():
        with commands[name].make_context(name, [*arguments]) as context:
            assert context.params.keys() >= {"root"}, example


@pytest.mark.nightly
def test_examples_of_help_run(unitball: CommandLine, tmp_path: Path) -> None:
    short = {example: arguments for example, arguments in examples().items() if arguments[0] not in LONG}
    # A budget is shown of what was run, results of what was trained.
    order = sorted(short, key=lambda example: short[example][0] not in ("ingest", "train"))
    for example in order:
        command, *arguments = short[example]
        if command == "sweep":
            arguments.append("--dry-run")
        if command in ("export", "verify"):
            arguments[arguments.index("run.zip")] = str(tmp_path / "run.zip")
        if command == "predict":
            arguments[arguments.index("--output") + 1] = str(tmp_path / "out.parquet")
        if command in ("export", "predict"):
            model = arguments[0] if command == "export" else arguments[arguments.index("--model") + 1]
            dataset, algorithm = model.split(".")
            assert unitball("train", "--dataset", dataset, "--algorithm", algorithm, *BUDGET).code == 0
        outcome = unitball(command, *arguments)
        # The example of an audit finds a violation: wishart-svm is refuted.
        assert outcome.code == (1 if command == "audit" else 0), (example, outcome)
        assert outcome.out.splitlines()[-1] == f"root: {unitball.root}", example


@pytest.mark.parametrize("dataset", ["iris", pytest.param("digits", marks=pytest.mark.nightly)])
def test_make_run_ends_with_commands_that_work(dataset: str, unitball: CommandLine) -> None:
    """As printed, and on each day with a tenth of the rows, of the frontier one budget, one seed and two algorithms."""
    makefile = (REPOSITORY / "Makefile").read_text()
    recipe = makefile[makefile.index("run: ") : makefile.index("check: ")]
    commands = re.findall(r'"\$\(BIN\)/unitball (.*)" ?\\?\n', recipe)
    assert len(commands) == 3
    for command in commands:
        # Services run until Ctrl-C, in tests of their own.
        printed = ["serve", "--help"] if command == "serve" else shlex.split(command)
        arguments = [dataset if word == "digits" else word for word in printed]
        # On each day eight runs are no flows.
        runs = nullcontext if dataset == "digits" else runs_called
        if command.startswith("frontier") and dataset != "digits":
            arguments += ["--epsilons", "1", "--seeds", "1", "--algorithms", "unitball,unitball-without-noise"]
        with runs():
            assert unitball(*arguments).code == 0, command
    assert "UNITBALL_ROOT ?=" not in makefile, "make and unitball use one root"


def test_readme_names_files_and_options_that_exist(commands: CommandLine) -> None:
    readme = (REPOSITORY / "README.md").read_text().replace("\\\n", " ")
    import_all()
    groups = {group.name for group in app.registered_groups}
    known = {example.split(":")[0] for example in examples()} | groups
    lines = [line.split("#")[0] for line in readme.splitlines() if line.startswith("    unitball ")]
    assert lines
    for line in lines:
        _, command, *arguments = shlex.split(line)
        assert command in known, line
        helped = commands(command, *arguments[: command in groups], "--help").out
        for argument in arguments:
            if argument.startswith("--"):
                assert argument.split("=")[0] in helped, line
            if argument.startswith("docs/"):
                assert (REPOSITORY / argument).is_file(), line


def blocks(text: str) -> list[str]:
    """Return the indented blocks of a page, as they are typed."""
    found = re.findall(r"(?:^ {4}.+\n)+", text, re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def test_blocks_of_readme_find_their_commands() -> None:
    """A command is named by its path, or typed after the line that puts it on the path."""
    readme = (REPOSITORY / "README.md").read_text()
    first, *others = blocks(readme)
    assert first.startswith("make run ")
    for block in (first, *others):
        lines = block.replace("\\\n", " ").splitlines()
        bare = [line for line in lines if line.startswith("unitball ")]
        assert not bare or lines[0].startswith(". .venv/bin/activate"), block


@pytest.mark.nightly
def test_readme_is_typed_in_a_clean_shell(tmp_path: Path) -> None:
    """Every block but the first, whose commands have tests of their own, in a folder like a clone."""
    for name in (".venv", "docs"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    _, *others = blocks((REPOSITORY / "README.md").read_text())
    typed = subprocess.run(
        ["/bin/sh", "-eu", "-c", "\n".join(others)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "UNITBALL_ROOT": str(tmp_path / "root")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert typed.returncode == 0, typed.stderr
    assert (tmp_path / "predictions.parquet").is_file()
    assert "clinic-2026" in typed.stdout
