"""The noise of private releases: AES keystreams keyed by a party's secret, the release, the step and the value."""

import hashlib
import hmac
import threading
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from dpalgos.parameters import ParameterError
from dpalgos.rows import Array

SECRET_BYTES = 32
"""Length of a party's secret."""

_DOMAIN = b"unitball/noise/1"


def _framed(*parts: bytes) -> bytes:
    """Join byte strings so that no two different sequences give the same bytes."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _derive(secret: bytes, purpose: str, *parts: bytes, length: int = 32) -> bytes:
    info = _framed(_DOMAIN, purpose.encode(), *parts)
    return bytes(HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(secret))


def _require_secret(secret: bytes) -> None:
    # The message must not repeat the value.
    if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
        size = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
        raise ParameterError(
            f"a noise secret is {SECRET_BYTES} bytes, this one is {size}; make one with secrets.token_bytes(32)"
        )


def public_secret(seed: int) -> bytes:
    """Return the secret that a public seed stands for: repeatable noise on public data, without any privacy."""
    return _derive(bytes(SECRET_BYTES), "public seed", str(int(seed)).encode())


def key_identifier(secret: bytes) -> str:
    """Return 32 hexadecimal digits by which a ledger notices that a party's secret was lost or changed.

    Derived one way and under a separate purpose: it reveals neither the secret nor any keystream.
    """
    _require_secret(secret)
    return _derive(secret, "key identifier", length=16).hex()


def _canonical(value: Array) -> bytes:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise ParameterError(f"noise cannot be keyed by an array of {array.dtype}; give booleans, integers or floats")
    ordered = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    shape = b",".join(str(size).encode() for size in array.shape)
    kind = f"{array.dtype.kind}{array.dtype.itemsize}".encode()
    return _framed(kind, shape, ordered.tobytes())


class KeyStream:
    """One keystream: AES-256 in counter mode from zero, read as little-endian 64-bit words.

    Every stream has its own key, so the counter may start at zero. Reading ``a`` words and then ``b`` gives the
    same words as reading ``a + b`` at once. Safe to use from several threads, though then the order of the threads
    decides who gets which words.

    Parameters
    ----------
    key : bytes
        32 bytes, used only here.
    """

    __slots__ = ("_encryptor", "_lock")

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        self._lock = threading.Lock()

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next ``count`` uniform 64-bit words."""
        if count < 0:
            raise ParameterError(f"{count} words were requested from a keystream; request at least 0")
        out = np.zeros(count, dtype="<u8")
        if count:
            view = out.data.cast("B")
            with self._lock:
                self._encryptor.update_into(view, view)
        return out.astype(np.uint64, copy=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a keystream cannot be pickled: its key must not leave the process")


class KeyedNoise:
    """The randomness of one release (a :class:`dpalgos.rows.NoiseSource`).

    Guarantee
    ---------
    Under the assumptions that HMAC-SHA256 is a pseudo-random function and AES-256 a pseudo-random permutation, the
    streams of all triples (release, step, value) under one unknown secret are indistinguishable from independent
    uniform words. Equal triples give equal streams: computing a release again repeats its bytes, and a value that
    changed in its last bit meets noise that is independent of the first. Proof sketch: the key of a stream is
    ``HKDF(secret, info)``, where ``info`` encodes the purpose, the identity, the step and
    ``HMAC(HKDF(secret, "value"), value)`` with the length of every part, so different triples give different ``info``
    unless HMAC collides; HKDF's output is one HMAC evaluation under a key extracted from the secret, hence
    pseudo-random at different ``info``; counter mode under a fresh key is pseudo-random up to 2^-64 for 2^32 blocks.

    The value enters through a keyed hash: without the secret, nothing that is derived from it can be used to test a
    guess of the value.

    Parameters
    ----------
    secret : bytes
        The party's own secret, 32 bytes from a cryptographic generator. Never shared: anyone who knows it can subtract
        the noise.
    identity : str
        The release's identity.

    References
    ----------
    Krawczyk, Eronen, RFC 5869 (HKDF); NIST SP 800-38A (counter mode).
    """

    __slots__ = ("_identity", "_secret", "_value_key")

    def __init__(self, secret: bytes, identity: str) -> None:
        _require_secret(secret)
        self._secret = secret
        self._identity = identity.encode()
        self._value_key = _derive(secret, "value")

    def stream(self, step: str, value: Array) -> KeyStream:
        """Return the stream for one draw, from its beginning.

        Parameters
        ----------
        step : str
            Names the draw within the release.
        value : array of booleans, integers or floats
            What the noise is about to hide; its type, shape and bytes are part of the key.
        """
        tag = hmac.digest(self._value_key, _canonical(value), hashlib.sha256)
        return KeyStream(_derive(self._secret, "stream", self._identity, step.encode(), tag))

    def __repr__(self) -> str:
        return f"KeyedNoise(key={key_identifier(self._secret)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a noise source cannot be pickled: its secret must not leave the process")
