"""Roots, logarithms and patches: closed forms, loops written out, and what cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpalgos.errors import ParameterError
from dpalgos.features.elementwise import SignedLogarithm, SignedRoot
from dpalgos.features.patches import PatchFeatures, RandomPatches
from dpalgos.guarantees import Setting
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.rows import Floats

NOISE = KeyedNoise(public_secret(0), "unused")


def setting(dimension: int) -> Setting:
    return Setting(sizes=(1,), dimension=dimension, classes=2)


def unit(rows: Floats) -> Floats:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))


def test_roots_and_logarithms_keep_signs() -> None:
    rows = np.array([[0.25, -0.04, 0.0], [0.0, 0.0, 0.0]])
    root = SignedRoot().fit((), setting(3), NOISE).transform(rows)
    np.testing.assert_allclose(root, unit(np.array([[0.5, -0.2, 0.0], [0.0, 0.0, 0.0]])), atol=1e-15)
    log = SignedLogarithm(scale=100.0).fit((), setting(3), NOISE).transform(rows)
    np.testing.assert_allclose(log, unit(np.array([[np.log(26), -np.log(5), 0.0], [0.0, 0.0, 0.0]])), atol=1e-15)


def one_by_one(made: PatchFeatures, image: Floats) -> Floats:
    """The map written as loops over patches."""
    _, _, _, side, cells = (int(size) for size in made.layout)
    _, height, width = image.shape
    places = (height - side + 1, width - side + 1)
    sums = np.zeros((cells, cells, 2 * made.filters.shape[1]))
    counts = np.zeros((cells, cells, 1))
    edges = [np.linspace(0, size, cells + 1).astype(int) for size in places]
    for row in range(places[0]):
        for column in range(places[1]):
            patch = image[:, row : row + side, column : column + side].ravel()
            patch = patch - patch.mean()
            answer = made.filters.T @ (patch / (np.linalg.norm(patch) + 1e-3))
            cell = np.searchsorted(edges[0], row, "right") - 1, np.searchsorted(edges[1], column, "right") - 1
            sums[cell] += np.concatenate([np.maximum(answer, 0), np.maximum(-answer, 0)])
            counts[cell] += 1
    return (sums / counts).ravel()


@pytest.mark.parametrize("shape", [(1, 7, 6), (3, 5, 5)])
def test_patches_are_the_loops(shape: tuple[int, int, int], random: np.random.Generator) -> None:
    images = random.uniform(size=(4, *shape))
    made = RandomPatches(filters=5, side=3, cells=2, shape=shape).fit((), setting(images[0].size), NOISE)
    found = made.transform(images.reshape(4, -1))
    assert found.shape == (4, made.dimension)
    np.testing.assert_allclose(found, unit(np.stack([one_by_one(made, image) for image in images])), atol=1e-12)


def test_contrast_and_brightness_do_not_matter(random: np.random.Generator) -> None:
    images = random.uniform(size=(3, 64))
    made = RandomPatches(filters=4).fit((), setting(64), NOISE)
    np.testing.assert_allclose(made.transform(7.0 * images + 2.0), made.transform(images), atol=2e-3)
    assert not made.transform(np.ones((1, 64))).any(), "flat images"
    assert made.transform(images[:0]).shape == (0, made.dimension)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: SignedRoot(power=0.0), "power is 0.0"),
        (lambda: SignedLogarithm(scale=-1.0), "scale"),
        (lambda: RandomPatches(filters=0), "filters"),
        (lambda: RandomPatches(side=8).output_dimension(64), "choose fewer cells or smaller patches"),
        (lambda: RandomPatches().output_dimension(65), "no square images"),
    ],
)
def test_what_cannot_be(made: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        made()
