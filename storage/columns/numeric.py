"""Numbers in a declared range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from storage.columns.column import (
    Column,
    Encoded,
    Floats,
    MissingRows,
    as_numbers,
    column_type,
    declared_range,
    typed_numbers,
)
from storage.errors import InputError


def _signed_log(numbers: Any) -> Any:
    return np.sign(numbers) * np.log1p(np.abs(numbers))


@column_type("numeric")
@dataclass(frozen=True, slots=True)
class Numeric(Column):
    """Numbers in a declared range; without one (public sets only) they stay as they are.

    Parameters
    ----------
    range : (float, float) or None
    centre : float or None
        What lies at 0; the middle of the range (on its scale) where None.
    log : bool
        Whether the scale is sign(x) log(1 + |x|), for numbers whose sizes differ by orders of magnitude.
    """

    keys: ClassVar[tuple[str, ...]] = ("range", "centre", "scale")

    name: str
    range: tuple[float, float] | None
    missing: MissingRows | None = None
    centre: float | None = None
    log: bool = False

    @classmethod
    def parse(cls, name: str, missing: MissingRows | None, given: Mapping[str, Any], place: str) -> Numeric:
        """Return the declared column."""
        low, high = declared_range(f"{place}: range", given.get("range"))
        scale, centre = given.get("scale", "linear"), given.get("centre")
        if scale not in ("linear", "log"):
            raise InputError(f"{place}: scale is {scale!r}; it must be linear or log")
        if centre is not None:
            if not low <= (value := float(as_numbers([centre])[0])) <= high:
                raise InputError(f"{place}: centre is {centre!r}; it must be a number in the range [{low:g}, {high:g}]")
            centre = value
        return cls(name, (low, high), missing, centre, scale == "log")

    @property
    def bound(self) -> str:
        """The range."""
        return "a finite number" if self.range is None else f"a number in [{self.range[0]:g}, {self.range[1]:g}]"

    @property
    def decimal(self) -> bool:
        """They are numbers."""
        return True

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Scale to [0, 1], clipping to the ends of the range."""
        numbers = as_numbers(cells)
        if self.range is None:
            hopeless = ~np.isfinite(numbers)
            return Encoded(numbers[:, None], hopeless, hopeless)
        low, high = self.range
        hopeless = np.isnan(numbers)
        outside = ~((numbers >= low) & (numbers <= high))
        values = np.where(hopeless, 0.0, (np.clip(numbers, low, high) - low) / (high - low))
        return Encoded(values[:, None], outside, hopeless)

    def typed(self, cells: Any, markers: frozenset[str]) -> NDArray[Any] | None:
        """Scale numbers that are all in the range."""
        numbers = typed_numbers(cells, self.range, markers)
        if numbers is not None and self.range is not None:
            low, high = self.range
            numbers = (numbers - low) / (high - low)
        return None if numbers is None else numbers[:, None]

    def _line(self) -> tuple[float, float]:
        """Return what lies at 0 and what at a distance of 1 from it, on the column's scale."""
        assert self.range is not None
        low, high = _signed_log(np.array(self.range)) if self.log else np.array(self.range)
        centre = (low + high) / 2.0
        if self.centre is not None:
            centre = _signed_log(self.centre) if self.log else self.centre
        return float(centre), float(max(high - centre, centre - low))

    def place(self, values: Floats) -> Floats:
        """Return [0, 1] as [-1, 1]: the centre at 0, the end of the range that is further from it at -1 or 1."""
        if self.range is None:
            return values
        low, high = self.range
        centre, reach = self._line()
        numbers = low + values * (high - low)
        return np.asarray(((_signed_log(numbers) if self.log else numbers) - centre) / reach)

    def unplace(self, placed: Floats) -> Floats:
        """Return what :meth:`place` made its result from."""
        if self.range is None:
            return placed
        low, high = self.range
        centre, reach = self._line()
        numbers = placed * reach + centre
        if self.log:
            numbers = np.sign(numbers) * np.expm1(np.abs(numbers))
        return np.asarray((numbers - low) / (high - low))
