"""Names and values from outside: which characters none has, and text as a terminal may be given it."""

import re
from collections.abc import Sequence

from storage.errors import InputError

# Control characters, separators of lines and paragraphs, and what turns the direction of writing: a terminal obeys them
# instead of showing them. Halves of surrogate pairs are bytes of a file name that are no text. Joiners between letters
# and the marks of a direction belong to texts of several scripts.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str, *, kept: str = "") -> str:
    r"""Return text in which each character that a terminal would obey is written as an escape sequence, such as \\x1b.

    Parameters
    ----------
    text : str
    kept : str
        Characters that stay: line ends of what is meant to have several lines.
    """
    return _OBEYED.sub(lambda found: found[0] if found[0] in kept else found[0].encode("unicode_escape").decode(), text)


def require_visible(place: str, text: str) -> str:
    """Return the name of a column, a class or a group, or a declared value, if every character of it can be shown.

    Parameters
    ----------
    place : str
        What it is and where it is from, for messages.
    text : str

    Raises
    ------
    InputError
        If it holds a control character, a line separator or an override of the direction of writing.
    """
    if (found := _OBEYED.search(text)) is not None:
        raise InputError(
            f"{place} is '{visible(text)[:60]}' and holds U+{ord(found[0]):04X}; names, values and classes must not "
            "contain control characters or overrides of writing direction: remove it"
        )
    return text


def few(texts: Sequence[str], most: int = 8) -> str:
    """Return the first of some texts in one line, and how many more there are."""
    rest = len(texts) - most
    return ", ".join([*texts[:most], *([f"and {rest} more"] if rest > 0 else [])])


WRITTEN = ("row", "refusal", "prediction", "prediction_low", "prediction_high", "prediction_set")
"""Columns that predictions are written under, besides those of :data:`SCORED`."""
SCORED = ("score ", "probability ")
"""What the columns of scores and of probabilities begin with; a class follows."""


def require_kept(name: str, *more: str) -> None:
    """Refuse to keep a column next to predictions whose name is that of a column that is written.

    Names are compared as DuckDB and spreadsheets compare them, without case.

    Parameters
    ----------
    name : str
    *more : str
        Other columns that are written.

    Raises
    ------
    InputError
        If one of the two would be lost.
    """
    folded = name.casefold()
    if folded in (*WRITTEN, *more) or folded.startswith(SCORED):
        written = ", ".join([*WRITTEN, *more, *(f"{start}CLASS" for start in SCORED)])
        raise InputError(
            f"column {name!r} cannot be copied, because predictions use such names ({written}); rename it in the input"
        )
