"""What a model says about each column, in the columns' own units, and never by looking at a row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpalgos.columns import Column
from dpalgos.effects import reference_row
from storage.errors import InputError, StorageError
from storage.layout import Layout
from storage.refs import ShardRef
from storage.schema import Schema
from storage.shards import open_shard
from tasks.datasets.registration import find_dataset
from tasks.tracking import effects as module
from tasks.tracking.effects import MISSING, NONE, OTHER, ColumnEffect, Effects, Part, card_of, effects_of
from tasks.tracking.lineage import read_lineage
from tasks.tracking.model_files import effects_of_model, load_model
from tasks.tracking.model_versions import find_model
from tasks.tracking.runs import tracking_client
from tests.support.command_line import CommandLine
from tests.support.tables import Trained
from unitball import PrivateClassifier, PrivateRegressor


@pytest.fixture
def at_root(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> Trained:
    monkeypatch.setenv("UNITBALL_ROOT", str(trained.root))
    return trained


@pytest.fixture
def without_rows(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trained]:
    """The rows are gone: their versions, their shards, and whatever else is made of them."""
    aside = tmp_path / "aside"
    shutil.move(trained.root / "private", aside)
    (trained.root / "private").mkdir()
    # The owner's secrets are no rows; the ledger's entries are checked with them.
    for path in aside.iterdir():
        if path.is_file() or path.name == "secrets":
            (shutil.copy2 if path.is_file() else shutil.copytree)(path, trained.root / "private" / path.name)
    monkeypatch.setenv("UNITBALL_ROOT", str(trained.root))
    yield trained
    shutil.rmtree(trained.root / "private")
    shutil.move(aside, trained.root / "private")


def said(trained: Trained) -> Effects:
    return effects_of_model(trained.root, find_model(trained.root, trained.name))


def column_of(found: Effects, name: str) -> ColumnEffect:
    return next(column for column in found.columns if column.name == name)


def test_each_column_is_in_its_own_units(at_root: Trained) -> None:
    found = said(at_root)
    names = {"two": ("score ill",), "three": ("score well", "score ill", "score unclear"), "real": ("prediction",)}
    assert found.scores == names[at_root.label]
    assert {column.name for column in found.columns} == set(at_root.rows.columns)
    assert found.counted
    assert "released medians" in found.note
    age, income, admitted = (column_of(found, name) for name in ("age", "income", "admitted"))
    assert (age.parts[0].low, age.parts[-1].high) == (18.0, 100.0)
    # Equal parts on a logarithmic scale: of log(1 + x) from 0 to a million.
    edges = [income.parts[0].low, *(part.high for part in income.parts)]
    assert edges == pytest.approx(np.expm1(np.linspace(0, np.log1p(1e6), 65)), rel=1e-9)
    assert admitted.kind == "date"
    assert (admitted.parts[0].low, admitted.parts[-1].high) == ("2020-01-01", "2024-12-31")
    assert [part.of for part in column_of(found, "dose").parts] == ["low", "middle", "high"]
    assert [part.of for part in column_of(found, "smoker").parts] == ["false", "true"]
    assert [part.of for part in column_of(found, "ward").parts] == ["north", "south", "east", OTHER]
    doctors = column_of(found, "doctor")
    assert doctors.kind == "hashed"
    assert all(part.of == OTHER or part.of.startswith("bin ") for part in doctors.parts)
    assert column_of(found, "pressure").parts[-1].of == MISSING
    assert [column.spread for column in found.columns] == sorted((one.spread for one in found.columns), reverse=True)


def test_a_value_is_scored_as_the_encoder_has_it(at_root: Trained) -> None:
    """The reference with one cell of a row that was typed in."""
    found, encoder = said(at_root), at_root.pipeline[0]
    declared, rest = encoder.declared, at_root.pipeline[1:]
    columns = [Column(**place.model_dump()) for place in declared.places]
    path = read_lineage(at_root.root, find_model(at_root.root, at_root.name)).path
    counts = module.counts_behind(path)
    reference = reference_row(columns, declared.missing_row(), counts)
    for name in ("dose", "ward"):
        own = list(columns[[column.at for column in columns].index(_first(declared, name))].features)
        for part in column_of(found, name).parts:
            if part.of in (OTHER, NONE):
                continue
            typed = encoder.transform(at_root.rows.head(1).assign(**{name: part.of}))[0]
            row = reference.copy()
            row[own] = typed[own]
            scores = rest.decision_function(row[None]) if at_root.classes else rest.predict(row[None])
            assert np.ravel(scores) == pytest.approx(part.scores)


def _first(declared: Schema, name: str) -> int:
    return next(at for at, feature in enumerate(declared.feature_names) if feature.startswith(name))


@pytest.mark.parametrize("trained", ["two"], indirect=True)
def test_with_the_rows_deleted_the_page_is_the_same(trained: Trained, request: pytest.FixtureRequest) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(trained.root))
        before = said(trained)
        dataset = find_dataset("visits")
    request.getfixturevalue("without_rows")
    found = said(trained)
    assert found == before
    assert card_of(found) == card_of(before)

    def mutant(path: Any) -> Any:
        shard = ShardRef(dataset=dataset, partition="any", party="0", rows=dataset.rows)
        return next(iter(open_shard(Layout(trained.root), shard).blocks()))

    # What looks at a row finds none, and is caught.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "counts_behind", mutant)
        with pytest.raises(StorageError, match=r"shard"):
            said(trained)


@pytest.mark.parametrize("trained", ["two"], indirect=True)
def test_no_row_is_opened(at_root: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's page is made while every way to rows is closed."""
    from storage import rowfiles, shards

    def closed(*_: object, **__: object) -> None:
        raise AssertionError("rows were looked at")

    for room, name in ((rowfiles, "StoredRows"), (shards, "open_shard")):
        monkeypatch.setattr(room, name, closed)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.__init__", closed)
    assert said(at_root).columns


