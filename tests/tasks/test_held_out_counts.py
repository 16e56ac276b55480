"""A run on private rows releases what intervals and sets need, once, and its logged model holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpalgos.conformal import HeldOutErrors, HeldOutScores, UnreachableError
from dpalgos.models import Statistic
from storage.refs import ReleaseRef
from tasks import records
from tasks.release.held_out_counts import held_out_counts
from tasks.release.storing import read_release
from tasks.runtime.steps import inline
from tasks.tracking.coverings import Covering, counts_in
from tasks.tracking.reporting import run_report
from tasks.tracking.row_scores import scores_of
from tasks.tracking.scoring import ScoringRequest
from tests.support.tables import ROWS, table_of, train_on_table

pytestmark = pytest.mark.usefixtures("root")


@pytest.mark.parametrize(
    ("label", "positive", "by"),
    [("two", None, ""), ("two", "well", "schema"), ("two", "well", "option"), ("three", None, ""), ("real", None, "")],
)
def test_a_logged_model_answers_by_what_its_run_released(
    label: str, positive: str | None, by: str, tmp_path: Path
) -> None:
    classes = label != "real"
    config, run = train_on_table(
        tmp_path,
        label,
        declared=positive if by == "schema" else None,
        evaluation=True,
        test_fraction=0.4,
        roc=classes,
        positive=positive if by == "option" else None,
    )
    model = run_report(config, run).model
    assert model is not None
    if label == "two":
        assert model.pipeline.classes_[-1] == run.result.positive == (positive or "ill")
    covering = Covering(sets=0.7) if classes else Covering(interval=0.7)
    found = counts_in(model.pipeline, covering)
    assert isinstance(found, HeldOutScores if classes else HeldOutErrors)
    (measuring, *_) = [one for one in run.plan.evaluations if one.reads_rows]
    assert found.held_out.count == measuring.setting.rows
    assert not found.held_out.people
    assert not found.reread
    rows = table_of(label, 400, seed=9)
    asked = scores_of(model.pipeline, rows.drop(columns="outcome"), covering=covering)
    if classes:
        own = [name in held for name, held in zip(rows["outcome"], asked["prediction_set"], strict=True)]
    else:
        numbers = rows["outcome"].to_numpy(dtype=float)
        own = list((asked["prediction_low"] <= numbers) & (numbers <= asked["prediction_high"]))
    # Of 400 rows, six deviations below what is asked for.
    assert np.mean(own) >= 0.7 - 6.0 * (0.21 / 400) ** 0.5


@pytest.mark.parametrize("label", ["two", "real"])
def test_scheduled_scoring_writes_sets_and_intervals_of_people(
    label: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the file of visits to the scored file: coverage is a person's, by the number of persons held out."""
    told: list[str] = []
    monkeypatch.setattr(records, "create_markdown_artifact", lambda text, **_: told.append(text))
    classes = label == "two"
    given: dict[str, Any] = {"evaluation": True, "test_fraction": 0.4, "roc": classes, "epsilon": 40.0}
    config, run = train_on_table(tmp_path, label, visits=3, **given)
    rows = table_of(label, 600, seed=9)
    rows.to_csv(tmp_path / "new.csv", index=False)
    request = ScoringRequest(model="visits.unitball", input=str(tmp_path / "new.csv"), coverage=0.7)
    with inline():
        records.record(config, *run)
        scored = pq.read_table(root / "private" / "predictions" / records.score(request)).to_pandas()
        plain = records.score(request.model_copy(update={"coverage": None}))
        with pytest.raises(UnreachableError, match=r"0\.999"):
            records.score(request.model_copy(update={"coverage": 0.999}))
    if classes:
        own = [name in held for name, held in zip(rows["outcome"], scored["prediction_set"], strict=True)]
    else:
        own = list(rows["outcome"].astype(float).between(scored["prediction_low"], scored["prediction_high"]))
    assert np.mean(own) >= 0.7 - 6.0 * (0.21 / 600) ** 0.5
    added = {"prediction_set"} if classes else {"prediction_low", "prediction_high"}
    assert set(scored) - set(pq.read_schema(root / "private" / "predictions" / plain).names) == added
    (measuring, *_) = [one for one in run.plan.evaluations if one.reads_rows]
    assert f"{measuring.setting.rows:,} held-out people" in told[0]
    assert measuring.setting.rows < 0.45 * len(table_of(label, ROWS[label])) / 3
    assert len(told[0]) > len(told[1])


def test_counts_that_were_released_before_have_read_the_held_out_rows(tmp_path: Path) -> None:
    _, run = train_on_table(tmp_path, "two", evaluation=True, test_fraction=0.4, roc=True)
    path = [reference.key for reference in next(iter(run.models.values()))]
    statistics = {
        evaluation.key: read_release(ReleaseRef(key=evaluation.key, kind=Statistic.kind, party=evaluation.owner))
        for evaluation in run.plan.evaluations
        if evaluation.reads_rows
    }
    rests = run.plan.model_copy(update={"before": tuple(one.key for one in run.plan.counts)})
    for plan, reread in ((run.plan, False), (rests, True)):
        found = held_out_counts(plan, path, statistics)
        assert found is not None
        assert found.reread is reread
        assert found.paid is not None
        assert found.paid.delta == run.plan.identity.target[1]
    assert held_out_counts(run.plan, ["another"], statistics) is None
