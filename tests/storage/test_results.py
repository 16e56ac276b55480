"""Results land as Parquet rows; SQL over them answers and can do nothing else."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from storage.errors import DamagedError, FormatVersionError, InputError, RefusedError, StorageError
from storage.layout import Layout
from storage.results import _interruptible, append, query, query_dataset
from storage.source import read_source
from tests.support.data import flip, source_of, stored, synthetic, temporaries


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def _rows(table: Any) -> list[dict[str, Any]]:
    return list(table.to_pylist())


def test_rows_come_back(layout: Layout) -> None:
    first = {"algorithm": "dpml", "epsilon": 1.0, "proved": True, "rows": 10, "none": None, "metrics": {"f1": 0.5}}
    append(layout, [first, {"algorithm": "svm", "epsilon": None}])
    append(layout, [{"algorithm": "noisy-gd", "epsilon": 2, "seconds": np.float64(1.5)}])
    append(layout, [{"algorithm": "dpml", "name": "accuracy", "value": 0.9}], table="metrics")
    got = _rows(query(layout, "SELECT * FROM runs ORDER BY algorithm"))
    assert [row["algorithm"] for row in got] == ["dpml", "noisy-gd", "svm"]
    assert [row["epsilon"] for row in got] == [1.0, 2.0, None]
    assert got[0]["metrics"] == '{"f1": 0.5}'
    assert got[1]["seconds"] == 1.5
    assert _rows(query(layout, "SELECT value FROM metrics JOIN runs USING (algorithm)")) == [{"value": 0.9}]
    assert not temporaries(layout.root)


def test_a_run_that_is_repeated_counts_once(layout: Layout) -> None:
    for accuracy in (0.1, 0.2):
        append(layout, [{"accuracy": accuracy}], run="abc")
    append(layout, [{"accuracy": 0.3}])
    assert _rows(query(layout, "SELECT accuracy FROM runs ORDER BY 1")) == [{"accuracy": 0.2}, {"accuracy": 0.3}]


def test_a_root_without_results_answers(layout: Layout) -> None:
    append(layout, [])
    assert _rows(query(layout, "SELECT count(*) AS n FROM runs")) == [{"n": 0}]


def test_columns_that_changed_their_kind_are_text(layout: Layout) -> None:
    append(layout, [{"k": 5, "only": 1}])
    append(layout, [{"k": "all"}])
    assert sorted(row["k"] for row in _rows(query(layout, "SELECT k FROM runs"))) == ["5", "all"]
    with pytest.raises(InputError, match="result records"):
        append(layout, [{"k": 5}, {"k": "all"}])


def test_any_name_of_a_root_will_do(tmp_path: Path) -> None:
    """Names that DuckDB's patterns and quotes would take for something else."""
    layout = Layout(tmp_path / "it's [a] root*").prepare()
    append(layout, [{"a": 1}])
    append(layout, [{"a": 2}])
    assert _rows(query(layout, "SELECT sum(a) AS a FROM runs")) == [{"a": 3}]


def test_tables_are_named(layout: Layout) -> None:
    with pytest.raises(InputError, match=r"'x'.*runs, metrics"):
        append(layout, [{"a": 1}], table="x")
    with pytest.raises(InputError):
        append(layout, [{"a": 1}], run="../x")


def test_a_callers_tables_are_views_too(layout: Layout) -> None:
    table = pa.table({"key": ["k"], "epsilon": [0.5]})
    assert _rows(query(layout, 'SELECT * FROM "odd ""name"', {'odd "name': table})) == [{"key": "k", "epsilon": 0.5}]


HIDDEN = pa.table({"secret": [1]})


def _writes(path: Path) -> list[str]:
    return [
        f"COPY runs TO '{path}.copy'",
        f"COPY (SELECT 1) TO '{path}.copy'",
        f"SELECT 1; COPY runs TO '{path}.copy'",
        f"EXPORT DATABASE '{path}.folder'",
        f"ATTACH '{path}.db'",
    ]


