"""`unitball synthesise`: three stages charged as one, training rows alone, declared values, the same rows again."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from dpalgos.parameters import ParameterError
from dpalgos.synthesis.drawing import MOST_ROWS, Drawing
from flows import column_statistics as chained
from flows.federated_training import begin
from storage.errors import InputError, OverspendError, RefusedError
from storage.layout import Layout
from storage.recognition import LINEAGE
from storage.refs import DatasetRef, OnViolation, Visibility
from storage.schema import parse_schema
from tasks.accounts.ledger import open_ledger
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.datasets.scales import Scale
from tasks.datasets.synthetic_cells import _numbers, require_drawable
from tasks.planning.column_statistics import SynthesisPlan, SynthesisRequest
from tasks.preparation.partitions import shards_of
from tasks.release import drawn_rows
from tasks.release.column_counts import plan_counts
from tasks.release.drawn_rows import SyntheticRows, cells_of, redrawn
from tasks.release.single import require_affordable
from tasks.release.storing import read_release
from tasks.release.synthesis import plan_synthesis
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_releases

KNOWN_NUMBERS = [540520429, 3221153018, 8084869726]
ROWS, SPIKE = 1500, 71.123456789
SCHEMA = """\
format_version: 1
missing: {{marker: "", rows: indicator}}
columns:
  - {{name: who, type: {who}}}
  - {{name: age, type: numeric, range: [18, 98], whole: true}}
  - {{name: weight, type: numeric, range: [40, 140]}}
  - {{name: stage, type: numeric, ordered: [none, mild, severe]}}
  - {{name: smoker, type: boolean}}
  - {{name: ward, type: category, missing: {ward}, values: {{"1": north, "2": south, "7": attic}}}}
  - {{name: day, type: date, range: [2024-01-01, 2024-12-31], parts: [days, weekday], format: "%d.%m.%Y"}}
  - {{name: outcome, type: label, {label}}}
