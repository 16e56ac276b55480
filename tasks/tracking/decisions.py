"""Decision thresholds of registered models of two classes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel

from tasks.tracking.lineage import read_lineage
from tasks.tracking.model_versions import RegisteredModel, record_of

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


class Decision(BaseModel, frozen=True):
    """Decision threshold of a model of two classes.

    Attributes
    ----------
    positive : str
    threshold : float or None
        The lowest probability at which the class is predicted. None where scores are not probabilities: the class is
        then predicted above 0.
    aim : str or None
        What the model's own threshold was chosen for.
    asked : bool
        Whether the threshold differs from the model's own.
    """

    positive: str
    threshold: float | None
    aim: str | None
    asked: bool

    @property
    def statement(self) -> str:
        """The decision as a sentence."""
        if self.threshold is None:
            return f"Predicts `{self.positive}` if its score is above 0. This model has no probabilities."
        why = "default: no --aim was given"
        if self.asked:
            why = "given by --threshold" + ("" if self.aim is None else f", instead of the one for {self.aim}")
        elif self.aim is not None:
            why = f"chosen for {self.aim}"
        return f"Predicts `{self.positive}` if its probability is at least {self.threshold:.3g} ({why})."


def decision_of(root: Path, model: RegisteredModel, pipeline: Pipeline, threshold: float | None) -> Decision | None:
    """Return when a registered model of two classes predicts the positive one; None of other models.

    Parameters
    ----------
    root : Path
    model : RegisteredModel
    pipeline : sklearn.pipeline.Pipeline
        As loaded.
    threshold : float or None
        The requested probability, instead of the model's own.
    """
    classes = list(getattr(pipeline, "classes_", ()))
    if len(classes) != 2:
        return None
    known = read_lineage(root, model).config if record_of(root, model).facts["lineage"] else None
    own = None
    if hasattr(pipeline, "predict_proba"):
        # The probability where the score is 0, as the model's threshold is.
        own = 1.0 / (1.0 + math.exp(-float(np.ravel(pipeline[-1].offset_)[0])))
    return Decision(
        positive=str(classes[-1]),
        threshold=own if threshold is None else threshold,
        aim=None if known is None else known.aim,
        asked=threshold is not None,
    )
