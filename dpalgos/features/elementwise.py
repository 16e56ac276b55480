"""Roots and logarithms, number by number: long tails come in, and no row has a part in the map."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.features.public_map import ReadyMap, RowFeatures
from dpalgos.models import released_kind
from dpalgos.parameters import POSITIVE, between
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, unit_rows


@released_kind
@dataclass(frozen=True, slots=True)
class ElementwiseFeatures(RowFeatures):
    """The map x ↦ u/‖u‖ with uᵢ = sign(xᵢ) g(|xᵢ|), g(v) = v^power, or ln(1 + scale·v) where the power is 0.

    Parameters
    ----------
    size : array of 1 int
        Number of features, which stays.
    curve : array (2,)
        Power and scale.
    """

    size: Ints
    curve: Floats
    kind: ClassVar[str] = "elementwise-features"

    @property
    def dimension(self) -> int:
        """Number of features."""
        return int(self.size[0])

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, d), rows of norm 1 (or 0, for zero rows)."""
        power, scale = self.curve
        sizes = np.abs(np.asarray(features, dtype=np.float64))
        curved = np.sign(features) * (sizes**power if power > 0 else np.log1p(scale * sizes))
        return unit_rows(curved)


@register("projections", "signed-root")
@dataclass(frozen=True, kw_only=True)
class SignedRoot(ReadyMap):
    """Every number's root with its sign, then rows to norm 1; of counts and histograms, the Hellinger map.

    Guarantee
    ---------
    Costs nothing: each row is mapped by itself, with public parameters. Its rows have norm 1 (or 0).

    Parameters
    ----------
    power : float
        In (0, 1]; ½ is the square root.

    References
    ----------
    Perronnin, Sánchez, Mensink, ECCV 2010 (power normalisation); Arandjelović, Zisserman, CVPR 2012 (Hellinger).
    """

    power: float = field(default=0.5, metadata=between(0.0, 1.0, open_low=True))
    source: ClassVar[str] = "Perronnin, Sánchez, Mensink 2010"

    def features(self, dimension: int) -> ElementwiseFeatures:
        """Return the curve for rows of so many features."""
        return ElementwiseFeatures(size=np.array([dimension]), curve=np.array([self.power, 1.0]))


@register("projections", "signed-log")
@dataclass(frozen=True, kw_only=True)
class SignedLogarithm(ReadyMap):
    """Every number's ln(1 + scale·|x|) with its sign, then rows to norm 1.

    Guarantee
    ---------
    Costs nothing: each row is mapped by itself, with public parameters. Its rows have norm 1 (or 0).

    Parameters
    ----------
    scale : float
        What is large; below 1/scale the map is nearly linear.
    """

    scale: float = field(default=100.0, metadata=POSITIVE)
    source: ClassVar[str] = "logarithmic compression"

    def features(self, dimension: int) -> ElementwiseFeatures:
        """Return the curve for rows of so many features."""
        return ElementwiseFeatures(size=np.array([dimension]), curve=np.array([0.0, self.scale]))
