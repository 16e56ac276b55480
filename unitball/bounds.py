"""Numbers within declared bounds, encoded as those of a table are."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats, pieces
from storage.encoder import Clipped
from storage.refs import TableColumn
from tasks.datasets.scales import Scale

# As tables are encoded: an intercept's coordinate of a tenth beside a row of norm 1.
_INTERCEPT = 0.1
_CONSTANT = float(_INTERCEPT / np.sqrt(1.0 + _INTERCEPT**2))


@dataclass(frozen=True, eq=False)
class Bounds:
    """Clip numbers to their bounds, put the middle of the bounds at 0, weigh all alike, add an intercept's coordinate.

    The same map as that of a table's numbers under ``scaling: centred`` (:class:`storage.schema.Schema`): a row of p
    numbers that are uniform on their bounds has a mean squared norm of 1.

    Parameters
    ----------
    low, high : array (p,)
        Finite, low below high, or equal for a constant, which becomes 0.
    """

    low: Floats
    high: Floats

    @classmethod
    def of(cls, bounds: Any, features: int) -> Self:
        """Return bounds from a pair of numbers or of arrays (p,), lows first.

        Raises
        ------
        ParameterError
            If ``bounds`` is not such a pair.
        """
        try:
            low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), features) for end in bounds)
        except (TypeError, ValueError):
            raise ParameterError(
                f"bounds is {str(bounds)[:80]}; give (low, high), each a number or one number per feature ({features})"
            ) from None
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise ParameterError("bounds hold numbers that are not finite, or a low above its high; correct them")
        return cls(low=low, high=high)

    @property
    def _scale(self) -> Floats:
        """Factors of distances from the middle, (p,)."""
        half, norm = (self.high - self.low) / 2.0, np.sqrt((1.0 + _INTERCEPT**2) * len(self.low) / 3.0)
        return np.where(half > 0, 1.0 / (np.where(half > 0, half, 1.0) * norm), 0.0)

    def __call__(self, rows: NDArray[Any]) -> Floats:
        """Return (m, p + 1) from (m, p)."""
        middle, scale = (self.low + self.high) / 2.0, self._scale
        encoded = np.empty((len(rows), len(middle) + 1))
        encoded[:, -1] = _CONSTANT
        # Some rows at a time, so that they stay in the caches.
        for part in pieces(*rows.shape):
            numbers = encoded[part, :-1]
            np.clip(rows[part], self.low, self.high, out=numbers)
            numbers -= middle
            numbers *= scale
        return encoded

    def clipped(self, rows: Floats, names: Sequence[Any] | None) -> dict[str, Clipped]:
        """Return how many numbers of each column are outside its bounds, and in which row the first one is."""
        below = rows.min(axis=0, initial=np.inf) < self.low
        outside: dict[str, Clipped] = {}
        for at in np.flatnonzero(below | (rows.max(axis=0, initial=-np.inf) > self.high)).tolist():
            beyond = (rows[:, at] < self.low[at]) | (rows[:, at] > self.high[at])
            outside[self._name(at, names)] = Clipped(int(beyond.sum()), int(beyond.argmax()), "")
        return outside

    @staticmethod
    def _name(at: int, names: Sequence[Any] | None) -> str:
        return f"x{at}" if names is None else str(names[at])

    @property
    def places(self) -> tuple[TableColumn, ...]:
        """The features that are numbers, with their values at the ends of their bounds; a constant is not one."""
        ends = (self.high - self.low) / 2.0 * self._scale
        return tuple(TableColumn(at=at, low=-end, high=end) for at, end in enumerate(ends.tolist()) if end > 0)

    def scales(self, names: Sequence[Any] | None) -> tuple[Scale, ...]:
        """Return the numbers' own units, by their names or their places."""
        ends = zip(self.low.tolist(), self.high.tolist(), strict=True)
        return tuple(
            Scale(self._name(at, names), "number", numbers=partial(_between, low, high))
            for at, (low, high) in enumerate(ends)
            if low < high
        )

    def middle(self) -> Floats:
        """Return the encoded row in the middle of all bounds, (p + 1,)."""
        return np.asarray(self(((self.low + self.high) / 2.0)[None])[0])

    def unplaced(self, rows: Floats) -> Floats:
        """Return numbers in their own units, (m, p), from scaled ones without the intercept's coordinate.

        A constant is what it is declared to be.
        """
        scale, middle = self._scale, (self.low + self.high) / 2.0
        return np.where(scale > 0, np.asarray(rows) / np.where(scale > 0, scale, 1.0), 0.0) + middle

    def unscaled(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return coefficients and intercepts for raw rows within bounds, from weights (k, p + 1) of encoded ones."""
        coefficients = weights[:, :-1] * self._scale
        return coefficients, weights[:, -1] * _CONSTANT - coefficients @ ((self.low + self.high) / 2.0)


def _between(low: float, high: float, shares: Floats) -> Floats:
    return np.asarray(low + np.asarray(shares) * (high - low))
