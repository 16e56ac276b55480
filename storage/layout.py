"""Where everything lies under one root, and the secrets that lie there."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from storage.atomic import sweep_once, write_bytes, write_once, writing
from storage.errors import InputError, SecretError, StorageError, require_format

FORMAT_VERSION = 1
"""The format of a root."""

OBJECTS_VARIABLE = "UNITBALL_OBJECTS"
"""Names the object store of a root that is made now; the root remembers it."""

ROOT_KEY = "root.key"
FINGERPRINTS = "fingerprints.npy"
"""File of a private version's keyed row fingerprints."""
PATTERNS = "patterns.npy"
"""File of those that do not depend on the order of columns or on scale."""
COLUMNS = "columns.bin"
"""File of the sketches of its columns, enciphered."""
PEOPLE = "people.npz"
"""File of a version's roster and of whose each row is."""
SEEN = "seen.npz"
"""File of the digests of all rows that came with a version's file, people's rows beyond the limit included."""
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
            f"{what} {value!r} cannot be used as a name: take 1 to 100 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return value


class _Below:
    """A path below the root."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, layout: Layout, _owner: type[Layout]) -> Path:
        return layout.root / self._path


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

        It lies beside the version's rows where they have one owner, otherwise in the owner's private store.
        """
        above = self.party(owner) / "kept" / path_component(version, "version") if owner else self.kept_beside(version)
        return above / path_component(part, "part")

    def kept_beside(self, version: str) -> Path:
        """Return the folder of what is kept of a version's rows beside them."""
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
            In one line, if the root cannot be written.
        FormatVersionError
            If another version of Unitball made it.
        InputError
            If it is new and ``UNITBALL_OBJECTS`` is no object store, or it is not and that names another one.
        """
        with writing(self.root):
            for folder in (self.root, self.releases, self.results, self.artifacts, self.prefect):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.private, self.datasets, self.parties):
                folder.mkdir(mode=0o700, exist_ok=True)
                if folder.stat().st_mode & 0o077:
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
                f"{self.root} keeps its rows and releases in {marker['objects'] or 'its own folders'}, which is "
                f"fixed when a root is made; unset {OBJECTS_VARIABLE}, or choose a new root with --root"
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


# ── secrets: one key a party in a file only its owner reads, or in the environment; never shown, never pickled ────────

_BYTES = 32


class Secret(bytes):
    """Key bytes that do not show themselves in logs and do not let themselves be pickled."""

    def __repr__(self) -> str:
        return f"<secret of {len(self)} bytes>"

    __str__ = __repr__

    def __format__(self, _spec: str) -> str:
        return repr(self)

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("a secret is not pickled: read it where it is used")


def environment_name(party: str) -> str:
    """Return the environment variable that may hold the party's secret in hexadecimal."""
    return "UNITBALL_SECRET_" + re.sub(r"[^A-Z0-9]", "_", path_component(party, "party").upper())


def _from_environment(party: str) -> Secret | None:
    name = environment_name(party)
    text = os.environ.get(name)
    if text is None:
        return None
    if not re.fullmatch(rf"\s*[0-9a-fA-F]{{{2 * _BYTES}}}\s*", text):
        raise SecretError(f"{name} must hold {2 * _BYTES} hexadecimal digits ({_BYTES} bytes); its value is not shown")
    return Secret(bytes.fromhex(text))


def _read(path: Path) -> Secret | None:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise SecretError(
                    f"{path} has mode {mode:04o}: others than its owner can reach it; run: chmod 600 {path}"
                )
            value = file.read(_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SecretError(f"cannot read {path}: {error.strerror}; its owner must be able to read it") from error
    if len(value) != _BYTES:
        raise SecretError(f"{path} must hold {_BYTES} bytes; restore it from its backup")
    return Secret(value)


def ledger_key(path: Path, *, create: bool = False) -> Secret:
    """Return the secret that keys a ledger's digests from its file.

    Parameters
    ----------
    path : Path
    create : bool
        Whether to make it where it is missing: for a new ledger only.

    Raises
    ------
    SecretError
        If it is missing, can be reached by others, or is not 32 bytes; or if it would be made anew although private
        rows are stored, whose fingerprints nobody could compare any more.
    """
    key = _read(path)
    if key is not None:
        return key
    kept = next(path.parent.glob(f"datasets/[!.]*/{FINGERPRINTS}"), None) if path.name == ROOT_KEY else None
    if not create or kept is not None:
        why = f"private rows are stored under it (in {kept.parent})" if kept else "the ledger is keyed with it"
        raise SecretError(f"{path} is missing, and {why}; put it back from its back-up. Nothing was charged")
    return _read_or_create(path)


def _read_or_create(path: Path) -> Secret:
    secret = _read(path)
    if secret is not None:
        return secret
    write_once(path, os.urandom(_BYTES))
    created = _read(path)
    if created is None:
        raise SecretError(f"{path} vanished while it was being made; try again")
    return created


def party_secret(layout: Layout, party: str) -> Secret:
    """Return the party's secret, from the environment or its file; made on first use.

    Raises
    ------
    SecretError
        If it can be reached by others (the message names the mode), or is not 32 bytes.
    """
    return _from_environment(party) or _read_or_create(layout.party_secret(party))


def require_secret(layout: Layout, party: str) -> Secret:
    """Return the party's secret without ever making one: a release already charged must not be drawn anew.

    Raises
    ------
    SecretError
        If it is missing, can be reached by others, or is not 32 bytes.
    """
    secret = _from_environment(party) or _read(layout.party_secret(party))
    if secret is None:
        raise SecretError(
            f"the secret is missing: neither {layout.party_secret(party)} nor {environment_name(party)} is there; "
            "restore it from its backup"
        )
    return secret


def root_secret(layout: Layout) -> Secret:
    """Return the root's secret: it keys row fingerprints, the ledger's entries, and names of private versions.

    Raises
    ------
    SecretError
        If it can be reached by others or is not 32 bytes, or is missing although private rows are stored.
    """
    return ledger_key(layout.root_secret, create=True)
