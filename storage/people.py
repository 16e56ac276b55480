"""People behind rows: one spelling of an identifier, its keyed digest, and the register that outlives versions.

What is protected is a *record*: an entry of the register, with all its rows. The register lists who arrived with which
version in which file, in the order of arrival; within a version, file by file, in the order of keyed digests, so that
an exchanged identifier is covered in distribution over the key. Entries are never taken away and never move: a record's
serial number in its file, and all that follows from it and a public seed (party, held-out part, fold), hold for every
later version. Neighbouring data sets have the same register, entry by entry, and differ in the rows of one entry. So
the number of records N is public, also of those without a row in some version, and the number of a person's rows is
not.

A person in several files counts in the entry that came first: their rows elsewhere are left out, by the register and
not by what their rows hold, and their other entries are counted there as null records.

Of more rows than are taken of a person those stay that came last, and of these the ones with the least keyed
fingerprints: a rule that is public, looks at that person's rows alone, and lets rows that are new in a later version
count, for any number of older ones. The others are stored nowhere: what a version takes to read depends on the
number of people and on the limit, and not on how far a person exceeds it. What is kept of every row that came is its
fingerprint with the version that it came first with (:class:`Seen`), which the next ingestion alone looks at; a row
that is away for a version is a new one when it returns.

Digests have 64 bits. Two people of equal digests would be one record, which protects both of them together; what would
break the guarantee is one person as two records, and equal identifiers have equal digests.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from storage.atomic import write_bytes
from storage.cells import canonical_texts
from storage.documents import pack_arrays, unpack_arrays, verify_file
from storage.errors import InputError
from storage.mixing import mixed

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
    """The declaration of the people behind rows.

    Parameters
    ----------
    column : str
        The column whose cells name them.
    rows_per_person : int
        The most rows of one person that are taken, m: public. Of more, those that came last (:func:`at_most`).
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


def identifiers(cells: Any) -> NDArray[np.object_]:
    """Return the one spelling of each cell that names a person, (m,); None where it is missing or ambiguous.

    That is its canonical text (:mod:`storage.cells`): 17, 17.0, ``"17"`` and ``" 17"`` are one person, from CSV,
    Parquet, JSON or a data frame, and ``"007"`` is not 7. Refused are fractions, truth values, and floats so large that
    neighbouring whole numbers are the same float.

    Parameters
    ----------
    cells
        As of :func:`storage.cells.canonical_texts`.
    """
    coded = canonical_texts(cells).dictionary_encode()
    texts = coded.dictionary.to_pylist()
    known = np.array([*(None if _NOBODY.fullmatch(text) else text for text in texts), None], dtype=object)
    return np.asarray(known[coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)])


