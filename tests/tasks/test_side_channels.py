"""Doors kept shut: nothing of private rows is found in what Prefect, MLflow, results, releases or the ledger keep."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from storage.errors import DamagedError, InputError, RefusedError, StorageError
from storage.layout import Layout
from storage.releases import ReleaseStore
from tasks.datasets.registration import ensure_registered, ingest, query
from tasks.datasets.request import IngestRequest
from tasks.experiments.results import query_results
from tasks.release import door
from tasks.release.redaction import RedactedError
from tasks.runtime.settings import current_layout
from tests.support.chains import charges, configured, digests, followed, ingest_private, prepare
from tests.support.command_line import CommandLine
from tests.support.data import flip, synthetic
from tests.support.engines import Engine
from tests.support.leaks import found_in, needles_of
from tests.support.private_rows import PrivateRows, ingestion, write_rows

HEX = re.compile(r"\b[0-9a-f]{32,64}\b")


@dataclass(frozen=True)
class Clinic:
    """A root in which private models were trained, and what was told of it."""

    root: Path
    engine: Path
    rows: PrivateRows
    results: list[dict[str, Any]]
    since: float

    def public_files(self) -> list[Path]:
        """Return every file that is not in the private folder: Prefect's and MLflow's included."""
        private = Layout(self.root).private
        mine = [path for path in self.root.rglob("*") if path.is_file() and private not in path.parents]
        engine = Layout(self.engine)
        theirs = [path for path in engine.root.rglob("*") if path.is_file() and engine.private not in path.parents]
        # What the session's engine kept of other tests before is not of these runs.
        return mine + [path for path in theirs if path.stat().st_mtime >= self.since]


@pytest.fixture(scope="module")
def clinic(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    folder = tmp_path_factory.mktemp("clinic")
    since = folder.stat().st_mtime
    root = folder / "root"
    engine.prepare(root)
    rows = write_rows(folder / "rows.txt", 240)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(root))
        ingest(
            IngestRequest(
                name="clinic",
                format="libsvm",
                path=rows.path,
                dimension=rows.features.shape[1],
                classes=("-1", "1"),
                epsilon_cap=9.0,
                delta_cap=1e-4,
                allow_idealised=True,
            )
        )
        from flows.federated_training import train
        from tasks.planning.configuration import TrainingConfig

        words: list[dict[str, Any]] = [
            # At an epsilon at which noise hides the accuracy of 48 rows next to never.
            {"algorithm": "noisy-gd", "evaluation": True, "epsilon": 4.0},
            {"algorithm": "fed-dpdr-dpml", "dimension": 3},
            {"algorithm": "dpdr-dpml", "dimension": 3, "normalisation": "clip"},
            {"algorithm": "noisy-gd", "trust": "secagg"},
        ]
        results = [train(configured(**one)).model_dump(mode="json") for one in words]
        # Refused and failed runs are told to Prefect as well.
        with pytest.raises(RefusedError):
            train(TrainingConfig(dataset="clinic", algorithm="non-private", parties=2))
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(door, "fit", fails_on_rows)
            with pytest.raises(RedactedError, match=r"^basis"):
                train(TrainingConfig(dataset="clinic", epsilon=0.5, parties=2))
        flush_prefect()
        yield Clinic(root, engine.root, rows, results, since)


def fails_on_rows(algorithm: Any, parties: Any, *arguments: Any) -> Any:
    """A broken algorithm: its exception holds the rows themselves."""
    (features, *_), *_ = parties[0].blocks()
    raise ValueError(f"these rows are odd: {features.tolist()}")


def flush_prefect() -> None:
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=60)
    EventsWorker.drain_all(timeout=60)


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_search_finds_what_is_there(clinic: Clinic, tmp_path: Path) -> None:
    """The mutant: private folders hold all of it, and so does any file that a row gets into."""
    needles = needles_of(clinic.rows.features)
    private = list(Layout(clinic.root).private.rglob("*.parquet"))
    assert {needle for _, needle in found_in(private, needles)} >= {
        row[:2].astype("<f4").tobytes() for row in clinic.rows.features[::7]
    }
    row = clinic.rows.features[0]
    for name, data in (
        ("text", json.dumps(row.tolist()).encode()),
        ("bytes", b"...." + row.astype("<f8").tobytes()),
        ("short", b"." + row.astype("<f4").tobytes()),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        assert found_in([path], needles), name


def test_the_seconds_of_a_time_are_no_number_of_a_row(tmp_path: Path) -> None:
    """A server notes thousands of times with six decimals: now and then one ends like a number of a row."""
    path = tmp_path / "file"
    for text, found in (("09:20:30.462163", 0), ("[0.462163, 1]", 1), ("[-0.462163]", 1), ("30.462163 0.462163", 1)):
        path.write_text(text)
        assert len(found_in([path], [b"0.462163"])) == found, text


def test_no_private_value_leaves_the_private_folder(clinic: Clinic) -> None:
    files = clinic.public_files()
    names = {path.name for path in files}
    assert {"prefect.db", "mlflow.db", "ledger.sqlite", "arrays.npz", "manifest.json"} <= names
    assert any(path.suffix == ".skops" for path in files)
    assert any(path.suffix == ".parquet" for path in files)
    assert any(path.parent.name == "results" and path.parent.parent.name == "prefect" for path in files)
    assert found_in(files, needles_of(clinic.rows.features)) == []


def test_no_secret_and_no_digest_of_rows_leaves_the_private_folder(clinic: Clinic) -> None:
    layout = Layout(clinic.root)
    secrets = [path.read_bytes() for path in layout.private.rglob("*.key")]
    assert len(secrets) >= 4
    needles = [form for secret in secrets for form in (secret, secret.hex().encode())]
    raw = clinic.rows.path.read_bytes()
    digested = [
        raw,
        *(clinic.rows.features.astype(kind).tobytes() for kind in ("<f4", "<f8")),
        *(path.read_bytes() for path in layout.private.rglob("*.parquet")),
    ]
    for data in digested:
        for kind in ("sha256", "md5", "sha1", "blake2b"):
            needles.append(hashlib.new(kind, data).hexdigest()[:32].encode())
    # Whatever digests the manifests in the private folder hold of rows stay there, too.
    for manifest in layout.private.rglob("*.json"):
        needles += [digest.encode() for digest in set(HEX.findall(manifest.read_text()))]
    told = {word.encode() for result in clinic.results for word in HEX.findall(json.dumps(result))}
    told |= {path.name.encode() for path in layout.datasets.iterdir()}
    told |= {path.name.encode() for path in layout.parties.glob("*/shards/*")}
    needles = [needle for needle in dict.fromkeys(needles) if needle not in told]
    assert len(needles) > 50
    assert found_in(clinic.public_files(), needles) == []


def test_references_carry_no_digest_of_private_rows(clinic: Clinic, tmp_path: Path) -> None:
    """The same rows in another root have other names: a name says nothing about what it names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(clinic.root))
        first = prepare(algorithm="noisy-gd")
        patch.setenv("UNITBALL_ROOT", str(tmp_path / "another"))
        (tmp_path / "input").mkdir()
        again = clinic.rows.path.read_text()
        path = tmp_path / "input" / "rows.txt"
        path.write_text(again)
        declared = {"dimension": 6, "classes": ("-1", "1"), "epsilon_cap": 9.0, "delta_cap": 1e-4}
        ingest(IngestRequest(name="clinic", format="libsvm", path=path, **declared))
        second = prepare(algorithm="noisy-gd")
    words = [set(HEX.findall(made.shards.model_dump_json() + made.plan.model_dump_json())) for made in (first, second)]
    assert words[0]
    assert not words[0] & words[1]


