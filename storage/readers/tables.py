"""Tables in text and in Parquet: cells as a file has them, encoded as a schema declares or a draft needs; lists."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.cells import canonical, column_name
from storage.columns import Category, Numeric, named_twice
from storage.errors import InputError, RefusedError
from storage.people import People, identifiers, named
from storage.readers.arrow_batches import open_parquet
from storage.readers.delimited import delimited_rows, first_row
from storage.refs import OnViolation
from storage.schema import Schema, Table, layout_of, load_schema, parse_schema, read_declaration
from storage.several import patterned, spread
from storage.source import (
    COMPRESSED,
    Block,
    ReadOptions,
    Rows,
    Source,
    Tally,
    confirm,
    count_lines,
    most_rows,
    reading,
    register_reader,
    require_file,
    settle,
)

PARQUET = (".parquet", ".pq")
"""Ends of the names of Parquet files."""


def expected_rows(path: Path) -> int | None:
    """Return how many rows a file will turn out to have: of Parquet exactly, of plain text by its lines.

    None where it would have to be unpacked for that, or cannot be read. Quoted line breaks and a line of names are
    counted as rows: for showing progress, and nothing else.
    """
    try:
        if path.suffix in PARQUET:
            with open_parquet(path, 0) as file:
                return file.count
        if path.suffix in COMPRESSED or not path.is_file():
            return None
        with path.open("rb") as file:
            return sum(count_lines(chunk) for chunk in iter(lambda: file.read(1 << 22), b""))
    except (OSError, InputError):
        return None


def raw_rows(
    path: Path, schema: Schema | None, rows: int, names: Sequence[str] | None = None, most: int | None = None
) -> Iterator[Table]:
    """Yield the rows of a file, text or Parquet by its name's end, some at once.

    Cells of a text are text in an Arrow array; those of a row of another number of cells are null, and its fault says
    so.

    Parameters
    ----------
    path : Path
    schema : Schema or None
        Says how text is laid out; None for Parquet alone. Where it says that there is no line of names, the declared
        ones are taken, without the label's if the first row has a cell less; an empty file has no rows then.
    rows : int
        How many at once.
    names : sequence of str, optional
        The columns of a text in their order, as they are known; those of Parquet that are read, all by default.
    most : int, optional
        How many rows Parquet may state, before any is read.

    Raises
    ------
    InputError
        If the file cannot be read, names a column twice or lacks one of those.
    """
    with reading(path):
        if schema is None or path.suffix in PARQUET:
            yield from parquet_rows(require_file(path), rows, names, most=most)
        else:
            yield from delimited_rows(path, schema, _text_names(path, schema, names), rows)


def names_of(path: Path, schema: Schema | None) -> list[str]:
    """Return the columns that :func:`raw_rows` gives, of a file without rows, too."""
    with reading(path):
        if schema is None or path.suffix in PARQUET:
            with open_parquet(require_file(path), 0) as file:
                return list(file.schema.names)
        return _text_names(path, schema)


def _text_names(path: Path, schema: Schema, names: Sequence[str] | None = None) -> list[str]:
    first = first_row(path, schema)
    if first is None and schema.header:
        raise InputError(f"{path} holds no rows and no line of column names, which a file without rows has as well")
    found = list(map(column_name, first[1])) if first is not None and schema.header else list(schema.in_file)
    if not schema.header and first is not None and names is None and len(first[1]) == len(found) - 1:
        found.remove(schema.label.name)
    if twice := named_twice(found):
        raise InputError(f"{path}: column {twice!r} is named twice; rename one in the file")
    return found


def chunked(read: Iterator[tuple[int, list[str]]], names: Sequence[str], rows: int, place: str) -> Iterator[Table]:
    """Yield rows that come with their lines, each of as many cells as there are names, so many at once."""
    while chunk := list(islice(read, rows)):
        columns = zip(*(cells for _, cells in chunk), strict=True)
        lines = np.array([line for line, _ in chunk], dtype=np.int64)
        yield Table(dict(zip(names, columns, strict=True)), lines, place)


def parquet_rows(
    path: Path,
    rows: int,
    names: Sequence[str] | None = None,
    way_out: str = "correct the schema",
    most: int | None = None,
) -> Iterator[Table]:
    """Yield the rows of a Parquet file as :func:`raw_rows` does, whatever its name's end; cells are Arrow arrays."""
    with open_parquet(path, rows, names) as file:
        file.require(names or (), way_out)
        if most is not None and file.count > most:
            raise InputError(
                f"{path} states {file.count} rows, more than {most}; if that is right, declare as many with --max-rows"
            )
        row = 1
        for batch in file.batches:
            columns = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
            yield Table(columns, np.arange(row, row + len(batch), dtype=np.int64), str(path), unit="row")
            row += len(batch)


