"""Pictures as numbers: what is read, exactly; what is refused, and why."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from storage.errors import InputError
from storage.pictures.declaration import Alpha, Fit, Palettes, Pictures, Pixels
from storage.pictures.decoding import PictureError, kind_of, open_picture, read_picture
from tests.support.pictures import GREY, encoded, png

COLOUR = Pictures(side=2, pixels=Pixels.COLOUR)
DEEP = Pictures(side=2, pixels=Pixels.GREY_16)


def read(content: bytes, declared: Pictures) -> NDArray[np.float64]:
    return read_picture(io.BytesIO(content), declared)


def _averaged(picture: NDArray[Any], side: int, fit: Fit) -> NDArray[np.float64]:
    """The textbook's way: each pixel's share of each cell, summed; (height, width, channels) to (channels, …)."""
    height, width = picture.shape[:2]
    length = (min if fit is Fit.MIDDLE else max)(height, width)
    weights = []
    for size in (height, width):
        start = (size - length) // 2
        ends = start + np.arange(side + 1) * length / side
        pixels = np.arange(size)
        share = np.minimum(ends[1:, None], pixels + 1) - np.maximum(ends[:-1, None], pixels)
        weights.append(np.clip(share, 0, None) * side / length)
    return np.asarray(np.einsum("ay,yxc,bx->cab", weights[0], picture.astype(float), weights[1]))


@pytest.mark.parametrize("fit", Fit)
@pytest.mark.parametrize(("height", "width", "side"), [(7, 5, 3), (64, 48, 32), (3, 4, 7), (1, 900, 4), (6, 6, 6)])
def test_cells_are_means_of_areas(height: int, width: int, side: int, fit: Fit, random: np.random.Generator) -> None:
    for pixels, depth, channels in (
        (Pixels.COLOUR, np.uint8, 3),
        (Pixels.GREY, np.uint8, 1),
        (Pixels.GREY_16, np.uint16, 1),
    ):
        picture = random.integers(0, np.iinfo(depth).max, (height, width, channels), dtype=depth)
        content = encoded(picture if channels == 3 else picture[:, :, 0])
        found = read(content, Pictures(side=side, pixels=pixels, fit=fit)).reshape(channels, side, side)
        expected = _averaged(picture, side, fit) / np.iinfo(depth).max
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_a_picture_of_the_declared_side_keeps_its_numbers_to_the_bit() -> None:
    picture = np.arange(256, dtype=np.uint8).reshape(16, 16)
    found = read(encoded(picture), Pictures(side=16, pixels=Pixels.GREY))
    assert np.array_equal(found.astype(np.float32), (picture.ravel().astype(np.float32) / np.float32(255)))


def test_the_range_is_that_of_the_depth() -> None:
    dark = np.full((2, 2), 100, dtype=np.uint16)
    assert np.array_equal(read(encoded(dark), DEEP), np.full(4, 100 / 65535))
    assert np.array_equal(read(b"P5 2 2 65535\n" + b"\x00\x64" * 4, DEEP), np.full(4, 100 / 65535))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "PPM"])
def test_formats(kind: str) -> None:
    grey = np.full((8, 8), 51, dtype=np.uint8)
    assert np.allclose(read(encoded(grey, kind), GREY), 0.2)
    assert np.allclose(read(encoded(grey, kind), COLOUR), 0.2), "three equal channels"
    colours = np.stack([np.full((8, 8), value, dtype=np.uint8) for value in (255, 102, 0)], axis=2)
    loss = 0.02 if kind == "JPEG" else 1e-12
    np.testing.assert_allclose(read(encoded(colours, kind), COLOUR), np.repeat([1.0, 0.4, 0.0], 4), atol=loss)
    grey_of = round((299 * 255 + 587 * 102) / 1000) / 255
    np.testing.assert_allclose(read(encoded(colours, kind), GREY), np.full(16, grey_of), atol=loss)
    assert kind_of(io.BytesIO(encoded(colours, kind))) is Pixels.COLOUR
    assert kind_of(io.BytesIO(encoded(grey, kind))) is Pixels.GREY


@pytest.mark.parametrize(
    ("content", "declared", "message"),
    [
        pytest.param(png(2, 2, 16, 2, (b"\0" + b"\xff\xfe" * 6) * 2), COLOUR, "16 bits per channel", id="png"),
        pytest.param(png(2, 2, 16, 6, (b"\0" + b"\xff\xfe" * 8) * 2), COLOUR, "16 bits per channel", id="png-alpha"),
        pytest.param(png(2, 2, 16, 4, (b"\0" + b"\xff\xfe" * 4) * 2), DEEP, "16 bits per channel", id="png-grey-alpha"),
        pytest.param(b"P6 2 2 65535\n" + b"\xff\xfe" * 12, COLOUR, "16 bits per channel", id="ppm"),
        pytest.param(b"P3 1 1 65535\n65535 1 2", COLOUR, "16 bits per channel", id="ppm-plain"),
        pytest.param(encoded(np.full((2, 2), 9, np.uint16)), GREY, "16 bits.*declared grey", id="deep"),
        pytest.param(encoded(np.full((2, 2), 9, np.uint8)), DEEP, "8.*grey-16", id="flat"),
        pytest.param(encoded(np.full((2, 2), 70_000, np.int32), "TIFF"), DEEP, "unsigned integers", id="signed"),
        pytest.param(encoded(np.full((2, 2), 0.5, np.float32), "TIFF"), GREY, "unsigned integers", id="float"),
        pytest.param(b"Pf\n2 1\n-1.0\n" + b"\0" * 8, GREY, "mode F", id="pfm"),
        pytest.param(encoded(Image.new("CMYK", (4, 4)), "JPEG"), COLOUR, "mode CMYK", id="cmyk"),
        pytest.param(encoded(Image.new("LAB", (4, 4)), "TIFF"), COLOUR, "mode LAB", id="lab"),
        pytest.param(encoded(Image.new("RGB", (4, 4)), "GIF"), COLOUR, "PNG", id="gif"),
        pytest.param(
            encoded(Image.new("RGB", (4, 4)), "GIF", save_all=True, append_images=[Image.new("RGB", (4, 4), 9)]),
            COLOUR,
            "PNG",
            id="animation",
        ),
        pytest.param(b"", GREY, "PNG", id="empty"),
        pytest.param(b"label,1\n", GREY, "PNG", id="text"),
        pytest.param(encoded(np.zeros((40, 40), np.uint8), "BMP")[:1500], GREY, "cannot be read", id="truncated-bmp"),
        pytest.param(encoded(np.arange(1600, dtype=np.uint8).reshape(40, 40))[:90], GREY, "cannot be read", id="cut"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_says_why(content: bytes, declared: Pictures, message: str) -> None:
    with pytest.raises(PictureError, match=message):
        read(content, declared)


def test_white_that_is_nought_is_refused_in_16_bits() -> None:
    """The attack: Pillow turns 8 bits round and leaves 16 as they are: such a picture came out as its negative."""
    deep = encoded(np.full((2, 2), 9, np.uint16), "TIFF", tiffinfo={262: 0})
    with pytest.raises(PictureError, match="0 as white"):
        read(deep, DEEP)


def test_truncated_jpegs_of_any_length_are_refused(random: np.random.Generator) -> None:
    content = encoded(random.integers(0, 256, (40, 40), dtype=np.uint8), "JPEG")
    for length in (2, 20, len(content) // 2, len(content) - 20):
        with pytest.raises(PictureError):
            read(content[:length], GREY)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(60_000, 60_000), (40_000, 1), (9_000, 9_000), (1_000_000, 100)])
def test_a_bomb_is_refused_before_it_is_unpacked(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def unpacked(*_: object) -> None:
        raise AssertionError("a pixel was unpacked")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", unpacked)
    claimed = [
        png(*size, 8, 0, b"\0" * 50),
        f"P5 {size[0]} {size[1]} 255\n".encode() + b"\0" * 50,
        encoded(np.zeros((2, 2), np.uint8), "BMP").replace(struct.pack("<ii", 2, 2), struct.pack("<ii", *size)),
    ]
    for content in claimed:
        with pytest.raises(PictureError, match=r"pixels|claims"):
            read(content, GREY)


def test_the_first_page_counts() -> None:
    first, second = (Image.fromarray(np.full((4, 4), value, np.uint8)) for value in (51, 255))
    assert np.allclose(read(encoded(first, "TIFF", save_all=True, append_images=[second]), GREY), 0.2)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_a_camera_s_turn_is_obeyed(kind: str, turn: int) -> None:
    """The oracle: where the bright quarter of a picture has to be, by the standard's table of what is up and left."""
    picture = np.zeros((16, 16), dtype=np.uint8)
    picture[:8, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = turn
    found = read(encoded(picture, kind, exif=exif), Pictures(side=2, pixels=Pixels.GREY)).reshape(2, 2)
    bright = {1: (0, 0), 2: (0, 1), 3: (1, 1), 4: (1, 0), 5: (0, 0), 6: (0, 1), 7: (1, 1), 8: (1, 0)}[turn]
    expected = np.zeros((2, 2))
    expected[bright] = 1.0
    np.testing.assert_allclose(found, expected, atol=0.05)


def _tag(order: str, tag: int, kind: int, count: int, value: int) -> bytes:
    return struct.pack(f"{order}HHI", tag, kind, count) + struct.pack(f"{order}{'HH' if kind == 3 else 'I'}", value, *(
        [0] if kind == 3 else []
    ))  # fmt: skip


# Of a maker, a resolution, a program, a day and inner directories: each leads out of the data, or says a type that it
# cannot have or that there is not.
_DAMAGED = (
    (0x010F, 5, 1, 0xFFFFFFF0), (0x010F, 2, 0x7FFFFFFF, 0xFFFFFF), (0x011A, 5, 1, 0xFFFFFFF0), (0x011A, 2, 2, 8),
    (0x0131, 77, 9, 9), (0x0131, 11, 1, 38), (0x0132, 10, 2, 8), (0x8769, 4, 1, 0xFFFFFFF0), (0x8825, 9, 5, 20),
)  # fmt: skip


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("damage", [*_DAMAGED, None])
def test_a_damaged_tag_beside_the_turn_is_of_no_consequence(
    order: str, kind: str, damage: tuple[int, int, int, int] | None
) -> None:
    """Once a sound photograph was "truncated or damaged" for them, or came out unturned without a word."""
    tags = sorted([(0x0112, 3, 1, 6), *([] if damage is None else [damage])])
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(tags))
    data = head + b"".join(_tag(order, *tag) for tag in tags) + struct.pack(f"{order}I", 0xFFFFFF00)
    picture = np.zeros((16, 16), dtype=np.uint8)
    picture[:8, :8] = 255
    found = read(encoded(picture, kind, exif=b"Exif\0\0" + data), Pictures(side=2, pixels=Pixels.GREY))
    np.testing.assert_allclose(found, [0, 1, 0, 0], atol=0.05)


