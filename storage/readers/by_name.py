"""Sets by name: those that scikit-learn brings along, and OpenML's, whose public API is asked over the network."""

import hashlib
import re
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np

from storage.cells import canonical_text, column_name
from storage.columns.categories import Category
from storage.columns.column import Column, MissingRows
from storage.columns.ignored import Ignored
from storage.columns.label import Label
from storage.columns.numeric import Numeric
from storage.documents import parse_json
from storage.errors import InputError, StorageError
from storage.readers.declared import Tables, declared_source, encoded_rows
from storage.readers.parquet import parquet_tables
from storage.readers.raw_tables import chunked
from storage.refs import OnViolation, Scaling
from storage.schema import Schema, Table
from storage.source import (
    Block,
    ReadOptions,
    Rows,
    Source,
    Tally,
    bounded,
    bounded_lines,
    confirm,
    open_binary,
    reading,
    register_reader,
    undeclared,
)

API = "https://www.openml.org/api/v1/json"
_SECONDS = 60
_MOST_ANSWER = 1 << 28
_NAME = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._()-]*)(@(?P<version>[0-9]+))?")


def fetch(address: str) -> IO[bytes]:
    """Open an https address for reading.

    Raises
    ------
    StorageError
        If it cannot be reached.
    InputError
        If the server says there is no such thing.
    """
    if urllib.parse.urlsplit(address).scheme != "https":
        raise InputError(f"{address} is not an https address; OpenML is used over https only")
    try:
        answer: IO[bytes] = urllib.request.urlopen(address, timeout=_SECONDS)
    except urllib.error.HTTPError as error:
        # The API's word for "no results" is 412.
        raise InputError(f"OpenML answers {error.code} to {address}; check the name of the set") from error
    except (urllib.error.URLError, TimeoutError, OSError) as error:
        raise StorageError(
            f"OpenML cannot be reached ({getattr(error, 'reason', error)}); fetch the set on a machine with a network "
            "and ingest the file with --format csv or parquet"
        ) from error
    return answer


def _ask(path: str) -> Any:
    address = f"{API}/{path}"
    with fetch(address) as answer:
        try:
            return parse_json(answer.read(_MOST_ANSWER), f"OpenML's answer to {address}")
        except OSError as error:
            raise InputError(f"OpenML's answer to {address} cannot be read: {error}; try again later") from error


def _identity(name: str) -> str:
    """Return the number of a set given by number, name, or name@version (the oldest active one by default)."""
    if name.isdecimal():
        return name
    match = _NAME.fullmatch(name)
    if match is None:
        raise InputError(f"{name!r} is not the name of an OpenML set; write a name, name@version or a number")
    matches = _ask(f"data/list/data_name/{match['name']}/status/active")
    try:
        versions = {int(entry["version"]): str(int(entry["did"])) for entry in matches["data"]["dataset"]}
        version = int(match["version"]) if match["version"] else min(versions)
    except (KeyError, TypeError, ValueError) as error:
        raise _odd(f"the list of sets called {match['name']}", error) from error
    if version not in versions:
        raise InputError(f"OpenML's {match['name']} has no version {version}; it has: {sorted(versions)}")
    return versions[version]


def _odd(what: str, error: BaseException) -> InputError:
    return InputError(
        f"OpenML's answer about {what} has an unexpected form ({error!r:.120}); download the file and use --format csv"
    )


def _column(entry: Mapping[str, Any], target: str) -> Column:
    name, kind = column_name(str(entry["name"])), str(entry["data_type"])
    if name == column_name(target):
        if kind == "nominal":
            return Label(name, classes=_values(entry))
        if kind == "numeric":
            # The range is filled in when it is declared or found.
            return Label(name, range=(-np.inf, np.inf))
        raise InputError(f"OpenML's target {name} has type {kind}; only nominal and numeric targets are supported")
    if "true" in (entry.get("is_ignore"), entry.get("is_row_identifier")):
        return Ignored(name)
    if kind == "nominal":
        return Category(name, _values(entry))
    # Free text and dates are no features.
    return Numeric(name, None) if kind == "numeric" else Ignored(name)


