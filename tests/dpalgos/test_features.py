"""Public maps: they stay in the unit ball, cost nothing, and are what their names say."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.fft import dctn
from sklearn.metrics.pairwise import rbf_kernel

from dpalgos.features.hog import Hog
from dpalgos.features.public_map import AveragePooling, LowFrequencies, RandomFourier, RandomProjection, image_shape
from dpalgos.features.whitening import CentredDirections
from dpalgos.guarantees import Setting
from dpalgos.parameters import ParameterError
from dpalgos.projections.centring import CentredRows
from dpalgos.registry import lookup, names
from dpalgos.rows import ArrayRows
from tests.support.nights import by_night
from tests.support.training import noise


def fitted(algorithm: Any, dimension: int, rows: Any = None) -> Any:
    features = np.zeros((0, dimension)) if rows is None else rows
    given = ArrayRows(features, np.zeros(len(features), dtype=np.int64))
    return algorithm.fit([given], Setting(sizes=(len(features),), dimension=dimension, classes=2), noise())


def images(count: int, *shape: int) -> Any:
    return np.random.default_rng(1).random((count, int(np.prod(shape))))


@pytest.mark.parametrize(
    ("height", "width", "cell", "bins", "block"),
    [(28, 28, 4, 9, 2), (8, 8, 4, 9, 2), (13, 17, 3, 8, 1), (9, 12, 3, 4, 2)],
)
def test_hog_is_scikit_images(height: int, width: int, cell: int, bins: int, block: int) -> None:
    from skimage.feature import hog

    # Of few brightnesses, many gradients lie on the border of two bins.
    rows = np.concatenate([images(7, height, width), np.round(2 * images(7, height, width))])
    rows[0] = 0.0
    ours = fitted(Hog(cell=cell, bins=bins, block=block, shape=[height, width]), height * width)
    theirs = np.array(
        [
            hog(
                row.reshape(height, width),
                orientations=bins,
                pixels_per_cell=(cell, cell),
                cells_per_block=(block, block),
                block_norm="L2-Hys",
            )
            for row in rows
        ]
    )
    norms = np.linalg.norm(theirs, axis=1, keepdims=True)
    np.testing.assert_allclose(ours.transform(rows), theirs / np.where(norms > 0, norms, 1.0), atol=1e-12)
    assert ours.dimension == theirs.shape[1]


def test_hog_of_colours_is_scikit_images() -> None:
    from skimage.feature import hog

    rows = images(4, 3, 32, 32)
    ours = fitted(Hog(), 3072).transform(rows)
    for row, found in zip(rows, ours, strict=True):
        colours = np.moveaxis(row.reshape(3, 32, 32), 0, 2)
        theirs = hog(colours, pixels_per_cell=(4, 4), cells_per_block=(2, 2), block_norm="L2-Hys", channel_axis=2)
        np.testing.assert_allclose(found, theirs / np.linalg.norm(theirs), atol=1e-12)


def test_hog_of_mnist_has_1296_features_and_is_row_local() -> None:
    assert Hog().output_dimension(784) == 1296
    rows = images(1030, 8, 8)
    mapped = fitted(Hog(), 64).transform(rows)
    np.testing.assert_allclose(np.linalg.norm(mapped, axis=1), 1.0)
    np.testing.assert_array_equal(mapped[1024:1026], fitted(Hog(), 64).transform(rows[1024:1026]))


def test_low_frequencies_are_the_cosine_transforms() -> None:
    rows = images(5, 6, 4)
    full = fitted(LowFrequencies(components=24, shape=[6, 4]), 24)
    np.testing.assert_allclose(full.basis.T @ full.basis, np.eye(24), atol=1e-12)
    spectrum = dctn(rows.reshape(5, 6, 4), axes=(1, 2), norm="ortho")
    np.testing.assert_allclose(
        np.sort(np.abs(full.transform(rows))), np.sort(np.abs(spectrum.reshape(5, 24))), atol=1e-12
    )
    first = fitted(LowFrequencies(components=3, shape=[6, 4]), 24).transform(rows)
    np.testing.assert_allclose(first, spectrum[:, [0, 0, 1], [0, 1, 0]], atol=1e-12)


def test_pooling_sums_blocks() -> None:
    rows = images(3, 5, 4)
    mapped = fitted(AveragePooling(size=2, shape=[5, 4]), 20).transform(rows)
    assert mapped.shape == (3, 6)
    np.testing.assert_allclose(mapped[:, 0], rows.reshape(3, 5, 4)[:, :2, :2].sum(axis=(1, 2)) / 2)
    np.testing.assert_allclose(mapped[:, 4], rows.reshape(3, 5, 4)[:, 4, :2].sum(axis=1) / np.sqrt(2))
    assert (np.linalg.norm(mapped, axis=1) <= np.linalg.norm(rows, axis=1)).all()


def test_random_projections_keep_lengths_on_average_and_follow_the_seed() -> None:
    projection = fitted(RandomProjection(components=40), 200)
    rows = np.random.default_rng(2).normal(size=(500, 200))
    ratio = np.linalg.norm(projection.transform(rows), axis=1) / np.linalg.norm(rows, axis=1)
    assert abs(ratio.mean() - 1) < 0.05
    np.testing.assert_array_equal(projection.basis, fitted(RandomProjection(components=40), 200).basis)
    assert not np.array_equal(projection.basis, fitted(RandomProjection(components=40, seed=1), 200).basis)


def test_fourier_features_approximate_the_gaussian_kernel() -> None:
    rows = np.random.default_rng(3).normal(size=(30, 5))
    mapped = fitted(RandomFourier(frequencies=20_000, gamma=0.3), 5).transform(rows)
    np.testing.assert_allclose(np.linalg.norm(mapped, axis=1), 1.0)
    np.testing.assert_allclose(mapped @ mapped.T, rbf_kernel(rows, gamma=0.3), atol=0.05)


# Parameters for images of 8 x 8 pixels; other names take their own.
SHAPED: dict[str, dict[str, Any]] = {
    "dct": {"components": 5},
    "random-projection": {"components": 33},
    "public-whitening": {"images": 60, "components": 33},
    "side-by-side": {"maps": {"scattering": {}, "hog": {}}},
    "dictionary": {"filters": 20, "side": 3, "images": 100},
    "encoder": {"net": "small", "mirror": False, "images": 10, "components": 5},
}
PIXELS = 64


def free_maps() -> list[str]:
    return [name for name in names("projections") if not lookup("projections", name).reads_rows]


@cache
def public_map(name: str) -> Any:
    """Return the registered map, learnt from no rows."""
    return fitted(lookup("projections", name)(**SHAPED.get(name, {})), PIXELS)


def test_no_public_map_looks_at_rows() -> None:
    """Every map that says it costs nothing gives the same result whatever the rows."""
    assert {"dct", "hog", "identity", "pooling", "random-fourier", "random-projection"} <= set(free_maps())
    for name in free_maps():
        rows = np.ones((9, PIXELS))
        rows[6:] = np.nan
        nothing = public_map(name).arrays()
        found = fitted(lookup("projections", name)(**SHAPED.get(name, {})), PIXELS, rows).arrays()
        assert nothing.keys() == found.keys()
        for key, array in nothing.items():
            np.testing.assert_array_equal(array, found[key])


def places_that_tell(row_map: Callable[[Any], Any]) -> set[tuple[int, int]]:
    """Return block sizes and places at which a row is mapped to other bits than alone."""
    random, found = np.random.default_rng(5), set()
    rows = random.random((1030, PIXELS))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    # What stands beside a row, as often as not: huge and tiny numbers, none, zeros.
    others = random.normal(size=rows.shape) * 10.0 ** random.uniform(-300, 300, (len(rows), 1))
    others[::7], others[::11], others[::13] = np.nan, np.inf, 0.0
    with np.errstate(all="ignore"):
        first = row_map(rows[:1])[0]
        for size in (2, 3, 7, 17, 100, 513, 1030):
            # A block of equal rows shows a row at all of its places.
            equal = row_map(np.tile(rows[0], (size, 1)))
            found |= {(size, int(place)) for place in np.flatnonzero((equal != first).any(axis=1))}
            own = random.random(size) < 0.5
            own[-1] = True
            beside = row_map(np.where(own[:, None], rows[:size], others[:size]))
            for place in {*np.flatnonzero(own)[::40].tolist(), size - 1}:
                if (beside[place] != row_map(rows[place : place + 1])[0]).any():
                    found.add((size, place))
    return found


NOT_REGISTERED = ["private-centring", "public rows", "public rows with a head"]


@cache
def map_of_rows(name: str) -> Any:
    """Return what rows are seen through: a registered public map or normalisation, or a map of released arrays."""
    if name in names("normalisations"):
        return lookup("normalisations", name)().learn([np.eye(PIXELS)])
    if name not in NOT_REGISTERED:
        return public_map(name).apply
    random = np.random.default_rng(6)
    learnt = CentredDirections(mean=random.random(PIXELS) / 8, basis=random.normal(size=(PIXELS, 33)))
    if name.endswith("head"):
        head, offset = random.normal(size=(33, 10)), random.normal(size=10)
        learnt = replace(learnt, head=head, offset=offset, weight=np.array([0.7]))
    return CentredRows(mean=learnt.mean).apply if name == "private-centring" else learnt.apply


@pytest.mark.parametrize("name", by_night([*free_maps(), *names("normalisations"), *NOT_REGISTERED], {"encoder"}))
def test_a_row_is_mapped_to_the_same_bits_at_each_place_of_a_block_last_and_alone(name: str) -> None:
    """Or one row would move the integers of another, and sums by more than their sensitivity. No warning tells."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert places_that_tell(map_of_rows(name)) == set()


