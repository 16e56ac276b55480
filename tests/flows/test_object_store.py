"""A whole run on a root whose rows and releases lie in an object store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.layout import Layout
from storage.objects import objects_of
from tasks.runtime.services import credentials
from tests.support.called import runs_called
from tests.support.command_line import CommandLine
from tests.support.engines import Engine
from tests.support.leaks import found_in, needles_of
from tests.support.object_store import running_object_store, use_object_store
from tests.support.private_rows import ingestion, write_rows


def test_train_audit_the_books_and_look_for_rows(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with running_object_store(tmp_path / "log") as endpoint:
        use_object_store(monkeypatch, endpoint, "clinic")
        root = tmp_path / "root"
        monkeypatch.setenv("UNITBALL_ROOT", str(root))
        monkeypatch.setenv("UNITBALL_LEDGER_MARK", str(tmp_path / "marks"))
        engine.prepare(root)
        unitball = CommandLine(root, capfd)
        rows = write_rows(tmp_path / "rows.txt", 240)
        unitball.succeeds(*ingestion(rows))
        # What a root was made with it remembers.
        monkeypatch.delenv("UNITBALL_OBJECTS")
        run = ("--dataset", "clinic", "--algorithm", "noisy-gd", "--epsilon", "1", "--delta", "1e-5", "--parties", "2")
        first = unitball.trained(*run)
        # By no engine, whose cache may forget: the releases are found by their keys, and cost nothing.
        with runs_called():
            again = unitball.trained(*run)
        assert again["cached"]
        assert again["releases"] == first["releases"]
        assert unitball("budget", "clinic", "--verify").code == 0
        budget = unitball.succeeds("budget", "clinic")
        assert all(0 < party["epsilon_spent"] <= 1 for party in budget["parties"])
        assert unitball("doctor").code == 0

        layout = Layout(root)
        store = objects_of(layout)
        assert store is not None
        assert not list(layout.private.rglob("*.parquet"))
        assert not list(layout.releases.iterdir())
        kept = tmp_path / "kept"
        for name in store.names(""):
            (path := kept / name).parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.get(name) or b"")
        secrets = [layout.root_secret.read_bytes(), credentials(root).password.encode()]
        secrets += [path.read_bytes() for path in layout.parties.glob("*/secret.key")]
        needles = needles_of(rows.features)
        assert found_in([*kept.rglob("*.parquet")], needles), "the needles are of the rows"
        assert found_in([path for path in (kept / "releases").rglob("*") if path.is_file()], [*needles, *secrets]) == []
        assert found_in([path for path in kept.rglob("*") if path.is_file()], secrets) == []
        assert found_in([tmp_path / "log"], needles + secrets) == []


@pytest.mark.nightly
def test_a_table_whose_columns_are_counted(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    numbers = random.uniform(0, 1, (400, 2))
    lines = [f"{one:.4f},{two:.4f},{'yes' if abs(one - 0.5) < 0.25 else 'no'}" for one, two in numbers]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    (tmp_path / "schema.yaml").write_text(
        "columns:\n  - {name: a, type: numeric, range: [0, 1]}\n  - {name: b, type: numeric, range: [0, 1]}\n"
        "  - {name: 'y', type: label, classes: ['no', 'yes']}\n"
    )
    with running_object_store(tmp_path / "log") as endpoint:
        use_object_store(monkeypatch, endpoint, "clinic")
        root = tmp_path / "root"
        monkeypatch.setenv("UNITBALL_ROOT", str(root))
        monkeypatch.setenv("UNITBALL_LEDGER_MARK", str(tmp_path / "marks"))
        engine.prepare(root)
        unitball = CommandLine(root, capfd)
        rows = ("--path", tmp_path / "rows.csv", "--schema", tmp_path / "schema.yaml")
        unitball.succeeds("ingest", "clinic", "--format", "csv", *rows, "--epsilon-cap", 20, "--delta-cap", 1e-4)
        run = ("--dataset", "clinic", "--epsilon", 8, "--parties", 2)
        first = unitball.trained(*run)
        assert unitball.trained(*run)["releases"] == first["releases"]
        charges = [one["label"] for one in unitball.succeeds("budget", "clinic")["parties"][0]["charges"]]
        assert charges.count("columns of all parties") == 1
        assert unitball.succeeds("budget", "clinic")["epsilon_spent"] <= 8.0
        assert unitball("doctor").code == 0

        # Moved, the root knows its store by what it says itself.
        monkeypatch.delenv("UNITBALL_OBJECTS")
        moved = tmp_path / "elsewhere" / "räume"
        moved.parent.mkdir()
        root.rename(moved)
        monkeypatch.setenv("UNITBALL_ROOT", str(moved))
        unitball.root = moved
        assert unitball.trained(*run)["releases"] == first["releases"]
        assert unitball.succeeds("budget", "clinic")["epsilon_spent"] <= 8.0
        assert unitball.trained(*run[:2], "--epsilon", 4, *run[4:])["releases"] != first["releases"]
        assert unitball("doctor").code == 0
        assert not root.exists()
