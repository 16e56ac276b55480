"""The object store of a root: its rows and releases as objects, each written once under the name of its content.

Rows go through pyarrow's S3 file system; releases through obstore, which has the conditional put that pyarrow lacks.
Both take credentials and endpoint from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, …).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from storage.errors import DamagedError, InputError, StorageError
from storage.layout import Layout
from storage.secrets import root_secret

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_SECONDS = 60
_ATTEMPTS = 5
# What is younger may belong to a writer whose manifest is not published yet.
_OLD = timedelta(days=1)


def _first_of(names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)


@cache
def _row_files(endpoint: str | None, region: str | None) -> Any:
    from pyarrow import fs

    parts = urlsplit(endpoint or "")
    options = {"endpoint_override": parts.netloc, "scheme": parts.scheme} if endpoint else {}
    if region:
        options["region"] = region
    return fs.S3FileSystem(
        connect_timeout=_SECONDS / 6,
        request_timeout=_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        **options,
    )


@cache
def _release_files(url: str, endpoint: str | None, region: str | None) -> Any:
    try:
        from obstore.store import S3Store
    except ImportError:
        raise InputError(f"releases in {url} need obstore; install it: pip install 'unitball[s3]'") from None
    where: Any = {name: value for name, value in (("endpoint", endpoint), ("region", region)) if value}
    return S3Store.from_url(
        url,
        config=where,
        client_options={"allow_http": True, "timeout": timedelta(seconds=_SECONDS)},
        retry_config={"max_retries": _ATTEMPTS, "retry_timeout": timedelta(seconds=_SECONDS)},
    )


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A bucket and a prefix in it that belong to one root.

    Parameters
    ----------
    url : str
        ``s3://bucket/prefix``.

    Raises
    ------
    InputError
        If the URL is of another kind, or the endpoint would carry private rows over a network in plain text.
    """

    url: str

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme != "s3" or not parts.netloc or not parts.path.strip("/") or parts.query or parts.fragment:
            raise InputError(f"the object store {self.url!r} cannot be used; give s3://bucket/prefix")
        endpoint = urlsplit(_first_of(_ENDPOINTS) or "")
        if endpoint.scheme == "http" and endpoint.hostname not in _LOOPBACK:
            raise InputError(
                f"the object store's endpoint {endpoint.hostname} is asked for by http, which anybody on the way can "
                "read; give an https:// address"
            )

    @property
    def _releases(self) -> Any:
        return _release_files(self.url.rstrip("/"), _first_of(_ENDPOINTS), _first_of(_REGIONS))

    @property
    def filesystem(self) -> Any:
        """Pyarrow's file system over S3."""
        return _row_files(_first_of(_ENDPOINTS), _first_of(_REGIONS))

    def path(self, name: str) -> str:
        """Return where an object is for pyarrow's file system."""
        return f"{self.url.removeprefix('s3://').rstrip('/')}/{name}"

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """Turn what the clients raise into one line; that an object is not there stays what it is."""
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            yield
        except (FileNotFoundError, AlreadyExistsError):
            raise
        except (BaseError, OSError, pa.ArrowException) as error:
            message = " ".join(str(error).partition("<")[0].split())
            raise StorageError(
                f"the object store refuses {self.url.rstrip('/')}/{name}: {message:.200}; check its address, the "
                "credentials in the environment and the network, and run again: nothing is charged twice"
            ) from None

    def create(self, name: str, data: bytes) -> bool:
        """Put an object unless there is one of this name; return whether this call made it."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._asking(name):
            try:
                obstore.put(self._releases, name, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def replace(self, name: str, data: bytes) -> None:
        """Put an object, whether or not there is one."""
        import obstore

        with self._asking(name):
            obstore.put(self._releases, name, data)

    def get(self, name: str) -> bytes | None:
        """Return what an object holds, None where there is none."""
        import obstore

        try:
            with self._asking(name):
                return bytes(obstore.get(self._releases, name).bytes())
        except FileNotFoundError:
            return None

    def has(self, name: str) -> bool:
        """Whether there is an object of this name."""
        import obstore

        try:
            with self._asking(name):
                obstore.head(self._releases, name)
        except FileNotFoundError:
            return False
        return True

    def names(self, prefix: str, *, old_only: bool = False) -> list[str]:
        """Return the names of all objects below a prefix, or of those that are older than a day."""
        import obstore

        before = datetime.now(UTC) - _OLD
        with self._asking(prefix):
            listed = [each for some in obstore.list(self._releases, prefix) for each in some]
        return sorted(each["path"] for each in listed if not old_only or each["last_modified"] < before)

    def remove(self, name: str) -> None:
        """Remove an object."""
        import obstore

        with self._asking(name):
            obstore.delete(self._releases, name)

    def upload(self, path: Path, name: str) -> None:
        """Put a file's content; a kill leaves nothing under the name."""
        with (
            self._asking(name),
            path.open("rb") as file,
            self.filesystem.open_output_stream(self.path(name)) as stream,
        ):
            while piece := file.read(1 << 22):
                stream.write(piece)

    def size(self, name: str) -> int | None:
        """Return how many bytes an object of rows has, None where there is none."""
        with self._asking(name):
            information = self.filesystem.get_file_info(self.path(name))
        return int(information.size) if information.is_file else None

    def fetch(self, name: str) -> Any:
        """Return an Arrow buffer of what an object of rows holds; FileNotFoundError where there is none."""
        with self._asking(name), self.filesystem.open_input_file(self.path(name)) as file:
            return file.read_buffer()


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One Parquet file of rows in an object store; verified each time it is read.

    Parameters
    ----------
    store : ObjectStore
    name, digest : str
    """

    store: ObjectStore
    name: str
    digest: str

    def __str__(self) -> str:
        return f"{self.store.url.rstrip('/')}/{self.name}"

    @property
    def path(self) -> str:
        """Where it is for pyarrow's file system."""
        return self.store.path(self.name)

    @property
    def filesystem(self) -> Any:
        """Return pyarrow's file system."""
        return self.store.filesystem

    def require(self) -> None:
        """Raise :class:`DamagedError` where it is missing."""
        if self.store.size(self.name) is None:
            raise DamagedError(f"{self} is missing; restore it or ingest again")

    def open(self) -> Any:
        """Return it whole, in memory, after comparing it with its digest.

        Raises
        ------
        DamagedError
            If it is missing or differs.
        """
        try:
            buffer = self.store.fetch(self.name)
        except FileNotFoundError:
            raise DamagedError(f"{self} is missing; restore it or ingest again") from None
        if hashlib.sha256(buffer).hexdigest() != self.digest:
            raise DamagedError(f"{self} is damaged: its digest does not match; restore it or ingest again")
        return pa.BufferReader(buffer)


@dataclass(frozen=True, slots=True)
class RowObjects:
    """Where the files of one data set or one party's shards go.

    Objects bear a keyed digest of their content: the plain one would tell whoever can list the bucket whether a guess
    of private rows is right.

    Parameters
    ----------
    store : ObjectStore
    key : bytes
    folder : str
        What the names begin with.
    """

    store: ObjectStore
    key: bytes
    folder: str

    def put(self, path: Path, digest: str) -> str:
        """Move a file to the store; return its name there."""
        name = f"{self.folder}/{hmac.digest(self.key, f'rows {digest}'.encode(), 'sha256').hex()}.parquet"
        self.store.upload(path, name)
        path.unlink()
        return name


def objects_of(layout: Layout) -> ObjectStore | None:
    """Return the object store of a root, None where all lies under the root itself."""
    url = layout.objects
    return None if url is None else ObjectStore(url)


def row_objects(layout: Layout, party: str | None = None) -> RowObjects | None:
    """Return where rows of data sets go, or those of one party's shards; None where they stay under the root."""
    store = objects_of(layout)
    if store is None:
        return None
    return RowObjects(store, root_secret(layout), "datasets" if party is None else f"parties/{party}")
