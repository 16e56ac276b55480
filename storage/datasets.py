"""Stored versions of data sets: written once from a source or from an older version, read in blocks."""

import hashlib
import hmac
import secrets as randomness
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from storage import documents
from storage.atomic import Staging, locked_directory, private_folder, staging, write_bytes, writing
from storage.cells import canonical, numbers
from storage.columns.coding import codes_of
from storage.columns.declarations import shown
from storage.errors import DamagedError, FormatVersionError, InputError, RefusedError, StorageError
from storage.fingerprints import Duplicates, Fingerprints, overlapping_versions, private_versions
from storage.hidden_cells import shown_cell
from storage.layout import COLUMNS, FINGERPRINTS, PATTERNS, PEOPLE, PLACES, SEEN, Layout, path_component
from storage.objects import objects_of, row_objects
from storage.people import (
    TEST,
    Digests,
    People,
    PersonRegister,
    Positions,
    Seen,
    StoredPeople,
    at_most,
    keyed_digests,
    load_people,
    load_seen,
    named,
    row_digests,
    save_people,
    save_seen,
)
from storage.pictures.declaration import Pictures
from storage.pictures.places import Known, PlacesByParty, content_of, known_after, load_known, save_known
from storage.pictures.summaries import summaries_of
from storage.refs import DatasetRef, Labels, TableColumn, Visibility
from storage.rowfiles import (
    NULL_CLASS,
    Features,
    RowFormat,
    RowWriter,
    StoredRows,
    WrittenRows,
    ahead,
)
from storage.schema import Schema, parse_schema
from storage.secrets import root_secret
from storage.source import Block, Source, Tally, most_rows, undeclared

FORMAT_VERSION = 1
MANIFEST = "dataset.json"
_UNREGISTERED = "unregistered"
_PARTS = ("train", "test")
# Where people's rows lie until the last of them is known.
_CAME = "came"
_SPARSE_FROM = 1024
# Numbers that are brought into the unit ball at a time.
_PIECE_ENTRIES = 1 << 16
# Numbers that NumPy adds up at once.
_SUMMED = 8192

