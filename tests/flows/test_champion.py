"""A new version against the champion: compared on held-out rows at a price, promoted if better, rolled back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.exceptions import MlflowException

from dpalgos.evaluators.discordance import QUANTILE, accuracy_gain
from dpalgos.models import predicted_classes
from flows import comparison
from flows.batch_scoring import batch_scoring
from flows.comparison import champion_comparison
from flows.federated_training import chain_inline
from storage.errors import InputError, OverspendError, RefusedError
from storage.refs import ReleaseRef, Visibility
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.preparation.prepare import prepare_comparison, require_held_out, whole
from tasks.release.seen_rows import maps_of, rows_of
from tasks.runtime.ending import EndState
from tasks.runtime.steps import inline
from tasks.runtime.stores import open_model_records
from tasks.tracking.audits import note_audit
from tasks.tracking.champion_comparison import (
    ComparisonOutcome,
    ComparisonRequest,
    compare_models,
    open_comparison,
    seen_in_training,
)
from tasks.tracking.lineage import Lineage
from tasks.tracking.model_versions import find_model, record_of
from tasks.tracking.promotion import promote, roll_back
from tasks.tracking.reporting import CHAMPION_LABEL, announce_trained, run_report
from tasks.tracking.results import RunResult
from tasks.tracking.runs import track_run, tracking_client
from tasks.tracking.scoring import ScoringRequest
from tests.support.chains import charges, configured, ingest_private, prepare
from tests.support.command_line import CommandLine
from tests.support.engines import Engine
from tests.support.private_rows import CLASSES, DIMENSION, write_rows

MODEL = "clinic.noisy-gd"
SPLIT: dict[str, Any] = {"algorithm": "noisy-gd", "test_fraction": 0.25, "evaluation": True}


def trained(root: Path, dataset: str = "clinic", at_most: float = 1.0, **config: Any) -> None:
    """Train, and log the model as the step does that records runs; anew until it is right of so many rows at most.

    A model of next to no budget is good one time in ten, by chance.
    """
    for replicate in range(30):
        asked = configured(dataset, **{**SPLIT, **config, "replicate": replicate})
        chained = chain_inline(asked)
        if right_share(dataset, next(iter(chained.models.values()))) <= at_most:
            track_run(root, run_report(asked, chained))
            return
    raise AssertionError("no such model in thirty")


@pytest.fixture(scope="module")
def contested(tracking_copied: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a root with a champion that was trained at next to no budget, and a version that is better."""
    folder = tmp_path_factory.mktemp("contested")
    root = folder / "root"
    tracking_copied(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(root))
        patch.setenv("UNITBALL_LEDGER_MARK", str(folder / "marks"))
        ingest_private(folder / "input", 1200, epsilon_cap=9.0)
        trained(root, epsilon=0.02, at_most=0.8)
        trained(root, epsilon=4.0)
        yield root


@pytest.fixture
def defended(contested: Path) -> Path:
    """Return that root where version 1 is the champion, whichever tests ran before."""
    if shown_champion(contested) is None:
        note_audit(contested, "noisy-gd", "consistent", "fine")
        promote(contested, MODEL, "1")
    return contested


def test_who_may_become_champion(contested: Path) -> None:
    with pytest.raises(RefusedError, match=r"noisy-gd.*audited"):
        promote(contested, MODEL, "1")
    note_audit(contested, "noisy-gd", "consistent", "fine")
    promote(contested, MODEL, "1")
    assert find_model(contested, f"{MODEL}@champion").version == "1"
    with pytest.raises(RefusedError, match="version 1"):
        promote(contested, MODEL, "2")
    with pytest.raises(InputError, match="champion before"):
        roll_back(contested, MODEL)
    with pytest.raises(InputError, match=r"^version 1.*champion"):
        open_comparison(contested, f"{MODEL}/1")


