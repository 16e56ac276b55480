"""Features centred, whitened and reduced by covariances of made-up images: no row has a part in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpalgos.arrays import Array
from dpalgos.errors import ParameterError
from dpalgos.features.public_map import PublicMap, RowFeatures, image_shape
from dpalgos.features.random_images import deformed, random_strokes
from dpalgos.guarantees import Setting
from dpalgos.models import decode, released_kind
from dpalgos.noise import NoiseSource, RandomStream
from dpalgos.registry import AlgorithmSpec, register
from dpalgos.rows import Floats, Rows
from dpalgos.validation import require_components, require_count, require_positive
from dpalgos.work import Work

__all__ = ["PublicWhitening", "WhitenedFeatures"]


@released_kind
class WhitenedFeatures(RowFeatures):
    """The map x ↦ u/‖u‖ with u = (f(x) − mean) basis, for a public feature map f.

    Parameters
    ----------
    mean : array (p,)
        Of f over the made-up images.
    basis : array (p, k)
    map_kind : array of uint8
        The kind of f, as UTF-8 bytes.
    **of_map : arrays
        Those of f, each with ``map_`` before its name.
    """

    kind: ClassVar[str] = "whitened-features"
    kept: ClassVar[bool] = True

    def __init__(self, mean: Floats, basis: Floats, map_kind: NDArray[np.uint8], **of_map: Array) -> None:
        self.mean, self.basis, self._map_kind, self._of_map = mean, basis, map_kind, of_map
        own = {name.removeprefix("map_"): array for name, array in of_map.items()}
        self.map = decode(map_kind.tobytes().decode(), own)

    @classmethod
    def of(cls, features: Any, mean: Floats, basis: Floats) -> WhitenedFeatures:
        """Return the map made of a public feature map, a mean and a basis."""
        kind = np.frombuffer(features.kind.encode(), dtype=np.uint8)
        return cls(mean, basis, kind, **{f"map_{name}": array for name, array in features.arrays().items()})

    @property
    def dimension(self) -> int:
        """Number of features k."""
        return int(self.basis.shape[1])

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, k), rows of norm 1 (or 0)."""
        turned = (self.map.transform(features) - self.mean) @ self.basis
        norms = np.linalg.norm(turned, axis=1, keepdims=True)
        return np.asarray(turned / np.where(norms > 0, norms, 1.0))

    def arrays(self) -> dict[str, Array]:
        """Return mean, basis and the arrays of the feature map."""
        return {"mean": self.mean, "basis": self.basis, "map_kind": self._map_kind, **self._of_map}


# Operations a number, as measured: of two eigendecompositions over the cube of the number of features, of a pixel's
# scattering features, and of drawing and deforming a made-up pixel.
_DECOMPOSITION = 18.0
_FEATURES = 6.0
_DRAWING = 20.0


