"""Roots, logarithms and patches: closed forms, loops written out, and what cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpalgos.features.patches import Dictionary, PatchFeatures, RandomPatches, _centroids
from dpalgos.features.public_map import SignedLogarithm, SignedRoot
from dpalgos.guarantees import Setting
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import decode
from dpalgos.parameters import ParameterError
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
    made = RandomPatches(filters=5, side=3, cells=2, shape=shape).map_for(images[0].size)
    found = made.transform(images.reshape(4, -1))
    assert found.shape == (4, made.dimension)
    np.testing.assert_allclose(found, unit(np.stack([one_by_one(made, image) for image in images])), atol=1e-12)


def test_a_dictionary_is_the_loops(random: np.random.Generator) -> None:
    """Thresholds, offsets, roots, cells that overlap, averages over mirror images: written out."""
    shape, side, cells = (3, 8, 7), 3, 2
    made = Dictionary(filters=5, side=side, cells=cells, images=60, mirror=True, shape=shape).map_for(168)
    filters, offset = made.filters.astype(float), made.offset.astype(float)
    threshold, power, small = made.curve
    np.testing.assert_allclose(
        filters[:, 5:], filters.reshape(3, 3, 3, 10)[:, :, ::-1].reshape(27, 10)[:, :5], rtol=1e-4
    )

    def coefficients(image: Floats) -> Floats:
        answers = np.empty((6, 5, 10))
        for row, column in np.ndindex(6, 5):
            patch = image[:, row : row + side, column : column + side].ravel()
            patch = patch - patch.mean()
            answers[row, column] = patch / (np.linalg.norm(patch) + small) @ filters + offset
        found = np.empty((cells, cells, 2, 10))
        # Of five columns the middle one belongs to both halves.
        for i, j in np.ndindex(cells, cells):
            own = answers[3 * i : 3 * i + 3, 2 * j : 2 * j + 3]
            for sign in (0, 1):
                found[i, j, sign] = np.maximum((1 - 2 * sign) * own - threshold, 0).mean(axis=(0, 1)) ** power
        return found[..., :5]

    images = random.uniform(size=(4, *shape))
    expected = np.stack([(coefficients(one) + coefficients(one[:, :, ::-1])).ravel() for one in images])
    found = made.transform(images.reshape(4, -1))
    assert found.shape == (4, made.dimension)
    np.testing.assert_allclose(found, unit(expected), atol=1e-5)
    np.testing.assert_allclose(made.transform(images[..., ::-1].reshape(4, -1)), found, atol=1e-5)
    np.testing.assert_array_equal(made.transform(images[2:3].reshape(1, -1))[0], found[2])
    stored = decode(made.kind, made.arrays())
    np.testing.assert_array_equal(stored.transform(images.reshape(4, -1)), found)


def test_centroids_of_long_points_take_none_of_the_short_ones() -> None:
    """Two tight clusters of lengths 3 and 1 at a right angle: each centroid's direction is one of theirs."""
    random = np.random.default_rng(4)
    points = np.repeat([[3.0, 0.0], [0.0, 1.0]], 500, axis=0) + random.normal(0, 0.01, (1000, 2))
    found = _centroids(points, 8, random)
    assert np.abs(found).max(axis=1) == pytest.approx(1.0, abs=1e-3)
    assert set(np.abs(found).argmax(axis=1).tolist()) == {0, 1}


def test_a_dictionary_is_its_seeds_and_its_filters_are_whitened_centroids() -> None:
    """Filters answer to whitened patches: their lengths there are one, before scaling by the root of the pixels."""
    made, again = (Dictionary(filters=8, side=3, images=80).map_for(144) for _ in range(2))
    other = Dictionary(filters=8, side=3, images=80, seed=1).map_for(144)
    np.testing.assert_array_equal(made.filters, again.filters)
    assert not np.allclose(made.filters, other.filters)
    assert np.abs(np.corrcoef(made.filters.T) - np.eye(8)).max() < 0.99, "all filters alike"


def test_an_old_map_of_patches_is_as_it_was(random: np.random.Generator) -> None:
    """Logged models hold a layout of five numbers and the filters alone."""
    filters = random.normal(size=(9, 4))
    old = decode("patch-features", {"layout": np.array([1, 6, 6, 3, 2]), "filters": filters})
    images = random.uniform(size=(3, 1, 6, 6))
    expected = unit(np.stack([one_by_one(old, image) for image in images]))
    np.testing.assert_allclose(old.transform(images.reshape(3, -1)), expected, atol=1e-12)


def test_contrast_and_brightness_do_not_matter(random: np.random.Generator) -> None:
    images = random.uniform(size=(3, 64))
    made = RandomPatches(filters=4).fit((), setting(64), NOISE)
    np.testing.assert_allclose(made.transform(7.0 * images + 2.0), made.transform(images), atol=2e-3)
    assert not made.transform(np.ones((1, 64))).any(), "flat images"
    assert made.transform(images[:0]).shape == (0, made.dimension)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: SignedRoot(power=0.0), "power.*0.0"),
        (lambda: SignedLogarithm(scale=-1.0), "scale"),
        (lambda: RandomPatches(filters=0), "filters"),
        (lambda: RandomPatches(side=8).output_dimension(64), "cells.*patches"),
        (lambda: RandomPatches().output_dimension(65), r"shape=\[height, width\]"),
    ],
)
def test_what_cannot_be(made: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        made()
