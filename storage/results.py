"""Results: one Parquet file per run, and SQL over them that reads nothing else."""

import io
import json
import secrets as randomness
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.atomic import write_bytes
from storage.datasets import open_dataset
from storage.errors import DamagedError, FormatVersionError, InputError, RefusedError, require_format
from storage.layout import Layout, path_component
from storage.refs import DatasetRef, Labels

FORMAT_VERSION = 1
TABLES = ("runs", "metrics")
# A database needs as much to start on anything.
_LEAST_MEMORY = 2**28
_VERSION_KEY = b"unitball.format_version"
_NO_VIEWS: Mapping[str, Any] = MappingProxyType({})
_TEXT = "'"


def _plain(value: Any) -> Any:
    """Return a cell as a Parquet scalar: what is nested becomes JSON text."""
    nested = isinstance(value, (dict, list, tuple))
    return json.dumps(value, sort_keys=True, ensure_ascii=False) if nested else value


def append(
    layout: Layout, records: Sequence[Mapping[str, Any]], *, table: str = "runs", run: str | None = None
) -> None:
    """Keep result records, whole or not at all.

    Parameters
    ----------
    records : sequence of mappings
        Column names to text, numbers, booleans or None; columns may differ from those of other files. Mappings and
        sequences are kept as JSON text.
    table : {"runs", "metrics"}
        Which view they appear in.
    run : str, optional
        Name of the file. Appending under the same name again replaces the records, so that a run that is repeated
        after a kill is not counted twice. Without it every call adds.

    Raises
    ------
    InputError
        If there is no such table or a column holds values of different kinds.
    StorageError
        If the root cannot be written.
    """
    if table not in TABLES:
        raise InputError(f"unknown results table {table!r}; the tables are: {', '.join(TABLES)}")
    name = path_component(run or randomness.token_hex(16), "run")
    columns = list(dict.fromkeys(column for record in records for column in record))
    if not columns:
        return
    try:
        data = pa.table({column: pa.array([_plain(record.get(column)) for record in records]) for column in columns})
    except pa.ArrowException as error:
        raise InputError(f"result records hold different kinds of values in one column: {error}") from error
    buffer = io.BytesIO()
    pq.write_table(
        data.replace_schema_metadata({_VERSION_KEY: str(FORMAT_VERSION).encode()}), buffer, compression="zstd"
    )
    write_bytes(layout.results / table / f"{name}.parquet", buffer.getvalue())


def is_recorded(layout: Layout, run: str) -> bool:
    """Whether a record was kept under a run's name."""
    return (layout.results / "runs" / f"{path_component(run, 'run')}.parquet").is_file()


def read_record(layout: Layout, run: str) -> dict[str, Any] | None:
    """Return what was kept under a run's name, nested cells as JSON text; None where nothing was.

    Raises
    ------
    DamagedError
        If its file cannot be read.
    """
    if not is_recorded(layout, run):
        return None
    path = layout.results / "runs" / f"{path_component(run, 'run')}.parquet"
    try:
        records: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(f"{path} is damaged ({_first_lines(error)}); restore it from a back-up") from error
    return records[0] if records else None


def _create_view(connection: Any, files: list[str], table: str) -> None:
    """Make a view of one table's files by DuckDB's own reader; columns that a file lacks are null."""
    if not files:
        # A view without a column cannot be; before the first run there is one that says so.
        connection.from_arrow(pa.table({"run": pa.array([], pa.string())})).create(table)
        return
    metadata = connection.execute("SELECT file_name, key, value FROM parquet_kv_metadata($1)", [files]).fetchall()
    versions = {path: value.decode(errors="replace") for path, key, value in metadata if key == _VERSION_KEY}
    for path in files:
        version = versions.get(path, "")
        if not version.isdigit():
            raise FormatVersionError(
                f"{path} has no format version; this version of Unitball reads {FORMAT_VERSION}. Remove it to "
                "continue without it"
            )
        require_format(path, int(version), FORMAT_VERSION)
    connection.read_parquet(files, union_by_name=True).create_view(table)


def _require_whole(files: Sequence[str]) -> None:
    import duckdb

    for path in files:
        try:
            with _database() as connection:
                connection.read_parquet(path).fetchall()
        except (duckdb.Error, RuntimeError) as error:
            raise DamagedError(
                f"{path} is damaged ({_first_lines(error)}); restore it, or remove it to continue without that run"
            ) from error


def _database(memory: int | None = None) -> Any:
    """Return a database in memory; it closes itself behind a ``with``."""
    import duckdb

    # Python's own variables are no tables: without this, SQL could name any frame in the calling code.
    config: dict[str, Any] = {"python_enable_replacements": "false"}
    if memory is not None:
        config["memory_limit"] = f"{max(memory, _LEAST_MEMORY)}B"
    return duckdb.connect(":memory:", config=config)


