"""Metrics with their margins, and the one decision whether a number can be measured.

*The decision.* A number is reported as "cannot be measured" where its 95 % margin tells it neither from what is reached
without a model nor from a perfect model (:func:`why_unknown`). Margins are computed from the public deviation of the
noise and from released, noisy values, and nothing else enters: the decision is post-processing, and tells nothing that
the release does not.

*What then stands where.* The value is ``nan``, its margin stays (the least and the largest value that are possible),
and the reason is kept under the metric's name. Every output reads :class:`Metrics`; none decides again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Self

from dpalgos.guarantees import rounded_down, rounded_up

ENDS = ("_low", "_high")
_OF_A_METRIC = (*ENDS, "_noise")
_REASON = "_reason"

HOLDS_BOTH = "its 95 % margin holds what guessing gives and what a perfect model gives"
HOLDS_ALL = "its 95 % margin holds every value that is possible"
NO_VALUE = "the noise leaves no value"
TOO_MUCH_NOISE = "the noise alone makes its margin wider than half of what the number can be"

_NEAR, _WIDE = 0.01, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Meaning of a metric's values.

    Parameters
    ----------
    guess : float
        What is reached without a model: 1/K for the balanced accuracy, 0 for R².
    perfect : float
        What a perfect model reaches; below ``guess`` where less is better.
    least, most : float
        Between which the metric lies; infinite where nothing bounds it.
    whole : float
        What nearness and width are counted in: 1 for shares and R², the error of guessing for a mean absolute error.
    """

    guess: float = 0.0
    perfect: float = 1.0
    least: float = 0.0
    most: float = 1.0
    whole: float = 1.0


SHARE = Scale()
"""A share of rows, of which nothing is known without looking."""


def in_digits(number: float, digits: int = 4, toward: int = 0) -> str:
    """Return a number to so many significant digits as people write it: 57,490 and not 5.749e+04.

    Parameters
    ----------
    number : float
    digits : int
    toward : int
        Which way to round: down where negative, up where positive, to the nearest where 0.
    """
    if toward and math.isfinite(number):
        number = rounded_up(number, digits) if toward > 0 else rounded_down(number, digits)
    size = abs(number)
    if not math.isfinite(number) or (size and not 1e-4 <= size < 1e15):
        return f"{number:.{digits}g}"
    places = digits - 1 - math.floor(math.log10(size)) if size else 0
    # Digits before the point are never cut, and zeros behind it are left out.
    text = f"{round(number, places):,.{max(places, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


_ROUNDING = {-1: ROUND_FLOOR, 0: ROUND_HALF_EVEN, 1: ROUND_CEILING}
_MOST_PLACES = 6


def in_places(number: float, places: int, toward: int = 0, *, signed: bool = False) -> str:
    """Return a number to so many places behind the point, as tables show it.

    What is not 0, 1 or −1 is not written as one of them where there are places behind the point. It gets further
    places, up to six; what is nearer is written as above or below that number.

    Parameters
    ----------
    number : float
    places : int
        Negative ones stand before the point: −2 rounds to hundreds.
    toward : int
        Which way to round, as for :func:`in_digits`. Ends of a margin are rounded outward.
    signed : bool
        Whether a positive number has a sign, too.
    """
    sign = "+" if signed else ""
    if not math.isfinite(number):
        return f"{number:{sign}}"
    # The shortest decimal that stands for the number: 0.29 times 100 is less than 29 in binary.
    exact = Decimal(repr(float(number)))
    for kept in range(places, max(places, _MOST_PLACES) + 1) if places > 0 else [0]:
        rounded = exact.quantize(Decimal(1).scaleb(-kept if kept else -places), _ROUNDING[toward])
        if not kept or abs(rounded) not in (0, 1) or rounded == exact:
            return f"{rounded or abs(rounded):{sign},.{kept}f}"
    return f"{'>' if exact > rounded else '<'} {rounded or abs(rounded):.0f}"


def written(number: float, form: str, toward: int = 0) -> str:
    """Return a number in a format of Python's, rounded and shown as by :func:`in_digits` and :func:`in_places`.

    Parameters
    ----------
    number : float
    form : str
        As ``.3f``, ``+.3f``, ``,.0f``, ``.4g`` or ``g``.
    toward : int
    """
    digits = form.strip("+,.fg")
    if form.endswith("g"):
        return in_digits(number, int(digits or 6), toward)
    return in_places(number, int(digits or 6), toward, signed="+" in form)


def with_margin(number: float, limits: tuple[float, float] | None, form: str) -> str:
    """Return a number and its margin in brackets, whose ends are rounded outward; the number alone without one."""
    if limits is None:
        return written(number, form)
    return f"{written(number, form)} ({margin_of(limits, form)})"


def margin_of(limits: tuple[float, float], form: str) -> str:
    """Return the ends of a margin, rounded outward."""
    return f"{written(limits[0], form, -1)} to {written(limits[1], form, 1)}"


def why_unknown(value: float, low: float, high: float, scale: Scale) -> str:
    """Return why a number cannot be measured, or nothing where it can.

    It cannot where its margin holds what guessing gives and a value within 1 % of a perfect model's, or everything that
    is possible. A margin of less than a fifth of ``scale.whole`` says something all the same: where guessing is nearly
    perfect, as for the recall of a class that is most of the rows.

    Parameters
    ----------
    value, low, high : float
        A released, noisy number and the ends of its 95 % margin.
    scale : Scale
    """
    if not math.isfinite(value) or math.isnan(low) or math.isnan(high):
        return NO_VALUE
    if low <= scale.least and high >= scale.most:
        return HOLDS_ALL if scale.guess == scale.least else HOLDS_BOTH
    near = _NEAR * scale.whole
    if scale.perfect >= scale.guess:
        both = low <= scale.guess and high >= scale.perfect - near
    else:
        both = high >= scale.guess and low <= scale.perfect + near
    return HOLDS_BOTH if both and high - low >= _WIDE * scale.whole else ""