Tables = Callable[[Path, Schema, OnViolation], Iterator[Table]]
"""What gives the rows of a file."""


def encoded_rows(
    read: Tables, files: Sequence[Path], schema: Schema, on_violation: OnViolation, tally: Tally, held: object = None
) -> Iterator[Block]:
    """Yield the rows of files, encoded as a schema declares; the tally begins again with each reading.

    ``held`` is what has to last as long as the rows are read.
    """
    tally.clear()
    for path in files:
        for table in read(path, schema, on_violation):
            yield schema.encode(table, on_violation, tally)


def declared_source(
    format_name: str,
    place: str,
    options: ReadOptions,
    schema: Schema,
    parts: Mapping[str, tuple[Tables, Sequence[Path]]],
    held: object = None,
) -> Source:
    """Return the source of rows whose schema says all that is to be known of them."""
    label, tallies = schema.label, {part: Tally() for part in parts}
    confirm(options, place, dimension=schema.dimension, classes=label.classes, label_range=label.range)
    return Source(
        format=format_name,
        place=place,
        dimension=schema.dimension,
        classes=label.classes,
        label_range=label.range,
        parts={
            part: Rows(encoded_rows, (read, files, schema, options.on_violation, tallies[part], held))
            for part, (read, files) in parts.items()
        },
        tallies=tallies,
        # Without a document there is nothing from which the schema could be made again.
        table={"schema": dict(schema.document), "on_violation": str(options.on_violation)} if schema.document else None,
        people=schema.people,
    )


def text_tables(path: Path, schema: Schema, on_violation: OnViolation) -> Iterator[Table]:
    """Yield the rows of a text whose columns are those declared."""
    for table in raw_rows(path, schema, schema.block_rows, _column_names(path, schema)):
        if not on_violation.drops:
            for line, fault in zip(table.lines, table.faults or (), strict=False):
                if fault is not None:
                    raise InputError(
                        f"{path}, line {line}: {fault}; correct the row or the delimiter, or use --on-violation drop"
                    )
        yield table


def _column_names(path: Path, schema: Schema) -> list[str]:
    """Return the names of a text's columns, which are the declared ones in any order."""
    names = list(schema.in_file)
    line, cells = first_row(path, schema) or (0, [])
    cells = list(map(column_name, cells))
    place, declared, present = f"{path}, line {line}", set(names), set(cells)
    if not schema.header:
        if cells == names:
            raise InputError(
                f"{place} holds the columns' names, and the schema says 'header: false'; let it say 'header: true', or "
                "nothing"
            )
        return names
    if not line:
        raise InputError(f"{path} holds no line of column names, and the schema says it has one")
    if not present & declared:
        saw = ", ".join(repr(cell[:30]) for cell in cells[:6]) + (", …" if len(cells) > 6 else "")
        raise InputError(
            f"{place} should name the columns and holds {saw}; declare columns of these names, correct the "
            "delimiter, or let the schema say 'header: false' if the file begins with a row"
        )
    if twice := named_twice(cells):
        raise InputError(f"{place}: column {twice!r} is named twice; rename one in the file")
    for name in cells:
        if name not in declared:
            raise InputError(f"{place}: column {name!r} is not in the schema; add it (type: ignore leaves it out)")
    if missing := sorted(declared - present):
        raise InputError(
            f"{place}: column {missing[0]!r} is missing; the schema declares {len(declared)} columns, add it to "
            "the file or take it out of the schema"
        )
    return cells


