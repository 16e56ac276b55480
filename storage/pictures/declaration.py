"""Declaration of a set of images: what a pixel is, the side, how an image becomes square and opaque."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from storage.errors import InputError

LARGEST_SIDE = 1024
"""Pixels of a side at most."""
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
"""What the names of images end with, in either case; nothing else about a file makes it an image."""


class Pixels(StrEnum):
    """The kind of a pixel: channels and depth."""

    GREY = "grey"
    """One channel of 8 bits; colours are turned to grey (BT.601)."""
    GREY_16 = "grey-16"
    """One channel of 16 bits."""
    COLOUR = "colour"
    """Red, green and blue of 8 bits; grey images have three equal channels."""

    @property
    def channels(self) -> int:
        """Number of channels."""
        return 3 if self is Pixels.COLOUR else 1

    @property
    def largest(self) -> int:
        """The largest value of a channel: that of the depth, for any content of a set."""
        return 65535 if self is Pixels.GREY_16 else 255


class Fit(StrEnum):
    """The way in which an image becomes square."""

    MIDDLE = "middle"
    """Cut to the square in its middle."""
    PAD = "pad"
    """The whole image in the middle of a black square."""


class Alpha(StrEnum):
    """The treatment of transparent pixels."""

    REFUSE = "refuse"
    """An image with an alpha channel or a transparent colour is refused."""
    WHITE = "white"
    """Laid on white."""
    BLACK = "black"
    """Laid on black."""
    IGNORE = "ignore"
    """Taken as opaque."""


class Palettes(StrEnum):
    """The treatment of images whose pixels are numbers of a palette."""

    REFUSE = "refuse"
    """They are refused: numbers of a palette may be anything, such as the parts of a drawn mask."""
    COLOURS = "colours"
    """Each number is the colour that the palette says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The declaration of a set of images.

    Parameters
    ----------
    side : int
        Pixels of a side that images are brought to, 1 to 1024.
    pixels : Pixels, optional
        None until it is found on a public set.
    fit : Fit
    alpha : Alpha
    palettes : Palettes
    """

    side: int = 32
    pixels: Pixels | None = None
    fit: Fit = Fit.MIDDLE
    alpha: Alpha = Alpha.REFUSE
    palettes: Palettes = Palettes.REFUSE

    def __post_init__(self) -> None:
        if not 1 <= self.side <= LARGEST_SIDE:
            raise InputError(f"side is {self.side}: declare at least 1 and at most {LARGEST_SIDE} pixels")

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items() if value is not None)

    @property
    def kind(self) -> Pixels:
        """The kind of its pixels, once known."""
        assert self.pixels is not None, "pixels are declared or found before an image is read"
        return self.pixels

    @property
    def shape(self) -> tuple[int, ...]:
        """(height, width) of grey images, (channels, height, width) of coloured ones."""
        square = (self.side, self.side)
        return square if self.kind.channels == 1 else (self.kind.channels, *square)

    @property
    def dimension(self) -> int:
        """Features an image."""
        return math.prod(self.shape)

    @property
    def document(self) -> dict[str, Any]:
        """The declaration as JSON."""
        return {name: str(value) if isinstance(value, StrEnum) else value for name, value in asdict(self).items()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Return what :attr:`document` says.

        Raises
        ------
        InputError
            If it says no such thing.
        """
        try:
            return cls(
                side=int(document["side"]),
                pixels=Pixels(document["pixels"]),
                fit=Fit(document["fit"]),
                alpha=Alpha(document["alpha"]),
                palettes=Palettes(document["palettes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{str(document)[:200]} is not a valid declaration of images: {error!r}") from error
