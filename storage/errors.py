"""Errors of storage, sorted by what the caller can do about them."""

from copy import copy
from typing import Self


class StatedError(Exception):
    """An error whose most used checks also state in fields what the message says in words.

    Parameters
    ----------
    message : str
    value : object, optional
        The value that is refused; None where the check states none.
    bound : object, optional
        What the value must be, or what it differs from.
    way_out : str, optional
        The option or command that is the way out, such as ``--replicate``.
    """

    def __init__(self, message: str = "", *, value: object = None, bound: object = None, way_out: str = "") -> None:
        super().__init__(message)
        self.value, self.bound, self.way_out = value, bound, way_out

    def saying(self, message: str) -> Self:
        """Return an error of the same class and fields with another message."""
        other = copy(self)
        other.args = (message,)
        return other


class StorageError(StatedError):
    """Something stored is missing, damaged or cannot be written; the message says what and the way out."""


class InputError(StatedError, ValueError):
    """Bad input data or a bad argument; the message names the place, the value, the bound and the way out."""


class EndedError(InputError):
    """A process that worked on what comes from outside ended before its work did.

    Parameters
    ----------
    message : str
    why : str
        ``"time"`` or ``"memory"`` where it took more than it may, ``"died"`` otherwise.
    """

    def __init__(self, message: str = "", why: str = "died") -> None:
        super().__init__(message)
        self.why = why


class RefusedError(StatedError):
    """Refused for privacy: a cap would be exceeded, or something unproved would read private rows."""


class OverspendError(RefusedError):
    """A charge would exceed the cap of its account; nothing was charged.

    Parameters
    ----------
    reason : str
        What would be spent.
    left : str
        What would fit instead: said first.
    fits : float
        The largest epsilon at which planning found that the same run would; 0 where it found or asked for none.
    value : float or None
        The account's epsilon after the charge, at the cap's delta; None where it is infinite.
    bound : float or None
        The epsilon of the cap.
    """

    def __init__(
        self,
        reason: str,
        left: str = "",
        fits: float = 0.0,
        *,
        value: float | None = None,
        bound: float | None = None,
    ) -> None:
        super().__init__("; ".join(part for part in (left, reason) if part), value=value, bound=bound)
        self.reason, self.fits = reason, fits
        self.value: float | None = value
        self.bound: float | None = bound

    def leaving(self, left: str, fits: float = 0.0) -> Self:
        """Return the same refusal, which says first what would fit instead."""
        return type(self)(self.reason, left, fits, value=self.value, bound=self.bound)


class PriceError(RefusedError):
    """A charge whose price was not agreed to; nothing was charged.

    Parameters
    ----------
    message : str
        With the price, and how to agree to it.
    price : object, optional
        What would be charged.
    """

    def __init__(self, message: str, price: object = None) -> None:
        super().__init__(message)
        self.price = price


class DamagedError(StorageError):
    """A stored file does not match its digest; the message names the file."""


class FormatVersionError(StorageError):
    """Written by another version of Unitball, in a format that this one does not read."""


def require_format(place: object, found: int, reads: int, way_out: str = "use the Unitball that wrote it") -> None:
    """Refuse what is stored in another format than the one that this code writes and reads.

    Parameters
    ----------
    place : object
        What holds it, for messages.
    found, reads : int
        The format version that it states, and the one of this code.
    way_out : str

    Raises
    ------
    FormatVersionError
    """
    if found != reads:
        raise FormatVersionError(
            f"{place} has format version {found}; this version of Unitball reads {reads}; {way_out}",
            value=found,
            bound=reads,
        )


class SecretError(StorageError):
    """A party's secret is missing, readable by others, or not the one a release was charged under."""


def first_line(error: BaseException | None) -> str:
    """Return the first line of what an error says, or its name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
