"""The ledger, the catalogue and the releases of the current root, opened."""

from __future__ import annotations

from pathlib import Path

from storage.catalog import Catalog
from storage.layout import Layout
from storage.ledger.database import Database, open_database
from storage.ledger.material import guard_material
from storage.model_records import ModelRecords
from storage.object_releases import ObjectReleases
from storage.objects import objects_of
from storage.releases import ReleaseStore
from tasks.runtime.settings import current_layout, ledger_url, marks_folder


def open_ledger_database(root: Path | None = None, *, guarded: bool = True) -> Database:
    """Open the database behind ledger and catalogue: the root's own file, or a shared one by URL.

    Parameters
    ----------
    root : Path, optional
        Another one than the current root.
    guarded : bool
        False writes where key material is missing too: for whoever puts it back.
    """
    layout = current_layout() if root is None else Layout(root).prepare()
    shared = ledger_url()
    return open_database(
        shared or layout.ledger,
        key=layout.shared_ledger_key if shared else layout.root_secret,
        head=layout.root / "ledger.head",
        marks=marks_folder(),
        **({"guard": guard_material(layout, shared=shared is not None)} if guarded else {}),
    )


def open_catalog() -> Catalog:
    """Open the catalogue."""
    return Catalog(open_ledger_database())


def open_model_records(root: Path) -> ModelRecords:
    """Open what is on record of a root's models."""
    return ModelRecords(open_ledger_database(root))


def open_releases() -> ReleaseStore:
    """Open the releases: folders under the root, or objects of which the ledger says which is the release."""
    layout = current_layout()
    store = objects_of(layout)
    return ReleaseStore(layout, None if store is None else ObjectReleases(store, open_ledger_database()))
