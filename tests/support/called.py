"""Runs of commands as plain calls: planned, charged, made, recorded and logged in this thread, by no engine.

Prefect takes two thirds of a short run. What it does with a run (tasks, states, artifacts, events, its server) is for
tests that take the fixture ``unitball``; whoever looks at what a run makes, charges and says takes ``called``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

from flows import column_statistics, comparison, federated_training
from storage.errors import RefusedError
from tasks.host import engine
from tasks.runtime.steps import inline


@dataclass(frozen=True)
class _Called:
    """What stands for a flow."""

    function: Callable[..., Any]

    def __call__(self, given: Any) -> Any:
        with inline():
            return self.function(given)


def _raised(refusal: RefusedError) -> NoReturn:
    raise refusal


def _nothing(*_: object, **__: object) -> None:
    return None


def _no_context(*_: object, **__: object) -> nullcontext[None]:
    return nullcontext()


@contextmanager
def runs_called() -> Iterator[None]:
    """Let ``train``, ``compare``, ``reduce`` and ``synthesise`` call what else would be flows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "started_ahead", _no_context)
        patch.setattr(engine, "prepare_engine", _nothing)
        patch.setattr(federated_training, "_as_flow", _Called)
        patch.setattr(comparison, "flow", lambda **_: _Called)
        patch.setattr(federated_training, "refused", _raised)
        for name in ("announcing_failures", "one_run_a_dataset", "showing_progress"):
            patch.setattr(federated_training, name, _no_context)
        for name in ("show_result", "announce_trained"):
            patch.setattr(federated_training, name, _nothing)
        for name in ("reduce", "synthesise"):
            patch.setattr(column_statistics, name, _Called(getattr(column_statistics, name).fn))
        for name in ("announcing_failures", "showing_progress"):
            patch.setattr(column_statistics, name, _no_context)
        yield