def require_schema(
    options: ReadOptions, format_name: str, files: Callable[[Schema], Mapping[str, Sequence[Path]]]
) -> Schema:
    """Return the declared schema.

    Parameters
    ----------
    options : ReadOptions
    format_name : str
        For messages.
    files : callable
        Returns the files of a table's parts by its schema; the first to train on settles patterns of names.

    Raises
    ------
    RefusedError
        If there is none: it would have to be learnt from the rows.
    """
    if options.schema is None:
        raise RefusedError(
            f"format {format_name} needs a declared schema (--schema FILE.yaml); none is learnt from rows"
        )
    declaration, place, there = read_declaration(options.schema), str(options.schema), None
    if patterned(declaration):
        there = settling_names(declaration, place, files(layout_of(declaration, place))["train"][0])
    return replace(load_schema(options.schema, options.scaling, there), keeps_rows=not options.discover)


def settling_names(declaration: Any, place: str, path: Path) -> list[str] | None:
    """Return the names of a file's columns, which settle a declaration's patterns; None where it has none.

    Raises
    ------
    InputError
        If the file has no line of names.
    """
    if not patterned(declaration):
        return None
    layout = layout_of(declaration, place)
    if path.suffix in PARQUET:
        with open_parquet(require_file(path), 0) as file:
            return list(map(column_name, file.schema.names))
    if not layout.header:
        raise InputError(
            f"{place}: names holds a pattern, and the schema says 'header: false', so that no line names the columns; "
            "list the names"
        )
    with reading(require_file(path)):
        names = list(map(column_name, (first_row(path, layout) or (0, []))[1]))
    if twice := named_twice(names):
        raise InputError(f"{path}: column {twice!r} is named twice; rename one in the file")
    return names


def table_files(path: str | Path, schema: Schema, options: ReadOptions) -> dict[str, Path]:
    """Return the files of the parts: those named, or those the schema names in a folder."""
    place = Path(path)
    if not place.is_dir():
        files = {"train": place}
    elif "train" not in schema.files:
        raise InputError(
            f"{place} is a folder and the schema names no files; name a file, or let it say 'files: {{train: …}}'"
        )
    else:
        files = {
            part: place / name for part, name in schema.files.items() if part == "train" or (place / name).exists()
        }
    if options.test is not None:
        files["test"] = options.test
    return {part: require_file(file) for part, file in files.items()}


@register_reader("csv", takes=("schema", "on_violation", "test", "scaling"))
def read_csv(path: str | Path, options: ReadOptions) -> Source:
    """Read delimited text (plain, .gz, .bz2) with a declared schema; scaling and one-hot come from the schema.

    Parameters
    ----------
    path : path
        A file, or a folder in which the schema names the files.
    """

    def files(schema: Schema) -> dict[str, tuple[Path, ...]]:
        return {part: (file,) for part, file in table_files(path, schema, options).items()}

    schema = require_schema(options, "csv", files)
    parts = {part: (text_tables, paths) for part, paths in files(schema).items()}
    return declared_source("csv", str(path), options, schema, parts)


FEATURES = "features"
LABEL = "label"
_NO_SCHEMA = "name the columns so, or declare others with --schema"


def _files(path: Path) -> tuple[Path, ...]:
    """Return the file, or the Parquet files of a folder in the order of their names."""
    files = sorted(file for file in path.iterdir() if file.suffix in PARQUET) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} holds no .parquet file")
    return tuple(require_file(file) for file in files)


