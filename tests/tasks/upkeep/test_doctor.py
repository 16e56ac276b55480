"""A root's checks, each made to fail once; what killed processes leave is swept and nothing else is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.atomic import PREFIX
from storage.errors import InputError, RefusedError, StorageError
from storage.ledger.entries import Entries
from storage.releases import ReleaseStore
from tasks.datasets import registration
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog
from tasks.upkeep import checks
from tests.support.command_line import CommandLine
from tests.support.data import flip
from tests.support.forks import die, in_child, killed
from tests.support.private_rows import CLASSES, DIMENSION, PrivateRows, write_rows
from tests.support.stating import stating
from tests.tasks.test_people import bring_in, visits


@pytest.fixture
def rows(tmp_path: Path) -> PrivateRows:
    return write_rows(tmp_path / "rows.txt", 60)


def request(rows: PrivateRows, **more: Any) -> IngestRequest:
    given: dict[str, Any] = {"name": "clinic", "epsilon_cap": 1.0, "delta_cap": 1e-4, **more}
    return IngestRequest(format="libsvm", path=rows.path, dimension=DIMENSION, classes=CLASSES, **given)


def problems(commands: CommandLine) -> dict[str, str]:
    found = commands("doctor", "--json")
    listed = {one["check"]: one for one in found.json["checks"] if one["problem"] is not None}
    assert found.code == (1 if listed else 0)
    assert found.json["ok"] is not bool(listed)
    assert all(one["way_out"] for one in listed.values())
    return {name: str(one["problem"]) for name, one in listed.items()}


def test_a_sound_root_is_well(root: Path, rows: PrivateRows, commands: CommandLine) -> None:
    assert commands("doctor").code == 0
    ingest(request(rows))
    assert problems(commands) == {}
    assert "OK" in commands("doctor").out


def _open_to_others(layout: Any, version: str) -> None:
    layout.root_secret.chmod(0o644)


def _unknown_release(layout: Any, version: str) -> None:
    ReleaseStore(layout).write("k", {"kind": "model"}, {"x": np.ones(3)})


def _damaged_rows(layout: Any, version: str) -> None:
    flip(layout.dataset(version) / "train" / "part-00000.parquet")


def _left_over(layout: Any, version: str) -> None:
    (layout.datasets / f"{PREFIX}elsewhere-1-abc").mkdir()


def _no_mark(layout: Any, version: str) -> None:
    (mark,) = (layout.root.parent / "marks").iterdir()
    mark.unlink()


def _mark_in_a_subfolder(layout: Any, version: str) -> None:
    (mark,) = (layout.root.parent / "marks").iterdir()
    (mark.parent / "ledgers").mkdir()
    (mark.parent / "ledgers" / mark.name).write_bytes(mark.read_bytes())


@pytest.mark.parametrize(
    ("check", "damage"),
    [
        ("permissions", _open_to_others),
        ("releases", _unknown_release),
        ("data sets", _damaged_rows),
        ("orphans", _left_over),
        ("mark", _no_mark),
        ("mark", _mark_in_a_subfolder),
    ],
)
def test_each_check_fails_of_what_it_is_for(
    check: str, damage: Callable[[Any, str], None], root: Path, rows: PrivateRows, commands: CommandLine
) -> None:
    version = ingest(request(rows)).version
    damage(current_layout(), version)
    assert check in problems(commands)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UNITBALL_WEBHOOK", "https://["),
        ("UNITBALL_MEMORY", "much"),
        ("UNITBALL_SQL_SECONDS", "long"),
        ("UNITBALL_PREFECT_PORT", "abc"),
        ("UNITBALL_MLFLOW_PORT", "99999"),
        ("UNITBALL_LEDGER_MARK", "marks"),
        ("UNITBALL_LEDGER", "ledger.sqlite"),
        ("PREFECT_API_URL", "nonsense"),
    ],
)
def test_a_setting_that_cannot_be_is_named(
    name: str, value: str, root: Path, rows: PrivateRows, commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(request(rows))
    assert problems(commands) == {}
    monkeypatch.setenv(name, value)
    assert name in problems(commands)["settings"]


@pytest.mark.parametrize("name", ["webhook.url", "database.url"])
def test_an_address_that_is_kept_and_is_none_is_named(name: str, root: Path, commands: CommandLine) -> None:
    ingest(IngestRequest(name="wine", visibility="public"))
    (current_layout().private / name).write_bytes(b"\xff nonsense")
    assert name in problems(commands)["settings"]


def test_neither_ledger_nor_marks_depend_on_the_folder_one_is_in(
    root: Path, rows: PrivateRows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From another folder the same setting was another ledger, with its whole budget."""
    monkeypatch.chdir(tmp_path)
    for name in ("UNITBALL_LEDGER", "UNITBALL_LEDGER_MARK"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "here")
            with pytest.raises(InputError, match=name):
                ingest(request(rows))
    assert not Path("here").exists()


