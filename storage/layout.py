"""The paths under one root, and the marker that says of which format it is."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from storage.atomic import sweep_once, write_bytes, writing
from storage.errors import InputError, StorageError, require_format

FORMAT_VERSION = 1
"""The format of a root."""
OBJECTS_VARIABLE = "UNITBALL_OBJECTS"
"""Names the object store of a root that is made now; the root remembers it."""
SERVED_VARIABLE = "UNITBALL_SERVED_ROOT"
"""Names, to all processes that serve a root, that root: it is not made anew where it was moved from."""
ROOT_KEY = "root.key"
FINGERPRINTS = "fingerprints.npy"
"""File of a private version's keyed row fingerprints."""
PATTERNS = "patterns.npy"
"""File of those that do not depend on the order of columns or on scale."""
DRAWN = "drawn.npz"
"""File of a derived version's row fingerprints: by these its rows are recognised where they come back as public."""
COLUMNS = "columns.bin"
"""File of the sketches of its columns, enciphered."""
PEOPLE = "people.npz"
"""File of a version's register and of whose each row is."""
SEEN = "seen.npz"
"""File of the digests of all rows that came with a version's file, people's rows beyond the limit included."""
PLACES = "places.npz"
"""File of the paths that a private folder's images have had, in the order of their places."""
_COMPONENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def path_component(value: str, what: str) -> str:
    """Return ``value`` if it is safe as one step of a path.

    Raises
    ------
    InputError
        Otherwise, naming the value and what is allowed.
    """
    if not _COMPONENT.fullmatch(value):
        raise InputError(
            f"{what} {value!r} cannot be used as a name: use 1 to 100 letters, digits, '.', '_' or '-', beginning "
            "with a letter or digit",
            value=value,
            bound=_COMPONENT.pattern,
        )
    return value