@pytest.mark.parametrize("data", [b"", b"II*\0", b"nonsense", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff"])
def test_without_a_turn_that_can_be_read_a_picture_stays_as_it_is(data: bytes) -> None:
    picture = np.zeros((16, 16), dtype=np.uint8)
    picture[:8, :8] = 255
    for kind in ("JPEG", "PNG"):
        found = read(encoded(picture, kind, exif=b"Exif\0\0" + data), Pictures(side=2, pixels=Pixels.GREY))
        np.testing.assert_allclose(found, [1, 0, 0, 0], atol=0.05)


def _transparent(kind: str) -> bytes:
    if kind == "palette":
        return encoded(Image.new("P", (2, 2), 0), transparency=0)
    if kind == "colour":
        return encoded(np.full((2, 2, 3), 51, np.uint8), transparency=(51, 51, 51))
    shape = {"LA": (2, 2, 2), "RGBA": (2, 2, 4)}[kind]
    picture = np.full(shape, 51, np.uint8)
    picture[:, :, -1] = 0
    return encoded(picture)


@pytest.mark.parametrize("kind", ["LA", "RGBA", "palette", "colour"])
def test_transparency_is_as_declared(kind: str) -> None:
    content = _transparent(kind)
    given: dict[str, Any] = {"side": 2, "pixels": Pixels.COLOUR, "palettes": Palettes.COLOURS}
    with pytest.raises(PictureError, match="--alpha"):
        read(content, Pictures(**given))
    under = 0.0 if kind == "palette" else 0.2
    for alpha, value in ((Alpha.WHITE, 1.0), (Alpha.BLACK, 0.0), (Alpha.IGNORE, under)):
        np.testing.assert_allclose(read(content, Pictures(**given, alpha=alpha)), np.full(12, value))


def test_half_transparent_pixels_are_laid_on_the_ground() -> None:
    picture = np.full((2, 2, 2), 51, np.uint8)
    picture[:, :, 1] = 128
    laid = {Alpha.WHITE: (51 * 128 + 255 * 127 + 127) // 255, Alpha.BLACK: (51 * 128 + 127) // 255}
    for alpha, value in laid.items():
        assert np.allclose(read(encoded(picture), Pictures(side=2, pixels=Pixels.GREY, alpha=alpha)), value / 255)


def test_16_bits_with_a_transparent_value() -> None:
    content = png(2, 2, 16, 0, (b"\0" + b"\x00\x64" * 2) * 2, (b"tRNS", b"\x00\x64"))
    with pytest.raises(PictureError, match="--alpha"):
        read(content, DEEP)
    for alpha, value in ((Alpha.WHITE, 1.0), (Alpha.BLACK, 0.0), (Alpha.IGNORE, 100 / 65535)):
        found = read(content, Pictures(side=2, pixels=Pixels.GREY_16, alpha=alpha))
        assert np.array_equal(found, np.full(4, value))


def test_palettes_are_as_declared() -> None:
    image = Image.new("P", (2, 2), 1)
    image.putpalette([0, 0, 0, 255, 102, 0])
    for content in (encoded(image), encoded(image, "BMP")):
        with pytest.raises(PictureError, match="--palettes"):
            read(content, COLOUR)
        found = read(content, Pictures(side=2, pixels=Pixels.COLOUR, palettes=Palettes.COLOURS))
        np.testing.assert_allclose(found, np.repeat([1.0, 0.4, 0.0], 4))


def test_bits_of_a_picture_depend_on_it_alone(random: np.random.Generator) -> None:
    content = encoded(random.integers(0, 256, (37, 53, 3), dtype=np.uint8))
    alone = read(content, Pictures(side=8, pixels=Pixels.COLOUR)).tobytes()
    for _ in range(3):
        read(encoded(random.integers(0, 256, (50, 50), dtype=np.uint8)), GREY)
        assert read(content, Pictures(side=8, pixels=Pixels.COLOUR)).tobytes() == alone


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, Path.touch, lambda path: path.symlink_to("a.png")])
def test_only_files_are_opened(make: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(np.zeros((2, 2), np.uint8)))
    make(tmp_path / "b.png")
    with pytest.raises(PictureError):
        open_picture(tmp_path / "b.png")


def test_a_declaration_says_itself_whole() -> None:
    declared = Pictures(side=28, pixels=Pixels.COLOUR, fit=Fit.PAD, alpha=Alpha.WHITE, palettes=Palettes.COLOURS)
    assert Pictures.from_document(declared.document) == declared
    with pytest.raises(InputError, match="images"):
        Pictures.from_document({"side": 28})
    for side in (0, 1025):
        with pytest.raises(InputError, match=f"^side is {side}"):
            Pictures(side=side)
