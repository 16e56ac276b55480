"""One root holds everything, says so, and shares nothing with another."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from storage.errors import FormatVersionError, InputError, StorageError
from storage.layout import FORMAT_VERSION, Layout
from tests.support.forks import in_child
from tests.support.stating import stating


def test_all_paths_lie_under_the_root(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "root")
    paths = [
        layout.marker,
        layout.private,
        layout.root_secret,
        layout.datasets,
        layout.parties,
        layout.releases,
        layout.ledger,
        layout.results,
        layout.mlflow_database,
        layout.artifacts,
        layout.prefect,
        layout.dataset("v"),
        layout.party("0"),
        layout.party_secret("0"),
        layout.shard("0", "even", "v"),
        layout.release("k"),
    ]
    assert len(set(paths)) == len(paths)
    assert all(path.is_relative_to(layout.root) for path in paths)
    private = [layout.dataset("v"), layout.party_secret("0"), layout.shard("0", "even", "v"), layout.root_secret]
    assert all(path.is_relative_to(layout.private) for path in private)


def test_a_root_does_not_move_with_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    layout = Layout(Path("root"))
    monkeypatch.chdir("/")
    assert layout.root == tmp_path / "root"


def test_prepare_makes_a_root_and_may_be_repeated(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "a" / "root")
    assert layout.prepare() is layout
    layout.prepare()
    assert json.loads(layout.marker.read_text()) == {"format_version": 1, "objects": None}
    for folder in (layout.releases, layout.results, layout.artifacts, layout.prefect):
        assert folder.is_dir()
    for folder in (layout.private, layout.datasets, layout.parties):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_prepare_closes_a_private_folder_that_stands_open(tmp_path: Path) -> None:
    layout = Layout(tmp_path).prepare()
    layout.private.chmod(0o755)
    layout.prepare()
    assert layout.private.stat().st_mode & 0o777 == 0o700


def test_an_unwritable_root_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, check=stating(way_out="--root")) as caught:
            Layout(root).prepare()
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.getuid() != 0, reason="needs to change the user")
def test_a_root_of_another_user_is_one_clear_line() -> None:
    with pytest.raises(StorageError, match="Permission"):
        in_child(lambda: Layout(Path("/root-of-nobody")).prepare(), user=65534)


def test_a_root_of_another_format_is_refused_and_a_damaged_marker_named(tmp_path: Path) -> None:
    layout = Layout(tmp_path).prepare()
    for other in (FORMAT_VERSION - 1, FORMAT_VERSION + 1):
        layout.marker.write_text(json.dumps({"format_version": other}))
        with pytest.raises(FormatVersionError, match="--root", check=stating(value=other, bound=FORMAT_VERSION)):
            layout.prepare()
    for text in ("", "{", "[]", "{}", '{"format_version": 1}'):
        layout.marker.write_text(text)
        with pytest.raises(StorageError, match=r"unitball.json"):
            layout.prepare()


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/x", ".hidden", "a b", "a\0", "x" * 101, "ä"])
def test_names_cannot_leave_their_folder(tmp_path: Path, name: str) -> None:
    layout = Layout(tmp_path)
    for ask in (layout.dataset, layout.party, layout.release, layout.party_secret):
        with pytest.raises(InputError, check=stating(value=name)):
            ask(name)
    with pytest.raises(InputError):
        layout.shard("0", name, "v")
    with pytest.raises(InputError):
        layout.shard("0", "even", name)