RowMap = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def into_unit_ball(features: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round rows to float32 such that their norms, taken in float64, are at most 1.

    Total: rows that are not finite become zero. Rounding moves a row's norm by up to one part in 2²⁴, in either
    direction, so the norm is checked after the round trip and longer rows are scaled once more.
    """
    stored = np.empty(features.shape, dtype=np.float32)
    # What is made on the way is several times as large as the rows.
    rows = max(16, _PIECE_ENTRIES // max(1, features.shape[1]))
    for start in range(0, len(features), rows):
        stored[start : start + rows] = _rounded(features[start : start + rows])
    return stored


def _norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row's norm, with the bits that it has beside any others: NumPy's own stretches cross wider rows."""
    parts = (rows[:, start : start + _SUMMED] for start in range(0, rows.shape[1], _SUMMED))
    return np.sqrt(sum((np.einsum("ij,ij->i", part, part) for part in parts), np.zeros(len(rows))))


def _rounded(features: NDArray[np.float64]) -> NDArray[np.float32]:
    rows = np.array(features, dtype=np.float64, order="C")
    rows[~np.isfinite(rows).all(axis=1)] = 0.0
    # A row with an entry above 1 is outside anyway; dividing by that entry first keeps the square from overflowing.
    rows /= np.maximum(np.abs(rows).max(axis=1, initial=0.0), 1.0)[:, None]
    rows /= np.maximum(_norms(rows), 1.0)[:, None]
    stored = rows.astype(np.float32)
    shrink = 2.0**-23
    while True:
        back = stored.astype(np.float64)
        norms = _norms(back)
        outside = norms > 1.0
        if not outside.any():
            return stored
        stored[outside] = (back[outside] * ((1.0 - shrink) / norms[outside, None])).astype(np.float32)
        shrink *= 2.0


def _where(block: Block, source: Source, part: str, row: int, before: int) -> str:
    if block.lines is not None:
        return f"{block.place or source.place}, {block.unit} {int(block.lines[row])}"
    return f"{block.place or source.place}, {part} row {before + row + 1}"


def _finite(block: Block, source: Source, part: str, before: int) -> Features:
    """Return the features as float32, refusing what is not finite there."""
    with np.errstate(over="ignore", invalid="ignore"):
        features = block.features.astype(np.float32)
    if features.ndim != 2 or features.shape != (len(block.labels), source.dimension):
        raise InputError(
            f"{block.place or source.place} gives {features.shape} for {len(block.labels)} rows; "
            f"expected {source.dimension} features a row, check --dimension"
        )
    packed = sparse.issparse(features)
    numbers = features.data if packed else features
    if np.isfinite(numbers).all():
        return features
    if packed:
        entry = int(np.argmin(np.isfinite(numbers)))
        row = int(np.searchsorted(features.indptr, entry, side="right")) - 1
        column, value = int(features.indices[entry]), numbers[entry]
    else:
        row, column = (int(place) for place in np.argwhere(~np.isfinite(numbers))[0])
        value = block.features[row, column]
    raise InputError(
        f"{_where(block, source, part, row, before)}: feature {column + 1} is {shown_cell(value)}; features must be "
        "finite (at most 3.4e38); remove or correct the row"
    )


def _labels(block: Block, source: Source, part: str, before: int) -> NDArray[Any]:
    """Return the labels as they are stored; those of null records are not looked at."""
    if block.null is not None:
        kept = ~block.null
        real = source.label_range is not None
        labels = np.full(len(kept), np.nan) if real else np.full(len(kept), NULL_CLASS, dtype=np.int32)
        labels[kept] = _labels(replace(block.kept(kept), null=None), source, part, before)
        return labels
    if source.label_range is None:
        return _class_indices(block, source, part, before)
    return _real_labels(block, source, part, before, source.label_range)


def _class_indices(block: Block, source: Source, part: str, before: int) -> NDArray[np.int32]:
    raw = np.asarray(block.labels)
    texts = canonical(raw if raw.dtype != object else raw.tolist())
    indices = codes_of(texts, source.classes).astype(np.int32)
    if (indices < 0).any():
        row = int(np.argmin(indices))
        label = shown_cell(texts[row].as_py() or str(raw[row]))
        raise InputError(
            f"{_where(block, source, part, row, before)}: label {label} is not among the classes "
            f"{shown(source.classes)}; correct the row or declare it with --classes"
        )
    return indices


def _real_labels(
    block: Block, source: Source, part: str, before: int, bounds: tuple[float, float]
) -> NDArray[np.float64]:
    raw = np.asarray(block.labels)
    labels = numbers(raw if raw.dtype != object else raw.tolist())
    low, high = bounds
    good = (labels >= low) & (labels <= high)
    if not good.all():
        row = int(np.argmin(good))
        raise InputError(
            f"{_where(block, source, part, row, before)}: label {shown_cell(raw[row])} is outside the declared "
            f"range [{low:g}, {high:g}]; correct the row or declare a wider --label-range"
        )
    return labels


class Passing:
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
        """Take note of whose rows pass, and return those that are somebody's and no null records, with the digests.

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

    def joined(self, register: PersonRegister, seen: Seen) -> "Joined":
        """Return a register with whoever is new, which rows came, and which of them count.

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
            digests, prints, labels = (np.concatenate([one[place] for one in rows]) for place in (1, 2, 3))
            since = np.ones(len(whose), dtype=np.int32)
            if part != TEST:
                # Whose rows count elsewhere is for the register to say, for good.
                own = whose >= 0
                seen, since[own] = seen.followed_by(row_digests(digests[own], prints[own], labels[own]))
                came = since
            positions[part] = at_most(whose, prints, labels, self.people.rows_per_person, since)
            ends = np.cumsum([0, *(len(one[1]) for one in rows)]).tolist()
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
        return Joined(joined, seen, positions, came, taken)


@dataclass(frozen=True, slots=True)
class Joined:
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


def _cut(
    source: Path, target: Path, row_format: RowFormat, rows: Mapping[str, Any], kept: NDArray[np.bool_], put: Any
) -> WrittenRows:
    """Write those of some written rows that are kept, in their order."""
    stored, writer, before = (
        StoredRows.open(source, row_format, WrittenRows(**rows)),
        RowWriter(target, row_format, put),
        0,
    )
    for batch in ahead(stored.batches(row_format.block_rows)):
        here = kept[before : before + len(batch)]
        writer.write(batch.take(np.flatnonzero(here)))
        before += len(batch)
    return writer.close()


def _ingest_part(
    folder: Path,
    put: Callable[[Path, str], str] | None,
    layout: RowFormat,
    source: Source,
    part: str,
    prints: Fingerprints,
    passing: Passing | None,
) -> tuple[WrittenRows, list[tuple[str, int]], set[int]]:
    """Write a part; return what was written, the parties' own files with their rows, and the labels that passed."""
    writer = RowWriter(folder, layout, put)
    origins: list[tuple[str, int]] = []
    seen: set[int] = set()
    for read in ahead(source.parts[part]):
        block, digests = (read, None) if passing is None else passing.meet(part, read)
        features = _finite(block, source, part, writer.rows)
        labels = _labels(block, source, part, writer.rows)
        seen.update(np.unique(labels).tolist())
        # Null records are alike whosever they are.
        known = features if block.plain is None else block.plain
        exact = prints.add(known if block.null is None else known[~block.null], digests)
        if passing is not None and digests is not None:
            passing.store(part, block.origin, digests, exact, labels)
        writer.write(layout.encode(features, labels))
        if writer.rows > most_rows():
            raise InputError(
                f"{source.place} holds more than {most_rows()} {part} rows; if that is right, declare as many with "
                "--max-rows"
            )
        if origins and origins[-1][0] == block.origin:
            origins[-1] = (block.origin, origins[-1][1] + len(labels))
        elif len(labels):
            origins.append((block.origin, len(labels)))
    return writer.close(), origins, seen


@dataclass(slots=True)
class StagedDataset:
    """A source that has been read and checked and lies beside the stored versions, to be published or dropped.

    Whoever compares, publishes and registers does all three under the lock of the root's private folder, so that of two
    that bring in the same rows the second finds those of the first.
    """

    layout: Layout
    visibility: Visibility
    place: str
    _stage: Staging
    _body: dict[str, Any]
    _prints: Fingerprints | None
    _passing: Passing | None = None
    _places: PlacesByParty = field(default_factory=dict)

    @property
    def people(self) -> People | None:
        """What is declared of the people behind the rows."""
        return None if self._passing is None else self._passing.people

    @property
    def private(self) -> bool:
        """Whether the rows are private."""
        return self.visibility is Visibility.PRIVATE

    @property
    def placed(self) -> bool:
        """Whether the places of the rows follow from those of earlier versions."""
        return bool(self._places)

    def overlapping_accounts(self) -> tuple[str, ...]:
        """Return the accounts under which more than 1 % of these rows, or of their own, are stored as private rows.

        Private rows are not compared with those of their own account.
        """
        if self._prints is None:
            return ()
        accounts = dict[str, str]()
        for version in private_versions(self.layout):
            body = _load(self.layout, version)
            # Sketches and patterns that are not there, lost or never made, are made of the stored rows.
            kept = (PATTERNS,) if "parent" in body else (PATTERNS, COLUMNS)
            if not all((self.layout.dataset(version) / name).exists() for name in kept):
                remake_fingerprints(self.layout, version, exact=False)
            if not self.private or body["account"] != self._body["account"]:
                accounts[version] = str(body["account"])
        versions = overlapping_versions(self.layout, self._prints, [*accounts])
        return tuple(dict.fromkeys(accounts[version] for version in versions))

    def sharing_accounts(self) -> set[str]:
        """Return the accounts under which people of the same namespace are stored as private rows."""
        named = self.people.namespace if self.private and self.people is not None else ""
        bodies = [_load(self.layout, version) for version in private_versions(self.layout)] if named else []
        return {str(body["account"]) for body in bodies if body.get("people", {}).get("namespace") == named}

    def publish(self, previous: Sequence[DatasetRef] = ()) -> DatasetRef:
        """Store the rows as a version.

        Parameters
        ----------
        previous : sequence of DatasetRef
            Versions of the same name. If one of them holds the same rows in the same order, that version is returned:
            ingesting a private file twice makes one version. (A public version is named by its content anyway.)

        Raises
        ------
        RefusedError
            If public rows are private rows of this root.
        """
        if not self.private and self.overlapping_accounts():
            raise RefusedError(
                f"rows of {self.place} are private rows of this root: what was private cannot be registered as public; "
                "use the private set"
            )
        content = _content(self._body)
        (self._stage.path / _UNREGISTERED).touch(mode=0o600)
        if not self.private:
            people = {} if self._passing is None else self._with_people(self._passing, None, PersonRegister())
            return _publish(self.layout, self._stage, content[:32], {**self._body, **people}, None)
        mac = hmac.new(root_secret(self.layout), content.encode(), hashlib.sha256).hexdigest()
        for older in previous:
            if older.private and self._is_stored_as(older.version, mac):
                return older
        body = {**self._body, "content_mac": mac}
        if self._passing is not None:
            register, seen = _came_before(self.layout, previous, str(body["account"]))
            body |= self._with_people(self._passing, seen, register)
        if self._places:
            known = known_after(places_before(self.layout, previous), self._places)
            body["places"] = {
                **body["places"],
                "known": sum(len(paths) for parts in known.values() for paths in parts.values()),
                "digest": save_known(self._stage.path / PLACES, known),
            }
        return _publish(self.layout, self._stage, randomness.token_hex(16), body, self._prints)

    def _is_stored_as(self, version: str, mac: str) -> bool:
        """Whether a private version holds these rows whole; files of its rows that are lost are put back first.

        Only those that are the same to the byte. Which of people's rows are stored follows from what came before, so
        that their lost files come from a back-up alone.
        """
        try:
            known = _load(self.layout, version)
        except FormatVersionError:
            raise
        except StorageError:
            return False
        if not hmac.compare_digest(known["content_mac"], mac):
            return False
        if objects_of(self.layout) is None and "people" not in known:
            for part, written in known["parts"].items():
                self._put_back(version, part, written["files"])
        return is_complete(self.layout, version)

    def _put_back(self, version: str, part: str, files: Sequence[tuple[str, str]]) -> None:
        for name, digest in files:
            path, staged = self.layout.dataset(version) / part / name, self._stage.path / part / name
            try:
                documents.verify_file(path, digest)
            except DamagedError:
                if staged.is_file() and documents.file_digest(staged) == digest:
                    with writing(path):
                        private_folder(path.parent, self.layout.datasets)
                        write_bytes(path, staged.read_bytes(), mode=0o600)

    def _with_people(self, passing: Passing, seen: Seen | None, register: PersonRegister) -> dict[str, Any]:
        """Write a register with whoever is new, and those rows that count; return what the manifest says of them.

        ``seen``: what came with the version before; None of public rows, whose versions know none before them.
        """
        joined = passing.joined(register, seen or Seen())
        trained_on = joined.register.trained_on()
        if ("" in joined.register.files) and len(trained_on) > 1:
            raise InputError(
                f"{self.place}: rows of this data set came in one file before, or in the parties' own files; bring "
                "them in as before, or under another name"
            )
        counts, parts = {"train": sum(count for _, count in trained_on)}, {}
        if TEST in joined.register.files and TEST in self._body["parts"]:
            counts[TEST] = joined.register.records(TEST)
        none = np.zeros(0, dtype=np.int32)
        kept = {part: joined.positions.get(part, none) >= 0 for part in self._body["parts"]}
        row_format = RowFormat.from_json(self._body["format"])
        for part, rows in self._body["parts"].items():
            folders = self._stage.path / _CAME / part, self._stage.path / part
            parts[part] = asdict(_cut(*folders, row_format, rows, kept[part], row_objects(self.layout)))
        shutil.rmtree(self._stage.path / _CAME)
        if self._prints is not None:
            # What is lost can be made again of what is stored.
            self._prints.keep(np.concatenate([joined.positions.get(part, none) >= 0 for part in joined.positions]))
        stored = {part: positions[positions >= 0] for part, positions in joined.positions.items()}
        since = joined.since[joined.positions.get("train", none) >= 0]
        people = {
            **self._body["people"],
            "entries": len(joined.register.file),
            "records": counts,
            "taken": joined.taken,
            "version": joined.seen.version,
            "digest": save_people(self._stage.path / PEOPLE, StoredPeople(joined.register, stored, since)),
        }
        if seen is not None:
            people["seen"] = save_seen(self._stage.path / SEEN, joined.seen)
        return {"people": people, "origins": [list(file) for file in trained_on], "parts": parts}


def _came_before(layout: Layout, versions: Sequence[DatasetRef], account: str) -> tuple[PersonRegister, Seen]:
    """Return the register that all other versions' are the beginning of, and which rows came with the last of them."""
    known = [(_load(layout, one.version).get("people"), one) for one in versions if one.account == account]
    people, newest = max(
        ((said, one) for said, one in known if said is not None),
        key=lambda each: int(each[0]["version"]),
        default=(None, None),
    )
    if people is None or newest is None:
        return PersonRegister(), Seen()
    folder = layout.dataset(newest.version)
    return load_people(folder / PEOPLE, people["digest"]).register, load_seen(folder / SEEN, people["seen"])


def places_before(layout: Layout, versions: Sequence[DatasetRef]) -> Known:
    """Return the paths that versions of private folders of pictures have held, in the order of their places.

    Raises
    ------
    StorageError
        If what the last of them holds of it is lost: places once given could not be kept.
    """
    folders = [
        (one.version, said) for one in versions if (said := _load(layout, one.version).get("places")) is not None
    ]
    if not folders:
        return {}
    # Each knows all that the version before it knew.
    version, newest = max(folders, key=lambda each: int(each[1]["known"]))
    return load_known(layout.dataset(version) / PLACES, newest["digest"])


def open_people(layout: Layout, ref: DatasetRef) -> StoredPeople | None:
    """Return the people behind a version's rows; None where each row is a record of its own.

    Raises
    ------
    StorageError
        If they are not stored whole.
    """
    people = _load(layout, ref.version).get("people")
    return None if people is None else load_people(layout.dataset(ref.version) / PEOPLE, people["digest"])


def people_version(layout: Layout, ref: DatasetRef) -> int:
    """Return which of a data set's versions one of people is, as :class:`storage.people.Seen` counts them."""
    return int(_load(layout, ref.version)["people"]["version"])


def remake_fingerprints(layout: Layout, version: str, *, exact: bool = True) -> bool:
    """Make a private version's fingerprints again from its rows; return False where the rows are not whole.

    Without ``exact``, those whose digest is on record stay as they are. Of a table's rows they are the same up to
    rounding, which patterns and sketches forgive: the numbers that were read are made again from features in float32
    (:meth:`storage.schema.Schema.plain`).
    """
    try:
        body = _load(layout, version)
        # What was derived keeps the declaration of the table that it was derived from.
        schema = _schema_of(None if "parent" in body else body["table"], version)
        prints = Fingerprints(
            root_secret(layout),
            columns="parent" not in body,
            cells=None if schema is None else schema.cells,
            summaries=_summaries_of(None if "parent" in body else body["table"]),
            folder=layout.dataset(version),
        )
        for part in _PARTS:
            if part in body["parts"]:
                for features, _, counted, whose in _counted_blocks(layout, version, body, part):
                    known = features[counted]
                    prints.add(known if schema is None else schema.plain(known), whose)
    except StorageError:
        return False
    prints.save(layout.dataset(version), exact=exact)
    return True


def _schema_of(table: Mapping[str, Any] | None, place: str) -> Schema | None:
    """Return the schema of rows that were a table's; None of others, whose numbers are stored as they were read."""
    return None if table is None or "schema" not in table else parse_schema(table["schema"], place)


def _summaries_of(table: Mapping[str, Any] | None) -> Callable[[Any], Any] | None:
    """Return what summaries rows of pictures are recognised by; None of others."""
    return None if table is None or "pictures" not in table else summaries_of(Pictures.from_document(table["pictures"]))


def _counted_blocks(
    layout: Layout, version: str, body: Mapping[str, Any], part: str
) -> Iterator[tuple[NDArray[np.float32], NDArray[Any], NDArray[np.bool_], Digests | None]]:
    """Yield a part's rows, labels, which of them count, and of people what stands for the person of each that does."""
    whose: Any = None
    if "people" in body:
        whose = load_people(layout.dataset(version) / PEOPLE, body["people"]["digest"]).positions[part]
    for features, labels, _ in _open_part(layout, version, body, part).blocks():
        if whose is None:
            null = np.isnan(labels) if labels.dtype.kind == "f" else labels == NULL_CLASS
            yield features, labels, ~null, None
        else:
            here, whose = np.split(whose, [len(labels)])
            yield features, labels, here >= 0, here[here >= 0].astype(np.uint64) + np.uint64(_PARTS.index(part) << 32)


def unregistered_versions(layout: Layout) -> list[str]:
    """Return the versions that were published and whose registration has not been confirmed."""
    return sorted(path.parent.name for path in layout.datasets.glob(f"[!.]*/{_UNREGISTERED}"))


def confirm_registered(layout: Layout, version: str) -> None:
    """Take away the note that a version is still to be registered."""
    (layout.dataset(version) / _UNREGISTERED).unlink(missing_ok=True)


@contextmanager
def staged_dataset(
    layout: Layout, source: Source, *, name: str, account: str, visibility: Visibility
) -> Iterator[StagedDataset]:
    """Read and check a source, streaming, into files that are removed on leaving unless they are published.

    Parameters
    ----------
    layout : Layout
    source : Source
        From a reader. Its blocks are read once.
    name, account : str
        What its owner calls the set and the population.
    visibility : Visibility
        For private rows, dimension and classes must be declared.

    Raises
    ------
    RefusedError
        If private rows would have been looked at for their dimension or classes.
    InputError
        For a bad row (naming line or row, value, bound and way out), an empty set, a public set of one class.
    StorageError
        If the root cannot be written.
    """
    path_component(name, "data set name")
    path_component(account, "account")
    visibility = Visibility(visibility)
    private = visibility is Visibility.PRIVATE
    if private and source.found:
        raise undeclared(source.found, source.place)
    labels = Labels.CLASSES if source.label_range is None else Labels.REAL
    row_format = RowFormat(source.dimension, labels, source.sparse and source.dimension >= _SPARSE_FROM)
    compared = private or bool(private_versions(layout))
    schema = _schema_of(source.table, source.place) if compared else None
    # Public rows are the same version in every root, so that whose they are is keyed with nobody's secret.
    passing = None if source.people is None else Passing(source.people, root_secret(layout) if private else b"")
    with staging(layout.datasets) as stage, writing(stage.path):
        prints = Fingerprints(
            root_secret(layout) if compared else b"",
            patterns=compared,
            cells=None if schema is None else schema.cells,
            summaries=_summaries_of(source.table),
            folder=stage.path,
        )
        ingested = {
            part: _ingest_part(
                *(stage.path / part, row_objects(layout)) if passing is None else (stage.path / _CAME / part, None),
                row_format,
                source,
                part,
                prints,
                passing,
            )
            for part in _PARTS
            if part in source.parts
        }
        # Whether somebody of the test rows has one is not to be seen: there are as many records of them without any.
        written = {part: rows[0] for part, rows in ingested.items() if rows[0].rows or part == "train" or passing}
        _, trained_on, labels_seen = ingested["train"]
        if not written["train"].rows:
            raise InputError(f"{source.place} holds no rows to train on; it must hold at least one", value=0, bound=1)
        if not private and labels is Labels.CLASSES and len(labels_seen) < 2:
            only = source.classes[next(iter(labels_seen))]
            raise InputError(
                f"{source.place} holds rows of one class only ({only!r}); a classifier needs at least two: "
                "add rows of another class",
                value=1,
                bound=2,
            )
        body: dict[str, Any] = {
            "name": name,
            "account": account,
            "visibility": str(visibility),
            "reader": source.format,
            "format": row_format.to_json(),
            "classes": list(source.classes),
            "label_range": None if source.label_range is None else [float(bound) for bound in source.label_range],
            "normalisation": "none",
            "parts": {part: asdict(rows) for part, rows in written.items()},
            "origins": [[origin, rows] for origin, rows in trained_on],
            "counts": {part: tally.to_json() for part, tally in source.tallies.items()}
            or {part: Tally(read=rows.rows).to_json() for part, rows in written.items()},
            "duplicates": asdict(prints.duplicates()),
            "table": source.table,
        }
        if source.columns:
            body["columns"] = [one.model_dump(exclude_defaults=True) for one in source.columns]
        if source.image_shape is not None:
            body["image_shape"] = list(source.image_shape)
        if passing is not None:
            body["people"] = {**asdict(passing.people), "content": passing.content}
        if source.places:
            body["places"] = {"content": content_of(source.places)}
        yield StagedDataset(
            layout, visibility, source.place, stage, body, prints if compared else None, passing, source.places
        )


def write_dataset(
    layout: Layout,
    source: Source,
    *,
    name: str,
    account: str,
    visibility: Visibility,
    previous: Sequence[DatasetRef] = (),
) -> DatasetRef:
    """Store a source as a version, without registering it: see :func:`staged_dataset` and its ``publish``.

    Returns
    -------
    DatasetRef
        Public versions are named by their content (the same rows have the same name in every root), private ones at
        random.
    """
    with (
        staged_dataset(layout, source, name=name, account=account, visibility=visibility) as staged,
        locked_directory(layout.private),
    ):
        stored = staged.publish(previous)
        confirm_registered(layout, stored.version)
        return stored


def _content(body: Mapping[str, Any]) -> str:
    """Return the digest of what a version holds, whatever it is called."""
    public = (
        "format",
        "classes",
        "label_range",
        "normalisation",
        "origins",
        "image_shape",
        "people",
        "columns",
        "places",
    )
    rows = {part: written["content"] for part, written in body["parts"].items()}
    return documents.digest({"rows": rows, **{what: body[what] for what in (*public, "table") if what in body}})


def _publish(
    layout: Layout, stage: Staging, version: str, body: dict[str, Any], prints: Fingerprints | None
) -> DatasetRef:
    if prints is not None:
        prints.save(stage.path)
    (stage.path / MANIFEST).write_bytes(documents.dump_manifest({**body, "version": version}, version=FORMAT_VERSION))
    target = layout.dataset(version)
    # Of two writers of the same version the faster one's files stay, for both hold the same rows; a damaged version
    # is what ingesting again mends.
    stage.publish(target, lambda: is_complete(layout, version))
    stored = dataset_ref(layout, version)
    return stored.model_copy(update={"name": body["name"], "account": body["account"]})


def _load(layout: Layout, version: str) -> dict[str, Any]:
    return documents.load_manifest(layout.dataset(version) / MANIFEST, version=FORMAT_VERSION)


def dataset_ref(layout: Layout, version: str) -> DatasetRef:
    """Return the reference of a stored version, under the name of its first registration.

    Raises
    ------
    StorageError
        If there is no such version or its manifest is damaged.
    """
    body = _load(layout, version)
    row_format = RowFormat.from_json(body["format"])
    parts = body["parts"]
    label_range, people = body["label_range"], body.get("people")
    records = {part: written["rows"] for part, written in parts.items()} if people is None else people["records"]
    return DatasetRef(
        name=body["name"],
        version=version,
        account=body["account"],
        visibility=Visibility(body["visibility"]),
        rows=records["train"],
        test_rows=records.get("test", 0),
        dimension=row_format.dimension,
        labels=row_format.labels,
        classes=tuple(body["classes"]),
        label_range=None if label_range is None else (label_range[0], label_range[1]),
        normalisation=body["normalisation"],
        image_shape=tuple(body["image_shape"]) if "image_shape" in body else None,
        person="" if people is None else people["column"],
        rows_per_person=1 if people is None else people["rows_per_person"],
        columns=tuple(TableColumn(**one) for one in body.get("columns", ())),
    )


def fingerprints_digest(layout: Layout, ref: DatasetRef) -> str | None:
    """Return the digest of a private version's fingerprints, for its registration; None for a public one."""
    return documents.file_digest(layout.dataset(ref.version) / FINGERPRINTS) if ref.private else None


def is_complete(layout: Layout, version: str) -> bool:
    """Whether a version is stored and sound: its manifest and all its files match their digests."""
    try:
        body = _load(layout, version)
        for part in body["parts"]:
            _open_part(layout, version, body, part)
        for what, name in (("people", PEOPLE), ("places", PLACES)):
            if what in body:
                documents.verify_file(layout.dataset(version) / name, body[what]["digest"])
    except FormatVersionError:
        # What another Unitball wrote is not ours to judge, and least of all to replace.
        raise
    except StorageError:
        return False
    return True


def has_files(layout: Layout, version: str) -> bool:
    """Whether a version is stored and none of its files is missing; no row is read."""
    try:
        require_files(layout, version)
    except FormatVersionError:
        raise
    except StorageError:
        return False
    return True


def require_files(layout: Layout, version: str) -> None:
    """Refuse a version of which a file is missing; no row is read, so that whether one is damaged is told later.

    Raises
    ------
    StorageError
        Naming the file.
    """
    body, folder, store = _load(layout, version), layout.dataset(version), objects_of(layout)
    names = [(part, name) for part, written in body["parts"].items() for name, _ in written["files"]]
    missing = [
        f"{folder / part / name}" if store is None else f"{store.url.rstrip('/')}/{name}"
        for part, name in names
        if not ((folder / part / name).is_file() if store is None else store.has(name))
    ]
    if "people" in body and not (folder / PEOPLE).is_file():
        raise DamagedError(f"{folder / PEOPLE} is missing; restore it from a back-up")
    if missing:
        raise DamagedError(f"{missing[0]} is missing; restore it from a back-up or ingest again")


def lost_history(layout: Layout, version: str) -> list[str]:
    """Return which files are lost that say who is behind a version's rows, which rows came with it, in which places.

    They are what one ingestion after another made of it, so that no file that is ingested again makes them again.
    """
    try:
        body = _load(layout, version)
    except FormatVersionError:
        raise
    except StorageError:
        return []
    people, places, folder, lost = body.get("people", {}), body.get("places", {}), layout.dataset(version), []
    if "parent" in body:
        return []
    files = ((PEOPLE, people.get("digest")), (SEEN, people.get("seen")), (PLACES, places.get("digest")))
    for name, digest in files:
        try:
            if digest is not None:
                documents.verify_file(folder / name, digest)
        except DamagedError:
            lost.append(name)
    return lost


def open_dataset(layout: Layout, ref: DatasetRef, part: str = "train") -> StoredRows:
    """Open one part of a stored version, its digests verified once a process and state of the files.

    Parameters
    ----------
    part : {"train", "test"}

    Raises
    ------
    InputError
        If the set has no such part.
    StorageError
        If the version is not stored or a file is damaged, naming it.
    """
    body = _load(layout, ref.version)
    if part not in body["parts"]:
        raise InputError(
            f"data set {ref.name} has no {part} rows of its own; it has: {', '.join(sorted(body['parts']))}"
        )
    return _open_part(layout, ref.version, body, part)


def _open_part(layout: Layout, version: str, body: Mapping[str, Any], part: str) -> StoredRows:
    rows = {"format": body["format"], "rows": body["parts"][part]}
    return StoredRows.from_json(layout.dataset(version) / part, rows, objects_of(layout))


def origins(layout: Layout, ref: DatasetRef) -> tuple[tuple[str, int], ...]:
    """Return the parties' own files as ``(party, rows)`` in the order of the training rows; empty for one owner."""
    pairs = tuple((str(name), int(rows)) for name, rows in _load(layout, ref.version)["origins"])
    return () if all(not name for name, _ in pairs) else pairs


def owners_of(layout: Layout, ref: DatasetRef, part: str) -> dict[str, list[tuple[int, int]]]:
    """Return whose rows a part's are: of each party with a file of its own, the spans of stored rows that are its.

    The empty name owns all where there is one owner, and the test rows. Whoever has no row is not there.
    """
    body = _load(layout, ref.version)
    files = origins(layout, ref) if part == "train" else ()
    if not files:
        rows = int(body["parts"][part]["rows"]) if part in body["parts"] else 0
        return {"": [(0, rows)]} if rows else {}
    ends = np.cumsum([rows for _, rows in files])
    people = open_people(layout, ref)
    # Where rows are people's, a file's are those of its entries.
    records = np.arange(ends[-1]) if people is None else people.positions[part]
    numbers = np.searchsorted(ends, records, side="right")
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    spans: dict[str, list[tuple[int, int]]] = {}
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(numbers)], strict=True):
        spans.setdefault(files[numbers[start]][0], []).append((start, stop))
    return spans


