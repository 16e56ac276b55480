"""The encoder: its arithmetic, its weights, that a picture's bits are its own, and its directions."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpalgos import rows as rows_module
from dpalgos.features.encoder import network
from dpalgos.features.encoder.beside import LEAST_SIGNAL, beside
from dpalgos.features.encoder.directions import Encoder, principal_directions
from dpalgos.features.encoder.network import EncoderFeatures, Weights, load, resampling
from dpalgos.features.side_by_side import SideBySide
from dpalgos.features.whitening import WhitenedFeatures
from dpalgos.guarantees import Setting
from dpalgos.models import decode
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import Floats

_CHECK = Path(__file__).with_name("encoder_check.npz")
WIDTHS = (2, 3, 4, 5)


def small(random: np.random.Generator, *, shape: tuple[int, int, int] = (3, 32, 32), mirror: bool = True) -> Any:
    """A network of few channels and random weights."""
    layers = network.layers_of(WIDTHS)
    weights = Weights(
        widths=np.array(WIDTHS),
        kernels=random.integers(-127, 128, sum(one.numbers for one in layers)).astype(np.int8),
        scales=(random.random(sum(one.out for one in layers)) / 300).astype(np.float32),
        biases=(random.random(sum(one.out for one in layers)) - 0.3).astype(np.float32),
    )
    return EncoderFeatures.of(weights, shape, mirror=mirror)


def shipped(net: str, *, mirror: bool = True) -> EncoderFeatures:
    return EncoderFeatures.of(load(net), (3, 32, 32), mirror=mirror)


def directly(made: EncoderFeatures, picture: Floats) -> Floats:
    """The network's features of one picture, each convolution a sum over its nine places, in float64."""
    kernels = iter(np.split(made.kernels, np.cumsum([one.numbers for one in made.layers])[:-1]))
    ends = np.cumsum([one.out for one in made.layers])[:-1]
    scales, biases = iter(np.split(made.scales, ends)), iter(np.split(made.biases, ends))

    def convolved(seen: Floats, stride: int) -> Floats:
        scale, bias = next(scales).astype(float), next(biases).astype(float)
        kernel = next(kernels).reshape(3, 3, seen.shape[-1], len(scale)) * scale
        size, before = len(seen) // stride, 1 if stride == 1 else 0
        found = np.tile(bias, (size, size, 1))
        for row, column, down, across in np.ndindex(size, size, 3, 3):
            y, x = stride * row + down - before, stride * column + across - before
            if 0 <= y < len(seen) and 0 <= x < len(seen):
                found[row, column] += seen[y, x] @ kernel[down, across]
        return found

    seen = np.maximum(convolved((picture - 0.5) * 4, 1), 0)
    stages = []
    for _ in range(3):
        seen = np.maximum(convolved(seen, 2), 0)
        first = np.maximum(convolved(seen, 1), 0)
        seen = np.maximum(seen + convolved(first, 1), 0)
        stages.append(seen)
    means = []
    for stage in (stages[2], stages[1]):
        half = len(stage) // 2
        cells = [
            stage[row : row + half, column : column + half].mean(axis=(0, 1))
            for row in (0, half)
            for column in (0, half)
        ]
        means.append(np.concatenate(cells))
    return np.concatenate(means)