def _reads(path: Path) -> list[str]:
    return [
        f"SELECT * FROM '{path}'",
        f"SELECT * FROM read_parquet('{path}')",
        f"SELECT * FROM read_csv('{path}')",
        f"SELECT * FROM read_text('{path}')",
        f"SELECT * FROM read_blob('{path}')",
        f"SELECT * FROM sniff_csv('{path}')",
        f"SELECT * FROM parquet_metadata('{path}')",
    ]


def _forbidden(path: Path) -> list[str]:
    return [
        *_reads(path),
        *_writes(path),
        "SELECT * FROM glob('/*')",
        "SELECT * FROM 'https://example.invalid/x.parquet'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "RESET enable_external_access",
        "PRAGMA enable_external_access = true",
        "CREATE TABLE x AS SELECT 1",
        "INSERT INTO runs SELECT * FROM runs",
        "DROP TABLE runs",
        "CALL pragma_version()",
        "SELECT 1; SELECT 2",
        "SELECT * FROM HIDDEN",
        "SELECT * FROM hidden_local",
        "SELECT * FROM nothing",
        "SELEC",
        "",
    ]


def test_sql_reads_its_views_and_nothing_else(layout: Layout) -> None:
    append(layout, [{"a": 1}], run="abc")
    ref = stored(layout, source_of(synthetic(20, 3, seed=141)))
    private = stored(layout, source_of(synthetic(20, 3, seed=142)), private=True)
    hidden_local = HIDDEN
    before = set(layout.root.rglob("*"))
    (rows,) = layout.dataset(private.version).rglob("*.parquet")
    result, outside = layout.results / "runs" / "abc.parquet", layout.results / "runs" / ".." / ".." / "unitball.json"
    assert result.is_file()
    assert outside.is_file()
    for sql in [*_forbidden(rows), *_reads(outside), *_writes(outside), *_writes(result)]:
        with pytest.raises(InputError, match=r"views.*: runs, metrics") as caught:
            query(layout, sql)
        assert "\n" not in str(caught.value)
    for sql in [*_forbidden(rows), *_reads(result), *_writes(result)]:
        with pytest.raises(InputError, match=r"views.*: train"):
            query_dataset(layout, ref, sql)
    assert set(layout.root.rglob("*")) == before
    assert hidden_local is HIDDEN
    # The check sees a file where nothing shuts the database off.
    import duckdb

    assert duckdb.connect().sql(_forbidden(result)[0]).fetchall() == [(1,)]
    assert len(duckdb.connect().sql(_forbidden(rows)[0]).fetchall()) == 20


def test_the_settings_are_shut_before_any_query(layout: Layout) -> None:
    names = {
        "enable_external_access": False,
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "lock_configuration": True,
        "temp_directory": "",
    }
    ref = stored(layout, source_of(synthetic(20, 3, seed=146)))
    sql = "SELECT " + ", ".join(f"current_setting('{name}') AS {name}" for name in names)
    assert _rows(query(layout, sql)) == _rows(query_dataset(layout, ref, sql)) == [names]


def test_a_damaged_result_is_named(layout: Layout) -> None:
    append(layout, [{"a": "x" * 100}], run="abc")
    path = layout.results / "runs" / "abc.parquet"
    whole = path.read_bytes()
    for data in (b"", whole[:40], b"nothing"):
        path.write_bytes(data)
        with pytest.raises(DamagedError, match=r"abc.parquet"):
            query(layout, "SELECT * FROM runs")
    # In the footer, and in a page.
    for place in (0.99, 0.05):
        path.write_bytes(whole)
        flip(path, place)
        with pytest.raises(StorageError, match=r"abc.parquet"):
            query(layout, "SELECT * FROM runs")


def test_a_newer_or_strange_result_is_refused(layout: Layout) -> None:
    (layout.results / "runs").mkdir()
    table = pa.table({"a": [1]})
    for metadata in ({b"unitball.format_version": b"2"}, {}):
        pq.write_table(table.replace_schema_metadata(metadata), layout.results / "runs" / "abc.parquet")
        with pytest.raises(FormatVersionError, match=r"abc.parquet"):
            query(layout, "SELECT * FROM runs")


