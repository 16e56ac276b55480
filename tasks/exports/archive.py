"""The archive: named members, their digests in one list, and a signature of that list.

Guarantee. Where :func:`read` returns, every member is the one that the list names, nothing is missing or added, and the
list was signed with the private half of the key that the archive names (Ed25519, RFC 8032). Whose key that is, the
archive cannot say by itself: compare its fingerprint with one that the owner has given by another channel.
"""

from __future__ import annotations

import hashlib
import io
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import error as zlib_error

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from storage.confined import admitted_memory
from storage.documents import UNREADABLE, open_archive, parse_json
from storage.errors import DamagedError, FormatVersionError, InputError
from storage.manifests import canonical
from storage.secrets import Secret

FORMAT_VERSION = 1
_CONTENTS, _SIGNATURE = "contents.json", "signature.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MOST_BYTES, _MOST_MEMBERS, _MOST_SIGNED = 4 * 2**30, 50_000, 2**24
_PIECE = 1 << 20


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
        data = b"".join(self.pieces(name, self._most))
        self._require_signed(name, hashlib.sha256(data).hexdigest())
        return data

    def pieces(self, name: str, most: int) -> Iterator[bytes]:
        """Yield what a member holds, a megabyte at a time."""
        entry = self._entries[name]
        if entry.file_size > most:
            raise InputError(
                f"{self._path}: {name} states {entry.file_size:,} bytes; {most:,} are read (UNITBALL_MEMORY)"
            )
        done = 0
        try:
            with self._file.open(entry) as stream:
                while piece := stream.read(_PIECE):
                    done += len(piece)
                    if done > entry.file_size:
                        raise EOFError("it holds more than it states")
                    yield piece
        except (*UNREADABLE, zlib_error) as error:
            raise DamagedError(f"{self._path}: {name} is damaged ({error}); ask for the archive again") from error

    def check(self, digests: Mapping[str, str]) -> None:
        """Take the signed list, and compare every member with it, in pieces."""
        self.digests = digests
        if strange := sorted(set(self._entries) - {_CONTENTS, _SIGNATURE} ^ set(digests)):
            raise DamagedError(f"{self._path}: {', '.join(strange[:5])} was added or is missing; ask for it again")
        if sum(entry.file_size for entry in self._entries.values()) > _MOST_BYTES:
            raise InputError(f"{self._path} states more than {_MOST_BYTES:,} bytes, as no export does")
        for name in digests:
            digest = hashlib.sha256()
            for piece in self.pieces(name, self._most):
                digest.update(piece)
            self._require_signed(name, digest.hexdigest())

    def _require_signed(self, name: str, digest: str) -> None:
        if digest != self.digests[name]:
            raise DamagedError(f"{self._path}: {name} is not what was signed; ask for the archive again")


def read(path: Path) -> Archive:
    """Return the members of an archive, signature and digests checked; nothing is unpacked to disk.

    The signed list is read first, and nothing else unless its signature holds. Members are compared with it in pieces
    and read again where they are asked for, so that one of them is in memory at a time.

    Raises
    ------
    InputError
        If it is no such archive, or unfolds to more than one may hold, or a member to more than is admitted
        (:func:`storage.confined.admitted_memory`).
    DamagedError
        If a member is not the one that was signed, or the signature is not the key's, naming which.
    FormatVersionError
        If a newer Unitball wrote it.
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
        raise InputError(f"{path} is no archive of an export: {getattr(error, 'strerror', None) or error}") from error
    digests, signer = _signed(path, members)
    members.check(digests)
    return Archive(members, signer)


def _signed(path: Path, members: _Members) -> tuple[dict[str, str], str]:
    """Return the signed digests by name and the signer's fingerprint."""
    try:
        contents, written = (b"".join(members.pieces(name, _MOST_SIGNED)) for name in (_CONTENTS, _SIGNATURE))
        signature = parse_json(written, f"{path}: {_SIGNATURE}")
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["key"]))
        signed = bytes.fromhex(signature["signature"])
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"{path} has no readable {_CONTENTS} and {_SIGNATURE} ({error}): no export") from error
    try:
        key.verify(signed, contents)
    except InvalidSignature as error:
        raise DamagedError(f"{path}: {_CONTENTS} is not what was signed; ask for the archive again") from error
    try:
        listed = parse_json(contents, f"{path}: {_CONTENTS}")
        version, digests = int(listed["format_version"]), dict(listed["members"])
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"{path} has no readable {_CONTENTS} and {_SIGNATURE} ({error}): no export") from error
    if version > FORMAT_VERSION:
        raise FormatVersionError(f"{path} has format version {version}, newer than {FORMAT_VERSION}; upgrade Unitball")
    return digests, fingerprint(key)
