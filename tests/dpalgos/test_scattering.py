"""Scattering and public whitening: closed forms, what they are insensitive to, that no row has a part in them."""

from __future__ import annotations

import os
from dataclasses import asdict

import numpy as np
import pytest
from scipy import fft

import dpalgos.features.scattering as scattering_module
from dpalgos.features.random_images import deformed, random_strokes
from dpalgos.features.scattering import Scattering, ScatteringFeatures
from dpalgos.features.side_by_side import SideBySide
from dpalgos.features.whitening import PublicWhitening, WhitenedFeatures
from dpalgos.guarantees import Setting, Trust
from dpalgos.models import decode
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.rows import Floats
from tests.support.training import noise

SIDE = 16
SETTING = Setting(sizes=(1,), dimension=SIDE * SIDE, classes=2, trust=Trust.CENTRAL)
SETTING_OF_12 = Setting(sizes=(1,), dimension=144, classes=2, trust=Trust.CENTRAL)


def scattering(**parameters: float) -> ScatteringFeatures:
    given = {"places": 2, "power": 1.0, **parameters}
    return Scattering(**given).map_for(SETTING.dimension)  # type: ignore[arg-type]  # by name


def waves(frequency: int, count: int = 1) -> Floats:
    """Return images of vertical stripes, each moved on by a little."""
    place = 2 * np.pi * frequency * np.arange(SIDE) / SIDE
    shifts = np.linspace(0.0, np.pi, count, endpoint=False)
    return np.stack([np.tile(np.cos(place + shift), SIDE) for shift in shifts])


def paths(features: Floats) -> Floats:
    """Return (images, places, paths)."""
    return features.reshape(len(features), 4, -1)


def test_a_constant_image_has_its_mean_and_nothing_else() -> None:
    found = paths(scattering().transform(np.full((1, SIDE * SIDE), 0.7)))
    np.testing.assert_allclose(found[0, :, 0], 0.7, rtol=1e-5)
    np.testing.assert_allclose(found[0, :, 1:], 0.0, atol=1e-5)


def test_a_wave_is_told_by_scale_and_direction_whatever_its_phase() -> None:
    """Stripes at 3/8 of the sampling frequency: the finest wavelet across them answers most, at every phase alike."""
    found = paths(scattering(angles=8).transform(waves(6, count=5)))[:, 0]
    first = found[:, 1:17].reshape(5, 2, 8)
    scale, angle = np.unravel_index(first[0].argmax(), (2, 8))
    # Angles are (L/2 − 1 − i)π/L: across vertical stripes is the angle 0, index 3.
    assert (scale, angle) == (0, 3)
    np.testing.assert_allclose(first, np.broadcast_to(first[0], first.shape), atol=0.02 * first.max())


def test_scaling_an_image_scales_its_coefficients(random: np.random.Generator) -> None:
    images = random.random((3, SIDE * SIDE))
    np.testing.assert_allclose(scattering().transform(2.5 * images), 2.5 * scattering().transform(images), rtol=1e-4)
    np.testing.assert_allclose(scattering(power=0.5).transform(images), np.sqrt(scattering().transform(images)), 1e-6)


