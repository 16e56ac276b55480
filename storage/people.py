"""People behind rows: one spelling of an identifier, its keyed digest, and the roster that outlives versions.

What is protected is a *record*: an entry of the roster, with all its rows. The roster lists who arrived with which
version in which file, in the order of arrival; within a version, file by file, in the order of keyed digests, so that
an exchanged identifier is covered in distribution over the key. Entries are never taken away and never move: a record's
serial number in its file, and all that follows from it and a public seed (party, held-out part, fold), hold for every
later version. Neighbouring data sets have the same roster, entry by entry, and differ in the rows of one entry. So the
number of records N is public, also of those without a row in some version, and how many rows anybody has is not.

Whoever is in several files counts in the entry that came first: their rows elsewhere are left out, by the roster and
not by what their rows hold, and their other entries are counted there as null records.

Digests have 64 bits. Two people of equal digests would be one record, which protects both of them together; what would
break the guarantee is one person as two records, and equal identifiers have equal digests.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from storage.atomic import write_bytes
from storage.cells import canonical
from storage.documents import pack_arrays, unpack_arrays, verify_file
from storage.errors import InputError

Digests = NDArray[np.uint64]
Positions = NDArray[np.int32]

MOST_ROWS = 64
"""Rows of one person that are taken unless a schema says otherwise."""
TEST = "test"
"""The file of test rows; every other file's rows are trained on."""

# Fractions, and truth values; a number without a fraction is written in digits alone.
_NOBODY = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-][0-9]+)|-?inf|True|False|", re.ASCII)


@dataclass(frozen=True, slots=True)
class People:
    """What is declared of the people behind rows.

    Parameters
    ----------
    column : str
        The column whose cells name them.
    rows_per_person : int
        The most rows of one person that are taken, m: public. Of more, those with the least keyed digests.
    namespace : str
        What the identifiers are, such as a hospital's record numbers; tables of one namespace belong to one account.
    """

    column: str
    rows_per_person: int = MOST_ROWS
    namespace: str = ""

    def __str__(self) -> str:
        named = f" of namespace {self.namespace}" if self.namespace else ""
        return f"column {self.column}{named}, at most {self.rows_per_person} rows each"

    def __post_init__(self) -> None:
        most = self.rows_per_person
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= 2**16:
            raise InputError(
                f"column {self.column}: rows_per_person is {most!r}; it must be a whole number from 1 to {2**16}"
            )


def identifiers(cells: Any, decimal: str = ".") -> NDArray[np.object_]:
    """Return the one spelling of each cell that names a person, (m,); None where it names nobody surely.

    That is its canonical text (:mod:`storage.cells`): 17, 17.0, ``"17"`` and ``" 17"`` are one person, from CSV,
    Parquet, JSON or a data frame, and ``"007"`` is not 7. Refused are fractions, truth values, and floats so large that
    neighbouring whole numbers are the same float.

    Parameters
    ----------
    cells, decimal
        As of :func:`storage.cells.canonical`.
    """
    coded = canonical(cells, decimal).dictionary_encode()
    texts = coded.dictionary.to_pylist()
    known = np.array([*(None if _NOBODY.fullmatch(text) else text for text in texts), None], dtype=object)
    return np.asarray(known[coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)])


def named(names: Any) -> NDArray[np.bool_]:
    """Return which of some identifiers name somebody, (m,)."""
    return np.array([name is not None for name in names], dtype=bool)


def keyed_digests(names: NDArray[np.object_], key: bytes) -> Digests:
    """Return the keyed digest of each identifier, (m,).

    Parameters
    ----------
    names : array (m,) of str
    key : bytes
        The root's secret, without which a digest tells nothing about a guessed identifier; empty for public rows, whose
        versions are the same in every root.
    """
    known = {
        name: hashlib.blake2b(name.encode(), key=key[:64], person=b"unitball-people", digest_size=8).digest()
        for name in set(names.tolist())
    }
    return np.frombuffer(b"".join([known[name] for name in names.tolist()]), dtype="<u8").astype(np.uint64)


