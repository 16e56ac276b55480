"""Identities: digests of everything a result depends on, so that equal questions meet equal answers."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import re
import threading
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from tasks.planning.code_version import code_version

__all__ = ["canonical", "code_version", "identity", "package_digest", "required_versions", "source_of"]


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (Path,)):
        return str(value)
    raise TypeError(f"cannot digest a {type(value).__name__}")


def canonical(value: object) -> str:
    """Return the one JSON text of a value: keys sorted, no spaces, exact floats; NaN refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain, allow_nan=False)


def identity(**parts: object) -> str:
    """Return the SHA-256 digest (64 hex digits) of named parts."""
    return hashlib.sha256(canonical(parts).encode()).hexdigest()


_SOURCES = threading.Lock()


@cache
def _source(cls: type) -> str:
    return inspect.getsource(cls)


def source_of(cls: type) -> str:
    """Return a class's source; finding it parses a module, which CPython 3.11 cannot do in two threads at once."""
    with _SOURCES:
        return _source(cls)


@cache
def package_digest(*packages: str) -> str:
    """Return the digest of all files of some of our packages: sources, and the data beside them."""
    digest = hashlib.sha256()
    here = Path(__file__).resolve().parent.parent.parent
    for package in packages:
        for source in sorted((here / package).rglob("*")):
            if "__pycache__" in source.parts or not source.is_file():
                continue
            digest.update(f"{source.relative_to(here)}\0".encode())
            digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


@cache
def required_versions() -> tuple[str, ...]:
    """Return names and versions of the distributions that Unitball requires, those of its extras where installed."""
    found = []
    for requirement in importlib.metadata.requires("unitball") or ():
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} none")
    return tuple(sorted(found))