def test_rows_are_mapped_one_by_one_on_any_number_of_cores(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = random.random((150, SIDE * SIDE))
    together = scattering().transform(images)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    np.testing.assert_array_equal(scattering().transform(images), together)
    np.testing.assert_allclose(scattering().transform(images[70:71])[0], together[70], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("scales", "places"), [(2, 3), (2, 5), (3, 6), (1, 3)])
def test_any_number_of_places_goes_with_any_number_of_scales(scales: int, places: int) -> None:
    made = Scattering(scales=scales, places=places, angles=2, power=1.0).map_for(196)
    constant = made.transform(np.full((1, 196), 0.5)).reshape(places * places, -1)
    np.testing.assert_allclose(constant[:, 0], 0.5, atol=1e-5)
    np.testing.assert_allclose(constant[:, 1:], 0.0, atol=1e-5)


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_half_a_spectrum_says_it_all(factor: int, random: np.random.Generator) -> None:
    images = random.standard_normal((3, 2, 24, 40))
    whole = scattering_module._cropped(fft.fft2(images), factor)
    np.testing.assert_allclose(scattering_module._low(fft.rfft2(images), factor, 40), whole, atol=1e-12)


@pytest.mark.parametrize(("shape", "scales", "places"), [((3, 32, 32), 2, 4), ((1, 28, 28), 2, 4), ((2, 16, 16), 1, 3)])
def test_a_mirror_image_has_the_same_features_where_these_are_averaged(
    shape: tuple[int, ...], scales: int, places: int
) -> None:
    """But for samples that lie at every other pixel: a twentieth of what tells two views of an image apart."""
    first, second = lookup("processes", "dead-leaves")().pairs(20, *shape, np.random.default_rng(1))
    made = Scattering(scales=scales, places=places, mirror=True, shape=shape).map_for(first[0].size)
    seen, mirrored, other = (made.transform(one.reshape(20, -1)) for one in (first, first[..., ::-1], second))
    assert seen.shape[1] == made.dimension
    assert np.linalg.norm(seen - mirrored) < 0.05 * np.linalg.norm(seen - other)
    plain = Scattering(scales=scales, places=places, shape=shape).map_for(first[0].size)
    unlike = plain.transform(first.reshape(20, -1)) - plain.transform(first[..., ::-1].reshape(20, -1))
    assert np.linalg.norm(unlike) > 10 * np.linalg.norm(seen - mirrored)


def test_opponent_colours_are_scattered_in_place_of_red_green_and_blue(random: np.random.Generator) -> None:
    """A grey image has its first channel's coefficients alone, and each colour is a channel scattered by itself."""
    images, one = random.random((4, 3, 16, 16)), Scattering(shape=(1, 16, 16)).map_for(256)
    made = Scattering(opponent=True, shape=(3, 16, 16)).map_for(768)
    red, green, blue = (images[:, channel].reshape(4, 256) for channel in range(3))
    colours = [(red + green + blue) / 3**0.5, 3 * (red - green) / 2**0.5, 3 * (red + green - 2 * blue) / 6**0.5]
    seen = made.transform(images.reshape(4, 768)).reshape(4, 16, 3, -1)
    for channel, colour in enumerate(colours):
        expected = one.transform(colour).reshape(4, 16, -1)
        np.testing.assert_allclose(seen[:, :, channel], expected, atol=2e-3)
    grey = made.transform(np.tile(red, (1, 3))).reshape(4, 16, 3, -1)
    # The root of what single precision leaves of zero.
    assert np.abs(grey[:, :, 1:]).max() < 2e-3 < np.abs(grey[:, :, 0]).min()
    mirrored = Scattering(opponent=True, mirror=True, shape=(3, 16, 16)).map_for(768)
    assert mirrored.transform(images.reshape(4, 768)).shape == (4, mirrored.dimension) == (4, made.dimension // 2)
    with pytest.raises(ParameterError, match="three channels"):
        Scattering(opponent=True, shape=(1, 16, 16)).map_for(256)


def test_what_is_no_number_stays_none_and_harms_nobody_else(random: np.random.Generator) -> None:
    images = random.random((3, SIDE * SIDE))
    clean = scattering().transform(images)
    images[1, 5] = np.nan
    found = scattering().transform(images)
    assert not np.isfinite(found[1]).any()
    np.testing.assert_array_equal(found[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("parameters", [{"scales": 5}, {"angles": 1}, {"power": 1.5}, {"places": 0}])
def test_what_does_not_fit_is_refused(parameters: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        scattering(**parameters)


def test_strokes_are_images_and_deformed_they_are_like_themselves() -> None:
    """A deformed stroke is nearest to its own origin among sixty, for most: by chance one in sixty would be."""
    random = np.random.default_rng(3)
    strokes = random_strokes(60, 28, 28, random)
    assert strokes.min() >= 0
    assert strokes.max() <= 1
    assert (strokes.reshape(60, -1).max(axis=1) > 0.5).mean() > 0.95
    moved = deformed(strokes, random).reshape(60, -1)
    away = ((moved[:, None] - strokes.reshape(60, -1)[None]) ** 2).sum(axis=2)
    assert (away.argmin(axis=1) == np.arange(60)).mean() > 0.7


@pytest.fixture(scope="module")
def whitened() -> WhitenedFeatures:
    return _whitening().map_for(SETTING.dimension)


def _whitening(**more: int) -> PublicWhitening:
    parameters = {"scales": 2, "angles": 4, "places": 2}
    return PublicWhitening(feature_parameters=parameters, components=12, images=300, **more)  # type: ignore[arg-type]  # by name


def test_the_map_is_the_seeds(whitened: WhitenedFeatures) -> None:
    made, again = _whitening().make(SIDE * SIDE), _whitening().make(SIDE * SIDE)
    other = _whitening(seed=1).map_for(SETTING.dimension)
    np.testing.assert_array_equal(again.basis, made.basis)
    # Fewer directions are the first of more.
    np.testing.assert_allclose(whitened.basis, made.basis, rtol=1e-3, atol=1e-3 * np.abs(made.basis).max())
    assert not np.allclose(other.basis, whitened.basis)


def test_a_map_is_made_once_in_a_process(whitened: WhitenedFeatures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublicWhitening, "make", lambda *_: pytest.fail("made again"))
    np.testing.assert_array_equal(_whitening().map_for(SETTING.dimension).basis, whitened.basis)


def test_rows_come_to_the_unit_sphere_and_survive_being_stored(
    whitened: WhitenedFeatures, random: np.random.Generator
) -> None:
    images = random.random((7, SIDE * SIDE))
    found = whitened.transform(images)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0)
    stored = decode(whitened.kind, whitened.arrays())
    np.testing.assert_array_equal(stored.transform(images), found)


def test_small_changes_count_alike_and_large_ones_come_first(whitened: WhitenedFeatures) -> None:
    """Before the sphere, new strokes' deformations move all directions about alike, and the directions are sorted."""
    random = np.random.default_rng(99)
    strokes = random_strokes(300, SIDE, SIDE, random)

    def turned(images: Floats) -> Floats:
        rows = images.reshape(300, -1)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(
            (whitened.map.transform(rows / np.where(norms > 0, norms, 1.0)) - whitened.mean) @ whitened.basis
        )

    first, second = turned(deformed(strokes, random)), turned(deformed(strokes, random))
    within = ((first - second) ** 2).mean(axis=0) / 2
    assert within.max() / within.min() < 3.0
    total = np.concatenate([first, second]).var(axis=0)
    assert total[0] > 2 * total[-1]
    # Unwhitened, the same ratio is far from one.
    raw = [whitened.map.transform(images.reshape(300, -1)) for images in (strokes, deformed(strokes, random))]
    spread = (raw[0] - raw[1]).var(axis=0)
    assert spread.max() / spread.min() > 10


def test_directions_are_orthonormal_in_the_whitened_metric(random: np.random.Generator) -> None:
    """Vᵀ (W + floor‖W‖) V = 1 and Vᵀ T V is diagonal and falls, by the covariances written out."""
    origin = random.normal(size=(2500, 6)) @ random.normal(size=(6, 6))
    change = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    pairs = origin + random.normal(size=(2500, 6)) * change, origin + random.normal(size=(2500, 6)) * change
    mean, basis = PublicWhitening(components=4, floor=0.01).directions(lambda rows: rows, [pairs], (2, 4))
    both = np.concatenate(pairs)
    np.testing.assert_allclose(mean, both.mean(axis=0), atol=1e-5)
    norms = [np.linalg.norm(both[:, part], axis=1).mean() for part in (slice(2), slice(2, 6))]
    scale = np.repeat(norms, (2, 4))
    first, second, both = (one / scale for one in (*pairs, both))
    within = (first - second).T @ (first - second) / 5000
    within += 0.01 * np.linalg.norm(within, 2) * np.eye(6)
    turned = basis * scale[:, None]
    np.testing.assert_allclose(turned.T @ within @ turned, np.eye(4), atol=1e-4)
    total = turned.T @ np.cov(both.T, bias=True) @ turned
    np.testing.assert_allclose(total, np.diag(np.diag(total)), atol=1e-3 * total[0, 0])
    assert (np.diff(np.diag(total)) <= 0).all()


def test_maps_side_by_side_are_each_of_them(random: np.random.Generator) -> None:
    given = {"scattering": {"scales": 1, "places": 2}, "dictionary": {"filters": 4, "side": 3, "images": 40}}
    made = SideBySide(maps=given, shape=(12, 12), mirror=True).map_for(144)
    images = random.random((5, 144))
    parts = [
        AlgorithmSpec("projections", name, {"shape": (12, 12), "mirror": True, **own})
        .build()
        .fit((), SETTING_OF_12, noise())
        for name, own in given.items()
    ]
    found = made.transform(images)
    np.testing.assert_array_equal(found, np.hstack([part.transform(images) for part in parts]))
    assert made.blocks == tuple(part.dimension for part in parts)
    np.testing.assert_array_equal(decode(made.kind, made.arrays()).transform(images), found)
    whitening = PublicWhitening(
        features="side-by-side", feature_parameters={"maps": given}, components=9, images=50, mirror=True
    )
    white = whitening.fit((), SETTING_OF_12, noise())
    np.testing.assert_allclose(np.linalg.norm(white.transform(images), axis=1), 1.0)
    code = {cls.__name__ for cls in AlgorithmSpec("projections", "public-whitening", asdict(whitening)).classes()}
    assert code == {"PublicWhitening", "SideBySide", "Scattering", "Dictionary", "DeadLeaves", "Strokes"}
    with pytest.raises(ParameterError, match=r"^maps"):
        SideBySide(maps={})


def test_a_map_that_reads_rows_cannot_be_whitened() -> None:
    with pytest.raises(ParameterError, match="'pca'"):
        PublicWhitening(features="pca", components=2).fit([], SETTING, noise())


def test_rows_that_are_no_images_are_refused_from_their_dimension_alone() -> None:
    """When a run is planned, before anything is charged."""
    with pytest.raises(ParameterError, match=r"shape=\[height, width\]"):
        PublicWhitening(components=2).output_dimension(7)
    with pytest.raises(ParameterError, match=r"^10000 directions.*1296"):
        PublicWhitening(features="hog", components=10_000).output_dimension(784)
