"""Public maps: they stay in the unit ball, cost nothing, and are what their names say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.fft import dctn
from sklearn.metrics.pairwise import rbf_kernel

from dpalgos.errors import ParameterError
from dpalgos.features.hog import Hog
from dpalgos.features.linear_maps import AveragePooling, LowFrequencies, RandomProjection
from dpalgos.features.public_map import image_shape
from dpalgos.features.random_fourier import RandomFourier
from dpalgos.guarantees import Setting
from dpalgos.registry import lookup, names
from dpalgos.rows import ArrayRows
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


def test_no_public_map_looks_at_rows() -> None:
    """Every map that says it costs nothing gives the same result whatever the rows."""
    shaped: dict[str, dict[str, Any]] = {
        "dct": {"components": 5},
        "random-projection": {"components": 5},
        "public-whitening": {"images": 300},
        "side-by-side": {"maps": {"scattering": {}, "hog": {}}},
        "dictionary": {"filters": 20, "side": 3, "images": 100},
    }
    free = [name for name in names("projections") if not lookup("projections", name).reads_rows]
    assert {"dct", "hog", "identity", "pooling", "random-fourier", "random-projection"} <= set(free)
    for name in free:
        algorithm = lookup("projections", name)(**shaped.get(name, {}))
        results = [fitted(algorithm, 64, rows) for rows in (None, np.ones((9, 64)), np.full((3, 64), np.nan))]
        for result in results:
            for key, array in results[0].arrays().items():
                np.testing.assert_array_equal(array, result.arrays()[key])


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
