"""Counts of a table's columns within a run: whose rows they read, and that each release is charged once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.algorithms import TrustedSummation
from dpalgos.columns import bins_of, numbers_of
from dpalgos.evaluators.column_histograms import ColumnHistograms
from dpalgos.histograms import ColumnCounts
from flows.federated_training import chain_inline
from storage.refs import ReleaseRef, Visibility
from tasks.accounts.ledger import open_ledger, verify_ledger
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import Draft, RunPlan
from tasks.preparation.prepare import prepare, whole
from tasks.release import checkpoints
from tasks.release.seen_rows import rows_of
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout
from tasks.tracking.reporting import run_report
from tasks.tracking.results import Chained
from tests.support.forks import die, killed

SCHEMA = """
missing: {{marker: "", rows: indicator}}
columns:
  - {{name: age, type: numeric, range: [0, 100]}}
  - {{name: city, type: category, values: [a, b, c]}}
  - {{name: y, type: label, {label}}}
"""
LABELS = {
    "classes": "classes: ['no', 'yes']",
    "three": "classes: ['no', 'yes', 'perhaps']",
    "real": "range: [-100, 100]",
}
ROWS = 800


def bring_in(
    folder: Path, label: str = "classes", visibility: Visibility = Visibility.PRIVATE, parties: int = 0
) -> None:
    random = np.random.default_rng(3)
    lines = ["age,city,y"]
    for number in range(ROWS):
        age = random.uniform(0, 100)
        said = f"{age / 50 - 1:.3f}" if label == "real" else ("yes" if abs(age - 50) < 25 else "no")
        # Each row has a cell of its own, so that it is found where it is counted.
        lines.append(f"{'' if number % 10 == 0 else f'{age:.4f}'},{'abc'[number % 3]},{said}")
    files: dict[str, Any] = {"path": folder / "rows.csv"}
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    if parties:
        own = {f"p{number}": folder / f"p{number}.csv" for number in range(parties)}
        for number, path in enumerate(own.values()):
            path.write_text("\n".join([lines[0], *lines[1 + number :: parties]]) + "\n")
        files = {"parties": own}
    (folder / "schema.yaml").write_text(SCHEMA.format(label=LABELS[label]))
    ingest(
        IngestRequest(
            name="clinic",
            format="csv",
            **files,
            schema_path=folder / "schema.yaml",
            visibility=visibility,
            epsilon_cap=100.0,
            delta_cap=1e-4,
            allow_idealised=True,
        )
    )


def asked(**config: Any) -> TrainingConfig:
    given = {"dataset": "clinic", "epsilon": 4.0, "parties": 2, "parameters": {"iterations": 2}, **config}
    return TrainingConfig.model_validate(given)


def counted(chained: Chained) -> tuple[ColumnCounts, RunPlan]:
    plan = chained.plan
    (counts,) = plan.counts
    values = read_release(ReleaseRef(key=counts.key, kind="", party="")).values
    algorithm = counts.build()
    assert isinstance(algorithm, ColumnHistograms)
    return ColumnCounts.of_release(values, algorithm, counts.setting), plan


def require_training_rows_alone() -> None:
    """Run without noise, and compare what is counted with the cells of the rows that train, one by one."""
    chained = chain_inline(asked())
    counts, plan = counted(chained)
    shards = whole(prepare(asked())).shards
    assert shards.held_out is not None
    blocks = [
        np.asarray(features, dtype=np.float64)
        for shard in shards.training
        for features, *_ in rows_of(shard, (), shard.dataset.dimension).blocks()
    ]
    features = np.concatenate(blocks)
    assert len(features) == sum(plan.rows().values()) == ROWS - shards.held_out.rows
    cells, missing = numbers_of(features, counts.layout.numbers)
    expected = np.bincount(bins_of(cells, counts.bins)[~missing[:, 0], 0], minlength=counts.bins)
    assert np.allclose(counts.counts[0], expected, atol=1e-6)
    assert counts.missing[0] == pytest.approx(missing.sum())
    assert counts.classes.sum() == pytest.approx(len(features))


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrustedSummation, "release", lambda _self, _step, one, _law: np.sum(one, axis=0))


def test_rows_that_are_held_out_are_not_counted(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    bring_in(tmp_path)
    require_training_rows_alone()


def test_counted_rows_that_are_held_out_are_noticed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant."""
    honest = Draft._releases

    def of_everybody(self: Draft, part: str, *rest: Any) -> Any:
        if part != "counts":
            return honest(self, part, *rest)
        return honest(dataclasses.replace(self, shards=(*self.shards, *self.held_out)), part, *rest)

    without_noise(monkeypatch)
    monkeypatch.setattr(Draft, "_releases", of_everybody)
    bring_in(tmp_path)
    with pytest.raises(AssertionError):
        require_training_rows_alone()


