"""What there is to say of data sets: public text, public numbers, and SQL over public ones."""

from __future__ import annotations

from storage.catalog import Registration
from storage.confined import kept_memory
from storage.datasets import IngestionReport, ingestion_report
from storage.readers.bundled import BUNDLED
from storage.refs import DatasetRef, Visibility
from storage.results import query_dataset
from tasks.datasets.registration import BUNDLED_FORMAT, ingest
from tasks.datasets.request import IngestRequest
from tasks.runtime.settings import current_layout, query_seconds
from tasks.runtime.stores import open_catalog


def _registered(name: str) -> Registration:
    catalog = open_catalog()
    if not catalog.has(name) and name in BUNDLED:
        ingest(IngestRequest(name=name, visibility=Visibility.PUBLIC))
    return catalog.get(name)


def find_dataset(name: str) -> DatasetRef:
    """Return the newest version of a data set; sets that scikit-learn brings along are registered at first use.

    Raises
    ------
    InputError
        If there is no such set.
    """
    return DatasetRef.model_validate(_registered(name).manifest["reference"])


def default_normalisation(name: str) -> str | None:
    """Return the map that the owner declared for runs on a set, if any."""
    return _registered(name).manifest.get("default_normalisation")


def describe_datasets(name: str | None = None) -> list[dict[str, object]]:
    """Return what there is to say of each data set, or of one; public text and public numbers only."""
    catalog = open_catalog()
    known = {entry.name: entry for entry in catalog.datasets()}
    names = [name] if name is not None else sorted({*known, *BUNDLED})
    described = []
    for one in names:
        if one not in known and one in BUNDLED and name is None:
            described.append(_not_yet(one))
            continue
        entry = _registered(one)
        reference = DatasetRef.model_validate(entry.manifest["reference"])
        described.append(
            {
                "name": one,
                "format": entry.manifest["format"],
                "rows": reference.rows,
                "unit": str(reference.unit),
                "test_rows": reference.test_rows,
                "dimension": reference.dimension,
                "classes": len(reference.classes) or "real",
                "visibility": str(reference.visibility),
                "account": entry.account,
                "versions": len(catalog.versions(one)),
                "version": reference.version,
                "class_names": list(reference.classes),
            }
        )
    return described


def _not_yet(name: str) -> dict[str, object]:
    blank: dict[str, object] = dict.fromkeys(("rows", "unit", "test_rows", "dimension", "classes", "version"), "–")
    known = {"name": name, "format": BUNDLED_FORMAT, "visibility": "public", "account": name}
    return {**blank, **known, "versions": 0, "class_names": []}


def report_of(reference: DatasetRef) -> IngestionReport:
    """Return what became of every row that ingestion read: for the owner's eyes."""
    return ingestion_report(current_layout(), reference)


def query(name: str, sql: str) -> list[dict[str, object]]:
    """Run DuckDB SQL over a public set's views ``train`` and ``test``.

    Raises
    ------
    RefusedError
        If the set is private.
    """
    table = query_dataset(current_layout(), find_dataset(name), sql, memory=kept_memory(), seconds=query_seconds())
    return list(table.to_pylist())
