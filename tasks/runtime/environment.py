"""Variables of this process's environment that hold for a while."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def restoring(names: Iterable[str]) -> Iterator[None]:
    """Put back afterwards what these variables were before, unset ones included; the environment is the process's."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
