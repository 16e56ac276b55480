"""Module that a separate process (:mod:`storage.confined`) imports to decode images.

Each image is answered by one piece: the byte 0 and the answer, or the byte 1 and why it cannot be taken.
"""

import base64
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any

import numpy as np
from PIL import Image

from storage.pictures.declaration import Pictures
from storage.pictures.decoding import PictureError, kind_of, open_picture, read_picture

TAKEN, REFUSED = b"\0", b"\1"

# Before the first picture: each process is forked from the one that has imported this.
Image.init()


def files(paths: Sequence[str], declared: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the numbers of images in files, float64."""
    pictures = Pictures.from_document(declared)
    for path in paths:
        yield _answer(partial(open_picture, path), lambda file: _numbers(file, pictures))


def contents(encoded: Sequence[str], declared: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the numbers of images whose files' bytes are given in base 64, float64."""
    pictures = Pictures.from_document(declared)
    for text in encoded:
        yield _answer(partial(_decoded, text), lambda file: _numbers(file, pictures))


def kinds(paths: Sequence[str]) -> Iterator[bytes]:
    """Yield what a pixel of each file is, by its header."""
    for path in paths:
        yield _answer(partial(open_picture, path), lambda file: str(kind_of(file)).encode())


def _numbers(file: IO[bytes], pictures: Pictures) -> bytes:
    return np.ascontiguousarray(read_picture(file, pictures), dtype=np.float64).tobytes()


def _decoded(text: str) -> IO[bytes]:
    return io.BytesIO(base64.b64decode(text))


def _answer(opened: Callable[[], IO[bytes]], read: Callable[[IO[bytes]], bytes]) -> bytes:
    try:
        with opened() as file:
            return TAKEN + read(file)
    except PictureError as error:
        return REFUSED + str(error).encode("utf-8", "backslashreplace")