@pytest.mark.parametrize("mirror", [True, False])
def test_the_network_is_a_direct_sum_over_every_place(random: np.random.Generator, mirror: bool) -> None:
    made, pictures = small(random, mirror=mirror), random.random((2, 32, 32, 3))
    expected = [directly(made, one) for one in pictures]
    if mirror:
        expected = [(own + directly(made, one[:, ::-1])) / 2 for own, one in zip(expected, pictures, strict=True)]
    assert min(float(one.max()) for one in expected) > 0.1, "a network that is silent shows nothing"
    np.testing.assert_allclose(made.of_pictures(pictures), np.sqrt(expected), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("net", ["big", "small"])
def test_the_shipped_weights_see_what_the_learnt_ones_do(net: str) -> None:
    """Pictures made by formula, and their features under the weights before they were rounded to eight bits."""
    with np.load(_CHECK) as arrays:
        pictures, expected = arrays["pictures"] / 255.0, arrays[net]
    made = shipped(net)
    found = made.of_pictures(pictures)

    def apart(these: Floats) -> float:
        return float(np.linalg.norm(these - expected) / np.linalg.norm(expected))

    assert apart(found) < 0.025
    # What would be wrong: pictures upside down, no mirror image, two stages in the other order.
    assert apart(made.of_pictures(pictures[:, ::-1])) > 0.1
    assert apart(shipped(net, mirror=False).of_pictures(pictures)) > 0.1
    last = 4 * int(made.layout[7])
    assert apart(np.hstack([found[:, last:], found[:, :last]])) > 0.1


@pytest.mark.parametrize(
    ("net", "mirror"),
    [
        ("big", True),
        ("small", False),
        pytest.param("big", False, marks=pytest.mark.nightly),
        pytest.param("small", True, marks=pytest.mark.nightly),
    ],
)
def test_a_pictures_bits_are_its_own(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch, net: str, mirror: bool
) -> None:
    """Whatever stands beside it, wherever it stands, however many threads BLAS or the process has."""
    made = shipped(net, mirror=mirror)
    images = random.random((21, 3072))
    alone = np.concatenate([made.transform(one[None]) for one in images[:6]])
    together = made.transform(images)
    np.testing.assert_array_equal(together[:6], alone)
    order = random.permutation(len(images))
    np.testing.assert_array_equal(made.transform(images[order]), together[order])
    hostile = np.concatenate([np.full((3, 3072), np.nan), images[:6], np.full((1, 3072), np.inf), images[:6]])
    found = made.transform(hostile)
    np.testing.assert_array_equal(found[3:9], alone)
    np.testing.assert_array_equal(found[10:], alone)
    for cores, threads in ((1, 4), (3, 1), (3, 4)):
        monkeypatch.setattr(rows_module, "cores", lambda cores=cores: cores)
        with threadpool_limits(threads, user_api="blas"):
            np.testing.assert_array_equal(made.transform(images[-9:]), together[-9:])


def test_blas_has_one_thread_within_and_what_it_had_afterwards() -> None:
    def threads() -> int:
        return max(int(one["num_threads"]) for one in network._controller().select(user_api="blas").info())

    with threadpool_limits(2, user_api="blas"):
        with network.one_thread():
            with network.one_thread():
                assert threads() == 1
            assert threads() == 1, "the first to leave takes nothing from who is still within"
        assert threads() == 2


def test_pictures_are_brought_to_size(random: np.random.Generator) -> None:
    np.testing.assert_array_equal(resampling(32, 32), np.eye(32))
    padded = np.zeros((32, 28))
    padded[2:30] = np.eye(28)
    np.testing.assert_allclose(resampling(28, 28), padded, atol=1e-12)
    np.testing.assert_allclose(resampling(64, 64), np.kron(np.eye(32), [[0.5, 0.5]]), atol=1e-12)
    thirds = np.kron(np.eye(16), np.array([[2, 1, 0], [0, 1, 2]]) / 3)
    np.testing.assert_allclose(resampling(48, 48), thirds, atol=1e-12)
    np.testing.assert_allclose(resampling(8, 8), np.kron(np.eye(8), np.ones((4, 1))), atol=1e-12)
    # The longer side says the scale; the shorter one is in the middle.
    half = resampling(32, 64)
    np.testing.assert_allclose(half[8:24], np.kron(np.eye(16), [[0.5, 0.5]]), atol=1e-12)
    assert not half[:8].any()
    assert not half[24:].any()

    grey, colour = small(random, shape=(1, 28, 28)), small(random)
    colour = EncoderFeatures(colour.layout, grey.kernels, grey.scales, grey.biases)
    image = random.random((1, 28, 28))
    image[0, 3, 4] = 1.0
    same = np.pad(image, ((0, 0), (2, 2), (2, 2))).repeat(3, axis=0).reshape(1, -1)
    np.testing.assert_array_equal(grey.transform(image.reshape(1, -1)), colour.transform(same))


def test_scale_does_not_matter_and_mirror_images_are_alike(random: np.random.Generator) -> None:
    made = small(random)
    images = random.random((3, 3072))
    images[:, 0] = 0.0
    seen = made.transform(images)
    np.testing.assert_allclose(made.transform(0.01 * images), seen, atol=1e-5)
    np.testing.assert_allclose(made.transform(2.0 * images - 1.0), seen, atol=1e-5)
    mirrored = images.reshape(3, 3, 32, 32)[..., ::-1].reshape(3, -1)
    np.testing.assert_allclose(made.transform(mirrored), seen, atol=1e-5)
    one_sided = EncoderFeatures(np.where(np.arange(8) == 3, 0, made.layout), made.kernels, made.scales, made.biases)
    assert np.abs(one_sided.transform(mirrored) - one_sided.transform(images)).max() > 1e-2
    assert made.transform(images[:0]).shape == (0, made.dimension)
    assert np.isfinite(made.transform(np.zeros((1, 3072)))).all()


def test_weights_that_were_changed_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"net.*'huge'.*big"):
        load("huge")
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    with pytest.raises(ParameterError, match=r"big\.npz.*expected.*239ca9"):
        load("big")
    content = (Path(network.__file__).with_name("big.npz")).read_bytes()
    (tmp_path / "big.npz").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ParameterError, match=r"big\.npz.*SHA-256.*expected.*239ca9"):
        load("big")
    (tmp_path / "big.npz").write_bytes(content)
    assert load("big").kernels.size == 4_357_920 - load("big").biases.size


