"""The ledger and the catalogue of the current root, opened."""

from __future__ import annotations

from storage.catalog import Catalog
from storage.ledger.database import Database, open_database
from storage.ledger.material import guard_material
from tasks.runtime.settings import current_layout, ledger_url, marks_folder

__all__ = ["open_books", "open_catalog"]


def open_books(*, guarded: bool = True) -> Database:
    """Open the database behind ledger and catalogue: the root's own file, or a shared one by URL.

    Parameters
    ----------
    guarded : bool
        False writes where key material is missing too: for whoever puts it back.
    """
    layout = current_layout()
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
    return Catalog(open_books())