def parquet_tables(path: Path, schema: Schema, _: OnViolation) -> Iterator[Table]:
    """Yield the rows of a file, the columns that a schema looks at."""
    for table in parquet_rows(path, schema.block_rows, schema.needed, most=most_rows()):
        for name, column in table.columns.items():
            if pa.types.is_nested(column.type):
                raise InputError(f"{path}, column {name}: a cell is {str(column.type)[:60]}, which no schema declares")
        yield table


def _list_rows(files: Sequence[Path], dimension: int, people: People | None) -> Iterator[Block]:
    """Yield the rows of files whose features are a list column."""
    rows = max(1, min(2048, (1 << 22) // max(1, dimension)))
    columns = (FEATURES, LABEL) if people is None else (FEATURES, LABEL, column_name(people.column))
    for path in files:
        for table in parquet_rows(path, rows, columns, _NO_SCHEMA, most_rows()):
            yield _list_block(table, dimension, people)


def _list_block(table: Table, dimension: int, people: People | None) -> Block:
    lists, labels = table.columns[FEATURES], table.columns[LABEL]
    kind = lists.type
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not (listed and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))):
        raise InputError(
            f"{table.place}, column {FEATURES}: type is {str(lists.type)[:100]}; it must be a list of numbers"
        )

    def place(row: int) -> str:
        return f"{table.place}, row {table.lines[row]}"

    for name, column in ((FEATURES, lists), (LABEL, labels)):
        if column.null_count:
            bad = column.is_null().to_pylist().index(True)
            raise InputError(f"{place(bad)}, column {name}: the value is missing; fill or remove the row")
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    if (lengths != dimension).any():
        bad = int(np.argmax(lengths != dimension))
        raise InputError(f"{place(bad)}: {lengths[bad]} features, expected {dimension}; correct the row or --dimension")
    flat = lists.flatten()
    if flat.null_count:
        bad, feature = divmod(flat.is_null().to_pylist().index(True), dimension)
        raise InputError(f"{place(bad)}: feature {feature + 1} is missing; fill or remove the row")
    names = None if people is None else identifiers(table.columns[column_name(people.column)])
    if names is not None and not named(names).all():
        bad = int(np.argmin(named(names)))
        raise InputError(f"{place(bad)}: it is nobody's; fill the cell that names its person")
    numbers = flat.to_numpy(zero_copy_only=False).reshape(len(lists), dimension)
    return Block(numbers, labels_of(labels), table.lines, place=table.place, unit=table.unit, people=names)


def labels_of(labels: Any) -> NDArray[Any]:
    """Return labels as they are compared: numbers where they are numbers by their type, else canonical texts."""
    kind = labels.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.asarray(labels.to_numpy(zero_copy_only=False))
    return np.asarray(canonical(labels).to_numpy(zero_copy_only=False))


def _list_dimension(path: Path) -> int:
    """Return the length of the first list, or of all where the type says so."""
    with open_parquet(path, 1, (FEATURES,)) as file:
        file.require((FEATURES,), _NO_SCHEMA)
        kind = file.schema.field(FEATURES).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for batch in file.batches:
            cell = batch.column(0).to_pylist()[0]
            return len(cell) if isinstance(cell, list) else 0
    raise InputError(f"{path} holds no rows; it must hold at least one")


