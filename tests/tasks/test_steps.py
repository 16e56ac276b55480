"""The files directly in ``tasks`` hold Prefect tasks, each a step, and nothing else."""

import pkgutil
from importlib import import_module

import pytest
from prefect import Task

import tasks
from tasks.runtime.steps import Step

FILES = ("records", "releases", "rows")


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_steps_holds_nothing_else(name: str) -> None:
    module = import_module(f"tasks.{name}")
    # Defined here, not handed on from a room below.
    own = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value.fn if isinstance(value, Task) else value, "__module__", None) == module.__name__
    }
    assert own
    assert all(isinstance(value, Step) for value in own.values()), own


def test_all_steps_stand_in_these_files() -> None:
    assert [module.name for module in pkgutil.iter_modules(tasks.__path__) if not module.ispkg] == list(FILES)
