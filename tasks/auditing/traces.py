"""Traces of a finished run outside its private folders, as named values without random names and times."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from sqlalchemy import MetaData, NullPool, create_engine, select

from dpalgos.audit.bounds import Value
from storage.layout import Layout
from storage.refs import DatasetRef
from tasks.planning.column_statistics import SynthesisPlan
from tasks.planning.configuration import TrainingConfig
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.rows import Partition
from tasks.release.drawn_rows import SyntheticRows
from tasks.release.expectation import expect_run
from tasks.tracking.reporting import run_report
from tasks.tracking.results import Chained
from tasks.tracking.runs import RunReport

_RANDOM = re.compile(r"[0-9a-f]{16,}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[0-9.+:Z]*")
_NUMBERS = (int, float, np.integer, np.floating)


def observe(layout: Layout, config: TrainingConfig, finished: Chained) -> dict[str, Value]:
    """Return everything that a run lets be seen, by field.

    Random identifiers differ in each run, so in the names of fields and in texts each is replaced by its role, and
    is also a separate field: one that repeated itself on equal rows would be a digest of them.

    Parameters
    ----------
    layout : Layout
        Of a root that holds this run alone.
    config : TrainingConfig
    finished : Chained
    """
    plan, report = finished.plan, run_report(config, finished)
    views = {
        "--plan": told_before(config),
        "reference": finished.dataset.model_dump(mode="json"),
        "plan": plan.model_dump(mode="json"),
        "result": finished.result.model_dump(mode="json"),
        "MLflow": _logged(report, finished.dataset),
    }
    combined = [one for one in (plan.column_map, plan.basis, plan.model) if one is not None]
    roles = _roles(layout, [*plan.releases, *combined], plan.run_key)
    return _trace(layout, views, roles)


def observe_synthesis(
    layout: Layout, plan: SynthesisPlan, found: SyntheticRows, report: RunReport, told: Mapping[str, object]
) -> dict[str, Value]:
    """Return everything that a synthesis lets be seen, by field, its drawn rows among it.

    Parameters
    ----------
    layout : Layout
        Of a root that holds this synthesis alone.
    plan : SynthesisPlan
    found : SyntheticRows
    report : RunReport
    told : mapping
        Other texts that the user sees.
    """
    views = {
        **told,
        "reference": plan.dataset.model_dump(mode="json"),
        "plan": plan.model_dump(mode="json"),
        "result": found.model_dump(mode="json"),
        "MLflow": _logged(report, plan.dataset),
    }
    made = [node for node in plan.nodes.values() if not isinstance(node, Partition)]
    return _trace(layout, views, _roles(layout, made, report.run_key))


def _logged(report: RunReport, dataset: DatasetRef) -> dict[str, object]:
    """Return what MLflow is told of a run."""
    return {
        **{name: getattr(report, name) for name in ("experiment", "name", "facts", "params", "metrics", "curves")},
        **{name: getattr(report, name) for name in ("tags", "files", "note")},
        "dataset": dataset.model_dump(include={"name", "version", "account"}),
        "parties": [dict(one) for one in report.parties],
        "model": None
        if report.model is None
        else [report.model.dimension, list(report.model.classes), report.model.registered_name],
    }


def _trace(layout: Layout, views: Mapping[str, object], roles: Mapping[str, str]) -> dict[str, Value]:
    seen: dict[str, Value] = {f"identifier {role}": identifier for identifier, role in roles.items()}
    for source in (fields_of("", views), _files(layout)):
        for name, value in source:
            canonical = _canonical(name, roles)
            while canonical in seen:
                canonical += "′"
            seen[canonical] = _canonical(value, roles) if isinstance(value, str) else value
    return seen


def told_before(config: TrainingConfig) -> dict[str, object]:
    """Return what ``--plan`` says of a run."""
    return asdict(expect_run(config))


def _roles(layout: Layout, made: Sequence[PlannedRelease | PlannedCombination], run: str) -> dict[str, str]:
    """Return what each identifier of a run stands for."""
    releases = [(one.key, f"release {number}") for number, one in enumerate(made)]
    versions = [(path.name, "data version") for path in layout.datasets.iterdir()]
    partitions = [(one.partition, "partition") for one in made]
    roles: dict[str, str] = {}
    for identifier, role in (*releases, *versions, *partitions, (run, "run")):
        roles.setdefault(identifier, f"<{role}>")
    return roles


def _canonical(text: str, roles: Mapping[str, str]) -> str:
    for identifier, role in roles.items():
        text = text.replace(identifier, role)
    return _TIME.sub("<time>", _RANDOM.sub("<random>", text))


def _files(layout: Layout) -> Iterator[tuple[str, Value]]:
    for path in sorted(layout.root.rglob("*")):
        if layout.private in path.parents or path == layout.private:
            continue
        name = str(path.relative_to(layout.root))
        if not path.is_file():
            yield f"{name}/", "folder"
            continue
        yield f"{name} (bytes)", path.stat().st_size
        yield from _READERS.get(path.suffix, _text)(name, path)


def _text(name: str, path: Path) -> Iterator[tuple[str, Value]]:
    yield name, path.read_bytes().decode("utf-8", "replace")


def _json(name: str, path: Path) -> Iterator[tuple[str, Value]]:
    yield from fields_of(name, json.loads(path.read_bytes()))


def _arrays(name: str, path: Path) -> Iterator[tuple[str, Value]]:
    with np.load(path, allow_pickle=False) as arrays:
        for part in arrays.files:
            yield f"{name} {part} (shape)", str(arrays[part].shape)
            yield f"{name} {part}", np.asarray(arrays[part], dtype=np.float64).ravel()


def _table(name: str, path: Path) -> Iterator[tuple[str, Value]]:
    yield from fields_of(name, pq.read_table(path, partitioning=None).to_pylist())


def _database(name: str, path: Path) -> Iterator[tuple[str, Value]]:
    engine, tables = create_engine(f"sqlite:///{path}", poolclass=NullPool), MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        for table in tables.sorted_tables:
            rows = connection.execute(select(table)).mappings()
            yield from fields_of(f"{name} {table.name}", [dict(row) for row in rows])


_READERS = {
    ".json": _json,
    ".npz": _arrays,
    ".parquet": _table,
    ".sqlite": _database,
}


def fields_of(name: str, value: object) -> Iterator[tuple[str, Value]]:
    """Yield what is nested by the path to it; lists of numbers stay together."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from fields_of(f"{name} {key}".strip(), part)
    elif isinstance(value, list | tuple):
        yield f"{name} (entries)", len(value)
        if value and all(isinstance(part, _NUMBERS) for part in value):
            yield name, np.asarray(value, dtype=np.float64)
        else:
            for number, part in enumerate(value):
                yield from fields_of(f"{name} {number}", part)
    elif value is None or isinstance(value, str | int | float):
        yield name, value
    else:
        yield name, str(value)