class Metrics(dict[str, float]):
    """Metrics by name, each noisy one with the ends of its 95 % margin, ``<name>_low`` and ``<name>_high``.

    A metric that cannot be measured is ``nan``, and :attr:`reasons` says why. Exact numbers, of public rows, and public
    ones (``held_out_rows``) have no margins. ``<name>_noise`` is a standard deviation by the noise alone.

    Parameters
    ----------
    values : mapping of str to float, optional
    reasons : mapping of str to str, optional
        Of the metrics among them that are ``nan``.
    """

    reasons: dict[str, str]
    estimates: dict[str, float]
    """Noisy values of what cannot be measured. No output has them; a comparison of two models takes them with their
    noise, for a difference may be known where neither number is."""

    def __init__(self, values: Mapping[str, float] | None = None, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(values or {})
        known = reasons if reasons is not None else getattr(values, "reasons", {})
        self.reasons, self.estimates = dict(known), dict(getattr(values, "estimates", {}))

    def measure(
        self, name: str, value: float, limits: tuple[float, float], scale: Scale = SHARE, *, widen: bool = True
    ) -> None:
        """Add a noisy number, moved into its margin, or the reason why it cannot be measured.

        Parameters
        ----------
        name : str
        value : float
        limits : (float, float)
            The ends of its 95 % margin.
        scale : Scale
        widen : bool
            Whether the margin of what cannot be measured becomes all that is possible. It is left as it is otherwise,
            where comparisons read it.
        """
        low, high = map(float, limits)
        if why := why_unknown(value, low, high, scale):
            self.refuse(name, why, (scale.least, scale.most) if widen else (low, high))
            self.estimates[name] = float(value)
        else:
            self.update({name: min(max(float(value), low), high), f"{name}_low": low, f"{name}_high": high})

    def refuse(self, name: str, why: str, limits: tuple[float, float]) -> None:
        """Add a metric that cannot be measured, why, and between which values it must lie."""
        self.update({name: math.nan, f"{name}_low": limits[0], f"{name}_high": limits[1]})
        self.reasons[name] = why

    def is_known(self, name: str) -> bool:
        """Whether there is a metric of this name that was measured; its noise and its margin's ends are as it is."""
        return name in self and not any(name == f"{one}{end}" for one in self.reasons for end in ("", *_OF_A_METRIC))

    def known(self) -> dict[str, float]:
        """Return what was measured, with margins and noise; of what cannot be measured, nothing."""
        return {name: value for name, value in self.items() if self.is_known(name)}

    def limits(self, name: str) -> tuple[float, float] | None:
        """Return the ends of a metric's margin; None where it is exact, or not there."""
        low, high = (self.get(f"{name}{end}") for end in ENDS)
        return None if low is None or high is None else (low, high)

    def names(self) -> list[str]:
        """Return the names of the metrics, without those of their margins' ends."""
        return [name for name in self if not name.endswith(ENDS)]

    def merged(self, other: Mapping[str, float]) -> Self:
        """Return these metrics and those of ``other``, which come first where a name is in both."""
        own = {name: why for name, why in self.reasons.items() if name not in other}
        found = type(self)({**self, **other}, {**own, **getattr(other, "reasons", {})})
        found.estimates = {**self.estimates, **getattr(other, "estimates", {})}
        return found

    def to_json(self) -> dict[str, float | str | None]:
        """Return them for JSON: null and ``<name>_reason`` for what cannot be measured, null for an open end."""
        found: dict[str, float | str | None] = {}
        for name, value in self.items():
            found[name] = float(value) if math.isfinite(value) else None
            if name in self.reasons:
                found[f"{name}{_REASON}"] = self.reasons[name]
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, float | str | None]) -> Self:
        """Return what :meth:`to_json` has given."""
        if isinstance(found, cls):
            return found
        reasons = {name.removesuffix(_REASON): str(why) for name, why in found.items() if name.endswith(_REASON)}
        numbers = {name: value for name, value in found.items() if not name.endswith(_REASON)}
        values = {name: _absent(name) if value is None else value for name, value in numbers.items()}
        return cls({name: float(value) for name, value in values.items()}, reasons)

    def __eq__(self, other: object) -> bool:
        """Whether they say the same; what cannot be measured is equal to itself."""
        return isinstance(other, Mapping) and self.to_json() == Metrics(other).to_json()

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


def _absent(name: str) -> float:
    """Return what null stands for in JSON: an open end of a margin, or what cannot be measured."""
    return {"_low": -math.inf, "_high": math.inf}.get(name[name.rfind("_") :], math.nan)


def mean(of: Sequence[Metrics]) -> Metrics:
    """Return the mean of several models' metrics; one that cannot be measured of any of them cannot be of the mean.

    Models' noises are independent, the held-out rows are the same ones: the mean of limits that hold with 95 % each is
    wider than the mean's own where their errors are independent.
    """
    count = len(of)
    reasons = {name: why for one in reversed(of) for name, why in one.reasons.items()}
    values = {}
    for name in of[0]:
        several = [one[name] for one in of if name in one]
        if name in reasons:
            values[name] = math.nan
        elif name.endswith("_noise"):
            values[name] = math.hypot(*several) / count
        else:
            values[name] = math.fsum(several) / len(several)
    found = Metrics(values, reasons)
    found.estimates = {
        name: math.fsum(one.estimates.get(name, one[name]) for one in of) / count
        for name in reasons
        if all(name in one for one in of)
    }
    return found
