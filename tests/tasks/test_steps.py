"""The one file directly in ``tasks`` holds Prefect tasks, what a step is, and nothing else."""

import pkgutil

from prefect import Task

import tasks
from tasks import steps

CACHING = {"ByContent", "BY_CONTENT", "served_from_cache", "is_transient"}
WHAT_A_STEP_IS = {*CACHING, "Step", "step", "Done", "inline", "is_inline", "P", "R"}


def test_the_file_of_steps_holds_nothing_else() -> None:
    # Defined here, not handed on from a room below.
    own = {
        name: value
        for name, value in vars(steps).items()
        if not name.startswith("_")
        and getattr(value.fn if isinstance(value, Task) else value, "__module__", None) == steps.__name__
    }
    assert any(isinstance(value, Task) for value in own.values())
    assert {name for name, value in own.items() if not isinstance(value, Task)} == WHAT_A_STEP_IS


def test_all_steps_stand_in_one_file() -> None:
    assert [module.name for module in pkgutil.iter_modules(tasks.__path__) if not module.ispkg] == ["steps"]
