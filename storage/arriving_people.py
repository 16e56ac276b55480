"""The people behind rows of a source: met block by block, joined to a register, their rows limited."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.people import (
    TEST,
    Digests,
    People,
    PersonRegister,
    Positions,
    Seen,
    at_most,
    keyed_digests,
    named,
    row_digests,
)
from storage.source import Block


class ArrivingPeople:
    """The people behind rows as these pass, part by part.

    Parameters
    ----------
    people : People
        What is declared of them.
    key : bytes
        See :func:`storage.people.keyed_digests`.
    """

    def __init__(self, people: People, key: bytes) -> None:
        self.people, self._key = people, key
        self._present: dict[str, list[Digests]] = {}
        self._rows: dict[str, list[tuple[str, Digests, Digests, NDArray[Any]]]] = {}

    def meet(self, part: str, block: Block) -> tuple[Block, Digests]:
        """Record whose rows pass; return those that have a person and are not null records, with the digests.

        A null record needs no place where a person is one, with and without rows.
        """
        assert block.people is not None
        known = named(block.people)
        digests = np.zeros(len(known), dtype=np.uint64)
        digests[known] = keyed_digests(block.people[known], self._key)
        self._present.setdefault(TEST if part == TEST else block.origin, []).append(np.unique(digests[known]))
        kept = known if block.null is None else known & ~block.null
        return replace(block.kept(kept), null=None), digests[kept]

    def store(self, part: str, origin: str, digests: Digests, prints: Digests, labels: NDArray[Any]) -> None:
        """Take note of rows that are stored: whose they are, their fingerprints and labels."""
        self._rows.setdefault(part, []).append((TEST if part == TEST else origin, digests, prints, labels))

    @property
    def content(self) -> str:
        """The digest of who is there and of whose each row is."""
        whole = hashlib.sha256(repr(self.people).encode())
        for file, met in self._present.items():
            whole.update(f"{file}\0".encode() + np.unique(np.concatenate(met)).tobytes())
        for rows in self._rows.values():
            for _, digests, _, _ in rows:
                whole.update(digests.tobytes())
        return whole.hexdigest()

    def joined(self, register: PersonRegister, seen: Seen) -> "JoinedPeople":
        """Return a register with the new people, the rows that came, and which of them count.

        Parameters
        ----------
        register : PersonRegister
        seen : Seen
            What came with the version before.
        """
        joined = register.joined_by({file: np.concatenate(met) for file, met in self._present.items()})
        positions, came, taken = {}, np.zeros(0, dtype=np.int32), dict[str, dict[str, int]]()
        for part, rows in self._rows.items():
            whose = np.concatenate([joined.positions(file, digests) for file, digests, _, _ in rows])
            digests, prints, labels = (np.concatenate([stored[place] for stored in rows]) for place in (1, 2, 3))
            since = np.ones(len(whose), dtype=np.int32)
            if part != TEST:
                # Whose rows count elsewhere is for the register to say, for good.
                own = whose >= 0
                seen, since[own] = seen.followed_by(row_digests(digests[own], prints[own], labels[own]))
                came = since
            positions[part] = at_most(whose, prints, labels, self.people.rows_per_person, since)
            ends = np.cumsum([0, *(len(stored[1]) for stored in rows)]).tolist()
            for (file, *_), (start, end) in zip(rows, pairwise(ends), strict=True):
                counted, kept = (int(np.count_nonzero(each[start:end] >= 0)) for each in (whose, positions[part]))
                found = {
                    "kept": end - start,
                    "elsewhere": end - start - counted,
                    "beyond": counted - kept,
                    "taken": kept,
                }
                before = taken.get(file, {})
                taken[file] = {what: before.get(what, 0) + rows_of for what, rows_of in found.items()}
        return JoinedPeople(joined, seen, positions, came, taken)


@dataclass(frozen=True, slots=True)
class JoinedPeople:
    """The people of a version, and which of its rows count.

    Attributes
    ----------
    register : PersonRegister
    seen : Seen
    positions : mapping of part to int32 array
        Each row's record; -1 for rows that are left out.
    since : int32 array (m,)
        The version that each training row came first with.
    taken : mapping of file to counts
        Of the rows that were ``kept``: those ``elsewhere``, of people who count in another file; those ``beyond`` the
        limit of a person; and those that are ``taken``. For the owner alone.
    """

    register: PersonRegister
    seen: Seen
    positions: Mapping[str, Positions]
    since: Positions
    taken: Mapping[str, Mapping[str, int]]
