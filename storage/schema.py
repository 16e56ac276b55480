"""Declared schemas of tables: what the columns are, said beforehand and never learnt from the rows."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.documents import parse_yaml
from storage.errors import FormatVersionError, InputError
from storage.readers.source import Block, OnViolation, Tally, canonical_label

__all__ = ["FORMAT_VERSION", "Category", "Ignored", "Label", "Numeric", "Schema", "Table", "load_schema"]

FORMAT_VERSION = 1
# Beyond it a number is not finite in float32, which whoever stores it says with its line.
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A column's contribution to a block.

    Attributes
    ----------
    values : array (m, width)
    outside : bool array (m,)
        Rows the schema does not admit.
    hopeless : bool array (m,)
        Those of them that cannot be clipped either.
    """

    values: NDArray[Any]
    outside: NDArray[np.bool_]
    hopeless: NDArray[np.bool_]


class Column(Protocol):
    """One column of a table."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def width(self) -> int:
        """Features it becomes."""
        ...

    @property
    def bound(self) -> str:
        """What it admits, for messages."""
        ...

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Encode cells; those outside are clipped where that can be."""
        ...

    def typed(self, cells: Any, missing: str | None) -> NDArray[Any] | None:
        """Encode an Arrow array of texts; None where one is missing, not in order, or written unusually."""
        ...


def _numbers(cells: Sequence[Any]) -> NDArray[np.float64]:
    """Return cells as numbers, NaN where they are none."""
    # Python, and so NumPy, reads "1_0" as ten; no table means that.
    if not any(isinstance(cell, str) and "_" in cell for cell in cells):
        with suppress(ValueError, TypeError):
            return np.array(cells, dtype=np.float64)
    return np.array([_number(cell) for cell in cells], dtype=np.float64)


def _number(cell: Any) -> float:
    try:
        return float("nan") if isinstance(cell, str) and "_" in cell else float(cell)
    except (ValueError, TypeError):
        return float("nan")


def _typed_numbers(cells: Any, bounds: tuple[float, float] | None, missing: str | None) -> NDArray[np.float64] | None:
    # Only a marker that reads as a number could be taken for one.
    numeric = missing is not None and not np.isnan(_number(missing))
    if numeric and pc.any(pc.equal(pc.utf8_trim_whitespace(cells), missing)).as_py():
        return None
    try:
        numbers = cells.cast(pa.float64())
    except pa.ArrowInvalid:
        try:
            numbers = pc.utf8_trim_whitespace(cells).cast(pa.float64())
        except pa.ArrowInvalid:
            return None
    values: NDArray[np.float64] = numbers.to_numpy(zero_copy_only=False)
    low, high = bounds if bounds is not None else (-_LARGEST, _LARGEST)
    return values if ((values >= low) & (values <= high)).all() else None


def _typed_codes(
    cells: Any, places: Mapping[str, int], missing: str | None, suffix: str = ""
) -> NDArray[np.int64] | None:
    encoded = cells.dictionary_encode()
    values = [value.strip() for value in encoded.dictionary.to_pylist()]
    if any(value == missing or '"' in value for value in values):
        return None
    codes = _codes([value.removesuffix(suffix) for value in values], places)
    return None if (codes < 0).any() else codes[encoded.indices.to_numpy()]


def _one_hot(codes: NDArray[np.int64], width: int) -> NDArray[np.float64]:
    values = np.zeros((len(codes), width))
    rows = np.flatnonzero(codes >= 0)
    values[rows, codes[rows]] = 1.0
    return values


