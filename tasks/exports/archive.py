"""The archive: named members, their digests in one list, and a signature of that list.

Guarantee. Where :func:`read` returns, every member is the one that the list names, nothing is missing or added, and the
list was signed with the private half of the key that the archive names (Ed25519, RFC 8032). Whose key that is, the
archive cannot say by itself: compare its fingerprint with one that the owner has given by another channel.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import error as zlib_error

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from storage.errors import DamagedError, FormatVersionError, InputError
from storage.manifests import canonical
from storage.secrets import Secret

__all__ = ["Archive", "fingerprint", "pack", "read", "signing_key"]

FORMAT_VERSION = 1
_CONTENTS, _SIGNATURE = "contents.json", "signature.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MOST_BYTES, _MOST_MEMBERS = 4 * 2**30, 100_000


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


def signing_key(secret: Secret) -> Ed25519PrivateKey:
    """Return the key that a root signs its exports with, derived from the root's secret (HKDF-SHA256)."""
    seed = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"unitball export signature").derive(secret)
    return Ed25519PrivateKey.from_private_bytes(seed)


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of a public key, in hexadecimal."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def pack(members: Mapping[str, bytes], key: Ed25519PrivateKey) -> bytes:
    """Return the archive of some members: a ZIP file whose bytes depend on them and the key alone."""
    listed = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    contents = canonical({"format_version": FORMAT_VERSION, "members": listed})
    signature = canonical({"key": key.public_key().public_bytes_raw().hex(), "signature": key.sign(contents).hex()})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in {**members, _CONTENTS: contents, _SIGNATURE: signature}.items():
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            file.writestr(entry, data)
    return buffer.getvalue()


def read(path: Path) -> Archive:
    """Return the members of an archive, digests and signature checked; nothing is unpacked to disk.

    Raises
    ------
    InputError
        If it is no such archive, or unfolds to more than one may hold.
    DamagedError
        If a member is not the one that was signed, or the signature is not the key's, naming which.
    FormatVersionError
        If a newer Unitball wrote it.
    """
    try:
        with zipfile.ZipFile(path) as file:
            return _checked(path, _unfolded(path, file))
    except (OSError, zipfile.BadZipFile, zipfile.LargeZipFile, RuntimeError, NotImplementedError) as error:
        raise InputError(f"{path} is no archive of an export: {getattr(error, 'strerror', None) or error}") from error


def _unfolded(path: Path, file: zipfile.ZipFile) -> dict[str, bytes]:
    entries = file.infolist()
    if len(entries) > _MOST_MEMBERS or sum(entry.file_size for entry in entries) > _MOST_BYTES:
        raise InputError(f"{path} holds more than {_MOST_MEMBERS:,} files or {_MOST_BYTES:,} bytes, as no export does")
    if len({entry.filename for entry in entries}) != len(entries):
        raise DamagedError(f"{path} names a member twice; ask for the archive again")
    found = {}
    for entry in entries:
        try:
            with file.open(entry) as stream:
                # The stated size is the archive's word only.
                found[entry.filename] = stream.read(entry.file_size + 1)
        except (zipfile.BadZipFile, EOFError, ValueError, zlib_error) as error:
            raise DamagedError(f"{path}: {entry.filename} is damaged ({error}); ask for the archive again") from error
    return found


def _checked(path: Path, members: dict[str, bytes]) -> Archive:
    try:
        contents, signature = members.pop(_CONTENTS), json.loads(members.pop(_SIGNATURE))
        listed = json.loads(contents)
        version = int(listed["format_version"])
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["key"]))
        signed = bytes.fromhex(signature["signature"])
        digests = dict(listed["members"])
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"{path} has no readable {_CONTENTS} and {_SIGNATURE} ({error}): no export") from error
    if version > FORMAT_VERSION:
        raise FormatVersionError(f"{path} has format version {version}, newer than {FORMAT_VERSION}; upgrade Unitball")
    try:
        key.verify(signed, contents)
    except InvalidSignature as error:
        raise DamagedError(f"{path}: {_CONTENTS} is not what was signed; ask for the archive again") from error
    if strange := sorted(set(members) ^ set(digests)):
        raise DamagedError(f"{path}: {', '.join(strange[:5])} was added or is missing; ask for the archive again")
    for name, data in members.items():
        if hashlib.sha256(data).hexdigest() != digests[name]:
            raise DamagedError(f"{path}: {name} is not what was signed; ask for the archive again")
    return Archive(members, fingerprint(key))