def require_charged_once(configs: Sequence[TrainingConfig]) -> None:
    """Run several requests that train the same, and compare what is charged with what was planned."""
    plans = [chain_inline(config).plan for config in configs]
    trained = {tuple(plan.training) for plan in plans}
    assert len(trained) == 1
    of_rows = {one.key for plan in plans for one in plan.releases if one.reads_rows}
    charges = open_ledger().charges("clinic")
    assert sorted(one.key for one in charges) == sorted(of_rows)
    assert not any(one.plan.recharge for one in charges)
    # What trains is one plan, and what measures is charged with it, or by itself where it is asked for later.
    assert len({one.plan.sequence for one in charges}) == len({plan.identity.evaluation[1] for plan in plans})
    assert verify_ledger() == []


REQUESTS: tuple[dict[str, Any], ...] = ({}, {}, {"roc": True}, {"roc": True, "aim": "balanced"})


def test_counts_are_charged_once_whatever_is_measured(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path)
    require_charged_once([asked(**one) for one in REQUESTS])


def by_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two charges for one release: counts whose identity depends on what is measured afterwards."""
    honest = Draft.column_map

    def other(self: Draft, budgets: Any) -> Any:
        spec = self.resolved.parts["counts"].with_parameters(mean_weight=1 / 64 if self.config.roc else 0.0)
        parts = {**self.resolved.parts, "counts": spec}
        return honest(dataclasses.replace(self, resolved=dataclasses.replace(self.resolved, parts=parts)), budgets)

    monkeypatch.setattr(Draft, "column_map", other)


def left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for two: a plan that charges all but the counts."""
    monkeypatch.setattr(RunPlan, "releases", property(lambda plan: plan.projections + plan.models + plan.evaluations))


@pytest.mark.parametrize("mutant", [by_what_is_measured, left_out])
def test_two_charges_for_one_release_and_one_for_two_are_noticed(
    mutant: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    bring_in(tmp_path)
    with pytest.raises(AssertionError):
        require_charged_once([asked(**one) for one in REQUESTS])


@pytest.mark.parametrize("step", ["stored", pytest.param("charged", marks=pytest.mark.nightly)])
def test_killed_between_counts_and_model_it_goes_on_and_charges_nothing_twice(
    step: str, root: Path, tmp_path: Path
) -> None:
    """SIGKILL as the counts are about to be drawn, and when they are stored and nothing was seen through them yet."""
    bring_in(tmp_path)

    def run() -> None:
        def reached(name: str) -> None:
            if name == step:
                die()

        checkpoints.reached = reached
        chain_inline(asked())

    killed(run)
    stored = sorted(path.name for path in current_layout().releases.iterdir())
    assert len(stored) == (step == "stored")
    before = {key: (current_layout().release(key) / "arrays.npz").read_bytes() for key in stored}
    paid = sorted(one.key for one in open_ledger().charges("clinic"))
    plan = chain_inline(asked()).plan
    assert plan.counts
    assert sorted(one.key for one in open_ledger().charges("clinic")) == paid
    assert {one.key for one in plan.releases} == set(paid)
    assert all((current_layout().release(key) / "arrays.npz").read_bytes() == data for key, data in before.items())
    assert verify_ledger() == []


def test_a_run_whose_errors_cannot_be_measured_is_on_record(root: Path, tmp_path: Path) -> None:
    """Real labels at a small budget: it was charged and released, and then failed."""
    bring_in(tmp_path, "real")
    config = asked(epsilon=0.05)
    chained = chain_inline(config)
    assert chained.result.metrics["mae_low"] == 0.0
    note = run_report(config, chained).note
    assert "cannot be measured at this budget" in note


def test_nights_stay_linear(root: Path, tmp_path: Path) -> None:
    """A horizon's terms fix what its rows are seen through, and nothing is counted for it."""
    bring_in(tmp_path)
    plan = whole(prepare(TrainingConfig(dataset="clinic", epsilon=1.0, horizon=3, evaluation=False))).plan
    assert plan.normalisation == "unit-norm"
    assert plan.column_map is None
    assert plan.counts == ()


LINEAR: list[dict[str, Any]] = [
    {"normalisation": "unit-norm"},
    {"algorithm": "noisy-gd"},
    {"features": "random-fourier", "parameters": {"features.frequencies": 3}},
    {"trainer": "noisy-gd", "trust": "central"},
]


@pytest.mark.parametrize("config", LINEAR)
def test_rows_that_are_seen_through_something_else_are_not_counted(
    config: dict[str, Any], root: Path, tmp_path: Path
) -> None:
    bring_in(tmp_path)
    plan = whole(prepare(asked(**{"parameters": {}, **config}))).plan
    assert plan.column_map is None
    assert plan.counts == ()


def test_candidates_are_trained_through_one_release_of_counts(root: Path, tmp_path: Path) -> None:
    """Under --tune; of two classes the mean is paid for, and no candidate could be."""
    bring_in(tmp_path, "three")
    config = asked(parameters={}, tune={"step_size": (4.0, 16.0)}, trust="central")
    chained = chain_inline(config)
    (counts,) = chained.plan.counts
    (model,) = chained.plan.models
    assert model.algorithm.name == "tuned"
    assert "released once for all candidates" in chained.plan.reasons[-1]
    assert chained.plan.column_map is not None
    assert model.upstream == (chained.plan.column_map.key,)
    assert [one.key for one in open_ledger().charges("clinic")].count(counts.key) == 1
    assert chained.result.epsilon_spent == pytest.approx(4.0, rel=1e-3)
