"""Another user of the machine reads the root: nothing in it is theirs to enter, whatever the umask."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import InputError
from tasks.runtime import settings
from tasks.runtime.settings import current_layout
from tests.support.command_line import CommandLine, run_command


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(root: Path) -> list[str]:
    found = [root, *root.rglob("*")]
    assert len(found) > 20
    return [f"{path} {path.stat().st_mode:o}" for path in found if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def csv(folder: Path) -> Path:
    path = folder / "rows.libsvm"
    path.write_text(
        "".join(f"{'+1' if row % 2 else '-1'} 1:{row / 50:.2f} 2:{1 - row / 50:.2f}\n" for row in range(50))
    )
    return path


DECLARED = ("--dimension", "2", "--classes=-1,1", "--account", "patients", "--epsilon-cap", "1", "--delta-cap", "1e-5")


@pytest.mark.nightly
def test_a_run_under_an_open_umask_leaves_nothing_open(tmp_path: Path) -> None:
    """Ingestion, a whole run with its engine, tracker and artifacts, budget and secret."""
    root = tmp_path / "root"
    ingested = run_command(root, "ingest", "clinic", "--format", "libsvm", "--path", csv(tmp_path), *DECLARED)
    assert ingested.code == 0, ingested
    trained = run_command(
        root, "train", "--dataset", "clinic", "--algorithm", "noisy-gd", "--epsilon", "0.5", "--delta", "1e-5"
    )
    assert trained.code == 0, trained
    assert (root / "mlflow.db").exists()
    assert (root / "prefect" / "prefect.db").exists()
    assert (root / "private" / "services.secret").exists()
    assert not open_to_others(root)


def test_a_root_with_private_rows_that_others_can_enter_is_refused_with_what_mends_it(
    commands: CommandLine, tmp_path: Path
) -> None:
    ingested = commands("ingest", "clinic", "--format", "libsvm", "--path", csv(tmp_path), *DECLARED)
    assert ingested.code == 0, ingested
    commands.root.chmod(0o750)
    commands("budget", "clinic").refused(2, "mode 0750", f"chmod -R go= {commands.root}", "private rows")
    commands.root.chmod(0o700)
    assert commands("budget", "clinic").code == 0


def test_a_root_without_private_rows_is_warned_about_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    current_layout()
    root.chmod(0o755)
    settings._warned.clear()
    with caplog.at_level(logging.WARNING):
        current_layout()
        current_layout()
    assert [record.getMessage() for record in caplog.records] == [
        f"{root} has mode 0755: users other than its owner can access it; run: chmod -R go= {root}"
    ]


def test_an_empty_folder_becomes_its_owners_alone(root: Path) -> None:
    root.mkdir(mode=0o755)
    current_layout()
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_a_folder_with_other_things_keeps_its_mode(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    root.mkdir(mode=0o755)
    (root / "notes.txt").write_text("mine")
    settings._warned.clear()
    with caplog.at_level(logging.WARNING):
        current_layout()
    assert stat.S_IMODE(root.stat().st_mode) == 0o755
    assert "chmod -R go=" in caplog.text


def test_the_refusal_names_the_root(root: Path) -> None:
    layout = current_layout()
    (layout.datasets / "v").mkdir()
    (layout.datasets / "v" / "fingerprints.npy").touch()
    root.chmod(0o701)
    with pytest.raises(InputError, match="mode 0701"):
        current_layout()
