"""A run taken elsewhere: what of it is collected, and the archive: named members, their digests in one list, signed.

Guarantee. Where :func:`read` returns, every member is the one that the list names, nothing is missing or added, and the
list was signed with the private half of the key that the archive names (Ed25519, RFC 8032). Whose key that is, the
archive cannot say by itself: compare its fingerprint with one that the owner has given by another channel.
"""

import hashlib
import importlib.metadata
import inspect
import io
import json
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import hexdigits
from types import MappingProxyType
from typing import cast
from zlib import error as zlib_error

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dpalgos.registry import lookup
from storage.confined import admitted_memory, kept_memory
from storage.datasets import declared_table
from storage.documents import UNREADABLE, canonical_json, open_archive, parse_json
from storage.errors import DamagedError, InputError, require_format
from storage.ledger.moving import extract
from storage.results import query
from storage.secrets import root_secret
from tasks.federation.messages import fingerprint, identity_key
from tasks.federation.protocol import Evidence, schema_of
from tasks.planning.configuration import Json
from tasks.planning.nights import release_of
from tasks.planning.plans import DESCRIBE, RunIdentity, description_run
from tasks.planning.releases import PlannedRelease
from tasks.preparation.drawn import require_counted
from tasks.runtime.settings import current_layout, current_root
from tasks.runtime.stores import open_ledger_database, open_releases
from tasks.tracking.results import RunResult

FORMAT_VERSION = 1
_CONTENTS, _SIGNATURE = "contents.json", "signature.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MOST_BYTES, _MOST_MEMBERS, _MOST_SIGNED = 4 * 2**30, 50_000, 2**24


@dataclass(frozen=True, slots=True)
class Archive:
    """A checked archive.

    Parameters
    ----------
    members : mapping of name to bytes
    signer : str
        Fingerprint of the key it was signed with.
    """

    members: Mapping[str, bytes]
    signer: str


def pack(members: Mapping[str, bytes], key: Ed25519PrivateKey) -> bytes:
    """Return the archive of some members: a ZIP file whose bytes depend on them and the key alone."""
    listed = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    contents = canonical_json({"format_version": FORMAT_VERSION, "members": listed})
    signature = canonical_json(
        {"key": key.public_key().public_bytes_raw().hex(), "signature": key.sign(contents).hex()}
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in {**members, _CONTENTS: contents, _SIGNATURE: signature}.items():
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            file.writestr(entry, data)
    return buffer.getvalue()


class _Members(Mapping[str, bytes]):
    """Members of an open archive, each read where it is asked for, never more of it than it states.

    Parameters
    ----------
    path : Path
    file : ZipFile
    most : int
        Bytes of one member.
    """

    def __init__(self, path: Path, file: zipfile.ZipFile, most: int) -> None:
        self._path, self._file, self._most = path, file, most
        self._entries = {entry.filename: entry for entry in file.infolist()}
        self.digests: Mapping[str, str] = {}

    def __len__(self) -> int:
        return len(self.digests)

    def __iter__(self) -> Iterator[str]:
        return iter(self.digests)

    def __getitem__(self, name: str) -> bytes:
        data = self.unsigned(name, self._most)
        if hashlib.sha256(data).hexdigest() != self.digests[name]:
            raise DamagedError(f"{self._path}: {name} differs from the signed content; request the archive again")
        return data

    def unsigned(self, name: str, most: int) -> bytes:
        """Return what a member holds, whether or not that was signed."""
        entry = self._entries[name]
        if entry.file_size > most:
            raise InputError(
                f"{self._path}: {name} declares {entry.file_size:,} bytes; the limit is {most:,} (UNITBALL_MEMORY)"
            )
        try:
            with self._file.open(entry) as stream:
                data = stream.read(entry.file_size + 1)
            if len(data) > entry.file_size:
                raise EOFError("it holds more bytes than it declares")
        except (*UNREADABLE, zlib_error) as error:
            raise DamagedError(f"{self._path}: {name} is damaged ({error}); request the archive again") from error
        return data

    def check(self, digests: Mapping[str, str]) -> None:
        """Take the signed list, and compare every member with it, one after another."""
        self.digests = digests
        if strange := sorted(set(self._entries) - {_CONTENTS, _SIGNATURE} ^ set(digests)):
            raise DamagedError(
                f"{self._path}: {', '.join(strange[:5])} was added or is missing; request the archive again"
            )
        if sum(entry.file_size for entry in self._entries.values()) > _MOST_BYTES:
            raise InputError(f"{self._path} declares more than {_MOST_BYTES:,} bytes, the limit of an export")
        for name in digests:
            self[name]


def read(path: Path) -> Archive:
    """Return the members of an archive, signature and digests checked; nothing is unpacked to disk.

    The signed list is read first, and nothing else unless its signature holds. Members are compared with it one after
    another and read again where they are asked for, so that one of them is in memory at a time.

    Raises
    ------
    InputError
        If the file is not such an archive, or the archive or a member expands beyond its limit
        (:func:`storage.confined.admitted_memory`).
    DamagedError
        If a member is not the one that was signed, or the signature is not the key's, naming which.
    FormatVersionError
        If another version of Unitball wrote it.
    """
    try:
        file = path.open("rb")
        try:
            members = _Members(path, open_archive(file, _MOST_MEMBERS), admitted_memory())
        except BaseException:
            file.close()
            raise
        weakref.finalize(members, file.close)
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path} is not an archive of unitball export ({reason}); give the ZIP file that unitball export wrote"
        ) from error
    digests, signer = _signed(path, members)
    members.check(digests)
    return Archive(members, signer)


