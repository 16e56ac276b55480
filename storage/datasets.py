"""Stored versions of data sets: what their manifests say, and their rows, read in blocks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from storage import documents
from storage.atomic import Staging
from storage.errors import DamagedError, FormatVersionError, InputError, StorageError
from storage.fingerprints import Duplicates, Fingerprints
from storage.layout import PEOPLE, PLACES, Layout
from storage.objects import objects_of
from storage.people import Digests, StoredPeople, load_people
from storage.refs import DatasetRef, TableColumn, Visibility
from storage.rowfiles import NULL_CLASS, RowFormat, StoredRows

FORMAT_VERSION = 1
MANIFEST = "dataset.json"
PARTS = ("train", "test")
"""The parts of a version, in the order in which they are written."""


def publish_version(
    layout: Layout, stage: Staging, version: str, body: Mapping[str, Any], prints: Fingerprints | None
) -> DatasetRef:
    """Store staged files as a version, with its manifest and, for private rows, their fingerprints.

    Returns
    -------
    DatasetRef
        Under the name and the account that are published, whichever were first.
    """
    if prints is not None:
        prints.save(stage.path)
    (stage.path / MANIFEST).write_bytes(documents.dump_manifest({**body, "version": version}, version=FORMAT_VERSION))
    target = layout.dataset(version)
    # Of two writers of the same version the faster one's files stay, for both hold the same rows; a damaged version
    # is what ingesting again repairs.
    stage.publish(target, lambda: is_complete(layout, version))
    stored = dataset_ref(layout, version)
    return stored.model_copy(update={"name": body["name"], "account": body["account"]})


def load_manifest(layout: Layout, version: str) -> dict[str, Any]:
    """Return what the manifest of a stored version says.

    Raises
    ------
    StorageError
        If there is no such version or its manifest is damaged.
    """
    return documents.load_manifest(layout.dataset(version) / MANIFEST, version=FORMAT_VERSION)


def dataset_ref(layout: Layout, version: str) -> DatasetRef:
    """Return the reference of a stored version, under the name of its first registration.

    Raises
    ------
    StorageError
        If there is no such version or its manifest is damaged.
    """
    body = load_manifest(layout, version)
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
        columns=tuple(TableColumn(**column) for column in body.get("columns", ())),
        synthesis=body.get("synthesis", ""),
    )


def ingested_version(layout: Layout, version: str) -> str:
    """Return the version of the ingested rows that a stored version was made of, as people name it.

    The version itself where it is not a mapped one, or is not stored here.
    """
    try:
        body = load_manifest(layout, version)
    except StorageError:
        return version
    return ingested_version(layout, str(body["parent"])) if "parent" in body else version


def is_complete(layout: Layout, version: str) -> bool:
    """Whether a version is stored and sound: its manifest and all its files match their digests."""
    try:
        body = load_manifest(layout, version)
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
    body, folder, store = load_manifest(layout, version), layout.dataset(version), objects_of(layout)
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
    body = load_manifest(layout, ref.version)
    if part not in body["parts"]:
        raise InputError(f"data set {ref.name} has no separate {part} rows; it has: {', '.join(sorted(body['parts']))}")
    return _open_part(layout, ref.version, body, part)


def _open_part(layout: Layout, version: str, body: Mapping[str, Any], part: str) -> StoredRows:
    rows = {"format": body["format"], "rows": body["parts"][part]}
    return StoredRows.from_json(layout.dataset(version) / part, rows, objects_of(layout))


def counted_blocks(
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
            yield features, labels, here >= 0, here[here >= 0].astype(np.uint64) + np.uint64(PARTS.index(part) << 32)


def open_people(layout: Layout, ref: DatasetRef) -> StoredPeople | None:
    """Return the people behind a version's rows; None where each row is a separate record.

    Raises
    ------
    StorageError
        If they are not stored whole.
    """
    people = load_manifest(layout, ref.version).get("people")
    return None if people is None else load_people(layout.dataset(ref.version) / PEOPLE, people["digest"])


def people_version(layout: Layout, ref: DatasetRef) -> int:
    """Return which of a data set's versions one of people is, as :class:`storage.people.Seen` counts them."""
    return int(load_manifest(layout, ref.version)["people"]["version"])


def origins(layout: Layout, ref: DatasetRef) -> tuple[tuple[str, int], ...]:
    """Return the parties' own files as ``(party, rows)`` in the order of the training rows; empty for one owner."""
    pairs = tuple((str(name), int(rows)) for name, rows in load_manifest(layout, ref.version)["origins"])
    return () if all(not name for name, _ in pairs) else pairs


def owners_of(layout: Layout, ref: DatasetRef, part: str) -> dict[str, list[tuple[int, int]]]:
    """Return whose rows a part's are: of each party with its own file, the spans of stored rows that are its.

    The empty name owns all where there is one owner, and the test rows. People without a row are absent.
    """
    body = load_manifest(layout, ref.version)
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
    return cast(Mapping[str, Any] | None, load_manifest(layout, ref.version)["table"])


@dataclass(frozen=True, slots=True)
class IngestionReport:
    """Outcome of ingestion for every row that was read.

    Attributes
    ----------
    counts : mapping of part to counts
        See :class:`storage.source.Tally`; a part a party where each has its own file.
    duplicates : Duplicates
        Rows that are equal to others.
    publishable : bool
        False for private rows: show the counts to their owner only.
    taken : mapping of file to counts
        Of people's rows, how many of those that were kept can train or be measured
        (:class:`storage.arriving_people.JoinedPeople`); empty of others, of which all are.
    """

    counts: Mapping[str, Mapping[str, int]]
    duplicates: Duplicates
    publishable: bool
    taken: Mapping[str, Mapping[str, int]]


def ingestion_report(layout: Layout, ref: DatasetRef) -> IngestionReport:
    """Return what became of every row that ingestion read."""
    body = load_manifest(layout, ref.version)
    return IngestionReport(
        body["counts"],
        Duplicates(**body["duplicates"]),
        publishable=not ref.private,
        taken=body.get("people", {}).get("taken", {}),
    )
