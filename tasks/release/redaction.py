"""Errors on private rows, replaced by one that holds none of their values."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from dpalgos.secure.primitives import SecureAggregationError
from storage.atomic import write_bytes
from storage.errors import RefusedError, StorageError
from tasks.runtime.settings import current_layout


class RedactedError(Exception):
    """An algorithm failed on private rows; its message and traceback are stored for the rows' owner alone."""


@contextmanager
def redacted(key: str, label: str, *, private: bool) -> Iterator[None]:
    """Replace what is raised on private rows by an error without their values.

    Algorithms are total, so this is for their faults.

    Parameters
    ----------
    key, label : str
        Of the release that is being made.
    private : bool
        False lets everything through.

    Raises
    ------
    RedactedError
        In place of any exception that was raised, except errors of storage, of secrets and of secure sums, which name
        no row.
    """
    try:
        yield
    except (StorageError, RefusedError, SecureAggregationError):
        raise
    except Exception:
        if not private:
            raise
        place = current_layout().private / "errors" / f"{key}.txt"
        write_bytes(place, traceback.format_exc().encode(), mode=0o600)
        raise RedactedError(
            f"{label} failed on private rows; the error may hold values of rows, and their owner can read it in {place}"
        ) from None
