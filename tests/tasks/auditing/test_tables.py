"""The audit of the recommended system on a table whose columns are counted: sound as it is, mutants are caught."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dpalgos.algorithms import Algorithm
from dpalgos.audit.experiment import AuditOptions, AuditReport, Effort, Verdict, audit_experiments
from dpalgos.audit.ratios import run_watched
from dpalgos.column_maps import LearntColumns
from dpalgos.columns import Column
from dpalgos.evaluators.column_histograms import ColumnHistograms
from dpalgos.guarantees import Neighbours, Setting
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.models import Statistic
from dpalgos.rows import Floats
from tasks.auditing import synthetic_runs, systems
from tasks.auditing.synthetic_runs import SyntheticRun, neighbouring_rows
from tests.support.nights import by_night

ROWS, CERTAIN = 200, 1 - 1e-9
SMALL = {"trainer.iterations": 3, "counts.bins": 32}


def table_run(neighbours: Neighbours = Neighbours.REPLACE_ONE, people: int | None = None) -> SyntheticRun:
    return SyntheticRun.of(
        "unitball",
        epsilon=1.0,
        delta=1e-5,
        rows=ROWS,
        dimension=1,
        neighbours=neighbours,
        parameters=SMALL,
        rows_per_person=people,
        columns=[Column(at=0, low=-1.0, high=1.0)],
    )


def audited(run: SyntheticRun, confidence: float, trials: int, neighbours: Neighbours) -> AuditReport:
    # The worst pair of the counts' own proof: it moves them by all that is paid for.
    experiments = [run.experiment(pair, pair.name, "tables") for pair in neighbouring_rows(run, 1, neighbours)[:1]]
    return audit_experiments(
        experiments,
        run.stated,
        AuditOptions(trials=trials, confidence=confidence, effort=Effort(pilot=8)),
        algorithm="unitball",
        kind="systems",
        neighbours=neighbours,
    )


@pytest.mark.parametrize("neighbours", by_night(list(Neighbours)[:2], {Neighbours.REPLACE_SPECIAL}))
def test_counts_map_and_model_together_show_no_more_than_is_proved(neighbours: Neighbours) -> None:
    run = table_run(neighbours)
    (counts,) = run.plan.counts
    assert counts.parties == ("0", "1")
    pair = neighbouring_rows(run, 1, neighbours)[0]
    assert "column-histograms" in pair.name
    seen = run.outputs(pair, bytes(32), world=True, trial=0)
    for observed in ("statistic 0 values", "column-functions 1 tables", "linear-model 3 weights"):
        assert observed in seen, list(seen)
    report = audited(run, CERTAIN, 40, neighbours)
    assert report.verdict is not Verdict.VIOLATES, report
    assert report.proved_epsilon is not None
    assert report.proved_epsilon <= 1.0 + 1e-9


def test_the_audit_of_the_system_tries_a_table() -> None:
    runs = list(systems._runs_of("unitball", 1.0, 1e-5, Neighbours.REPLACE_ONE))
    assert [bool(run.plan.counts) for _, _, run in runs] == [False, False, False, True]
    assert [run.plan.column_map is not None for _, _, run in runs] == [False, False, False, True]
    assert all(not run.plan.counts for _, _, run in systems._runs_of("noisy-gd", 1.0, 1e-5, Neighbours.REPLACE_ONE))


class _Exactly:
    """A map that is made of counts as they were before the noise."""

    def __init__(self) -> None:
        self.exact: Statistic | None = None

    def watched(self, algorithm: Algorithm, setting: Setting, noise: Any, rows: Any, other: Any, **more: Any) -> Any:
        if isinstance(algorithm, ColumnHistograms):
            total = np.sum([algorithm.contribution(np.zeros(0, dtype=np.int64), one, setting) for one in rows], axis=0)
            self.exact = algorithm.result(total, setting)
        return run_watched(algorithm, setting, noise, rows, other, **more)

    def combine(self, artefacts: Sequence[Statistic], weights: Floats, learnt: LearntColumns) -> Any:
        assert self.exact is not None
        return honest(learnt, [self.exact], weights)


honest = LearntColumns.combine


def test_a_map_of_exact_counts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = _Exactly()
    monkeypatch.setattr(synthetic_runs, "run_watched", mutant.watched)
    monkeypatch.setattr(
        LearntColumns, "combine", lambda self, artefacts, weights: mutant.combine(artefacts, weights, self)
    )
    report = audited(table_run(), 0.99, 60, Neighbours.REPLACE_ONE)
    assert report.verdict is Verdict.VIOLATES, report
    assert "column-functions" in report.event


def test_counts_with_hardly_any_noise_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the noise hides in the whole budget, of which counts have a tenth; the audit of the counts alone sees it."""
    honest_noise = ColumnHistograms.distribution
    monkeypatch.setattr(
        ColumnHistograms,
        "distribution",
        lambda self, setting: RoundedGaussian(honest_noise(self, setting).sigma / 200.0),
    )
    # 30 runs are counted: a bound of up to ln(0.838 / 0.162) = 1.64 at 99 %.
    report = audited(table_run(), 0.99, 60, Neighbours.REPLACE_ONE)
    assert report.verdict is Verdict.VIOLATES, report
