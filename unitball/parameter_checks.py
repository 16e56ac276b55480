"""Checks of estimators' parameters and labels; errors name the parameter, the value and the way out."""

import math
import re
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats
from storage.hidden_cells import hiding, shown_cell

_MOST_SHOWN, _MOST_WHOLE = 80, 10**18
# How messages of scikit-learn and NumPy about rows begin that name counts, shapes, types and columns alone.
_WITHOUT_CELLS = (
    r"could not convert string to \w+",
    r"Input( \w+)? contains (NaN|infinity)[^\n]*",
    r"Expected 2D array, got (1D|scalar) array instead",
    r"Found array with [^\n]*",
    r"X has \d+ features[^\n]*",
    r"The feature names should match[\s\S]*",
    r"y should be a 1d array[^\n]*",
    r"Complex data not supported",
    r"setting an array element with a sequence",
)


class NoNumberError(ParameterError, TypeError):
    """A cell's type is not numeric; scikit-learn's users expect a ``TypeError``."""


def shown(value: Any) -> str:
    """Return a value as it is written, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


def require_number(name: str, value: Any, bound: str, within: Callable[[float], bool]) -> None:
    """Refuse values that are not numbers within its bound; numbers of NumPy, in single precision too, are numbers."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real) or not within(float(value)):
        raise ParameterError(f"{name} is {shown(value)}; give a number {bound}")


def require_whole(name: str, value: Any, least: int) -> None:
    """Refuse values that are not whole numbers of at least ``least``."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral) or not least <= int(value) <= _MOST_WHOLE:
        raise ParameterError(f"{name} is {shown(value)}; give a whole number of at least {least}")


def said_of_rows(error: ValueError) -> str:
    """Return scikit-learn's message about rows, with our way out in place of its own one.

    An imputer, which it names for missing cells, would learn from the private rows.
    """
    message = str(error)
    if hiding():
        # All of its first line that holds no cell; an array is shown below it.
        known = next((found[0] for one in _WITHOUT_CELLS if (found := re.match(one, message))), None)
        message = known or "X or y cannot be read as numbers, and the original message may hold a cell"
    if "could not convert string" in message:
        return f"{message}; text columns need declared values: give schema=FILE"
    if "contains NaN" in message:
        return (
            f"{message.splitlines()[0].rstrip('.')}: cells are missing. Declare how missing cells are treated: "
            "schema=FILE with missing: {rows: indicator}. An imputer would learn from the rows, which the guarantee "
            "does not cover"
        )
    return message


def finite(y: NDArray[Any]) -> Floats:
    """Return targets as numbers; ParameterError for the first that is none."""
    try:
        targets = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        texts = [cell for cell in np.asarray(y, dtype=object).tolist() if not isinstance(cell, Real)]
        first = shown(texts[0] if texts else y)
        raise ParameterError(
            f"y holds {first if not hiding() else 'values that are not numbers'}; give numbers"
        ) from None
    if len(wrong := np.flatnonzero(~np.isfinite(targets))):
        raise ParameterError(
            f"row {wrong[0] + 1}, target {shown_cell(targets[wrong[0]])} is not a finite number; correct it "
            f"or remove the row"
        )
    return targets


def ends(declared: Any) -> tuple[float, float]:
    """Return low and high of a declared range; ParameterError where it is none."""
    try:
        low, high = map(float, declared)
    except (TypeError, ValueError):
        low = high = math.nan
    if not -math.inf < low < high < math.inf:
        raise ParameterError(f"label_range is {shown(declared)}; give (low, high), two finite numbers, low below high")
    return low, high
