"""The script that teaches an encoder, on a few pairs; skipped where its environment's PyTorch is not there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.features.encoder.network import EncoderFeatures, Weights

torch = pytest.importorskip("torch", reason="benchmarks/random_scenes.txt is not installed: no PyTorch")
_SCRIPT = Path(__file__).parents[2] / "benchmarks" / "random_scenes.py"
WIDTHS = (4, 6, 8, 10)


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("random_scenes", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # One look a pixel: a quarter of the time.
    module.SAMPLES = 1
    return module


@pytest.fixture(scope="module")
def taught(script: Any) -> Any:
    """Two steps of two pairs."""
    return script.taught(WIDTHS, 4, 4, 0, "cpu")


def test_what_it_writes_is_what_the_package_reads(script: Any, taught: Any, random: np.random.Generator) -> None:
    arrays = script.quantised(list(script.folded(taught)))
    assert arrays["widths"].tolist() == list(WIDTHS)
    made = EncoderFeatures.of(Weights(**arrays), (3, 32, 32), mirror=True)
    pictures = random.random((3, 32, 32, 3))
    with torch.no_grad():
        theirs = taught.features(torch.tensor(pictures.transpose(0, 3, 1, 2)).float()).numpy()
    found = made.of_pictures(pictures)
    assert np.linalg.norm(theirs) > 0.1
    # Kernels in eight bits move features by a hundredth or so.
    assert np.linalg.norm(found - theirs) < 0.04 * np.linalg.norm(theirs)
    assert np.linalg.norm(made.of_pictures(pictures[:, ::-1]) - theirs) > 0.04 * np.linalg.norm(theirs)


def test_a_seed_says_all(script: Any) -> None:
    views = [script.views_of(2, draws := script.Draws(seed, "cpu"), script.textures(draws)) for seed in (0, 0, 1)]
    assert views[0].shape == (4, 3, 32, 32)
    assert float(views[0].min()) >= 0.0
    assert float(views[0].max()) <= 1.0
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    assert not torch.equal(views[0][0], views[0][1]), "two views of a scene"


def test_the_leaf_in_front_is_seen(script: Any) -> None:
    """A disc of radius a half before a square (of half its diagonal 1) before nothing."""
    leaves = script.LEAVES
    shapes = torch.zeros(1, leaves, 12)
    shapes[..., 2], shapes[..., 4:6], shapes[..., 6], shapes[..., 7] = 1.0, 1e-3, 2.0, 4.0
    # Out of sight, but for two.
    shapes[..., :2] = 50.0
    shapes[0, 3, :2], shapes[0, 3, 4:6] = 0.0, 0.5
    shapes[0, 7, :2], shapes[0, 7, 4:6] = 0.0, 1.0
    kind = torch.zeros(1, leaves, dtype=torch.long)
    kind[0, 7] = 1
    points = torch.tensor([[[0.0, 0.0], [0.3, 0.3], [0.49, 0.49], [0.0, 0.99], [0.8, 0.8], [1.01, 0.0]]])
    seen = script.front_most(points, shapes, kind)[0].tolist()
    last = leaves - 1
    assert seen[:2] == [3, 3]
    assert seen[2:] in ([7, 7, last, last], [7, last, 7, last]), "a square on its side or on its corner"


def test_the_loss_tells_partners_from_all_others(script: Any, random: np.random.Generator) -> None:
    directions = random.normal(size=(6, 4))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    expected = []
    for one in range(6):
        others = [np.exp(directions[one] @ directions[other] / 0.2) for other in range(6) if other != one]
        expected.append(-np.log(np.exp(directions[one] @ directions[one ^ 1] / 0.2) / np.sum(others)))
    assert float(script.contrast(torch.tensor(directions))) == pytest.approx(np.mean(expected), rel=1e-9)


def test_sizes_follow_a_power_law(script: Any) -> None:
    """Between the three in front and the six behind: density s^-2.6 on [0.05, 0.75]."""
    shapes, *_ = script.scenes(400, script.Draws(3, "cpu"))
    middle = shapes[:, script.LARGE : -script.BEHIND]
    size = (middle[..., 4] * middle[..., 5]).sqrt().flatten().numpy()
    assert size.min() >= 0.05 - 1e-6
    assert size.max() <= 0.75 + 1e-5
    low, high = 0.05**-1.6, 0.75**-1.6
    share = (low - 0.1**-1.6) / (low - high)
    # 15,600 sizes: a share that is off by six and a half standard deviations comes once in 10^10.
    assert abs(np.mean(size < 0.1) - share) < 6.5 * np.sqrt(share * (1 - share) / size.size)
    np.testing.assert_allclose(np.sqrt((shapes[:, -6:, 4] * shapes[:, -6:, 5]).numpy()), 1.2, rtol=1e-4)
