"""Nights of tables whose columns were described: a map fixed with the first night, paid once, and found wherever."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from dpalgos.accounting.composition import compose
from dpalgos.features.column_functions import ColumnFunctions
from dpalgos.models import LinearModel
from dpalgos.normalisation import UnitNorm
from dpalgos.parameters import ParameterError
from dpalgos.trainers.continual import NightSum
from dpalgos.trainers.discriminant import SufficientStatistics
from flows.federated_training import chain_inline
from storage.datasets import open_dataset
from storage.errors import InputError
from storage.refs import DatasetRef
from tasks.accounts.ledger import check_releases, open_ledger
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.exports.archive import export_run
from tasks.exports.verifying import verify
from tasks.planning.nights import NightPlan
from tasks.preparation.prepare import prepare, whole
from tasks.release import checkpoints
from tasks.release.column_counts import plan_counts
from tasks.release.seen_rows import maps_of, rows_of
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog
from tasks.tracking.results import Chained, append_result
from tests.flows.test_crashes import dies_at
from tests.flows.test_nightly import frozen, released, spent
from tests.support.chains import charges, configured, digests
from tests.support.command_line import CommandLine
from tests.support.forks import killed
from tests.tasks.test_people import MOST, bring_in, visits

NIGHTS, EACH = 3, 1200
SCHEMA = """
missing: {{marker: "", rows: indicator}}
columns:
  - {{name: a, type: numeric, range: [-4, 4]}}
  - {{name: b, type: numeric, range: [-40, 40]}}
  - {{name: c, type: category, values: [x, y, z]}}
  - {{name: y, type: label, {label}}}
"""
LABELS = {"classes": 'classes: ["no", "yes"]', "real": "range: [-30, 30]"}
# Given by nothing but the names of these: a table under the recommended system.
GIVEN: dict[str, Any] = {"horizon": NIGHTS, "epsilon": 4.0, "delta": 1e-6, "trust": "central"}


def lines(nights: int, kind: str = "classes") -> list[str]:
    """Return rows of so many nights, whose label is of the product of two columns, which no line tells.

    Real labels lie near -9 and 9.
    """
    random = np.random.default_rng(48)
    a, b = random.standard_normal((2, NIGHTS * EACH))[:, : nights * EACH]
    c = random.choice(["x", "y", "z"], NIGHTS * EACH)
    product = a * b
    said = (
        np.where(product > 0, "yes", "no") if kind == "classes" else (9 * np.sign(product) + a / 4).round(4).astype(str)
    )
    return [f"{one:.5f},{two:.5f},{three},{y}" for one, two, three, y in zip(a, b, c, said, strict=False)]


def arrive(nights: int, folder: Path, kind: str = "classes") -> DatasetRef:
    """Register the version of a night."""
    path, schema = folder / "clinic.csv", folder / "clinic.yaml"
    path.write_text("\n".join(["a,b,c,y", *lines(nights, kind)]) + "\n")
    schema.write_text(SCHEMA.format(label=LABELS[kind]))
    given: dict[str, Any] = {"epsilon_cap": 300.0, "delta_cap": 1e-5}
    return ingest(IngestRequest(name="clinic", format="csv", path=path, schema_path=schema, **given))


def described(epsilon: float = 1.0, name: str = "clinic") -> str:
    """Release histograms of the newest version, and return their key."""
    return plan_counts(find_dataset(name), epsilon).make().key


def tonight(**config: Any) -> Chained:
    return chain_inline(configured(**{**GIVEN, **config}))


def planned(**config: Any) -> NightPlan:
    return cast(NightPlan, whole(prepare(configured(**{**GIVEN, **config}))).plan)


def score(chained: Chained) -> float:
    """Return the accuracy of the night's model on all rows of the newest version, seen through its path."""
    (path,) = chained.models.values()
    *maps, model = [read_release(reference) for reference in path]
    assert isinstance(model, LinearModel)
    right = []
    for features, labels, _ in open_dataset(current_layout(), find_dataset("clinic")).blocks():
        rows = np.asarray(features, dtype=np.float64)
        rows = rows if chained.plan.column_map is not None else UnitNorm()(rows)
        for one in maps:
            rows = one.apply(rows)
        right.append((model.scores(rows)[:, 0] > 0) == (np.asarray(labels) > 0))
    return float(np.concatenate(right).mean())


# ── a describe, then nights ──────────────────────────────────────────────────────────────────────────────────────────