# ── numbers that depend on rows ──────────────────────────────────────────────────────────────────────────────────────

TELLING = re.compile(r"second|time|duration|iteration|step_count|converg|epoch|diagnos", re.IGNORECASE)


def test_times_and_iterations_of_private_training_are_null_everywhere(clinic: Clinic) -> None:
    for result in clinic.results:
        assert result["seconds"] is None
        assert result["releasing_seconds"] is None
        assert not [name for name in result["metrics"] if TELLING.search(name)]
    layout = Layout(clinic.root)
    rows = duckdb.sql(
        f"SELECT seconds, releasing_seconds FROM read_parquet('{layout.results}/runs/*.parquet', union_by_name=true)"
    ).fetchall()
    assert rows == [(None, None)] * len(clinic.results)
    measured = duckdb.sql(f"SELECT DISTINCT metric FROM read_parquet('{layout.results}/metrics/*.parquet')").fetchall()
    assert measured
    assert not [metric for (metric,) in measured if TELLING.search(metric)]
    with closing(sqlite3.connect(layout.mlflow_database)) as connection:
        logged = {name for (name,) in connection.execute("SELECT key FROM metrics")}
        assert {"epsilon_spent", "accuracy"} <= logged
        assert not [name for name in logged if TELLING.search(name)]
    for key in ReleaseStore(layout).keys():
        assert ReleaseStore(layout).manifest(key).get("diagnostics", {}) == {}


