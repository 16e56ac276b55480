"""Checks of public parameters that several algorithms share, and numbers rounded so as never to promise too much."""

from __future__ import annotations

import math
from dataclasses import asdict
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Loss, Neighbours, Setting
from dpalgos.parameters import Bound


def require_components(components: int, setting: Setting) -> None:
    """Raise unless there are at least as many features as directions asked for."""
    if components > setting.dimension:
        raise ParameterError(
            f"{components} directions were asked of rows with {setting.dimension} features; "
            f"ask for at most {setting.dimension}"
        )


def require_budget(budget: Loss, accepted: tuple[type[Loss], ...]) -> None:
    """Raise unless the budget is of an accepted type and above 0 in each of its numbers."""
    kinds = " or ".join(loss.kind for loss in accepted)
    if not isinstance(budget, accepted):
        kind = getattr(budget, "kind", type(budget).__name__)
        raise ParameterError(f"the budget is of type {kind!r}; this algorithm accepts {kinds}")
    for name, value in asdict(budget).items():
        Bound(0.0, open_low=True).require(f"the budget's {name}", value)


def require_relation(setting: Setting, derived: tuple[Neighbours, ...]) -> None:
    """Raise unless the neighbouring relation in force is one that the guarantee is derived for."""
    if setting.neighbours.in_force() not in derived:
        raise ParameterError(
            f"the sensitivity of this algorithm is not derived for {setting.neighbours}; use {' or '.join(derived)}"
        )


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