class _Below:
    """A path below the root."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, layout: Layout, _owner: type[Layout]) -> Path:
        return _joined(layout.root, self._path)


@lru_cache(maxsize=1024)
def _joined(root: Path, path: str) -> Path:
    # A run asks a thousand times, and making a path takes as long as asking the disk for it.
    return root / path


def _mode_of(folder: Path) -> int:
    """Return the mode of a folder, which is made where it is missing; a run asks a thousand times."""
    try:
        found = folder.stat().st_mode
    except FileNotFoundError:
        found = 0
    if not stat.S_ISDIR(found):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.stat().st_mode
    return found


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths under one root; two roots share nothing.

    Parameters
    ----------
    root : Path
        Made absolute, so that a change of the working directory does not move it.
    """

    root: Path

    marker = _Below("unitball.json")
    """The file that says this is a root, and of which format."""
    private = _Below("private")
    """Everything only its owner may read (mode 0700)."""
    root_secret = _Below(f"private/{ROOT_KEY}")
    """The key of this root's row fingerprints and derived version names."""
    shared_ledger_key = _Below("private/ledger.key")
    """The key of a ledger on PostgreSQL: a copy of the one file on every machine that writes to it."""
    datasets = _Below("private/datasets")
    """All stored versions of all data sets."""
    parties = _Below("private/parties")
    """The parties' private stores."""
    releases = _Below("releases")
    """What left a party."""
    rounds = _Below("rounds")
    """Messages of secure aggregation that the server received and sent."""
    ledger = _Below("ledger.sqlite")
    """The ledger's SQLite file."""
    arrivals = _Below("private/arrivals")
    """Fingerprints of the rows of versions that nights arrived in; private."""
    results = _Below("results")
    """One Parquet file a run and table."""
    mlflow_database = _Below("mlflow.db")
    """MLflow's SQLite file."""
    artifacts = _Below("artifacts")
    """MLflow's artifacts."""
    prefect = _Below("prefect")
    """Prefect's home."""

    def __post_init__(self) -> None:
        # A run makes thousands, nearly all of them of what is absolute already.
        if not (isinstance(self.root, Path) and self.root.is_absolute()):
            object.__setattr__(self, "root", Path(self.root).expanduser().absolute())

    @property
    def objects(self) -> str | None:
        """The URL of the object store that holds rows and releases, None where they lie under the root.

        Raises
        ------
        StorageError
            If the marker that says so cannot be read.
        """
        url = self._marked().get("objects")
        return None if url is None else str(url)

    def dataset(self, version: str) -> Path:
        """Return the folder of one stored version."""
        return self.datasets / path_component(version, "version")

    def party(self, party: str) -> Path:
        """Return the private store of one party."""
        return self.parties / path_component(party, "party")

    def party_secret(self, party: str) -> Path:
        """Return the secret key file of one party."""
        return self.party(party) / "secret.key"

    def shard(self, party: str, partition: str, version: str) -> Path:
        """Return the folder of one party's rows of one data set version under one partition."""
        folder = self.party(party) / "shards" / path_component(partition, "partition")
        return folder / path_component(version, "version")

    def kept(self, version: str, part: str, owner: str = "") -> Path:
        """Return the folder of the maps under which one owner's rows of a version's part are kept.

        It lies next to the version's rows where they have one owner, otherwise in the owner's private store.
        """
        above = self.party(owner) / "kept" / path_component(version, "version") if owner else self.kept_beside(version)
        return above / path_component(part, "part")

    def kept_beside(self, version: str) -> Path:
        """Return the folder of a version's kept rows, next to its rows."""
        return self.dataset(version) / "kept"

    def party_round(self, party: str, key: str) -> Path:
        """Return the folder of what one party remembers of one release's secure aggregation."""
        return self.party(party) / "rounds" / path_component(key, "release key")

    def round(self, key: str) -> Path:
        """Return the folder of the messages of one release's secure aggregation."""
        return self.rounds / path_component(key, "release key")

    def release(self, key: str) -> Path:
        """Return the folder of one release."""
        return self.releases / path_component(key, "release key")

    def prepare(self) -> Layout:
        """Create the folders and the marker, sweep what killed writers left, and return the layout.

        Raises
        ------
        StorageError
            In one line, if the root cannot be written, or is gone and this process is one of those that serve it.
        FormatVersionError
            If another version of Unitball made it.
        InputError
            If the root is new and ``UNITBALL_OBJECTS`` is not an object store, or the root is old and the variable
            names another store.
        """
        named = os.environ.get(SERVED_VARIABLE)
        served = named is not None and named == str(self.root.resolve())
        if served and not self.marker.exists():
            raise StorageError(
                f"{self.root} was moved, replaced or removed while being served; Unitball creates no new root in its "
                "place; serve it at its present path: unitball serve --root PATH"
            )
        with writing(self.root):
            if not served and not self.root.is_dir():
                self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.releases, self.results, self.artifacts, self.prefect):
                _mode_of(folder)
            for folder in (self.private, self.datasets, self.parties):
                if _mode_of(folder) & 0o077:
                    folder.chmod(0o700)
        wanted, marker = os.environ.get(OBJECTS_VARIABLE) or None, self._marked()
        if not marker:
            if wanted is not None:
                # Before it is fixed for good: every command on this root would fail.
                object_place(wanted)
            body = {"format_version": FORMAT_VERSION, "objects": wanted}
            write_bytes(self.marker, json.dumps(body).encode() + b"\n")
        elif wanted not in (None, marker["objects"]):
            raise InputError(
                f"{self.root} stores its rows and releases in {marker['objects'] or 'its own folders'}, which is "
                f"fixed when the root is created; unset {OBJECTS_VARIABLE}, or choose a new root with --root"
            )
        for folder in (self.root, self.private, self.datasets, self.releases, self.results):
            sweep_once(folder)
        return self

    def _marked(self) -> dict[str, Any]:
        """Return what the marker says; empty where there is none."""
        try:
            marker = dict(json.loads(self.marker.read_bytes()))
            version: int | None = int(marker["format_version"])
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StorageError(f"cannot read {self.marker}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError):
            version = None
        if version is not None:
            way_out = "use the Unitball that made it, or choose another root with --root"
            require_format(self.root, version, FORMAT_VERSION, way_out)
        if version is None or "objects" not in marker:
            raise StorageError(f"{self.marker} is damaged: restore it, or choose another root with --root")
        return marker


def object_place(url: str) -> tuple[str, str]:
    """Return bucket and prefix of an object store's URL.

    Raises
    ------
    InputError
        If it is not ``s3://bucket/prefix``.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme != "s3" or not parts.netloc or not parts.path.strip("/") or parts.query or parts.fragment:
        raise InputError(f"the object store {url!r} cannot be used; give s3://bucket/prefix")
    return parts.netloc, parts.path.strip("/")
