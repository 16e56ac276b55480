"""Wavelet scattering of images: averaged moduli of Morlet wavelets, of two orders."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from dpalgos.features.public_map import ImageMap, RowFeatures
from dpalgos.models import released_kind
from dpalgos.parameters import COUNT, ParameterError, at_least, between
from dpalgos.registry import register
from dpalgos.rows import Floats, Ints, for_each, pieces

# Images of one pass: about 4 MB of work space a thread, which caches hold. Fixed, so that a row's features do not
# depend on the machine.
_IMAGES_AT_ONCE = 16
# Gaussian envelopes and centre frequencies as in Bruna and Mallat's and Kymatio's filter banks.
_ENVELOPE, _FREQUENCY = 0.8, 0.75 * np.pi
# Brightness, and red against green and both against blue three times as strong; each of them of length 1 before.
_OPPONENT = np.array([[1.0, 1.0, 1.0], [3.0, -3.0, 0.0], [3.0, 3.0, -6.0]]) / np.sqrt([[3.0], [2.0], [6.0]])
_Complex = NDArray[np.complex64]
_Single = NDArray[np.float32]
_Number = TypeVar("_Number", bound=np.generic)


def _gabor(
    height: int, width: int, sigma: float, angle: float, frequency: float, slant: float
) -> NDArray[np.complex128]:
    """Return a periodised Gabor filter (height, width) in space."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    curve = turn @ np.diag([1.0, slant**2]) @ turn.T / (2 * sigma**2)
    total = np.zeros((height, width), dtype=np.complex128)
    for down in range(-2, 3):
        for across in range(-2, 3):
            y, x = np.mgrid[down * height : (down + 1) * height, across * width : (across + 1) * width]
            exponent = -(curve[0, 0] * x * x + (curve[0, 1] + curve[1, 0]) * x * y + curve[1, 1] * y * y)
            wave = 1j * frequency * (x * np.cos(angle) + y * np.sin(angle))
            total += np.exp(exponent + wave)
    return total / (2 * np.pi * sigma**2 / slant)


def _morlet(height: int, width: int, sigma: float, angle: float, frequency: float, slant: float) -> NDArray[np.float32]:
    """Return the (real) Fourier transform of a Morlet wavelet: a Gabor filter less its mean."""
    wave = _gabor(height, width, sigma, angle, frequency, slant)
    envelope = _gabor(height, width, sigma, angle, 0.0, slant)
    wavelet = wave - envelope * (wave.sum() / envelope.sum())
    return np.asarray(np.real(scipy.fft.fft2(wavelet)), dtype=np.float32)


