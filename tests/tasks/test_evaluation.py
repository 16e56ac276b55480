"""Evaluation: exact on public rows, a charged release on private ones, and nothing in between."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, precision_score, recall_score
from sklearn.metrics import confusion_matrix as sklearn_confusion

from dpalgos import score_curves
from dpalgos.metrics import regression_metrics
from dpalgos.parameters import ParameterError
from flows.federated_training import chain_inline
from storage.errors import OverspendError
from storage.refs import ReleaseRef, Visibility
from storage.shards import open_shard
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.preparation import prepare as planning
from tasks.release import door
from tasks.release.metrics import Evaluation
from tasks.release.prices import measures_later, price_of
from tasks.release.storing import read_release
from tasks.releases import evaluate
from tasks.runtime.settings import current_layout
from tasks.tracking.reporting import run_report
from tasks.tracking.results import at_threshold, positive_class
from tests.support.chains import Prepared, charges, configured, followed, ingest_private, prepare
from tests.support.data import gathered
from tests.support.plans import dataset_of, planned, shards_of
from tests.tasks.tracking.test_figures import a_result


def evaluated(prepared: Prepared, made: dict[str, ReleaseRef] | None = None) -> Evaluation:
    made = made or prepared.make()
    models = {name: [made[key] for key in path] for name, path in prepared.plan.paths().items()}
    return evaluate.fn(prepared.plan, models, made, prepared.shards)


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
    counts = np.array(measured.confusion)
    assert np.array_equal(counts, sklearn_confusion(truth, predicted))
    assert len(measured.classes) == len(measured.roc) == 10
    areas = [np.trapezoid(*np.array(curve).T[::-1]) for curve in measured.roc]
    # Curves are thinned to a hundred points.
    assert np.mean(areas) == pytest.approx(measured.metrics["auc"], abs=0.01)


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
    # Figures are drawn from what was paid for, and from nothing else.
    released = read_release(made[prepared.plan.evaluations[0].key]).values
    assert np.allclose(measured.confusion, released, atol=1e-3)
    (curve,) = measured.roc
    area = np.trapezoid(*np.array(curve).T[::-1])
    assert measured.metrics["auc_low"] <= measured.metrics["auc"] <= measured.metrics["auc_high"]
    # The curve is bent to rise, the AUC is not: they differ by the noise of a class's bins beside its 750 rows, for
    # which the margins do not speak.
    assert area == pytest.approx(measured.metrics["auc"], abs=0.02)
    assert {key for key, _ in charges()} == {release.key for release in prepared.plan.releases}
    # Asked again, it is the same release.
    assert evaluated(prepared, made) == measured


def test_an_aim_is_post_processing_of_the_histogram_that_was_paid_for(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", count=3000, epsilon_cap=9.0, delta_cap=1e-5)
    asked: dict[str, Any] = {"algorithm": "noisy-gd", "evaluation": True, "roc": True, "epsilon": 3.0, "delta": 1e-6}
    plain = followed(**asked)
    paid = charges()
    aimed = followed(**asked, aim="recall=0.9")
    assert charges() == paid, "nothing more is charged"
    assert aimed.releases == plain.releases
    assert aimed.run_key != plain.run_key, "another threshold is another model"
    assert plain.identity.aim is None
    assert plain.calibration is not None
    assert aimed.calibration is not None
    assert plain.calibration[:2] == aimed.calibration[:2]
    assert plain.calibration[2] == 0 != aimed.calibration[2]
    assert aimed.metrics["aim_recall_low"] <= aimed.metrics["aim_recall"] <= aimed.metrics["aim_recall_high"]
    assert "recall=0.9" in at_threshold(aimed)[0]
    assert at_threshold(plain) == []
    without = planning.prepare(configured(**(asked | {"roc": False})))
    assert measures_later(without), "the model is there, this measurement is not"
    price = price_of([without])
    assert price is not None
    assert [one.releases for one in price.items] == [("confusion-matrix of held-out rows",)]


def test_an_aim_without_histograms_or_of_three_classes_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`roc`"):
        TrainingConfig(algorithm="noisy-gd", aim="f1")
    for aim in ("best", "recall=2", "cost=1:0.5", ""):
        with pytest.raises(ValueError, match=r"f1, recall=R.*cost=A:B"):
            TrainingConfig(algorithm="noisy-gd", aim=aim, roc=True)
    shards = shards_of(dataset_of(classes=3, visibility=Visibility.PRIVATE))
    with pytest.raises(ParameterError, match=r"aim.*f1.*3"):
        planned(shards[:2], shards[2], algorithm="noisy-gd", epsilon=1.0, roc=True, aim="f1")
    with pytest.raises(ParameterError, match=r"^aim is f1"):
        planned(shards_of(dataset_of(classes=2)), algorithm="noisy-gd", epsilon=1.0, roc=True, aim="f1")
    shards = shards_of(dataset_of(classes=2, visibility=Visibility.PRIVATE))
    with pytest.raises(ParameterError, match=r"^aim is f1.*2"):
        planned(shards[:2], shards[2], algorithm="dpml", trust="local", roc=True, aim="f1")


def test_a_charged_evaluation_that_does_not_fit_refuses_the_run(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=1.0)
    followed(algorithm="noisy-gd", epsilon=1.0, evaluation=True)
    before = charges()
    with pytest.raises(OverspendError):
        followed(algorithm="noisy-gd", epsilon=1.0, evaluation=True, replicate=1)
    assert charges() == before


def ingest_targets(folder: Path, count: int = 3000) -> None:
    """Bring in private rows whose label is a number in a declared range."""
    random = np.random.default_rng(0)
    rows = random.uniform(-1, 1, (count, 4))
    targets = np.clip(10.0 + 8.0 * rows[:, 0] + random.normal(0, 1, count), 0.0, 20.0)
    lines = [
        f"{target:.6f} " + " ".join(f"{place + 1}:{value:.6f}" for place, value in enumerate(row))
        for target, row in zip(targets, rows, strict=True)
    ]
    folder.mkdir()
    (folder / "rows.txt").write_text("\n".join(lines) + "\n")
    ingest(
        IngestRequest(
            name="clinic",
            format="libsvm",
            path=folder / "rows.txt",
            visibility=Visibility.PRIVATE,
            dimension=4,
            label_range=(0.0, 20.0),
            epsilon_cap=9.0,
            delta_cap=1e-5,
        )
    )


def test_a_regression_is_measured_by_the_charged_distribution_of_its_errors(root: Path, tmp_path: Path) -> None:
    """By default: held out by the rule, a party of their own, at the run's whole budget."""
    ingest_targets(tmp_path / "input")
    given = {"algorithm": "sufficient-statistics", "trust": "central", "partition": "even"}
    prepared = prepare(evaluation=True, epsilon=3.0, delta=1e-6, **given)
    prepared.charge()
    made = prepared.make()
    measured = evaluated(prepared, made)
    assert measured.measured_on == "held-out rows, noisy"
    (planned,) = prepared.plan.evaluations
    assert planned.algorithm.name == "error-distribution"
    assert planned.algorithm.parameters == {"label_range": [0.0, 20.0], "parts": 8}
    held_out = prepared.shards.held_out
    assert held_out is not None
    assert 0 < held_out.rows < 1000
    (path,) = prepared.plan.paths().values()
    features, targets = gathered(open_shard(current_layout(), held_out))
    scores = read_release(made[path[-1]]).scores(features)[:, 0]
    exact = regression_metrics(np.asarray(targets, dtype=np.float64), np.clip(scores, 0.0, 20.0))
    # No counts of the label are released here, so errors are counted up to the whole range.
    assert measured.metrics["error_bound"] == 20.0
    exact["rmse"] = math.sqrt(exact["mse"])
    for name in ("mae", "rmse"):
        low, high = (measured.metrics[f"{name}{end}"] for end in ("_low", "_high"))
        # Three times the margin's length: a false alarm has a probability below 10⁻⁸. Where noise leaves an RMSE of 0
        # possible, its margin is longer than otherwise, and yet tells something within a range of 20.
        assert abs(measured.metrics[name] - exact[name]) <= 3 * (high - low) < 20, name
    # So few rows in so wide a range do not tell how far the labels vary.
    assert set(measured.metrics.reasons) >= {"r2"}
    assert {key for key, _ in charges()} == {release.key for release in prepared.plan.releases}
    assert evaluated(prepared, made) == measured