def _signed(path: Path, members: _Members) -> tuple[dict[str, str], str]:
    """Return the signed digests by name and the signer's fingerprint."""
    try:
        contents, written = (members.unsigned(name, _MOST_SIGNED) for name in (_CONTENTS, _SIGNATURE))
        signature = parse_json(written, f"{path}: {_SIGNATURE}")
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["key"]))
        key.verify(bytes.fromhex(signature["signature"]), contents)
        listed = parse_json(contents, f"{path}: {_CONTENTS}")
        version, digests = int(listed["format_version"]), dict(listed["members"])
    except InvalidSignature as error:
        raise DamagedError(f"{path}: {_CONTENTS} differs from the signed content; request the archive again") from error
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedError(
            f"{path} has no readable {_CONTENTS} and {_SIGNATURE} ({error}), so it is not an archive of unitball export"
        ) from error
    require_format(path, version, FORMAT_VERSION)
    return digests, fingerprint(key)


SIGNED = "signed.json"
COUNTED = "counted.json"
"""The versions whose rows were counted, of an archive of what rests on synthetic rows."""
RUN, CHARGES, AUDIT, PROOF, ENVIRONMENT = "run.json", "charges.json", "audit.json", "proof.md", "environment.json"
NUMBERS = "numbers.json"
"""Of a description: its numbers, and the schema that gives them names and units."""
_JSON = ("proved", "claim", "split", "identity", "synthetic", "releases", "evaluations", "classes", "confusion", "roc")
_NAMES = ("run_key", "mlflow_run_id")
_LOCK = Path(__file__).resolve().parents[2] / "requirements.lock"


def release_member(key: str, file: str) -> str:
    """Return the member that holds a release's file, or what parties have signed of it."""
    return f"releases/{key}/{file}"


def used_by(manifest: Json) -> list[str]:
    """Return the keys of what a release uses, and of the syntheses whose drawn rows it rests on."""
    body = cast(Mapping[str, list[str]], manifest.get("post_processing", manifest))
    return [*body["upstream"], *body.get("drawn_from", [])]


def drawn_keys(manifests: Mapping[str, Json]) -> set[str]:
    """Return the keys of all that drawn rows rest on: the syntheses that releases name, and what these are made of."""
    found = set[str]()
    waiting = [key for one in manifests.values() for key in cast(list[str], one.get("drawn_from", []))]
    while waiting:
        if (key := waiting.pop()) not in found:
            found.add(key)
            waiting += used_by(manifests[key])
    return found


def export_run(run: str) -> tuple[bytes, str, str]:
    """Return a run's archive, the run's key, and the fingerprint of the key that signs the archive.

    The archive holds only what is already public: no row, no exact statistic of one, no secret.

    Parameters
    ----------
    run : str
        The run's key or MLflow's id of it, or the first six characters or more of either; or a registered model that
        it made: ``NAME``, ``NAME@ALIAS`` or ``NAME/VERSION``.

    Raises
    ------
    InputError
        If no run is meant, or several are.
    storage.errors.DamagedError
        If one of its releases does not match its digests.
    """
    layout, report = current_layout(), _find(run)
    keys = [*report["releases"], *report["evaluations"]]  # type: ignore[misc]  # both are lists
    store, members = open_releases(), {RUN: canonical_json(report)}
    manifests: dict[str, Json] = {}
    for key in keys:
        files = store.files(key)
        manifests[key] = store.manifest(key)
        # Whatever a release is made of is part of its proof: of a night's model, the nights before; of what uses drawn
        # rows, what these are drawn from.
        keys += [one for one in used_by(manifests[key]) if one not in keys]
        if "charged_by" in manifests[key]:
            evidence = Evidence.stored(layout, key)
            if evidence is None:
                raise InputError(
                    f"release {key[:12]} was made from parties' messages, and the signed messages are missing from "
                    f"{layout.round(key)}; restore them, or repeat the run with another --replicate"
                )
            files[SIGNED] = evidence
        members |= {release_member(key, name): data for name, data in files.items()}
    if drawn := drawn_keys(manifests):
        versions = sorted({str(manifests[key]["dataset"]) for key in drawn if "dataset" in manifests[key]})
        members[COUNTED] = canonical_json([require_counted(one).model_dump(mode="json") for one in versions])
    database = open_ledger_database()
    members[CHARGES] = canonical_json({"ledger": database.chain.ledger_id, "entries": extract(database, keys)})
    # Whoever verifies reads archives, too, and needs no libraries for models.
    from tasks.tracking.audits import audit_of

    if report["algorithm"] == DESCRIBE:
        members[NUMBERS] = canonical_json(_numbers(report, manifests))
    members[PROOF] = _proof(manifests).encode()
    members[AUDIT] = canonical_json(
        audit_of(current_root(), str(report["mlflow_run_id"] or ""), str(report["algorithm"]))
    )
    members[ENVIRONMENT] = canonical_json(
        {
            "packages": dict(installed()),
            "lock": hashlib.sha256(_LOCK.read_bytes()).hexdigest() if _LOCK.is_file() else None,
        }
    )
    key = identity_key(root_secret(layout), "export signature")
    return pack(members, key), str(report["run_key"]), fingerprint(key.public_key())


