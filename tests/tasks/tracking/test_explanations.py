"""Why a row has its score: by columns of the schema, from released counts alone, and what that rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unitball
from dpalgos.accounting.composition import compose, trade_off
from dpalgos.guarantees import ApproximateDP, GaussianMu, Guarantee, Neighbours, Numerics, PureEpsilon
from dpalgos.models import LinearModel
from dpalgos.parameters import ParameterError
from storage.errors import InputError
from storage.layout import Layout
from storage.refs import ShardRef
from storage.results import read_record
from storage.schema import parse_schema
from tasks.accounts.ledger import open_ledger
from tasks.datasets.registration import find_dataset
from tasks.datasets.scales import scales_under
from tasks.release.column_counts import plan_counts
from tasks.tracking import explanations as module
from tasks.tracking.explanations import (
    Basis,
    LargestColumns,
    basis_of,
    basis_of_model,
    composed,
    explaining_pipeline,
    players_of,
)
from tasks.tracking.lineage import read_lineage
from tasks.tracking.model_versions import find_model
from tasks.tracking.predicted_files import Predicted, predict_file
from tasks.tracking.results import Proved
from tasks.tracking.sklearn_export import to_sklearn
from tests.support.command_line import CommandLine
from tests.support.tables import Trained, columns_of, train_on_table
from unitball import PrivateClassifier, PrivateRegressor


@pytest.fixture
def at_root(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> Trained:
    monkeypatch.setenv("UNITBALL_ROOT", str(trained.root))
    return trained


def basis(trained: Trained) -> Basis:
    return basis_of_model(trained.root, find_model(trained.root, trained.name))


def added_up(frame: pd.DataFrame) -> float:
    """How far the values of a row are from its score less the mean score, at most."""
    rows = frame.groupby("row", sort=False)
    return float((rows["value"].sum() - rows["score"].first() + rows["mean"].first()).abs().max())


def explained(model: unitball.TrainedModel | str, rows: pd.DataFrame) -> pd.DataFrame:
    return unitball.explain(model, rows) if isinstance(model, str) else model.explain(rows)


def test_each_row_is_explained_by_the_columns_of_the_schema(at_root: Trained) -> None:
    rows = at_root.rows.head(5).set_axis([*"abcde"])
    frame = unitball.explain(at_root.name, rows, permutations=16)
    assert list(frame["row"].unique()) == [*"abcde"]
    assert set(frame["column"]) == set(rows.columns)
    assert len(frame) == 5 * len(rows.columns)
    assert added_up(frame) < 1e-10
    assert frame.groupby("row")["share"].sum().to_numpy() == pytest.approx(1.0)
    sizes = frame["value"].abs().to_numpy().reshape(5, -1)
    assert (np.diff(sizes, axis=1) <= 0).all()
    first = frame.groupby("row").first()
    pipeline = at_root.pipeline
    if at_root.label == "real":
        assert first["score"].to_numpy() == pytest.approx(pipeline.predict(rows))
        assert set(first["of"]) == {"prediction"}
    else:
        assert set(first["of"]) <= {f"score {name}" for name in at_root.classes}
        scores = np.asarray(pipeline.decision_function(rows)).reshape(5, -1)
        assert first["score"].to_numpy() == pytest.approx(scores.max(axis=1))
        if at_root.label == "three":
            assert first["of"].tolist() == [f"score {name}" for name in pipeline.predict(rows)]
    # Columns in another order, with one more, of another library: the same to the bit.
    other = pl.from_pandas(rows[rows.columns[::-1]].assign(more=1).astype({"pressure": str}))
    again = unitball.explain(at_root.name, other, permutations=16)
    assert np.array_equal(again["value"], frame["value"])
    assert unitball.explain(at_root.name, rows.head(0), permutations=16).empty


@pytest.mark.parametrize("trained", ["two"], indirect=True)
def test_a_column_is_all_its_features(at_root: Trained) -> None:
    """A date with three parts is one column, and an indicator belongs to its number: none is left, none is twice."""
    declared = at_root.pipeline[0].declared
    dated = [
        {**column, "parts": ["days", "month", "weekday"], "missing": "indicator"}
        if column["type"] == "date"
        else column
        for column in columns_of("two")
    ]
    for schema in (declared, parse_schema({"columns": dated}, "dated")):
        players = players_of(schema, scales_under(schema, clips=False))
        assert [player.name for player in players] == list(at_root.rows.columns)
        owned = [feature for player in players for feature in player.features]
        names = np.array(schema.feature_names)
        assert sorted(owned) == list(range(len(names) - 1)), "all but the constant"
        by_name = {player.name: player for player in players}
        assert set(names[list(by_name["pressure"].features)]) == {"pressure", "pressure is missing"}
    date = by_name["admitted"]
    assert [column.values for column in date.columns] == [None, 12, 7]
    assert names[date.features[-1]] == "admitted is missing"
    assert date.can_lack
    players = players_of(declared, scales_under(declared, clips=False))
    by_name = {player.name: player for player in players}
    assert by_name["dose"].steps == (3,)
    assert not by_name["ward"].can_lack, "rows without a ward were refused"
    assert players_of(declared, scales_under(declared, clips=True))[4].can_lack
    # Only rows that the encoder could have made: one ward each, and no missing cell where that is refused.
    explaining = explaining_pipeline(at_root.pipeline, basis(at_root))
    reference = explaining.explainer.reference
    for player in players:
        for column in player.columns:
            if column.values:
                cells = reference[:, column.at : column.at + column.values]
                assert (np.count_nonzero(cells, axis=1) == 1).all(), player.name
    pressure = by_name["pressure"].columns[0]
    lost = reference[:, pressure.missing] > 0
    assert 0.05 < lost.mean() < 0.4, "a fifth of the cells are missing"


@pytest.mark.parametrize("trained", ["two"], indirect=True)
def test_no_row_is_opened_and_nothing_is_charged_or_stored(at_root: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way to rows is closed; a mutant whose reference rows are somebody's is caught."""
    from storage import rowfiles, shards

    def closed(*_: object, **__: object) -> None:
        raise AssertionError("rows were looked at")

    files = {path for path in at_root.root.rglob("*") if path.is_file()}
    charges = len(open_ledger().charges(find_dataset("visits").account))
    for room, name in ((rowfiles, "StoredRows"), (shards, "open_shard"), (shards, "Shard")):
        monkeypatch.setattr(room, name, closed, raising=False)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.__init__", closed)
    monkeypatch.setattr(module, "read_record", lambda *_: None)
    with pytest.raises(InputError, match="results"):
        basis(at_root)
    model = find_model(at_root.root, at_root.name)
    found = basis_of(read_lineage(at_root.root, model), None)
    frame = explaining_pipeline(at_root.pipeline, found).frame(at_root.features[:2])
    assert len(frame) == 2 * len(at_root.rows.columns)
    assert len(open_ledger().charges(find_dataset("visits").account)) == charges
    assert {path for path in at_root.root.rglob("*") if path.is_file()} == files

    def mutant(*_: object) -> object:
        shard = ShardRef(dataset=find_dataset("visits"), partition="any", party="0", rows=1)
        return shards.open_shard(Layout(at_root.root), shard)

    monkeypatch.setattr(module, "counts_behind", mutant)
    with pytest.raises(AssertionError, match="rows"):
        basis_of(read_lineage(at_root.root, model), None)


