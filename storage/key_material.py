"""The fingerprints of private rows, guarded: a root that has lost or changed them writes nothing to the ledger.

They tell private rows that come back under another name. A root that has lost them would take such rows in as new and
charge them to a new account, so their digests are recorded with each registration and compared before anything is
written to the ledger. (The root's secret keys the ledger's entries themselves.)
"""

from collections.abc import Iterator
from pathlib import Path

from storage.documents import file_digest, verify_file
from storage.errors import DamagedError, StorageError
from storage.layout import FINGERPRINTS, Layout
from storage.ledger.entries import Entries, Kind
from storage.refs import Visibility


def _recorded(layout: Layout, entries: Entries, *, shared: bool) -> Iterator[tuple[str, Path, str]]:
    """Yield each private version of this root with its file of fingerprints and the digest on record."""
    adopted = {entry.subject: entry.content["digest"] for entry in entries.find(Kind.MATERIAL)}
    versions = {
        entry.content["version"]: entry.content["fingerprints"]
        for entry in entries.find(Kind.DATASET)
        if entry.content["visibility"] == str(Visibility.PRIVATE)
    }
    for version, digest in versions.items():
        # A shared ledger also holds the registrations of other machines, whose rows are not here.
        if not shared or layout.dataset(version).exists():
            yield version, layout.dataset(version) / FINGERPRINTS, adopted.get(version) or digest


def missing_material(layout: Layout, entries: Entries, *, shared: bool = False) -> dict[str, str]:
    """Return the private versions whose key material is missing or changed, each with one sentence."""
    problems = {}
    for version, path, digest in _recorded(layout, entries, shared=shared):
        try:
            verify_file(path, digest)
        except DamagedError as error:
            reason = str(error).partition(";")[0]
            problems[version] = (
                f"the fingerprints of private rows are lost ({reason}): put {path.name} of version {version} back from "
                "its back-up, or make it again from the stored rows: unitball doctor --clean"
            )
    return problems


def adopt_material(layout: Layout, entries: Entries, version: str) -> None:
    """Record the fingerprints of a version as they are now, in the place of those on record."""
    digest = file_digest(layout.dataset(version) / FINGERPRINTS)
    entries.append(Kind.MATERIAL, account="", subject=version, content={"digest": digest})


def guard_material(layout: Layout, entries: Entries, *, shared: bool = False) -> None:
    """Stop a writing transaction where key material is missing or changed.

    Parameters
    ----------
    layout : Layout
    entries : Entries
        Of the transaction.
    shared : bool
        Whether other machines register in this ledger too.
    """
    if problems := missing_material(layout, entries, shared=shared):
        raise StorageError(f"{next(iter(problems.values()))}. Nothing was charged")