def _numbers(report: Json, manifests: Mapping[str, Json]) -> Json:
    """Return a description's schema, and its numbers as the schema and the releases decide them."""
    identity = RunIdentity.model_validate(report["identity"])
    own, *one_way = (
        release_of({**_fields(manifests[key]), "account": "", "delta": identity.target[1]})
        for key in identity.evaluation[1]
    )
    layout = current_layout()
    signed = Evidence.stored(layout, own.key) if "charged_by" in manifests[own.key] else None
    if signed is None:
        table = dict(declared_table(layout, identity.dataset) or {})
    else:
        counted = Evidence.model_validate_json(signed).counted
        table = {} if counted is None else schema_of(counted)
    # Libraries of tables and figures are not needed where archives are read.
    from tasks.release.pair_descriptions import numbers_of

    run = description_run(identity.dataset, own, one_way, float(identity.target[0] or 0.0))
    return {"table": table, "numbers": numbers_of(run, table)}


def _fields(manifest: Json) -> Json:
    """Return the fields of a planned release that its manifest has."""
    return {
        **{name: manifest[name] for name in PlannedRelease.model_fields if name in manifest},
        "seed": manifest["public_seed"],
    }


def _find(run: str) -> Json:
    if len(run) < 6:
        raise InputError(f"run {run!r} is too short; give at least six characters of its key or of its MLflow id")
    records = query(current_layout(), "SELECT * FROM runs", memory=kept_memory()).to_pylist()
    means = [record for record in records if any(str(record.get(name) or "").startswith(run) for name in _NAMES)]
    if not means and not set(run) <= set(hexdigits):
        from tasks.tracking.model_versions import find_model

        logged = find_model(current_root(), run).run_id
        means = [record for record in records if record.get("mlflow_run_id") == logged]
    if len(means) != 1:
        known = ", ".join(str(record.get("run_key"))[:12] for record in records[-5:]) or "none yet"
        how = f"{len(means)} runs" if means else "no run"
        raise InputError(f"{how} of this root: {run!r} (the newest are {known}; or give a model)")
    return {
        name: json.loads(value) if name in _JSON and isinstance(value, str) else value
        for name, value in means[0].items()
        if name in RunResult.model_fields or name.startswith("config_")
    }


def _proof(manifests: Mapping[str, Mapping[str, object]]) -> str:
    """Return what is proved of each release, and the argument as its algorithm states it."""
    lines, texts = ["# What is proved, and how", ""], set()
    for key, manifest in manifests.items():
        algorithm = manifest.get("algorithm")
        lines += [f"## {manifest['label']} ({key[:12]})", ""]
        if not isinstance(algorithm, Mapping):
            lines += ["Made of the releases it names: post-processing, which is free.", ""]
            continue
        lines += [f"`{algorithm['kind']}/{algorithm['name']}`: {json.dumps(manifest['guarantee'], sort_keys=True)}", ""]
        trust = manifest["trust"]
        assert isinstance(trust, Mapping)
        for spec in (algorithm, trust):
            cls = lookup(str(spec["kind"]), str(spec["name"]))
            if cls not in texts:
                texts.add(cls)
                lines += [f"### {spec['kind']}/{spec['name']}", "", inspect.getdoc(cls) or "", ""]
    return "\n".join(lines)


@cache
def installed() -> Mapping[str, str]:
    """Return the versions installed here of Unitball and of all that it needs, extras apart: read once per process."""
    packages: dict[str, str] = {}
    waiting = ["unitball"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in packages:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        packages[name] = distribution.version
        needed = map(Requirement, distribution.requires or [])
        waiting += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return MappingProxyType(dict(sorted(packages.items())))
