"""Arrivals: the rows of a version that are new in it, by keyed fingerprints of rows and labels.

A row's fingerprint is an 8-byte BLAKE2b value of its features, its label and the party that brought it, keyed with the
root's secret. They are kept in the order of the rows, in separate private files, so that an earlier version may be
deleted. Equal rows are counted: of a row that was there twice and is there three times, one has arrived. So how many
arrive, in all and with each party's file, depends on no row's content: where one row is another from its night on, as
many are new in every version. Which of equal rows is the new one, the last, depends on content: where new rows stand
after the old ones, of each file, and these in their order, it is those that stand there, for any content of the rows.

Of people's rows each version says itself since when each is there (:class:`storage.people.Seen`).
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage.atomic import write_bytes, writing
from storage.datasets import open_dataset, origins
from storage.documents import pack_arrays, unpack_arrays
from storage.errors import StorageError
from storage.fingerprints import row_fingerprints
from storage.layout import Layout
from storage.people import ranks
from storage.refs import DatasetRef
from storage.rowfiles import NULL_CLASS
from storage.secrets import root_secret

_Prints = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The rows of one night of a horizon, of people those who are new in it; public.

    Parameters
    ----------
    horizon : int
        Number of the data set's horizon, from 1.
    night : int
        From 1.
    version : str
        The registered version in which they stand.
    rows : int
        How many records arrived.
    by_file : tuple of int
        How many with each party's own file, in order; empty where the rows have one owner.
    """

    horizon: int
    night: int
    version: str
    rows: int
    by_file: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a version from the one before, for the owner alone.

    Parameters
    ----------
    positions : array (m,) of int64
        Of the rows that are new, among the training rows; of the records, where people are new.
    missing : int
        Rows of the version before that are not there any more, or not as they were.
    returning : int
        New rows that were there before, null records apart.
    appended : bool
        Whether each file begins with the rows that it had in the version before, in their order. Then the new rows are
        those after them, for any content: of each value the first rows, as many as there were, stand before.
    """

    positions: NDArray[np.int64]
    missing: int
    returning: int
    appended: bool


def difference(
    layout: Layout, now: DatasetRef, before: DatasetRef | None, earlier: tuple[DatasetRef, ...]
) -> Difference:
    """Compare a version with the one before.

    Parameters
    ----------
    layout : Layout
    now : DatasetRef
        As registered.
    before : DatasetRef or None
        None for the first.
    earlier : tuple of DatasetRef
        Versions that held rows which the one before no longer holds.

    Raises
    ------
    StorageError
        If the rows of a version are gone, and its fingerprints with them.
    """
    prints, null = _prints_of(layout, now)
    if before is None:
        return Difference(np.arange(len(prints), dtype=np.int64), 0, 0, appended=True)
    old = _prints_of(layout, before)[0]
    values, places = np.unique(np.concatenate([old, prints]), return_inverse=True)
    then, there = np.split(places, [len(old)])
    had, has = (np.bincount(each, minlength=len(values)) for each in (then, there))
    order = np.argsort(there, kind="stable")
    occurrence = np.empty(len(prints), dtype=np.int64)
    occurrence[order] = ranks(there[order])
    new = occurrence >= had[there]
    missing = int(np.maximum(had - has, 0).sum())
    seen = np.concatenate([old, *(_prints_of(layout, one)[0] for one in earlier)])
    returning = int((np.isin(prints, seen) & new & ~null).sum())
    files = _by_file(layout, now, prints)
    appended = all(
        np.array_equal(files.get(name, rows[:0])[: len(rows)], rows)
        for name, rows in _by_file(layout, before, old).items()
    )
    return Difference(np.flatnonzero(new).astype(np.int64), missing, returning, appended)


def _by_file(layout: Layout, ref: DatasetRef, prints: _Prints) -> dict[str, _Prints]:
    """Return the fingerprints of each party's file, those of one owner under no name."""
    files = origins(layout, ref) or (("", len(prints)),)
    ends = np.cumsum([rows for _, rows in files])
    return {name: prints[end - rows : end] for (name, rows), end in zip(files, ends, strict=True)}


def _prints_of(layout: Layout, ref: DatasetRef) -> tuple[_Prints, NDArray[np.bool_]]:
    """Return the fingerprints of a version's training rows in their order, and which rows are null records."""
    path = layout.arrivals / f"{ref.version}.npz"
    if not path.exists():
        key, prints, null = root_secret(layout), [], []
        for features, labels, _ in open_dataset(layout, ref).blocks():
            marked = np.hstack([features, np.asarray(labels, dtype=np.float32)[:, None] + np.float32(2.0)])
            prints.append(row_fingerprints(marked, key))
            null.append(np.asarray(labels == NULL_CLASS))
        # Of equal rows of two parties, each is its own party's, whichever arrived first.
        whose = [hashlib.blake2b(name.encode(), key=key, digest_size=8).digest() for name, _ in origins(layout, ref)]
        sizes = [rows for _, rows in origins(layout, ref)] or [0]
        brought = np.frombuffer(b"".join(whose) or bytes(8), dtype="<u8").astype(np.uint64)
        brought = np.repeat(brought, sizes)
        every = np.concatenate(prints)
        data = pack_arrays({"prints": every ^ brought if len(brought) else every, "null": np.concatenate(null)})
        with writing(layout.arrivals):
            layout.arrivals.mkdir(mode=0o700, exist_ok=True)
            write_bytes(path, data, mode=0o600)
    try:
        kept = unpack_arrays(path.read_bytes(), path)
        return kept["prints"], kept["null"]
    except (OSError, StorageError, KeyError) as error:
        raise StorageError(
            f"{path} is damaged: {error}; remove it, and it is computed again from the stored rows"
        ) from error
