"""What is proved of a fitted model and what no guarantee of an estimator covers, of which it warns."""

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from tasks.tracking.results import Proved

NOT_COVERED = (
    "exact scores of these or other private rows, such as a search's scores of its folds, and what is chosen by them",
    "other steps of a pipeline that learn from the rows (a scaler, a selection of features), which "
    "unitball.check_pipeline(…) names",
    "whatever else is computed from the rows beside this estimator",
)
"""What no guarantee of an estimator covers."""
NOT_REMEMBERED = "no account remembers this fit: another fit of the same rows is not counted"
IN_MEMORY_ALONE = (
    "account {!r} is kept in the memory of this process, for tests: at its end the same rows have their whole budget "
    "again"
)


@cache
def warn_of_scores() -> None:
    """Warn once in a process: Python itself forgets what it has shown whenever somebody changes its filters."""
    warnings.warn(
        "a score on private rows is exact and no release: keep it to yourself, and what is chosen by it",
        UserWarning,
        stacklevel=2,
    )


@cache
def warn_of_fits(family: str, account: str | None, epsilon: float, delta: float) -> None:
    """Warn once of the fits of a search or a cross-validation, before the first one.

    Parameters
    ----------
    family : str
        Names the estimator that all of them are clones of.
    account : str or None
    epsilon, delta : float
        Of the first fit.
    """
    who = f"charged to account {account!r}" if account else "counted by no account"
    warnings.warn(
        f"each fit of a search or a cross-validation is a release of its own, {who}: the first costs epsilon "
        f"{epsilon:g} at delta {delta:g}, and the fits of all folds and candidates add up",
        UserWarning,
        stacklevel=2,
    )


@cache
def warn_of_order(classes: tuple[Any, ...]) -> None:
    """Warn once of classes that are declared in another order than scikit-learn's scorers take them to be in."""
    warnings.warn(
        f"classes are declared as {', '.join(map(repr, classes))}, which is not their sorted order, and scikit-learn's "
        "scorers by name (roc_auc, neg_log_loss, average_precision, …) take classes for sorted: they would score the "
        "other class. Declare them sorted, or give make_scorer(…) pos_label or labels",
        UserWarning,
        stacklevel=2,
    )


@dataclass(frozen=True)
class FitGuarantee:
    """What is proved of a fitted model, and what is outside.

    Attributes
    ----------
    proved : Proved or None
        None for an algorithm about which nothing is proved; it fits public rows only.
    remembered : str
        What is to be said where no account remembers the fit, or not for long.
    not_covered : tuple of str
        The same of all models.
    """

    proved: Proved | None
    remembered: str = ""
    not_covered: ClassVar[tuple[str, ...]] = NOT_COVERED

    def __str__(self) -> str:
        if self.proved is None:
            return "Nothing is proved about this model."
        remembered = f"; {self.remembered}" if self.remembered else ""
        return f"The model is {self.proved}{remembered}. Not covered: {'; '.join(self.not_covered)}."
