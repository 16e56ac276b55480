"""Any cell, from any container, as its one canonical value.

A cell means what its text means, since text is what all containers can hold: a typed cell is spelled out as a faithful
writer of text would (whole numbers in digits, floats by their shortest decimal in their own precision, days and times
by ISO 8601, truth values as True and False), and what several writers spell differently has one canonical text. So two
cells are equal if and only if :func:`canonical_texts` gives the same text for them, and all code that compares cells
compares these: missing markers, categories, bins of hashed categories, classes, people, names of columns.

====================================================== ========================
cells                                                  canonical text
====================================================== ========================
99, 99.0, "99", "99.0", "+99", " 99"                   99
1.5, Decimal("1.50"), "1.50"                           1.5
1e-05, "0.00001"                                       1e-05
0.1 in float32 or float64, "0.1", 0.10000000149011612  0.1
1.5e7, "1.5E7", "1.5e+07"                              15000000
"007", "12E4", "1_0" (identifiers)                     as they are
True, "true", "TRUE" (and not 1)                       True
a day, midnight of it, "2026-01-31T00:00:00"           2026-01-31
other times without a zone                             2026-01-31 13:05:00
times with a zone: the instant, in UTC                 2026-01-31 12:05:00Z
durations, as pandas writes them                       1 days 02:03:04
other text                                             NFC, no blanks around it
None, NaN, NA, NaT: missing, see :func:`absent`        null
====================================================== ========================

Null, too, and so refused wherever values are compared, is what cannot be known: floats of 2^53 and above (2^24 of
float32, 2^11 of float16), as such or written with a point or an exponent, since neighbouring whole numbers are the same
float; bytes, lists and mappings; text that is not Unicode.

Columns of numbers and of days compare what a cell means there: :func:`numbers`, :func:`days`. Cells of equal canonical
texts are equal numbers and, where no format is declared, equal days.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.raw_cells import pieces_of

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Years = tuple[int, int]
Before = Callable[[str], str]
"""What is done to a text, without its outer blanks, before it is read; cells of other types are left as they are."""

# A point or a signed exponent is what writers of floats write; leading zeros ("007") and other exponents ("12E4")
# belong to identifiers, which are not numbers to their owner.
_NUMBER = re.compile(
    r"([+-]?)(0|[1-9][0-9]*)(?:(?P<point>\.)([0-9]*)(?:[eE]([+-]?[0-9]{1,5}))?|[eE]([+-][0-9]{1,5}))?", re.ASCII
)
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2})(:[0-9]{2})?(\.[0-9]+)?(Z|[+-][0-9]{2}:?[0-9]{2})?", re.ASCII
)
_CLOCK = re.compile(r"([0-9]{2}:[0-9]{2}:[0-9]{2})\.([0-9]+)", re.ASCII)
_DURATION = re.compile(r"(-?[0-9]+ days) [+]?([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?", re.ASCII)
_FLAGS = {spelling: name for name in ("True", "False") for spelling in (name, name.lower(), name.upper())}
_BEGINS = frozenset("+-0123456789tTfF")

# Of so many bits are whole numbers that no neighbour shares.
_SURE = {pa.float16(): 2.0**11, pa.float32(): 2.0**24, pa.float64(): 2.0**53}
_SURE_DIGITS = 2**53
_LONG = 10
"""Significant digits from which on a text may be a number of single precision that was written in double."""


def canonical_texts(column: Any, decimal: str = ".", before: Before | None = None) -> pa.StringArray:
    """Return the canonical text of each cell.

    Parameters
    ----------
    column : Arrow array or chunked array, or sequence of cells of any types
    decimal : {".", ","}
        What separates whole numbers from their fraction in text.
    before : callable, optional

    Returns
    -------
    pyarrow.StringArray (m,)
        Null where the cell is missing, or where its value cannot be known.
    """
    found = [(_texts(array, decimal, before), rows) for array, rows in pieces_of(column).found]
    if len(found) == 1 and found[0][1] is None:
        return found[0][0]
    texts = np.full(len(column), None, dtype=object)
    for values, rows in found:
        texts[rows] = values.to_numpy(zero_copy_only=False)
    return pa.array(texts, pa.string())


def canonical_text(value: object) -> str | None:
    """Return the canonical text of one cell; None where it is missing or its value cannot be known."""
    text: str | None = _text(value) if isinstance(value, str) else canonical_texts([value])[0].as_py()
    return text


def column_name(name: object) -> str:
    """Return the canonical name of a column: of text NFC without outer blanks, of others their canonical text.

    ``0`` (of ``pd.read_csv(header=None)``) is ``"0"``. Texts that look like numbers stay as they are: 1.1 and 1.10 may
    be two questions.
    """
    if isinstance(name, str):
        return unicodedata.normalize("NFC", name).strip()
    return canonical_text(name) or str(name)


def absent(column: Any) -> Flags:
    """Return which cells hold nothing, in any form: None, NaN, NA, NaT."""
    gone = np.zeros(len(column), dtype=bool)
    for array, rows in pieces_of(column).found:
        if not array.null_count and not pa.types.is_floating(array.type):
            continue
        gone[slice(None) if rows is None else rows] = array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    return gone


def numbers(column: Any, decimal: str = ".", before: Before | None = None) -> Floats:
    """Return cells as numbers, NaN where they are none: truth values, days, times and texts of anything else.

    A number of single precision is its shortest decimal, 0.1 and not 0.10000000149011612, as text holds it.

    Parameters
    ----------
    column, decimal, before
        As of :func:`canonical_texts`.
    """
    values = np.zeros(0)
    for array, rows in pieces_of(column).found:
        found = _numbers(array, decimal, before)
        if rows is None:
            values = found
        else:
            values = values if len(values) else np.full(len(column), np.nan)
            values[rows] = found
    values = values if len(values) else np.full(len(column), np.nan)
    # No text tells -0 from 0 but by its sign, which whole numbers have not.
    return _in_single(values + 0.0)


def number(text: str) -> float:
    """Return a text as a number, NaN where it is none."""
    try:
        # Python reads "1_0" as ten; no table means that.
        return float("nan") if "_" in text else float(text)
    except ValueError:
        return float("nan")


def days(column: Any, formats: Sequence[str] = (), years: Years | None = None) -> Floats:
    """Return the day of each cell as its number since 1970-01-01, NaN where it is none.

    Times with a zone are on the day that it is in UTC then: that is what all containers keep of them.

    Parameters
    ----------
    column : as of :func:`canonical_texts`
    formats : sequence of str
        How text writes days, as of :meth:`datetime.datetime.strptime`, the first that fits; ISO 8601 (2026-01-31, with
        a time or without) where there is none. Cells that are days or times by their type need none.
    years : (int, int), optional
        The first and the last year that are expected, fewer than a hundred. A year of two digits is the one of its
        century that lies among them, otherwise the one nearest to them; of two that are equally near it is none.
        Without them 69 to 99 are 1969 to 1999, and 00 to 68 are 2000 to 2068.
    """
    values = np.full(len(column), np.nan)
    for array, rows in pieces_of(column).found:
        values[slice(None) if rows is None else rows] = _days(array, formats, years)
    return values


def two_digit_year(form: str) -> bool:
    """Whether a format writes years with two digits, which do not tell the century."""
    return not {"y", "x"}.isdisjoint(re.findall("%(.)", form))


def _in_century(day: date, years: Years) -> date | None:
    """Return a day in the century in which its year is nearest to some; None where there is no such day, or two are."""
    first, last = years
    candidates = range(first - 100 + (day.year - first) % 100, last + 101, 100)
    far = sorted((max(first - year, year - last, 0), year) for year in candidates)
    if len(far) > 1 and far[0][0] == far[1][0]:
        return None
    try:
        return day.replace(year=far[0][1])
    except ValueError:
        return None


def day_of(text: str, formats: Sequence[str] = (), years: Years | None = None) -> date | None:
    """Return the day that a text writes, None where it writes none; as of :func:`days`."""
    for spelling in dict.fromkeys((text, _text(text) or text)):
        for form in formats or (None,):
            with suppress(ValueError, OverflowError):
                time = datetime.fromisoformat(spelling) if form is None else datetime.strptime(spelling, form)
                day = (time if time.tzinfo is None else time.astimezone(UTC)).date()
                return _in_century(day, years) if years and form is not None and two_digit_year(form) else day
    return None


def _text(text: str, decimal: str = ".", before: Before | None = None) -> str | None:
    """Return the canonical text of a text."""
    text = text.strip()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if before is not None:
        text = before(text).strip()
    if text[:1] not in _BEGINS:
        return text
    match = _NUMBER.fullmatch(text if decimal == "." else text.replace(",", ".", 1))
    if match is not None:
        return _number_text(match)
    if text in _FLAGS:
        return _FLAGS[text]
    for pattern, spelled in ((_TIME, _time_text), (_CLOCK, _clock_text), (_DURATION, _duration_text)):
        match = pattern.fullmatch(text)
        if match is not None:
            return spelled(match)
    return text


def _number_text(match: re.Match[str]) -> str | None:
    """Return the one spelling of a number's text: digits, with a point where it has a fraction; 1e-05 where small."""
    sign, whole, point, fraction, *exponents = match.groups()
    exponent = exponents[0] or exponents[1]
    sign = sign if sign == "-" else ""
    if point is None and exponent is None:
        return f"{sign}{whole}" if whole != "0" else "0"
    digits, place = whole + (fraction or ""), len(whole) + int(exponent or 0)
    place -= len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    if not digits:
        return "0"
    if place >= len(digits):
        # A float of this size may stand for a neighbour.
        known = place <= 16 and int(whole_number := digits + "0" * (place - len(digits))) < _SURE_DIGITS
        return f"{sign}{whole_number}" if known else None
    if len(digits) >= _LONG:
        value = float(match[0])
        with np.errstate(over="ignore"):
            single = np.float32(value)
        if float(single) == value and (again := _NUMBER.fullmatch(str(single))) and str(single) != match[0]:
            return _number_text(again)
    if place > 0:
        return f"{sign}{digits[:place]}.{digits[place:]}"
    if place > -4:
        return f"{sign}0.{'0' * -place}{digits}"
    return f"{sign}{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}e{place - 1:03d}"


