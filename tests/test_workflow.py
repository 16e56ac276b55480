"""The workflow of a public forge runs the commands that a person runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from tests.support.data import REPOSITORY

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
