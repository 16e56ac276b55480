"""Folders of small pictures for tests."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from storage.pictures.declaration import Pictures, Pixels

GREY = Pictures(side=4, pixels=Pixels.GREY)


def encoded(pixels: Any, kind: str = "PNG", **more: Any) -> bytes:
    """Return the bytes of a picture of uint8 or uint16 pixels, or of one of Pillow's."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(np.asarray(pixels))
    buffer = io.BytesIO()
    image.save(buffer, kind, **more)
    return buffer.getvalue()


def png(width: int, height: int, depth: int, colour: int, data: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG of given header and unpacked lines: what Pillow does not write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", header), *(chunk(*one) for one in chunks), chunk(b"IDAT", zlib.compress(data))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def flat(value: int) -> bytes:
    """Return a grey picture of one value, by which it is known again."""
    return encoded(np.full((5, 4), value, dtype=np.uint8))


def halves(value: int) -> bytes:
    """Return a grey picture of a value and what it lacks of 255, which tell it however long its row is made."""
    return encoded(np.repeat(np.array([[value, 255 - value]], dtype=np.uint8), 4, axis=0))


def write_pictures(folder: Path, values: Mapping[str, int], make: Callable[[int], bytes] = flat) -> Path:
    """Write a picture of each value under its name."""
    for name, value in values.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make(value))
    return folder
