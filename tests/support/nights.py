"""The division of families of tests into cases of the day and cases of the night."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import pytest


def by_night(cases: Iterable[Any], heavy: Container[Any] | Callable[[Any], bool]) -> list[Any]:
    """Return the cases as parameters, those that are heavy for the night."""
    is_heavy = heavy if callable(heavy) else heavy.__contains__
    return [pytest.param(case, marks=[pytest.mark.nightly] * bool(is_heavy(case))) for case in cases]


def spanning(*families: Sequence[Any], every: int = 2) -> list[Any]:
    """Return all combinations as parameters: by day one in ``every``, in turn, so that each value of a family occurs.

    A member of a family may be a ``pytest.param``, of one value or more.
    """
    found = []
    for places in itertools.product(*(range(len(family)) for family in families)):
        chosen = [family[place] for family, place in zip(families, places, strict=True)]
        values = [value for one in chosen for value in getattr(one, "values", (one,))]
        name = "-".join(str(getattr(one, "id", None) or getattr(one, "__name__", one)) for one in chosen)
        night = sum(places) % every != 0
        found.append(pytest.param(*values, id=name, marks=[pytest.mark.nightly] * night))
    return found
