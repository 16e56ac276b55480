"""Which fields of what a run leaves are computed from its noise alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_MEASURED = re.compile(
    "metrics|not_measured|accuracy|by_party|precision|recall|effects|roc|confusion|calibration|predicts_only"
)
# How often rows are compared whose noise leaves a field of few values alike by chance.
_COMPARISONS = 3


def without_noise(differing: Iterable[str]) -> list[str]:
    """Leave out what is computed from noisy counts or weights: clipped, sorted or in order, a few runs may coincide."""
    return [name for name in differing if not _MEASURED.search(name)]


def differing_each_time(compared: Callable[[], Iterable[str]]) -> list[str]:
    """Return the fields that tell two worlds apart in each of up to three comparisons.

    A field that tells of rows does so each time. One that noise decides between a few values, in as many runs as a test
    can afford, does so by chance.
    """
    left = without_noise(compared())
    for _ in range(_COMPARISONS - 1):
        if left:
            again = set(compared())
            left = [name for name in left if name in again]
    return left
