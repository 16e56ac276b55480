"""Rows of norm 1: what a table's rows are seen through where nothing is learnt of its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.features.public_map import RowFeatures
from dpalgos.models import released_kind
from dpalgos.normalisation import UnitNorm
from dpalgos.rows import Floats, Ints

_UNIT_NORM = UnitNorm()


@released_kind("unit-rows")
@dataclass(frozen=True, slots=True)
class UnitRows(RowFeatures):
    """Rows brought to norm 1, bit for bit as the normalisation ``unit-norm`` does; zero rows stay zero.

    A row with a number that is none stays a null record: all its features are NaN.

    Parameters
    ----------
    size : array (1,) of int
        Features of a row.
    """

    size: Ints

    kept: ClassVar[bool] = False

    @property
    def dimension(self) -> int:
        """Number of features."""
        return int(self.size[0])

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to rows of norm 1; NaN where a row has a number that is none."""
        mapped = _UNIT_NORM(np.asarray(features, dtype=np.float64))
        # What unit-norm makes zero, of numbers that are none.
        odd = np.flatnonzero(~mapped.any(axis=1))
        mapped[odd[~np.isfinite(features[odd]).all(axis=1)]] = np.nan
        return mapped
