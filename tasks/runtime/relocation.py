"""Keep a root's databases on a PostgreSQL server from now on, moving what files under the root held."""

from __future__ import annotations

from pathlib import Path

from storage.atomic import write_once
from storage.errors import InputError
from storage.layout import Layout
from storage.ledger.database import open_database
from storage.ledger.moving import is_retired, move_ledger
from storage.postgresql import has_ledger, make_databases
from tasks.runtime.databases import PARTS, DatabaseServer, record_server, recorded_server
from tasks.runtime.settings import marks_folder


def use_database_server(root: Path, server: DatabaseServer) -> None:
    """Keep a root's databases on a server from now on; every later command on the root finds them there.

    The ledger is moved first, entry by entry, under the same key (``private/ledger.key``); its file is renamed and
    never charged again. MLflow's runs and models follow when the databases are prepared. Prefect's history of flow
    runs stays in its file; deployments are made anew at every start. A kill at any instant is mended by asking again.

    Parameters
    ----------
    root : Path
    server : DatabaseServer
        Where the root's databases are on another server already, it must hold this root's ledger, restored there.

    Raises
    ------
    storage.errors.StorageError
        If the server does not answer or the user may not make databases (with the statements for whoever may), or the
        ledger is not in order. The old place stays in force.
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
