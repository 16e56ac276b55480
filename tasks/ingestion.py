"""Bringing rows in: read, check, store, register under an account."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from storage.accounts import require_cap, require_small_delta
from storage.atomic import discard
from storage.catalog import Catalog, Registration
from storage.charges import Cap
from storage.datasets import dataset_ref, fingerprints_digest, ingestion_report, write_dataset
from storage.errors import InputError, RefusedError
from storage.readers.bundled import BUNDLED
from storage.readers.registry import read_source, reader_names
from storage.readers.source import OnViolation, ReadOptions, Source, concatenate
from storage.refs import DatasetRef, Visibility
from storage.results import query_dataset
from tasks.accounts.books import open_catalog
from tasks.planning.resolution import admitted_normalisation
from tasks.runtime.events import announce
from tasks.runtime.settings import current_layout

__all__ = ["IngestRequest", "describe_datasets", "find_dataset", "ingest", "query"]

_BUNDLED_FORMAT = "sklearn"


class IngestRequest(BaseModel):
    """What the owner says of rows that come in; see ``unitball ingest --help``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    format: str | None = None
    path: Path | None = None
    visibility: Visibility = Visibility.PRIVATE
    account: str | None = None
    epsilon_cap: float | None = None
    delta_cap: float | None = None
    dimension: int | None = None
    classes: tuple[str, ...] | None = None
    label_range: tuple[float, float] | None = None
    normalisation: str | None = None
    schema_path: Path | None = None
    on_violation: OnViolation = OnViolation.REFUSE
    parties: Mapping[str, Path] = {}
    test_path: Path | None = None
    allow_idealised: bool = False
    disjoint_people: bool = False
    group_size: int = 1

    def cap(self) -> Cap | None:
        """Return the declared cap.

        Raises
        ------
        InputError
            If only one half of it is given.
        """
        if self.epsilon_cap is None and self.delta_cap is None:
            return None
        if self.epsilon_cap is None or self.delta_cap is None:
            raise InputError("a cap has two numbers: give both --epsilon-cap and --delta-cap")
        return Cap(epsilon=self.epsilon_cap, delta=self.delta_cap)


def _source(request: IngestRequest) -> Source:
    bundled = request.path is None and not request.parties
    format_name = request.format or (_BUNDLED_FORMAT if bundled else None)
    if format_name is None:
        raise InputError(f"say what format the file has: --format {', '.join(reader_names())}")
    options = ReadOptions(
        dimension=request.dimension,
        classes=request.classes,
        label_range=request.label_range,
        discover=request.visibility is Visibility.PUBLIC,
        schema=request.schema_path,
        on_violation=request.on_violation,
        test=request.test_path,
    )
    if request.parties:
        return concatenate({name: read_source(format_name, path, options) for name, path in request.parties.items()})
    return read_source(format_name, request.path or request.name, options)


def ingest(request: IngestRequest) -> DatasetRef:
    """Read rows, check them, store them as a version and register it; nothing half-made is left behind.

    Raises
    ------
    InputError
        For bad data or arguments, naming the place.
    RefusedError
        If private rows come without a cap, with a delta of 1/n or more, or public rows were private before.
    """
    layout = current_layout()
    catalog = open_catalog()
    cap = request.cap()
    known = catalog.versions(request.name)
    opened = catalog.account(request.account) if request.account else None
    if request.visibility is Visibility.PRIVATE and cap is None and not known and opened is None:
        raise RefusedError(
            f"{request.name} is private, so its account needs a cap: give --epsilon-cap and --delta-cap "
            f"(or say --public if the rows are nobody's secret)"
        )
    if request.visibility is Visibility.PUBLIC and cap is not None:
        raise InputError("a cap is for private rows; leave --epsilon-cap and --delta-cap out, or leave --public out")
    if cap is not None:
        require_cap(cap)
    if request.normalisation is not None:
        admitted_normalisation(request.normalisation, request.name, private=request.visibility is Visibility.PRIVATE)
    account = request.account or (known[-1].account if known else request.name)
    previous = [dataset_ref(layout, version.version) for version in known if version.normalisation == "none"]
    stored = write_dataset(
        layout,
        _source(request),
        name=request.name,
        account=account,
        visibility=request.visibility,
        previous=previous,
    )
    try:
        _register(catalog, request, stored, cap)
    except Exception:
        # Rows that were not taken on are not kept, and do not stand in the way of another registration.
        if all(stored.version != one.version for one in catalog.registrations()):
            discard(layout.dataset(stored.version))
        raise
    if known and all(stored.version != one.version for one in known):
        # A first registration starts nothing: no budget is spent before somebody asked for a run on these rows.
        announce("unitball.dataset.registered", f"unitball.dataset.{request.name}", {"dataset": request.name})
    return stored


def _register(catalog: Catalog, request: IngestRequest, stored: DatasetRef, cap: Cap | None) -> None:
    # A new version may have more rows than the account's cap was declared for.
    opened = catalog.account(request.account or stored.account)
    in_force = cap or (opened.cap if opened else None)
    if in_force is not None:
        require_small_delta(in_force.delta, stored.rows)
    catalog.register(
        request.name,
        stored.version,
        visibility=request.visibility,
        manifest={
            "format": request.format or _BUNDLED_FORMAT,
            "reference": stored.model_dump(mode="json"),
            "default_normalisation": request.normalisation,
            "parties": list(request.parties),
        },
        account=request.account,
        cap=cap,
        disjoint_people=request.disjoint_people,
        group_size=request.group_size if request.group_size != 1 else None,
        idealised_allowed=request.allow_idealised or None,
        fingerprints=fingerprints_digest(current_layout(), stored),
    )


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


def describe_datasets(name: str | None = None) -> list[dict[str, Any]]:
    """Return what there is to say of each data set, or of one; public words and public numbers only."""
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


def _not_yet(name: str) -> dict[str, Any]:
    blank: dict[str, Any] = dict.fromkeys(("rows", "test_rows", "dimension", "classes", "version"), "–")
    known = {"name": name, "format": _BUNDLED_FORMAT, "visibility": "public", "account": name}
    return {**blank, **known, "versions": 0, "class_names": []}


def query(name: str, sql: str) -> list[dict[str, Any]]:
    """Run DuckDB SQL over a public set's views ``train`` and ``test``.

    Raises
    ------
    RefusedError
        If the set is private.
    """
    table = query_dataset(current_layout(), find_dataset(name), sql)
    return list(table.to_pylist())


def counts_of(reference: DatasetRef) -> Mapping[str, Mapping[str, int]]:
    """Return how many rows ingestion left out or changed: for the owner's eyes."""
    return ingestion_report(current_layout(), reference).counts
