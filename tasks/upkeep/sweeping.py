"""What killed processes left behind, copies of private rows among it, is removed; what can be made again is."""

from __future__ import annotations

from storage.atomic import PREFIX, clean, discard, locked_directory
from storage.catalog import Catalog
from storage.datasets import confirm_registered, remake_fingerprints, unregistered_versions
from storage.entries import reading
from storage.layout import Layout
from storage.material import missing_material
from tasks.accounts.books import open_books, open_catalog
from tasks.runtime.settings import ledger_url

__all__ = ["sweep_everything", "sweep_unregistered"]


def sweep_unregistered(layout: Layout, catalog: Catalog) -> int:
    """Remove versions whose registration never came about, because their ingestion was killed; return how many.

    Versions carry a note from their publication to their registration, both under one lock, so that what somebody is
    just registering is left alone, and so is whatever an older, restored ledger does not know.
    """
    if not unregistered_versions(layout):
        return 0
    removed = 0
    with locked_directory(layout.private):
        known = {one.version for one in catalog.registrations()}
        for version in unregistered_versions(layout):
            if version in known:
                confirm_registered(layout, version)
            else:
                discard(layout.dataset(version))
                removed += 1
    return removed


def sweep_everything(layout: Layout) -> list[str]:
    """Remove what killed processes left anywhere in a root and make lost fingerprints again from stored rows.

    Returns
    -------
    list of str
        What was done, one sentence each.
    """
    catalog = open_catalog()
    done = []
    folders = {path.parent for path in layout.root.rglob(f"{PREFIX}*")}
    if temporaries := sum(clean(folder) for folder in folders if not folder.name.startswith(PREFIX)):
        done.append(f"removed {temporaries} unfinished files or folders of processes that are gone")
    if versions := sweep_unregistered(layout, catalog):
        done.append(f"removed {versions} copies of rows that were never registered")
    with reading(open_books()) as entries:
        lacking = missing_material(layout, entries, shared=ledger_url() is not None)
    done += [
        f"made the fingerprints of version {version} again from its rows"
        for version in lacking
        if remake_fingerprints(layout, version)
    ]
    return done