"""


def brought_in(
    folder: Path,
    *,
    who: str = "ignore",
    label: str = "classes: [well, ill]",
    cap: float = 20.0,
    ward: str = "indicator",
    clipped: int = 0,
) -> DatasetRef:
    """Return a private table: a spike that fills most of a column, missing cells, a declared value that no row has."""
    random = np.random.default_rng(5)
    age = random.integers(18, 98, ROWS)
    ill = age + random.normal(0, 15, ROWS) > 60
    days = [date.fromordinal(date(2024, 1, 1).toordinal() + int(day)) for day in random.integers(0, 366, ROWS)]
    frame = pd.DataFrame(
        {
            "who": [f"p{row // 2}" for row in range(ROWS)],
            "age": age,
            "weight": np.where(random.random(ROWS) < 0.2, "", str(SPIKE)),
            "stage": np.array(["none", "mild", "severe"])[np.minimum((age - 18) // 27, 2)],
            "smoker": random.choice(["yes", "no"], ROWS),
            "ward": np.where(np.arange(ROWS) < clipped, "9", random.choice(["1", "2"], ROWS)),
            "day": [day.strftime("%d.%m.%Y") for day in days],
            "outcome": np.where(ill, "ill", "well") if "classes" in label else random.uniform(0, 10, ROWS),
        }
    )
    frame.to_csv(folder / "ward.csv", index=False)
    (folder / "ward.yaml").write_text(SCHEMA.format(who=who, label=label, ward=ward))
    return ingest(
        IngestRequest(
            name="ward",
            format="csv",
            path=folder / "ward.csv",
            schema_path=folder / "ward.yaml",
            epsilon_cap=cap,
            delta_cap=1e-5,
            on_violation=OnViolation.REFUSE if ward == "indicator" else OnViolation.CLIP,
        )
    )


@pytest.fixture(autouse=True)
def _not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chained, "record_synthesis", lambda plan, found: found)


def made(**asked: Any) -> SyntheticRows:
    request = SynthesisRequest(dataset="ward", **{"epsilon": 4.0, **asked})
    return chained.SYNTHESIS.chain_inline(plan_synthesis(request), request)


def test_stages_are_charged_once_together_and_drawing_costs_nothing(root: Path, tmp_path: Path) -> None:
    brought_in(tmp_path)
    found = made(output=tmp_path / "rows.parquet")
    charges = list(open_ledger().charges("ward"))
    assert [one.key for one in charges] == list(found.rests_on)
    assert len({one.plan.releases for one in charges}) == 1
    assert found.epsilon == pytest.approx(4.0, rel=1e-4)
    assert any(parent is not None for parent in found.tree.values())
    derived = find_dataset("ward-synthetic")
    assert (derived.visibility, derived.private, derived.synthesis) == (Visibility.DERIVED, False, found.synthesis)
    lineage = json.loads(pq.read_schema(tmp_path / "rows.parquet").metadata[LINEAGE.encode()])
    assert (lineage["synthetic"], lineage["rests_on"]) == (True, list(found.rests_on))
    more = made(rows=70, seed=9, name="more")
    assert (more.synthesis, more.rows) == (found.synthesis, 70)
    assert (found.output, more.output) == (str(tmp_path / "rows.parquet"), None)
    assert len(list(open_ledger().charges("ward"))) == len(charges)
    with pytest.raises(InputError, match=r"rows\.parquet"):
        made(output=tmp_path / "rows.parquet")


def test_every_stage_counts_the_training_rows_alone(root: Path, tmp_path: Path) -> None:
    """The mutant is a stage of another partition, or of none: held-out rows would be counted."""
    dataset = brought_in(tmp_path)
    plan = plan_synthesis(SynthesisRequest(dataset="ward", epsilon=4.0, test_fraction=0.25))
    shards = shards_of(plan.partition)
    assert shards.held_out is not None
    assert sum(shard.rows for shard in shards.training) + shards.held_out.rows == dataset.rows
    for one in plan.releases:
        assert one.partition == plan.partition.name
        assert one.sizes == tuple(shard.rows for shard in shards.training)
    assert len(plan.releases) == 3
    everything = plan_synthesis(SynthesisRequest(dataset="ward", epsilon=4.0, test_fraction=0.0))
    assert everything.tables.setting.rows == dataset.rows
    assert {one.key for one in everything.releases}.isdisjoint(one.key for one in plan.releases)


def test_released_tables_sum_to_the_training_rows(root: Path, tmp_path: Path) -> None:
    """The mutant is a door that also reads the held-out rows: the tables of pairs and columns would sum to all rows."""
    brought_in(tmp_path, cap=1e4)
    made(epsilon=900.0, test_fraction=0.25)
    plan = plan_synthesis(SynthesisRequest(dataset="ward", epsilon=900.0, test_fraction=0.25))
    rows = sum(shard.rows for shard in shards_of(plan.partition).training)
    assert plan.pairs is not None
    assert rows < ROWS
    for one in (plan.pairs, plan.tables):
        tables = len(cast("list[object]", one.algorithm.parameters["tables"]))
        counted = open_releases().read(one.key)[1]["values"].sum()
        assert counted == pytest.approx(tables * rows, rel=0.02), one.label


def test_cells_are_declared_values_and_points_of_the_public_grid(root: Path, tmp_path: Path) -> None:
    """No value is read from a row: not the spike of most rows, no undeclared value; a declared one may be drawn."""
    brought_in(tmp_path)
    made(rows=4000)
    frame = pd.DataFrame(cells_of("ward-synthetic"))
    assert set(frame["ward"].dropna()) <= {"1", "2", "7"}
    assert set(frame["stage"].dropna()) <= {"none", "mild", "severe"}
    assert set(frame["smoker"].dropna()) <= {"true", "false"}
    assert set(frame["outcome"]) == {"well", "ill"}
    ages = frame["age"].dropna()
    assert ((ages == ages.round()) & (ages >= 18) & (ages <= 98)).all()
    days = pd.to_datetime(frame["day"].dropna(), format="%d.%m.%Y")
    assert days.between("2024-01-01", "2024-12-31").all()
    weights = frame["weight"].dropna()
    assert SPIKE not in set(weights)
    assert ((weights - SPIKE).abs() < 2.0).mean() > 0.7, "they are near it as often as released"
    assert 0.15 < frame["weight"].isna().mean() < 0.25
    assert frame.loc[frame["age"] > 75, "stage"].eq("severe").mean() > 0.8


def test_a_cell_whose_row_would_be_refused_is_not_drawn_as_missing(root: Path, tmp_path: Path) -> None:
    """Values that are not declared are clipped to none of them, and so drawn; a schema of such rows refuses none."""
    brought_in(tmp_path, ward="refuse", clipped=200)
    found = made(rows=900, output=tmp_path / "rows.csv")
    frame = pd.DataFrame(cells_of("ward-synthetic"))
    assert (found.rows, set(frame["ward"])) == (900, {"1", "2", "7"})
    assert frame["weight"].isna().any(), "its rule keeps rows with missing cells"


@pytest.mark.parametrize("step", ["pairs", "tables", "synthesis"])
def test_what_is_stopped_between_stages_is_charged_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    brought_in(tmp_path)
    request = SynthesisRequest(dataset="ward", epsilon=4.0)
    plan = plan_synthesis(request)
    stopped = getattr(plan, step).key

    def stop(node: Any, inputs: list[Any]) -> Any:
        if node.key == stopped:
            raise KeyboardInterrupt
        return begin(node, inputs)

    monkeypatch.setattr(chained, "begin", stop)
    with pytest.raises(KeyboardInterrupt):
        chained.SYNTHESIS.chain_inline(plan, request)
    first, store = plan.releases[0].key, open_releases()
    before, paid = store.read(first)[1], list(open_ledger().charges("ward"))
    assert len(paid) == 3
    monkeypatch.setattr(chained, "begin", begin)
    found = chained.SYNTHESIS.chain_inline(plan_synthesis(request), request)
    assert list(open_ledger().charges("ward")) == paid
    assert found.rests_on[0] == first
    np.testing.assert_array_equal(store.read(first)[1]["values"], before["values"])


def test_rows_are_drawn_again_and_what_does_not_follow_is_refused(root: Path, tmp_path: Path) -> None:
    brought_in(tmp_path)
    found = made(rows=300)
    assert "300 rows, drawn again with seed 0: equal" in redrawn("ward-synthetic")
    with pytest.raises(InputError, match="ward"):
        redrawn("ward")
    drawn = drawn_rows.drawn_by("ward-synthetic")
    for changed, named in (({"seed": 1}, "seed 1"), ({"rests_on": ["f" * 64]}, "f" * 12)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drawn_rows, "drawn_by", lambda name, changed=changed: {**drawn, **changed})
            with pytest.raises(RefusedError, match=named):
                redrawn("ward-synthetic")
    # A synthesis of other numbers than its releases give, as an exact tree would be.
    with pytest.MonkeyPatch.context() as patch:
        true = read_release
        patch.setattr(drawn_rows, "read_release", lambda reference: _moved(true(reference)))
        with pytest.raises(RefusedError, match=r"does not follow"):
            redrawn("ward-synthetic")
    assert found.rows == 300
    # Rows drawn from counts of drawn rows rest on both syntheses.
    request = SynthesisRequest(dataset="ward-synthetic", epsilon=2.0, rows=50)
    again = chained.SYNTHESIS.chain_inline(plan_synthesis(request), request)
    assert set(again.rests_on) > set(found.rests_on)
    assert again.epsilon > found.epsilon
    assert again.account == found.account
    assert "equal" in redrawn("ward-synthetic-synthetic")[-1]


def _moved(artefact: Any) -> Any:
    """Return counts that are one more than those that are stored."""
    return type(artefact)(values=artefact.values + 1.0) if artefact.kind == "statistic" else artefact


def test_histograms_that_were_released_before_are_reused_and_compose(root: Path, tmp_path: Path) -> None:
    dataset = brought_in(tmp_path)
    plan_counts(dataset, 3.0).make()
    found = made(epsilon=4.0, test_fraction=0.2)
    plan = plan_synthesis(SynthesisRequest(dataset="ward", epsilon=4.0, test_fraction=0.2))
    assert len(plan.before) == 1
    assert found.rests_on[0] == plan.before[0]
    assert len(list(open_ledger().charges("ward"))) == 3
    assert found.epsilon > 4.5, "of all that the rows rest on"
    assert found.held_out_counted
    assert "equal" in redrawn("ward-synthetic")[-1]
    weak = plan_synthesis(SynthesisRequest(dataset="ward", epsilon=15.0))
    assert not weak.before, "histograms of little budget are no use at a large one"


def test_histograms_that_come_later_neither_change_a_synthesis_nor_charge_it_again(root: Path, tmp_path: Path) -> None:
    """Whether it has paid for its own histograms, or took those that were there; another one takes the newest."""
    dataset = brought_in(tmp_path, cap=40.0)
    own = made(epsilon=4.0)
    plan_counts(dataset, 3.0).make()
    taken = made(epsilon=3.0, name="over-described")
    assert len(plan_synthesis(SynthesisRequest(dataset="ward", epsilon=3.0)).before) == 1
    plan_counts(dataset, 3.5).make()
    charges = list(open_ledger().charges("ward"))
    for found, epsilon in ((own, 4.0), (taken, 3.0)):
        more = made(epsilon=epsilon, rows=50, seed=3, name=f"more-{epsilon:g}")
        assert (more.synthesis, more.rests_on) == (found.synthesis, found.rests_on)
    assert list(open_ledger().charges("ward")) == charges
    assert len(plan_synthesis(SynthesisRequest(dataset="ward", epsilon=2.0)).before) == 2


def test_people_and_numeric_labels(root: Path, tmp_path: Path) -> None:
    """A record is a person; drawn rows are nobody's, one record each. A numeric label is drawn in bins."""
    brought_in(tmp_path, who="person, rows_per_person: 2", label="range: [0, 10]")
    found = made(rows=200)
    assert found.unit != "row"
    cells = cells_of("ward-synthetic")
    assert len(set(cells["who"])) == 200
    assert not find_dataset("ward-synthetic").person
    outcomes = np.asarray(cells["outcome"], dtype=float)
    assert 0.0 <= outcomes.min() < outcomes.max() <= 10.0
    assert "equal" in redrawn("ward-synthetic")[-1]