def declared_table(layout: Layout, ref: DatasetRef) -> Mapping[str, Any] | None:
    """Return what decides how raw rows become features, as :attr:`storage.source.Source.table` has it.

    None where rows were numbers already. It is declared and says nothing of rows.
    """
    return cast(Mapping[str, Any] | None, _load(layout, ref.version)["table"])


@dataclass(frozen=True, slots=True)
class IngestionReport:
    """What became of every row that ingestion read.

    Attributes
    ----------
    counts : mapping of part to counts
        See :class:`storage.source.Tally`; a part a party where each has a file of its own.
    duplicates : Duplicates
        Rows that are equal to others.
    publishable : bool
        False for private rows: show the counts to their owner only.
    taken : mapping of file to counts
        Of people's rows, how many of those that were kept can train or be measured (:class:`Joined`); empty of others,
        of which all are.
    """

    counts: Mapping[str, Mapping[str, int]]
    duplicates: Duplicates
    publishable: bool
    taken: Mapping[str, Mapping[str, int]]


def ingestion_report(layout: Layout, ref: DatasetRef) -> IngestionReport:
    """Return what became of every row that ingestion read."""
    body = _load(layout, ref.version)
    return IngestionReport(
        body["counts"],
        Duplicates(**body["duplicates"]),
        publishable=not ref.private,
        taken=body.get("people", {}).get("taken", {}),
    )


