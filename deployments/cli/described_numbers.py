"""Price of a description, and its numbers with their margins, as lines of a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpalgos.guarantees import rounded_up
from dpalgos.measured import in_places
from storage.ledger.charges import of_cap

if TYPE_CHECKING:
    from tasks.release.descriptions import Figure, Terms


def terms_lines(terms: Terms, *, planned: bool = False, what: str | None = None) -> Iterator[str]:
    """Yield the price of a release and its payer; ``what`` names the counted objects. Default: single columns."""
    parties = len(terms.parties)
    several = f", {parties} parties under trust {terms.trust} (each is charged)" if parties > 1 else ""
    counted = f"{terms.columns} counted columns in {terms.bins} bins" if what is None else what
    yield f"{terms.dataset}, version {terms.version}: {terms.rows} {plural(terms.unit)}, {counted}{several}"
    made = "price:" if planned else "charged:"
    price = f"epsilon {terms.epsilon:g} at delta {terms.delta:g} (mu {rounded_up(terms.mu, 4):g}) for a {terms.unit}"
    if terms.group_size > 1:
        price += f"; the account charges the joint loss of {terms.group_size} rows per person"
    yield f"price: {price}; charged before, not charged again" if terms.paid else f"{made} {price}"
    if planned:
        yield _noise_line(terms, "each count of a value or class" if what is None else "each cell")
    if not planned:
        name = terms.description[:12]
        yield f"description {name}: in MLflow, and exported with `unitball export {name} --out description.zip`"
    if not terms.account:
        yield "each party paid from its own account: unitball budget at the party"
        return
    if terms.cap_epsilon is None:
        yield f"account {terms.account}: the rows are public, and nothing is charged"
        return
    left = "" if terms.left is None else f"{terms.left.said}; "
    cap = of_cap(terms.cap_epsilon, terms.cap_promised)
    yield (
        f"account {terms.account}: {left}cap epsilon {cap} at delta {terms.cap_delta:g}, unit {terms.unit}, "
        f"relation {terms.relation}; spent {_epsilon(terms.spent)}"
    )


def _noise_line(terms: Terms, counted: str) -> str:
    """Return how much noise each count has, in rows or people and as a share of all of them."""
    share = f" ({100 * terms.deviation / terms.rows:.2g} % of all)" if terms.rows else ""
    bars = f", {terms.bar_deviation:.3g} on each of {terms.bars} bars of a number" if terms.bars else ""
    return f"noise: standard deviation of {terms.deviation:.3g} {plural(terms.unit)} on {counted}{share}{bars}"


def plural(unit: str) -> str:
    """Return the plural of what is protected."""
    return "rows" if unit == "row" else "people"


def _epsilon(number: float | None) -> str:
    return "∞" if number is None else f"{rounded_up(number, 4):g}"


def unmeasured() -> str:
    """Return the text in place of a number that cannot be measured."""
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
    digits = min(max(digits, -15), 12)
    if low is None:
        return f"at most {in_places(float(high or 0.0), digits, 1)}"
    if high is None:
        return f"at least {in_places(float(low), digits, -1)}"
    written = in_places(float(low), digits, -1), in_places(float(high), digits, 1)
    return f"{in_places(float(value or 0.0), digits)} [{', '.join(written)}]"