def test_columns_whose_cells_do_not_follow_are_named_with_a_way_out() -> None:
    columns = [
        {"name": "drug", "type": "category", "hash": 16},
        {"name": "day", "type": "date", "range": ["2020-01-01", "2021-12-31"], "parts": ["month", "year"]},
        {"name": "in", "type": "ignore"},
        {"name": "out", "type": "ignore"},
        {"name": "stay", "type": "days", "between": ["in", "out"], "range": [0, 90]},
        {"name": "outcome", "type": "label", "classes": ["well", "ill"]},
    ]
    with pytest.raises(InputError, match=r"drug .*values.*; .*day .*days.*; .*stay .*in and out.*ignore"):
        require_drawable(parse_schema({"columns": columns}, "ward.yaml"))


def test_whole_numbers_are_drawn_all_over_their_range() -> None:
    """Bins of more numbers than a random number has values: every part of a bin is reached, and no number beyond it."""
    drawing, places = Drawing(0, 4000), np.arange(4000) % 32
    for high in (1e3, 1e11, 1e12, 1e15, 9e18):
        scale = Scale("x", "number", numbers=partial(np.multiply, high), whole=True)
        within = _numbers(scale, drawing, "0", places, 32) / high * 32 - places
        assert -0.01 <= within.min() < within.max() <= 1.01, high
        assert within.mean() == pytest.approx(0.5, abs=0.03), high
    known = _numbers(replace(scale, numbers=partial(np.multiply, 1e11)), drawing, "0", places, 32)
    assert known[:3].tolist() == KNOWN_NUMBERS, "as before bins of more numbers were drawn"