def transformed_ref(
    layout: Layout,
    ref: DatasetRef,
    *,
    normalisation: str,
    recipe: str = "",
    unit_ball: bool = True,
) -> DatasetRef:
    """Return the reference that :func:`transform_dataset` would return, whether or not that version is stored."""
    described = documents.canonical(["derived", ref.version, normalisation, recipe, ref.dimension, unit_ball])
    if ref.private:
        version = hmac.new(root_secret(layout), described, hashlib.sha256).hexdigest()[:32]
    else:
        version = hashlib.sha256(described).hexdigest()[:32]
    # What looks at whole rows leaves no column's range where it was.
    columns = ref.columns if normalisation == ref.normalisation else ()
    return ref.model_copy(update={"version": version, "normalisation": normalisation, "columns": columns})


def transform_dataset(
    layout: Layout,
    ref: DatasetRef,
    row_map: RowMap,
    *,
    normalisation: str,
    recipe: str = "",
    unit_ball: bool = True,
) -> DatasetRef:
    """Store a version whose rows are mapped block by block, by a map that looks at one row at a time.

    Parameters
    ----------
    row_map : callable
        Takes and returns float64 arrays of one row a row. Rows that come out not finite become zero: nothing here
        raises because of what rows contain.
    normalisation : str
        Name of the map, kept in the reference.
    recipe : str
        What else decides the result (parameters, a digest of the map's code); part of the version's name.
    unit_ball : bool
        Whether rows must be in the unit ball after rounding to float32 (see :func:`into_unit_ball`).

    Returns
    -------
    DatasetRef
        The same version for the same parent, map and recipe; it is not written again where it is stored. Versions
        of private sets are keyed with the root's secret.
    """
    target = transformed_ref(layout, ref, normalisation=normalisation, recipe=recipe, unit_ball=unit_ball)
    if is_complete(layout, target.version):
        return target
    body = _load(layout, ref.version)
    row_format = RowFormat.from_json(body["format"])
    written = {}
    with staging(layout.datasets) as stage, writing(stage.path):
        prints = Fingerprints(root_secret(layout), columns=False, folder=stage.path) if ref.private else None
        for part in [part for part in _PARTS if part in body["parts"]]:
            writer = RowWriter(stage.path / part, row_format, row_objects(layout))
            passing = (
                (
                    _mapped(
                        row_map(block[0].astype(np.float64)), (len(block[0]), ref.dimension), normalisation, unit_ball
                    ),
                    *block[1:],
                )
                for block in _counted_blocks(layout, ref.version, body, part)
            )
            for mapped, labels, counted, whose in ahead(passing):
                if prints is not None:
                    prints.add(mapped[counted], whose)
                writer.write(row_format.encode(mapped, labels))
            written[part] = asdict(writer.close())
        changed = {
            "name": ref.name,
            "account": ref.account,
            "format": row_format.to_json(),
            "normalisation": normalisation,
            "parts": written,
            "parent": ref.version,
            "recipe": recipe,
            "columns": [one.model_dump(exclude_defaults=True) for one in target.columns],
        }
        if "people" in body:
            write_bytes(stage.path / PEOPLE, (layout.dataset(ref.version) / PEOPLE).read_bytes(), mode=0o600)
        # Places are of what was brought in.
        kept = {key: value for key, value in body.items() if key not in ("content_mac", "places")}
        return _publish(layout, stage, target.version, {**kept, **changed}, prints)


def _mapped(rows: NDArray[np.float64], shape: tuple[int, int], name: str, unit_ball: bool) -> NDArray[np.float32]:
    if rows.shape != shape:
        raise StorageError(f"the row map {name!r} gives an array of shape {rows.shape}, expected {shape}")
    if unit_ball:
        return into_unit_ball(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = rows.astype(np.float32)
    stored[~np.isfinite(stored).all(axis=1)] = 0.0
    return stored
