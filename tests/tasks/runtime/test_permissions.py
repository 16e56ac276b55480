"""Temporary files of a user's runner lie below the root: the shared folder's fixed name belongs to who came first."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from storage.layout import Layout
from tasks.runtime.settings import use_own_temporary_folder


def test_temporary_files_are_the_roots_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.runner import Runner

    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())
    monkeypatch.setattr(tempfile, "tempdir", None)
    use_own_temporary_folder(Layout(root).prepare())
    assert Path(tempfile.gettempdir()).is_relative_to(root)
    assert Path(tempfile.gettempdir()).stat().st_mode & 0o777 == 0o700
    assert Path(Runner(name="tests")._tmp_dir).is_relative_to(root)