@pytest.mark.parametrize("name", ["random-fourier", "public-whitening", *NOT_REGISTERED[1:]])
def test_a_plain_product_gives_rows_other_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, rows = np.random.default_rng(7).normal(size=(PIXELS, 33)), np.random.default_rng(8).random((513, PIXELS))
    if all(np.array_equal((rows @ matrix)[place], (rows[place : place + 1] @ matrix)[0]) for place in range(513)):
        pytest.skip("this machine's library gives a row the same bits at any place")
    row_map = map_of_rows(name)
    monkeypatch.setattr(sys.modules[row_map.__self__.__module__], "row_products", np.matmul)
    assert places_that_tell(row_map)


def test_image_shapes() -> None:
    assert image_shape(784, None) == (1, 28, 28)
    assert image_shape(3072, None) == (3, 32, 32)
    assert image_shape(24, [6, 4]) == (1, 6, 4)
    assert image_shape(24, [2, 3, 4]) == (2, 3, 4)
    for dimension, shape in ((24, None), (24, [5, 5]), (24, [24]), (24, [-6, -4])):
        with pytest.raises(ParameterError, match="24"):
            image_shape(dimension, shape)


def test_parameters_are_validated() -> None:
    for make in (
        lambda: Hog(cell=0),
        lambda: Hog(cell=20).output_dimension(784),
        lambda: LowFrequencies(components=0),
        lambda: fitted(LowFrequencies(components=65), 64),
        lambda: RandomProjection(components=5, seed=-1),
        lambda: RandomFourier(gamma=0.0),
        lambda: AveragePooling(size=0),
    ):
        with pytest.raises(ParameterError):
            make()
