"""Charges of this process, for the line that a stopped run ends with.

Code that charges runs within :func:`charging`, and code that stops the process calls :func:`stop`: from then on nothing
is charged here, so that the line stays true while the rest of the process ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

# For so long a charge that is being written may still tell how it ended: a local ledger takes milliseconds.
_PATIENCE_SECONDS = 1.0
AGAIN = "run it again: nothing is charged twice"


@dataclass(frozen=True, slots=True)
class Written:
    """Outcome of a charge.

    Parameters
    ----------
    charged : int
        Releases that were charged now, without earlier ones.
    before, after : float or None
        The epsilon that the account has spent, without and with it, rounded up; None where it has no bound, or is not
        known.
    cap : str or None
        What charges go by, in words; None for public rows, of which no charge is spoken.
    """

    charged: int
    before: float | None = None
    after: float | None = None
    cap: str | None = None


class _Record:
    """Charges by account; one record per process."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.stopped = False
        self.apart = False
        self.open: list[str] = []
        self.unknown: list[str] = []
        self.told: set[str] = set()
        self.elsewhere: dict[str, str] = {}
        self.charged: dict[str, Written] = {}
        self.earlier: list[str] = []


_record = _Record()


@contextmanager
def charging(account: str, ask: Callable[[], Written | None]) -> Iterator[Callable[[Written], None]]:
    """Note what is charged within; yields what to tell the outcome to.

    Parameters
    ----------
    account : str
    ask : callable
        Called where the charge was interrupted and its outcome is unknown here: returns the ledger's entry for it, or
        None.

    Raises
    ------
    KeyboardInterrupt
        If the process was told to stop: what was said then must stay true.
    """
    with _record.changed:
        if _record.stopped:
            raise KeyboardInterrupt
        _record.open.append(account)
    told: list[Written] = []
    known = True
    try:
        yield told.append
    except Exception:
        # A refused charge, and one that could not be written, is none.
        raise
    except BaseException:
        # Unless the ledger can be asked to the end: a second signal may break that off.
        known = False
        with suppress(Exception):
            found = ask()
            told[:] = [] if found is None else [found]
            known = True
        raise
    finally:
        # In this order: a signal may break it off at any place, and what is open or entered is never said to be none.
        with _record.changed:
            for one in told:
                _enter(account, one)
            if not known:
                _record.unknown.append(account)
            _record.open.remove(account)
            _record.changed.notify_all()


def is_told(account: str) -> bool:
    """Whether something was told of an account before."""
    with _record.changed:
        return account in _record.told


def _enter(account: str, written: Written) -> None:
    if _record.apart:
        return
    first = account not in _record.told
    _record.told.add(account)
    if written.cap is None:
        return
    if not written.charged:
        if first:
            _record.earlier.append(account)
        return
    before = _record.charged.get(account)
    if before is not None:
        written = Written(before.charged + written.charged, before.before, written.after, written.cap)
    _record.charged[account] = written


def note_elsewhere(what: str, stands: str) -> None:
    """Note what others hold for this process from now on, as parties do, or workers on other machines.

    Parameters
    ----------
    what : str
        Noted again, the last sentence counts.
    stands : str
        For people, a sentence without a full stop.

    Raises
    ------
    KeyboardInterrupt
        If the process was told to stop.
    """
    with _record.changed:
        if _record.stopped:
            raise KeyboardInterrupt
        _record.elsewhere[what] = stands


@contextmanager
def apart() -> Iterator[None]:
    """Keep no record of what is charged within: in a root that shares nothing with the user's, and goes."""
    before, _record.apart = _record.apart, True
    try:
        yield
    finally:
        _record.apart = before


def charged_before() -> list[str]:
    """Return the accounts that had paid before for something that was asked for here."""
    with _record.changed:
        return list(_record.earlier)


def stop() -> str:
    """Let nothing be charged here any more; return the sentence that says what stands.

    A charge that is being written is waited for, a second at the most.
    """
    with _record.changed:
        _record.stopped = True
        _record.changed.wait_for(lambda: not _record.open, _PATIENCE_SECONDS)
        return stands()


def stands() -> str:
    """Return the sentence that says what was charged until now, for people."""
    parts = [_charged(account, written) for account, written in _record.charged.items()]
    if earlier := [account for account in _record.earlier if account not in _record.charged]:
        parts.append(f"nothing new was charged; this release is already charged to {_accounts(earlier)}")
    if unknown := [*_record.open, *_record.unknown]:
        parts.append(f"a charge to {_accounts(unknown)} was being written, and is recorded completely or not at all")
    own = [f"{'; '.join(parts)}: {AGAIN}"] if parts else []
    return "; ".join([*own, *_record.elsewhere.values()]) or "nothing was charged"


def _accounts(names: list[str]) -> str:
    return ("accounts " if len(names) > 1 else "account ") + ", ".join(dict.fromkeys(names))


def _charged(account: str, written: Written) -> str:
    releases = "release" if written.charged == 1 else "releases"
    spent = ""
    if written.after is not None:
        before = "" if written.before is None else f" ({written.before:g} before)"
        spent = f", which has now spent epsilon {written.after:g} of {written.cap}{before}"
    return f"charged: {written.charged} {releases} to account {account}{spent}"
