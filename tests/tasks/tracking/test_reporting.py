"""Reports of a run: in its result, in MLflow, and in the Parquet rows that SQL reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy.stats import norm

from dpalgos.accounting.composition import compose, trade_off
from dpalgos.accounting.profiles import delta_of_mu
from dpalgos.guarantees import Guarantee
from dpalgos.models import LinearModel
from dpalgos.parameters import ParameterError
from flows.federated_training import chain_inline
from storage.datasets import open_dataset
from storage.layout import Layout
from storage.releases import ReleaseStore
from storage.shards import open_shard
from tasks.datasets.registration import find_dataset
from tasks.experiments.results import query_results
from tasks.planning.configuration import TrainingConfig
from tasks.records import record
from tasks.release.metrics import Evaluation
from tasks.runtime.settings import current_layout
from tasks.tracking import reporting
from tasks.tracking.lineage import guaranteed
from tasks.tracking.model_versions import find_model, record_of
from tasks.tracking.reporting import run_report
from tasks.tracking.results import RunResult, append_result, proved_of, summarise
from tasks.tracking.runs import FACTS, PARTIES, tracking_client
from tests.support.chains import followed, ingest_private, prepare
from tests.support.data import gathered
from tests.support.plans import dataset_of, planned, shards_of


def tracked(dataset: str = "digits", **config: Any) -> tuple[TrainingConfig, RunResult]:
    """Run the chain without Prefect, and log it."""
    given = TrainingConfig(**{"dataset": dataset, "epsilon": 1.0, "parties": 2, **config})
    mapped, plan, result, models = chain_inline(given)
    return given, record.fn(given, mapped, plan, result, models)


# ── the result ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_spent_is_the_largest_bill_of_a_party() -> None:
    plan = planned(shards_of(dataset_of(), sizes=(200, 300, 500)), algorithm="fed-dpdr-dpml")
    proved = proved_of(plan)
    assert proved is not None
    assert proved.epsilon == max(
        compose(losses_of_party).epsilon(1e-5) for losses_of_party in plan.losses_by_party().values()
    )
    assert proved.delta == 1e-5
    assert proved.mu is None, "a pure release among them"
    pure = proved_of(planned(algorithm="dpml"))
    assert pure is not None
    assert pure.delta == 0.0
    assert pure.epsilon == pytest.approx(1.0)


def test_a_gaussian_run_states_its_mu_and_the_whole_curve() -> None:
    """Epsilon at delta is one point of the curve: it follows from mu, and mu from no single point."""
    proved = proved_of(planned(algorithm="noisy-gd", parties=3))
    assert proved is not None
    assert proved.mu is not None
    assert delta_of_mu(proved.mu, proved.epsilon) == pytest.approx(proved.delta, rel=1e-6)
    levels, missed = (np.array(one) for one in zip(*proved.trade_off, strict=True))
    np.testing.assert_allclose(missed, norm.cdf(norm.ppf(1 - levels) - proved.mu), rtol=1e-5)
    pure = proved_of(planned(algorithm="dpml"))
    assert pure is not None
    # Several pure releases whose epsilons sum to one promise at least what a single one does.
    floor = np.maximum(1 - np.e * levels, (1 - levels) / np.e)
    assert (np.array(pure.trade_off)[:, 1] >= floor * (1 - 1e-5)).all()


def test_numbers_for_people_never_promise_more() -> None:
    proved = proved_of(planned(algorithm="dpml"))
    assert proved is not None
    assert proved.model_copy(update={"epsilon": 1.00001, "delta": 1e-5}).statement() == "(1.001, 1e-05)-DP"
    assert proved.summary() == proved.statement()


def test_a_bound_is_shown_with_mu_and_what_it_leaves_an_attack() -> None:
    proved = proved_of(planned(algorithm="noisy-gd"))
    assert proved is not None
    assert proved.summary() == "(1, 1e-05)-DP, μ = 0.269"
    # 1 − f(0.05) under μ = 0.268.
    exact = 100 * norm.cdf(norm.ppf(0.05) + 0.268051)
    assert "at most 8.43 %" in proved.recognised()
    assert 8.42 < exact < 8.43
    # "At most 100 %" is said as what it is.
    unbounded = proved.model_copy(update={"trade_off": ()}).recognised()
    assert "too large to bound it" in unbounded
    assert "at most" not in unbounded


def test_a_kind_without_a_scikit_learn_step_is_said_and_what_does_not_fit_is_raised(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainingConfig(dataset="iris", algorithm="noisy-gd", epsilon=1.0, parties=2)
    run = chain_inline(config)
    assert run_report(config, run).model is not None

    def read(artefact: Any) -> None:
        monkeypatch.setattr(reporting, "read_release", lambda reference: artefact)

    read(object())
    report = run_report(config, run)
    assert report.model is None
    assert "No model is logged: no scikit-learn step is known for object" in report.note
    read(LinearModel(np.ones((3, 7))))
    with pytest.raises(ParameterError, match=r"7 features.*4"):
        run_report(config, run)


def test_one_unproved_release_makes_the_whole_unproved() -> None:
    assert proved_of(planned(algorithm="non-private", epsilon=None)) is None
    assert proved_of(planned(algorithm="fed-dpdr-dpml-published")) is None
    assert proved_of(planned(algorithm="fed-dpdr-dpml", projection="pca")) is None


def test_a_result_is_json_and_comes_back(root: Path) -> None:
    result = followed("iris", algorithm="fed-dpdr-dpml-published", dimension=2)
    text = json.dumps(result.model_dump(mode="json"), allow_nan=False)
    assert RunResult.model_validate_json(text) == result
    assert result.proved is None
    assert result.epsilon_spent is None
    assert result.claim is not None
    assert result.claim["flaw"]


def test_seconds_are_for_public_rows(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input")
    private, public = followed(algorithm="noisy-gd"), followed("iris", algorithm="noisy-gd")
    assert (private.seconds, private.releasing_seconds) == (None, None)
    assert public.seconds is not None
    assert public.seconds > 0


def test_a_result_does_not_depend_on_private_rows(root: Path, tmp_path: Path) -> None:
    """Two sets of rows of equal size give the same result but for the names of releases and of versions."""
    results = []
    for name, seed in (("one", 1), ("two", 2)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("UNITBALL_ROOT", str(tmp_path / name))
            ingest_private(tmp_path / f"input-{name}", seed=seed)
            results.append(followed(algorithm="noisy-gd").model_dump(exclude={"run_key", "identity", "releases"}))
    assert results[0] == results[1]


# ── Parquet and SQL ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_duckdb_reads_the_rows(root: Path) -> None:
    config = TrainingConfig(dataset="iris", algorithm="dpdr-dpml", dimension=2, epsilon=1.0, parties=2)
    result = followed("iris", algorithm="dpdr-dpml", dimension=2)
    for _ in range(2):
        # A run that is repeated is not counted twice.
        append_result(config, result)
    append_result(config.model_copy(update={"epsilon": None}), followed("iris", algorithm="non-private", epsilon=None))
    files = f"{current_layout().results}/runs/*.parquet"
    rows = duckdb.sql(
        f"SELECT algorithm, accuracy, config_epsilon FROM read_parquet('{files}', union_by_name=true) ORDER BY 1"
    ).fetchall()
    assert [row[0] for row in rows] == ["dpdr-dpml", "non-private"]
    assert rows[0] == ("dpdr-dpml", result.accuracy, 1.0)
    assert rows[1][2] is None
    parties = query_results(
        f"SELECT party, value FROM metrics WHERE metric = 'accuracy' AND run_key = '{result.run_key}'"
    )
    assert {row["party"]: row["value"] for row in parties} == {
        "all": result.accuracy,
        **{party: of["accuracy"] for party, of in result.by_party.items()},
    }


def test_records_and_commands_name_fields_alike(root: Path) -> None:
    """Stored queries, MLflow's comparisons and the command that repeats a run say the names of a configuration."""
    config, _ = tracked("iris", algorithm="noisy-gd", replicate=3, deadline=2.0, deadline_miss=1e-8)
    (row,) = query_results("SELECT config_replicate, config_deadline_miss FROM runs")
    assert row == {"config_replicate": 3, "config_deadline_miss": 1e-8}
    with tracking_client(root) as client:
        places = [one.experiment_id for one in client.search_experiments()]
        (run,) = client.search_runs(places, "params.replicate = '3' and attributes.status = 'FINISHED'", max_results=1)
    assert run.data.params["deadline_miss"] == "1e-08"
    command = reporting.command_of(config)
    assert "--replicate 3" in command
    assert "--deadline-miss 1e-08" in command