def test_directions_are_the_principal_ones_of_standardised_features(random: np.random.Generator) -> None:
    features = random.normal(size=(4000, 6)) @ random.normal(size=(6, 6)) * [1, 10, 0.1, 3, 1, 5] + 2.0
    mean, basis = principal_directions(np.split(features, 5), 4, 1e-3)
    deviation = features.std(axis=0) + 1e-3
    values, vectors = np.linalg.eigh(np.cov(((features - features.mean(axis=0)) / deviation).T, bias=True))
    values, vectors = values[::-1][:4], vectors[:, ::-1][:, :4]
    expected = vectors / deviation[:, None] / np.sqrt(values + 1e-3 * values[0])
    np.testing.assert_allclose(mean, features.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(np.abs(basis), np.abs(expected), rtol=2e-3, atol=1e-4)


def test_the_map_is_the_network_in_the_directions_of_synthetic_images(random: np.random.Generator) -> None:
    spec = AlgorithmSpec("projections", "encoder", {"net": "small", "images": 30, "components": 7})
    algorithm = spec.build()
    stored_spec = algorithm.stored_as(spec, 3072)
    assert stored_spec.parameters["components"] == 400
    made, images = algorithm.map_for(3072), random.random((3, 3072))
    assert isinstance(made, WhitenedFeatures)
    seen = made.transform(images)
    np.testing.assert_allclose(np.linalg.norm(seen, axis=1), 1.0)
    turned = (shipped("small").transform(images) - made.mean) @ made.basis
    np.testing.assert_allclose(seen, turned / np.linalg.norm(turned, axis=1, keepdims=True), atol=1e-9)
    np.testing.assert_array_equal(decode(made.kind, made.arrays()).transform(images), seen)
    stored = stored_spec.build().map_for(3072)
    np.testing.assert_array_equal(algorithm.part_of(stored).transform(images), seen)
    assert {cls.__name__ for cls in spec.classes()} == {"Encoder", "DeadLeaves"}
    assert {cls.__name__ for cls in made.classes} == {"WhitenedFeatures", "EncoderFeatures"}


@pytest.mark.parametrize(
    ("given", "dimension", "message"),
    [
        ({"net": "huge"}, 3072, "net.*'huge'"),
        ({"shape": [2, 4, 4]}, 32, "one channel.*2$"),
        ({"components": 2000, "net": "small"}, 3072, "2000 directions"),
        ({}, 3071, r"shape=\[height, width\]"),
    ],
)
def test_what_cannot_be(given: dict[str, Any], dimension: int, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Encoder(**given).output_dimension(dimension)


def test_maps_side_by_side_have_weights(random: np.random.Generator) -> None:
    whitening: dict[str, Any] = {
        "components": 3, "images": 40, "shape": [12, 12], "feature_parameters": {"scales": 1, "places": 2},
    }  # fmt: skip
    maps: dict[str, dict[str, Any]] = {"public-whitening": whitening, "hog": {"shape": [12, 12]}}
    given: dict[str, Any] = {"maps": maps, "weights": {"hog": 0.7, "public-whitening": 1.0}}
    spec = AlgorithmSpec("projections", "side-by-side", given)
    algorithm, images = spec.build(), random.random((5, 144))
    made = algorithm.map_for(144)
    first, second = (AlgorithmSpec("projections", name, own).build().map_for(144) for name, own in maps.items())
    expected = np.hstack([first.transform(images), 0.7 * second.transform(images)]) / np.sqrt(1.49)
    np.testing.assert_allclose(made.transform(images), expected, atol=1e-12)
    np.testing.assert_array_equal(decode(made.kind, made.arrays()).transform(images), made.transform(images))
    # Of each map what is stored for it, and of that its part.
    stored_spec = algorithm.stored_as(spec, 144)
    assert stored_spec.parameters["maps"]["public-whitening"]["components"] > 3
    assert stored_spec.parameters["weights"] == given["weights"]
    stored = stored_spec.build().map_for(144)
    assert stored.dimension > made.dimension
    np.testing.assert_array_equal(algorithm.part_of(stored).transform(images), made.transform(images))
    plain = AlgorithmSpec("projections", "side-by-side", {"maps": {"hog": {"shape": [12, 12]}}})
    assert plain.build().stored_as(plain, 144) is plain
    with pytest.raises(ParameterError, match=r"^weights.*hog, public-whitening"):
        SideBySide(maps=maps, weights={"hog": 1.0})
    with pytest.raises(ParameterError, match=r"weight.*hog.*0\.0"):
        SideBySide(maps=maps, weights={"hog": 0.0, "public-whitening": 1.0})


def test_the_encoder_stands_beside_where_mirror_images_are_the_same_thing() -> None:
    def today(*shape: int, components: int = 300) -> AlgorithmSpec:
        given = {"processes": ["strokes"], "components": components, "shape": list(shape)}
        return AlgorithmSpec("projections", "public-whitening", given)

    for shape, net, own in (((28, 28), "small", 300), ((1, 28, 28), "small", 300), ((3, 32, 32), "big", 150)):
        chosen, why = beside(today(*shape), mirror=True, strength=LEAST_SIGNAL)
        assert chosen.name == "side-by-side"
        assert f"combined with {own} directions of the {net} encoder at weight 0.7" in why
        assert chosen.parameters["weights"] == {"public-whitening": 1.0, "encoder": 0.7}
        maps: Any = chosen.parameters["maps"]
        assert maps["encoder"] == {
            "net": net, "components": own, "processes": ["strokes"], "shape": list(shape),
        }  # fmt: skip
        assert maps["public-whitening"] == today(*shape).parameters
        assert chosen.build().output_dimension(int(np.prod(shape))) == 300 + own
        # So many as were asked for, both together.
        asked, _ = beside(today(*shape), mirror=True, strength=LEAST_SIGNAL, asked=True)
        assert asked.build().output_dimension(int(np.prod(shape))) == 300
        for mirror, strength, said in (
            (False, 200.0, "without the encoder, which ignores mirroring"),
            (None, 200.0, "declare --mirror if a mirrored image keeps its class"),
            (True, 0.99 * LEAST_SIGNAL, "mostly noise below a signal of"),
        ):
            alone, why = beside(today(*shape), mirror=mirror, strength=strength)
            assert alone == today(*shape)
            assert said in why
    assert "these have 2" in beside(today(2, 8, 8), mirror=True, strength=200.0)[1]
    assert "too few" in beside(today(28, 28, components=1), mirror=True, strength=200.0, asked=True)[1]


def test_what_maps_side_by_side_ask_of_a_machine_is_what_each_of_them_asks() -> None:
    """Drawing synthetic pictures and decomposing their covariance were left out: half a minute, and gigabytes."""
    maps: dict[str, dict[str, Any]] = {"public-whitening": {"images": 40}, "encoder": {"net": "small", "images": 30}}
    setting = Setting(sizes=(500,), dimension=3072, classes=3)
    both = SideBySide(maps=maps).work(setting)
    first, second = (AlgorithmSpec("projections", name, own).build().work(setting) for name, own in maps.items())
    assert second.small_operations == 20.0 * 3072 * 60
    assert both.operations == first.operations + second.operations
    assert both.small_operations == first.small_operations + second.small_operations
    assert both.row == first.row + second.row
    # One is made after the other.
    assert both.held == max(first.held, second.held) > 0
