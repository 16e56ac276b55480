"""Scores of rows along released principal components: x ↦ Vᵀ(x − m)/R."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.features.public_map import RowFeatures
from dpalgos.models import LinearModel, released_kind
from dpalgos.rows import Floats, row_products


@released_kind("centred-components")
@dataclass(frozen=True, slots=True)
class CentredComponents(RowFeatures):
    """The map x ↦ Vᵀ(x − m)/R; linear models stay linear. It divides no row by its norm, so that it can be undone.

    Rows less m are seldom longer than R, to which they were clipped where moments were formed; what trains on the
    scores clips them to the unit ball itself.

    Parameters
    ----------
    mean : array (d,)
        m, declared origin and released mean together.
    basis : array (d, k)
        V, orthonormal columns; zero in features that do not vary.
    radius : array (1,) or (k,)
        R, or its own length for each score.
    """

    mean: Floats
    basis: Floats
    radius: Floats

    kept: ClassVar[bool] = False

    @property
    def dimension(self) -> int:
        """Number of components k."""
        return int(self.basis.shape[1])

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, k)."""
        return np.asarray((np.asarray(features, dtype=np.float64) - self.mean) @ self._scaled)

    def apply(self, features: Floats) -> Floats:
        """Map rows, each to bits that depend on it alone: what the door calls."""
        return row_products(np.asarray(features, dtype=np.float64) - self.mean, self._scaled)

    def undone(self, scores: Floats) -> Floats:
        """Return the rows (m, d) in the span of the components, about m, that have these scores."""
        return np.asarray((scores * self.radius) @ self.basis.T + self.mean)

    def before(self, model: LinearModel) -> LinearModel:
        """Return the model of rows before this map that scores them as ``model`` does after it."""
        weights = model.weights @ self._scaled.T
        return LinearModel(weights=weights, intercept=model.intercept - weights @ self.mean)

    @property
    def _scaled(self) -> Floats:
        return np.asarray(self.basis / self.radius)
