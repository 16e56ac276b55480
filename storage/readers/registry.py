"""The readers by name, found by walking this package: a new format is one new file."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from storage.errors import InputError
from storage.source import ReadOptions, Source

Read = Callable[[str | Path, ReadOptions], Source]


@dataclass(frozen=True, slots=True)
class Reader:
    """One format.

    Attributes
    ----------
    read : callable
        ``read(path, options) -> Source``.
    takes : frozenset of str
        Which of ``test``, ``schema``, ``on_violation`` and ``scaling`` it understands; others are refused instead of
        ignored.
    summary : str
        The first line of its docstring.
    """

    read: Read
    takes: frozenset[str]
    summary: str


_READERS: dict[str, Reader] = {}
_OPTIONAL = ("test", "schema", "on_violation", "scaling")


def register_reader(name: str, *, takes: tuple[str, ...] = ()) -> Callable[[Read], Read]:
    """Return a decorator that enters a read function under ``name``."""

    def enter(read: Read) -> Read:
        if name in _READERS:
            raise ValueError(f"reader {name!r} is registered twice")
        _READERS[name] = Reader(read, frozenset(takes), (read.__doc__ or "").strip().split("\n")[0])
        return read

    return enter


@cache
def _discover() -> None:
    package = importlib.import_module("storage.readers")
    for module in pkgutil.iter_modules(package.__path__, prefix="storage.readers."):
        importlib.import_module(module.name)


def reader_names() -> dict[str, str]:
    """Return the formats and what they are, sorted by name."""
    _discover()
    return {name: _READERS[name].summary for name in sorted(_READERS)}


def read_source(format_name: str, path: str | Path, options: ReadOptions | None = None) -> Source:
    """Open ``path`` with the reader of ``format_name``.

    Raises
    ------
    InputError
        If there is no such format (naming the nearest), an option is not one of this format, or the data are bad.
    RefusedError
        If something would be learnt from the rows and ``options.discover`` is not set.
    """
    _discover()
    reader = _READERS.get(format_name)
    if reader is None:
        near = difflib.get_close_matches(format_name, _READERS, n=3, cutoff=0.4) or sorted(_READERS)
        raise InputError(f"no format is called {format_name!r}; nearest: {', '.join(near)}")
    options = options or ReadOptions()
    plain: Any = ReadOptions()
    for name in _OPTIONAL:
        value = getattr(options, name)
        if name not in reader.takes and value != getattr(plain, name):
            raise InputError(f"format {format_name} takes no {name.replace('_', ' ')} (given: {value}); leave it out")
    source = reader.read(path, options)
    if options.image_shape in (None, source.image_shape):
        return source
    if source.image_shape is not None:
        raise InputError(
            f"the image shape is declared {list(options.image_shape or ())} and {source.place} says "
            f"{list(source.image_shape)}; leave it out"
        )
    return replace(source, image_shape=options.image_shape)
