"""Random processes: closed forms of what they draw and how it is seen, and that a seed alone makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from dpalgos.features._compiled import paint, warp
from dpalgos.features.random_images import drawn_pairs, random_textures
from dpalgos.features.whitening import PublicWhitening, WhitenedFeatures
from dpalgos.models import decode
from dpalgos.normalisation import UnitNorm
from dpalgos.parameters import ParameterError, UnknownNameError
from dpalgos.registry import lookup, names

SHAPES = {"strokes": (1, 20, 16), "objects": (1, 20, 16), "dead-leaves": (3, 16, 20)}


@pytest.mark.parametrize("name", names("processes"))
def test_a_process_is_its_seeds_and_draws_images(name: str) -> None:
    """Whatever their shape; both of a pair are changed, and are more like each other than like other images."""
    for channels in (1, 3):
        _, height, width = SHAPES.get(name, (1, 16, 16))
        shape, process = (channels, height, width), lookup("processes", name)()
        first, second = process.pairs(60, *shape, np.random.default_rng(1))
        again, _ = process.pairs(60, *shape, np.random.default_rng(1))
        other, _ = process.pairs(60, *shape, np.random.default_rng(2))
        assert first.shape == second.shape == (60, *shape)
        np.testing.assert_array_equal(again, first)
        assert not np.allclose(other, first)
        assert not np.allclose(first, second)
        assert first.min() >= 0
        assert np.isfinite(first).all()
        flat = [images.reshape(60, -1) for images in (first, second, second[..., ::-1])]
        flat = [rows - rows.mean(axis=1, keepdims=True) for rows in flat]
        flat = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in flat]
        alike = np.maximum(flat[0] @ flat[1].T, flat[0] @ flat[2].T)
        # By chance one in sixty would be the most alike.
        assert (alike.argmax(axis=1) == np.arange(60)).mean() > 0.3


def test_processes_draw_as_many_images_each_and_rows_have_norm_one() -> None:
    random = np.random.default_rng(0)
    blocks = list(drawn_pairs(["strokes", "objects"], 7, (1, 12, 12), random))
    first, second = (np.concatenate(one) for one in zip(*blocks, strict=True))
    assert first.shape == second.shape == (7, 144)
    norms = np.linalg.norm(first, axis=1)
    np.testing.assert_allclose(norms[norms > 0], 1.0)
    expected, _ = lookup("processes", "strokes")().pairs(3, 1, 12, 12, np.random.default_rng(0))
    strokes = expected.reshape(3, -1)
    np.testing.assert_allclose(first[:3], strokes / np.linalg.norm(strokes, axis=1, keepdims=True))
    with pytest.raises(ParameterError, match="dead-leaves"):
        next(drawn_pairs([], 7, (1, 12, 12), random))
    with pytest.raises(UnknownNameError, match="strokes"):
        next(drawn_pairs(["stroks"], 7, (1, 12, 12), random))


def test_the_foremost_shape_hides_the_others() -> None:
    """A box before an ellipse before the ground: areas and colours by hand."""
    leaves = np.zeros((1, 3, 13))
    leaves[..., 2] = 1.0
    leaves[0, 0, [0, 1, 4, 5, 6]] = [20, 20, 5.5, 3.5, 200.0]
    leaves[0, 1, [0, 1, 4, 5, 6]] = [20, 20, 12.0, 12.0, 2.0]
    colours = np.array([[[0.9, 0.1], [0.5, 0.6], [0.0, 0.0]]])
    out = np.empty((1, 2, 41, 41))
    paint(leaves, colours, np.zeros((1, 4, 4)), np.array([[0.2, 0.3]]), out)
    box = np.zeros((41, 41), dtype=bool)
    box[15:26, 17:24] = True
    assert (out[0, 0][box] == 0.9).all()
    assert (out[0, 1][box] == 0.1).all()
    ellipse = (out[0, 0] == 0.5).sum()
    assert abs(ellipse + box.sum() - np.pi * 12**2) < 0.03 * np.pi * 12**2
    assert (out[0, 0] == 0.2).sum() == 41 * 41 - box.sum() - ellipse


@pytest.mark.parametrize(("clamped", "mode"), [(False, "constant"), (True, "nearest")])
def test_between_pixels_it_is_scipys_interpolation(clamped: bool, mode: str, random: np.random.Generator) -> None:
    image = random.random((2, 9, 7))
    places = random.uniform(-2.0, 10.0, (2, 11, 6))
    out = np.empty((2, 11, 6))
    warp(image, places[0], places[1], clamped, out)
    for found, channel in zip(out, image, strict=True):
        expected = ndimage.map_coordinates(channel, places, order=1, mode=mode)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_textures_have_variance_one_and_mostly_low_frequencies(random: np.random.Generator) -> None:
    textures = random_textures(40, 32, random)
    np.testing.assert_allclose(textures.mean(axis=(1, 2)), 0.0, atol=1e-9)
    np.testing.assert_allclose(textures.std(axis=(1, 2)), 1.0)
    power = (np.abs(np.fft.fft2(textures)) ** 2).mean(axis=0)
    assert power[1, 1] > 10 * power[12, 12]


class TestImagesWithNegativeValues:
    """USPS comes scaled to [-1, 1]: without a step of its own its accuracy at epsilon 0.3 was 0.52 in place of 0.95."""

    images = np.abs(np.random.default_rng(3).normal(size=(5, 64))) * (np.arange(64) % 3 == 0)

    def row_map(self) -> WhitenedFeatures:
        return PublicWhitening(images=60, components=20).make(64)

    def test_they_are_mapped_as_the_same_images_from_zero(self) -> None:
        row_map, largest = self.row_map(), self.images.max(axis=1, keepdims=True)
        scaled = 2.0 * self.images / largest - 1.0
        expected = row_map.transform(UnitNorm()(self.images))
        assert row_map.transform(UnitNorm()(scaled)) == pytest.approx(expected, abs=1e-9)

    def test_a_stored_map_and_fewer_of_its_directions_move_images_too(self) -> None:
        row_map = self.row_map()
        moved, normed = self.images - 0.5, UnitNorm()(self.images)
        stored: Any = decode(row_map.kind, row_map.arrays())
        assert stored.transform(moved) == pytest.approx(row_map.transform(normed), abs=1e-9)
        few = stored.first(7)
        assert few.transform(moved) == pytest.approx(few.transform(normed), abs=1e-9)
