"""Runs that are measured by group and by scores: what is released and charged, what groups are said to have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dpalgos import group_curves, score_curves
from dpalgos.algorithms import OneSum
from dpalgos.models import Statistic
from flows.federated_training import chain_inline
from tasks.exports.archive import export_run
from tasks.exports.verifying import verify
from tasks.preparation.prepare import prepare as planned
from tasks.preparation.prepare import whole
from tasks.records import record
from tasks.release.metrics import measure_by_statistics
from tasks.tracking.reporting import by_group_of, figure_files
from tasks.tracking.results import append_result, group_tables, rests_on
from tests.support.chains import charges, configured, followed
from tests.tasks.test_by_group import bring_in

ASKED: dict[str, Any] = {"algorithm": "noisy-gd", "evaluation": True, "roc": True}
AIM: dict[str, Any] = {**ASKED, "aim": "balanced"}
AT_AIM = ("aim_recall", "aim_other_recall", "aim_precision", "aim_predicted")


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """What margins at a threshold hold is for tests/dpalgos: where no test looks at them a tenth of the draws does."""
    for module in (group_curves, score_curves):
        monkeypatch.setattr(module, "_DRAWS", module._DRAWS // 10)


def names_of(config: dict[str, Any]) -> list[str]:
    return [one.name for one in whole(planned(configured(**config))).plan.evaluations]


@pytest.mark.usefixtures("few_draws")
def test_groups_and_scores_are_charged_as_those_of_all_rows_are(root: Path, tmp_path: Path) -> None:
    """One plan of two releases with the losses that a run without groups has, each charged once; nothing by an aim."""
    bring_in(tmp_path / "input", 800, held_out=900)
    plain, by_group = (whole(planned(configured(**AIM, by=by))).plan for by in (None, "sex"))
    assert [one.name for one in by_group.evaluations] == ["column-groups", "confusion-by-group", "scores-by-group"]
    assert [one.budget for one in by_group.evaluations[1:]] == [one.budget for one in plain.evaluations]
    result = followed(by="sex", **AIM)
    spent = charges()
    assert len(spent) == 3
    assert result.mu_spent == pytest.approx(chain_inline(configured(**AIM)).result.mu_spent)
    before = charges()
    again = followed(by="sex", **{**ASKED, "aim": "recall=0.9"})
    assert charges() == before
    assert result.by_group is not None
    assert again.by_group is not None
    assert again.by_group.confusion == result.by_group.confusion
    assert "aim_recall" in again.by_group.metrics["male"]


def test_the_rates_of_groups_follow_from_what_was_released_alone(root: Path, tmp_path: Path) -> None:
    """Of released zeros nothing is measured, whatever the rows; of the release, rates and curves of large groups."""
    bring_in(tmp_path / "input", 800, held_out=1500)
    chained = chain_inline(configured(by="sex", **AIM))
    of = chained.result.by_group
    assert of is not None
    for group in ("female", "male"):
        metrics = of.metrics[group]
        for rate in AT_AIM:
            low, high = metrics.limits(rate) or (0.0, 0.0)
            assert 0.0 <= low <= metrics[rate] <= high <= 1.0
            assert high - low < 0.4
    assert {"female", "male"} <= set(of.curves)
    less = next(one.metrics for one in of.differences if (one.group, one.less) == ("female", "male"))
    assert less["aim_recall"] == pytest.approx(of.metrics["female"]["aim_recall"] - of.metrics["male"]["aim_recall"])
    (path,) = chained.models.values()
    counting = [one for one in chained.plan.evaluations if one.reads_rows]
    shapes = {one.key: cast(OneSum, one.build()).sum_shape(one.setting) for one in counting}
    nothing = {key: Statistic(values=np.zeros(shape)) for key, shape in shapes.items()}
    keys = {"all": [one.key for one in path]}
    empty = measure_by_statistics(chained.plan, keys, nothing, chained.plan.identity.classes).by_group
    assert empty is not None
    assert not empty.curves
    assert not any(metrics.is_known(rate) for metrics in empty.metrics.values() for rate in AT_AIM)


@pytest.mark.usefixtures("few_draws")
def test_after_a_run_of_all_rows_only_groups_are_counted_and_the_archive_verifies(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path / "input", 800, held_out=900)
    plain = chain_inline(configured(**AIM)).result
    before = charges()
    config = configured(by="sex", **AIM)
    chained = chain_inline(config)
    append_result(whole(planned(config)).config, chained.result)
    result = chained.result
    assert len(charges()) == len(before) + 2
    assert [one.name for one in chained.plan.evaluations] == [
        "column-groups",
        "confusion-matrix",
        "score-distribution",
        "confusion-by-group",
        "scores-by-group",
    ]
    assert all(one.algorithm.parameters["alone"] for one in chained.plan.evaluations[-2:])
    assert result.mu_spent == pytest.approx(np.sqrt(2.0) * (plain.mu_spent or 0.0), rel=1e-6)
    assert "confusion matrix and the scores of its held-out rows" in rests_on(result)
    data, _, _ = export_run(result.run_key[:10])
    (tmp_path / "run.zip").write_bytes(data)
    found = verify(tmp_path / "run.zip")
    assert all(check.holds is not False for check in found.checks), found.checks


@pytest.mark.usefixtures("few_draws")
def test_of_three_classes_the_curve_is_of_all_rows_and_is_not_released_twice(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path / "input", 600, held_out=600, more=', "perhaps"')
    names = ["column-groups", "confusion-by-group", "score-distribution"]
    assert names_of({**ASKED, "by": "sex"}) == names
    chain_inline(configured(**ASKED))
    before = charges()
    result = followed(by="sex", **ASKED)
    assert len(charges()) == len(before) + 1
    assert "auc" in result.metrics
    assert result.by_group is not None
    assert result.by_group.combined
    assert not result.by_group.curves


@pytest.mark.usefixtures("few_draws")
def test_the_positive_class_turns_the_rates_of_groups(root: Path, tmp_path: Path) -> None:
    """The same releases; the recall at the threshold is that of the positive class."""
    bring_in(tmp_path / "input", 800, held_out=1500)
    last, first = (followed(by="sex", positive=positive, **AIM) for positive in ("yes", "no"))
    assert len(charges()) == 3
    assert last.by_group is not None
    assert first.by_group is not None
    assert group_tables(last)[2][1][0][1:3] == ["recall yes", "recall no"]
    assert group_tables(first)[2][1][0][1:3] == ["recall no", "recall yes"]
    for group in ("female", "male"):
        one, other = last.by_group.metrics[group], first.by_group.metrics[group]
        assert one["recall_yes"] == pytest.approx(other["recall_yes"], abs=1e-6)
        # Balanced thresholds are mirrored but for ties: at either the share predicted is of its positive class.
        assert one["aim_predicted"] == pytest.approx(1.0 - other["aim_predicted"], abs=0.2)


@pytest.mark.usefixtures("few_draws")
def test_what_is_shown_of_groups_at_a_threshold(tracked_root: Path, tmp_path: Path) -> None:
    """The card, MLflow's numbers and figures, and JSON."""
    from tasks.tracking.runs import tracking_client

    bring_in(tmp_path / "input", 900)
    prepared = whole(planned(configured(by="sex", test_fraction=0.6, **AIM)))
    logged = record.fn(prepared.config, *chain_inline(prepared.config))
    assert [of for of, _ in group_tables(logged)] == [
        "",
        "differences",
        "at the threshold for balanced",
        "differences at the threshold for balanced",
    ]
    headings = group_tables(logged)[2][1][0]
    assert headings == ["sex", "recall yes", "recall no", "precision yes", "predicted yes"]
    assert "At the threshold for balanced:" in by_group_of(logged)
    assert "all thresholds at once" in by_group_of(logged)
    with tracking_client(tracked_root) as client:
        run = client.get_run(str(logged.mlflow_run_id))
        files = {one.path for one in client.list_artifacts(str(logged.mlflow_run_id))}
    assert {"by_sex/male/aim_recall", "by_sex/male/aim_recall_low"} <= set(run.data.metrics)
    assert "roc_by_group.png" in files
    assert figure_files(logged)["roc_by_group.png"].startswith(b"\x89PNG")
    document = json.loads(logged.model_dump_json())
    assert len(document["by_group"]["curves"]["male"]) == 31
