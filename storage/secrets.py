"""Secrets: one key per party in a file that only its owner reads, or in the environment; never shown, never pickled."""

from __future__ import annotations

import hmac
import os
import re
import stat
from pathlib import Path
from typing import NoReturn

from storage.atomic import write_once
from storage.errors import SecretError
from storage.layout import FINGERPRINTS, ROOT_KEY, Layout, path_component

_BYTES = 32


class Secret(bytes):
    """Key bytes that do not show themselves in logs and do not let themselves be pickled."""

    def __repr__(self) -> str:
        return f"<secret of {len(self)} bytes>"

    __str__ = __repr__

    def __format__(self, _spec: str) -> str:
        return repr(self)

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("a secret cannot be pickled: read it where it is used")


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
                    f"{path} has mode {mode:04o}: users other than its owner can access it; run: chmod 600 {path}"
                )
            value = file.read(_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SecretError(f"cannot read {path}: {error.strerror}; its owner must be able to read it") from error
    if len(value) != _BYTES:
        raise SecretError(f"{path} must hold {_BYTES} bytes; restore it from its back-up")
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
        If it is missing, can be reached by others, or is not 32 bytes; or if a new key would replace it although
        private rows are stored, whose fingerprints could no longer be compared.
    """
    key = _read(path)
    if key is not None:
        return key
    kept = next(path.parent.glob(f"datasets/[!.]*/{FINGERPRINTS}"), None) if path.name == ROOT_KEY else None
    if not create or kept is not None:
        why = f"private rows are stored under it (in {kept.parent})" if kept else "the ledger is keyed with it"
        raise SecretError(f"{path} is missing, and {why}: restore it from its back-up. Nothing was charged")
    return _read_or_create(path)


def _read_or_create(path: Path) -> Secret:
    secret = _read(path)
    if secret is not None:
        return secret
    write_once(path, os.urandom(_BYTES))
    created = _read(path)
    if created is None:
        raise SecretError(f"{path} vanished during its creation; try again")
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
    """Return the party's secret without ever making one: a release already charged must not be redrawn.

    Raises
    ------
    SecretError
        If it is missing, can be reached by others, or is not 32 bytes.
    """
    secret = _from_environment(party) or _read(layout.party_secret(party))
    if secret is None:
        raise SecretError(
            f"the secret is missing: neither {layout.party_secret(party)} nor {environment_name(party)} exists; "
            "restore it from its back-up"
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


def root_name(layout: Layout) -> str:
    """Return what others may know this root by, wherever it lies; it does not tell the root's secret.

    Raises
    ------
    SecretError
        As :func:`root_secret` does.
    """
    return hmac.digest(root_secret(layout), b"unitball name of a root", "sha256").hex()[:16]
