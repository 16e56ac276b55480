"""Which fields of what a run leaves are computed from its noise alone."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MEASURED = re.compile("metrics|accuracy|by_party|precision|recall|effects|roc|confusion|calibration")


def without_noise(differing: Iterable[str]) -> list[str]:
    """Leave out what is computed from noisy counts or weights: clipped, sorted or in order, a few runs may coincide."""
    return [name for name in differing if not _MEASURED.search(name)]