def test_a_declared_value_may_be_called_as_the_part_of_missing_cells() -> None:
    """The mutant leaves the part out by its name: the card says that b has the highest score."""
    named = {"a": 0.1, "b": 0.2, MISSING: 5.0, NONE: 0.0}
    parts = [Part(of, None, None, (score,), None) for of, score in named.items()]
    parts.append(Part(NONE, None, None, (9.0,), None, of_missing=True))
    column = ColumnEffect(
        name="ward", kind="category", parts=tuple(parts), bars=0, bar_rows=(), reference="a", spread=1
    )
    card = card_of(Effects(scores=("score",), counted=True, unit="rows", note="", columns=(column,), pairs=()))
    assert f"({NONE}) to" in card
    assert f"({MISSING})" in card


@pytest.mark.parametrize("trained", ["three"], indirect=True)
def test_the_card_and_mlflow_have_them(at_root: Trained) -> None:
    model = find_model(at_root.root, at_root.name)
    found = said(at_root)
    assert "### Effect of each column" in model.card
    assert card_of(found) in model.card
    assert len(model.card) < 5000, "MLflow's limit"
    import mlflow.artifacts

    with tracking_client(at_root.root):
        folder = Path(mlflow.artifacts.download_artifacts(run_id=model.run_id))
        assert json.loads((folder / "effects.json").read_text()) == json.loads(json.dumps(found.to_json()))
        assert (folder / "effects.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("trained", ["two"], indirect=True)
def test_the_command_prints_draws_and_says_it_as_json(
    at_root: Trained, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    commands = CommandLine(at_root.root, capfd)
    figure = tmp_path / "effects.png"
    shown = commands("model", "show", at_root.name, "--effects", "--plot", figure)
    assert shown.code == 0
    told = shown.out
    assert "From weights and released counts alone" in told
    for words in ("age (number)", "doctor (hashed)", "rows, noisy", "pairs of columns by the weight"):
        assert words in told, words
    assert "Dr " not in told, "texts behind bins are nobody's to name"
    assert figure.read_bytes().startswith(b"\x89PNG")
    machine = commands.succeeds("model", "show", at_root.name, "--effects")
    assert machine["columns"] == json.loads(json.dumps(said(at_root).to_json()))["columns"]
    commands("model", "show", at_root.name, "--effects", "--plot", figure).refused(2, "effects.png exists")
    commands("model", "show", at_root.name, "--plot", tmp_path / "other.png").refused(2, "add --effects")


@pytest.mark.parametrize("trained", ["two"], indirect=True)
def test_a_linear_table_has_effects_over_its_declared_ranges(at_root: Trained) -> None:
    """Columns that were not counted: the middle of the ranges is the reference, and that is said."""
    from dpalgos.models import LinearModel
    from tasks.tracking.sklearn_export import to_sklearn

    encoder = at_root.pipeline[0]
    width = encoder.declared.dimension
    weights = np.random.default_rng(1).normal(size=(1, width))
    pipeline = to_sklearn(
        normalisation="unit-norm",
        maps=[],
        model=LinearModel(weights=weights),
        classes=("well", "ill"),
        dimension=width,
        encoder=encoder,
    )
    found = effects_of(pipeline, [])
    assert not found.counted
    assert "middle of their declared ranges" in found.note
    age, ward = column_of(found, "age"), column_of(found, "ward")
    assert (age.reference, ward.reference) == ("59", "north")
    assert [part.of for part in ward.parts] == ["north", "south", "east", "west"]
    assert all(part.rows is None for column in found.columns for part in column.parts)
    assert found.pairs == ()
    # A typed row in the middle of all ranges, but for a ward.
    row = {
        "age": 59,
        "income": float(np.expm1(np.log1p(1e6) / 2)),
        "dose": "middle",
        "admitted": "2022-07-02",
        "ward": "east",
        "doctor": "Dr 1",
        "smoker": "no",
        "pressure": 150,
    }
    features = encoder.declared.missing_row()
    encoded = encoder.transform(pd.DataFrame([row]))[0]
    names = list(encoder.declared.feature_names)
    declared = {names[place.at]: place for place in encoder.declared.places}
    for name in names:
        if name.startswith("doctor#") or name == "smoker":
            encoded[names.index(name)] = declared[name].high if name == "doctor#0" else 0.0
    # No day lies in the middle of an even number of them.
    encoded[names.index("admitted days")] = features[names.index("admitted days")]
    expected = pipeline[1:].decision_function(encoded[None])[0]
    assert ward.parts[2].scores[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("trained", ["real"], indirect=True)
def test_what_takes_no_declared_columns_has_none(at_root: Trained) -> None:
    with pytest.raises(InputError, match="model"):
        effects_of(at_root.pipeline[1:], [])


def test_estimators_say_it_too() -> None:
    random = np.random.default_rng(0)
    rows = random.uniform(-1, 1, size=(800, 3))
    rows[:, 2] = 1.0
    labels = np.where(rows[:, 0] ** 2 > 0.3, "far", "near")
    model = PrivateClassifier(epsilon=20.0, delta=1e-6, bounds=([-1, -1, 1], [1, 1, 1]), public=True, random_state=0)
    found = model.fit(rows, labels).effects()
    assert set(found["column"]) == {"x0", "x1"}, "a constant is no column"
    assert found["column"].iloc[0] == "x0"
    scores = found[found["column"] == "x0"]["score near"].to_numpy()
    assert scores[28:36].min() > max(scores[0], scores[-1])
    assert found.attrs["reference"].keys() == {"x0", "x1"}
    number = PrivateRegressor(epsilon=20.0, delta=1e-6, bounds=(-1, 1), public=True, random_state=0)
    found = number.fit(rows[:, :2], rows[:, 0]).effects()
    assert list(found.columns[-1:]) == ["prediction"]
    frame = pd.DataFrame(rows[:, :2], columns=["height", "weight"])
    assert set(model.set_params(bounds=(-1, 1)).fit(frame, labels).effects()["column"]) == {"height", "weight"}


@pytest.mark.parametrize("trained", ["real"], indirect=True)
def test_lineage_names_the_releases_that_the_page_is_made_of(at_root: Trained) -> None:
    model = find_model(at_root.root, at_root.name)
    path = read_lineage(at_root.root, model).path
    assert module.counts_behind(path) is not None
    assert effects_of(load_model(at_root.root, model), path) == said(at_root)