def test_measurements_that_were_paid_for_cost_nothing_more(defended: Path) -> None:
    """And show no more than they were paid for: the margin is that of both runs' noise, and of the rows."""
    paid = charges()
    model_comparison = open_comparison(defended, f"{MODEL}/2")
    compared = compare_models(defended, model_comparison, None, [], None)
    assert charges() == paid
    new, old = (record_of(defended, find_model(defended, f"{MODEL}/{one}")).facts["metrics"] for one in "21")
    assert compared.gain == new["accuracy"] - old["accuracy"]
    assert compared.margin > QUANTILE * np.hypot(new["accuracy_noise"], old["accuracy_noise"]) > 0.1
    assert compared.epsilon is None
    other = model_comparison.lineages[1].model_copy(update={"measured": None})
    with pytest.raises(InputError, match="held-out rows"):
        compare_models(
            defended,
            model_comparison.model_copy(update={"lineages": (model_comparison.lineages[0], other)}),
            None,
            [],
            None,
        )


def called(**asked: Any) -> Any:
    """Return what the flow returns, its steps being plain calls: it is run in test_public_rows_decide_exactly."""
    with inline(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "create_markdown_artifact", lambda *_, **__: None)
        return champion_comparison.fn(ComparisonRequest(model=f"{MODEL}/2", **asked))


def test_a_comparison_is_charged_once_and_decides(defended: Path) -> None:
    paid = len(charges())
    compared = called(epsilon=2.0)
    assert len(charges()) == paid + 1
    assert called(epsilon=2.0) == compared, "equal words name the same release"
    assert len(charges()) == paid + 1
    assert compared.better
    assert exact_gain(defended) == pytest.approx(compared.gain, abs=compared.margin)
    refusal = called(epsilon=50.0)
    assert (refusal.name, type(refusal.data)) == (str(EndState.BUDGET_EXHAUSTED), OverspendError)
    assert len(charges()) == paid + 1
    assert find_model(defended, f"{MODEL}@champion").version == "1", "nobody asked for a promotion"
    called(epsilon=2.0, promote=True)
    assert find_model(defended, f"{MODEL}@champion").version == "2"
    assert roll_back(defended, MODEL) == "1"
    assert find_model(defended, f"{MODEL}@champion").version == "1"


# Each way to use a model, with what it has used.
def _shown(root: Path, rows: Path, commands: CommandLine) -> str:
    return str(commands.succeeds("model", "show", f"{MODEL}@champion", "--root", root)["version"])


def _predicted(root: Path, rows: Path, commands: CommandLine) -> str:
    asked = ("--model", f"{MODEL}@champion", "--input", rows, "--output", rows.with_name("out.parquet"))
    return str(commands.succeeds("predict", *asked, "--root", root)["version"])


def _scored(root: Path, rows: Path, commands: CommandLine) -> str:
    with inline():
        written = batch_scoring.fn(ScoringRequest(model=f"{MODEL}/1", input=str(rows), prefer_champion=True))
    return written.split("-v")[1].split("-")[0]


def _compared_with(root: Path, rows: Path, commands: CommandLine) -> str:
    return open_comparison(root, f"{MODEL}/1").champion.version


def _rolled_back_from(root: Path, rows: Path, commands: CommandLine) -> str:
    assert commands.succeeds("model", "rollback", MODEL, "--root", root)["version"] == "1"
    assert shown_champion(root) == "1"
    promote(root, MODEL, "2")
    return open_model_records(root).champions(MODEL)[-1].version


def _announced(root: Path, rows: Path, commands: CommandLine) -> str:
    said = []
    for version in ("1", "2"):
        run = find_model(root, f"{MODEL}/{version}").run_id
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tasks.tracking.reporting.announce", lambda *_, labels: said.append(labels[CHAMPION_LABEL]))
            announce_trained(cast(RunResult, SimpleNamespace(mlflow_run_id=run, dataset="clinic")))
    return str(1 + said.index("false"))