def test_a_root_is_not_made_for_an_object_store_that_is_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows are is fixed for good when a root is made."""
    for url in ("nonsense", "s4://bucket/x", "s3://bucket", "s3://[/x"):
        monkeypatch.setenv("UNITBALL_OBJECTS", url)
        with pytest.raises(InputError, match="s3://bucket/prefix"):
            current_layout()
    monkeypatch.delenv("UNITBALL_OBJECTS")
    assert current_layout().objects is None


def test_a_ledger_that_cannot_be_named_is_a_finding(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unnamed() -> None:
        raise InputError("two databases are named")

    monkeypatch.setattr(checks, "ledger_url", unnamed)
    found = {one.check for one in checks.check_root() if one.problem == "two databases are named"}
    assert found == {"keys", "chain", "mark", "releases", "schedules"}


def test_a_mark_that_cannot_be_written_is_told(
    root: Path, rows: PrivateRows, commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A charge goes on without, and says so in a log alone."""
    ingest(request(rows))
    place = root.parent / "marks"
    assert next(place.iterdir()).stat().st_size > 0
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != place)
    assert set(problems(commands)) == {"mark"}


def test_a_full_disk_is_told(
    root: Path, rows: PrivateRows, commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(request(rows))
    monkeypatch.setattr(checks, "_FREE_BYTES", 1 << 62)
    assert set(problems(commands)) == {"free disk"}


def _die_at(owner: Any, name: str) -> Callable[[], None]:
    return lambda: setattr(owner, name, die)


@pytest.mark.parametrize(
    "kill",
    [
        _die_at(registration, "_overlapping"),
        _die_at(registration, "_register"),
        _die_at(Entries, "append"),
        _die_at(registration, "confirm_registered"),
    ],
    ids=["before publication", "before registration", "while registering", "after registration"],
)
def test_a_killed_ingestion_leaves_no_copy_of_private_rows(
    kill: Callable[[], None], root: Path, rows: PrivateRows, tmp_path: Path
) -> None:
    ingest(request(write_rows(tmp_path / "others.txt", 30, seed=1), name="others"))
    kept = {path.name for path in current_layout().datasets.iterdir()}

    def body() -> None:
        kill()
        ingest(request(rows))

    killed(body)
    layout = current_layout()
    registered = {one.version for one in open_catalog().registrations()}
    assert {path.name for path in layout.datasets.iterdir()} - kept

    def next_start() -> set[str]:
        # Another ingestion, of something else: the next start of a process.
        ingest(IngestRequest(name="wine", visibility="public"))
        return {path.name for path in layout.datasets.iterdir()}

    wine = in_child(next_start) - kept - registered
    assert len(wine) == 1, "only the new set is there beside what is registered"
    ingest(request(rows))
    assert not list(layout.datasets.glob("*/unregistered"))


@pytest.mark.parametrize("lost", ["people.npz", "seen.npz"])
def test_what_is_known_of_people_is_missed_before_the_next_ingestion(
    lost: str, root: Path, tmp_path: Path, commands: CommandLine
) -> None:
    """Ingesting the file again makes neither again, and doctor does not say so."""
    ref = bring_in(tmp_path / "input", visits([20, 2, 1]))
    (path := current_layout().dataset(ref.version) / lost).unlink()
    assert f"has lost {lost}" in problems(commands)["data sets"]
    ways_out = [one["way_out"] for one in commands("doctor", "--json").json["checks"]]
    assert any("ingesting its file again does not rebuild it" in one for one in ways_out)
    with pytest.raises(StorageError, check=stating(value=lost, bound="present")):
        bring_in(tmp_path / "input", visits([20, 2, 1, 1]))
    assert not path.exists()


@pytest.mark.parametrize("lost", ["patterns.npy", "columns.bin"])
def test_what_rows_are_recognised_by_is_made_again_by_the_next_ingestion(
    lost: str, root: Path, tmp_path: Path, commands: CommandLine
) -> None:
    ref = bring_in(tmp_path / "input", visits([3, 2, 1] * 9))
    path = current_layout().dataset(ref.version) / lost
    before = path.read_bytes()
    path.unlink()
    # Recognised by what was made again: the same rows under another account.
    with pytest.raises(RefusedError, match="account 'visits'"):
        bring_in(tmp_path / "input", visits([3, 2, 1] * 9), name="copy", account="another")
    assert len(path.read_bytes()) == len(before)
    assert problems(commands) == {}


def test_doctor_removes_damaged_releases_alone(root: Path, commands: CommandLine) -> None:
    ingest(IngestRequest(name="wine", visibility="public"))
    for key in ("damaged", "sound"):
        ReleaseStore(current_layout()).write(key, {"kind": "model", "reads_rows": False}, {"x": np.ones(3)})
    flip(current_layout().release("damaged") / "arrays.npz")
    assert "damaged" in problems(commands)["releases"]
    cleaned = commands("doctor", "--clean", "--json").json
    assert any("removed 1 damaged releases" in done for done in cleaned["cleaned"])
    assert ReleaseStore(current_layout()).keys() == ("sound",)
    assert problems(commands) == {}


def test_doctor_cleans_too_and_leaves_what_is_registered(root: Path, rows: PrivateRows, commands: CommandLine) -> None:
    def body() -> None:
        registration._register = die
        ingest(request(rows))

    ingest(IngestRequest(name="wine", visibility="public"))
    killed(body)
    assert "orphans" in problems(commands)
    cleaned = commands("doctor", "--clean", "--json").json
    assert any("never registered" in done for done in cleaned["cleaned"])
    assert cleaned["ok"]
    assert len(list(current_layout().datasets.iterdir())) == 1
