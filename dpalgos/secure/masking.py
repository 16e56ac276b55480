"""ChaCha20 mask streams added to vectors modulo 2^64."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from dpalgos.rows import Ints

MODULUS_BITS = 64
Words = NDArray[np.uint64]

# Little-endian on every machine, so that two parties' streams agree.
_WORD = np.dtype("<u8")
_NONCE = bytes(16)
# Keystream is made and added in pieces that stay in the processor's cache.
_PIECE = 16_384
_ZEROS = bytes(8 * _PIECE)


def keystream(key: bytes, count: int) -> bytes:
    """Return the first ``count`` bytes of ChaCha20's keystream for a key used for nothing else (nonce zero)."""
    return bytes(Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor().update(bytes(count)))


def _combine(total: Words, key: bytes, operation: np.ufunc) -> None:
    encryptor = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()
    buffer = bytearray(8 * min(_PIECE, len(total)))
    for start in range(0, len(total), _PIECE):
        piece = total[start : start + _PIECE]
        encryptor.update_into(memoryview(_ZEROS)[: 8 * len(piece)], buffer)
        operation(piece, np.frombuffer(buffer, dtype=_WORD, count=len(piece)), out=piece)


def add_stream(total: Words, key: bytes) -> None:
    """Add a key's stream to the words in place, modulo 2^64."""
    _combine(total, key, np.add)


def subtract_stream(total: Words, key: bytes) -> None:
    """Subtract a key's stream from the words in place, modulo 2^64."""
    _combine(total, key, np.subtract)


def to_words(integers: Ints) -> Words:
    """Return a flat copy of signed integers as residues modulo 2^64 (two's complement)."""
    return np.array(integers, dtype=np.int64, copy=True).reshape(-1).view(np.uint64).astype(_WORD, copy=False)


def to_integers(words: Words) -> Ints:
    """Return the representatives from -2^63 to 2^63 - 1 of residues modulo 2^64."""
    return words.astype(np.uint64, copy=True).view(np.int64)