def _time_text(match: re.Match[str]) -> str:
    day, minutes, seconds, fraction, zone = match.groups()
    clock, fraction = minutes + (seconds or ":00"), (fraction or "").rstrip("0").rstrip(".")
    try:
        time = datetime.fromisoformat(f"{day} {clock}{'+00:00' if zone == 'Z' else zone or ''}")
        if zone is not None:
            time = time.astimezone(UTC)
    except (ValueError, OverflowError):
        return match[0]
    if zone is not None:
        return f"{time.isoformat(' ', 'seconds')[:19]}{fraction}Z"
    return day if clock == "00:00:00" and not fraction else f"{day} {clock}{fraction}"


def _clock_text(match: re.Match[str]) -> str:
    fraction = match[2].rstrip("0")
    return f"{match[1]}.{fraction}" if fraction else match[1]


def _duration_text(match: re.Match[str]) -> str:
    fraction = (match[3] or "").rstrip("0").rstrip(".")
    return match[1] if match[2] == "00:00:00" and not fraction else f"{match[1]} {match[2]}{fraction}"


def _each(texts: Any, function: Callable[[str], Any], kind: pa.DataType) -> Any:
    """Return what a function makes of each text of an array, distinct ones once."""
    coded = texts.dictionary_encode()
    found = [None if one is None else function(one) for one in _python(coded.dictionary)]
    return pa.array(found, kind).take(coded.indices)


