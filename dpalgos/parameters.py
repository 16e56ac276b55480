"""Public parameters: bounds that fields declare and classes keep to, and errors about them, never about rows."""

import math
import sys
from collections.abc import Mapping
from copy import copy
from dataclasses import Field, dataclass
from typing import Self


class ParameterError(ValueError):
    """A public parameter is outside its range; the message names the value, the bound and the way out.

    Parameters
    ----------
    message : str
    value : object, optional
        The value that is refused, where a :class:`Bound` refuses it.
    bound : Bound, optional
        The bound that refuses it.
    """

    def __init__(self, message: str = "", *, value: object = None, bound: "Bound | None" = None) -> None:
        super().__init__(message)
        self.value, self.bound = value, bound

    def saying(self, message: str) -> Self:
        """Return an error of the same class and fields with another message."""
        other = copy(self)
        other.args = (message,)
        return other


class UnknownNameError(ParameterError):
    """A name is not in the registry; the message lists the nearest names."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Between which finite numbers a parameter lies.

    Parameters
    ----------
    low, high : float
    open_low, open_high : bool
        Whether that end itself is refused.
    whole : bool
        Whether only whole numbers are taken.
    """

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    whole: bool = False

    def require(self, name: str, value: object) -> None:
        """Raise unless ``value`` is a number within the bound.

        Raises
        ------
        ParameterError
            Naming the parameter, its value and the bound.
        """
        kind, word = (int, "whole") if self.whole else (int | float, "finite")
        if isinstance(value, kind) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            above = value > self.low if self.open_low else value >= self.low
            if above and (value < self.high if self.open_high else value <= self.high):
                return
        least = f"{'above' if self.open_low else 'of at least'} {self.low:g}"
        most = "" if self.high == math.inf else f" and {'below' if self.open_high else 'at most'} {self.high:g}"
        raise ParameterError(f"{name} is {value!r}; it must be a {word} number {least}{most}", value=value, bound=self)


def declared(bound: Bound) -> Mapping[str, Bound]:
    """Return the metadata by which a field declares its bound: ``field(default=1.0, metadata=POSITIVE)``."""
    return {"bound": bound}


def between(low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> Mapping[str, Bound]:
    """Return the metadata of a field for numbers between two ends."""
    return declared(Bound(low, high, open_low, open_high))


def at_least(low: int) -> Mapping[str, Bound]:
    """Return the metadata of a field for whole numbers from ``low`` on."""
    return declared(Bound(low, whole=True))


POSITIVE, NON_NEGATIVE = declared(Bound(0.0, open_low=True)), declared(Bound(0.0))
SHARE = between(0.0, 1.0)
COUNT, NATURAL = at_least(1), at_least(0)


class Bounded:
    """A dataclass that refuses values outside the bounds of its fields when it is made.

    A derived class that gives a field another default keeps its bound. Where the default is None, None is taken.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Validate the fields; whoever validates more calls this first."""
        if type(self) not in _BOUNDS:
            _BOUNDS[type(self)] = _bounds_of(type(self))
        for name, bound, optional in _BOUNDS[type(self)]:
            value = getattr(self, name)
            if value is not None or not optional:
                bound.require(name, value)


_BOUNDS: dict[type[Bounded], tuple[tuple[str, Bound, bool], ...]] = {}


def _bounds_of(cls: type[Bounded]) -> tuple[tuple[str, Bound, bool], ...]:
    bounds: dict[str, Bound] = {}
    optional: dict[str, bool] = {}
    for base in reversed(cls.__mro__):
        own: Mapping[str, Field[object]] = vars(base).get("__dataclass_fields__", {})
        bounds |= {name: one.metadata["bound"] for name, one in own.items() if "bound" in one.metadata}
        optional |= {name: one.default is None for name, one in own.items()}
    return tuple((name, bound, optional[name]) for name, bound in bounds.items())
