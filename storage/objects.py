"""The object store of a root: its rows and releases as objects, each written once under the name of its content.

pyarrow's S3 file system takes credentials and endpoint from the environment (``AWS_ACCESS_KEY_ID``,
``AWS_ENDPOINT_URL``, …). An object appears whole, and nothing rests on a put that fails where there is one: names are
digests, and what is a release the ledger decides, by an entry that is written once the object is there.

Messages of secure sums stay under the root: they are frozen before they are read, by hard links that replace nothing,
and a store has none. The tests run against moto's server in a separate process (the protocol, a killed upload, a race
of 16 writers); of a real store's atomicity they prove nothing.
"""

import hashlib
import hmac
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from storage.errors import DamagedError, InputError, StorageError
from storage.layout import Layout, object_place
from storage.secrets import root_secret

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_SECONDS = 60
_ATTEMPTS = 5
# What is younger may belong to a writer whose manifest is not published yet.
_OLD = timedelta(days=1)


def _first_of(names: tuple[str, ...]) -> str | None:
    return next(filter(None, map(os.environ.get, names)), None)


@cache
def _client(endpoint: str | None, region: str | None) -> Any:
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
        If the URL has another scheme, or the endpoint would carry private rows over a network in plain text.
    """

    url: str

    def __post_init__(self) -> None:
        object_place(self.url)
        endpoint = urlsplit(_first_of(_ENDPOINTS) or "")
        if endpoint.scheme == "http" and endpoint.hostname not in _LOOPBACK:
            raise InputError(
                f"the object store's endpoint {endpoint.hostname} uses http, which can be read in transit; "
                f"give an https:// address"
            )

    @property
    def filesystem(self) -> Any:
        """Pyarrow's file system over S3."""
        return _client(_first_of(_ENDPOINTS), _first_of(_REGIONS))

    def path(self, name: str) -> str:
        """Return where an object is for pyarrow's file system."""
        return f"{self.url.removeprefix('s3://').rstrip('/')}/{name}"

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """Turn what the client raises into one line; that an object is not there stays what it is."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            message = " ".join(str(error).split())
            raise StorageError(
                f"the object store refuses {self.url.rstrip('/')}/{name}: {message:.200}; check its address, the "
                "credentials in the environment and the network, and run again: no release is charged twice"
            ) from None

    def put(self, name: str, content: IO[bytes]) -> None:
        """Put an object, whether or not there is one; a kill leaves nothing under the name."""
        with self._asking(name), self.filesystem.open_output_stream(self.path(name)) as stream:
            shutil.copyfileobj(content, stream, 1 << 22)

    def get(self, name: str) -> bytes | None:
        """Return what an object holds, None where there is none."""
        try:
            with self._asking(name), self.filesystem.open_input_file(self.path(name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def ranges(self, name: str, places: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """Yield what an object holds at some places, each a start and a length; less where it ends before.

        Raises
        ------
        DamagedError
            If there is none.
        """
        try:
            with self._asking(name), self.filesystem.open_input_file(self.path(name)) as file:
                for start, length in places:
                    yield bytes(file.read_at(length, start))
        except FileNotFoundError:
            raise DamagedError(f"{self.url.rstrip('/')}/{name} is missing") from None

    def has(self, name: str) -> bool:
        """Whether there is an object of this name."""
        with self._asking(name):
            return bool(self.filesystem.get_file_info(self.path(name)).is_file)

    def names(self, prefix: str, *, old_only: bool = False) -> list[str]:
        """Return the names of all objects below a prefix, or of those that are older than a day."""
        before, root = datetime.now(UTC) - _OLD, self.path("")
        below = fs.FileSelector(f"{root}{prefix}".rstrip("/"), recursive=True, allow_not_found=True)
        with self._asking(prefix):
            listed = [one for one in self.filesystem.get_file_info(below) if one.is_file]
        return sorted(one.path.removeprefix(root) for one in listed if not old_only or one.mtime < before)

    def remove(self, name: str) -> None:
        """Remove an object."""
        with self._asking(name):
            self.filesystem.delete_file(self.path(name))


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

    def open(self) -> Any:
        """Return it whole, in memory, after comparing it with its digest.

        Raises
        ------
        DamagedError
            If it is missing or differs.
        """
        content = self.store.get(self.name)
        if content is None:
            raise DamagedError(f"{self} is missing; restore it or ingest again")
        if hashlib.sha256(content).hexdigest() != self.digest:
            raise DamagedError(f"{self} is damaged: its digest does not match; restore it or ingest again")
        return pa.BufferReader(content)


def objects_of(layout: Layout) -> ObjectStore | None:
    """Return the object store of a root, None where all lies under the root itself."""
    url = layout.objects
    return None if url is None else ObjectStore(url)


def row_objects(layout: Layout, party: str | None = None) -> Callable[[Path, str], str] | None:
    """Return what moves a file of a data set's rows, or of one party's, to the store and gives its name there.

    None where rows stay under the root. It takes the file and its digest. Objects bear a keyed digest of their content:
    with a plain digest, anyone who can list the bucket could check guesses of private rows.
    """
    store, folder = objects_of(layout), "datasets" if party is None else f"parties/{party}"
    if store is None:
        return None
    key = root_secret(layout)

    def put(path: Path, digest: str) -> str:
        name = f"{folder}/{hmac.digest(key, f'rows {digest}'.encode(), 'sha256').hex()}{path.suffix}"
        with path.open("rb") as file:
            store.put(name, file)
        path.unlink()
        return name

    return put
