"""What cannot be measured says so in each output: every metric of a hopeless run, and of one by group."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from dpalgos.measured import Metrics
from flows.federated_training import chain_inline
from tasks.experiments.results import query_results
from tasks.planning.configuration import TrainingConfig
from tasks.records import record
from tasks.runtime import plots
from tasks.runtime.settings import current_root
from tasks.tracking.reporting import NOT_MEASURED_TAG, model_card
from tasks.tracking.results import NOT_MEASURED, RunResult, shown_metric
from tasks.tracking.runs import tracking_client
from tests.support.chains import ingest_private
from unitball.accounts import read_budget
from unitball.training import TrainedModel

_ENDS = ("_low", "_high", "_noise")
# Public numbers, and what is chosen and not measured.
_EXACT = {"held_out_rows", "aim_probability"}


@pytest.fixture
def hopeless(root: Path, tmp_path: Path) -> tuple[TrainingConfig, Any]:
    """A run with so much noise that nothing of it can be measured."""
    ingest_private(tmp_path / "input", count=400)
    config = TrainingConfig(
        dataset="clinic", algorithm="noisy-gd", epsilon=0.001, delta=1e-6, parties=2, roc=True, aim="f1"
    )
    return config, chain_inline(config)


def of(metrics: Metrics) -> list[str]:
    return [name for name in metrics.names() if not name.endswith("_noise") and name not in _EXACT]


def test_every_metric_says_so_in_every_output(hopeless: tuple[TrainingConfig, Any]) -> None:
    """All metrics by all outputs; that there are at least fifteen keeps the table from being empty."""
    config, chained = hopeless
    result: RunResult = record.fn(config, *chained)
    names = of(result.metrics)
    unknown = [name for name in names if not result.metrics.is_known(name)]
    assert len(unknown) >= 12, names
    machine = json.loads(result.model_dump_json())["metrics"]
    frame = TrainedModel(result=result, pipeline=None, budget=read_budget("clinic")).to_frame()
    sql = {one["metric"]: one for one in query_results("SELECT * FROM metrics WHERE party = 'all'")}
    with tracking_client(current_root()) as client:
        found = client.get_run(str(result.mlflow_run_id))
    run = found.data
    assert NOT_MEASURED in found.info.run_name, "MLflow's list of runs shows names and no other column"
    for name in names:
        # Each noisy number has both ends of a margin.
        low, high = (result.metrics[f"{name}{end}"] for end in ("_low", "_high"))
        assert low <= high, name
    for name in unknown:
        why = result.metrics.reasons[name]
        assert why, name
        assert math.isnan(result.metrics[name]), name
        assert machine[name] is None, name
        assert machine[f"{name}_reason"] == why, name
        assert math.isnan(frame[name][0]), name
        assert frame[f"{name}_reason"][0] == why, name
        assert sql[name]["value"] is None, name
        assert sql[name]["reason"] == why, name
        assert shown_metric(result, name).startswith(NOT_MEASURED), name
        assert not {name, *(f"{name}{end}" for end in _ENDS)} & set(run.metrics), name
        assert name in run.tags[NOT_MEASURED_TAG], name
        assert why in run.tags[NOT_MEASURED_TAG], name
    card = model_card(config, chained.dataset, chained.plan, result)
    assert NOT_MEASURED in card
    assert "nan" not in card
    # A mutant: a number kept as it is in one place would be found.
    result.metrics.reasons.pop(unknown[0])
    assert not shown_metric(result, unknown[0]).startswith(NOT_MEASURED)


def test_a_figure_has_no_point_for_what_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[Any] = []
    drawn = Axes.plot

    def noting(axes: Axes, *given: Any, **more: Any) -> Any:
        points.extend(given[:1] if "o" in given else [])
        return drawn(axes, *given, **more)

    monkeypatch.setattr(Axes, "plot", noting)
    known, unknown = Metrics({"rows": 5.0}), Metrics({"rows": 5.0})
    known.measure("accuracy", 0.7, (0.6, 0.8))
    unknown.measure("accuracy", 0.7, (0.0, 1.0))
    plots.draw_groups("sex", {"a": known, "b": unknown}, {"accuracy": "accuracy"}, "held-out rows, noisy")
    assert points == [[0.7]]
