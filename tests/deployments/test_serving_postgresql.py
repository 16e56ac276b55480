"""All on one PostgreSQL: moved there, killed in the middle of a run, backed up, destroyed, restored, charged on."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.layout import Layout
from tests.security.test_services import answer
from tests.support.postgresql import PostgreSQL
from tests.support.private_rows import PrivateRows, write_rows
from tests.support.serving import UNITBALL, Served, started, wait_for

pytestmark = [pytest.mark.nightly, pytest.mark.postgresql]

DECLARED = ("--dimension", "5", "--classes=-1,1", "--account", "patients", "--epsilon-cap", "8", "--delta-cap", "1e-5")
RUN: dict[str, Any] = {"dataset": "clinic", "algorithm": "noisy-gd", "delta": 1e-6}
ENDS = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def charges(served: Served) -> list[str]:
    """Return the charges of one party, after checking that none is counted twice."""
    parties = json.loads(served.unitball("budget", "clinic", "--json"))["parties"]
    for party in parties:
        keys = [charge["key"] for charge in party["charges"]]
        assert len(set(keys)) == len(keys), "a release was charged twice"
    return [charge["key"] for charge in parties[0]["charges"]]


def trained(served: Served, epsilon: float) -> None:
    run = served.finished(served.start_run(**RUN, epsilon=epsilon))
    assert run["state_type"] == "COMPLETED", run["state"]["message"]


def test_a_year_with_postgresql(prepare_served: Callable[[Path], None], tmp_path: Path) -> None:
    root = tmp_path / "root"
    prepare_served(root)
    with PostgreSQL.running() as postgresql:
        server = ("--database", postgresql.url("clinic"))
        rows = write_rows(tmp_path / "clinic.libsvm", 200, seed=4, dimension=5)
        unserved = _before(root, rows)
        paid = charges(unserved)

        with started(tmp_path, None, *server) as served:
            # A root that was in files, moved: the ledger's charges, MLflow's runs and models.
            assert charges(served) == paid
            assert int(postgresql.sql("clinic_mlflow", "SELECT count(*) FROM runs")) >= 1
            assert "clinic.noisy-gd" in postgresql.sql("clinic_mlflow", "SELECT name FROM registered_models")
            assert not Layout(root).mlflow_database.exists()
            admin = {"Authorization": served.authorization, "Content-Type": "application/json"}
            path = "/api/2.0/mlflow/experiments/search?max_results=1"
            assert answer(served.mlflow, "GET", path, admin)[0] == 200
            assert answer(served.mlflow, "GET", path, {})[0] == 401
            # Each database has its own tables, although names coincide.
            for part in ("prefect", "mlflow", "mlflow_users"):
                assert (
                    postgresql.sql(f"clinic_{part}", "SELECT to_regclass('alembic_version') IS NOT NULL").strip() == "t"
                    or part == "mlflow_users"
                )

            trained(served, 0.5)
            assert charges(served) == paid, "what was paid for in the file is paid for on the server"
            trained(served, 0.6)

            killed = served.start_run(**RUN, epsilon=0.7)
            wait_for("the run", lambda: served.run(killed)["state_type"] == "RUNNING", every=0.1)
            time.sleep(1)
            postgresql.stop("immediate")
            time.sleep(5)
            postgresql.start()
            wait_for("the run's end", lambda: _state(served, killed) in ENDS, 400)
            trained(served, 0.7)

            backup = postgresql.place / "back-up"
            postgresql.run("pg_basebackup", "-h", str(postgresql.place), "-U", "unitball", "-D", str(backup))
            # Neither rows nor secrets are in any of the four databases.
            dump = postgresql.run("pg_dumpall", "-h", str(postgresql.place), "-U", "unitball").encode()
            layout = Layout(root)
            secrets = [layout.root_secret, layout.shared_ledger_key, *layout.parties.glob("*/secret.key")]
            hidden = [form for path in secrets for form in (path.read_bytes(), path.read_bytes().hex().encode())]
            hidden += [served.secret.password.encode(), *rows.needles()]
            assert b"clinic" in dump
            assert not [needle for needle in hidden if needle in dump]
            known = charges(served)
            trained(served, 0.8)
            assert len(charges(served)) > len(known)

        postgresql.stop()
        shutil.rmtree(postgresql.data)
        backup.rename(postgresql.data)
        postgresql.start()
        refused = unserved.command(*UNITBALL, "train", *_options(0.9), "--root", str(root))
        assert refused.returncode != 0
        assert "ledger restore" in refused.stderr
        assert "Traceback" not in refused.stderr
        unserved.unitball("ledger", "restore", "--reason", "the disk was lost; back-up of Monday")

        with started(tmp_path) as served:
            trained(served, 0.9)
            assert set(known) < set(charges(served))
            # The release that the back-up does not know is still stored, and is said to be.
            verified = served.command(*UNITBALL, "budget", "clinic", "--verify", "--root", str(root))
            assert verified.returncode != 0
            assert "an older back-up of the ledger was restored" in verified.stderr


def _state(served: Served, run: str) -> str | None:
    try:
        found: str = served.run(run)["state_type"]
    except (OSError, StopIteration):
        return None
    return found


def _options(epsilon: float) -> list[str]:
    return ["--dataset", "clinic", "--algorithm", "noisy-gd", "--epsilon", str(epsilon), "--delta", "1e-6"]


def _before(root: Path, rows: PrivateRows) -> Served:
    """Ingest and train while all is in files."""
    unserved = Served(root, "", "", None, root.with_name("none"))  # type: ignore[arg-type]  # no process
    unserved.unitball("ingest", "clinic", "--format", "libsvm", "--path", str(rows.path), *DECLARED)
    unserved.unitball("train", *_options(0.5))
    return unserved