def test_accuracy_is_told_where_it_was_paid_for(clinic: Clinic) -> None:
    evaluated, *others = clinic.results
    assert evaluated["accuracy"] is not None
    assert all(result["accuracy"] is None and result["metrics"] == {} for result in others)
    artifacts = "".join(path.read_text() for path in Layout(clinic.root).artifacts.rglob("result.json"))
    assert artifacts.count('"accuracy": null') == len(others)


def test_mlflow_holds_no_profile_schema_or_digest_of_private_rows(clinic: Clinic) -> None:
    with closing(sqlite3.connect(Layout(clinic.root).mlflow_database)) as connection:
        rows = connection.execute(
            "SELECT name, digest, dataset_schema, dataset_profile, dataset_source FROM datasets"
        ).fetchall()
    assert rows
    versions = {path.name for path in Layout(clinic.root).datasets.iterdir()}
    for name, digest, schema, profile, source in rows:
        assert name == "clinic"
        assert digest in versions
        assert schema in (None, "")
        assert profile in (None, "")
        assert json.loads(source).keys() == {"dataset", "version", "account"}


def test_prefect_is_given_references_only(clinic: Clinic) -> None:
    """Results and parameters that Prefect keeps are small: no array is among them."""
    home = Layout(clinic.engine).prefect
    sizes = [path.stat().st_size for path in (home / "results").iterdir() if path.is_file()]
    assert sizes
    assert max(sizes) < 40_000
    with closing(sqlite3.connect(home / "prefect.db")) as connection:
        (longest,) = connection.execute("SELECT max(length(parameters)) FROM flow_run").fetchone()
    assert longest < 5_000


# ── exceptions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_an_algorithm_says_of_private_rows_is_for_their_owner(clinic: Clinic) -> None:
    errors = list((Layout(clinic.root).private / "errors").iterdir())
    assert errors
    assert all("these rows are odd" in path.read_text() for path in errors)
    assert all(path.stat().st_mode & 0o077 == 0 for path in errors)
    told = {name.rpartition("/")[2] for name, _ in found_in(clinic.public_files(), [b"failed on private rows"])}
    assert any(name.startswith("prefect.db") for name in told), "what Prefect was told has not arrived yet"
    assert found_in(clinic.public_files(), [b"these rows are odd"]) == []


def test_the_same_failure_on_public_rows_is_told(root: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door, "fit", fails_on_rows)
        with pytest.raises(ValueError, match="odd"):
            followed("iris", algorithm="noisy-gd")


def test_damaged_private_files_are_named_and_not_shown(root: Path, tmp_path: Path) -> None:
    rows = ingest_private(tmp_path / "input")
    prepared = prepare(algorithm="noisy-gd")
    layout = current_layout()
    damaged = [next(layout.parties.glob("0/shards/*/*/*.parquet")), next(layout.datasets.glob("*/train/*.parquet"))]
    for path in damaged:
        flip(path)
    with pytest.raises((DamagedError, StorageError)) as caught:
        prepared.make()
    text = str(caught.value)
    assert "damaged" in text
    assert not [needle for needle in needles_of(rows.features, every=1) if needle in text.encode()]
    assert digests() == {}


def test_ingestion_errors_name_the_place(root: Path, tmp_path: Path) -> None:
    """The owner is told where; the row's other values are not repeated."""
    rows = write_rows(tmp_path / "rows.txt", 40)
    lines = rows.path.read_text().splitlines()
    lines[10] = lines[10].replace(" 2:", " 2:oops")
    rows.path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="line 11") as caught:
        ingest_again(rows)
    assert f"{rows.features[10, 3]:.6f}" not in str(caught.value)


def ingest_again(rows: PrivateRows) -> None:
    declared = {"dimension": 6, "classes": ("-1", "1"), "epsilon_cap": 1.0, "delta_cap": 1e-4}
    ingest(IngestRequest(name="clinic", format="libsvm", path=rows.path, **declared))