def _python(texts: Any) -> list[str | None]:
    """Return texts, None for bytes that are none: of one row, so that it must not stop the others."""
    try:
        listed: list[str | None] = texts.to_pylist()
        return listed
    except UnicodeDecodeError:
        decoded: list[str | None] = []
        for scalar in texts:
            with suppress(UnicodeDecodeError):
                decoded.append(scalar.as_py())
                continue
            decoded.append(None)
        return decoded


def _spelled(floats: Any) -> Any:
    """Return floats as their shortest decimals in their own precision; null where there is none."""
    floats = pc.if_else(floats.is_null(nan_is_null=True), pa.scalar(None, floats.type), floats)
    if floats.type != pa.float16():
        return floats.cast(pa.string())
    # Arrow writes these in double.
    return pa.array([None if one is None else str(np.float16(one)) for one in floats.to_pylist()], pa.string())


def _texts(array: Any, decimal: str, before: Before | None) -> pa.StringArray:
    """Return the canonical texts of an array of :mod:`storage.raw_cells`."""
    kind, types = array.type, pa.types
    if types.is_integer(kind):
        return array.cast(pa.string())
    if types.is_null(kind):
        return pa.nulls(len(array), pa.string())
    if types.is_boolean(kind):
        return pc.if_else(array, "True", "False")
    if types.is_floating(kind):
        with np.errstate(invalid="ignore"):
            size = np.abs(array.to_numpy(zero_copy_only=False).astype(np.float64))
        unsure = np.isfinite(size) & (size >= _SURE[kind])
        spelled = _each(_spelled(array), _text, pa.string())
        return pc.if_else(pa.array(unsure), pa.scalar(None, pa.string()), spelled)
    if types.is_date(kind) or types.is_timestamp(kind):
        known = ~np.isnan(_days(array, ()))
        spelled = array.cast(pa.date32() if types.is_date(kind) else kind).cast(pa.string())
        return _each(pc.if_else(pa.array(known), spelled, pa.scalar(None, pa.string())), _text, pa.string())
    return _each(array, lambda text: _text(text, decimal, before), pa.string())


