"""No reduction, as a projection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.features.public_map import PublicMap
from dpalgos.guarantees import Setting
from dpalgos.models import Projection
from dpalgos.noise import NoiseSource
from dpalgos.registry import register
from dpalgos.rows import Rows


@register("projections", "identity")
@dataclass(frozen=True, kw_only=True)
class Identity(PublicMap):
    """Keep every feature.

    Guarantee
    ---------
    Costs nothing: the map is made from the number of features alone.
    """

    source: ClassVar[str] = "the identity"

    def output_dimension(self, dimension: int) -> int:
        """Return the same number."""
        return dimension

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Projection:
        """Return the unit matrix."""
        return Projection(basis=np.eye(setting.dimension))
