"""The key schedule, the stream, and NumPy's generator on top of it."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpalgos.keystream import KeyedNoise, KeyStream, key_identifier, public_secret
from dpalgos.parameters import ParameterError
from dpalgos.rows import normals, uniforms
from tests.support.statistics import rejects_independence, rejects_law, rejects_probability
from tests.support.streams import ChosenWords

SECRET = bytes(range(32))
VALUE = np.array([[1, -2, 3], [4, 5, -6]], dtype=np.int64)


def source(identity: str = "release-1") -> KeyedNoise:
    return KeyedNoise(SECRET, identity)


def fractions(words: Any) -> Any:
    return np.asarray(words, dtype=np.float64) * 2.0**-64


def test_known_answers() -> None:
    # Frozen: if this changes, every release on disk is drawn again with fresh noise when it is recomputed.
    assert source().stream("covariance", VALUE).words(3).tolist() == [
        4493115540959675231,
        5145516499843945850,
        4914355801850181013,
    ]
    assert key_identifier(SECRET) == "1ec82b744775a498e3e6c72593f5b7fb"
    assert public_secret(2024).hex() == "09e50eeee0ec21be5f1723a298b1ea4af4161bdfe92c9baa281e253ee41c6c0e"


def hkdf(secret: bytes, info: bytes, length: int = 32) -> bytes:
    """RFC 5869 with an empty salt, written out; one block is enough."""
    extracted = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)[:length]


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def test_key_schedule_written_out_a_second_time() -> None:
    domain = b"unitball/noise/1"
    value_key = hkdf(SECRET, framed(domain, b"value"))
    tag = hmac.digest(value_key, framed(b"i8", b"2,3", VALUE.astype("<i8").tobytes()), hashlib.sha256)
    key = hkdf(SECRET, framed(domain, b"stream", b"release-1", b"covariance", tag))
    plain = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * 5000))
    assert np.array_equal(np.frombuffer(plain, dtype="<u8"), source().stream("covariance", VALUE).words(5000))
    assert key_identifier(SECRET) == hkdf(SECRET, framed(domain, b"key identifier"), 16).hex()


def variations() -> dict[str, KeyStream]:
    """One stream for every single thing that may change about a draw."""
    nearly = np.array([1.0, 2.0])
    last_bit = np.array([1.0, np.nextafter(2.0, 3.0)])
    return {
        "reference": source().stream("step", VALUE),
        "secret": KeyedNoise(SECRET[:-1] + b"\x00", "release-1").stream("step", VALUE),
        "identity": source("release-2").stream("step", VALUE),
        "step": source().stream("step-2", VALUE),
        "boundary between identity and step": source("release-1step").stream("", VALUE),
        "value": source().stream("step", VALUE + 1),
        "shape": source().stream("step", VALUE.reshape(3, 2)),
        "type of equal bytes": source().stream("step", VALUE.view(np.uint64)),
        "width": source().stream("step", VALUE.astype(np.int32)),
        "float": source().stream("step", nearly),
        "float in its last bit": source().stream("step", last_bit),
        "empty": source().stream("step", VALUE[:0]),
        "public seed 0": KeyedNoise(public_secret(0), "release-1").stream("step", VALUE),
        "public seed 1": KeyedNoise(public_secret(1), "release-1").stream("step", VALUE),
    }


def test_whatever_changes_changes_the_whole_stream() -> None:
    words = {name: stream.words(20_000) for name, stream in variations().items()}
    reference = words.pop("reference")
    for name, other in words.items():
        signs = fractions(reference) - 0.5, fractions(other) - 0.5
        assert not rejects_independence(*signs), name
    assert len({row.tobytes() for row in words.values()}) == len(words)
    # The mutants: the same stream again, and a stream that shares every tenth word.
    assert rejects_independence(fractions(reference) - 0.5, fractions(reference) - 0.5)
    shared = np.where(np.arange(20_000) % 10 == 0, reference, words["value"])
    assert rejects_independence(fractions(reference) - 0.5, fractions(shared) - 0.5)


def test_equal_draws_repeat() -> None:
    first = source().stream("step", VALUE)
    again = KeyedNoise(bytes(SECRET), "release-1").stream("step", np.asfortranarray(VALUE.copy()))
    strided = np.repeat(VALUE, 2, axis=1)[:, ::2]
    swapped = VALUE.astype(VALUE.dtype.newbyteorder(">"))
    expected = first.words(100)
    assert np.array_equal(again.words(100), expected)
    assert np.array_equal(source().stream("step", strided).words(100), expected)
    assert np.array_equal(source().stream("step", swapped).words(100), expected)


def test_reading_in_pieces_is_reading_at_once() -> None:
    whole = source().stream("step", VALUE).words(1000)
    stream = source().stream("step", VALUE)
    pieces = [stream.words(count) for count in (0, 1, 2, 3, 500, 494)]
    assert np.array_equal(np.concatenate(pieces), whole)
    assert whole.dtype == np.uint64


def test_words_are_uniform() -> None:
    words = source().stream("step", VALUE).words(200_000)
    assert not rejects_law(fractions(words), lambda x: x)
    for bit in range(64):
        ones = int(((words >> np.uint64(bit)) & np.uint64(1)).sum())
        assert not rejects_probability(ones, len(words), 0.5, 1e-9 / 64)
    assert rejects_law(fractions(words) ** 1.05, lambda x: x)


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33), "x" * 32])
def test_secrets_of_the_wrong_size_are_refused_without_being_shown(secret: Any) -> None:
    with pytest.raises(ParameterError, match="32 bytes") as caught:
        KeyedNoise(secret, "release")
    assert "xxx" not in str(caught.value)
    with pytest.raises(ParameterError):
        key_identifier(secret)


@pytest.mark.parametrize(
    "value", [np.array([object()]), np.array(["a"]), np.array([1j]), np.array([1.0], np.longdouble)]
)
def test_values_without_canonical_bytes_are_refused(value: Any) -> None:
    with pytest.raises(ParameterError, match=r"^noise.*array"):
        source().stream("step", value)


def test_nothing_shows_or_carries_the_secret() -> None:
    noise = source()
    stream = noise.stream("step", VALUE)
    for item in (noise, stream):
        assert SECRET.hex() not in repr(item)
        assert repr(SECRET) not in repr(item)
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(item)
    assert not hasattr(noise, "__dict__")


def test_numbers_of_a_stream_have_their_laws() -> None:
    from scipy.special import ndtr

    words = source().stream("step", VALUE).words(100_000)
    drawn = uniforms(source().stream("step", VALUE), 100_000)
    assert np.array_equal(drawn, ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
    assert drawn.min() > 0.0
    assert drawn.max() < 1.0
    gaussian = normals(source().stream("step", VALUE), 100_000)
    assert not rejects_law(gaussian, ndtr)
    assert rejects_law(1.05 * gaussian, ndtr)


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_no_word_makes_an_infinite_number(word: int) -> None:
    assert np.isfinite(normals(ChosenWords([word]), 1)).all()
    assert 0.0 < uniforms(ChosenWords([word]), 1)[0] < 1.0
