"""Warnings that are only shown on the user's screen, because they may describe rows; no record keeps them."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from types import FrameType
from typing import Any

from storage.encoder import Clipped
from storage.names import few
from unitball.pipelines import PipelineFinding


def warn_of_clipped(clipped: Mapping[str, Clipped], declared: str) -> None:
    """Warn of cells that were clipped: the columns, how many cells, and the first one's row, but no value.

    Parameters
    ----------
    clipped : mapping of column to Clipped
    declared : str
        What the cells are outside of.
    """
    if not clipped:
        return
    counts = [
        f"column {name}: {one.cells} {'cell' if one.cells == 1 else 'cells'} (the first in row {one.row + 1})"
        for name, one in clipped.items()
    ]
    tell(f"cells outside {declared} were clipped. {few(counts)}")


def warn_of_steps(found: Sequence[PipelineFinding]) -> None:
    """Warn of what is fitted around a private estimator and learns from the private rows without noise."""
    if found:
        steps = [f"{one.step or 'it'} ({one.estimator})" for one in found]
        tell(
            f"fitted on the private rows outside the guarantee: {few(steps)}. unitball.check_pipeline(…) says what "
            "each learns, and finds steps that a fit cannot see"
        )


def tell(line: str) -> None:
    """Show a line to the user who called."""
    warnings.warn(line, UserWarning, stacklevel=_calling())


# What stands between a call of the user's and a warning.
_BETWEEN = frozenset(("unitball", "sklearn", "joblib", "contextlib", "tasks", "storage"))


def _calling() -> int:
    """Return how many frames up the user's own call is, counted from the function that warns."""
    frame: FrameType | None = sys._getframe(1)
    level = 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    return max(level, 1) + 1


def called_by(package: str) -> bool:
    """Return whether a function of a package is among those that are being carried out by this thread."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if f"{frame.f_globals.get('__name__', '')}.".startswith(f"{package}."):
            return True
        frame = frame.f_back
    return False


@cache
def warn_of_scores() -> None:
    """Warn once in a process: Python forgets which warnings it has shown when its filters change."""
    warnings.warn(
        "a score on private rows is exact and not private: keep the score, and any choice based on it, secret",
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
        f"each fit of a search or a cross-validation is a separate release, {who}: the first costs epsilon "
        f"{epsilon:g} at delta {delta:g}, and the fits of all folds and candidates add up",
        UserWarning,
        stacklevel=2,
    )


@cache
def warn_of_order(classes: tuple[Any, ...]) -> None:
    """Warn once of classes that are declared in another order than scikit-learn's scorers take them to be in."""
    warnings.warn(
        f"classes are declared as {', '.join(map(repr, classes))}, which is not their sorted order, and scikit-learn's "
        "scorers by name (roc_auc, neg_log_loss, average_precision, …) assume sorted classes and would score the other "
        "class. Declare them sorted, or give make_scorer(…) pos_label or labels",
        UserWarning,
        stacklevel=2,
    )
