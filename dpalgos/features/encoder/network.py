"""A small residual network of 3 x 3 convolutions in NumPy, one image at a time: its arithmetic and its weights."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from dpalgos.features.public_map import RowFeatures
from dpalgos.models import released_kind
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats, Ints, for_each, pieces

SIDE = 32
"""Of the images that the network sees, in pixels."""
# From this side on a smaller picture is padded, below it is enlarged.
_PADDED_FROM = 24
# Cells a side over which the last two stages are averaged.
_CELLS = 2
# Pictures of one piece of work.
_PICTURES = 16
_Single = NDArray[np.float32]

CHECKSUMS: Mapping[str, str] = {
    "big": "239ca91832ab79e175c6ea997193b356755d731262e1cf5bd68018655fe8bb2c",
    "small": "f23755072aaf9b24faffe85414875dbe07efd166af913de87715a674e4b18e4a",
}
"""SHA-256 of each file of weights that lies beside this module."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution: 3 x 3, zero padding, batch norm folded in.

    Parameters
    ----------
    side : int
        Of what goes in, in pixels.
    channels, out : int
        In and out.
    stride : int
        1 keeps the side; 2 halves it, padded by no pixel before and one after.
    block : bool
        Whether what went into the layer before is added to the result (the end of a residual block).
    """

    side: int
    channels: int
    out: int
    stride: int
    block: bool = False

    @property
    def size(self) -> int:
        """Return the side of what comes out."""
        return self.side // self.stride

    @property
    def numbers(self) -> int:
        """Return how many numbers its kernel has."""
        return 9 * self.channels * self.out


def layers_of(widths: Sequence[int]) -> tuple[Layer, ...]:
    """Return the ten layers of a network of so many channels in its stem and at 16, 8 and 4 pixels."""
    layers, side = [Layer(SIDE, 3, widths[0], 1)], SIDE
    for channels, out in pairwise(widths):
        layers.append(Layer(side, channels, out, 2))
        side //= 2
        layers += [Layer(side, out, out, 1), Layer(side, out, out, 1, block=True)]
    return tuple(layers)


class _OneThread:
    """Holds BLAS to one thread a product, in the whole process, for as long as anybody is within."""

    def __init__(self) -> None:
        self._lock, self._within = threading.Lock(), 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._within += 1
            if self._within == 1:
                self._limit = _controller().limit(limits=1, user_api="blas")
        try:
            yield
        finally:
            with self._lock:
                self._within -= 1
                if not self._within:
                    self._limit.restore_original_limits()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


one_thread = _OneThread()


class _Workspace:
    """Arrays in which one thread computes an image, or an image and its mirror image; their shapes never change."""

    def __init__(self, layers: Sequence[Layer], pictures: int) -> None:
        self.padded = [np.zeros((pictures, one.side + 2, one.side + 2, one.channels), np.float32) for one in layers]
        # The last layer's result has no border.
        self.last = np.zeros((pictures, layers[-1].size, layers[-1].size, layers[-1].out), np.float32)
        self.columns, self.windows, self.results = [], [], []
        for one, padded in zip(layers, self.padded, strict=True):
            # At stride 2 the border's first row and column are passed over.
            start = padded[:, one.stride - 1 :, one.stride - 1 :]
            down, across, item = padded.strides[1:]
            self.windows.append(
                np.lib.stride_tricks.as_strided(
                    start,
                    (pictures, one.size, one.size, 3, 3 * one.channels),
                    (padded.strides[0], one.stride * down, one.stride * across, down, item),
                    writeable=False,
                )
            )
            self.columns.append(np.empty((pictures * one.size**2, 9 * one.channels), np.float32))
            self.results.append(np.empty((pictures * one.size**2, one.out), np.float32))

    def inside(self, number: int) -> _Single:
        """Return what goes into a layer, without its border; what comes out of the last one."""
        return self.padded[number][:, 1:-1, 1:-1] if number < len(self.padded) else self.last


class Weights(NamedTuple):
    """The contents of a file of weights; see :class:`EncoderFeatures`."""

    widths: Ints
    kernels: NDArray[np.int8]
    scales: _Single
    biases: _Single


@released_kind("encoder-features")
@dataclass(frozen=True)
class EncoderFeatures(RowFeatures):
    """An image's means over 2 x 2 cells of the network's last stage, then of the one before, their square roots.

    Each image is moved to start at zero where it has negative values, divided by its largest value, brought to
    32 x 32 pixels (smaller ones from 24 on are padded with zeros, others resized by averaging areas, the longer side to
    32) and, where it is grey, given three equal channels.

    Guarantee
    ---------
    An image's features depend on that image alone, bit for bit: with any other images computed in the same call, and
    for any number of threads. The network is run on one image at a time (or on it and its mirror image together), each
    product of one fixed shape on one BLAS thread; images are shared out among the cores.

    Parameters
    ----------
    layout : array of 8 int
        Channels, height and width of an image; whether features are averaged over it and its mirror image; channels
        of the network's stem and of its three stages.
    kernels : array of int8
        Of all layers in turn, each (3, 3, channels in, channels out).
    scales : array of float32
        What a kernel's whole numbers are multiplied by, a number for each channel that comes out, layer after layer.
    biases : array of float32
        Likewise.
    """

    layout: Ints
    kernels: NDArray[np.int8]
    scales: _Single
    biases: _Single
    kept = True

    @classmethod
    def of(cls, weights: Weights, sizes: tuple[int, int, int], *, mirror: bool) -> Self:
        """Return the network of some weights for images of (channels, height, width)."""
        layout = np.array([*sizes, int(mirror), *weights.widths])
        return cls(layout=layout, kernels=weights.kernels, scales=weights.scales, biases=weights.biases)

    @property
    def dimension(self) -> int:
        """Number of features: four for each channel of the last two stages."""
        return _CELLS**2 * int(self.layout[6] + self.layout[7])

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The network's layers."""
        return layers_of([int(width) for width in self.layout[4:]])

    @cached_property
    def _weights(self) -> list[tuple[_Single, _Single]]:
        """Each layer's kernel as a matrix (9 channels in, channels out), and its bias."""
        ends = np.cumsum([one.numbers for one in self.layers])[:-1]
        outs = np.cumsum([one.out for one in self.layers])[:-1]
        parts = (np.split(self.kernels, ends), np.split(self.scales, outs), np.split(self.biases, outs))
        return [
            (kernel.reshape(-1, one.out).astype(np.float32) * scale, bias)
            for one, kernel, scale, bias in zip(self.layers, *parts, strict=True)
        ]

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, dimension), entries at least 0."""
        return self._seen(features, self._picture)

    def of_pictures(self, pictures: Floats) -> Floats:
        """Map images (m, 32, 32, 3) with values in [0, 1], as they are, to (m, dimension)."""
        return self._seen(pictures, lambda picture: picture)

    def _seen(self, rows: Floats, picture_of: Callable[[Floats], Floats]) -> Floats:
        """Map rows, each made an image (32, 32, 3) in [0, 1] first."""
        out, weights = np.empty((len(rows), self.dimension)), self._weights
        idle: list[_Workspace] = []

        def batch(part: slice[int, int, None]) -> None:
            try:
                space = idle.pop()
            except IndexError:
                space = _Workspace(self.layers, 1 + int(self.layout[3]))
            inputs = space.inside(0)
            for row, given in zip(out[part], rows[part], strict=True):
                inputs[0] = (picture_of(given) - 0.5) * 4.0
                if len(inputs) > 1:
                    inputs[1] = inputs[0, :, ::-1]
                self._run(weights, space)
                row[:] = self._pooled(space)
            idle.append(space)

        with one_thread():
            for_each(batch, pieces(len(rows), 1, _PICTURES))
        return out

    def _picture(self, row: Floats) -> Floats:
        """Return the image (32, 32, 3) in [0, 1] of a row of any size and scale."""
        channels, height, width = (int(size) for size in self.layout[:3])
        values = np.asarray(row, dtype=np.float64).reshape(channels, height, width)
        values = values - min(float(values.min()), 0.0)
        largest = float(values.max())
        values = values / largest if largest > 0 else values
        down, across = resampling(height, max(height, width)), resampling(width, max(height, width))
        return np.stack([down @ channel @ across.T for channel in values], axis=-1)

    def _run(self, weights: Sequence[tuple[_Single, _Single]], space: _Workspace) -> None:
        """Run the layers on what has been entered."""
        for number, (layer, (kernel, bias)) in enumerate(zip(self.layers, weights, strict=True)):
            columns, result = space.columns[number], space.results[number]
            windows = space.windows[number]
            np.copyto(columns.reshape(windows.shape), windows)
            np.matmul(columns, kernel, out=result)
            result += bias
            out = space.inside(number + 1)
            shaped = result.reshape(out.shape)
            if layer.block:
                shaped += space.inside(number - 1)
            np.maximum(shaped, 0.0, out=out)

    def _pooled(self, space: _Workspace) -> Floats:
        """Return what the last two stages hold, averaged over cells and over the mirror image, and its root."""
        # The stage before the last is what goes into the last three layers.
        stages = (space.inside(len(self.layers)), space.inside(len(self.layers) - 3))
        means = []
        for stage in stages:
            pictures, side, _, channels = stage.shape
            cells = stage.reshape(pictures, _CELLS, side // _CELLS, _CELLS, side // _CELLS, channels)
            means.append(cells.mean(axis=(0, 2, 4), dtype=np.float64).ravel())
        return np.asarray(np.sqrt(np.concatenate(means)))


@cache
def resampling(size: int, longest: int) -> Floats:
    """Return the matrix (32, size) that brings an axis of ``size`` pixels to 32.

    Parameters
    ----------
    size : int
    longest : int
        Pixels of the longer axis, which says the scale of both.
    """
    wanted = size if _PADDED_FROM <= longest <= SIDE else max(1, round(size * SIDE / longest))
    edges = np.arange(wanted + 1) * (size / wanted)
    pixels = np.arange(size)
    shares = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    matrix, first = np.zeros((SIDE, size)), (SIDE - wanted) // 2
    matrix[first : first + wanted] = np.maximum(shares, 0.0) * (wanted / size)
    return matrix


def load(name: str) -> Weights:
    """Return what one of the files of weights holds.

    Raises
    ------
    ParameterError
        If the file is not the one that this version was made with.
    """
    if name not in CHECKSUMS:
        raise ParameterError(f"net is {name!r}; known: {', '.join(sorted(CHECKSUMS))}")
    place = resources.files(__package__).joinpath(f"{name}.npz")
    content = place.read_bytes() if place.is_file() else b""
    digest = hashlib.sha256(content).hexdigest()
    if digest != CHECKSUMS[name]:
        found = f"has SHA-256 {digest[:16]}…" if content else "is missing"
        raise ParameterError(
            f"the encoder's weights {place} {found}; expected: {CHECKSUMS[name][:16]}…; reinstall unitball"
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return Weights(**arrays)
