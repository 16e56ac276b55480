"""Streams for tests: seeded ones, ones with chosen words, and the broken ones that tests must catch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpalgos.keystream import KeyedNoise, KeyStream, public_secret


def seeded(seed: int, step: str = "test") -> KeyStream:
    """Return a stream of its own for a test."""
    return KeyedNoise(public_secret(seed), "test").stream(step, np.zeros(0))


class ChosenWords:
    """A stream that returns the given words, and fails when more are asked for."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words = np.array(words, dtype=np.uint64)

    def words(self, count: int) -> NDArray[np.uint64]:
        assert count <= len(self._words), "more words were read than the test provides"
        taken, self._words = self._words[:count], self._words[count:]
        return taken

    @property
    def left(self) -> int:
        return len(self._words)


class CountedWords:
    """A stream that counts how many words were read."""

    def __init__(self, stream: KeyStream) -> None:
        self._stream, self.read = stream, 0

    def words(self, count: int) -> NDArray[np.uint64]:
        self.read += count
        return self._stream.words(count)