def _values(entry: Mapping[str, Any]) -> tuple[str, ...]:
    values = entry["nominal_value"]
    texts = (canonical_text(value) for value in (values if isinstance(values, list) else [values]))
    return tuple(dict.fromkeys(text for text in texts if text is not None))


def _schema(identity: str, target: str, options: ReadOptions) -> Schema:
    answer = _ask(f"data/features/{identity}")
    try:
        entries = sorted(answer["data_features"]["feature"], key=lambda entry: int(entry["index"]))
        columns = tuple(_column(entry, target) for entry in entries)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _odd(f"the columns of set {identity}", error) from error
    return Schema(
        columns=columns,
        missing=frozenset({"?"}),
        missing_rows=MissingRows.DROP if options.on_violation.drops else MissingRows.REFUSE,
        scaling=Scaling.UNIT_INTERVAL,
        keeps_rows=not options.discover,
    )


def _download(address: str, checksum: str | None) -> tuple[Path, Any]:
    """Return a file fetched into a folder, and what removes the folder when the last source that reads it goes."""
    address = re.sub(r"^http://", "https://", address)
    folder = tempfile.TemporaryDirectory(prefix="unitball-openml-")
    path = Path(folder.name) / "data"
    digest = hashlib.md5(usedforsecurity=False)
    with bounded(fetch(address), address) as answer, path.open("wb") as file:
        try:
            while chunk := answer.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
        except OSError as error:
            raise StorageError(f"the download of {address} was interrupted ({error}); try again") from error
    if checksum and digest.hexdigest() != checksum:
        raise InputError(f"{address} does not match the checksum OpenML states; try again later")
    return path, folder


def _arff_tables(place: str, path: Path, schema: Schema, _: OnViolation) -> Iterator[Table]:
    """Return the rows of an ARFF file."""
    names = [column.name for column in schema.columns]
    return chunked(_arff_rows(place, path, len(names)), names, schema.block_rows, place)


def _arff_rows(place: str, path: Path, width: int) -> Iterator[tuple[int, list[str]]]:
    with reading(place), open_binary(path) as file:
        body = False
        for number, line in bounded_lines(file, path):
            text = line.decode("utf-8", "replace").strip()
            if not text or text.startswith("%"):
                continue
            if not body:
                body = text.lower().startswith("@data")
                continue
            if text.startswith("{"):
                raise InputError(
                    f"{place}, line {number}: sparse ARFF is not supported; download the set as libsvm or csv"
                )
            cells = _cells(text)
            if len(cells) != width:
                raise InputError(f"{place}, line {number}: {len(cells)} cells, expected {width}")
            yield number, cells


_CELL = re.compile(
    r"""\s*(?:'((?:[^'\\]|\\.|'')*)'|"((?:[^"\\]|\\.|"")*)"|([^,]*?))\s*(?:,|$)""",
)


def _cells(text: str) -> list[str]:
    """Split a line of ARFF: cells quoted singly or doubly, quotes doubled or escaped by a backslash."""
    cells = []
    place = 0
    while place < len(text):
        match = _CELL.match(text, place)
        if match is None:
            return []
        single, double, plain = match.groups()
        if plain is not None:
            cells.append(plain)
        else:
            quoted = single.replace("''", "'") if double is None else double.replace('""', '"')
            cells.append(re.sub(r"\\(.)", r"\1", quoted))
        place = match.end()
    return [*cells, ""] if text.endswith(",") else cells


def _file(description: Mapping[str, Any], place: str) -> tuple[Tables, Path, Any]:
    """Fetch the rows and return what reads them; ARFF where there is one, for it has a checksum."""
    parquet = description.get("parquet_url") or description.get("minio_url")
    if str(description.get("format", "")).upper() == "ARFF":
        address, checksum = str(description["url"]), description.get("md5_checksum")
        return partial(_arff_tables, place), *_download(address, checksum)
    if parquet:
        return parquet_tables, *_download(str(parquet), None)
    raise InputError(f"{place} has format {description.get('format')!r}; supported are ARFF and Parquet")