def test_a_curve_of_numbers_is_refused_before_anything_is_charged(root: Path, tmp_path: Path) -> None:
    ingest_targets(tmp_path / "input", count=300)
    with pytest.raises(ParameterError, match=r"--roc.*numeric"):
        prepare(algorithm="sufficient-statistics", trust="central", evaluation=True, roc=True, epsilon=1.0, delta=1e-6)
    assert charges() == []


def test_the_positive_class_is_the_one_that_is_asked_for(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With classes `early, rest` every number was of `rest`, which nobody looks for."""
    # No margin is looked at.
    monkeypatch.setattr(score_curves, "_DRAWS", score_curves._DRAWS // 10)
    ingest_private(tmp_path / "input", count=3000, epsilon_cap=9.0, delta_cap=1e-5)
    registered = find_dataset("clinic")
    first, last = registered.classes
    asked: dict[str, Any] = {"algorithm": "noisy-gd", "roc": True, "aim": "recall=0.9", "epsilon": 3.0, "delta": 1e-6}
    asked |= {"evaluation": True, "parties": 2}
    plain, paid = followed(**asked), charges()
    turned = followed(**asked, positive=first)
    same = followed(**asked, positive=last)
    assert charges() == paid, "nothing more is charged"
    assert turned.releases == plain.releases == same.releases
    assert turned.run_key != plain.run_key, "what is said of it is another thing"
    assert (plain.positive, turned.positive, same.positive) == (last, first, last)
    assert turned.classes == (last, first)
    assert same.metrics == plain.metrics
    assert np.array_equal(turned.confusion, np.array(plain.confusion)[::-1, ::-1])
    for name in ("accuracy", "mcc", "balanced_accuracy"):
        assert turned.metrics[name] == pytest.approx(plain.metrics[name], abs=0.01), name
    assert turned.metrics["prevalence"] == pytest.approx(1.0 - plain.metrics["prevalence"], abs=0.01)
    for name in (first, last):
        assert turned.metrics[f"recall_{name}"] == pytest.approx(plain.metrics[f"recall_{name}"], abs=0.01)
    assert turned.metrics["recall"] == turned.metrics[f"recall_{first}"]
    assert plain.metrics["recall"] == plain.metrics[f"recall_{last}"]
    assert f"recall of `{first}`" in at_threshold(turned)[0].split("precision")[0]
    assert all(
        f"{what} of `{name}`" in at_threshold(turned)[0] for what in ("recall", "precision") for name in (first, last)
    )
    assert f"`{first}` (as asked or declared)" in positive_class(turned)[0]
    assert "last declared class" in positive_class(plain)[0]
    # A model turned around predicts the same classes where no threshold was chosen.
    models = []
    for name in (first, last):
        config = TrainingConfig(dataset="clinic", **asked | {"aim": None}, positive=name)
        models.append(run_report(config, chain_inline(config)).model)
    rows = np.random.default_rng(1).normal(0, 0.3, (50, registered.dimension))
    rows[0] = 0.0
    predicted = [model.pipeline.predict(rows).tolist() for model in models if model is not None]
    assert predicted[0] == predicted[1]
    assert len(predicted) == 2


@pytest.mark.parametrize(("dataset", "positive"), [("clinic", "nobody"), ("digits", "3")])
def test_a_positive_class_is_one_of_two(root: Path, tmp_path: Path, dataset: str, positive: str) -> None:
    ingest_private(tmp_path / "input", count=300)
    with pytest.raises(ParameterError, match=rf"positive.*{positive}"):
        prepare(dataset, algorithm="noisy-gd", positive=positive)


@pytest.mark.parametrize(("rare", "named", "warned"), [(0.1, False, True), (0.1, True, False), (0.45, False, False)])
def test_the_larger_class_as_the_positive_one_is_warned_of(rare: float, named: bool, warned: bool) -> None:
    """By more than the margin, and only where nobody has named it."""
    low, high = 0.9 - rare, 1.1 - rare
    metrics = {"prevalence": 1.0 - rare, "prevalence_low": low, "prevalence_high": high, "held_out_rows": 90.0}
    result = a_result(metrics=metrics, classes=("early", "rest"), measured_on="held-out rows, noisy")
    identity = result.identity.model_copy(update={"positive": "rest" if named else None})
    (said,) = positive_class(result.model_copy(update={"identity": identity}))
    assert ("--positive early" in said) is warned
