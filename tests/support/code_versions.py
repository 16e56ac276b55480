"""The code version, pinned: what an identity is made of besides it then stays what it was when the code changes."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import cache

import pytest

from tests.support.data import REPOSITORY

Version = Callable[..., str]


@cache
def users(function: str) -> tuple[str, ...]:
    """Return the modules that import a function of ``tasks.planning.identity`` by its name."""
    imported = re.compile(rf"^from tasks\.planning\.identity import .*\b{function}\b", re.MULTILINE)
    files = sorted(path for package in ("tasks", "flows") for path in (REPOSITORY / package).rglob("*.py"))
    found = [path for path in files if imported.search(path.read_text("utf-8"))]
    assert found, f"nobody imports {function}"
    return tuple(".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in found)


def pin(patch: pytest.MonkeyPatch, code: Version, mathematics: Version) -> None:
    """Let everybody who asks have other versions of the code than that of the files.

    Parameters
    ----------
    patch : pytest.MonkeyPatch
    code, mathematics : callable
        Stand-ins for :func:`tasks.planning.identity.code_version` and ``mathematics_version``: of classes.
    """
    for function, version in {"code_version": code, "mathematics_version": mathematics}.items():
        for module in users(function):
            patch.setattr(importlib.import_module(module), function, version)
