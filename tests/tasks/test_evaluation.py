"""Evaluation: exact on public rows, a charged release on private ones, and nothing in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, precision_score, recall_score

from storage.errors import OverspendError
from storage.refs import ReleaseRef
from storage.shards import open_shard
from tasks.evaluation import evaluate
from tasks.release import door
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout
from tasks.tracking.results import Evaluation
from tests.support.chains import Prepared, charges, followed, ingest_private, prepare
from tests.support.data import gathered


def evaluated(prepared: Prepared, made: dict[str, ReleaseRef] | None = None) -> Evaluation:
    made = made or prepared.make()
    models = {name: [made[key] for key in path] for name, path in prepared.plan.paths().items()}
    return evaluate.fn(prepared.plan, models, prepared.shards)


def predictions(prepared: Prepared, path: list[str], shard: Any, made: dict[str, ReleaseRef]) -> tuple[Any, Any]:
    features, labels = gathered(open_shard(current_layout(), shard))
    for key in path[:-1]:
        features = read_release(made[key]).apply(features)
    return labels, read_release(made[path[-1]]).predict(features)


def test_metrics_of_public_test_rows_are_scikit_learns(root: Path) -> None:
    prepared = prepare("digits", algorithm="fed-dpdr-dpml", epsilon=20.0, parties=3)
    made = prepared.make()
    measured = evaluated(prepared, made)
    (path,) = prepared.plan.paths().values()
    truth, predicted = predictions(prepared, path, prepared.shards.held_out, made)
    assert measured.measured_on == "test rows"
    assert measured.metrics["accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    for name, score in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        expected = score(truth, predicted, average="macro", zero_division=0)
        assert measured.metrics[name] == pytest.approx(expected), name
    assert measured.metrics["mcc"] == pytest.approx(matthews_corrcoef(truth, predicted))
    assert measured.by_party == {}


def test_without_aggregation_the_mean_over_parties_is_reported_and_each_party(root: Path) -> None:
    prepared = prepare("digits", algorithm="dpdr-dpml", epsilon=20.0, parties=3)
    made = prepared.make()
    measured = evaluated(prepared, made)
    assert set(measured.by_party) == {"0", "1", "2"}
    for party, path in prepared.plan.paths().items():
        truth, predicted = predictions(prepared, path, prepared.shards.held_out, made)
        assert measured.by_party[party]["accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    mean = np.mean([of["accuracy"] for of in measured.by_party.values()])
    assert measured.metrics["accuracy"] == pytest.approx(mean)
    assert len({of["accuracy"] for of in measured.by_party.values()}) > 1


def test_where_all_rows_train_the_accuracy_is_the_training_rows(root: Path) -> None:
    prepared = prepare("digits", algorithm="non-private", epsilon=None, test_fraction=0)
    made = prepared.make()
    measured = evaluated(prepared, made)
    assert measured.measured_on == "training rows"
    (path,) = prepared.plan.paths().values()
    found = [predictions(prepared, path, shard, made) for shard in prepared.shards.training]
    right = sum(int((truth == predicted).sum()) for truth, predicted in found)
    assert measured.metrics["train_accuracy"] == measured.metrics["accuracy"] == pytest.approx(right / 1797)


def test_private_rows_are_not_measured(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest_private(tmp_path / "input")
    prepared = prepare(algorithm="noisy-gd")
    made = prepared.make()

    def fail(*arguments: Any) -> Any:
        raise AssertionError("rows were read")

    monkeypatch.setattr(door, "rows_of", fail)
    monkeypatch.setattr("tasks.release.metrics.rows_of", fail)
    assert evaluated(prepared, made) == Evaluation()


def test_training_on_all_private_rows_measures_nothing_either(root: Path, tmp_path: Path) -> None:
    """With --test-fraction 0 the accuracy would be of the training rows: public data only."""
    ingest_private(tmp_path / "input")
    result = followed(algorithm="noisy-gd", evaluation=True, test_fraction=0)
    assert result.accuracy is None
    assert result.metrics == {}
    assert result.measured_on is None


def test_a_charged_evaluation_is_near_the_truth_and_is_a_release(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", count=3000, epsilon_cap=9.0, delta_cap=1e-5)
    prepared = prepare(algorithm="noisy-gd", evaluation=True, roc=True, epsilon=3.0, delta=1e-6, test_fraction=0.5)
    prepared.charge()
    made = prepared.make()
    measured = evaluated(prepared, made)
    assert measured.measured_on == "held-out rows, noisy"
    (path,) = prepared.plan.paths().values()
    truth, predicted = predictions(prepared, path, prepared.shards.held_out, made)
    exact = accuracy_score(truth, predicted)
    # Four cells of noise with sigma below 3 on 1500 rows: 0.05 is more than ten sigma away.
    assert measured.metrics["accuracy"] == pytest.approx(exact, abs=0.05)
    assert 0 <= measured.metrics["auc"] <= 1
    assert {key for key, _ in charges()} == {release.key for release in prepared.plan.releases}
    # Asked again, it is the same release.
    assert evaluated(prepared, made) == measured


def test_a_charged_evaluation_that_does_not_fit_refuses_the_run(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=1.0)
    followed(algorithm="noisy-gd", epsilon=1.0, evaluation=True)
    before = charges()
    with pytest.raises(OverspendError):
        followed(algorithm="noisy-gd", epsilon=1.0, evaluation=True, repetition=1)
    assert charges() == before
