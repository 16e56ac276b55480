"""Images as numbers: one file's content brought to the declared shape.

An image's numbers follow from its own file and the declaration alone: pixels are averaged in integers, exactly, so
that neither other images nor threads nor the order of a sum have a part in them.
"""

import math
import os
import re
import stat
import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from storage.errors import InputError
from storage.pictures.declaration import Alpha, Fit, Palettes, Pictures, Pixels

Values = NDArray[np.int64]

# Pixels that are unpacked, in all and along one side; whole numbers then stay far below 2^63.
_MOST_PIXELS, _LONGEST = 1 << 26, 1 << 15
MOST_BYTES = 8 * _MOST_PIXELS
"""Bytes of a file: what is not packed at all takes eight per pixel at most."""
_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "PPM")
# Pixels whose integers are made at once.
_STRIP = 1 << 20
# How opaque a pixel is that nothing shines through.
_WHOLE = 255
# Of red, green and blue, in thousandths (ITU-R BT.601).
_LUMA = np.array([[299], [587], [114]])

# Larger ones are refused here, and without a line on the screen.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class PictureError(InputError):
    """An image that cannot be taken; the message says why and does not name it."""


def open_picture(path: Path | str) -> IO[bytes]:
    """Open a file of an image; links are not followed, and the path must be a file.

    Raises
    ------
    PictureError
        If it is none, cannot be opened, or is larger than any image that is read.
    """
    try:
        # A pipe without a writer would be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        why = "is a link" if Path(path).is_symlink() else f"cannot be opened: {error.strerror or error}"
        raise PictureError(why) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= MOST_BYTES:
        os.close(descriptor)
        raise PictureError(
            f"has {status.st_size} bytes; an image has 1 to {MOST_BYTES}"
            if stat.S_ISREG(status.st_mode)
            else "is not a file"
        )
    return os.fdopen(descriptor, "rb")