@lru_cache(maxsize=32)
def _averaging(size: int, pixels: int, sigma: float, places: int, aligned: bool) -> _Single:
    """Return the matrix (places, size) that averages a line of samples over Gaussian windows, one a place.

    The line covers ``pixels`` pixels of the image in ``size`` samples; windows repeat at the borders. Samples lie at
    every so many pixels from the first on; windows that are not ``aligned`` with that are half a sample off at most.
    """
    centres = np.arange(pixels) * size / pixels - (0.0 if aligned else 0.5 - 0.5 * size / pixels)
    samples = np.arange(size)
    away = (samples[None, :] - centres[:, None] + size / 2) % size - size / 2
    window = np.exp(-(away**2) / (2 * (sigma * size / pixels) ** 2))
    window /= window.sum(axis=1, keepdims=True)
    return np.asarray(window.reshape(places, pixels // places, size).mean(axis=1), dtype=np.float32)


@lru_cache(maxsize=8)
def _bank(height: int, width: int, scales: int, angles: int) -> tuple[tuple[_Single, ...], ...]:
    """Return, for each scale a wavelet responds to, its filters (angles, ·, ·) at every resolution it is used at.

    ``bank[j][r]`` are the filters of scale j on images whose resolution was halved r times.
    """
    bank = []
    for scale in range(scales):
        full = np.stack(
            [
                _morlet(
                    height,
                    width,
                    _ENVELOPE * 2**scale,
                    (angles // 2 - 1 - index) * np.pi / angles,
                    _FREQUENCY / 2**scale,
                    4.0 / angles,
                )
                for index in range(angles)
            ]
        )
        bank.append(tuple(_cropped(full, 2**halved) for halved in range(scale + 1)))
    return tuple(bank)


def _cropped(spectrum: NDArray[_Number], factor: int) -> NDArray[_Number]:
    """Return the low frequencies of a spectrum (…, h, w), of an image with ``factor`` times fewer pixels a side."""
    if factor == 1:
        return spectrum
    height, width = spectrum.shape[-2] // factor, spectrum.shape[-1] // factor
    rows = np.r_[0 : height // 2, spectrum.shape[-2] - height // 2 : spectrum.shape[-2]]
    columns = np.r_[0 : width // 2, spectrum.shape[-1] - width // 2 : spectrum.shape[-1]]
    return np.ascontiguousarray(spectrum[..., rows[:, None], columns])


def _low(half: _Complex, factor: int, width: int) -> _Complex:
    """Return the low frequencies (…, h, w) of images of real numbers, of even size, with ``factor`` times fewer pixels.

    Of their spectra, ``half`` (…, H, width // 2 + 1) has the columns that are not negative; the others are those
    reversed and conjugated.
    """
    full = half.shape[-2]
    height, kept = full // factor, width // factor
    spectrum = np.empty((*half.shape[:-2], height, kept), dtype=half.dtype)
    rows = np.r_[0 : height // 2, full - height // 2 : full]
    spectrum[..., : height // 2, : kept // 2] = half[..., : height // 2, : kept // 2]
    spectrum[..., height // 2 :, : kept // 2] = half[..., full - height // 2 :, : kept // 2]
    reversed_rows, reversed_columns = -rows % full, np.arange(kept // 2, 0, -1)
    np.conjugate(half[..., reversed_rows[:, None], reversed_columns], out=spectrum[..., kept // 2 :])
    return spectrum


def _over_mirror_images(coefficients: _Single, channels: int, scales: int, angles: int) -> _Single:
    """Return the mean of coefficients (m, down, across, channels · paths) of images and their mirror images.

    A mirror image has the same ones at mirrored places, and a wavelet across at an angle answers as that at the
    opposite angle did. So the left half of the means says it all.
    """
    mirrored, paths = (angles - 2 - np.arange(angles)) % angles, [0]
    for first in range(scales):
        paths.extend(len(paths) + mirrored)
        for _ in range(first + 1, scales):
            paths.extend(len(paths) + (mirrored[:, None] * angles + mirrored).ravel())
    every = (np.arange(channels)[:, None] * len(paths) + np.array(paths)).ravel()
    kept = -(-coefficients.shape[2] // 2)
    return np.asarray((coefficients + coefficients[:, :, ::-1][..., every])[:, :, :kept] / np.float32(2.0))


@released_kind("scattering-features")
@dataclass(frozen=True, slots=True)
class ScatteringFeatures(RowFeatures):
    """A map from images to scattering coefficients, each raised to a power.

    Parameters
    ----------
    layout : array of 6 to 8 int
        Channels, height, width, scales J, angles L, places a side; whether coefficients are averaged over the image and
        its mirror image; whether brightness and two opponent colours are scattered.
    power : array of 1 float
        Exponent of the coefficients' magnitudes; 1 leaves them as they are.
    """

    layout: Ints
    power: Floats
    kept: ClassVar[bool] = True

    @property
    def dimension(self) -> int:
        """Number of features."""
        channels, _, _, scales, angles, places = (int(size) for size in self.layout[:6])
        paths = 1 + scales * angles + angles * angles * scales * (scales - 1) // 2
        return channels * paths * places * (-(-places // 2) if self._mirror else places)

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, dimension): by place, then by channel and path. A row that is not numeric stays so."""
        out = np.empty((len(features), self.dimension))

        def batch(part: slice[int, int, None]) -> None:
            # Every call is of one shape: how many stand beside a row changes none of its bits.
            images = np.zeros((_IMAGES_AT_ONCE, features.shape[1]), dtype=np.float32)
            images[: len(out[part])] = features[part]
            out[part] = self._batch(images)[: len(out[part])]

        for_each(batch, pieces(len(features), 1, _IMAGES_AT_ONCE))
        return out

    @property
    def _mirror(self) -> bool:
        return len(self.layout) > 6 and bool(self.layout[6])

    def _batch(self, features: _Single) -> _Single:
        channels, height, width, scales, angles, places = (int(size) for size in self.layout[:6])
        if len(self.layout) > 7 and self.layout[7]:
            features = np.matmul(_OPPONENT.astype(np.float32), features.reshape(len(features), channels, -1))
        images = features.reshape(len(features) * channels, height, width)
        # Every resolution has an even number of pixels a side, and every place the same number of them.
        unit = math.lcm(2**scales, places)
        tall, wide = (unit * -(-size // unit) for size in (height, width))
        top, left = (tall - height) // 2, (wide - width) // 2
        padded = np.pad(images, ((0, 0), (top, tall - height - top), (left, wide - width - left)), mode="reflect")
        bank = _bank(tall, wide, scales, angles)
        means = [
            (
                _averaging(tall >> halved, tall, _ENVELOPE * 2 ** (scales - 1), places, self._mirror),
                _averaging(wide >> halved, wide, _ENVELOPE * 2 ** (scales - 1), places, self._mirror).T,
            )
            for halved in range(scales)
        ]

        def averaged(layer: _Single, halved: int) -> _Single:
            down, across = means[halved]
            return np.asarray(np.matmul(np.matmul(down, layer), across), dtype=np.float32)

        paths = [averaged(padded, 0)[:, None]]
        # Images and moduli are real: half of a spectrum says it all.
        half = scipy.fft.rfft2(padded)
        for first in range(scales):
            moduli = self._moduli(_low(half, 2**first, wide)[:, None], bank[first][first])
            paths.append(averaged(moduli, first))
            if first + 1 == scales:
                break
            half_of_moduli = scipy.fft.rfft2(moduli)
            for second in range(first + 1, scales):
                spectra = _low(half_of_moduli, 2 ** (second - first), wide >> first)
                deeper = self._moduli(spectra[:, :, None], bank[second][second])
                paths.append(averaged(deeper, second).reshape(len(images), -1, places, places))
        outputs = np.concatenate(paths, axis=1)
        by_place = np.moveaxis(outputs.reshape(len(features), -1, places, places), 1, 3)
        power = float(self.power[0])
        curved = by_place if power == 1.0 else np.sign(by_place) * np.abs(by_place) ** power
        coefficients: _Single = np.asarray(curved, dtype=np.float32)
        if self._mirror:
            coefficients = _over_mirror_images(coefficients, channels, scales, angles)
        return coefficients.reshape(len(features), -1)

    @staticmethod
    def _moduli(spectra: _Complex, filters: _Single) -> _Single:
        """Return |x ⋆ ψ| for every filter, at the resolution of the spectra (…, 1, h, w)."""
        return np.asarray(np.abs(scipy.fft.ifft2(spectra * filters, overwrite_x=True)), dtype=np.float32)


@register("projections", "scattering")
@dataclass(frozen=True, slots=True, kw_only=True)
class Scattering(ImageMap):
    """Wavelet scattering of order two: moduli of wavelets of moduli of wavelets, averaged over a grid of places.

    Guarantee
    ---------
    No privacy cost: each image is mapped by itself, with public parameters. Norms are not bounded by 1: the next reader
    of the rows clips them, or :class:`~dpalgos.features.whitening.PublicWhitening` brings them to the unit sphere.

    Parameters
    ----------
    scales : int
        J; the largest wavelet spans about 2^J pixels.
    angles : int
        L, directions in half a turn.
    places : int
        Averages a side; places² a path.
    power : float
        Exponent of the coefficients, in (0, 1]; ½ evens out strong and weak paths.
    mirror : bool
        Whether coefficients are averaged over the image and its mirror image, up to a pixel's place.
    opponent : bool
        Whether brightness and two opponent colours are scattered in place of red, green and blue.
    shape : sequence of int, optional
        Of the images; square ones by default.

    Notes
    -----
    Between layers the resolution is halved by dropping high frequencies instead of letting them alias, which makes the
    second layer four times cheaper. Single precision throughout.

    References
    ----------
    Bruna, Mallat, IEEE TPAMI 35 (2013); filters as in Andreux et al., "Kymatio", JMLR 21 (2020); as features for
    private linear models Tramèr, Boneh, ICLR 2021.
    """

    scales: int = field(default=2, metadata=COUNT)
    angles: int = field(default=8, metadata=at_least(2))
    places: int = field(default=4, metadata=COUNT)
    power: float = field(default=0.5, metadata=between(0.0, 1.0, open_low=True))
    mirror: bool = False
    opponent: bool = False
    source: ClassVar[str] = "Bruna, Mallat 2013; Tramèr, Boneh 2021"

    def map_for(self, dimension: int) -> ScatteringFeatures:
        """Return the map of rows of so many features."""
        channels, height, width = self.sizes(dimension)
        if min(height, width) < 2**self.scales:
            raise ParameterError(
                f"images of {height} x {width} pixels are smaller than a wavelet of scale {self.scales}; "
                "choose fewer scales"
            )
        if self.opponent and channels != 3:
            raise ParameterError(f"opponent colours need images of three channels; these have {channels}")
        more = [int(self.mirror), int(self.opponent)] if self.opponent else [1] if self.mirror else []
        layout = np.array([channels, height, width, self.scales, self.angles, self.places, *more])
        return ScatteringFeatures(layout=layout, power=np.array([self.power]))