@dataclass(frozen=True, slots=True)
class Roster:
    """Who arrived, in order.

    Attributes
    ----------
    files : tuple of str
        In the order in which they came: a party's name, empty where there is one owner, or :data:`TEST`.
    file : int32 array (E,)
        Which of them an entry belongs to.
    digest : uint64 array (E,)
    """

    files: tuple[str, ...] = ()
    file: Positions = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    digest: Digests = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))

    def joined_by(self, found: Mapping[str, Digests]) -> Self:
        """Return the roster with whoever is new, file by file.

        Parameters
        ----------
        found : mapping of file to digests
            Of everybody who is in the file, as often as they are.
        """
        files = tuple(dict.fromkeys([*self.files, *found]))
        file, digest = [self.file], [self.digest]
        for name, present in found.items():
            number = files.index(name)
            new = np.setdiff1d(present, self.digest[self.file == number])
            file.append(np.full(len(new), number, dtype=np.int32))
            digest.append(new)
        return replace(self, files=files, file=np.concatenate(file), digest=np.concatenate(digest))

    def records(self, file: str) -> int:
        """Return how many entries a file has: public."""
        return int(np.count_nonzero(self.file == self.files.index(file)))

    def trained_on(self) -> list[tuple[str, int]]:
        """Return the files that are trained on, with their entries, in the order of their records."""
        return [(name, self.records(name)) for name in self.files if name != TEST]

    def named(self) -> Digests:
        """Return the digest of each record that is trained on, and 0 at the end: who is behind position -1."""
        each = [self.digest[self.file == self.files.index(name)] for name, _ in self.trained_on()]
        return np.concatenate([*each, np.zeros(1, dtype=np.uint64)])

    def positions(self, file: str, digests: Digests) -> Positions:
        """Return which record of its part each row belongs to; -1 where the person counts in another file.

        Parameters
        ----------
        file : str
        digests : uint64 array (m,)
            Of the rows' people, all of whom are in the roster.
        """
        entries = np.flatnonzero(self.file == self.files.index(file))
        known = self.digest[entries]
        first = np.unique(self.digest, return_index=True)[1]
        counted = np.isin(entries, first)
        earlier = () if file == TEST else self.files[: self.files.index(file)]
        before = sum(self.records(name) for name in earlier if name != TEST)
        order = np.argsort(known)
        places = order[np.searchsorted(known, digests, sorter=order)]
        return np.where(counted[places], before + places, -1).astype(np.int32)


def at_most(positions: Positions, prints: Digests, labels: NDArray[Any], most: int) -> Positions:
    """Return the positions of rows with -1 for those beyond ``most`` of a record.

    Those of least keyed fingerprint stay. Which of a person's rows stay depends on that person's rows alone.

    Parameters
    ----------
    positions : int32 array (m,)
    prints : uint64 array (m,)
        Keyed fingerprints of the rows' features.
    labels : array (m,)
        Tells rows of equal features apart.
    most : int
    """
    order = np.lexsort((labels, prints, positions))
    kept = positions.copy()
    kept[order[ranks(positions[order]) >= most]] = -1
    return kept


def ranks(ordered: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many equal ones stand before each of sorted values."""
    return np.arange(len(ordered)) - np.searchsorted(ordered, ordered)


def shares(positions: Positions, records: int) -> NDArray[np.int32]:
    """Return how many rows each row's record has in its part, (m,); 0 for rows that are left out."""
    counted = np.bincount(positions[positions >= 0], minlength=records).astype(np.int32)
    return np.where(positions >= 0, counted[positions], 0).astype(np.int32)


def save_people(path: Path, roster: Roster, positions: Mapping[str, Positions]) -> str:
    """Write a version's roster and each row's record, part by part; return the digest of what was written."""
    files = np.frombuffer(json.dumps(roster.files).encode(), dtype=np.uint8)
    data = pack_arrays({"files": files, "entries": roster.file, "digests": roster.digest, **positions})
    write_bytes(path, data, mode=0o600)
    return hashlib.sha256(data).hexdigest()


def load_people(path: Path, digest: str) -> tuple[Roster, dict[str, Positions]]:
    """Return what :func:`save_people` wrote.

    Raises
    ------
    DamagedError
        If it is missing or differs, naming it.
    """
    verify_file(path, digest, "restore it from a back-up")
    stored = unpack_arrays(path.read_bytes(), path)
    files = tuple(json.loads(stored.pop("files").tobytes()))
    return Roster(files, stored.pop("entries"), stored.pop("digests")), stored
