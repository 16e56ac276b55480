"""A file directly in ``tasks`` holds Prefect tasks and nothing else."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from prefect import Task

import tasks

FILES = sorted(module.name for module in pkgutil.iter_modules(tasks.__path__) if not module.ispkg)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_steps_holds_nothing_else(name: str) -> None:
    module = importlib.import_module(f"tasks.{name}")
    # Defined here, not handed on from a room below.
    steps = [
        one
        for one, value in vars(module).items()
        if isinstance(value, Task) and value.fn.__module__ == module.__name__ and not one.startswith("_")
    ]
    assert steps
    others = [
        one
        for one, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and one not in steps and not one.startswith("_")
    ]
    assert others == []


def test_all_steps_stand_in_one_file() -> None:
    assert FILES == ["steps"]