def test_whole_numbers_beyond_2_to_the_63_are_refused() -> None:
    def schema(low: float, high: float) -> Any:
        outcome = {"name": "outcome", "type": "label", "classes": ["well", "ill"]}
        number = {"name": "serial", "type": "numeric", "range": [low, high], "whole": True}
        return parse_schema({"columns": [number, outcome]}, "ward.yaml")

    require_drawable(schema(-9e17, 8e18))
    for low, high in ((0, 1e19), (-1e19, 0), (-5e18, 5e18)):
        with pytest.raises(InputError, match="column serial"):
            require_drawable(schema(low, high))


def test_rows_and_names_that_cannot_be_registered_are_refused_before_anything_is_charged(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = brought_in(tmp_path)

    def refused(error: type[Exception], match: str, **asked: Any) -> None:
        with pytest.raises(error, match=match):
            plan_synthesis(SynthesisRequest(dataset="ward", epsilon=1.0, **asked))

    refused(ParameterError, "16777217 rows", rows=MOST_ROWS + 1)
    refused(InputError, "'a/b' cannot be used as a name", name="a/b")
    refused(InputError, "bundled", name="iris")
    refused(RefusedError, "'ward' is registered as private", name="ward")
    frame = pd.read_csv(tmp_path / "ward.csv", dtype=str, keep_default_na=False)
    frame.iloc[::-1].to_csv(tmp_path / "other.csv", index=False)
    files = {"format": "csv", "path": tmp_path / "other.csv", "schema_path": tmp_path / "ward.yaml"}
    ingest(
        IngestRequest(name="other", account="payer", disjoint_people="others", epsilon_cap=1.0, delta_cap=1e-5, **files)
    )
    refused(RefusedError, "'payer' is private", name="payer")
    monkeypatch.setattr("dpalgos.synthesis.drawing.MOST_ROWS", dataset.rows // 2)
    refused(ParameterError, "rows are requested")
    plan_synthesis(SynthesisRequest(dataset="ward", epsilon=1.0, rows=20))
    assert not list(open_ledger().charges(dataset.account))


def test_a_pair_is_named_by_columns_with_commas(root: Path, tmp_path: Path) -> None:
    brought_in(tmp_path)
    for name in ("ward.csv", "ward.yaml"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(
            text.replace("name: weight", 'name: "weight, kg"').replace(",weight,", ',"weight, kg",')
        )
    request = IngestRequest(name="ward", format="csv", path=tmp_path / "ward.csv", schema_path=tmp_path / "ward.yaml")
    ingest(request)
    named = plan_synthesis(SynthesisRequest(dataset="ward", epsilon=4.0, pairs=("weight, kg,age",))).pairs
    assert named is not None
    assert [table[:2] for table in cast("list[list[int]]", named.algorithm.parameters["tables"])] == [[0, 1]]
    with pytest.raises(InputError, match="a pair is 'age'"):
        plan_synthesis(SynthesisRequest(dataset="ward", epsilon=1.0, pairs=("age",)))


def test_what_cannot_be_drawn_or_paid_is_refused_before_anything_is_charged(root: Path, tmp_path: Path) -> None:
    dataset = brought_in(tmp_path, cap=2.0)

    def asked(epsilon: float) -> SynthesisPlan:
        return plan_synthesis(SynthesisRequest(dataset="ward", epsilon=epsilon))

    with pytest.raises(OverspendError, match="epsilon 2") as refusal:
        require_affordable(asked(4.0), asked)
    assert "one more release of histograms" in str(refusal.value)
    named = plan_synthesis(SynthesisRequest(dataset="ward", epsilon=4.0, pairs=("weight, age",))).pairs
    assert named is not None
    assert [table[:2] for table in cast("list[list[int]]", named.algorithm.parameters["tables"])] == [[0, 1]]
    with pytest.raises(InputError, match="'height'"):
        plan_synthesis(SynthesisRequest(dataset="ward", epsilon=1.0, pairs=("age,height",)))
    with pytest.raises(InputError, match="derived"):
        ingest(IngestRequest(name="other", path=tmp_path / "ward.csv", format="csv", visibility=Visibility.DERIVED))
    assert not list(open_ledger().charges(dataset.account))
    assert Layout(root).root == current_layout().root
