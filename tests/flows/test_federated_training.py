"""The flow: one chain whoever runs it, references between its tasks, and the accuracy that a newcomer is promised."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import get_client

from flows.comparison import compare
from flows.federated_training import train
from storage.datasets import MANIFEST
from storage.errors import RefusedError
from storage.layout import Layout
from tasks.accounts.history import budget_history
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.events import Event, LogLine, events_file
from tasks.runtime.progress import listen
from tasks.tracking.results import RunResult
from tests.support.chains import charges, digests, followed, ingest_private
from tests.support.data import flip
from tests.support.engines import Engine


@dataclass(frozen=True)
class Shared:
    """A root in which one run is done, its result, its releases' digests and its charges."""

    root: Path
    result: RunResult
    stored: dict[str, str]
    paid: list[tuple[str, bool]]


@pytest.fixture(scope="module")
def shared(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    root = tmp_path_factory.mktemp("shared") / "root"
    engine.prepare(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(root))
        yield Shared(root, train(config()), digests(), charges("digits"))


def config(**changes: Any) -> TrainingConfig:
    given: dict[str, Any] = {
        "dataset": "digits",
        "algorithm": "fed-dpdr-dpml",
        "epsilon": 5.0,
        "parties": 3,
        "dimension": 6,
        "seed": 3,
    }
    return TrainingConfig(**{**given, **changes})


def comparable(result: RunResult) -> dict[str, Any]:
    changing = {"seconds", "releasing_seconds", "cached", "prefect_flow_run_id", "mlflow_run_id"}
    return result.model_dump(exclude=changing)


def test_by_prefect_or_directly_it_is_one_chain(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a public seed the same words give the same releases in every root, in threads or one after another."""
    monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / "another"))
    directly = followed(**config().model_dump())
    assert comparable(shared.result) == comparable(directly)
    assert {key: shared.stored[key] for key in directly.releases} == digests()


def test_the_second_run_computes_nothing_and_another_tells_every_stage(shared: Shared) -> None:
    result = train(config())
    assert result.cached is True
    assert charges("digits") == shared.paid
    told: list[tuple[str, str]] = []
    with listen(lambda stage, label, _: told.append((stage, label))):
        assert train(config(replicate=1)).cached is False
    stages = [stage for stage, _ in told]
    assert stages.count("reduction") == 3
    assert stages.count("training") == 3
    assert stages.count("aggregation") == 2
    assert stages[0] == "data set"
    for stage in ("budget", "evaluation", "log"):
        assert stage in stages
    assert stages.index("budget") < stages.index("reduction") < stages.index("training") < stages.index("log")


def test_what_was_lost_or_damaged_is_made_again(shared: Shared) -> None:
    paid, derived = charges("digits"), normalised(shared.root)
    for lost in ("private/parties", "private/datasets", "releases", "releases of damaged rows"):
        if lost == "releases of damaged rows":
            for path in Layout(shared.root).parties.glob("*/shards/**/*.parquet"):
                flip(path)
        for path in (shared.root / lost.partition(" ")[0]).iterdir():
            if lost == "private/parties":
                # The parties' secrets stay.
                shutil.rmtree(path / "shards", ignore_errors=True)
            elif lost.startswith("releases") or path.name == derived:
                shutil.rmtree(path)
        again = train(config())
        assert comparable(again) == comparable(shared.result), lost
        assert {key: shared.stored[key] for key in again.releases} == {key: digests()[key] for key in again.releases}
        assert charges("digits") == paid


def normalised(root: Path) -> str:
    """Return the name of the normalised version: the one that was made from another."""
    (name,) = [
        version.name
        for version in Layout(root).datasets.iterdir()
        if json.loads((version / MANIFEST).read_text())["normalisation"] == "unit-norm"
    ]
    return name


def test_a_comparison_stops_at_the_first_refusal(engine: Engine, tracked_root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input")
    words = {"dataset": "clinic", "parties": 2}
    configs = [
        TrainingConfig(algorithm="noisy-gd", epsilon=1.0, **words),
        TrainingConfig(algorithm="non-private", **words),
        TrainingConfig(algorithm="noisy-gd", epsilon=1.0, replicate=1, **words),
    ]
    with pytest.raises(RefusedError, match="non-private"):
        compare(configs)
    assert len(charges()) == 2, "one model and its measurement"


def test_a_refusal_is_not_tried_again(engine: Engine, tracked_root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=0.5)
    state = train(TrainingConfig(dataset="clinic", algorithm="noisy-gd", epsilon=1.0, parties=2), return_state=True)
    assert (str(state.type.value), state.name) == ("FAILED", "BudgetExhausted")
    assert "up to 0.5" in str(state.message)
    run = state.state_details.flow_run_id
    assert run is not None
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(run).run_count == 1
    lines = [LogLine.model_validate_json(line) for line in events_file(tracked_root).read_bytes().splitlines()]
    (told,) = [line for line in lines if line.event == str(Event.REFUSED)]
    assert told.dataset == "clinic"
    assert "up to 0.5" in str(told.details["reason"])
    assert charges() == []
    assert digests() == {}


# ── what a newcomer is promised ──────────────────────────────────────────────────────────────────────────────────────


def test_noisy_gradient_descent_works_on_digits_at_epsilon_one(root: Path) -> None:
    """Mean over 5 seeds at least 0.80 at epsilon 1, delta 1e-5; without privacy 0.97 is possible."""
    words: dict[str, Any] = {"dataset": "digits", "algorithm": "noisy-gd", "epsilon": 1.0, "parties": 5}
    found = [followed(**words, seed=seed).accuracy for seed in range(5)]
    assert all(accuracy is not None for accuracy in found)
    assert np.mean([accuracy for accuracy in found if accuracy is not None]) >= 0.80


def test_the_published_method_is_near_chance_on_so_few_rows(root: Path) -> None:
    result = followed("digits", algorithm="fed-dpdr-dpml-published", epsilon=1.0, parties=5, seed=0)
    assert result.accuracy is not None
    assert result.accuracy < 0.35
    exact = followed("digits", algorithm="non-private", epsilon=None, parties=5)
    assert exact.accuracy is not None
    assert exact.accuracy > 0.8


@pytest.mark.nightly
def test_some_thirty_nights_end_on_the_night_that_was_forecast(
    engine: Engine, tracked_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fresh noise every night until the cap: the first night says how many more fit; then the event is sent."""
    import prefect.events

    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(prefect.events, "emit_event", lambda **event: sent.append(event))
    ingest_private(tmp_path / "input", epsilon_cap=1.0)
    nightly: dict[str, Any] = {"algorithm": "noisy-gd", "epsilon": 0.145, "parties": 1, "dimension": 2}
    followed(**nightly, replicate=0)
    left = budget_history("clinic").runs_left
    assert left is not None
    assert 25 <= left <= 35, "as many nights as the title says"
    for night in range(1, left + 1):
        followed(**nightly, replicate=night)
    nights = len({key for key, _ in charges()})
    assert nights == left + 1
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    state = train(TrainingConfig(dataset="clinic", evaluation=False, **nightly, replicate=nights), return_state=True)
    assert (str(state.type.value), state.name) == ("FAILED", "BudgetExhausted")
    assert len(charges()) == nights
    (event,) = sent
    assert event["event"] == "unitball.run.refused"
    assert event["resource"]["prefect.resource.id"] == "unitball.dataset.clinic"
    assert event["payload"]["reason"] in str(state.message)
