"""Numbers within declared bounds as coordinates that algorithms see: each row by itself, from declarations alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpalgos.errors import ParameterError
from dpalgos.rows import Floats

# As tables are encoded: an intercept's coordinate of a tenth beside a row of norm 1.
_INTERCEPT = 0.1


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
    def of(cls, bounds: Any, features: int) -> Bounds:
        """Return bounds from a pair of numbers or of arrays (p,), lows first.

        Raises
        ------
        ParameterError
            For what is no such pair.
        """
        try:
            low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), features) for end in bounds)
        except (TypeError, ValueError):
            raise ParameterError(
                f"bounds is {str(bounds)[:80]}; give (low, high), each a number or one number a feature ({features})"
            ) from None
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise ParameterError("bounds hold numbers that are not finite, or a low above its high; correct them")
        return cls(low=low, high=high)

    @classmethod
    def observed(cls, rows: Floats) -> Bounds:
        """Return the smallest and largest number of each column; of public rows only."""
        return cls(low=rows.min(axis=0), high=rows.max(axis=0))

    @property
    def _scale(self) -> Floats:
        """What a distance from the middle is multiplied by, (p,)."""
        half, norm = (self.high - self.low) / 2.0, np.sqrt((1.0 + _INTERCEPT**2) * len(self.low) / 3.0)
        return np.where(half > 0, 1.0 / (np.where(half > 0, half, 1.0) * norm), 0.0)

    @property
    def _constant(self) -> float:
        return float(_INTERCEPT / np.sqrt(1.0 + _INTERCEPT**2))

    def __call__(self, rows: NDArray[Any]) -> Floats:
        """Return (m, p + 1) from (m, p)."""
        middle = (self.low + self.high) / 2.0
        centred = (np.clip(np.asarray(rows, dtype=np.float64), self.low, self.high) - middle) * self._scale
        return np.concatenate([centred, np.full((len(centred), 1), self._constant)], axis=1)

    def unscaled(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return coefficients and intercepts for raw rows within bounds, from weights (k, p + 1) of encoded ones."""
        coefficients = weights[:, :-1] * self._scale
        return coefficients, weights[:, -1] * self._constant - coefficients @ ((self.low + self.high) / 2.0)

    def names(self, given: Sequence[str] | None = None) -> list[str]:
        """Return the encoded features' names."""
        return [*(given if given is not None else [f"x{place}" for place in range(len(self.low))]), "(intercept)"]
