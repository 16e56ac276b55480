"""The cache: keyed by everything an answer depends on, never by the run, and never older than what it points to."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prefect import Task, flow, task

from storage.refs import ReleaseRef
from tasks.planning.releases import PlannedRelease
from tasks.records import record
from tasks.releases import charge, evaluate, measure_model, reduce_dimension, train_model
from tasks.rows import extract_features, normalise, partition, resolve_dataset
from tasks.runtime import steps as caching
from tasks.runtime.progress import observed_by
from tasks.runtime.steps import BY_CONTENT, ByContent, Done, inline, served_from_cache, step
from tests.support.engines import Engine
from tests.support.plans import planned

calls: list[int] = []


@task(cache_policy=BY_CONTENT, persist_result=True)
def double(number: int) -> int:
    calls.append(number)
    return 2 * number


@task(cache_policy=BY_CONTENT, persist_result=True)
def triple(number: int) -> int:
    calls.append(number)
    return 3 * number


def key_of(one: Any = double, **inputs: Any) -> str | None:
    return ByContent().compute_key(SimpleNamespace(task=one), inputs, {})  # type: ignore[arg-type]  # all it reads


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    calls.clear()


def test_equal_questions_have_equal_keys(root: Path) -> None:
    assert key_of(number=2) == key_of(number=2)
    assert len(key_of(number=2) or "") == 64
    plan = planned(algorithm="noisy-gd")
    again = PlannedRelease.model_validate_json(plan.releases[0].model_dump_json())
    assert key_of(release=plan.releases[0]) == key_of(release=again)


def test_whatever_an_answer_depends_on_is_in_the_key(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {key_of(number=2), key_of(number=3), key_of(other=2), key_of(triple, number=2)}
    for name in ("package_digest", "required_versions"):
        with monkeypatch.context() as patch:
            # A helper in one of our packages was edited; a numerical library is another one.
            patch.setattr(caching, name, lambda *packages: "changed")
            keys.add(key_of(number=2))
    with monkeypatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(tmp_path / "another"))
        keys.add(key_of(number=2))
    with monkeypatch.context() as patch:
        # The body of the task itself was edited.
        patch.setattr("inspect.getsource", lambda function: "def double(number): return 4")
        keys.add(key_of(number=2))
    assert len(keys) == 8
    assert None not in keys


def test_a_key_does_not_depend_on_the_run(root: Path) -> None:
    agreed = ByContent(without=("agreed",))
    keys = {agreed.compute_key(SimpleNamespace(task=double), {"number": 1, "agreed": some}, {}) for some in ([], ["k"])}  # type: ignore[arg-type]  # all it reads
    assert len(keys) == 1, "no answer depends on what was agreed to"
    first = BY_CONTENT.compute_key(SimpleNamespace(task=double), {"number": 1}, {"seed": 1})  # type: ignore[arg-type]  # all it reads
    second = BY_CONTENT.compute_key(SimpleNamespace(task=double), {"number": 1}, {"seed": 2})  # type: ignore[arg-type]  # all it reads
    assert first == second


@pytest.mark.parametrize("value", [np.zeros(3), [np.float64], object(), b"bytes", float("nan"), {1: object()}])
def test_arrays_and_other_objects_are_no_inputs(value: Any, root: Path) -> None:
    """References only: an array between tasks would be a second, unguarded copy of rows."""
    with pytest.raises((TypeError, ValueError)):
        key_of(value=value)


def test_every_task_is_cached_by_content_but_for_those_that_write_books() -> None:
    """Ingestion asks the catalogue, a charge the ledger, a record MLflow: these remember, whatever a cache says."""
    cached: list[Task[..., Any]] = [
        normalise,
        extract_features,
        partition,
        reduce_dimension,
        train_model,
        measure_model,
        evaluate,
    ]
    for one in cached:
        assert isinstance(one.cache_policy, ByContent), one.name
        assert one.persist_result is True, one.name
    asked: list[Task[..., Any]] = [resolve_dataset, charge, record]
    for one in asked:
        assert not isinstance(one.cache_policy, ByContent), one.name
        assert one.persist_result is False, one.name


def test_served_from_the_cache_across_runs_of_a_flow(engine: Engine, root: Path) -> None:
    stored = True

    @step(stored=lambda number: stored)
    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    @flow
    def run(there: bool) -> tuple[int, bool]:
        nonlocal stored
        stored = there
        future = double.submit(21)
        return future.result(), served_from_cache(future)

    assert run(True) == (42, False)
    assert run(True) == (42, True)
    assert calls == [21]
    # What the cached reference points to is gone.
    assert run(False) == (42, False)
    assert calls == [21, 21]
    assert run(True) == (42, True)


def test_two_roots_share_no_cache(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @flow
    def run() -> int:
        return double(5)

    for name in ("one", "two"):
        monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / name))
        assert run() == 10
        assert run() == 10
    assert calls == [5, 5]


def test_a_step_whose_rows_are_gone_runs_again(engine: Engine, root: Path) -> None:
    whole = True

    @step(whole=lambda result: whole)
    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    @flow
    def run() -> int:
        return double(7)

    run()
    run()
    assert calls == [7]
    whole = False
    run()
    assert calls == [7, 7]


def test_a_reference_survives_the_store(engine: Engine, root: Path) -> None:
    """Results are kept as JSON; what comes back must be the reference, not a dictionary."""

    @step()
    def refer(key: str) -> ReleaseRef:
        return ReleaseRef(key=key, kind="projection", party="0")

    @flow
    def run() -> tuple[Any, bool]:
        future = refer.submit("k")
        return future.result(), served_from_cache(future)

    assert run() == (ReleaseRef(key="k", kind="projection", party="0"), False)
    assert run() == (ReleaseRef(key="k", kind="projection", party="0"), True)


# ── without the engine ───────────────────────────────────────────────────────────────────────────────────────────────


def test_inline_steps_are_plain_calls_that_take_each_others_futures(root: Path) -> None:
    stored = False

    @step(stored=lambda number: stored)
    def increased(number: int) -> int:
        return number + 1

    @step()
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    seen: list[str] = []
    with inline(), observed_by(seen.append):
        futures = [increased.submit(1), increased.submit(2)]
        assert not any(served_from_cache(future) for future in futures)
        assert total(futures) == 5
        stored = True
        again = increased.submit(1)
        assert isinstance(again, Done)
        assert served_from_cache(again)
    assert seen == ["total"]


def test_equal_inline_steps_of_two_threads_follow_each_other(root: Path) -> None:
    """Two points of a sweep that share a release: the second waits for the first, and finds it stored."""
    running = threading.Semaphore(1)

    @step()
    def slow(number: int) -> bool:
        alone = running.acquire(blocking=False)
        time.sleep(0.05)
        running.release()
        return alone

    def run(number: int) -> bool:
        with inline():
            return slow(number)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, [7] * 4))
