"""The registered map ``encoder``: what the network sees of an image, in the principal directions of synthetic ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import scipy

from dpalgos.algorithms import Work, require_components
from dpalgos.features.encoder.network import EncoderFeatures, Weights, load
from dpalgos.features.public_map import ImageMap, RowFeatures
from dpalgos.features.random_images import drawn_pairs
from dpalgos.features.whitening import DRAWING, WhitenedFeatures, moved_to_zero
from dpalgos.guarantees import Setting
from dpalgos.parameters import COUNT, NATURAL, POSITIVE, ParameterError
from dpalgos.registry import AlgorithmSpec, lookup, register
from dpalgos.rows import Floats

# Added to a feature's standard deviation.
_LEAST_DEVIATION = 1e-3
# Directions that are kept at least, for runs that ask for fewer.
_KEPT = 400
# Rows whose features are held at once, and operations a number of an eigendecomposition.
_AT_ONCE, _DECOMPOSITION = 1024, 8.0
# Of products in double precision, what the network's in single precision take with all that is around them (measured).
_SINGLE = 0.7


@register("projections", "encoder")
@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder(ImageMap):
    """A convolutional network that was trained without photographs, whitened by synthetic images.

    The network was taught, on random scenes of opaque leaves, to tell views of one scene from views of others
    (:mod:`dpalgos.features.encoder` says how, and what its settings were seen on). Its features
    (:class:`~dpalgos.features.encoder.network.EncoderFeatures`) are standardised by mean and deviation over synthetic
    images, turned to the top k principal directions of their covariance there, each divided by
    (λ + floor·λ₁)^½, and brought to the unit sphere.

    Guarantee
    ---------
    No privacy cost: the network's weights come with this package and were made from random numbers, the directions are
    made from the seed and the image's shape, and each image is mapped by itself, to bits that depend on it alone. Its
    rows have norm 1 (or 0, for a row whose features are the mean).

    Parameters
    ----------
    net : str
        ``big`` (160 million multiplications an image) or ``small`` (71 million).
    components : int
        Directions k.
    mirror : bool
        Whether features are averaged over the image and its mirror image, which takes twice as long. What mirror
        images tell apart the network overlooks either way: where they are not the same thing (signs, digits, letters),
        other maps do better.
    processes : sequence of str
        Registered random processes, which draw as many images each.
    images : int
        Pairs of images drawn.
    floor : float
        Added to the eigenvalues, relative to the largest.
    seed : int
        Public.
    shape : sequence of int, optional
        Of the images, (height, width) or (channels, height, width) with one channel or three; square by default.

    References
    ----------
    Chen, Kornblith, Norouzi, Hinton, ICML 2020 (NT-Xent); Baradad et al., NeurIPS 2021 (learning from random
    processes); Tang, Panda, Sehwag, Mittal, NeurIPS 2023 (such an encoder in private learning).
    """

    net: str = "big"
    components: int = field(default=400, metadata=COUNT)
    mirror: bool = True
    processes: Sequence[str] = ("dead-leaves",)
    images: int = field(default=6000, metadata=COUNT)
    floor: float = field(default=1e-3, metadata=POSITIVE)
    seed: int = field(default=0, metadata=NATURAL)
    source: ClassVar[str] = "ours; Baradad et al. 2021, Chen et al. 2020"
    kept: ClassVar[bool] = True

    def features_of(self, dimension: int) -> int:
        """Return the number of the network's features: directions at most.

        Raises
        ------
        ParameterError
            If rows are not images of the shape.
        """
        return self.network(dimension).dimension

    def output_dimension(self, dimension: int) -> int:
        """Return the number of directions.

        Raises
        ------
        ParameterError
            If rows are not images of the shape, or more directions are requested than the network has features.
        """
        require_components(self.components, self.features_of(dimension))
        return self.components

    @classmethod
    def composed_of(cls, parameters: Mapping[str, Any]) -> tuple[type, ...]:
        """Return the random processes' classes: their code is this one's too."""
        return tuple(lookup("processes", name) for name in parameters.get("processes", ("dead-leaves",)))

    def network(self, dimension: int) -> EncoderFeatures:
        """Return the network for rows of so many features."""
        sizes = self.sizes(dimension)
        if sizes[0] not in (1, 3):
            raise ParameterError(f"the encoder takes images of one channel or three; these have {sizes[0]}")
        return EncoderFeatures.of(_weights(self.net), sizes, mirror=self.mirror)

    def work(self, setting: Setting) -> Work:
        """Return that of making the map, and of each row's features and their directions."""
        network = self.network(setting.dimension)
        features, drawn = network.dimension, 2 * self.images
        every = 2.0 * features * self.components + _SINGLE * operations(network)
        return Work(
            operations=_DECOMPOSITION * float(features) ** 3
            + drawn * float(features) ** 2
            + every * (setting.rows + drawn),
            small_operations=DRAWING * setting.dimension * drawn,
            row=8 * self.components,
            held=8 * (6 * features**2 + 3 * _AT_ONCE * (features + setting.dimension)),
        )

    def stored_as(self, spec: AlgorithmSpec, dimension: int) -> AlgorithmSpec:
        """Return the map with more directions: those of fewer are the first of them."""
        return spec.with_parameters(components=max(self.components, _KEPT))

    def part_of(self, stored: RowFeatures) -> WhitenedFeatures:
        """Return the first directions."""
        assert isinstance(stored, WhitenedFeatures)
        return stored.first(self.components)

    def map_for(self, dimension: int) -> WhitenedFeatures:
        """Return the map, made once in a process."""
        self.output_dimension(dimension)
        spec = self.stored_as(AlgorithmSpec("projections", "encoder", asdict(self)), dimension)
        return self.part_of(_made(json.dumps(dict(spec.parameters), sort_keys=True), dimension))

    def make(self, dimension: int) -> WhitenedFeatures:
        """Make and return the map of rows of so many features."""
        network = self.network(dimension)
        pairs = drawn_pairs(self.processes, self.images, self.sizes(dimension), np.random.default_rng(self.seed))
        blocks = (network.transform(moved_to_zero(images)) for pair in pairs for images in pair)
        return WhitenedFeatures.of(network, *principal_directions(blocks, self.components, self.floor))