@pytest.mark.parametrize("trained", ["two"], indirect=True)
def test_counts_of_the_model_are_composed_once(at_root: Trained) -> None:
    found = basis(at_root)
    assert found.with_counts
    frame = unitball.explain(at_root.name, at_root.rows.head(1), permutations=4)
    record = read_record(Layout(at_root.root), at_root.run_key)
    assert record is not None
    assert (frame.attrs["epsilon"], frame.attrs["delta"]) == (record["epsilon_spent"], record["delta_spent"])
    assert str(found.proved) in frame.attrs["note"]
    assert "independently" in frame.attrs["note"]


def test_described_counts_are_composed_and_their_absence_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linear model rests on no counts: first there are none, then those of `describe`, at the price of both."""
    monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("UNITBALL_LEDGER_MARK", str(tmp_path / "marks"))
    trained_on: dict[str, Any] = {"algorithm": "noisy-gd", "epsilon": 2.0, "parameters": {"trainer.iterations": 5}}
    train_on_table(tmp_path, "two", visits=2, **trained_on)
    model = unitball.train("visits", parties=1, evaluation=False, **trained_on)
    rows = pd.DataFrame([{"age": 40, "income": 10.0, "dose": "low", "admitted": "2021-01-05", "ward": "east"}])
    rows = rows.assign(doctor="Dr 1", smoker="no", pressure="")
    version = find_dataset("visits").version
    for asked in (model, "visits.noisy-gd"):
        with pytest.raises(InputError, match=f"unitball describe visits --version {version}"):
            explained(asked, rows)
    wide, narrow = (plan_counts(find_dataset("visits"), epsilon) for epsilon in (0.5, 1.0))
    for plan in (wide, narrow):
        plan.make()
    frame = model.explain(rows, permutations=8)
    assert frame.equals(unitball.explain("visits.noisy-gd", rows, permutations=8))
    assert added_up(frame) < 1e-12
    proved = model.guarantee
    assert proved is not None
    assert proved.mu is not None
    (counted,) = narrow.planned.guarantee().losses
    assert isinstance(counted, GaussianMu)
    together = compose((GaussianMu(proved.mu), counted)).epsilon(proved.delta)
    assert frame.attrs["epsilon"] == pytest.approx(together)
    assert proved.epsilon * 1.05 < together < proved.epsilon + narrow.epsilon
    assert "of people (each counts as one)" in frame.attrs["note"]
    assert f"{frame.attrs['delta']:g}" == f"{proved.delta:g}"
    # A lineage that forgets the counts, or counts the model's own twice, prints another epsilon.
    lineage = model.lineage
    assert lineage is not None
    assert not basis_of(lineage, proved).with_counts
    with pytest.raises(InputError, match="visits"):
        basis_of(lineage.model_copy(update={"dataset": lineage.dataset.model_copy(update={"version": "0"})}), proved)
    with pytest.raises(InputError, match="elsewhere"):
        basis_of(lineage.model_copy(update={"dataset": lineage.dataset.model_copy(update={"name": "theirs"})}), proved)
    under_another = proved.model_copy(update={"neighbours": "replace-special"})
    with pytest.raises(InputError, match="replace-special"):
        basis_of(lineage, under_another)


def test_what_both_guarantee() -> None:
    counts = Guarantee(losses=(GaussianMu(0.5),), neighbours=Neighbours.REPLACE_ONE, numerics=Numerics.EXACT)
    facts = {"neighbours": "replace-one", "trust": "central", "numerics": "exact"}
    gaussian = composed(Proved(epsilon=9.0, delta=1e-6, mu=1.2, **facts), counts, 1e-5)
    assert gaussian.mu == pytest.approx(1.3)
    assert gaussian.epsilon == pytest.approx(compose((GaussianMu(1.3),)).epsilon(1e-6))
    assert gaussian.delta == 1e-6
    assert [missed for _, missed in gaussian.trade_off] == pytest.approx(trade_off([(GaussianMu(1.3),)]).tolist())
    pure = composed(Proved(epsilon=1.0, delta=0.0, **facts), counts, 1e-5)
    assert (pure.epsilon, pure.delta) == (compose((PureEpsilon(1.0), GaussianMu(0.5))).epsilon(1e-5), 1e-5)
    point = composed(Proved(epsilon=1.0, delta=1e-6, **{**facts, "numerics": "idealised"}), counts, 1e-5)
    assert point.delta == pytest.approx(1.1e-5)
    assert point.epsilon == compose((ApproximateDP(1.0, 1e-6), GaussianMu(0.5))).epsilon(point.delta)
    assert point.epsilon <= 1.0 + compose((GaussianMu(0.5),)).epsilon(1e-5) + 1e-9
    assert (point.mu, point.numerics) == (None, "idealised")
    with pytest.raises(ParameterError, match="replace-special"):
        composed(Proved(epsilon=1.0, delta=0.0, **{**facts, "neighbours": "replace-special"}), counts, 1e-5)


@pytest.mark.parametrize("trained", ["three"], indirect=True)
def test_a_file_gets_the_largest_columns(
    at_root: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = at_root.rows.head(9).reset_index(drop=True).astype({"ward": object})
    rows.loc[2, "ward"] = "moon"
    rows.loc[4, "pressure"] = ""
    rows.assign(id=[f"p{place}" for place in range(9)])[["id", *rows.columns[::-1]]].to_csv(
        tmp_path / "new.csv", index=False
    )
    explaining = explaining_pipeline(at_root.pipeline, basis(at_root), permutations=16)
    why = LargestColumns(explaining, 2)
    monkeypatch.setattr(LargestColumns, "rows_at_once", 4)
    done = predict_file(at_root.pipeline, tmp_path / "new.csv", tmp_path / "out.parquet", id_column="id", why=why)
    assert done == Predicted(9, 1)
    found = pq.read_table(tmp_path / "out.parquet").to_pandas()
    assert list(found.columns)[6:-1] == list(why.names)
    assert len(why.names) == 3 + 2 * 4
    assert found.loc[2, list(why.names)].isna().all()
    kept = [place for place in range(9) if place != 2]
    expected = unitball.explain(at_root.name, rows.loc[kept], permutations=16)
    largest = expected.groupby("row").head(2)
    for place in (1, 2):
        of_place = largest.groupby("row").nth(place - 1)
        assert found.loc[kept, f"why_{place}"].tolist() == of_place["column"].tolist()
        for name in ("value", "share", "error"):
            assert np.allclose(found.loc[kept, f"why_{place}_{name}"].astype(float), of_place[name])
    assert found.loc[kept, "why_of"].str.removeprefix("score ").tolist() == found.loc[kept, "prediction"].tolist()
    pq.write_table(pa.table({name: pa.array([], pa.string()) for name in rows.columns}), tmp_path / "none.parquet")
    predict_file(at_root.pipeline, tmp_path / "none.parquet", tmp_path / "empty.parquet", why=why)
    none = pq.read_schema(tmp_path / "empty.parquet")
    whole = pq.read_schema(tmp_path / "out.parquet")
    assert [none.field(name).type for name in why.names] == [whole.field(name).type for name in why.names]
    with pytest.raises(InputError, match="why_1_value"):
        predict_file(at_root.pipeline, tmp_path / "new.csv", tmp_path / "x.parquet", id_column="Why_1_value", why=why)

    commands = CommandLine(at_root.root, capfd)
    given = ("predict", "--model", at_root.name, "--input", tmp_path / "new.csv")
    asked = (*given, "--output", tmp_path / "told.parquet", "--why", 3, "--permutations", 16, "--id", "id")
    shown = commands(*asked, "--plot", tmp_path / "why.png")
    assert shown.code == 0, shown
    assert (tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")
    for words in ("p0: score ", "p3: score ", "above the mean" if "above" in shown.out else "below", "others", " ± "):
        assert words in shown.out
    assert "p2: " not in shown.out, "it was refused"
    machine = commands.succeeds(*given, "--output", tmp_path / "json.parquet", "--why", 50, "--permutations", 16)
    assert len(machine["why"]["rows"]) == 3
    assert machine["why"]["rows"][0][f"why_{rows.shape[1]}"] in rows.columns
    assert machine["why"]["epsilon"] == pytest.approx(expected.attrs["epsilon"])
    commands(*given, "--output", tmp_path / "a.parquet", "--plot", tmp_path / "b.png").refused(2, "add --why")
    commands(*asked, "--plot", tmp_path / "why.png").refused(2, "why.png exists")
    for odd in (5, 0):
        commands(*given, "--output", tmp_path / "a.parquet", "--why", 1, "--permutations", odd).refused(
            2, f"permutations is {odd}"
        )


def test_what_has_no_columns_is_refused_with_the_reason() -> None:
    from storage.encoder import PictureEncoder

    with pytest.raises(InputError, match="pixels"):
        module.require_explainable([PictureEncoder({"height": 8, "width": 8})])
    arrays = to_sklearn(
        normalisation="unit-norm", maps=[], model=LinearModel(np.ones((1, 3))), classes=("no", "yes"), dimension=3
    )
    with pytest.raises(InputError, match="schema draft"):
        module.require_explainable(arrays)


def test_estimators_explain_by_the_same_values() -> None:
    random = np.random.default_rng(0)
    X = random.uniform(-1, 1, size=(1500, 3))
    X[:, 2] = 1.0
    y = np.where(X[:, 0] + 0.2 * random.normal(size=1500) > 0, "far", "near")
    given: dict[str, Any] = {"bounds": ([-1, -1, 1], [1, 1, 1]), "public": True, "random_state": 0}
    model = PrivateClassifier(epsilon=20.0, test_fraction=0.3, **given).fit(X, y)
    frame = model.explain(X[:4], permutations=64)
    assert set(frame["column"]) == {"x0", "x1"}, "a constant is no column"
    assert frame.groupby("row").first()["column"].tolist() == ["x0"] * 4
    assert added_up(frame) < 1e-12
    chances = model.predict_proba(X[:4])
    assert set(frame["of"]) == {"log-odds of near"}
    assert frame.groupby("row")["score"].first().to_numpy() == pytest.approx(np.log(chances[:, 1] / chances[:, 0]))
    assert str(model.guarantee_.proved) in frame.attrs["note"]
    number = PrivateRegressor(epsilon=20.0, label_range=(-0.5, 0.5), on_violation="clip", **given)
    clipped = number.fit(X, X[:, 0]).explain(X[:40], permutations=8)
    assert clipped.groupby("row")["score"].first().to_numpy() == pytest.approx(number.predict(X[:40]))
    assert added_up(clipped) < 1e-12
    alone = PrivateRegressor(epsilon=20.0, bounds=(-1, 1), public=True, random_state=0).fit(X[:, :1], X[:, 0])
    single = alone.explain(pd.DataFrame(X[:2, :1]).set_axis([7, 8]), permutations=8)
    assert single["row"].tolist() == [7, 8]
    assert single["share"].tolist() == [1.0, 1.0]
    linear = PrivateClassifier(epsilon=1.0, algorithm="noisy-gd", bounds=(-1, 1), public=True, random_state=0)
    with pytest.raises(InputError, match="noisy-gd"):
        linear.fit(X[:, :2], y).explain(X[:2, :2])