def _answer(
    connection: Any, sql: str, names: Sequence[str], folder: Path | None = None, *, seconds: float | None = None
) -> Any:
    """Run one SELECT after shutting every way out of the database but the one into a folder."""
    import duckdb

    for statement in (
        "SET temp_directory = ''",
        "SET enable_progress_bar = false",
        f"SET allowed_directories = [{'' if folder is None else _quoted(str(folder), mark=_TEXT)}]",
        "SET enable_external_access = false",
        "SET autoinstall_known_extensions = false",
        "SET autoload_known_extensions = false",
        "SET lock_configuration = true",
    ):
        connection.execute(statement)
    there = f"; the views are: {', '.join(names)}"
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise InputError(f"give one SELECT statement{there}")
        return _interruptible(connection, lambda: connection.sql(sql).to_arrow_table(), seconds)
    except TimeoutError:
        raise InputError(
            f"the query took longer than {seconds:g} s and was stopped; select less, or allow more time "
            "(UNITBALL_SQL_SECONDS)"
        ) from None
    except duckdb.OutOfMemoryException as error:
        raise InputError(
            f"the query needs more memory than it may use: {_first_lines(error)}; select less, or allow more memory "
            "(UNITBALL_MEMORY)"
        ) from error
    except duckdb.Error as error:
        raise InputError(f"the query cannot be answered: {_first_lines(error)}{there}") from error


def _interruptible(connection: Any, ask: Callable[[], Any], seconds: float | None = None) -> Any:
    """Ask in a separate thread: DuckDB does not always notice Ctrl-C while it computes in the main thread."""
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(ask).result(seconds)
        except (KeyboardInterrupt, TimeoutError):
            # DuckDB forgets an interrupt that comes before the query begins: again, until the only thread is free.
            free = pool.submit(int)
            while not free.done():
                connection.interrupt()
                wait([free], 0.1)
            raise


def _first_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else type(error).__name__


def query(
    layout: Layout,
    sql: str,
    views: Mapping[str, Any] = _NO_VIEWS,
    *,
    memory: int | None = None,
    seconds: float | None = None,
) -> Any:
    """Answer one SELECT over the results.

    Parameters
    ----------
    sql : str
        DuckDB's SQL over the views ``runs`` and ``metrics`` and those of ``views``. It can read no file but those of
        the results, no network and no Python variable: the database is shut off and its settings locked before.
    views : mapping of name to pyarrow.Table
        Further tables, such as releases or charges.
    memory : int, optional
        Bytes that the database may hold, 256 MiB at least; four fifths of the machine's by default.
    seconds : float, optional
        How long the query may take. Default: no limit.

    Returns
    -------
    pyarrow.Table

    Raises
    ------
    InputError
        If it is not one SELECT, or DuckDB cannot answer it in that time.
    StorageError
        If a file of results is damaged, naming it.
    """
    import duckdb

    files = {name: [str(path) for path in sorted((layout.results / name).glob("[!.]*.parquet"))] for name in TABLES}
    with _database(memory) as connection:
        try:
            for name in TABLES:
                _create_view(connection, files[name], name)
            for name, table in views.items():
                connection.from_arrow(table).create(_quoted(name))
            return _answer(connection, sql, [*TABLES, *views], layout.results, seconds=seconds)
        except (duckdb.Error, RuntimeError, InputError):
            # A file that cannot be read is named; otherwise the query itself is at fault.
            _require_whole([path for several in files.values() for path in several])
            raise


def _quoted(text: str, *, mark: str = '"') -> str:
    return mark + text.replace(mark, 2 * mark) + mark


def query_dataset(
    layout: Layout, ref: DatasetRef, sql: str, *, memory: int | None = None, seconds: float | None = None
) -> Any:
    """Answer one SELECT over the rows of a public set.

    Parameters
    ----------
    sql : str
        DuckDB's SQL over the views ``train`` and ``test`` with the columns ``features`` (a list of floats; for
        sparse sets a struct of ``indices`` and ``values``), ``label`` (class index or real target) and, for classes,
        ``class`` (the name).
    memory, seconds : optional
        As for :func:`query`.

    Returns
    -------
    pyarrow.Table

    Raises
    ------
    RefusedError
        If the set is private: an answer would be an unproved look at private rows.
    InputError
        If it is not one SELECT, or DuckDB cannot answer it in that time.
    """
    if ref.private:
        raise RefusedError(
            f"data set {ref.name} is private, and SQL would read its rows without a release; query public data sets, "
            "or release a statistic (unitball describe)"
        )
    parts = ["train"] + (["test"] if ref.test_rows else [])
    with _database(memory) as connection:
        for part in parts:
            rows = open_dataset(layout, ref, part)
            # Scanned by Arrow when asked for: only the named columns are read, and DuckDB itself opens no file.
            relation = connection.from_arrow(rows.scanned())
            shown = "features, label"
            if ref.labels is Labels.CLASSES:
                names = ", ".join(_quoted(name, mark=_TEXT) for name in ref.classes)
                shown += f", [{names}][label + 1] AS class"
            relation.project(shown).create_view(part)
        return _answer(connection, sql, parts, seconds=seconds)
