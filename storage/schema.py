"""Declared schemas of tables: what the columns are, said beforehand and never learnt from the rows."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.cells import absent, canonical_text, canonical_texts
from storage.columns.categories import Category
from storage.columns.column import Column, Encoded, Floats, MissingRows
from storage.columns.dates import Date, Days
from storage.columns.declarations import known_keys, missing_rule, named_twice
from storage.columns.label import Label
from storage.columns.numeric import Numeric
from storage.columns.person import Person
from storage.columns.types import parse_column
from storage.documents import as_text, parse_yaml, read_yaml
from storage.errors import InputError, require_format
from storage.hidden_cells import shown_cell
from storage.people import People, identifiers
from storage.recoding import in_order
from storage.refs import OnViolation, Scaling, TableColumn
from storage.several import settled, spread
from storage.source import Block, Tally

FORMAT_VERSION = 1

_INTERCEPT = 0.1
_TEXTS = Category("", ())


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells as a file has them.

    Attributes
    ----------
    columns : mapping of column name to cells
        Arrow arrays, or sequences of cells of any types; by canonical names (:func:`storage.cells.column_name`).
    lines : int array
        Where they stand in the file.
    unit : str
        What ``lines`` counts: ``"line"`` or ``"row"``.
    faults : sequence of str or None, optional
        Why a row has no cells that a schema can validate (every cell is None); such rows are left out.
    """

    columns: Mapping[str, Any]
    lines: NDArray[np.int64]
    place: str
    unit: str = "line"
    faults: Sequence[str | None] | None = None

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Mask of the rows that have cells."""
        known = np.ones(len(self.lines), dtype=bool)
        return known if self.faults is None else np.array([fault is None for fault in self.faults], dtype=bool)


@dataclass(frozen=True, slots=True)
class Examined:
    """The cells of one column, validated against its declaration.

    Attributes
    ----------
    column : Column
    cells : tuple of sequences
        Those of each column of the file that it reads.
    missing : bool array (m,)
    encoded : Encoded
        Of all rows; zeros where the cell is missing.
    """

    column: Column
    cells: Sequence[Any]
    missing: NDArray[np.bool_]
    encoded: Encoded

    def shown(self, row: int) -> str:
        """Return the cell of a row as it came, for a message."""
        found = []
        for cells in self.cells:
            cell = cells[row]
            try:
                found.append(cell.as_py() if isinstance(cell, pa.Scalar) else cell)
            except (OverflowError, ValueError):
                # A day beyond Python's calendar, or bytes that are no text.
                found.append(f"a {cell.type} without text")
        return str(found[0] if len(found) == 1 else tuple(found))


@dataclass(frozen=True)
class Schema:
    """The declared schema of a table.

    Parameters
    ----------
    columns : tuple of columns
        In the file's order. Exactly one is the :class:`~storage.columns.label.Label`.
    delimiter : str
    header : bool
        Whether the first line names the columns (in any order).
    encoding : str
        Of the file's text, as Python names it.
    decimal : str
        What separates whole numbers from their fraction.
    skip_lines_beginning : tuple of str
        Lines that begin so are skipped.
    missing : frozenset of str
        How a missing value is written.
    missing_rows : MissingRows
        What happens to a row with a missing cell, unless its column overrides it.
    scaling : Scaling
        What numbers become.
    keeps_rows : bool
        Whether a row that is left out stays as a null record, counted and contributing nothing, as on private data:
        whether it is left out depends on what it holds, and the number of rows would tell.
    files : mapping
        Names of the ``train`` and ``test`` files where a folder is given.
    document : mapping
        The declaration as JSON, from which the schema can be made again, but for ``files``; empty where there is none.

    Notes
    -----
    Under ``Scaling.CENTRED`` a row of p numbers, each in [-1, 1], and c one-hot groups is weighted by public counts
    alone: numbers by sqrt(3 / p) and categories by sqrt(1 / c), so that either block has a mean squared norm of 1 if
    numbers are uniform on their ranges, and neither drowns the other. In addition, the intercept's coordinate is 0.1:
    larger ones cost accuracy where the numbers fill a small part of their ranges (on Musk, an SVM without privacy
    0.929 at 0.1, 0.921 at 0.25, 0.898 at 0.5). The whole is divided so that such a row has norm 1. What is row-local
    and from declarations alone costs no privacy.

    In [0, 1] a column in the middle of its range is a constant that all rows share; centred it is nothing. Linear
    models of gradient descent (T = 100, clip 0.5, delta 1e-5, replace-one, one curator) have, without privacy and at
    epsilon = 0.5 and 1, on Adult 0.847, 0.836 and 0.837 centred, for 0.846, 0.831 and 0.833 in [0, 1]; on Musk (a
    linear SVM) 0.929, 0.877 and 0.897, for 0.837, which is guessing.
    """

    columns: tuple[Column, ...]
    delimiter: str = ","
    header: bool = True
    encoding: str = "utf-8"
    decimal: str = "."
    skip_lines_beginning: tuple[str, ...] = ()
    missing: frozenset[str] = frozenset({""})
    missing_rows: MissingRows = MissingRows.REFUSE
    scaling: Scaling = Scaling.CENTRED
    keeps_rows: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if twice := named_twice([column.name for column in self.columns]):
            raise InputError(f"column {twice!r} is declared twice; names must differ")
        if sum(isinstance(column, Label) for column in self.columns) != 1:
            raise InputError("a schema has exactly one column of type label")
        if len(named := [column.name for column in self.columns if isinstance(column, Person)]) > 1:
            raise InputError(f"columns {' and '.join(named)} both have the type person; declare one")
        days = {column.name for column in self.columns if isinstance(column, Date) or not column.used}
        for column in self.columns:
            if isinstance(column, Days) and (unknown := [name for name in column.reads if name not in days]):
                raise InputError(
                    f"column {column.name} uses between with {unknown[0]!r}; give columns of type date or ignore"
                )
        if not self.inputs:
            raise InputError(
                "a schema has at least one column that becomes a feature: numeric, category, boolean, date"
            )
        if len(self.delimiter) != 1:
            raise InputError(f"delimiter is {self.delimiter!r}; it must be one character")
        if not self.delimiter.isascii() or self.delimiter in '"\r\n':
            raise InputError(
                f"delimiter is {self.delimiter!r}; it must be an ASCII character, and no quotation mark and no line end"
            )
        if self.decimal not in (".", ",") or self.decimal == self.delimiter:
            raise InputError(f"decimal is {self.decimal!r}; it must be '.' or ',' and not the delimiter")
        if any(isinstance(column, Numeric) and column.thousands == self.decimal for column in self.columns):
            raise InputError(f"decimal and the thousands separator are both {self.decimal!r}; they must differ")
        try:
            "".encode(self.encoding)
        except (LookupError, UnicodeError):
            raise InputError(
                f"encoding {self.encoding!r} is unknown; common encodings are utf-8, latin-1, cp1252 and utf-16"
            ) from None

    @property
    def label(self) -> Label:
        """The label column."""
        return next(column for column in self.columns if isinstance(column, Label))

    @property
    def people(self) -> People | None:
        """The declaration of the people behind rows; None where each row is a separate record."""
        return next((column.people for column in self.columns if isinstance(column, Person)), None)

    @cached_property
    def inputs(self) -> tuple[Column, ...]:
        """The columns that become features."""
        return tuple(column for column in self.columns if column.width)

    @cached_property
    def _indicators(self) -> tuple[Column, ...]:
        """The columns with a feature that says whether they are missing."""
        return tuple(column for column in self.inputs if self.rule(column) is MissingRows.INDICATOR)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Names of the inputs' features."""
        return tuple(name for column in self.inputs for name in column.features)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features: the column's, for categories with ``=value``."""
        names = [*self._names, *(f"{column.name} is missing" for column in self._indicators)]
        return (*names, "(intercept)") if self.scaling is Scaling.CENTRED else tuple(names)

    @cached_property
    def places(self) -> tuple[TableColumn, ...]:
        """The features of each input, in order; empty where a number has no declared range.

        A column of several numbers, or of several one-hot groups, is as many.
        """
        if any(isinstance(column, Numeric) and column.range is None for column in self.inputs):
            return ()
        centred = self.scaling is Scaling.CENTRED
        weights = self._weights if centred else np.ones(self.dimension)
        indicators = {column.name: place for place, column in enumerate(self._indicators, len(self._names))}
        found: list[TableColumn] = []
        at = 0
        for column in self.inputs:
            ends = np.array([np.zeros(column.width), np.ones(column.width)])
            low, high = (column.place(ends) if centred else ends) * weights[at : at + column.width]
            missing = indicators.get(column.name)
            for place in range(column.numbers):
                found.append(TableColumn(at=at + place, missing=missing, low=low[place], high=high[place]))
            at += column.numbers
            for size in column.groups:
                found.append(TableColumn(at=at, values=size, high=weights[at]))
                at += size
        return tuple(found)

    @property
    def own_features(self) -> dict[str, tuple[int, ...]]:
        """The features of each input, by its name, including the one that marks a missing cell."""
        ends = np.cumsum([0, *(column.width for column in self.inputs)])
        found = {
            column.name: tuple(range(start, stop))
            for column, start, stop in zip(self.inputs, ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        }
        for place, column in enumerate(self._indicators, len(self._names)):
            found[column.name] += (place,)
        return found

    @property
    def dimension(self) -> int:
        """Features a row."""
        return len(self.feature_names)

    @property
    def block_rows(self) -> int:
        """Rows to encode at once, so that their cells and features fit well into memory."""
        return max(16, min(4096, (1 << 19) // max(len(self.columns), self.dimension)))

    @property
    def in_file(self) -> tuple[str, ...]:
        """Names of the columns that the file has: those that are not computed from others."""
        return tuple(column.name for column in self.columns if column.name in column.reads)

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the file's columns that are read."""
        return tuple(dict.fromkeys(name for column in self.columns if column.used for name in column.reads))

    def rule(self, column: Column) -> MissingRows:
        """Return what happens to rows where a column is missing; a row needs a label and a person."""
        if column.missing is not None:
            return column.missing
        if column.essential and self.missing_rows.keeps:
            return MissingRows.REFUSE
        return self.missing_rows

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        """Factors of numbers, one-hot groups and the intercept's coordinate, one per feature."""
        numbers = sum(column.numbers for column in self.inputs)
        groups = sum(len(column.groups) for column in self.inputs)
        of_number, of_group = np.sqrt(3.0 / max(numbers, 1)), np.sqrt(1.0 / max(groups, 1))
        weights = [
            weight
            for column in self.inputs
            for weight in [of_number] * column.numbers + [of_group] * (column.width - column.numbers)
        ]
        weights += [of_group] * len(self._indicators) + [_INTERCEPT]
        blocks = (numbers > 0) + (groups > 0)
        return np.asarray(np.array(weights) / np.sqrt(blocks + _INTERCEPT**2))

    def missing_row(self) -> NDArray[np.float64]:
        """Return the features of a row whose cells are all missing, (dimension,), as indicators would say it."""
        row = np.zeros(self.dimension)
        row[len(self._names) :] = 1.0
        if self.scaling is Scaling.CENTRED:
            return np.asarray(row * self._weights)
        row[[place.at for place in self.places if place.values is None]] = 0.5
        return row

    @property
    def intercept(self) -> float:
        """The intercept's coordinate in every row: the last feature under ``Scaling.CENTRED``."""
        return float(self._weights[-1])

    def examine(self, table: Table, columns: Sequence[Column]) -> list[Examined]:
        """Hold cells against the declarations of some columns; nothing is refused."""
        return [self._examined(column, [table.columns[name] for name in column.reads]) for column in columns]

    def read(self, column: Column, cells: Any) -> tuple[pa.StringArray | Floats, NDArray[np.bool_]]:
        """Return what cells are to a column, and which of them are missing.

        A cell is missing if it holds nothing, or is the same to its column as a marker: in a column of numbers -999.0
        and "-9.99e2" are the marker -999, in one of days 1900-01-01 is "01.01.1900" where days are written so.
        """
        values, missing = column.read(cells, self.decimal), absent(cells)
        texts, alike = self._marks(column)
        if isinstance(values, np.ndarray):
            if len(alike):
                missing |= np.isin(values, alike)
            if (unread := np.isnan(values) & ~missing).any():
                missing |= unread & _among(canonical_texts(cells, self.decimal), texts)
            return values, missing
        return values, missing | _among(values, texts) | _among(values, alike)

    def whose(self, cells: Any) -> NDArray[np.object_]:
        """Return whom cells name, (m,); None where they are missing or ambiguous."""
        texts, missing = self.read(_TEXTS, cells)
        names = identifiers(texts)
        names[missing] = None
        return names

    def _marks(self, column: Column) -> tuple[Any, Any]:
        """Return the markers of missing cells, as canonical texts and as what they are to a column."""
        key = type(column), column.name
        if key not in self._markers:
            written = pa.array(sorted(self.missing), pa.string())
            alike = column.read(written, self.decimal)
            if isinstance(alike, np.ndarray):
                marks = canonical_texts(written, self.decimal), alike[~np.isnan(alike)]
            else:
                own = pa.array(sorted(column.written), pa.string())
                marks = alike.filter(pc.invert(pc.is_in(alike, own))), alike[:0]
            self._markers[key] = marks
        return self._markers[key]

    @cached_property
    def _markers(self) -> dict[tuple[type[Column], str], tuple[Any, Any]]:
        """Result of :meth:`_marks`."""
        return {}

    def _examined(self, column: Column, given: Sequence[Any]) -> Examined:
        values, missing = zip(*(self.read(column, cells) for cells in given), strict=True)
        gone = np.logical_or.reduce(missing)
        encoded = column.encode(*values)
        if gone.any():
            encoded.values[gone] = np.zeros(1, dtype=encoded.values.dtype)
            encoded = Encoded(encoded.values, encoded.outside & ~gone, encoded.unclippable & ~gone)
        return Examined(column, tuple(given), gone, encoded)

    def features(self, examined: Sequence[Examined]) -> NDArray[np.float64]:
        """Return the features of rows, from the examined :attr:`inputs` in their order.

        Returns
        -------
        array (m, dimension)
            A missing number lies at 0 (in the middle, under ``Scaling.UNIT_INTERVAL``), a missing category is zeros.
        """
        parts = []
        for checked in examined:
            column, values = checked.column, np.array(checked.encoded.values, dtype=np.float64)
            if self.scaling is Scaling.CENTRED:
                values = column.place(values)
            values[checked.missing, : column.numbers] = 0.0 if self.scaling is Scaling.CENTRED else 0.5
            values[checked.missing, column.numbers :] = 0.0
            parts.append(values)
        parts += [
            checked.missing[:, None].astype(np.float64)
            for checked in examined
            if self.rule(checked.column) is MissingRows.INDICATOR
        ]
        if self.scaling is not Scaling.CENTRED:
            return np.concatenate(parts, axis=1)
        return np.concatenate([*parts, np.ones((len(parts[0]), 1))], axis=1) * self._weights

    def plain(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Return what rows are recognised by, under any scaling: their features under ``Scaling.UNIT_INTERVAL``.

        Parameters
        ----------
        features : array (m, dimension)
            As :meth:`features` makes them; indicators are left out, and missing numbers are NaN.
        """
        numbers = np.asarray(features, dtype=np.float64)
        centred = self.scaling is Scaling.CENTRED
        if centred:
            numbers = numbers / self._weights
        parts, ends = [], np.cumsum([column.width for column in self.inputs])
        for column, values in zip(self.inputs, np.split(numbers, ends, axis=1), strict=False):
            if self.rule(column).keeps:
                # Missing cells lie there; so may others, which then do not count either.
                filled = values[:, : column.numbers] == (0.0 if centred else 0.5)
                values = np.where(np.pad(filled, ((0, 0), (0, column.width - column.numbers))), np.nan, values)
            parts.append(column.unplace(values) if centred else values)
        return np.concatenate(parts, axis=1)

    def cells(self, plain: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the numbers of the file that :meth:`plain` features stand for; these, of fewer than five columns."""
        places = np.cumsum([0, *(column.width for column in self.inputs)])
        texts = [
            (place, *column.range)
            for place, column in zip(places.tolist(), self.inputs, strict=False)
            if isinstance(column, Numeric) and column.name in column.reads and column.range is not None
        ]
        if len(texts) < 5:
            return plain
        columns, lows, highs = zip(*texts, strict=True)
        return np.asarray(plain[:, columns] * np.subtract(highs, lows) + lows)

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
        examined = self.examine(table, [column for column in self.columns if column.used])
        alive = table.whole
        left = alive.copy()
        refused = []
        for checked in examined:
            rule = self.rule(checked.column)
            if rule is MissingRows.DROP:
                left &= ~checked.missing
            elif rule is MissingRows.REFUSE:
                refused.append((checked, checked.missing & alive))
        outside = np.logical_or.reduce([one.encoded.outside for one in examined]) & left
        violations = [one.encoded.unclippable if on_violation.clips else one.encoded.outside for one in examined]
        good = left & ~np.logical_or.reduce(violations) if on_violation.drops else left
        if not on_violation.drops:
            refused += [(one, wrong & left) for one, wrong in zip(examined, violations, strict=True)]
        self._refuse_first(table, refused)
        tally.update(
            read=len(alive),
            incomplete=int((np.logical_or.reduce([one.missing for one in examined]) & alive).sum()),
            outside=int(outside.sum() + (~alive).sum()),
            clipped=int((outside & good).sum()),
            **{"null" if self.keeps_rows else "dropped": int((~good).sum())},
        )
        tally.cells.update(
            {one.column.name: count for one in examined if (count := int((one.encoded.outside & good).sum()))}
        )
        block = self._block(table, examined)
        if good.all():
            return block
        if not self.keeps_rows:
            return block.kept(good)
        assert block.plain is not None, "encoded rows are recognised by their cells"
        block.features[~good], block.plain[~good] = 0.0, 0.0
        return replace(block, null=~good)

    def _refuse_first(self, table: Table, refused: Sequence[tuple[Examined, NDArray[np.bool_]]]) -> None:
        """Raise for the first row that a column refuses, if there is one."""
        first = [(int(np.argmax(rows)), column) for column, rows in refused if rows.any()]
        if not first:
            return
        row, column = min(first, key=lambda fault: fault[0])
        raise InputError(
            f"{table.place}, {table.unit} {table.lines[row]}, column {column.column.name}: {self.fault(column, row)}",
            bound="present" if column.missing[row] else column.column.bound,
            way_out="missing" if column.missing[row] else "--on-violation",
        )

    def _block(self, table: Table, examined: Sequence[Examined]) -> Block:
        """Return all rows of a table, encoded: features, labels, what they are recognised by, whose they are."""
        label = next(one for one in examined if isinstance(one.column, Label))
        inputs = [one for one in examined if one.column.width]
        features, plain = self.features(inputs), np.concatenate([_plain(one) for one in inputs], axis=1)
        whose = next((one for one in examined if isinstance(one.column, Person)), None)
        return Block(
            features,
            label.encoded.values[:, 0],
            table.lines,
            place=table.place,
            unit=table.unit,
            plain=plain,
            people=None if whose is None else np.where(whose.missing, np.array(None), whose.encoded.values[:, 0]),
        )

    def fault(self, examined: Examined, row: int) -> str:
        """Return what is wrong with a cell that is refused, and the ways out."""
        if examined.missing[row]:
            # A marker is for all columns, which whoever wrote it may not have had in mind.
            shown, alone = examined.shown(row)[:60], len(examined.cells) == 1
            marked = alone and shown.strip() and not absent(examined.cells[0][row : row + 1])[0]
            what = f"{shown_cell(shown, 'the cell')} marks a missing value" if marked else "the value is missing"
            if examined.column.essential:
                return f"{what}; fill it, or declare 'missing: drop' for the column"
            return (
                f"{what}; fill it, or declare 'missing: {{marker: …, rows: indicator, constant or drop}}' in the schema"
            )
        ways = "--on-violation drop" if examined.encoded.unclippable[row] else "--on-violation clip or drop"
        return (
            f"{shown_cell(examined.shown(row), 'the cell')} is outside the schema, which allows "
            f"{examined.column.bound}; correct the row or the schema, or use {ways}"
        )


def _plain(column: Examined) -> NDArray[Any]:
    """Return what rows are recognised by of a column: its encoded cells, NaN for missing numbers."""
    unknown = column.missing[:, None] & (np.arange(column.column.width) < column.column.numbers)
    return np.where(unknown, np.nan, column.encoded.values) if unknown.any() else column.encoded.values


def _among(texts: Any, some: Any) -> NDArray[np.bool_]:
    """Return which of canonical texts are among some."""
    found: NDArray[np.bool_] = pc.is_in(texts, some).to_numpy(zero_copy_only=False)
    return found


_KEYS = (
    "format_version", "delimiter", "header", "encoding", "decimal", "skip_lines_beginning", "missing", "scaling",
    "files", "columns",
)  # fmt: skip


def parse_schema(data: Any, place: str, scaling: Scaling | None = None, there: Sequence[str] | None = None) -> Schema:
    """Return the schema that a mapping declares.

    Parameters
    ----------
    data : mapping
        As read from YAML, or a schema's ``document``.
    place : str
        What declares it, for messages.
    scaling : Scaling, optional
        Instead of the declared one.
    there : sequence of str, optional
        The names of a file's columns, which settle what patterns of names mean: the schema's ``document`` has the names
        instead. Without them a pattern is refused.

    Raises
    ------
    InputError
        Naming the place, the column, the key and what is expected.
    """
    if not isinstance(data, dict) or not isinstance(data.get("columns"), list):
        raise InputError(f"{place} is not a schema: it must be a mapping with a list of columns")
    known_keys(place, data, _KEYS)
    version = data.get("format_version", FORMAT_VERSION)
    require_format(place, version, FORMAT_VERSION)
    if scaling is not None:
        data = {**data, "scaling": str(scaling)}
    if there is not None:
        data = settled(data, place, there)
    if data.get("scaling", Scaling.CENTRED) not in list(Scaling):
        raise InputError(f"{place}: scaling is {data['scaling']!r}; it must be one of {', '.join(Scaling)}")
    header = data.get("header", True)
    if not isinstance(header, bool):
        raise InputError(f"{place}: header is {header!r}; it must be true or false")
    markers, rule = _missing_cells(data.get("missing"), str(data.get("decimal", ".")), place)
    try:
        return Schema(
            columns=tuple(parse_column(number, column, place) for number, column in spread(data["columns"], place)),
            delimiter=str(as_text(f"{place}: delimiter", data.get("delimiter", ","))),
            header=header,
            encoding=str(data.get("encoding", "utf-8")),
            decimal=str(data.get("decimal", ".")),
            skip_lines_beginning=tuple(
                str(as_text(f"{place}: skip_lines_beginning", text)) for text in data.get("skip_lines_beginning", ())
            ),
            missing=markers,
            missing_rows=rule,
            scaling=Scaling(data.get("scaling", Scaling.CENTRED)),
            files={
                str(part): str(as_text(f"{place}: files", name)) for part, name in (data.get("files") or {}).items()
            },
            # YAML reads days as such.
            document=json.loads(
                json.dumps(
                    {
                        key: [in_order(column) for column in data[key]] if key == "columns" else data[key]
                        for key in data
                        if key != "files"
                    },
                    default=str,
                )
            ),
        )
    except InputError as error:
        raise error.saying(str(error) if str(error).startswith(place) else f"{place}: {error}") from None


def _missing_cells(cells: Any, decimal: str, place: str) -> tuple[frozenset[str], MissingRows]:
    if cells is None:
        return frozenset({""}), MissingRows.REFUSE
    example = '{marker: "", rows: indicator}'
    if not isinstance(cells, dict) or "marker" not in cells or "rows" not in cells:
        raise InputError(f"{place}: missing must be such as {example}")
    known_keys(f"{place}: missing", cells, ("marker", "rows"))
    rule = missing_rule(f"{place}: missing: rows", cells["rows"]) or MissingRows.REFUSE
    markers = cells["marker"] if isinstance(cells["marker"], list) else [cells["marker"]]
    if not markers:
        raise InputError(f"{place}: missing: marker is {cells['marker']!r}; it must be text in quotes, or a list of it")
    for marker in markers:
        as_text(f"{place}: missing: marker", marker, canonical_text)
    # What YAML has read as a number has a point.
    texts = (str(one).replace(".", decimal) if isinstance(one, float) else str(one) for one in markers)
    return frozenset(text.strip() for text in texts), rule


def layout_of(declaration: Any, place: str) -> Schema:
    """Return a schema that says how a declared table's text is laid out, and nothing true of its columns."""
    blank = [{"name": "x", "type": "boolean"}, {"name": "y", "type": "label", "range": [0, 1]}]
    given = declaration if isinstance(declaration, dict) else {}
    return parse_schema({**given, "columns": blank}, place)


def schema_faults(data: Any, place: str, there: Sequence[str] | None = None) -> list[str]:
    """Return all faults of a declaration, where :func:`parse_schema` raises the first."""
    faults = []
    if isinstance(data, dict) and isinstance(data.get("columns"), list):
        try:
            columns = spread((data if there is None else settled(data, place, there))["columns"], place)
        except InputError as error:
            return [str(error)]
        for number, column in columns:
            try:
                parse_column(number, column, place)
            except InputError as error:
                faults.append(str(error))
    if not faults:
        try:
            parse_schema(data, place, None, there)
        except InputError as error:
            faults.append(str(error))
    return faults


def read_declaration(path: str | Path) -> Any:
    """Return what a schema's YAML file holds, or one that comes along by its name (``adult``).

    Raises
    ------
    InputError
        If there is no such file, or it is not YAML.
    """
    place = Path(path)
    packaged = files("storage.readers") / "schemas"
    try:
        if place.is_file():
            return read_yaml(place, f"schema {path}")
        if str(path).isidentifier() and (packaged / f"{path}.yaml").is_file():
            return parse_yaml((packaged / f"{path}.yaml").read_text("utf-8"), f"schema {path}")
    except OSError as error:
        raise InputError(f"cannot read schema {path}: {error}") from error
    names = ", ".join(sorted(item.name.removesuffix(".yaml") for item in packaged.iterdir()))
    raise InputError(f"schema {path} does not exist; name a YAML file, or a bundled one: {names}")


def load_schema(path: str | Path, scaling: Scaling | None = None, there: Sequence[str] | None = None) -> Schema:
    """Read a schema from a YAML file, or one that comes along by its name (``adult``).

    Parameters
    ----------
    path : path or str
    scaling : Scaling, optional
        Instead of the declared one.
    there : sequence of str, optional
        As of :func:`parse_schema`.

    Raises
    ------
    InputError
        Naming the file, the column, the key and what is expected.
    """
    return parse_schema(read_declaration(path), str(path), scaling, there)
