"""The checks of a root: what is wrong with it, the way out of each, and what can be removed."""

import math
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from storage import datasets, documents, shards
from storage.atomic import PREFIX, clean
from storage.datasets import dataset_ref, declared_table, is_complete
from storage.errors import InputError, RefusedError, StorageError
from storage.history import lost_history
from storage.kept_rows import kept_objects, remove_kept
from storage.key_material import adopt_material, missing_material
from storage.layout import Layout
from storage.ledger.database import read_mark
from storage.ledger.entries import behind_mark, check_chain, reading, writing
from storage.objects import objects_of
from storage.publishing import unregistered_versions
from storage.recognition import remake_fingerprints
from tasks.accounts.ledger import check_releases
from tasks.datasets import schedules
from tasks.datasets.registration import sweep_unregistered
from tasks.runtime.settings import (
    current_root,
    has_own_database,
    ledger_url,
    marks_folder,
    misread_settings,
    recorded_server,
    require_webhook,
)
from tasks.runtime.stores import open_catalog, open_ledger_database, open_releases
from tasks.tracking.model_files import without_file
from tasks.tracking.model_versions import misshown_champions, unrecorded
from tasks.tracking.runs import foreign_experiments


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
    if kept := remove_kept(layout, -math.inf):
        done.append(f"removed {kept} files of mapped rows that are unreadable or have no stored version")
    if objects := remove_orphans(layout):
        done.append(f"removed {objects} objects of rows without a stored version")
    if damaged := open_releases().remove_damaged():
        done.append(
            f"removed {len(damaged)} damaged releases: a run that needs one makes it again, with the same noise and no "
            "new charge while the secrets are the same"
        )
    with reading(open_ledger_database()) as entries:
        missing = missing_material(layout, entries, shared=ledger_url() is not None)
    for version in filter(partial(remake_fingerprints, layout), missing):
        done.append(f"rebuilt the fingerprints of version {version} from its rows")
        if "schema" in (declared_table(layout, dataset_ref(layout, version)) or {}):
            # Those of a table's rows come back up to rounding; of all others, to the bit that is on record.
            with writing(open_ledger_database(guarded=False)) as entries:
                adopt_material(layout, entries, version)
    return done


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
    named = set(_named_objects(layout)) if old else set()
    abandoned = [name for name in old if name not in named]
    for name in abandoned:
        store.remove(name)
    return len(abandoned)


def _named_objects(layout: Layout) -> list[str]:
    names = kept_objects(layout)
    for path in layout.datasets.glob(f"*/{datasets.MANIFEST}"):
        body = documents.load_manifest(path, version=datasets.FORMAT_VERSION)
        names += [name for part in body["parts"].values() for name, _ in part["files"]]
    for path in layout.parties.glob(f"*/shards/*/*/{shards.MANIFEST}"):
        names += [name for name, _ in documents.load_manifest(path, version=shards.FORMAT_VERSION)["rows"]["files"]]
    return names


_FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a check.

    Parameters
    ----------
    check : str
    problem : str or None
        None where all is well.
    way_out : str
        What to do about it.
    """

    check: str
    problem: str | None = None
    way_out: str = ""


_Problems = Iterator[tuple[str, str]]
"""What is wrong, and the way out."""


def check_root() -> list[Finding]:
    """Run every check of the current root; each gives one finding a problem, or one that all is well.

    Returns
    -------
    list of Finding
        A check that cannot be made is a problem, never an exception.
    """
    layout = Layout(current_root())
    findings = []
    for name, (check, of_ledger) in _CHECKS.items():
        try:
            looked = not of_ledger or layout.ledger.exists() or ledger_url() is not None
            problems = list(check(layout)) if looked else []
        except (StorageError, InputError, RefusedError, OSError) as error:
            problems = [(" ".join(str(error).split()), "see the message")]
        findings += [Finding(name, *problem) for problem in problems] or [Finding(name)]
    return findings


def _permissions(layout: Layout) -> _Problems:
    secrets = layout.parties.glob("*/secret.key")
    for path in (layout.root, layout.ledger, layout.private, layout.root_secret, *secrets):
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
        if mode & 0o077:
            yield f"{path} has mode {mode:04o}: users other than its owner can access it", f"chmod go-rwx {path}"


def _keys(layout: Layout) -> _Problems:
    with reading(open_ledger_database()) as entries:
        for messages in missing_material(layout, entries, shared=ledger_url() is not None).values():
            problem, _, way_out = messages.partition(": ")
            yield problem, way_out


def _chain(layout: Layout) -> _Problems:
    del layout
    for problem in check_chain(replace(open_ledger_database(), marks=())):
        yield problem, "restore the newest back-up of the ledger, then: unitball ledger restore"


def _mark(layout: Layout) -> _Problems:
    database = open_ledger_database()
    with reading(database) as entries:
        began = entries.last().sequence > 0
        for path in database.marks:
            mark = read_mark(path, database.chain)
            problem = behind_mark(entries, mark)
            if problem is not None:
                yield f"{path}: {problem}", "restore the newest back-up of the ledger, or: unitball ledger restore"
            elif path.parent.exists() and not os.access(path.parent, os.W_OK):
                yield f"{path} cannot be written: an older ledger goes unnoticed", f"make {path.parent} writable"
            elif mark is None and began and path.parent == marks_folder():
                yield f"there is no high-water mark {path}", "it is written with the next charge; keep its folder"
    # A folder of marks that was copied into another: the newest mark is then not the one that is read.
    for path in sorted(marks_folder().glob(f"*/{database.chain.ledger_id}.json")):
        yield (
            f"{path} lies in a subfolder, where no high-water mark is read",
            f"if it is the newest, move it to {marks_folder()}; otherwise remove it",
        )


def _releases(layout: Layout) -> _Problems:
    del layout
    for problem in check_releases():
        yield problem, "restore it from a back-up, or ask for a new one with --replicate"


def _data_sets(layout: Layout) -> _Problems:
    for folder in sorted(layout.datasets.glob("[!.]*")):
        if lost := lost_history(layout, folder.name):
            yield (
                f"version {folder.name} has lost {' and '.join(lost)}, which the next version needs to "
                "recognise people and rows",
                "restore it from a back-up: ingesting its file again does not rebuild it",
            )
        elif not is_complete(layout, folder.name):
            yield f"version {folder.name} is damaged", "restore it from a back-up, or ingest its file again"


def _models(layout: Layout) -> _Problems:
    # On a server that was named, versions of other roots are no business of this one.
    recorded = layout.mlflow_database.exists() or recorded_server(layout.root) is not None
    if not (recorded and has_own_database(layout.root)):
        return
    for model in unrecorded(layout.root):
        name = f"{model.name}/{model.version}"
        yield (
            f"{name} in MLflow is not on record here and is not loaded",
            f"unitball model record {name} --digest …, if you know the digest; otherwise delete it in MLflow",
        )
    for name, place in foreign_experiments(layout.root):
        yield (
            f"experiment {name} in MLflow keeps its files at {place}, outside {layout.artifacts}",
            "rename that experiment in MLflow: one of this name is created again, and logging again is free",
        )
    for model, file in without_file(layout.root):
        yield (
            f"{model.name}/{model.version} has no file at {file}",
            f"restore {layout.artifacts} from a back-up, or delete that version in MLflow",
        )
    for name, difference in misshown_champions(layout.root):
        yield difference, f"unitball model show {name}@champion, which corrects the alias"


def _schedules(layout: Layout) -> _Problems:
    del layout
    for broken in schedules.problems():
        called = f"unitball schedule {broken.dataset} --name {broken.name}"
        yield (
            f"the schedule {schedules.full_name(broken.dataset, broken.name)} cannot be served: {broken.problem}",
            f"{called} … to create it again, or {called} --remove",
        )


def _settings(layout: Layout) -> _Problems:
    for problem in misread_settings():
        message, _, way_out = problem.partition("; ")
        yield message, way_out or "see the message"
    address = layout.private / "webhook.url"
    if address.exists():
        try:
            require_webhook(address.read_bytes().decode(errors="replace"), str(address))
        except InputError as error:
            yield f"{error}: no alert is sent", "UNITBALL_WEBHOOK=https://… unitball serve"


def _orphans(layout: Layout) -> _Problems:
    unfinished = sum(1 for path in layout.root.rglob(f"{PREFIX}*") if not path.parent.name.startswith(PREFIX))
    if unfinished:
        yield f"{unfinished} unfinished files or folders, possibly of running processes", "unitball doctor --clean"
    if unregistered := unregistered_versions(layout):
        yield f"{len(unregistered)} copies of rows that were never registered", "unitball doctor --clean"


def _versions(layout: Layout) -> _Problems:
    # Opening them refuses what a newer Unitball wrote.
    if not layout.marker.exists():
        yield (
            f"{layout.root} is not a root of Unitball",
            "give one with --root, or create one with any command that writes",
        )
    else:
        layout.prepare()
        if layout.ledger.exists() or ledger_url() is not None:
            open_ledger_database()


def _free_disk(layout: Layout) -> _Problems:
    free = shutil.disk_usage(layout.root).free
    if free < _FREE_BYTES:
        yield f"only {free / 1e6:.0f} MB are free at {layout.root}", "free some space: charges need it"


# Whether it looks at the ledger, so that there is nothing to look at without one.
_CHECKS: Mapping[str, tuple[Callable[[Layout], _Problems], bool]] = {
    "permissions": (_permissions, False),
    "keys": (_keys, True),
    "chain": (_chain, True),
    "mark": (_mark, True),
    "releases": (_releases, True),
    "data sets": (_data_sets, False),
    "models": (_models, False),
    "schedules": (_schedules, True),
    "settings": (_settings, False),
    "orphans": (_orphans, False),
    "versions": (_versions, False),
    "free disk": (_free_disk, False),
}
