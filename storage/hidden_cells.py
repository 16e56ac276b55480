"""Cells in messages: a command shows them to its owner's terminal; a notebook keeps what it shows, and gets none."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from storage.errors import InputError

_MOST_SHOWN = 60
# Blocks of rows are read by threads, so that it holds for the process.
_lock = threading.Lock()
_hiding = 0


def hiding() -> bool:
    """Whether messages show no cell now."""
    return _hiding > 0


def shown_cell(cell: object, instead: str = "(not shown)") -> str:
    """Return a cell as a message shows it: a text in quotes, or what stands for it within :func:`cells_hidden`."""
    if _hiding:
        return instead
    return repr(cell[:_MOST_SHOWN]) if isinstance(cell, str) else str(cell)


@contextmanager
def cells_hidden() -> Iterator[None]:
    """Let no error of what is within show a cell, here and in the threads of this process.

    Our own errors leave cells out (:func:`shown_cell`), and lose what they were raised from. What another package
    raises may hold any cell, so that only its type is named.

    Raises
    ------
    InputError
        In place of an error of another package.
    """
    global _hiding
    with _lock:
        _hiding += 1
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("dpalgos", "storage", "tasks", "unitball"):
            raise InputError(
                f"the rows cannot be read ({type(error).__name__}); the original message is hidden because it may "
                "hold a cell. Give a pandas, polars or Arrow frame, or an array of numbers. For a file, unitball "
                "schema check shows the first cell that does not fit"
            ) from None
        error.__cause__, error.__suppress_context__ = None, True
        raise
    finally:
        with _lock:
            _hiding -= 1
