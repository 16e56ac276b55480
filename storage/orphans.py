"""Objects of rows that no manifest names: what killed writers and removed versions left in an object store."""

from __future__ import annotations

from storage import datasets, manifests, shards
from storage.layout import Layout
from storage.objects import objects_of


def remove_orphans(layout: Layout) -> int:
    """Remove objects of rows that are older than a day and that no manifest of the root names; return how many.

    Younger ones may belong to a writer that has not published its manifest yet.

    Raises
    ------
    StorageError
        If a manifest cannot be read: what it names would be taken for abandoned.
    """
    store = objects_of(layout)
    if store is None:
        return 0
    old = [name for folder in ("datasets", "parties") for name in store.names(folder, old_only=True)]
    named = set(_named(layout)) if old else set()
    abandoned = [name for name in old if name not in named]
    for name in abandoned:
        store.remove(name)
    return len(abandoned)


def _named(layout: Layout) -> list[str]:
    names = []
    for path in layout.datasets.glob(f"*/{datasets.MANIFEST}"):
        body = manifests.load(path, version=datasets.FORMAT_VERSION)
        names += [name for part in body["parts"].values() for name, _ in part["files"]]
    for path in layout.parties.glob(f"*/shards/*/*/{shards.MANIFEST}"):
        names += [name for name, _ in manifests.load(path, version=shards.FORMAT_VERSION)["rows"]["files"]]
    return names