@register_reader("parquet", takes=("schema", "on_violation", "test", "scaling", "people"))
def read_parquet(path: str | Path, options: ReadOptions) -> Source:
    """Read Parquet: columns by a declared schema, or a list column "features" beside a column "label".

    Parameters
    ----------
    path : path
        A file, or a folder of .parquet files.
    """
    place = Path(path)
    if options.schema is not None:

        def files(schema: Schema) -> dict[str, tuple[Path, ...]]:
            if place.is_dir() and not schema.files:
                found = {"train": place} if options.test is None else {"train": place, "test": options.test}
            else:
                found = table_files(path, schema, options)
            return {part: _files(Path(file)) for part, file in found.items()}

        schema = require_schema(options, "parquet", files)
        parquet = {part: (parquet_tables, paths) for part, paths in files(schema).items()}
        return declared_source("parquet", str(place), options, schema, parquet)
    if options.on_violation is not OnViolation.REFUSE or options.scaling is not None:
        raise InputError(f"{place}: rows are clipped, dropped or scaled by a declared schema only; give --schema")
    parts = {"train": _files(place)}
    if options.test is not None:
        parts["test"] = _files(options.test)
    dimension = options.dimension
    if options.discover and dimension is None:
        dimension = _list_dimension(parts["train"][0])
    labels = (
        text
        for files in parts.values()
        for block in _list_rows(files, dimension or 0, None)
        for text in canonical(block.labels).unique().to_pylist()
    )
    size, classes, discovered = settle(options, str(place), dimension=dimension, labels=labels)
    return Source(
        format="parquet",
        place=str(place),
        dimension=size,
        classes=classes,
        label_range=options.label_range,
        parts={part: Rows(_list_rows, (files, size, options.people)) for part, files in parts.items()},
        found=discovered,
        people=options.people,
    )


_SMALLEST, _LARGEST = -10, 40
_ZERO = _LARGEST - _SMALLEST + 1
BINS = 2 * _ZERO + 1
"""Bins of a number: powers of two from 2^-10 to 2^40 of either sign, and one for what is nearer to 0."""


