"""Errors of storage, sorted by what the caller can do about them."""


class StorageError(Exception):
    """Something stored is missing, damaged or cannot be written; the message says what and the way out."""


class InputError(ValueError):
    """Bad input data or a bad argument; the message names the place, the value, the bound and the way out."""


class RefusedError(Exception):
    """Refused for privacy: a cap would be exceeded, or something unproved would read private rows."""


class OverspendError(RefusedError):
    """A charge would exceed the cap of its account; nothing was charged."""


class DamagedError(StorageError):
    """A stored file does not match its digest; the message names the file."""


class FormatVersionError(StorageError):
    """Written by a newer Unitball than this one."""


class SecretError(StorageError):
    """A party's secret is missing, readable by others, or not the one a release was charged under."""