def test_a_cached_run_does_not_rewrite_the_seconds_of_the_run_that_computed(root: Path) -> None:
    config = TrainingConfig(dataset="iris", algorithm="noisy-gd", epsilon=1.0, parties=2)
    result = followed("iris", algorithm="noisy-gd").model_copy(update={"seconds": 12.5})
    append_result(config, result)
    append_result(config, result.model_copy(update={"seconds": 0.25, "cached": True}))
    assert query_results("SELECT seconds FROM runs") == [{"seconds": 12.5}]
    # Where the first one was killed before it could say, nobody knows.
    other = result.model_copy(update={"run_key": "other", "seconds": 0.25, "cached": True})
    append_result(config, other)
    assert query_results("SELECT seconds FROM runs WHERE run_key = 'other'") == [{"seconds": None}]


def test_charges_and_releases_are_views(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", allow_idealised=True)
    prepared = prepare(algorithm="fed-dpdr-dpml", dimension=3)
    prepared.charge()
    prepared.make()
    paid = query_results(
        "SELECT party, count(*) AS n FROM charges WHERE account = 'clinic' GROUP BY party ORDER BY party"
    )
    assert paid == [{"party": "0", "n": 2}, {"party": "1", "n": 2}]
    kinds = query_results("SELECT kind, count(*) AS n FROM releases GROUP BY kind ORDER BY kind")
    assert kinds == [
        {"kind": "aggregators", "n": 2},
        {"kind": "projections", "n": 2},
        {"kind": "trainers", "n": 2},
    ]
    mus = query_results("SELECT kind, mu FROM releases WHERE reads_rows ORDER BY kind, key")
    assert [one["mu"] is not None for one in mus] == [True, True, False, False], "covariances are Gaussian, models pure"
    store = ReleaseStore(current_layout())
    manifests = [store.manifest(key) for key in store.keys()]
    for manifest in (one for one in manifests if one.get("reads_rows")):
        losses = Guarantee.from_json(manifest["guarantee"]).losses
        assert [missed for _, missed in manifest["trade_off"]] == trade_off([losses]).tolist()
    free = query_results("SELECT count(*) AS n FROM releases WHERE NOT reads_rows AND losses IS NULL")
    assert free == [{"n": 2}]


def test_views_are_there_before_the_first_run(root: Path) -> None:
    assert query_results("SELECT * FROM charges") == []
    assert query_results("SELECT * FROM releases") == []


# ── MLflow ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def client(root: Path) -> Any:
    from mlflow import MlflowClient

    uri = f"sqlite:///{Layout(root).mlflow_database}"
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def parties_of(root: Path, run_id: str | None) -> Any:
    import mlflow

    with tracking_client(root):
        table = mlflow.artifacts.load_dict(f"runs:/{run_id}/{PARTIES}")
    return [dict(zip(table["columns"], line, strict=True)) for line in table["data"]]


def test_a_run_a_line_per_party_one_experiment_a_data_set(tracked_root: Path) -> None:
    config, result = tracked(algorithm="fed-dpdr-dpml", dimension=5, parties=3)
    mlflow = client(tracked_root)
    experiment = mlflow.get_experiment_by_name("digits")
    parent = mlflow.get_run(result.mlflow_run_id)
    assert parent.info.experiment_id == experiment.experiment_id
    assert set(FACTS) <= set(parent.data.params)
    assert parent.data.params["algorithm"] == "fed-dpdr-dpml"
    assert parent.data.params["proved"].startswith("(0.9999")
    assert parent.data.params["claim"] == "none"
    assert parent.data.params["parties"] == "3"
    assert parent.data.params["trainer.regularisation"] == "0.01"
    assert parent.data.params["projection.components"] == "5"
    assert parent.data.metrics["accuracy"] == result.accuracy
    assert parent.data.metrics["epsilon_spent"] == 0.999926 > (result.epsilon_spent or 1.0), "rounded up, six digits"
    assert parent.data.metrics["delta_spent"] == 1e-5
    assert result.proved is not None
    history = mlflow.get_metric_history(result.mlflow_run_id, "trade_off")
    assert [(item.step / 1000, item.value) for item in history] == list(result.proved.trade_off)
    assert parent.data.metrics["seconds"] == result.seconds
    assert [run.info.run_id for run in mlflow.search_runs([experiment.experiment_id])] == [parent.info.run_id]
    parties = parties_of(tracked_root, parent.info.run_id)
    assert [line["party"] for line in parties] == ["party 0", "party 1", "party 2"]
    for line in parties:
        assert line["rows"] in (479.0, 480.0)
        assert line["epsilon_spent"] == 0.999926
    (given,) = parent.inputs.dataset_inputs
    assert given.dataset.name == "digits"
    assert given.dataset.profile in (None, "")
    assert given.dataset.schema in (None, "")
    # Logged again, it is the same run.
    again = record.fn(*logged(config))
    assert again.mlflow_run_id == result.mlflow_run_id


def test_what_was_not_measured_is_no_metric(tracked_root: Path, tmp_path: Path) -> None:
    """Accuracy 1 stood in MLflow, and its noise of 1,400 beside it: the noise had left nothing of either."""
    ingest_private(tmp_path / "input")
    _, result = tracked("clinic", algorithm="noisy-gd", epsilon=0.001)
    _, known = tracked("clinic", algorithm="noisy-gd", epsilon=2.5)
    assert result.accuracy is None
    run, other = (client(tracked_root).get_run(one.mlflow_run_id).data for one in (result, known))
    assert not {"accuracy", "accuracy_low", "accuracy_high", "accuracy_noise", "balanced_accuracy"} & set(run.metrics)
    assert {"epsilon_spent", "held_out_rows"} <= set(run.metrics)
    assert "accuracy" in run.tags["unitball.not_measured"].split(": ")[0].split(", ")
    assert result.metrics.reasons["accuracy"] in run.tags["unitball.not_measured"]
    assert {"accuracy", "accuracy_low", "accuracy_high", "accuracy_noise"} <= set(other.metrics)
    # The page that compares runs opens on the first metric that all of them have.
    assert list(other.metrics)[:2] == ["accuracy", "epsilon_spent"]
    assert next(iter(run.metrics)) == "epsilon_spent"
    (row,) = query_results(f"SELECT accuracy, metrics_weigh, data_version FROM runs WHERE run_key = '{result.run_key}'")
    # The version that `ingest` states, not the mapped one that the run reads.
    assert row == {"accuracy": None, "metrics_weigh": "rows", "data_version": find_dataset("clinic").version}
    assert "unitball.metrics" not in run.tags, "rows weigh alike, as everybody expects"
    # What versions are compared by, the noise with it, is on record all the same.
    facts = record_of(tracked_root, find_model(tracked_root, "clinic.noisy-gd/1")).facts["metrics"]
    assert facts == {
        "accuracy": result.metrics.estimates["accuracy"], "accuracy_noise": result.metrics["accuracy_noise"]
    }  # fmt: skip


@pytest.mark.parametrize("exact", [0.9999999999999990, 1.0000001, 0.123456001])
def test_what_was_spent_is_logged_rounded_up_to_six_digits(exact: float, root: Path) -> None:
    config = TrainingConfig(dataset="iris", algorithm="noisy-gd", epsilon=1.0, parties=2)
    run = chain_inline(config)
    report = reporting.report_without_model(
        config, run.dataset, run.plan, run.result.model_copy(update={"epsilon_spent": exact})
    )
    logged_epsilon = report.metrics["epsilon_spent"]
    assert logged_epsilon >= exact
    assert logged_epsilon == float(f"{logged_epsilon:.6g}") <= exact * (1 + 1e-5)


def logged(config: TrainingConfig) -> Any:
    dataset, plan, result, models = chain_inline(config)
    return config, dataset, plan, result, models


def test_joint_releases_have_a_line_per_party_too(tracked_root: Path) -> None:
    _, result = tracked("iris", algorithm="noisy-gd", parties=2)
    assert [line["party"] for line in parties_of(tracked_root, result.mlflow_run_id)] == ["party 0", "party 1"]


def test_what_is_guaranteed_of_predictions_names_the_accounts_own_group(tracked_root: Path, tmp_path: Path) -> None:
    """It said 5 rows, whatever the owner had declared."""
    ingest_private(tmp_path / "input", epsilon_cap=40.0, group_size=13)
    tracked("clinic", algorithm="noisy-gd", epsilon=0.1)
    said = guaranteed(tracked_root, find_model(tracked_root, "clinic.noisy-gd"))
    assert "for a row it was trained on" in said
    assert "a person with 13 rows is a group of 13, whose ε is larger." in said


@pytest.mark.parametrize(
    ("dataset", "config"),
    [
        ("digits", {"algorithm": "fed-dpdr-dpml", "dimension": 5, "epsilon": 50.0}),
        ("digits", {"algorithm": "noisy-gd", "normalisation": "minmax"}),
        ("breast_cancer", {"algorithm": "non-private", "epsilon": None, "normalisation": "clip", "dimension": 4}),
    ],
)
def test_the_logged_model_takes_raw_rows_and_predicts_what_was_measured(
    dataset: str, config: dict[str, Any], tracked_root: Path
) -> None:
    import mlflow.sklearn

    given, result = tracked(dataset, **config)
    with tracking_client(tracked_root):
        loaded = mlflow.pyfunc.load_model(f"models:/{dataset}.{result.algorithm}/1")
    raw, labels = gathered(open_dataset(current_layout(), find_dataset(dataset)))
    held_out = positions_held_out(given, len(raw))
    names = np.array(find_dataset(dataset).classes)[labels.astype(int)]
    predicted = loaded.predict(raw[held_out].astype(np.float64))
    assert np.mean(predicted == names[held_out]) == pytest.approx(result.accuracy)
    assert loaded.metadata.signature is not None
    files = {path.suffix for path in Layout(tracked_root).artifacts.rglob("*") if path.is_file()}
    assert ".pkl" not in files
    assert ".skops" in files


def positions_held_out(config: TrainingConfig, rows: int) -> Any:
    order = np.random.default_rng([config.partition_seed, 1]).permutation(rows)
    return np.sort(order[: round((config.test_fraction or 0.2) * rows)])


def test_thousands_of_small_parties_are_told_together(root: Path) -> None:
    from tasks.tracking.reporting import _parties

    shards = shards_of(dataset_of(classes=2, dimension=4), sizes=(5,) * 60)
    plan = planned(shards, algorithm="noisy-gd")
    result = summarise(plan, shards[0].dataset, Evaluation(), [])
    assert _parties(plan, result) == [{"party": "all parties", "rows": 300.0}]
    few = planned(shards[:3], algorithm="noisy-gd")
    assert [line["party"] for line in _parties(few, result)] == ["party 0", "party 1", "party 2"]


def test_the_whole_shard_is_what_was_trained_on(root: Path) -> None:
    """The rows that are said of a party are those that its shard holds."""
    prepared = prepare("iris", algorithm="noisy-gd", parties=3)
    held = [open_shard(current_layout(), shard).count for shard in prepared.shards.training]
    assert held == [shard.rows for shard in prepared.shards.training] == [40, 40, 40]
