"""Numbers rounded so as never to promise too much."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context


def _rounded(value: float, digits: int, direction: str) -> float:
    # Of the shortest decimal that stands for the number: 1e-5 is a little more than that in binary.
    rounded = Context(prec=digits, rounding=direction).create_decimal(repr(float(value)))
    return float(rounded) if math.isfinite(value) else value


def rounded_up(value: float, digits: int) -> float:
    """Return the least number of so many significant digits that is not below the value: for a cost."""
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int) -> float:
    """Return the largest number of so many significant digits that is not above the value: for a protection."""
    return _rounded(value, digits, ROUND_FLOOR)