_EXCHANGED = str.maketrans(".,", ",.")


def _numbers(array: Any, decimal: str, before: Before | None) -> Floats:
    """Return an array of :mod:`storage.raw_cells` as numbers, in double where they are floats in double."""
    kind, types = array.type, pa.types
    if types.is_integer(kind) or kind == pa.float64():
        values: Floats = array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        return values
    if types.is_floating(kind):
        found: Floats = _spelled(array).cast(pa.float64()).to_numpy(zero_copy_only=False)
        return found
    if types.is_boolean(kind) or types.is_date(kind) or types.is_timestamp(kind) or types.is_null(kind):
        return np.full(len(array), np.nan)
    if decimal == "." and before is None:
        # Most columns are of numbers alone, and then in order.
        for trim in (False, True):
            with suppress(pa.ArrowInvalid):
                whole: Floats = (
                    (pc.utf8_trim_whitespace(array) if trim else array)
                    .cast(pa.float64())
                    .to_numpy(zero_copy_only=False)
                )
                return whole

    def read(text: str) -> float:
        # With both exchanged, "1.234,5" is no number, where leaving the point out would guess what it meant.
        text = (text if decimal == "." else text.translate(_EXCHANGED)).strip()
        return number(text if before is None else before(text))

    read_one_by_one: Floats = _each(array, read, pa.float64()).to_numpy(zero_copy_only=False)
    return read_one_by_one


def _in_single(values: Floats) -> Floats:
    """Return numbers with fractions that single precision holds exactly as their shortest decimals there."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
        equal = single == values
        if not equal.any():
            return values
        held = np.flatnonzero(equal & (np.abs(values) < 2.0**24) & (values != np.trunc(values)))
    if not len(held):
        return values
    distinct, places = np.unique(single[held], return_inverse=True)
    spelled = pa.array(distinct).cast(pa.string()).cast(pa.float64()).to_numpy()
    values = values.copy()
    values[held] = spelled[places]
    return values


_EPOCH = date(1970, 1, 1).toordinal()
_FIRST, _LAST = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def _days(array: Any, formats: Sequence[str], years: Years | None = None) -> Floats:
    """Return the days of an array of :mod:`storage.raw_cells`."""
    kind, types = array.type, pa.types
    if types.is_date(kind) or types.is_timestamp(kind):
        steps = 1 if kind == pa.date32() else _A_DAY["ms" if types.is_date(kind) else kind.unit]
        whole = array.cast(pa.int32()).cast(pa.int64()) if kind == pa.date32() else array.cast(pa.int64())
        days = np.floor_divide(whole.fill_null(0).to_numpy(), steps)
        known = array.is_valid().to_numpy(zero_copy_only=False) & (days >= _FIRST) & (days <= _LAST)
        return np.where(known, days, np.nan).astype(np.float64)
    if types.is_boolean(kind) or types.is_null(kind):
        return np.full(len(array), np.nan)

    def read(text: str) -> float | None:
        day = day_of(text.strip(), formats, years)
        return None if day is None else float(day.toordinal() - _EPOCH)

    texts = _spelled(array) if types.is_floating(kind) else array
    texts = texts.cast(pa.string()) if types.is_integer(kind) else texts
    values: Floats = _each(texts, read, pa.float64()).to_numpy(zero_copy_only=False)
    return values