@register("projections", "public-whitening")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicWhitening(PublicMap):
    """Features in the directions that tell made-up images apart best, in units of what small changes do to them.

    Random strokes are drawn, and each is deformed twice by a little (shift, turn, stretch, shear, bend). The features'
    covariance within the pairs, W, says what a change that means nothing does; the covariance over all of them, T, what
    can be told apart at all. With A = (W + floor·‖W‖)^-½, rows are centred by the mean, turned to the top k directions
    of A T A and brought to the unit sphere. There a class is a ball around its mean, and little is left for a private
    step to learn but these means.

    Guarantee
    ---------
    Costs nothing: the map is made from the seed and the image's shape; each row is mapped by itself. Its rows have norm
    1 (or 0, for a row whose features are the mean).

    Parameters
    ----------
    features : str
        A registered public map of images.
    feature_parameters : mapping
        Of that map.
    components : int
        Directions k.
    images : int
        Strokes drawn; twice as many images.
    floor : float
        Added to W's eigenvalues, relative to the largest.
    seed : int
        Public.
    shape : sequence of int, optional
        Of the images; square ones by default.

    References
    ----------
    Fisher 1936 and Hatch, Kajarekar, Stolcke, INTERSPEECH 2006 (within-class covariance normalisation), with made-up
    classes; Simard, LeCun, Denker 1993 (deformations as what must not matter); Baradad et al., NeurIPS 2021 (learning
    from random processes); Tang et al., NeurIPS 2023 (such processes as priors of private learning).
    """

    features: str = "scattering"
    feature_parameters: Mapping[str, Any] = field(default_factory=dict)
    components: int = 200
    images: int = 6000
    floor: float = 3e-4
    seed: int = 0
    shape: Sequence[int] | None = None
    source: ClassVar[str] = "ours; Fisher 1936 on images of a random process"
    kept: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("components", self.components)
        require_count("images", self.images)
        require_count("seed", self.seed, 0)
        require_positive("floor", self.floor)

    def output_dimension(self, dimension: int) -> int:
        """Return the number of directions.

        Raises
        ------
        ParameterError
            If rows are no images of the shape, or have fewer features than directions are asked for.
        """
        inner = self._inner().build()
        if inner.reads_rows:
            raise ParameterError(f"features is {self.features!r}, which reads rows; name a public map: scattering, hog")
        found = Setting(sizes=(), dimension=inner.output_dimension(dimension), classes=1)
        require_components(self.components, found)
        return self.components

    def _inner(self) -> AlgorithmSpec:
        """Return the map of images into features."""
        parameters = dict(self.feature_parameters)
        if self.shape is not None:
            parameters.setdefault("shape", self.shape)
        return AlgorithmSpec("projections", self.features, parameters)

    def work(self, setting: Setting) -> Work:
        """Return that of making the map, and of each row's features and their directions."""
        features, made = self._inner().build().output_dimension(setting.dimension), 2 * self.images
        mapped = setting.rows + made
        return Work(
            operations=_DECOMPOSITION * float(features) ** 3 + 2.0 * mapped * features * self.components,
            small_operations=float(setting.dimension) * (_FEATURES * mapped + _DRAWING * made),
            # Both halves of the pairs and all of them side by side, and square matrices and their eigenvectors.
            row=8 * 3 * features,
            held=8 * (2 * made * features + 5 * features**2),
        )

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> WhitenedFeatures:
        """Return the map, made once in a process: neither rows nor noise have a part in it."""
        self.output_dimension(setting.dimension)
        return _made(json.dumps(asdict(self), sort_keys=True), setting.dimension)

    def make(self, dimension: int) -> WhitenedFeatures:
        """Return the map of rows of so many features, made anew."""
        setting = Setting(sizes=(), dimension=dimension, classes=1)
        inner = self._inner().build().fit([], setting, _NoNoise())
        first, second = (inner.transform(images) for images in self._pairs(dimension))
        return WhitenedFeatures.of(inner, *self._directions(first, second))

    def _pairs(self, dimension: int) -> tuple[Floats, Floats]:
        """Return each image deformed twice, as rows of norm 1 like those of a data set."""
        channels, height, width = image_shape(dimension, self.shape)
        random = np.random.default_rng(self.seed)
        strokes = random_strokes(self.images, height, width, random)
        contrast = random.uniform(0.3, 1.0, (self.images, channels, 1)) if channels > 1 else 1.0

        def row_by_row(images: Floats) -> Floats:
            rows = (images.reshape(self.images, 1, -1) * contrast).reshape(self.images, -1)
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            return np.asarray(rows / np.where(norms > 0, norms, 1.0))

        return row_by_row(deformed(strokes, random)), row_by_row(deformed(strokes, random))

    def _directions(self, first: Floats, second: Floats) -> tuple[Floats, Floats]:
        """Return mean (p,) and basis (p, k) from the features of the pairs."""
        # One copy of the features at a time: they are the most that making the map holds.
        apart = first - second
        within, vectors = np.linalg.eigh(apart.T @ apart / (2 * len(apart)))
        del apart
        whitener = vectors / np.sqrt(within + self.floor * within[-1])
        both = np.concatenate([first, second])
        mean = both.mean(axis=0)
        both -= mean
        _, turned = np.linalg.eigh(whitener.T @ (both.T @ both / len(both)) @ whitener)
        # Single precision is enough and halves the file.
        basis = (whitener @ turned[:, ::-1][:, : self.components]).astype(np.float32).astype(np.float64)
        return mean, basis


# A map takes seconds to make and some megabytes to keep.
@lru_cache(maxsize=2)
def _made(parameters: str, dimension: int) -> WhitenedFeatures:
    return PublicWhitening(**json.loads(parameters)).make(dimension)


class _NoNoise:
    """What a public map is given for noise."""

    def stream(self, step: str, value: object) -> RandomStream:
        raise ParameterError(f"a public map draws no noise, and one asks for it ({step!r})")
