"""Features from a frozen network: any ONNX model with one input, as a map of one row at a time."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.features._onnx_process import POOLS, TYPES
from dpalgos.features.onnx_sessions import Port, Sessions, first_line, one_input, sessions, shown
from dpalgos.features.public_map import FileMap, RowFeatures, image_shape
from dpalgos.features.random_images import drawn_images
from dpalgos.features.whitening import PublicWhitening
from dpalgos.models import released_kind
from dpalgos.parameters import ParameterError
from dpalgos.registry import construct, register
from dpalgos.rows import Array, Floats, Ints, row_products, unit_rows
from dpalgos.sentences import coded

_MOST_FEATURES = 2**16
_MOST_WHITENED = 2**12
_HALF = np.sqrt(np.finfo(np.float64).max) / 2.0
# Each pair of synthetic images is two rows that the network is run on.
_PAIRS, _COMPONENTS = 2000, 200


@released_kind("onnx-features")
@dataclass(frozen=True, slots=True)
class OnnxFeatures(RowFeatures):
    """The map x ↦ f(x)/‖f(x)‖ = u of an ONNX model f, or x ↦ w/‖w‖ with w = (u − mean) basis.

    Rows are run one at a time. A model may well mix the rows of a batch (batch normalisation left in training mode, a
    softmax over the first axis, quantisation by the batch's range): then one row would move every other row's features,
    and no sensitivity would hold.

    Parameters
    ----------
    model : array of uint8
        The file's bytes.
    shape : array of int
        Of the model's input without the batch axis.
    size : array of 1 int
        Number of the model's features.
    output : array of uint8
        Name of the output, as UTF-8 bytes.
    steps : array of uint8
        JSON, as UTF-8 bytes: ``layer`` that the model is cut behind, ``image`` (sizes of a row's image, or none),
        ``mean`` and ``deviation`` of its channels, ``pool``.
    mean : array (size,), optional
    basis : array (size, k), optional
    """

    model: NDArray[np.uint8]
    shape: Ints
    size: Ints
    output: NDArray[np.uint8]
    steps: NDArray[np.uint8]
    mean: Floats = field(default_factory=lambda: np.zeros(0))
    basis: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    packages: ClassVar[tuple[str, ...]] = ("onnxruntime",)

    @property
    def dimension(self) -> int:
        """Number of features k."""
        return int(self.basis.shape[1]) or int(self.size[0])

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, k), rows of norm 1 (or 0, where the model gives zeros or no finite numbers)."""
        steps = json.loads(self.steps.tobytes())
        session = sessions(self.model.tobytes(), steps.pop("layer"))
        asked = {"output": self.output.tobytes().decode(), "shape": self.shape.tolist(), **steps}
        size = int(self.size[0])
        outputs = np.zeros((len(features), size))
        with np.errstate(over="ignore", invalid="ignore"):
            rows = np.asarray(features).astype(TYPES[session.inputs[0].kind])
        for row, ran in zip(outputs, session.run(rows, {**asked, "most": _MOST_FEATURES}), strict=True):
            if ran.is_number and ran.values.size == size:
                row[:] = ran.values
        outputs[~np.isfinite(outputs).all(axis=1) | (np.abs(outputs).max(axis=1, initial=0.0) > _HALF)] = 0.0
        outputs = unit_rows(outputs)
        if not self.basis.size:
            return outputs
        turned = unit_rows(row_products(outputs - self.mean, self.basis))
        turned[np.abs(outputs).max(axis=1, initial=0.0) == 0.0] = 0.0
        return turned

    def arrays(self) -> dict[str, Array]:
        """Return the file and what is done around it; mean and basis where there are any."""
        whitening = {"mean": self.mean, "basis": self.basis} if self.basis.size else {}
        names = ("model", "shape", "size", "output", "steps")
        return {**{name: getattr(self, name) for name in names}, **whitening}


@register("encoders", "onnx")
@dataclass(frozen=True, kw_only=True)
class OnnxEncoder(FileMap):
    """A frozen encoder in ONNX format, by onnxruntime (the extra ``unitball[onnx]``).

    Guarantee
    ---------
    No privacy cost for training rows: the file and the synthetic images that whiten its features are independent of
    them, and each row is run through the file alone. Its rows have norm 1 (or 0). The rows that the encoder itself was
    trained on are outside the guarantee: the model may reveal anything that the encoder has memorised of them.

    Parameters
    ----------
    shape : sequence of int, optional
        Of the input without the batch axis, where the model leaves sizes open; rows of images are channel by channel.
    output : str, optional
        Name of the output that holds the features; needed where there are several.
    layer : str, optional
        A node, or the tensor that it puts out, behind which the model is cut: its features are taken.
    image : sequence of int, optional
        Sizes of the rows' images, (height, width) or (channels, height, width); square ones by default.
    resize : sequence of int, optional
        Height and width that images are brought to, by linear interpolation with antialiasing. Grey images are copied
        to each channel of a model that takes three.
    mean, deviation : sequence of float, optional
        Subtracted from the pixels and divided by, per channel of the model's input or one number for all: pixels are
        from 0 to 1 before.
    pool : str, optional
        ``mean`` or ``max`` over the positions of an output (1, channels, height, width) or (1, tokens, channels), or
        ``first``, the first token. By default all positions are features.
    whiten : bool, optional
        Whether features are centred, turned and scaled by what synthetic images give in the same network
        (:class:`~dpalgos.features.whitening.PublicWhitening`). By default where the model's input is an image.
    whitening : mapping, optional
        Parameters of that map: ``components`` (200), ``processes`` (``dead-leaves`` for images with three channels,
        otherwise ``strokes``), ``images`` (2,000 pairs, so 4,000 runs of the network), ``floor``, ``seed``.

    References
    ----------
    Tramèr, Boneh, ICLR 2021; De, Berrada, Hayes, Smith, Balle 2022; Mehta, Thakurta, Kurakin, Cutkosky 2022 (a frozen
    public encoder and a private linear head); Tramèr, Kamath, Carlini, ICML 2024 (what such a guarantee leaves out).
    """

    shape: Sequence[int] | None = None
    output: str | None = None
    layer: str | None = None
    image: Sequence[int] | None = None
    resize: Sequence[int] | None = None
    mean: Sequence[float] | None = None
    deviation: Sequence[float] | None = None
    pool: str | None = None
    whiten: bool | None = None
    whitening: Mapping[str, Any] = field(default_factory=dict)
    source: ClassVar[str] = "Tramèr, Boneh 2021; De et al. 2022"

    def __post_init__(self) -> None:
        if self.shape is not None and (not self.shape or min(self.shape) < 1):
            raise ParameterError(f"shape is {list(self.shape)}; give the sizes of the model's input, each at least 1")
        if self.resize is not None and (len(self.resize) != 2 or min(self.resize) < 1):
            raise ParameterError(f"resize is {list(self.resize)}; give height and width, each at least 1")
        if self.pool is not None and self.pool not in POOLS:
            raise ParameterError(f"pool is {self.pool!r}; give one of {', '.join(POOLS)}, or omit it")
        if self.layer is not None and self.output is not None:
            raise ParameterError("layer and output are both given: give one of them")
        for name, numbers in (("mean", self.mean), ("deviation", self.deviation)):
            if numbers is not None and not all(math.isfinite(number) for number in numbers):
                raise ParameterError(f"{name} is {list(numbers)}; give finite numbers, one per channel")
        if self.deviation is not None and min(self.deviation, default=0.0) <= 0.0:
            raise ParameterError(f"deviation is {list(self.deviation)}; give numbers above 0, one per channel")
        if self.whitening and self.whiten is False:
            raise ParameterError("whitening has parameters and whiten is false: omit one of the two")

    def read(self, content: bytes, dimension: int) -> OnnxFeatures:
        """Return the map of a file for rows of ``dimension`` features, without its whitening.

        Raises
        ------
        ParameterError
            If onnxruntime is missing; if the file is not an ONNX model, keeps weights in other files, has several
            inputs or outputs, takes other numbers or another number of them, gives something else than one vector of
            features per row, or gives different features for the same row; if a parameter does not fit the file or the
            rows.
        """
        session = sessions(content, self.layer or "")
        image = self._image(session, dimension)
        shape = self._resized(session, image) if image else self._input_shape(session, dimension)
        name = self._output_name(session)
        wanted = {"image": list(image), **self._scales(image, shape), "pool": self.pool or ""}
        asked = {"output": name, "shape": list(shape), **wanted, "most": _MOST_FEATURES}
        features = OnnxFeatures(
            model=np.frombuffer(content, dtype=np.uint8),
            shape=np.array(shape, dtype=np.int64),
            size=np.array([_output_size(session, name, dimension, asked)]),
            output=np.frombuffer(name.encode(), dtype=np.uint8),
            steps=np.frombuffer(json.dumps({"layer": self.layer or "", **wanted}).encode(), dtype=np.uint8),
        )
        row = np.random.default_rng(0).uniform(0.0, 1.0, (1, dimension))
        if not np.array_equal(features.transform(row), features.transform(row)):
            raise ParameterError("the model computes different features for the same row: export it without randomness")
        if self._whitens(features):
            self._whitener(features, dimension)
        return features

    def output_dimension(self, features: RowFeatures, dimension: int) -> int:
        """Return the number of features with the whitening, which is not made."""
        assert isinstance(features, OnnxFeatures)
        return self._whitener(features, dimension).components if self._whitens(features) else features.dimension

    def finished(self, features: RowFeatures, dimension: int) -> OnnxFeatures:
        """Return the map with its whitening: the network is run on synthetic images. No row has a part in it."""
        assert isinstance(features, OnnxFeatures)
        if not self._whitens(features):
            return features
        whitener, shape = self._whitener(features, dimension), self._drawn_shape(features, dimension)
        random = np.random.default_rng(whitener.seed)
        mean, basis = whitener.directions(features.transform, _pixels(whitener, shape, random), [features.dimension])
        return replace(features, mean=mean, basis=basis)

    def outside(self, content: bytes) -> str:
        """Return what the guarantee does not cover, as a code."""
        digest = hashlib.sha256(content).hexdigest()
        return coded("rows-of-encoder", digest=digest[:16])

    def _whitens(self, features: OnnxFeatures) -> bool:
        return len(features.shape) == 3 if self.whiten is None else self.whiten

    def _drawn_shape(self, features: OnnxFeatures, dimension: int) -> tuple[int, int, int]:
        image = json.loads(features.steps.tobytes())["image"]
        return image_shape(dimension, image or (features.shape.tolist() if len(features.shape) == 3 else self.image))

    def _whitener(self, features: OnnxFeatures, dimension: int) -> PublicWhitening:
        """Return the map that whitens, with its number of directions.

        Raises
        ------
        ParameterError
            If rows are no images, or there are too many features or too few for the directions.
        """
        if unknown := self.whitening.keys() - {"components", "processes", "images", "floor", "seed"}:
            raise ParameterError(
                f"whitening has no parameter {', '.join(sorted(unknown))}: components, processes, images, floor or seed"
            )
        channels, *_ = self._drawn_shape(features, dimension)
        size = features.dimension
        defaults = {
            "processes": ("dead-leaves",) if channels == 3 else ("strokes",),
            "images": _PAIRS,
            "components": min(size, _COMPONENTS),
        }
        made: PublicWhitening = construct(PublicWhitening, "whitening", {**defaults, **self.whitening})
        if not made.components <= size <= _MOST_WHITENED:
            raise ParameterError(
                f"the model computes {size} features and whitening accepts {made.components} to {_MOST_WHITENED}: "
                "pool them, choose another layer, set whitening's components, or give whiten=false"
            )
        return made

    def _image(self, session: Sessions, dimension: int) -> tuple[int, ...]:
        """Return the sizes of a row's image where images are changed before the model, or nothing."""
        if self.image is None and self.resize is None and self.mean is None and self.deviation is None:
            return ()
        if len(one_input(session.inputs).shape) != 4:
            raise ParameterError(
                f"the model's input is {shown(_without_batch(session))} per row: image, resize, mean and deviation "
                "are for models that take channels, height and width"
            )
        return image_shape(dimension, self.image)

    def _resized(self, session: Sessions, image: tuple[int, ...]) -> tuple[int, ...]:
        """Return the input's sizes for images that are brought to them."""
        rest = _without_batch(session)
        wanted = tuple(self.shape or (rest[0] if isinstance(rest[0], int) else image[0], *(self.resize or image[1:])))
        fits = len(wanted) == 3 and all(
            size == own or not isinstance(own, int) for size, own in zip(wanted, rest, strict=True)
        )
        if not fits or image[0] not in (1, wanted[0]) or (self.resize is not None and wanted[1:] != (*self.resize,)):
            raise ParameterError(
                f"the model's input is {shown(rest)} per row and images are {shown(image)}: give resize=[height, "
                "width] of the model's input; only grey images can be copied to several channels"
            )
        return wanted

    def _scales(self, image: tuple[int, ...], shape: tuple[int, ...]) -> dict[str, list[float]]:
        """Return mean and deviation of each channel."""
        if not image:
            return {"mean": [], "deviation": []}
        found = {}
        for name, numbers, plain in (("mean", self.mean, 0.0), ("deviation", self.deviation, 1.0)):
            given = [float(number) for number in numbers] if numbers is not None else [plain]
            if len(given) not in (1, shape[0]):
                raise ParameterError(
                    f"{name} has {len(given)} numbers; give one, or one for each of {shape[0]} channels"
                )
            found[name] = given * (shape[0] // len(given))
        return found

    def _input_shape(self, session: Sessions, dimension: int) -> tuple[int, ...]:
        put, rest = one_input(session.inputs), _without_batch(session)
        wanted = tuple(self.shape) if self.shape is not None else tuple(rest)
        if self.shape is None and not all(isinstance(size, int) and size > 0 for size in rest):
            # One open size is that of the rows.
            wanted = (dimension,) if len(rest) == 1 else wanted
        fits = len(wanted) == len(rest) and all(
            size == own or not isinstance(own, int) for size, own in zip(wanted, rest, strict=True)
        )
        sizes = tuple(size for size in wanted if isinstance(size, int))
        if len(sizes) < len(wanted) or not fits or math.prod(sizes) != dimension:
            raise ParameterError(
                f"the model's input {put.name} is {shown(rest)} per row and rows have {dimension} features"
                + (f"; shape={list(wanted)} does not fit both" if self.shape is not None else "")
                + ": give features.shape if the model's sizes are open, features.resize for images of another size, "
                "or another model"
            )
        if self.shape is None and len(sizes) == 3 and sizes[2] == 3 and sizes[0] not in (1, 3):
            raise ParameterError(
                f"the model's input {put.name} is {shown(rest)} per row, channels last; image rows are stored channel "
                "by channel: prepend a Transpose to the model, or give features.shape if your rows are channels last"
            )
        return sizes

    def _output_name(self, session: Sessions) -> str:
        names = [each.name for each in session.outputs]
        if self.output is None and len(names) == 1:
            return names[0]
        if self.output is None or self.output not in names:
            wrong = "several outputs" if self.output is None else f"no output {self.output!r}"
            raise ParameterError(f"the model has {wrong}; choose one with features.output: {', '.join(names[:20])}")
        return self.output


def _without_batch(session: Sessions) -> tuple[int | str | None, ...]:
    """Return the sizes of the model's input for one row.

    Raises
    ------
    ParameterError
        If it takes other numbers than floating-point ones, or several rows at once.
    """
    put: Port = one_input(session.inputs)
    if put.kind not in TYPES:
        raise ParameterError(
            f"the model's input {put.name} has type {put.kind}; rows are {' or '.join(TYPES)}: prepend a Cast to the "
            "model"
        )
    batch, *rest = put.shape or (None,)
    if isinstance(batch, int) and batch != 1:
        raise ParameterError(
            f"the model's input {put.name} takes a batch of {batch} rows; export it with an open batch axis, or a "
            "batch of 1"
        )
    return tuple(rest)


def _output_size(session: Sessions, name: str, dimension: int, asked: Mapping[str, object]) -> int:
    """Return the number of features of a row, by running one."""
    rows = np.zeros((1, dimension), dtype=TYPES[session.inputs[0].kind])
    (ran,) = session.run(rows, asked)
    if ran.failure:
        raise ParameterError(f"the model cannot be run on a row of shape {asked['shape']}: {first_line(ran.failure)}")
    if not ran.is_number:
        raise ParameterError(
            f"the model's output {name} holds no floating-point numbers; name another: features.output"
        )
    size = math.prod(ran.shape)
    if len(ran.shape) < 2 or ran.shape[0] != 1 or not 1 <= size <= _MOST_FEATURES:
        raise ParameterError(
            f"the model's output {name} has shape {list(ran.shape)} for one row; it must be one row of 1 to "
            f"{_MOST_FEATURES} features; features.pool reduces each channel to one number"
        )
    return size


def _pixels(
    whitener: PublicWhitening, shape: tuple[int, int, int], random: np.random.Generator
) -> Iterator[tuple[Floats, Floats]]:
    """Yield pairs of synthetic images as rows of pixels from 0 to 1."""
    for pair in drawn_images(whitener.processes, whitener.images, shape, random):
        first, second = (np.clip(images, 0.0, 1.0).reshape(len(images), -1) for images in pair)
        yield first, second