def test_described_columns_are_learnt_by_night(root: Path, tmp_path: Path) -> None:
    """One charge of the histograms and one of the horizon; killed on the way, and described once more in between."""
    arrive(1, tmp_path)
    counts = described()
    before = charges()
    for step in ("declared", "charged", "drawn", "recorded"):
        killed(partial(dying, step))
        assert {key for key, _ in charges()} >= {key for key, _ in before}
    first = tonight()
    night = first.plan.models[0]
    assert first.plan.column_map is not None
    assert first.plan.column_map.upstream == (counts,)
    assert first.plan.before == (counts,)
    assert first.plan.normalisation == "none"
    assert first.plan.column_map.algorithm.parameters["level"] == "products"
    assert night.upstream == (first.plan.column_map.key,)
    charged, price = charges(), spent()
    assert [one for one in charged if one[1]] == [], "what a kill left undrawn is drawn, and nothing is charged again"
    assert len(charged) == 1 + NIGHTS
    assert len({charge.plan.sequence for charge in open_ledger().charges("clinic")}) == 2
    fixed = open_catalog().streams("clinic")
    for number in (2, 3):
        # What is described now is of other rows, or of the same by less noise, and nobody asks for it here.
        arrive(number, tmp_path)
        later = described(2.0 + number)
        held = {key: kept for key, kept in digests().items() if key != later}
        if number == 2:
            killed(partial(dying, "drawn"))
        chained = tonight()
        assert {key: kept for key, kept in digests().items() if key in held} == held
        assert chained.plan.column_map == first.plan.column_map
        assert chained.plan.counts == first.plan.counts
        assert chained.plan.models[0].upstream == night.upstream
        assert [key for key, _ in charges()].count(counts) == 1
        assert sum("night" in label for label in labels()) == NIGHTS
    assert open_catalog().streams("clinic") == fixed
    assert spent() > price, "the later descriptions are charged"
    assert check_releases() == []
    assert score(chained) > 0.85
    # What is printed is of the horizon and the histograms that its map is made of; not of those that came later.
    losses = (*night.guarantee().losses, *first.plan.counts[0].guarantee().losses)
    assert chained.result.epsilon_spent == pytest.approx(compose(losses).epsilon(1e-6), rel=1e-9)
    assert 4.0 < compose(losses).epsilon(1e-6) < 5.0
    assert set(chained.plan.losses_by_party().values()) == {night.guarantee().losses}
    append_result(configured(**GIVEN), chained.result)
    for_everybody(chained, tmp_path)


def dying(step: str) -> None:
    checkpoints.reached = dies_at(step)
    tonight()


def labels() -> list[str]:
    return [charge.label for charge in open_ledger().charges("clinic")]


def for_everybody(chained: Chained, folder: Path) -> None:
    """Check an archive of the run: it holds, and says what the run says."""
    data, _, _ = export_run(chained.result.run_key[:12])
    (folder / "night.zip").write_bytes(data)
    verified = verify(folder / "night.zip")
    checks = {check.what: (check.holds, check.detail) for check in verified.checks}
    assert all(holds is not False for holds, _ in checks.values()), checks
    assert verified.epsilon == chained.result.epsilon_spent


def test_linear_nights_are_what_they_were(root: Path, tmp_path: Path) -> None:
    """Without histograms, or with such as tell nothing; and what is described after the first night changes nothing."""
    arrive(1, tmp_path)
    plan = planned()
    assert (plan.normalisation, plan.column_map, plan.counts, plan.before) == ("unit-norm", None, (), ())
    assert plan.models[0].upstream == ()
    described(0.002)
    noisy = planned()
    assert (noisy.models[0].key, noisy.model.key) == (plan.models[0].key, plan.model.key)
    assert "too noisy to learn" in " ".join(noisy.reasons)
    first = tonight()
    assert first.plan.models[0].key == plan.models[0].key
    described(4.0)
    assert planned().models[0].key == plan.models[0].key
    arrive(2, tmp_path)
    described(5.0)
    second = tonight()
    assert cast(NightPlan, second.plan).models[0].night_keys == cast(NightPlan, first.plan).models[0].night_keys
    assert second.plan.column_map is None
    assert second.result.epsilon_spent == pytest.approx(4.0, abs=1e-9)
    assert score(second) < 0.65
    # With what was described since, a horizon that begins now learns them.
    assert planned(replicate=1).column_map is not None


def test_an_earlier_version_is_taken_where_it_is_named(root: Path, tmp_path: Path) -> None:
    earlier = arrive(1, tmp_path).version
    counts = described()
    arrive(2, tmp_path)
    assert planned().column_map is None
    named = planned(counts_of=earlier)
    assert named.before == (counts,)
    assert tonight(counts_of=earlier).plan.models[0].key == named.models[0].key
    with pytest.raises(InputError, match="histograms"):
        planned(counts_of="0" * 32)
    with pytest.raises(InputError, match="replace-special"):
        planned(counts_of=earlier, neighbours="replace-special")
    for linear in ({"normalisation": "unit-norm"}, {"trainer": "class-means"}, {"algorithm": "noisy-gd"}):
        with pytest.raises(ParameterError, match="column features"):
            planned(counts_of=earlier, **linear)


def test_several_histograms_are_one_by_their_noise(root: Path, tmp_path: Path) -> None:
    arrive(1, tmp_path)
    keys = (described(0.5), described(0.6))
    chained = tonight()
    assert chained.plan.before == keys
    losses = [one.guarantee().losses for one in (*chained.plan.models, *chained.plan.counts)]
    every = tuple(loss for of_one in losses for loss in of_one)
    assert chained.result.epsilon_spent == pytest.approx(compose(every).epsilon(1e-6), rel=1e-9)
    append_result(configured(**GIVEN), chained.result)
    for_everybody(chained, tmp_path)


