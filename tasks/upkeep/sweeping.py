"""What killed processes left behind and what is damaged is removed; what can be made again from stored rows is."""

from __future__ import annotations

from functools import partial

from storage.atomic import PREFIX, clean
from storage.datasets import dataset_ref, declared_table, remake_fingerprints
from storage.layout import Layout
from storage.ledger.entries import reading, writing
from storage.ledger.material import adopt_material, missing_material
from storage.orphans import remove_orphans
from tasks.datasets.registration import sweep_unregistered
from tasks.runtime.settings import ledger_url
from tasks.runtime.stores import open_catalog, open_ledger_database, open_releases


def sweep_everything(layout: Layout) -> list[str]:
    """Remove what killed processes left and damaged releases; make lost fingerprints again from stored rows.

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
    if objects := remove_orphans(layout):
        done.append(f"removed {objects} objects of rows that no stored version names")
    if damaged := open_releases().remove_damaged():
        done.append(
            f"removed {len(damaged)} damaged releases: whoever needs one makes it again, with the same noise and no "
            "new charge while the secrets are the same"
        )
    with reading(open_ledger_database()) as entries:
        lacking = missing_material(layout, entries, shared=ledger_url() is not None)
    for version in filter(partial(remake_fingerprints, layout), lacking):
        done.append(f"made the fingerprints of version {version} again from its rows")
        if declared_table(layout, dataset_ref(layout, version)) is not None:
            # Those of a table's rows come back up to rounding; of all others, to the bit that is on record.
            with writing(open_ledger_database(guarded=False)) as entries:
                adopt_material(layout, entries, version)
    return done