def test_sql_over_a_public_set(layout: Layout) -> None:
    ref = stored(layout, read_source("sklearn", "iris"), name="iris")
    sql = "SELECT class, count(*) AS n, avg(features[1]) AS mean FROM train GROUP BY class ORDER BY class"
    got = _rows(query_dataset(layout, ref, sql))
    assert [(row["class"], row["n"]) for row in got] == [("setosa", 50), ("versicolor", 50), ("virginica", 50)]
    assert got[0]["mean"] == pytest.approx(5.006)
    features, labels = synthetic(10, 3, seed=143)
    both = stored(layout, source_of((features, labels), (features[:4], labels[:4]), classes=("0", "1")))
    assert _rows(query_dataset(layout, both, "SELECT count(*) AS n FROM test")) == [{"n": 4}]
    quoted = stored(layout, source_of((features, np.array(["it's", "b"])[labels]), classes=("it's", "b")))
    assert _rows(query_dataset(layout, quoted, "SELECT DISTINCT class FROM train ORDER BY label")) == [
        {"class": "it's"},
        {"class": "b"},
    ]


def test_sql_over_sparse_and_real_sets(layout: Layout) -> None:
    matrix: Any = sparse.random(30, 2000, density=0.01, format="csr", dtype=np.float32, rng=144)
    ref = stored(layout, source_of((matrix, np.linspace(0, 1, 30)), sparse=True, label_range=(0.0, 1.0)))
    sql = "SELECT sum(len(features.indices)) AS entries, max(label) AS top FROM train"
    assert _rows(query_dataset(layout, ref, sql)) == [{"entries": matrix.nnz, "top": 1.0}]


def test_sql_over_private_rows_is_refused(layout: Layout) -> None:
    ref = stored(layout, source_of(synthetic(10, 3, seed=145)), private=True)
    with pytest.raises(RefusedError, match=r"^data set rows"):
        query_dataset(layout, ref, "SELECT count(*) FROM train")


def test_a_query_holds_what_it_may_and_no_more(tmp_path: Path) -> None:
    layout, sql = (
        Layout(tmp_path),
        "SELECT count(*) AS n FROM (SELECT DISTINCT range || repeat('x', 30) FROM range({}))",
    )
    assert query(layout, sql.format(1000), memory=0).to_pylist() == [{"n": 1000}]
    with pytest.raises(InputError, match="UNITBALL_MEMORY"):
        query(layout, sql.format(6_000_000), memory=0)


@contextlib.contextmanager
def _after(seconds: float, act: Any) -> Iterator[None]:
    timer = threading.Timer(seconds, act)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def test_an_interrupt_before_a_query_begins_ends_it() -> None:
    """DuckDB forgets an interrupt of an idle connection; the query that follows must not run for ever."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    rescued: list[bool] = []
    try:
        with duckdb.connect() as connection:

            def rescue() -> None:
                rescued.append(True)
                connection.interrupt()

            def ask() -> Any:
                time.sleep(0.5)
                return connection.sql("SELECT count(*) FROM range(10000000000) a, range(10000) b").fetchall()

            with (
                _after(0.2, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)),
                _after(60, rescue),
                pytest.raises(KeyboardInterrupt),
            ):
                _interruptible(connection, ask)
    finally:
        signal.signal(signal.SIGINT, before)
    assert rescued == [], "only the test's own interrupt has ended it"


def test_a_query_has_a_limit_of_time(tmp_path: Path) -> None:
    endless = "SELECT count(*) FROM range(10000000000) a, range(10000) b"
    with pytest.raises(InputError, match=r"0\.5.*UNITBALL_SQL_SECONDS"):
        query(Layout(tmp_path).prepare(), endless, seconds=0.5)
    assert query(Layout(tmp_path), "SELECT 1 AS one", seconds=20).to_pylist() == [{"one": 1}]