def read_picture(file: IO[bytes], declared: Pictures) -> NDArray[np.float64]:
    """Return the numbers of an image, (dimension,), in [0, 1]: channel by channel, row by row.

    Parameters
    ----------
    file : binary file
        At its beginning: PNG, JPEG, BMP, TIFF, PPM or PGM, of which the first page counts.
    declared : Images

    Raises
    ------
    PictureError
        If it cannot be read, claims more pixels than are read (before any is unpacked), or is not as declared.
    """
    with _opened(file) as image:
        values = _values(_turned(image), declared)
    height, width = values.shape[:2]
    length = min(height, width) if declared.fit is Fit.MIDDLE else max(height, width)
    starts = [(size - length) // 2 for size in (height, width)]
    # The longer axis first, so that what lies between the two passes is small.
    for axis in sorted((0, 1), key=lambda axis: -values.shape[axis]):
        values = _averaged(values, axis, starts[axis], length, declared.side)
    averages = values.astype(np.float64) / (float(length) ** 2 * declared.kind.largest)
    return averages.transpose(2, 0, 1).ravel()


def kind_of(file: IO[bytes]) -> Pixels:
    """Return what a pixel of an image is, by its header alone.

    Raises
    ------
    PictureError
        As :func:`read_picture`.
    """
    with _opened(file) as image:
        if image.mode in ("I;16", "I;16B", "I;16L", "I"):
            return Pixels.GREY_16
        return Pixels.GREY if image.mode in ("1", "L", "LA") else Pixels.COLOUR


def _opened(file: IO[bytes]) -> Image.Image:
    """Return an image whose header was read; its claimed size and its depth are looked at before a pixel is."""
    try:
        image = Image.open(file, formats=_FORMATS)
        pixels = math.prod(image.size)
        if not 0 < pixels <= _MOST_PIXELS or max(image.size) > _LONGEST:
            raise PictureError(
                f"is {image.size[0]} x {image.size[1]} pixels; the limits are {_MOST_PIXELS} pixels and {_LONGEST} "
                "along a side: shrink it first"
            )
        _require_depth(image, file)
        _stretch_transparent(image, file)
    except PictureError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise PictureError(f"claims more than {_MOST_PIXELS} pixels; shrink it first") from None
    except MemoryError:
        raise
    except Exception as error:
        # A damaged file can raise nearly anything.
        raise _unreadable(error) from error
    return image


def _unreadable(error: Exception) -> PictureError:
    if isinstance(error, UnidentifiedImageError):
        return PictureError("is not a PNG, JPEG, BMP, TIFF, PPM or PGM")
    return PictureError(f"cannot be read ({type(error).__name__}: {str(error)[:120]}); it may be truncated or damaged")


def _require_depth(image: Image.Image, file: IO[bytes]) -> None:
    """Refuse depths that Pillow would bring to 8 or 16 bits by itself, or that are neither."""
    depth, samples = _depth(image, file)
    grey = image.mode in ("I;16", "I;16B", "I;16L") or (image.mode == "I" and image.format == "PPM")
    if depth > 8 and (samples > 1 or not grey):
        what = f"{depth} bits per channel in {samples} channels" if samples > 1 else f"{depth} bits, mode {image.mode}"
        raise PictureError(f"has {what}; supported are grey of 8 or 16 bits and colour of 8 bits: convert it")
    if depth not in (1, 2, 4, 8, 16):
        raise PictureError(f"has {depth} bits per channel; supported are 8 and 16: convert it")
    if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA") and not grey:
        raise PictureError(f"has colour mode {image.mode}; supported are grey and RGB: convert it")


def _stretch_transparent(image: Image.Image, file: IO[bytes]) -> None:
    """Bring the transparent value of a PNG to the depth that its pixels have once they are unpacked.

    The file has 16 bits for it, of which those of its own depth count. Pillow leaves it as it is, and stretches pixels
    of 2 and 4 bits to 8.
    """
    said = image.info.get("transparency")
    if image.format == "PNG" and image.mode in ("L", "RGB") and said is not None:
        largest = (1 << _depth(image, file)[0]) - 1
        image.info["transparency"] = tuple((one & largest) * 255 // largest for one in np.ravel(said).tolist())


def _depth(image: Image.Image, file: IO[bytes]) -> tuple[int, int]:
    """Return bits per channel and channels as the file states them, which Pillow's mode does not."""
    if image.format == "PNG":
        place = file.tell()
        file.seek(24)
        depth, kind = file.read(2)
        file.seek(place)
        return depth, {2: 3, 4: 2, 6: 4}.get(kind, 1)
    if image.format == "TIFF":
        tags: Any = image.tag_v2  # type: ignore[attr-defined]  # a TIFF's alone
        bits, kinds = tags.get(258, (1,)), tags.get(339, (1,))
        if set(kinds) != {1}:
            raise PictureError("has numbers that are not unsigned integers; convert it")
        if max(bits) == 16 and tags.get(262) == 0:
            raise PictureError("has 16 bits with 0 as white; convert it")
        return max(bits), len(bits)
    if image.format == "PPM":
        # A maximum that is not the depth's is in the decoder's arguments; without one it is the mode's.
        tiles = image.tile if isinstance(image, ImageFile.ImageFile) else []
        said = [argument[1] for *_, argument in tiles if isinstance(argument, tuple) and len(argument) == 2]
        deep = said[0] > 255 if said else image.mode == "I"
        return 16 if deep else 8, 3 if image.mode == "RGB" else 1
    return 8, len(image.getbands())


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION, _SHORT = 0x0112, 3


def _turned(image: Image.Image) -> Image.Image:
    """Return the first page, unpacked and turned as its camera says."""
    try:
        if image.format == "TIFF":
            # It would turn the page itself, and read every other tag for that, sound or not.
            image.load_end = lambda: None  # type: ignore[attr-defined]  # a method of files
        image.load()
        method = _TURNS.get(_orientation(image))
        return image if method is None else image.transpose(method)
    except MemoryError:
        raise
    except Exception as error:
        raise _unreadable(error) from error


def _orientation(image: Image.Image) -> int:
    """Return what a loaded image says of its orientation, 1 to 8; 1 where it says nothing that can be read.

    Other tags are not looked at: a damaged one is of no consequence.
    """
    if image.format == "TIFF":
        tags: Any = image.tag_v2  # type: ignore[attr-defined]  # a TIFF's alone
        said = tags.get(_ORIENTATION)
        return said if isinstance(said, int) else 1
    about, exif = image.info, image.info.get("exif")
    if exif is None and isinstance(profile := about.get("Raw profile type exif"), str):
        with suppress(ValueError):
            exif = bytes.fromhex("".join(profile.split("\n")[3:]))
    found = _exif_orientation(exif) if isinstance(exif, bytes) else None
    if found is None:
        for xmp in (about.get("XML:com.adobe.xmp"), about.get("xmp")):
            text = xmp.decode("latin-1") if isinstance(xmp, bytes) else str(xmp or "")
            if found is None and (match := re.search('tiff:Orientation(?:="|>)([0-9])', text)):
                found = int(match[1])
    return found or 1


def _exif_orientation(exif: bytes) -> int | None:
    """Return the orientation that the first directory of EXIF data states; None where it states none."""
    data = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None:
        return None
    with suppress(struct.error):
        (at,) = struct.unpack_from(f"{order}I", data, 4)
        (entries,) = struct.unpack_from(f"{order}H", data, at)
        for entry in range(at + 2, at + 2 + 12 * entries, 12):
            tag, kind, count, value = struct.unpack_from(f"{order}HHIH", data, entry)
            if tag == _ORIENTATION:
                return value if (kind, count) == (_SHORT, 1) else None
    return None


def _values(image: Image.Image, declared: Pictures) -> NDArray[Any]:
    """Return the pixels, (height, width, channels), as the declaration has them."""
    kind, deep = declared.kind, image.mode.startswith("I")
    if deep != (kind is Pixels.GREY_16):
        raise PictureError(
            f"has {16 if deep else 8} bits, and pixels are declared {kind}; convert it or change the declaration"
        )
    if image.mode in ("P", "PA") and declared.palettes is Palettes.REFUSE:
        raise PictureError("has a palette; give --palettes colours to read its colours")
    values, opacity = _layers(image)
    if opacity is not None and (opacity < _WHOLE).any():
        values = _opaque(values, opacity, declared)
    if kind is Pixels.GREY and values.shape[2] == 3:
        return _by_strips(values, lambda rows: (rows.astype(np.int64) @ _LUMA + 500) // 1000)
    return np.broadcast_to(values, (*values.shape[:2], kind.channels))


def _layers(image: Image.Image) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the pixels, (height, width, 1 or 3), and how opaque they are, (height, width), None where all are.

    Opacity is up to 255. Pillow's own conversion compares the transparent value of a grey PNG with pixels that it has
    stretched to 8 bits.
    """
    mode, transparent = image.mode, image.info.get("transparency")
    if mode in ("P", "PA"):
        clear = mode == "PA" or transparent is not None
        values = np.asarray(image.convert("RGBA" if clear else "RGB"))
        return (values[:, :, :3], values[:, :, 3]) if clear else (values, None)
    values = np.asarray(image)
    if mode in ("LA", "RGBA"):
        return values[:, :, :-1], values[:, :, -1]
    if mode == "1":
        values = values.astype(np.uint8) * np.uint8(255)
    if values.ndim == 2:
        values = values[:, :, None]
    if transparent is None:
        return values, None
    return values, (values != np.asarray(transparent, dtype=np.int64)).any(axis=2) * np.uint8(_WHOLE)


def _opaque(values: NDArray[Any], opacity: NDArray[Any], declared: Pictures) -> NDArray[Any]:
    """Return pixels without transparency."""
    if declared.alpha is Alpha.REFUSE:
        raise PictureError(
            "has transparent pixels; give --alpha white or black for a background, or --alpha ignore to treat it as "
            "opaque"
        )
    if declared.alpha is Alpha.IGNORE:
        return values
    ground = declared.kind.largest if declared.alpha is Alpha.WHITE else 0

    def laid(rows: NDArray[Any]) -> Values:
        pixels, covered = rows[:, :, :-1].astype(np.int64), rows[:, :, -1:].astype(np.int64)
        return np.asarray((pixels * covered + ground * (_WHOLE - covered) + _WHOLE // 2) // _WHOLE)

    return _by_strips(np.concatenate([values, opacity[:, :, None].astype(values.dtype)], axis=2), laid)


def _by_strips(pixels: NDArray[Any], function: Callable[[NDArray[Any]], Values]) -> NDArray[Any]:
    """Return what a function makes of some rows at a time: its integers take several times as much memory."""
    step = max(1, _STRIP // pixels.shape[1])
    strips = [function(pixels[row : row + step]).astype(pixels.dtype) for row in range(0, len(pixels), step)]
    return np.concatenate(strips)


def _averaged(values: NDArray[Any], axis: int, start: int, length: int, side: int) -> Values:
    """Return means over ``side`` equal stretches of an axis, times ``length``: whole numbers, exact.

    Parameters
    ----------
    values : integer array (height, width, channels)
    axis : {0, 1}
    start, length : int
        The pixels that are divided; those outside the image are 0.
    side : int
    """
    moved = np.moveaxis(values, axis, 0)
    size, across, channels = moved.shape
    # Ends of the stretches, counted in parts of a pixel of which ``side`` make one.
    ends = np.clip(np.arange(side + 1, dtype=np.int64) * length + start * side, 0, size * side)
    whole, part = np.divmod(ends, side)
    found = np.empty((side, across, channels), dtype=np.int64)
    step = max(1, _STRIP // size)
    for first in range(0, across, step):
        strip = moved[:, first : first + step].astype(np.int64)
        sums = np.concatenate([np.zeros((1, *strip.shape[1:]), dtype=np.int64), np.cumsum(strip, axis=0)])
        reached = side * sums[whole] + part[:, None, None] * strip[np.minimum(whole, size - 1)]
        found[:, first : first + step] = np.diff(reached, axis=0)
    return np.moveaxis(found, 0, axis)
