"""PNG of every colour type, depth and kind of transparency, against another decoder (pypng)."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import png
import pytest
from numpy.typing import NDArray

from storage.pictures.declaration import Alpha, Palettes, Pictures, Pixels
from storage.pictures.decoding import PictureError, read_picture
from tests.support import pictures

SIDE = 11
TRANSPARENT = ("none", "present", "absent")


def _written(channels: int, depth: int, transparent: str, interlaced: bool, random: np.random.Generator) -> bytes:
    """Return a PNG of random pixels; of no more channels than 4 with a palette (0)."""
    largest = (1 << depth) - 1
    pixels = random.integers(0, largest + 1, (SIDE, SIDE * max(channels, 1)), dtype=np.uint16)
    if transparent == "absent":
        # A value that no pixel has.
        pixels = np.minimum(pixels, largest - 1)
    value = {"none": None, "absent": largest}.get(transparent, int(pixels[0, 0]))
    given: dict[str, Any] = {"bitdepth": depth, "interlace": interlaced, "greyscale": channels in (1, 2)}
    given["alpha"] = channels in (2, 4)
    if channels == 0:
        shades = random.integers(0, 256, (largest + 1, 3 if value is None else 4)).tolist()
        given = {"palette": [tuple(one) for one in shades], "bitdepth": depth, "interlace": interlaced}
    elif value is not None:
        given["transparent"] = value if channels == 1 else tuple(int(one) for one in pixels[0, :3])
        if channels == 3 and transparent == "absent":
            given["transparent"] = (value,) * 3
    out = io.BytesIO()
    png.Writer(SIDE, SIDE, **given).write(out, pixels.tolist())
    return out.getvalue()


def _layers(content: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return by pypng the pixels, (side, side, 1 or 3), and their opacity, both up to a largest value."""
    _, _, rows, about = png.Reader(bytes=content).asDirect()
    values = np.array([list(row) for row in rows], dtype=np.int64).reshape(SIDE, SIDE, about["planes"])
    largest = 65535 if about["bitdepth"] == 16 else 255
    values = values * largest // ((1 << about["bitdepth"]) - 1)
    if about["alpha"]:
        return values[:, :, :-1], values[:, :, -1], largest
    return values, np.full((SIDE, SIDE), largest), largest


CASES = [
    *((1, depth, transparent) for depth in (1, 2, 4, 8, 16) for transparent in TRANSPARENT),
    *((3, 8, transparent) for transparent in TRANSPARENT),
    *((0, depth, transparent) for depth in (1, 2, 4, 8) for transparent in ("none", "present")),
    (2, 8, "none"),
    (4, 8, "none"),
]


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("channels", "depth", "transparent"), CASES)
def test_pixels_are_those_of_another_decoder(
    channels: int, depth: int, transparent: str, interlaced: bool, random: np.random.Generator
) -> None:
    content = _written(channels, depth, transparent, interlaced, random)
    values, opacity, largest = _layers(content)
    deep = Pixels.GREY_16 if depth == 16 else Pixels.COLOUR
    for alpha in Alpha:
        declared = Pictures(side=SIDE, pixels=deep, alpha=alpha, palettes=Palettes.COLOURS)
        if alpha is Alpha.REFUSE and (opacity < largest).any():
            with pytest.raises(PictureError, match="--alpha"):
                read_picture(io.BytesIO(content), declared)
            continue
        covered = np.full_like(opacity, largest) if alpha is Alpha.IGNORE else opacity
        ground = largest if alpha is Alpha.WHITE else 0
        laid = (values * covered[:, :, None] + ground * (largest - covered[:, :, None]) + largest // 2) // largest
        expected = np.broadcast_to(laid, (SIDE, SIDE, declared.kind.channels)).transpose(2, 0, 1).ravel() / largest
        assert np.array_equal(read_picture(io.BytesIO(content), declared), expected), alpha
    if transparent == "present":
        # Else the comparison would be of pictures without transparency.
        assert (opacity < largest).any()


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_colours_of_16_bits_are_refused(channels: int, random: np.random.Generator) -> None:
    with pytest.raises(PictureError, match="16 bits"):
        read_picture(
            io.BytesIO(_written(channels, 16, "none", False, random)), Pictures(side=SIDE, pixels=Pixels.COLOUR)
        )


@pytest.mark.parametrize(("depth", "colour"), [(1, 0), (2, 0), (4, 0), (8, 0), (8, 2)])
def test_of_the_transparent_value_the_bits_of_the_depth_count(depth: int, colour: int) -> None:
    """The field has 16 bits; the standard's words and libpng's way, since pypng compares all of them."""
    largest, channels = (1 << depth) - 1, 3 if colour else 1
    lines = (b"\0" + bytes([0xFF]) * (channels if depth == 8 else 1)) * 1
    value = (0xFFFF & ~0x80).to_bytes(2, "big") if depth != 8 else b"\x12\xff"
    content = pictures.png(1, 1, depth, colour, lines, (b"tRNS", value * channels))
    assert int.from_bytes(value, "big") & largest == largest
    found = read_picture(io.BytesIO(content), Pictures(side=1, pixels=Pixels.COLOUR, alpha=Alpha.BLACK))
    assert np.array_equal(found, np.zeros(3))


def test_a_picture_that_is_opaque_everywhere_has_no_transparent_pixel() -> None:
    """Once refused for the channel alone, as tools that always write one have it."""
    for shape in ((4, 4, 2), (4, 4, 4)):
        opaque = np.full(shape, 255, np.uint8)
        opaque[:, :, 0] = 51
        found = read_picture(io.BytesIO(pictures.encoded(opaque)), Pictures(side=1, pixels=Pixels.COLOUR))
        assert np.array_equal(found, [0.2, 0.2, 0.2] if shape[2] == 2 else [0.2, 1.0, 1.0])
        opaque[3, 3, -1] = 254
        with pytest.raises(PictureError, match="--alpha"):
            read_picture(io.BytesIO(pictures.encoded(opaque)), Pictures(side=1, pixels=Pixels.COLOUR))