def test_real_labels_are_clipped_alike_in_sums_and_models(root: Path, tmp_path: Path) -> None:
    """To the range that the histograms say, a third of the declared one; a file's own description is a curator's."""
    arrive(1, tmp_path, "real")
    # An edge is off by a deviation of a count, 0.0007 of the rows, and a tail that holds so much at 30 is a hundredth
    # of the variance of which it may be seven times as much: a false alarm of 10⁻⁹.
    described(60.0)
    given: dict[str, Any] = {"epsilon": 12.0, "trust": "central"}
    tonight(**given)
    arrive(2, tmp_path, "real")
    chained = tonight(**given)
    plan = cast(NightPlan, chained.plan)
    night, model = plan.models[0].build(), plan.model.build()
    assert isinstance(night, NightSum)
    inner = cast(SufficientStatistics, night.inner)
    assert model.inner == inner  # type: ignore[attr-defined]  # of a running sum
    (path,) = chained.models.values()
    column_map = read_release(path[0])
    assert isinstance(column_map, ColumnFunctions)
    assert list(inner.label_range) == column_map.label_range.tolist()
    low, high = inner.label_range
    assert -14 < low < -6
    assert 6 < high < 14
    # What a party froze is the sum of rows and labels seen so: formed here once more, of the shards.
    for party in plan.models[0].parties:
        sums = frozen(plan.models[0], party, 2)
        shard = next(one for one in prepared_shards(given) if one.party == party)
        rows = rows_of(shard, maps_of(path[:-1]), plan.models[0].setting.dimension)
        state = np.zeros(inner.sum_shape(plan.models[0].setting), dtype=np.int64)
        np.testing.assert_array_equal(inner.contribution(state, rows, plan.models[0].setting), sums)
    assert len(released(plan.models[0])) == 2


def prepared_shards(given: dict[str, Any]) -> Any:
    return whole(prepare(configured(**{**GIVEN, **given}))).shards.training


def test_nights_of_people_see_rows_through_the_map(root: Path, tmp_path: Path) -> None:
    first, second = visits([2] * 400), visits([1, 3] * 100, first=400)
    bring_in(tmp_path / "input", first)
    counts = described(10.0, "visits")
    given: dict[str, Any] = {**GIVEN, "dataset": "visits", "epsilon": 8.0, "delta": 1e-5}
    tonight(**given)
    bring_in(tmp_path / "input", [*first, *second])
    described(12.0, "visits")
    chained = tonight(**given)
    plan = chained.plan
    assert plan.before == (counts,)
    assert plan.column_map is not None
    assert (plan.models[0].setting.rows_per_person, plan.counts[0].setting.rows_per_person) == (MOST, MOST)
    assert plan.models[0].stream.arrived == (100, 100)  # type: ignore[attr-defined]  # of a night
    append_result(configured(**given), chained.result)
    for_everybody(chained, tmp_path)


@pytest.mark.nightly
def test_a_night_by_command_goes_wherever_models_go(tmp_path: Path, unitball: CommandLine) -> None:
    """Described, trained on, priced, predicted with, shown and exported; the second night costs nothing more."""
    path, schema = tmp_path / "clinic.csv", tmp_path / "clinic.yaml"
    schema.write_text(SCHEMA.format(label=LABELS["classes"]))
    files = ("--format", "csv", "--path", path, "--schema", schema)
    terms = ("--epsilon-cap", 9, "--delta-cap", 1e-5)
    asked = ("train", "--dataset", "clinic", "--horizon", NIGHTS, "--epsilon", 4, "--trust", "central", "--parties", 2)
    spent = []
    for number in (1, 2):
        path.write_text("\n".join(["a,b,c,y", *lines(number)]) + "\n")
        unitball.succeeds("ingest", "clinic", *files, *(terms if number == 1 else ()))
        if number == 1:
            unitball.succeeds("describe", "clinic", "--epsilon", 1)
        result = unitball.succeeds(*asked)
        spent.append(unitball.succeeds("budget", "clinic")["epsilon_spent"])
    assert spent[0] == spent[1]
    assert result["proved"]["epsilon"] == pytest.approx(spent[1], abs=0.5)
    assert result["proved"]["epsilon"] > 4.0
    unitball.succeeds("predict", "--model", "clinic.unitball", "--input", path, "--output", tmp_path / "out.parquet")
    found = pd.read_parquet(tmp_path / "out.parquet")
    said = [line.rpartition(",")[2] for line in lines(2)]
    assert float(np.mean(found["prediction"].astype(str) == said)) > 0.8


def test_an_archive_of_a_run_that_reads_histograms_again_holds(root: Path, tmp_path: Path) -> None:
    """Without a horizon as with one: they are of rows that were divided otherwise, and no part of the run's charge."""
    arrive(1, tmp_path)
    counts = described(3.0)
    config = configured(epsilon=2.0, delta=1e-6)
    chained = chain_inline(config)
    assert chained.plan.before == (counts,)
    append_result(config, chained.result)
    for_everybody(chained, tmp_path)
