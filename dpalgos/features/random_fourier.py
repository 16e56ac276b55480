"""Random Fourier features: a public random map whose inner products approximate the Gaussian kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.features.public_map import ReadyMap, RowFeatures
from dpalgos.models import released_kind
from dpalgos.parameters import COUNT, NATURAL, POSITIVE
from dpalgos.registry import register
from dpalgos.rows import Floats, row_products


@released_kind
@dataclass(frozen=True, slots=True)
class FourierFeatures(RowFeatures):
    """The map x ↦ (cos ωᵢ·x, sin ωᵢ·x)/√D, rows of norm exactly 1.

    Parameters
    ----------
    frequencies : array (d, D)
    """

    frequencies: Floats
    kind: ClassVar[str] = "fourier-features"

    @property
    def dimension(self) -> int:
        """Number of features, 2D."""
        return 2 * int(self.frequencies.shape[1])

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, 2D)."""
        phases = row_products(features, self.frequencies)
        return np.hstack([np.cos(phases), np.sin(phases)]) / math.sqrt(self.frequencies.shape[1])


@register("projections", "random-fourier")
@dataclass(frozen=True, kw_only=True)
class RandomFourier(ReadyMap):
    """Features whose inner products approximate exp(−γ‖x − x′‖²), frequencies drawn with a public seed.

    Guarantee
    ---------
    Costs nothing: the map is made from the seed. Its rows have norm 1.

    Parameters
    ----------
    frequencies : int
        D; there are twice as many features.
    gamma : float
        γ of the kernel.
    seed : int
        Public.

    References
    ----------
    Rahimi, Recht, NeurIPS 2007; for private SVMs Rubinstein, Bartlett, Huang, Taft, JPC 4 (2012).
    """

    frequencies: int = field(default=256, metadata=COUNT)
    gamma: float = field(default=1.0, metadata=POSITIVE)
    seed: int = field(default=0, metadata=NATURAL)
    source: ClassVar[str] = "Rahimi, Recht 2007"

    def features(self, dimension: int) -> FourierFeatures:
        """Return the frequencies for rows of so many features."""
        draws = np.random.default_rng(self.seed).standard_normal((dimension, self.frequencies))
        return FourierFeatures(frequencies=math.sqrt(2.0 * self.gamma) * draws)
