"""What a description costs, and its numbers with their margins, as lines of a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from storage.ledger.charges import of_cap

if TYPE_CHECKING:
    from tasks.release.descriptions import Figure, Terms


def terms_lines(terms: Terms, *, planned: bool = False, what: str | None = None) -> Iterator[str]:
    """Yield what a release costs and who pays; ``what`` is counted, single columns where None."""
    parties = len(terms.parties)
    several = f", {parties} parties under {terms.trust}, each of whom pays" if parties > 1 else ""
    counted = f"{terms.columns} counted columns in {terms.bins} bins" if what is None else what
    yield f"{terms.dataset}, version {terms.version}: {terms.rows} {plural(terms.unit)}, {counted}{several}"
    made = f"it {'would be' if planned else 'is'}"
    price = f"epsilon {terms.epsilon:g} at delta {terms.delta:g} (mu {terms.mu:.4g}) for a {terms.unit}"
    if terms.group_size > 1:
        price += f"; of {terms.group_size} rows per person the account counts what these lose together"
    yield f"it is {price}; it was charged before and is not charged again" if terms.paid else f"{made} {price}"
    if terms.cap_epsilon is None:
        yield f"account {terms.account}: the rows are public, and nothing is charged"
        return
    left = "" if terms.left is None else f"{terms.left.said}; "
    cap = of_cap(terms.cap_epsilon, terms.cap_promised)
    yield (
        f"account {terms.account}: {left}cap epsilon {cap} at delta {terms.cap_delta:g}, unit {terms.unit}, "
        f"relation {terms.relation}; spent {_epsilon(terms.spent)}"
    )


def plural(unit: str) -> str:
    """Return the plural of what is protected."""
    return "rows" if unit == "row" else "people"


def _epsilon(number: float | None) -> str:
    return "∞" if number is None else f"{number:.4g}"


def unmeasured() -> str:
    """Return what stands for a number that nothing is said of."""
    from tasks.release.descriptions import UNMEASURED

    return UNMEASURED


def margin(figure: Figure) -> str:
    """Return a number with its margin, to two digits of it: the value rounded, the ends outward."""
    if not figure.measured:
        return unmeasured()
    value, low, high = figure.value, figure.low, figure.high
    if isinstance(value, str):
        return f"at most {high}" if low is None else f"at least {low}" if high is None else f"{value} [{low}, {high}]"
    ends = [float(end) for end in (low, value, high) if end is not None]
    width = max(ends) - min(ends)
    digits = 1 - math.floor(math.log10(width / 2)) if width > 0 else 6
    if low is None:
        return f"at most {_rounded(float(high or 0.0), digits, 1)}"
    if high is None:
        return f"at least {_rounded(float(low), digits, -1)}"
    texts = _rounded(float(value or 0.0), digits, 0), _rounded(float(low), digits, -1), _rounded(float(high), digits, 1)
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"


def _rounded(number: float, digits: int, toward: int) -> str:
    """Return a number to so many digits behind the point, towards the next one below or above."""
    digits = min(max(digits, -15), 12)
    scale = 10.0 ** abs(digits)
    exact = number * scale if digits >= 0 else number / scale
    units = math.floor(exact) if toward < 0 else math.ceil(exact) if toward > 0 else round(exact)
    return f"{units / scale if digits >= 0 else units * scale:,.{max(digits, 0)}f}"
