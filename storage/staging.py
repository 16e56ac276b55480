"""A source that is read, checked and written next to the stored versions, to be published or dropped."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.arriving_people import ArrivingPeople
from storage.atomic import staging, writing
from storage.datasets import PARTS
from storage.errors import InputError
from storage.fingerprints import Fingerprints, drawn_versions, private_versions
from storage.layout import Layout, path_component
from storage.objects import row_objects
from storage.pictures.places import content_of
from storage.publishing import CAME, StagedDataset
from storage.recognition import fingerprints_for
from storage.refs import Labels, Visibility
from storage.row_checks import declared_labels, finite_features
from storage.rowfiles import RowFormat, RowWriter, WrittenRows, ahead
from storage.secrets import root_secret
from storage.source import Source, Tally, most_rows, undeclared

_SPARSE_FROM = 1024


@contextmanager
def staged_dataset(
    layout: Layout, source: Source, *, name: str, account: str, visibility: Visibility, synthesis: str = ""
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
    synthesis : str
        Of derived rows, the key of what they are drawn from.

    Raises
    ------
    RefusedError
        If private rows would have been read for their dimension or classes.
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
    # Derived rows are recognised where they come back, and public ones are compared with them.
    drawn = visibility is Visibility.DERIVED
    compared = private or drawn or bool(private_versions(layout) or drawn_versions(layout))
    # Public rows are the same version in every root, so that whose they are is keyed with nobody's secret.
    people = None if source.people is None else ArrivingPeople(source.people, root_secret(layout) if private else b"")
    with staging(layout.datasets) as stage, writing(stage.path):
        key = root_secret(layout) if compared else b""
        prints = fingerprints_for(source.table, source.place, key=key, folder=stage.path, patterns=compared)
        folder, put = (stage.path, row_objects(layout)) if people is None else (stage.path / CAME, None)
        staged = {
            part: _stage_part(source, part, folder / part, put, prints, people)
            for part in PARTS
            if part in source.parts
        }
        _require_trainable(source, staged["train"], private=private)
        body = {
            "name": name,
            "account": account,
            "visibility": str(visibility),
            "normalisation": "none",
            "duplicates": asdict(prints.duplicates()),
            **_described(source, staged, people),
            **({"synthesis": synthesis} if synthesis else {}),
        }
        yield StagedDataset(
            layout, visibility, source.place, stage, body, prints if compared else None, people, source.places
        )


@dataclass(frozen=True, slots=True)
class _StagedPart:
    """A part that was written, the parties' own files with their rows, and the labels that passed."""

    rows: WrittenRows
    origins: Sequence[tuple[str, int]]
    labels: Collection[float]


def _format(source: Source) -> RowFormat:
    labels = Labels.CLASSES if source.label_range is None else Labels.REAL
    return RowFormat(source.dimension, labels, source.sparse and source.dimension >= _SPARSE_FROM)


def _require_trainable(source: Source, train: _StagedPart, *, private: bool) -> None:
    """Refuse a source without rows to train on and, of public rows, one of a single class."""
    if not train.rows.rows:
        raise InputError(f"{source.place} holds no rows to train on; it must hold at least one", value=0, bound=1)
    if not private and source.label_range is None and len(train.labels) < 2:
        only = source.classes[int(next(iter(train.labels)))]
        raise InputError(
            f"{source.place} holds rows of one class only ({only!r}); a classifier needs at least two: "
            "add rows of another class",
            value=1,
            bound=2,
        )


def _described(source: Source, staged: Mapping[str, _StagedPart], people: ArrivingPeople | None) -> dict[str, Any]:
    """Return what a manifest says of a source and of its rows as they were written."""
    # Whether somebody of the test rows has one is not to be seen: there are as many records of them without any.
    written = {part: read.rows for part, read in staged.items() if read.rows.rows or part == "train" or people}
    body: dict[str, Any] = {
        "reader": source.format,
        "format": _format(source).to_json(),
        "classes": list(source.classes),
        "label_range": None if source.label_range is None else [float(bound) for bound in source.label_range],
        "parts": {part: asdict(rows) for part, rows in written.items()},
        "origins": [[origin, rows] for origin, rows in staged["train"].origins],
        "counts": {part: tally.to_json() for part, tally in source.tallies.items()}
        or {part: Tally(read=rows.rows).to_json() for part, rows in written.items()},
        "table": source.table,
    }
    if source.columns:
        body["columns"] = [column.model_dump(exclude_defaults=True) for column in source.columns]
    if source.image_shape is not None:
        body["image_shape"] = list(source.image_shape)
    if people is not None:
        body["people"] = {**asdict(people.people), "content": people.content}
    if source.places:
        body["places"] = {"content": content_of(source.places)}
    return body


def _stage_part(
    source: Source,
    part: str,
    folder: Path,
    put: Callable[[Path, str], str] | None,
    prints: Fingerprints,
    people: ArrivingPeople | None,
) -> _StagedPart:
    """Check and write a part, block by block."""
    row_format = _format(source)
    writer = RowWriter(folder, row_format, put)
    origins: list[tuple[str, int]] = []
    seen: set[int] = set()
    for read in ahead(source.parts[part]):
        block, digests = (read, None) if people is None else people.meet(part, read)
        features = finite_features(block, source, part, writer.rows)
        labels = declared_labels(block, source, part, writer.rows)
        seen.update(np.unique(labels).tolist())
        # Null records are alike whosever they are.
        known = features if block.plain is None else block.plain
        exact = prints.add(known if block.null is None else known[~block.null], digests)
        if people is not None and digests is not None:
            people.store(part, block.origin, digests, exact, labels)
        writer.write(row_format.encode(features, labels))
        if writer.rows > most_rows():
            raise InputError(
                f"{source.place} holds more than {most_rows()} {part} rows; if this is expected, give --max-rows"
            )
        if origins and origins[-1][0] == block.origin:
            origins[-1] = (block.origin, origins[-1][1] + len(labels))
        elif len(labels):
            origins.append((block.origin, len(labels)))
    return _StagedPart(writer.close(), origins, seen)
