"""How well a released model does: exactly on public rows, and on private ones only as a charged release."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from dpalgos.evaluators.confusion_matrix import CountedPairs, predicted_classes
from dpalgos.evaluators.error_sums import ErrorSums
from dpalgos.evaluators.score_histogram import area_under_curve
from dpalgos.metrics import (
    TWO_SIDED,
    classification_metrics,
    confusion_matrix,
    metrics_of_noisy_confusion,
    metrics_of_noisy_errors,
    recalls,
    regression_metrics,
)
from dpalgos.models import Statistic
from dpalgos.rows import Floats, Rows, null_records
from storage.refs import Labels, ReleaseRef, ShardRef
from tasks.planning.plans import PlannedRelease, RunPlan, Shards
from tasks.release.door import make_release
from tasks.release.rows import RowMaps, maps_of, rows_of
from tasks.release.storing import diagnostics_of, read_release

__all__ = ["Evaluation", "measure"]


class Evaluation(BaseModel):
    """Measured numbers of a run: of the model, or the mean over the parties' models, and of each; or released ones."""

    model_config = ConfigDict(frozen=True)

    metrics: dict[str, float] = {}
    by_party: dict[str, dict[str, float]] = {}
    measured_on: str | None = None


def _scored(rows: Rows) -> tuple[Floats, NDArray[np.generic]]:
    scores, labels = zip(*rows.blocks(), strict=True)
    return np.concatenate(scores), np.concatenate(labels)


def _measure(maps: RowMaps, shard: ShardRef) -> dict[str, float]:
    scores, labels = _scored(rows_of(shard, maps, max(len(shard.dataset.classes), 1)))
    if shard.dataset.labels is Labels.REAL:
        return regression_metrics(np.asarray(labels, dtype=np.float64), scores[:, 0])
    classes = len(shard.dataset.classes)
    kept = ~null_records(scores, labels, classes)
    truth, known = np.asarray(labels[kept], dtype=np.int64), scores[kept]
    counts = confusion_matrix(truth, predicted_classes(known), max(classes, 2))
    return classification_metrics(truth, known, classes) | recalls(counts, shard.dataset.classes)


def _mean(of: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in of])) for name in of[0]} if of else {}


def measure(plan: RunPlan, models: Mapping[str, Sequence[ReleaseRef]], shards: Shards) -> Evaluation:
    """Measure the released models, each given by name with the releases that its rows pass through.

    Public test rows are measured exactly; without test rows the public training rows are, and the metrics say so.
    Private rows are measured by the charged releases planned for them, if any, and otherwise not at all.
    """
    return _privately(plan, models, shards) if shards.training[0].dataset.private else _exactly(models, shards)


def _privately(plan: RunPlan, models: Mapping[str, Sequence[ReleaseRef]], shards: Shards) -> Evaluation:
    if not plan.evaluations:
        return Evaluation()
    by_party: dict[str, dict[str, float]] = {}
    for name, path in models.items():
        keys = tuple(reference.key for reference in path)
        by_party[name] = {}
        for planned in plan.evaluations:
            if planned.upstream == keys:
                released = make_release(planned, shards.of(planned.parties), path)
                by_party[name] |= _of_release(planned, read_release(released), shards.training[0].dataset.classes)
    return Evaluation(
        metrics=_mean_of_noisy(list(by_party.values())),
        by_party=by_party if len(by_party) > 1 else {},
        measured_on="held-out rows, noisy",
    )


def _of_release(planned: PlannedRelease, statistic: Statistic, classes: Sequence[str]) -> dict[str, float]:
    algorithm, counts = planned.build(), statistic.values
    if isinstance(algorithm, CountedPairs):
        deviation = algorithm.deviation(planned.setting)
        return metrics_of_noisy_confusion(counts, planned.setting.rows, deviation) | recalls(counts, classes)
    if isinstance(algorithm, ErrorSums):
        deviation = algorithm.deviation(planned.setting)
        return metrics_of_noisy_errors(counts, planned.setting.rows, deviation, algorithm.label_range)
    return {"auc": area_under_curve(counts)}


def _mean_of_noisy(of: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the models' mean metrics; their noises are independent, the held-out rows are the same ones."""
    combined = _mean(of)
    for name in [name.removesuffix("_noise") for name in combined if name.endswith("_noise")]:
        noises = [one[f"{name}_noise"] for one in of]
        combined[f"{name}_noise"] = noise = math.hypot(*noises) / len(of)
        if f"{name}_margin" in combined:
            margins = [one[f"{name}_margin"] / TWO_SIDED for one in of]
            drawn = [math.sqrt(max(m * m - n * n, 0.0)) for m, n in zip(margins, noises, strict=True)]
            combined[f"{name}_margin"] = TWO_SIDED * math.hypot(noise, math.fsum(drawn) / len(of))
    return combined


def _exactly(models: Mapping[str, Sequence[ReleaseRef]], shards: Shards) -> Evaluation:
    test, by_party = shards.held_out, {}
    for name, path in models.items():
        maps = maps_of(path)
        measured = {"test": _measure(maps, test)} if test is not None else {}
        if test is None:
            own = [shard for shard in shards.training if shard.party == name] or list(shards.training)
            measured["train"] = _weighted([_measure(maps, shard) for shard in own], [shard.rows for shard in own])
        by_party[name] = _named(measured) | diagnostics_of(path[-1])
    return Evaluation(
        metrics=_mean(list(by_party.values())),
        by_party=by_party if len(by_party) > 1 else {},
        measured_on="test rows" if test is not None else "training rows",
    )


def _named(measured: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Test metrics have plain names; training metrics have both, so that comparisons line up and nothing is hidden."""
    if "test" in measured:
        return dict(measured["test"])
    return {**measured["train"], **{f"train_{name}": value for name, value in measured["train"].items()}}


def _weighted(of: Sequence[Mapping[str, float]], rows: Sequence[int]) -> dict[str, float]:
    return {name: float(np.average([one[name] for one in of], weights=rows)) for name in of[0]}
