"""Writes happen whole or not at all."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path

import pytest

from storage import atomic
from storage.atomic import PREFIX, clean, staging, write_bytes
from storage.errors import StorageError
from tests.support.data import temporaries
from tests.support.forks import die, in_child, killed
from tests.support.stating import stating

NOBODY = 65534


def test_bytes_are_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_bytes(path, b"first")
    write_bytes(path, b"second", mode=0o600)
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert not temporaries(tmp_path)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"first")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"No space.*--root", check=stating(way_out="--root")) as caught:
        write_bytes(path, b"second")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == b"first"
    assert not temporaries(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"file.*--root", check=stating(way_out="--root")):
        write_bytes(tmp_path / "file" / "below", b"x")


@pytest.mark.skipif(os.getuid() != 0, reason="needs to change the user")
def test_a_folder_of_another_user_is_one_clear_line() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with pytest.raises(StorageError, match="Permission denied"):
            in_child(lambda: write_bytes(Path(folder) / "mine", b"x"), user=NOBODY)


def test_a_kill_before_the_rename_leaves_the_old_and_the_next_writer_sweeps(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"first")

    def body() -> None:
        Path.replace = die  # type: ignore[method-assign]  # in a child
        write_bytes(path, b"second")

    killed(body)
    assert path.read_bytes() == b"first"
    assert len(temporaries(tmp_path)) == 1
    in_child(lambda: write_bytes(tmp_path / "other", b"x"))
    assert not temporaries(tmp_path)


def test_only_abandoned_names_are_swept(tmp_path: Path) -> None:
    host = socket.gethostname()
    living = tmp_path / f"{PREFIX}{host}-1-aaaaaaaaaaaa"
    elsewhere = tmp_path / f"{PREFIX}otherhost-99999999-bbbbbbbbbbbb"
    old = tmp_path / f"{PREFIX}otherhost-1-cccccccccccc"
    gone = tmp_path / f"{PREFIX}{host}-99999999-dddddddddddd"
    mine = tmp_path / f"{PREFIX}{host}-{os.getpid()}-eeeeeeeeeeee"
    for path in (living, elsewhere, old, gone, mine):
        path.mkdir()
        (path / "part").write_bytes(b"x")
    long_ago = time.time() - 3 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    atomic._swept.add(tmp_path)
    with staging(tmp_path) as stage:
        assert clean(tmp_path) == 3
        assert stage.path.is_dir()
    assert sorted(temporaries(tmp_path)) == sorted([living, elsewhere])


def test_a_staged_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "target"

    def broken() -> None:
        with staging(tmp_path) as stage:
            (stage.path / "part").write_bytes(b"x")
            raise ValueError("broke off")

    with pytest.raises(ValueError, match="broke off"):
        broken()
    assert list(tmp_path.iterdir()) == []
    with staging(tmp_path) as stage:
        (stage.path / "part").write_bytes(b"x")
        assert stage.publish(target)
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "part"]


def test_the_first_publisher_wins(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with staging(tmp_path) as first, staging(tmp_path) as second:
        (first.path / "part").write_bytes(b"first")
        (second.path / "part").write_bytes(b"second")
        assert first.publish(target)
        assert not second.publish(target)
    assert (target / "part").read_bytes() == b"first"
    assert not temporaries(tmp_path)
