"""Prediction intervals and prediction sets of a model: the coverage that is requested, and what is claimed of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpalgos.conformal import SIMULATED, HeldOutErrors, HeldOutScores
from dpalgos.measured import in_digits
from dpalgos.pipeline import BoundedRegressor, ScoredClassifier
from dpalgos.rows import Floats
from storage.errors import InputError

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


INTERVALS, SETS = "interval", "set"
"""What a logged model is asked for by name: intervals of a number, or sets of classes, at a coverage."""
ENDS, SET = ("prediction_low", "prediction_high"), "prediction_set"
"""Columns that hold the ends of an interval, and a set of classes."""


@dataclass(frozen=True, slots=True)
class Covering:
    """The requested coverage of intervals or sets. Default: neither.

    Attributes
    ----------
    interval, sets : float or None
        From 0.5 to below 1.
    """

    interval: float | None = None
    sets: float | None = None

    def __post_init__(self) -> None:
        if self.interval is not None and self.sets is not None:
            raise InputError(
                f"interval is {self.interval} and set is {self.sets}; intervals apply to numeric labels and "
                f"sets to classes: give one of them"
            )

    @classmethod
    def of(cls, pipeline: Pipeline, coverage: float | None) -> Covering:
        """Return a coverage as what a model's predictions can have: intervals of numbers, sets of classes."""
        return cls(sets=coverage) if hasattr(pipeline[-1], "classes_") else cls(interval=coverage)

    @property
    def coverage(self) -> float | None:
        """The one that is asked for."""
        return self.sets if self.interval is None else self.interval


NO_COVERING = Covering()
"""Neither intervals nor sets."""


def counts_in(pipeline: Pipeline, covering: Covering) -> HeldOutErrors | HeldOutScores:
    """Return the released counts of held-out rows from which a model's intervals or sets follow.

    Raises
    ------
    InputError
        If it predicts the other kind of labels, or was logged without such counts.
    """
    last = pipeline[-1]
    asked = INTERVALS if covering.sets is None else SETS
    if (asked == SETS) != hasattr(last, "classes_"):
        other = SETS if asked == INTERVALS else INTERVALS
        raise InputError(
            f"{asked} is {covering.coverage:g}; intervals apply to numeric labels and sets to classes: give {other} "
            "for this model"
        )
    found = released_counts(pipeline)
    if found is None:
        raise InputError(f"{asked} is {covering.coverage:g}; {_NO_COUNTS[asked]}")
    return found


def released_counts(pipeline: Pipeline) -> HeldOutErrors | HeldOutScores | None:
    """Return the released counts of held-out rows that a model was logged with."""
    last = pipeline[-1]
    return last.released() if isinstance(last, BoundedRegressor | ScoredClassifier) else None


_NONE_EITHER = (
    "Models on released components (--basis) have none, since the basis has read the held-out rows. Nights release "
    "none, since rows of one night may differ from those of the next"
)
_NO_COUNTS = {
    INTERVALS: "this model has no released distribution of errors: train on private rows with held-out rows "
    f"(--test-fraction) and a delta above 0. {_NONE_EITHER}",
    SETS: "this model has no released distribution of scores: train on private rows with held-out rows "
    f"(--test-fraction), a delta above 0 and --roc. {_NONE_EITHER}",
}


Cover = Callable[["Pipeline", "Floats"], dict[str, Sequence[object]]]
"""From a model's last steps and their features to the columns that intervals or sets add to predictions."""


def covering_columns(pipeline: Pipeline, covering: Covering) -> Cover:
    """Return what makes the columns of intervals or sets: their ends and limits are computed once."""
    if covering.coverage is None:
        return lambda steps, features: {}
    found = counts_in(pipeline, covering)
    if isinstance(found, HeldOutErrors):
        errors, distances = found, found.distances(covering.coverage)

        def intervals(steps: Pipeline, features: Floats) -> dict[str, Sequence[object]]:
            return dict(zip(ENDS, errors.around(steps.predict(features), distances).T, strict=True))

        return intervals
    limits, names = found.limits(covering.coverage), [str(name) for name in pipeline.classes_]

    def sets(steps: Pipeline, features: Floats) -> dict[str, Sequence[object]]:
        scores = np.asarray(steps.decision_function(features), dtype=np.float64).reshape(len(features), -1)
        inside = found.inside(scores, limits)
        return {SET: [[name for name, there in zip(names, row, strict=True) if there] for row in inside]}

    return sets


def promised_by(pipeline: Pipeline, covering: Covering) -> list[str]:
    """Return what is claimed of the intervals or sets that are asked for, in sentences; none where none are.

    Raises
    ------
    InputError
        As :func:`counts_in` does.
    dpalgos.conformal.UnreachableError
        If the released counts do not admit the coverage.
    """
    if covering.coverage is None:
        return []
    names = [str(name) for name in getattr(pipeline[-1], "classes_", ())]
    return promised(counts_in(pipeline, covering), covering.coverage, names)


def promised(found: HeldOutErrors | HeldOutScores, coverage: float, classes: Sequence[str] = ()) -> list[str]:
    """Return what is claimed of intervals or sets at a coverage, in sentences.

    Parameters
    ----------
    found : HeldOutErrors or HeldOutScores
        See :func:`counts_in`.
    coverage : float
    classes : sequence of str
        Their names, of sets.
    """
    people = found.held_out.people
    rows = "people (each person counts as one)" if people else "rows"
    drawn = f"a new {'person' if people else 'row'} drawn as the {found.held_out.count:,} held-out {rows} were"
    if isinstance(found, HeldOutErrors):
        below, above = (in_digits(one, toward=1) for one in found.distances(coverage))
        claim = (
            f"intervals from {below} below to {above} above the prediction, within the declared "
            f"range: with probability 0.95 over noise and held-out rows, {drawn} has its label in the interval with "
            f"probability {coverage:g} or more"
        )
    else:
        claim = (
            f"sets: with probability 0.95 over noise and held-out rows, for every class at once, {drawn} has its class "
            f"in the set with probability {coverage:g} or more"
        )
    lines = [f"{claim}. This holds for one coverage, chosen beforehand"]
    if isinstance(found, HeldOutScores):
        open_ended = [name for name, limit in zip(classes, found.limits(coverage), strict=True) if math.isinf(limit)]
        if open_ended:
            lines.append(
                f"in every set: {', '.join(open_ended)}; too few of its held-out {rows} for this noise and coverage. A "
                "larger --test-fraction or ε, or a smaller coverage, bounds its scores"
            )
    if found.reread:
        lines.append(
            "measured, not proved: the model rests on counts of columns that include the held-out rows. In simulations "
            f"the claim held in {100 * SIMULATED:g} % of the runs"
        )
    return lines