def named(names: Any) -> NDArray[np.bool_]:
    """Return which of some identifiers name a person, (m,)."""
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
class PersonRegister:
    """The register of people: who arrived, in order.

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
        """Return the register with the new people, file by file.

        Parameters
        ----------
        found : mapping of file to digests
            Of all people in the file, once per row.
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

    def positions(self, file: str, digests: Digests) -> Positions:
        """Return which record of its part each row belongs to; -1 where the person counts in another file.

        Parameters
        ----------
        file : str
        digests : uint64 array (m,)
            Of the rows' people, all of whom are in the register.
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


def at_most(
    positions: Positions, prints: Digests, labels: NDArray[Any], most: int, since: Positions | None = None
) -> Positions:
    """Return the positions of rows with -1 for those beyond ``most`` of a record.

    Those that came last stay, and of these the ones of least keyed fingerprint. Which of a person's rows stay depends
    on that person's rows alone.

    Parameters
    ----------
    positions : int32 array (m,)
    prints : uint64 array (m,)
        Keyed fingerprints of the rows' features.
    labels : array (m,)
        Tells rows of equal features apart.
    most : int
    since : int32 array (m,), optional
        The version that each came first with; all with the same by default.
    """
    came = np.zeros(len(positions), dtype=np.int32) if since is None else since
    order = np.lexsort((labels, prints, -came, positions))
    kept = positions.copy()
    kept[order[ranks(positions[order]) >= most]] = -1
    return kept


def row_digests(digests: Digests, prints: Digests, labels: NDArray[Any]) -> Digests:
    """Return what tells a person's row from all others, (m,): made of keyed digests, so that it cannot be guessed.

    Parameters
    ----------
    digests : uint64 array (m,)
        Of the rows' people.
    prints : uint64 array (m,)
        Keyed fingerprints of the rows' features.
    labels : array (m,)
    """
    # Each label another number, so that no two labels are one.
    spread = mixed(np.ascontiguousarray(labels, dtype=np.float64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return np.asarray(digests ^ prints ^ spread, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Seen:
    """The training rows that came with a version's file, those beyond the limit too, and since when each is there.

    Attributes
    ----------
    version : int
        Which of a data set's versions it is, from 1; 0 before the first.
    rows : uint64 array (m,)
        Their digests (:func:`row_digests`), sorted.
    since : int32 array (m,)
        The version that each came first with, not to be gone again; of equal rows the earliest first.
    """

    version: int = 0
    rows: Digests = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    since: Positions = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def followed_by(self, rows: Digests) -> tuple[Self, Positions]:
        """Return the next version's, and of each of its rows since when it is there, (m,).

        Equal rows are counted: of a row that was there twice and is there three times, one is new.

        Parameters
        ----------
        rows : uint64 array (m,)
            Digests of the rows that come with it.
        """
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        places = np.searchsorted(self.rows, ordered) + ranks(ordered)
        there = places < len(self.rows)
        there[there] = self.rows[places[there]] == ordered[there]
        came = np.full(len(rows), self.version + 1, dtype=np.int32)
        came[there] = self.since[places[there]]
        since = np.empty_like(came)
        since[order] = came
        return replace(self, version=self.version + 1, rows=ordered, since=came), since


def ranks(ordered: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many equal ones stand before each of sorted values."""
    return np.arange(len(ordered)) - np.searchsorted(ordered, ordered)


def record_sizes(positions: Positions, records: int) -> NDArray[np.int32]:
    """Return how many rows each row's record has in its part, (m,); 0 for rows that are left out."""
    counted = np.bincount(positions[positions >= 0], minlength=records).astype(np.int32)
    return np.where(positions >= 0, counted[positions], 0).astype(np.int32)


class StoredPeople(NamedTuple):
    """The people behind a stored version's rows.

    Attributes
    ----------
    register : PersonRegister
    positions : mapping of part to int32 array
        Each stored row's record.
    since : int32 array (m,)
        The version that each stored training row came first with, as :class:`Seen` counts them.
    """

    register: PersonRegister
    positions: Mapping[str, Positions]
    since: Positions


def save_people(path: Path, people: StoredPeople) -> str:
    """Write the people behind a version's rows; return the digest of what was written."""
    files = np.frombuffer(json.dumps(people.register.files).encode(), dtype=np.uint8)
    fixed: dict[str, NDArray[Any]] = {
        "files": files,
        "entries": people.register.file,
        "digests": people.register.digest,
    }
    return _save(path, {**fixed, "since": people.since, **people.positions})


def load_people(path: Path, digest: str) -> StoredPeople:
    """Return what :func:`save_people` wrote.

    Raises
    ------
    DamagedError
        If it is missing or differs, naming it.
    """
    stored = _loaded(path, digest)
    files = tuple(json.loads(stored.pop("files").tobytes()))
    register = PersonRegister(files, stored.pop("entries"), stored.pop("digests"))
    since = stored.pop("since")
    return StoredPeople(register, stored, since)


def save_seen(path: Path, seen: Seen) -> str:
    """Write which rows came with a version; return the digest of what was written."""
    return _save(path, {"version": np.array([seen.version]), "rows": seen.rows, "since": seen.since})


def load_seen(path: Path, digest: str) -> Seen:
    """Return what :func:`save_seen` wrote.

    Raises
    ------
    DamagedError
        If it is missing or differs, naming it.
    """
    stored = _loaded(path, digest)
    return Seen(int(stored["version"][0]), stored["rows"], stored["since"])


def _save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> str:
    data = pack_arrays(dict(arrays))
    write_bytes(path, data, mode=0o600)
    return hashlib.sha256(data).hexdigest()


def _loaded(path: Path, digest: str) -> dict[str, NDArray[Any]]:
    verify_file(path, digest, "restore it from a back-up")
    return unpack_arrays(path.read_bytes(), path)