def shown_champion(root: Path) -> str | None:
    """Return the version that bears the alias in MLflow."""
    with tracking_client(root) as client:
        bearing = client.get_registered_model(MODEL).aliases.get("champion")
    return None if bearing is None else str(bearing)


@pytest.mark.parametrize(
    "used", [_shown, _predicted, _scored, _compared_with, _announced, _rolled_back_from], ids=lambda way: way.__name__
)
@pytest.mark.parametrize("forged", ["1", None], ids=["set", "removed"])
def test_the_alias_in_mlflow_decides_nothing(
    used: Callable[[Path, Path, CommandLine], str],
    forged: str | None,
    contested: Path,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Whoever may write to MLflow moves or removes the alias; every way takes the champion on record."""
    promote(contested, MODEL, "2")
    rows = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"features": np.zeros((3, DIMENSION)).tolist()}), rows)
    with tracking_client(contested) as client:
        if forged is None:
            client.delete_registered_model_alias(MODEL, "champion")
        else:
            client.set_registered_model_alias(MODEL, "champion", forged)
    assert used(contested, rows, CommandLine(contested, capfd)) == "2"


def test_the_alias_in_mlflow_is_mended_where_the_champion_is_asked_for_and_that_is_said(
    contested: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    commands = CommandLine(contested, capfd)
    promote(contested, MODEL, "2")
    for forged in ("1", None):
        with tracking_client(contested) as client:
            if forged is None:
                client.delete_registered_model_alias(MODEL, "champion")
            else:
                client.set_registered_model_alias(MODEL, "champion", forged)
        caplog.clear()
        checks = commands("doctor", "--root", contested, "--json").json["checks"]
        (problem,) = [one["problem"] for one in checks if MODEL in (one["problem"] or "")]
        assert "the champion on record is version 2" in problem
        assert shown_champion(contested) == forged, "the doctor changes nothing"
        find_model(contested, f"{MODEL}@champion")
        assert shown_champion(contested) == "2"
        assert "the champion on record is version 2" in caplog.text
        caplog.clear()
        find_model(contested, f"{MODEL}@champion")
        assert caplog.text == "", "nothing to mend, nothing to say"
        checks = commands("doctor", "--root", contested, "--json").json["checks"]
        assert not [one for one in checks if MODEL in (one["problem"] or "")]


def test_where_the_alias_cannot_be_mended_the_champion_is_used_all_the_same(
    contested: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of a server that was named may not write to it."""
    promote(contested, MODEL, "2")
    with tracking_client(contested) as client:
        client.set_registered_model_alias(MODEL, "champion", "1")

    def denied(*_: object) -> None:
        raise MlflowException("Permission denied")

    monkeypatch.setattr("mlflow.MlflowClient.set_registered_model_alias", denied)
    assert find_model(contested, f"{MODEL}@champion").version == "2"
    assert "Permission denied" in caplog.text
    assert shown_champion(contested) == "1"


def exact_gain(root: Path) -> float:
    """Return by how many of the held-out rows the new version is right more often."""
    new, old = (right_share("clinic", list(one.path)) for one in open_comparison(root, f"{MODEL}/2").lineages)
    return new - old


def right_share(dataset: str, path: list[ReleaseRef]) -> float:
    """Return of how many of the held-out rows a model is right."""
    held_out = prepare(dataset, **{**SPLIT, "epsilon": 4.0}).shards.held_out
    assert held_out is not None
    found = 0
    for scores, labels, _ in rows_of(held_out, maps_of(path), 1).blocks():
        found += int(np.sum(predicted_classes(np.asarray(scores, dtype=np.float64)) == labels))
    return found / held_out.rows


def test_public_rows_decide_exactly(engine: Engine, tracked_root: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "open.txt", 1200)
    public = {"visibility": Visibility.PUBLIC, "dimension": DIMENSION, "classes": CLASSES}
    ingest(IngestRequest.model_validate({"name": "open", "format": "libsvm", "path": rows.path, **public}))
    trained(tracked_root, "open", epsilon=0.02, at_most=0.8)
    trained(tracked_root, "open", epsilon=4.0)
    note_audit(tracked_root, "noisy-gd", "consistent", "fine")
    promote(tracked_root, "open.noisy-gd", "1")
    compared = champion_comparison(ComparisonRequest(model="open.noisy-gd/2", promote=True))
    assert compared.better
    assert compared.epsilon is None
    assert "300 public rows" in compared.how
    assert find_model(tracked_root, "open.noisy-gd@champion").version == "2"


def test_a_comparison_says_where_a_version_may_have_seen_the_rows(tracked_root: Path, tmp_path: Path) -> None:
    """Public rows are held out by their number and the seed; private ones by their positions and the seed."""
    rows = write_rows(tmp_path / "open.txt", 300)
    public = {"visibility": Visibility.PUBLIC, "dimension": DIMENSION, "classes": CLASSES}
    ingest(IngestRequest.model_validate({"name": "open", "format": "libsvm", "path": rows.path, **public}))
    ingest_private(tmp_path / "private", count=300)

    def lineage(name: str, version: str = "1", test_rows: int = 0, **config: Any) -> Lineage:
        dataset = find_dataset(name).model_copy(update={"version": version, "test_rows": test_rows})
        return Lineage(config=configured(name, **config), dataset=dataset, features=(), path=(), measured=None)

    for name, said in (("open", True), ("clinic", False)):
        one = lineage(name)
        assert seen_in_training(one, one) == ""
        assert bool(seen_in_training(lineage(name, "2"), one)) == said
        assert bool(seen_in_training(lineage(name, test_fraction=0.4), one)) == said
        assert "may have been trained" in seen_in_training(lineage(name, partition_seed=1), one)
        assert seen_in_training(lineage(name, "2", test_rows=50), lineage(name, test_rows=50)) == ""


def test_no_model_of_nights_is_compared_on_rows_that_it_has_seen(tracked_root: Path, tmp_path: Path) -> None:
    """Of a public set without test rows a fifth was held out, on which the nights had trained."""
    rows = write_rows(tmp_path / "open.txt", 200)
    public = {"visibility": Visibility.PUBLIC, "dimension": DIMENSION, "classes": CLASSES}
    ingest(IngestRequest.model_validate({"name": "open", "format": "libsvm", "path": rows.path, **public}))
    config = configured("open", horizon=3, trainer="class-means", trust="central", epsilon=1.0)
    assert whole(prepare_comparison(config)).shards.held_out is None
    with pytest.raises(InputError, match="without --horizon"):
        require_held_out(config, None)
    usual = config.model_copy(update={"horizon": None})
    assert require_held_out(usual, whole(prepare_comparison(usual)).shards.held_out).rows == 40


def test_the_margin_holds_as_often_as_it_says() -> None:
    """Of two models that are equally good, the second is called better in at most one of twenty comparisons."""
    generator = np.random.default_rng(5)
    rows, deviation, better = 400, 3.0, 0
    for _ in range(4000):
        drawn = generator.multinomial(rows, [0.1, 0.1, 0.8])[:2] + deviation * generator.standard_normal(2)
        gain, margin = accuracy_gain(drawn, rows, deviation)
        better += gain > margin
    # Three standard errors above 5 %.
    assert better / 4000 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4000)
    assert accuracy_gain(np.array([0.0, 0.0]), rows, 0.0) == (0.0, 0.0)


def test_an_outcome_in_a_line() -> None:
    given = {"model": "a.b", "version": "2", "champion": "1", "gain": 0.02, "margin": 0.03, "how": "300 public rows"}
    given |= {"run": "the-second", "champion_run": "the-first"}
    assert (
        "not shown to be better than the champion, version 1: accuracy +0.0200" in ComparisonOutcome(**given).statement
    )
    assert ComparisonOutcome(**{**given, "gain": 0.04}).better
