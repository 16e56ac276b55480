"""The workflow of a public forge runs the commands that a person runs, and make finds the environment of a Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.data import REPOSITORY
from tests.support.interpreters import VERSIONS

WORKFLOW = REPOSITORY / ".github" / "workflows" / "tests.yml"


def commands(found: dict[str, dict[str, dict[str, list[dict[str, str]]]]]) -> Iterator[str]:
    """Yield what the workflow's steps run."""
    for job in found["jobs"].values():
        yield from (step["run"] for step in job["steps"] if "run" in step)


def test_each_step_is_a_command_of_the_repository() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    known = {f"make {target}" for target in targets[1].split()} | {".ci/run"}
    run = list(commands(yaml.safe_load(WORKFLOW.read_text())))
    assert {".ci/run", "make check", "make docs", "make run"} <= set(run)
    for one in run:
        assert one in known or one.startswith("python -m pip wheel"), one


def test_the_classifiers_name_the_pythons_of_the_workflow() -> None:
    """The day suite is run on the first and the last of them, the main job on the one between."""
    classifiers = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [one for one in classifiers if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", one)]
    assert named == [f"Programming Language :: Python :: {version}" for version in VERSIONS]
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == [VERSIONS[0], VERSIONS[-1]]
    smoke = [step["with"]["python-version"] for step in jobs["smoke"]["steps"] if "with" in step]
    assert smoke == list(VERSIONS[1:-1])


OWN, OTHER = "{}.{}".format(*sys.version_info), "3.2"


@pytest.mark.parametrize(
    ("made_by", "given", "expected"),
    [
        ("", [f"PYTHON={sys.executable}"], ".venv"),
        (f"version = {OWN}.7", [f"PYTHON={sys.executable}"], ".venv"),
        (f"version_info = {OTHER}.0", [f"PYTHON={sys.executable}"], f".venv-{OWN}"),
        (f"version = {OTHER}.0", [], ".venv"),
        (f"version = {OWN}.7", ["PYTHON=no-such-python"], ".venv-"),
    ],
)
def test_each_python_has_an_environment_of_its_own(
    made_by: str, given: list[str], expected: str, tmp_path: Path
) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "pyvenv.cfg").write_text(f"home = /usr/bin\n{made_by}\n")
    command = ["make", "--no-print-directory", "-f", str(REPOSITORY / "Makefile"), "--eval", "shown:; @echo $(VENV)"]
    # As `make test PYTHON=…` has them for what it starts.
    told = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS", "MAKELEVEL")}
    shown = subprocess.check_output([*command, "shown", *given], cwd=tmp_path, env=told, text=True)
    assert shown.split() == [expected]