def operations(network: EncoderFeatures) -> float:
    """Return the floating-point operations that an image takes, its mirror image included."""
    pictures = 1 + int(network.layout[3])
    return pictures * sum(2.0 * one.numbers * one.size**2 for one in network.layers)


def principal_directions(blocks: Iterable[Floats], components: int, floor: float) -> tuple[Floats, Floats]:
    """Return mean (p,) and basis (p, k) of features (·, p), read block by block.

    Each feature is divided by its standard deviation (plus a thousandth) first; of the covariance of what comes out,
    the top k directions, each divided by (λ + floor·λ₁)^½.
    """
    count, total, gram = 0, np.zeros(1), np.zeros((1, 1))
    for block in blocks:
        count, total = count + len(block), total + block.sum(axis=0)
        # Single precision is enough for the products of so few.
        single = block.astype(np.float32)
        gram = gram + single.T @ single
    mean = total / count
    covariance = gram / count - np.outer(mean, mean)
    scale = 1.0 / (np.sqrt(np.maximum(np.diagonal(covariance), 0.0)) + _LEAST_DEVIATION)
    covariance *= scale[:, None] * scale
    size = len(mean)
    values, turned = scipy.linalg.eigh(covariance, subset_by_index=[size - components, size - 1], overwrite_a=True)
    # Of a direction and its opposite, that whose largest entry is positive.
    turned *= np.sign(turned[np.abs(turned).argmax(axis=0), np.arange(components)])
    largest = max(float(values[-1]), 1e-12)
    turned *= (np.maximum(values, 0.0) + floor * largest) ** -0.5
    # Single precision is enough and halves the file.
    return mean, (scale[:, None] * turned[:, ::-1]).astype(np.float32).astype(np.float64)


@lru_cache(maxsize=2)
def _weights(net: str) -> Weights:
    return load(net)


# A map takes a minute to make and some megabytes to keep.
@lru_cache(maxsize=2)
def _made(parameters: str, dimension: int) -> WhitenedFeatures:
    return Encoder(**json.loads(parameters)).make(dimension)
