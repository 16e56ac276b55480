"""The ledger, the catalogue and the releases of the current root: opened, and moved to a PostgreSQL server."""

from functools import partial
from pathlib import Path

from storage.atomic import write_once
from storage.catalog import Catalog
from storage.errors import InputError
from storage.key_material import guard_material
from storage.layout import Layout
from storage.ledger.database import Database, Memory, open_database
from storage.ledger.moving import has_ledger, is_retired, make_databases, move_ledger
from storage.model_records import ModelRecords
from storage.objects import objects_of
from storage.releases import ObjectReleases, ReleaseStore
from tasks.runtime.settings import (
    PARTS,
    DatabaseServer,
    current_layout,
    ledger_url,
    marks_folder,
    record_server,
    recorded_server,
)

# What this process remembers of ledgers, by their place, for as long as it runs.
_MEMORIES: dict[Path | str, Memory] = {}


def forget_ledger(root: Path) -> None:
    """Forget what is remembered of the ledger of a root that is removed."""
    _MEMORIES.pop(Layout(root).ledger, None)


def open_ledger_database(root: Path | None = None, *, guarded: bool = True) -> Database:
    """Open the database behind ledger and catalogue: the root's own file, or a shared one by URL.

    Parameters
    ----------
    root : Path, optional
        Another one than the current root.
    guarded : bool
        False also writes where key material is missing: for commands that restore it.
    """
    layout = current_layout() if root is None else Layout(root).prepare()
    shared = ledger_url()
    location = shared or layout.ledger
    return open_database(
        location,
        key=layout.shared_ledger_key if shared else layout.root_secret,
        head=layout.root / "ledger.head",
        marks=marks_folder(),
        memory=_MEMORIES.setdefault(location, Memory()),
        **({"guard": partial(guard_material, layout, shared=shared is not None)} if guarded else {}),
    )


def open_catalog(root: Path | None = None) -> Catalog:
    """Open the catalogue of the current root, or of another one."""
    return Catalog(open_ledger_database(root))


def open_model_records(root: Path | None = None) -> ModelRecords:
    """Open the record of models of the current root, or of another one."""
    return ModelRecords(open_ledger_database(root))


def open_releases() -> ReleaseStore:
    """Open the releases: folders under the root, or objects of which the ledger says which is the release."""
    layout = current_layout()
    store = objects_of(layout)
    return ReleaseStore(layout) if store is None else ObjectReleases(store, open_ledger_database())


def use_database_server(root: Path, server: DatabaseServer) -> None:
    """Keep a root's databases on a server from now on; every later command on the root finds them there.

    The ledger is moved first, entry by entry, under the same key (``private/ledger.key``); its file is renamed and
    never charged again. MLflow's runs and models follow when the databases are prepared. Prefect's history of flow
    runs stays in its file; deployments are created again at every start. A kill at any instant is repaired by asking
    again.

    Parameters
    ----------
    root : Path
    server : DatabaseServer
        Where the root's databases are on another server already, it must hold this root's ledger, restored there.

    Raises
    ------
    storage.errors.StorageError
        If the server does not answer or the user may not create databases (the message holds the statements for an
        administrator), or the ledger is damaged. The old place stays in force.
    storage.errors.InputError
        If the server holds another ledger, or none where this root's should have been restored.
    """
    layout, before, ledger = Layout(root).prepare(), recorded_server(root), server.database("ledger")
    names = [server.name(part) for part in PARTS]
    make_databases(server.of_name("postgres"), names, shown=server.shown, owner=server.user)
    if layout.ledger.exists():
        if not is_retired(layout.ledger):
            write_once(layout.shared_ledger_key, layout.root_secret.read_bytes())
            head = layout.root / "ledger.head"
            source = open_database(layout.ledger, key=layout.root_secret, head=head, marks=marks_folder())
            move_ledger(source, ledger, moved=lambda: record_server(root, server))
        layout.ledger.replace(layout.ledger.with_name(f"{layout.ledger.name}.moved"))
    elif before is not None and before != server and not has_ledger(ledger):
        raise InputError(
            f"the databases of {root} are on {before.shown}, and {server.shown} holds no ledger: restore a dump of "
            "them there first"
        )
    else:
        record_server(root, server)