@register_reader("openml", takes=("on_violation",))
def read_openml(path: str | Path, options: ReadOptions) -> Source:
    """Read a set of OpenML by name, name@version or number; needs a network.

    Parameters
    ----------
    path : str
        ``"iris"``, ``"iris@1"`` or ``"61"``.

    Notes
    -----
    Categories and classes are those OpenML declares and become one-hot; numbers stay as they are; text and dates are
    left out. Rows with missing values are refused, or left out with ``on_violation=drop``.
    """
    identity = _identity(str(path))
    place = f"OpenML set {identity}"
    try:
        description = _ask(f"data/{identity}")["data_set_description"]
        target = str(description["default_target_attribute"])
    except (KeyError, TypeError) as error:
        raise _odd(f"set {identity}", error) from error
    schema = _schema(identity, target, options)
    label = schema.label
    if label.range is not None and options.label_range is None and not options.discover:
        raise undeclared({"classes"}, place)
    read, file, held = _file(description, place)
    discovered: frozenset[str] = frozenset()
    if label.range is not None:
        bounds = options.label_range
        if bounds is None:
            discovered = frozenset({"classes"})
            rows = encoded_rows(read, (file,), schema, options.on_violation, Tally())
            labels = np.concatenate([block.labels for block in rows] or [np.zeros(0)])
            if not np.isfinite(labels).all() or len(np.unique(labels)) < 2:
                raise InputError(f"{place} has no two different finite labels; declare --label-range")
            bounds = float(labels.min()), float(labels.max())
        bounded_label = replace(label, range=bounds)
        schema = replace(schema, columns=tuple(bounded_label if one is label else one for one in schema.columns))
    parts = {"train": (read, (file,))}
    return replace(declared_source("openml", place, options, schema, parts, held), found=discovered)


# The range is that of the published targets; with None the labels are classes.
BUNDLED = MappingProxyType(
    {
        "breast_cancer": None,
        "diabetes": (25.0, 346.0),
        "digits": None,
        "iris": None,
        "wine": None,
    }
)
_IMAGES: Mapping[str, tuple[int, ...]] = MappingProxyType({"digits": (8, 8)})


@cache
def _load(name: str) -> Any:
    import sklearn.datasets

    return getattr(sklearn.datasets, f"load_{name}")()


def _bundled(name: str) -> Iterator[Block]:
    """Yield the rows of a set that scikit-learn brings along."""
    bunch = _load(name)
    labels = bunch.target
    if BUNDLED[name] is None:
        labels = np.asarray([str(value) for value in bunch.target_names])[labels]
    yield Block(np.asarray(bunch.data, dtype=np.float64), labels)


@register_reader("sklearn")
def read_bundled(path: str | Path, options: ReadOptions) -> Source:
    """Read a set that scikit-learn brings along; the path is its name.

    Parameters
    ----------
    path : str
        ``"digits"``, ``"iris"``, ``"wine"``, ``"breast_cancer"`` or ``"diabetes"`` (numeric labels).
    """
    name = str(path).replace("-", "_")
    if name not in BUNDLED:
        raise InputError(f"{str(path)!r} is not a bundled set of scikit-learn; these are: {', '.join(BUNDLED)}")
    bunch = _load(name)
    label_range = BUNDLED[name]
    dimension = int(bunch.data.shape[1])
    classes = () if label_range else tuple(str(value) for value in bunch.target_names)
    confirm(options, name, dimension=dimension, classes=classes, label_range=label_range)
    return Source(
        format="sklearn",
        place=name,
        dimension=dimension,
        classes=classes,
        label_range=label_range,
        parts={"train": Rows(_bundled, (name,))},
        image_shape=_IMAGES.get(name),
    )
