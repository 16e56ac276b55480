"""The ledger and the catalogue of the current root, opened."""

from __future__ import annotations

from storage.catalog import Catalog
from storage.database import Database, open_database
from tasks.runtime.settings import current_layout, ledger_url

__all__ = ["open_books", "open_catalog"]


def open_books() -> Database:
    """Open the database behind ledger and catalogue: the root's own file, or a shared one by URL."""
    layout = current_layout()
    return open_database(ledger_url() or layout.ledger, head=layout.root / "ledger.head")


def open_catalog() -> Catalog:
    """Open the catalogue."""
    return Catalog(open_books())
