"""Images from outside as numbers: decoded in a separate process, within limits on its time and memory.

That process has no key, and an image that ends it, by a fault of a decoder or by its limits, is one refused image:
those after it are read by another process.
"""

import base64
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.confined import confined
from storage.errors import EndedError, StorageError
from storage.names import visible
from storage.pictures.declaration import Pictures, Pixels
from storage.pictures.decoding import MOST_BYTES, PictureError

Numbers = NDArray[np.float64]

_PROCESS = "storage.pictures.decoding_process"
# Of processor time for each picture; the largest that are taken need a sixth of it (10 seconds, measured).
_SECONDS = 60
# The largest that are taken need two thirds of it: 2^26 pixels of four channels, and what they become on the way.
_MEMORY = 1 << 31
# Pictures that a process is given at once: by their number, and by their bytes.
_MANY, _MUCH = 4096, 1 << 26
_ENDED = {
    "time": f"takes more than {_SECONDS} seconds to decode; convert it, or make it smaller first",
    "memory": f"takes more than {_MEMORY >> 20:,} MiB to decode; convert it, or make it smaller first",
    "died": "ended the process that decoded it; it is damaged, or made to do so",
}


def read_files(paths: Sequence[str], declared: Pictures) -> Generator[Numbers | PictureError, None, None]:
    """Yield the numbers of the image in each file, (dimension,) in [0, 1], or why it cannot be taken.

    Parameters
    ----------
    paths : sequence of str
    declared : Images
    """
    for piece in _pieces("files", paths, declared.document):
        yield _numbers(piece, declared)


def read_contents(contents: Sequence[Any], declared: Pictures) -> Generator[Numbers | PictureError, None, None]:
    """Yield what :func:`read_files` does of files whose bytes are given; only bytes are accepted.

    Parameters
    ----------
    contents : sequence of bytes-like
    declared : Images
    """
    refused = {place: found for place, one in enumerate(contents) if (found := _no_file(one)) is not None}
    sound = [one for place, one in enumerate(contents) if place not in refused]
    with closing(_contents(sound, declared)) as numbers:
        for place in range(len(contents)):
            yield refused[place] if place in refused else next(numbers)


def _contents(contents: Sequence[Any], declared: Pictures) -> Generator[Numbers | PictureError, None, None]:
    start = 0
    while start < len(contents):
        batch, size = list[str](), 0
        while start + len(batch) < len(contents) and size < _MUCH and len(batch) < _MANY:
            batch.append(base64.b64encode(contents[start + len(batch)]).decode())
            size += len(batch[-1])
        for piece in _pieces("contents", batch, declared.document):
            yield _numbers(piece, declared)
        start += len(batch)


def kinds_of(paths: Sequence[str]) -> Iterator[Pixels | PictureError]:
    """Yield what a pixel of the image in each file is, by its header, or why it cannot be taken."""
    for piece in _pieces("kinds", paths):
        yield piece if isinstance(piece, PictureError) else Pixels(piece.decode())


def _no_file(content: Any) -> PictureError | None:
    if not isinstance(content, (bytes, bytearray, memoryview)):
        return PictureError(f"is a {type(content).__name__}, not the bytes of a file")
    if len(content) > MOST_BYTES:
        return PictureError(f"has {len(content)} bytes; an image has 1 to {MOST_BYTES}")
    return None


def _numbers(piece: bytes | PictureError, declared: Pictures) -> Numbers | PictureError:
    if isinstance(piece, PictureError):
        return piece
    if len(piece) != 8 * declared.dimension:
        raise StorageError(
            f"the process that decodes images gave {len(piece)} bytes for {declared.dimension} numbers; try again"
        )
    return np.frombuffer(piece, dtype=np.float64)


def _pieces(function: str, items: Sequence[str], *arguments: Any) -> Generator[bytes | PictureError, None, None]:
    """Yield what a function of the other process answers of each item, or why an image cannot be taken."""
    start = 0
    while start < len(items):
        batch, done = list(items[start : start + _MANY]), 0
        work = confined(f"{_PROCESS}:{function}", batch, *arguments, place="an image", memory=_MEMORY, seconds=_SECONDS)
        with closing(work):
            try:
                for done, piece in enumerate(work, start=1):
                    taken, answer = piece[:1] == b"\0", piece[1:]
                    yield answer if taken else PictureError(visible(answer.decode("utf-8", "replace")))
                    if done == len(batch):
                        break
            except EndedError as error:
                done += 1
                yield PictureError(_ENDED[error.why])
        if not done:
            raise StorageError("the process that decodes images returned none; try again")
        start += done