def bins_of(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bin of each number, ascending with it; -1 for what is no number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.clip(np.floor(np.log2(np.abs(numbers))), _SMALLEST - 1, _LARGEST) - _SMALLEST + 1
    return np.where(np.isnan(numbers), -1.0, _ZERO + np.sign(numbers) * np.nan_to_num(steps))


def range_of_bins(first: int, last: int) -> tuple[float, float]:
    """Return the ends of some bins in a row; the bin around 0 ends at 0 where it is the first or the last."""
    low = 0.0 if first == _ZERO else _edge(first, outer=first < _ZERO)
    high = 0.0 if last == _ZERO > first else _edge(last, outer=last > _ZERO) if last != _ZERO else 2.0**_SMALLEST
    return low, high


def _edge(place: int, *, outer: bool) -> float:
    """Return the end of a bin that is further from 0, or the nearer one."""
    exponent = abs(place - _ZERO) - 1 + _SMALLEST
    return float(np.sign(place - _ZERO)) * 2.0 ** (exponent + outer)


def encode_bins(column: Any, layout: Schema) -> NDArray[np.float64]:
    """Return the bin of each cell, (m, 1); -1 for what is no number, or marks a missing cell."""
    numbers, missing = layout.read(Numeric("", None), column)
    return bins_of(np.where(missing, np.nan, numbers))[:, None]


WIDTH = 32
"""Bytes of a text that count, in UTF-8; longer ones that begin alike are one."""


def text_of(key: NDArray[np.float64]) -> str:
    """Return the text of a key's bytes; what was cut within a character loses it."""
    return bytes(key.astype(np.uint8)).rstrip(b"\0").decode("utf-8", errors="ignore")


def encode_keys(column: Any, layout: Schema) -> NDArray[np.float64]:
    """Return the bytes of each cell's text as 255ths, (m, WIDTH); zeros where a cell is missing."""
    texts, missing = layout.read(Category("", ()), column)
    coded = pc.filter(texts, pa.array(~missing)).dictionary_encode()
    keys = np.zeros((len(texts), WIDTH), dtype=np.uint8)
    known = np.zeros((len(coded.dictionary) + 1, WIDTH), dtype=np.uint8)
    for place, text in enumerate(coded.dictionary.to_pylist()):
        data = text.encode()[:WIDTH]
        known[place, : len(data)] = np.frombuffer(data, dtype=np.uint8)
    keys[~missing] = known[coded.indices.fill_null(len(coded.dictionary)).to_numpy(zero_copy_only=False)]
    return keys / 255.0


_ROWS = 4096
# Nothing is to be predicted: all rows are of one class.
_CLASSES = ("a row", "no row")
# By type: how a cell becomes numbers, and how many; numbers come before texts.
_ENCODERS = {"numeric": (encode_bins, 1), "category": (encode_keys, WIDTH)}


def _drafted(path: Path, layout: Schema, columns: Mapping[str, Sequence[str]]) -> Iterator[Block]:
    """Yield the rows of a table whose schema is a draft; rows that are nobody's count nowhere."""
    drawn = [(kind, name) for kind, names in columns.items() for name in names]
    person = [] if layout.people is None else [layout.people.column]
    for rows in raw_rows(path, layout, _ROWS, most=most_rows()):
        for name in (*(name for _, name in drawn), *person):
            if name not in rows.columns:
                raise InputError(f"{path} has no column {name!r}; it has: {', '.join(rows.columns)}")
        features = np.concatenate([_ENCODERS[kind][0](rows.columns[name], layout) for kind, name in drawn], axis=1)
        labels = np.full(len(features), _CLASSES[0])
        people = None
        for name in person:
            people = layout.whose(rows.columns[name])
        yield Block(features, labels, rows.lines, place=rows.place, unit=rows.unit, people=people)


def drafted_columns(draft: str | Path) -> dict[str, tuple[str, ...]]:
    """Return the columns of a drafted schema that numbers or values can be drawn for, by type: numeric, category.

    Raises
    ------
    InputError
        If there are none, or it is no draft.
    """
    declaration = read_declaration(draft)
    columns = declaration.get("columns") if isinstance(declaration, dict) else None
    columns = [one for _, one in spread(columns, str(draft))] if isinstance(columns, list) else None
    if columns is None or not all(isinstance(one, dict) and "name" in one for one in columns):
        raise InputError(f"{draft} is not a schema: it must be a mapping with a list of columns, each with a name")
    names = {kind: tuple(column_name(one["name"]) for one in columns if one.get("type") == kind) for kind in _ENCODERS}
    if not any(names.values()):
        raise InputError(f"{draft} has no column of type {' or '.join(_ENCODERS)} that could be drawn")
    return names


def draft_layout(draft: str | Path) -> Schema:
    """Return a schema that says how a drafted table is laid out and for whose rows, with nothing true of its columns.

    Raises
    ------
    InputError
        If it has one column alone.
    """
    declaration = read_declaration(draft)
    # What the columns are is not declared yet, but for whose rows they are; and a schema has a feature and a label.
    names = [
        one if one.get("type") == "person" else {"name": one["name"], "type": "ignore"}
        for _, one in spread(declaration["columns"], str(draft))
    ]
    others = [one for one in names if one["type"] == "ignore"]
    if len(others) < 2:
        raise InputError(f"{draft} has one column; a table has a label and something to predict it from")
    others[0]["type"] = "boolean"
    others[-1] |= {"type": "label", "range": [0, 1]}
    return parse_schema({**declaration, "columns": names}, str(draft))


@register_reader("table-draft", takes=("schema",))
def read_draft(path: str | Path, options: ReadOptions) -> Source:
    """Read the columns of a drafted schema whose type is known: numbers as public bins, then texts as their bytes.

    Nothing raises because of what rows contain, but for bytes that cannot be read: cells that are no number, and those
    of rows of another number of cells, lie in no bin and hold no text.

    Parameters
    ----------
    path : path
        CSV or Parquet.
    options : ReadOptions
        ``schema`` names the draft; columns of type numeric and category count, declared further or not, and how the
        text is laid out.
    """
    if options.schema is None:
        raise InputError("format table-draft needs a drafted schema (--schema FILE.yaml)")
    columns, layout = drafted_columns(options.schema), draft_layout(options.schema)
    return Source(
        format="table-draft",
        place=str(path),
        dimension=sum(_ENCODERS[kind][1] * len(named) for kind, named in columns.items()),
        classes=_CLASSES,
        parts={"train": Rows(_drafted, (require_file(path), layout, columns))},
        people=layout.people,
    )