def _codes(cells: Sequence[Any], places: Mapping[str, int]) -> NDArray[np.int64]:
    return np.array([places.get(canonical_label(cell), -1) for cell in cells], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Numeric:
    """Numbers in a declared range, scaled to [0, 1]; without a range (public sets only) they stay as they are."""

    name: str
    range: tuple[float, float] | None

    @property
    def width(self) -> int:
        """One feature."""
        return 1

    @property
    def bound(self) -> str:
        """The range."""
        return "a finite number" if self.range is None else f"a number in [{self.range[0]:g}, {self.range[1]:g}]"

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Scale, clipping to the ends of the range."""
        numbers = _numbers(cells)
        hopeless = np.isnan(numbers)
        if self.range is None:
            hopeless = ~np.isfinite(numbers)
            return Encoded(numbers[:, None], hopeless, hopeless)
        low, high = self.range
        outside = ~((numbers >= low) & (numbers <= high))
        return Encoded(((np.clip(numbers, low, high) - low) / (high - low))[:, None], outside, hopeless)

    def typed(self, cells: Any, missing: str | None) -> NDArray[Any] | None:
        """Scale numbers that are all in the range."""
        numbers = _typed_numbers(cells, self.range, missing)
        if numbers is not None and self.range is not None:
            low, high = self.range
            numbers = (numbers - low) / (high - low)
        return None if numbers is None else numbers[:, None]


@dataclass(frozen=True)
class Category:
    """One of declared values, one feature each (one-hot)."""

    name: str
    values: tuple[str, ...]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {value: place for place, value in enumerate(self.values)}

    @property
    def width(self) -> int:
        """One feature a value."""
        return len(self.values)

    @property
    def bound(self) -> str:
        """The values."""
        return "one of " + ", ".join(self.values[:12]) + (", …" if len(self.values) > 12 else "")

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """One-hot; an unknown value becomes zeros."""
        codes = _codes(cells, self._places)
        outside = codes < 0
        return Encoded(_one_hot(codes, self.width), outside, np.zeros(len(codes), dtype=bool))

    def typed(self, cells: Any, missing: str | None) -> NDArray[Any] | None:
        """One-hot, where all values are declared."""
        codes = _typed_codes(cells, self._places, missing)
        return None if codes is None else _one_hot(codes, self.width)


@dataclass(frozen=True, slots=True)
class Ignored:
    """A column that is not looked at."""

    name: str

    @property
    def width(self) -> int:
        """No feature."""
        return 0

    @property
    def bound(self) -> str:
        """Anything."""
        return "anything"

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Nothing."""
        none = np.zeros(len(cells), dtype=bool)
        return Encoded(np.zeros((len(cells), 0)), none, none)

    def typed(self, cells: Any, missing: str | None) -> NDArray[Any] | None:
        """Nothing."""
        return np.zeros((len(cells), 0))


@dataclass(frozen=True)
class Label:
    """What is to be predicted: one of declared classes, or a number in a declared range."""

    name: str
    classes: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    suffix: str = ""

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.classes)}

    @property
    def width(self) -> int:
        """No feature."""
        return 0

    @property
    def bound(self) -> str:
        """Classes or range."""
        if self.range is not None:
            return f"a number in [{self.range[0]:g}, {self.range[1]:g}]"
        return "one of " + ", ".join(self.classes[:12]) + (", …" if len(self.classes) > 12 else "")

    def encode(self, cells: Sequence[Any]) -> Encoded:
        """Return class names, or numbers clipped to the range; a label that is no class cannot be clipped."""
        if self.range is not None:
            numbers = _numbers(cells)
            low, high = self.range
            outside = ~((numbers >= low) & (numbers <= high))
            return Encoded(np.clip(numbers, low, high)[:, None], outside, np.isnan(numbers))
        if self.suffix:
            cells = [cell.removesuffix(self.suffix) if isinstance(cell, str) else cell for cell in cells]
        codes = _codes(cells, self._places)
        return Encoded(np.array(self.classes)[codes][:, None], codes < 0, codes < 0)

    def typed(self, cells: Any, missing: str | None) -> NDArray[Any] | None:
        """Return class names or numbers, where all are declared or in the range."""
        if self.range is not None:
            numbers = _typed_numbers(cells, self.range, missing)
            return None if numbers is None else numbers[:, None]
        codes = _typed_codes(cells, self._places, missing, self.suffix)
        return None if codes is None else np.array(self.classes)[codes][:, None]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells as a file has them.

    Attributes
    ----------
    columns : mapping of column name to cells
        Text or numbers; None where a value is missing.
    lines : int array
        Where they stand in the file.
    unit : str
        What ``lines`` counts: ``"line"`` or ``"row"``.
    broken : bool array, optional
        Rows that have no cells the schema could be held against, every cell None; they are left out.
    """

    columns: Mapping[str, Sequence[Any]]
    lines: NDArray[np.int64]
    place: str
    unit: str = "line"
    broken: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Schema:
    """The declared schema of a table.

    Parameters
    ----------
    columns : tuple of columns
        In the file's order. Exactly one is the :class:`Label`.
    delimiter : str
    header : bool
        Whether the first line names the columns (in any order).
    skip_lines_beginning : tuple of str
        Lines that begin so are no rows.
    missing : str or None
        How a missing value is written.
    drop_incomplete : bool
        Whether rows with a missing value are left out; otherwise they are refused.
    keeps_rows : bool
        Whether a row that is left out stays as a null record, counted and contributing nothing, as on private data:
        whether it is left out depends on what it holds, and the number of rows would tell.
    files : mapping
        Names of the ``train`` and ``test`` files where a folder is given.
    """

    columns: tuple[Numeric | Category | Ignored | Label, ...]
    delimiter: str = ","
    header: bool = False
    skip_lines_beginning: tuple[str, ...] = ()
    missing: str | None = None
    drop_incomplete: bool = False
    keeps_rows: bool = False
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"column {twice[0]!r} is declared twice; names must differ")
        if sum(isinstance(column, Label) for column in self.columns) != 1:
            raise InputError("a schema has exactly one column of type label")
        if self.dimension == 0:
            raise InputError("a schema has at least one column of type numeric or category")
        if len(self.delimiter) != 1:
            raise InputError(f"delimiter is {self.delimiter!r}; it must be one character")

    @property
    def label(self) -> Label:
        """The label column."""
        return next(column for column in self.columns if isinstance(column, Label))

    @property
    def dimension(self) -> int:
        """Features a row."""
        return sum(column.width for column in self.columns)

    @property
    def block_rows(self) -> int:
        """Rows to encode at once, so that their cells and features fit well into memory."""
        return max(16, min(4096, (1 << 19) // max(len(self.columns), self.dimension)))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features: the column's, for categories with ``=value``."""
        names: list[str] = []
        for column in self.columns:
            if isinstance(column, Category):
                names.extend(f"{column.name}={value}" for value in column.values)
            elif column.width:
                names.append(column.name)
        return tuple(names)

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the columns that are looked at."""
        return tuple(column.name for column in self.columns if not isinstance(column, Ignored))

    def encode(self, table: Table, on_violation: OnViolation, tally: Tally) -> Block:
        """Encode rows of cells.

        Parameters
        ----------
        on_violation : OnViolation
            What happens to rows outside the schema.
        tally : Tally
            Gets the counts.

        Raises
        ------
        InputError
            For the first row that is refused, naming line, column, value, bound and way out.
        """
        used = [column for column in self.columns if not isinstance(column, Ignored)]
        gaps = {
            column.name: np.array([cell is None or cell == self.missing for cell in table.columns[column.name]], bool)
            for column in used
        }
        broken = np.zeros(len(table.lines), dtype=bool) if table.broken is None else table.broken
        incomplete = np.logical_or.reduce(list(gaps.values())) & ~broken
        if incomplete.any() and not self.drop_incomplete:
            row = int(np.argmax(incomplete))
            name = next(name for name, gap in gaps.items() if gap[row])
            raise InputError(
                f"{table.place}, {table.unit} {table.lines[row]}, column {name}: the value is missing; fill it, or let "
                "the schema say 'missing: {marker: …, rows: drop}'"
            )
        tally.incomplete += int(incomplete.sum())
        tally.dropped += int(broken.sum())
        keep = np.flatnonzero(~(incomplete | broken))
        cells = {column.name: [table.columns[column.name][row] for row in keep.tolist()] for column in used}
        encoded = [column.encode(cells[column.name]) for column in used]
        outside = np.zeros(len(keep), dtype=bool)
        refused = np.zeros(len(keep), dtype=bool)
        for part in encoded:
            outside |= part.outside
            refused |= part.outside if on_violation is OnViolation.REFUSE else part.hopeless
        if on_violation is OnViolation.DROP:
            tally.dropped += int(outside.sum())
            good = ~outside
        else:
            if refused.any():
                self._refuse(table, keep, cells, used, encoded, int(np.argmax(refused)), on_violation)
            tally.clipped += int(outside.sum())
            good = np.ones(len(keep), dtype=bool)
        features = np.concatenate(
            [part.values for column, part in zip(used, encoded, strict=True) if not isinstance(column, Label)], axis=1
        )
        labels = next(
            part.values[:, 0] for column, part in zip(used, encoded, strict=True) if isinstance(column, Label)
        )
        kept = keep[good]
        if not self.keeps_rows or len(kept) == len(table.lines):
            return Block(features[good], labels[good], table.lines[kept], place=table.place, unit=table.unit)
        null = np.ones(len(table.lines), dtype=bool)
        null[kept] = False
        every, names = np.zeros((len(null), self.dimension), dtype=features.dtype), np.empty(len(null), dtype=object)
        every[kept], names[kept] = features[good], labels[good]
        return Block(every, names, table.lines, place=table.place, unit=table.unit, null=null)

    def typed(self, columns: Mapping[str, Any], lines: NDArray[np.int64], place: str) -> Block | None:
        """Encode Arrow arrays of texts column by column; None unless every cell is in order.

        What it gives is what :meth:`encode` gives, some twenty times as fast.
        """
        used = [column for column in self.columns if not isinstance(column, Ignored)]
        parts = []
        for column in used:
            values = column.typed(columns[column.name], self.missing)
            if values is None:
                return None
            parts.append(values)
        features = [part for column, part in zip(used, parts, strict=True) if not isinstance(column, Label)]
        labels = next(part[:, 0] for column, part in zip(used, parts, strict=True) if isinstance(column, Label))
        return Block(np.concatenate(features, axis=1), labels, lines, place=place)

    @staticmethod
    def _refuse(
        table: Table,
        keep: NDArray[np.int64],
        cells: Mapping[str, Sequence[Any]],
        used: Sequence[Column],
        encoded: Sequence[Encoded],
        row: int,
        on_violation: OnViolation,
    ) -> None:
        for column, part in zip(used, encoded, strict=True):
            if part.hopeless[row] or (on_violation is OnViolation.REFUSE and part.outside[row]):
                ways = "--on-violation drop" if part.hopeless[row] else "--on-violation clip or drop"
                shown = str(cells[column.name][row])[:60]
                raise InputError(
                    f"{table.place}, {table.unit} {table.lines[keep[row]]}, column {column.name}: {shown!r} is outside "
                    f"the schema, which admits {column.bound}; correct the row or the schema, or use {ways}"
                )


def _unknown(place: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=3, cutoff=0.4) or list(known)
            raise InputError(f"{place} has no key {key!r}; nearest: {', '.join(near)}")


def _texts(place: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not values:
        raise InputError(f"{place} must be a list of at least one value")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise InputError(f"{place} holds {value!r}, which YAML does not read as text; put it in quotes")
    texts = tuple(canonical_label(value) for value in values)
    if len(set(texts)) < len(texts):
        raise InputError(f"{place} holds the same value twice: {list(texts)}")
    return texts


def _range(place: str, value: Any) -> tuple[float, float]:
    numbers = _numbers(value) if isinstance(value, list) else np.zeros(0)
    if numbers.shape != (2,) or not np.isfinite(numbers).all() or not numbers[0] < numbers[1]:
        raise InputError(f"{place} is {value!r}; it must be two finite numbers, the smaller first: [0, 100]")
    return float(numbers[0]), float(numbers[1])


def _numeric(name: str, given: Mapping[str, Any], place: str) -> Numeric:
    _unknown(place, given, ("name", "type", "range"))
    return Numeric(name, _range(f"{place}: range", given.get("range")))


def _category(name: str, given: Mapping[str, Any], place: str) -> Category:
    _unknown(place, given, ("name", "type", "values"))
    return Category(name, _texts(f"{place}: values", given.get("values")))


def _ignored(name: str, given: Mapping[str, Any], place: str) -> Ignored:
    _unknown(place, given, ("name", "type"))
    return Ignored(name)


def _label(name: str, given: Mapping[str, Any], place: str) -> Label:
    _unknown(place, given, ("name", "type", "classes", "range", "suffix"))
    if ("classes" in given) == ("range" in given):
        raise InputError(f"{place} must have either classes or a range")
    if "range" in given:
        return Label(name, range=_range(f"{place}: range", given["range"]))
    classes = _texts(f"{place}: classes", given["classes"])
    if len(classes) < 2:
        raise InputError(f"{place}: classes are {list(classes)}; declare at least two")
    return Label(name, classes=classes, suffix=str(given.get("suffix", "")))


_KINDS: Mapping[str, Callable[[str, Mapping[str, Any], str], Numeric | Category | Ignored | Label]] = MappingProxyType(
    {"category": _category, "ignore": _ignored, "label": _label, "numeric": _numeric}
)


def _column(number: int, given: Any, place: str) -> Numeric | Category | Ignored | Label:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise InputError(f"{place}, column {number}: each column is a mapping with a name and a type")
    where = f"{place}, column {given['name']}"
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f"{where}: type is {kind!r}; it must be one of {', '.join(_KINDS)}")
    return _KINDS[kind](given["name"], given, where)


def _parse(data: Any, place: str) -> Schema:
    if not isinstance(data, dict) or not isinstance(data.get("columns"), list):
        raise InputError(f"{place} is not a schema: it must be a mapping with a list of columns")
    keys = ("format_version", "delimiter", "header", "skip_lines_beginning", "missing", "files", "columns")
    _unknown(place, data, keys)
    version = data.get("format_version", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise FormatVersionError(
            f"{place} has format version {version}, this Unitball reads {FORMAT_VERSION}; upgrade it"
        )
    columns = tuple(_column(number, given, place) for number, given in enumerate(data["columns"], start=1))
    try:
        schema = Schema(
            columns=columns,
            delimiter=str(data.get("delimiter", ",")),
            header=bool(data.get("header", False)),
            skip_lines_beginning=tuple(str(text) for text in data.get("skip_lines_beginning", ())),
            files={str(part): str(name) for part, name in (data.get("files") or {}).items()},
        )
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    missing = data.get("missing")
    if missing is None:
        return schema
    if not isinstance(missing, dict) or missing.get("rows") not in ("drop", "refuse") or "marker" not in missing:
        raise InputError(f'{place}: missing must be {{marker: "?", rows: drop}} or {{…, rows: refuse}}')
    return replace(schema, missing=str(missing["marker"]), drop_incomplete=missing["rows"] == "drop")


def load_schema(path: str | Path) -> Schema:
    """Read a schema from a YAML file, or one that comes along by its name (``adult``).

    Raises
    ------
    InputError
        Naming the file, the column, the key and what is expected.
    """
    place = Path(path)
    packaged = files("storage.readers") / "schemas"
    try:
        if place.is_file():
            text = place.read_text("utf-8")
        elif str(path).isidentifier() and (packaged / f"{path}.yaml").is_file():
            text = (packaged / f"{path}.yaml").read_text("utf-8")
        else:
            names = ", ".join(sorted(item.name.removesuffix(".yaml") for item in packaged.iterdir()))
            raise InputError(
                f"schema {path} does not exist; name a YAML file, or one of those that come along: {names}"
            )
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read schema {path}: {error}") from error
    return _parse(parse_yaml(text, f"schema {path}"), str(path))