def test_a_wrong_type_behind_the_door_is_no_traceback_with_rows(
    unitball: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_rows(tmp_path / "rows.txt", 120)
    unitball.succeeds(*ingestion(rows))
    monkeypatch.setattr(door, "fit", fails_on_rows)
    outcome = unitball(
        "train", "--dataset", "clinic", "--algorithm", "noisy-gd", "--epsilon", 1, "--parties", 2, "--no-evaluation"
    )
    outcome.refused(1, "private rows", "errors")
    assert not [needle for needle in needles_of(rows.features, every=1) if needle in outcome.err.encode()]
    # The charge stands: it was made before the first row was read, and pays for the next attempt.
    assert len(charges()) == 1


# ── SQL ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "all"])
def test_sql_over_results_reads_no_file(every: bool, clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    """By day a third of the ways to each file, together all of them."""
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    private = [str(path) for path in Layout(clinic.root).private.rglob("*.parquet")]
    assert private
    paths = (private[0], f"{Layout(clinic.root).private}/**/*.parquet", str(clinic.rows.path))
    for place, path in enumerate(paths):
        ways = (
            f"SELECT * FROM '{path}'",
            f"SELECT * FROM read_parquet('{path}')",
            f"SELECT * FROM read_text('{path}')",
            f"SELECT * FROM read_blob('{path}')",
            f"SELECT * FROM read_csv_auto('{path}')",
            f"SELECT * FROM glob('{path}')",
            f"SELECT * FROM parquet_metadata('{path}')",
            f"SELECT * FROM runs, read_parquet('{path}')",
        )
        for sql in ways if every else ways[place :: len(paths)]:
            with pytest.raises(InputError):
                query_results(sql)
    for sql in (
        f"ATTACH '{Layout(clinic.root).ledger}' AS ledger",
        f"COPY runs TO '{clinic.root}/out.csv'",
        "SET enable_external_access = true",
        "INSTALL sqlite",
        "SELECT 1; SELECT 2",
        "SELECT * FROM clinic",
        "SELECT * FROM rows",
    ):
        with pytest.raises(InputError):
            query_results(sql)
    assert not (clinic.root / "out.csv").exists()
    assert query_results("SELECT count(*) AS n FROM runs")[0]["n"] == len(clinic.results)


def test_sql_over_rows_is_refused_for_private_sets(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(clinic.root))
    with pytest.raises(RefusedError, match="private"):
        query("clinic", "SELECT avg(label) FROM train")
    # A public set's views read that set alone.
    ensure_registered("iris")
    for path in Layout(clinic.root).private.rglob("*.parquet"):
        with pytest.raises(InputError):
            query("iris", f"SELECT * FROM read_parquet('{path}')")
        break


# ── registration ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_private_rows_are_not_registered_as_public(root: Path, tmp_path: Path) -> None:
    rows = ingest_private(tmp_path / "input")
    shuffled = tmp_path / "shuffled.txt"
    lines = rows.path.read_text().splitlines()
    shuffled.write_text("\n".join(lines[::-1]) + "\n")
    subset = tmp_path / "subset.txt"
    subset.write_text("\n".join(lines[50:90]) + "\n")
    for path in (rows.path, shuffled, subset):
        with pytest.raises(RefusedError, match="private"):
            ingest(IngestRequest(name="open", format="libsvm", path=path, visibility="public"))
    # Nor do the normalised rows, which lie in the private folder as well.
    dataset = prepare(algorithm="noisy-gd").dataset
    assert dataset.normalisation == "unit-norm"
    normalised = rows.features / np.linalg.norm(rows.features, axis=1, keepdims=True)
    text = "\n".join(
        f"{label:+d} " + " ".join(f"{place}:{np.float32(value)!s}" for place, value in enumerate(row, 1))
        for label, row in zip(rows.labels.tolist(), normalised, strict=True)
    )
    path = tmp_path / "normalised.txt"
    path.write_text(text + "\n")
    with pytest.raises(RefusedError, match="private"):
        ingest(IngestRequest(name="open", format="libsvm", path=path, visibility="public"))
    # Other people's rows are welcome.
    features, labels = synthetic(30, 6, seed=5)
    path.write_text(
        "\n".join(
            f"{label} " + " ".join(f"{place}:{value}" for place, value in enumerate(row, 1))
            for label, row in zip(labels.tolist(), features.tolist(), strict=True)
        )
        + "\n"
    )
    ingest(IngestRequest(name="open", format="libsvm", path=path, visibility="public"))
