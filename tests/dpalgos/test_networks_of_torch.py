"""A PyTorch module as the page exports it: its features are those of PyTorch; skipped where there is no PyTorch."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dpalgos.features.onnx import OnnxEncoder
from dpalgos.features.onnx_sessions import listed_layers

torch = pytest.importorskip("torch", reason="no PyTorch: pip install torch==2.13.0 onnx")
pytestmark = pytest.mark.nightly
PAGE = Path(__file__).parents[2] / "docs" / "features.md"


def test_a_module_exported_as_the_page_has_it_gives_torchs_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random: np.random.Generator
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    body = [torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 12, 3, 2, 1)]
    features = torch.nn.Sequential(*body, torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    network = torch.nn.Sequential(features, torch.nn.Dropout(0.5), torch.nn.Linear(12, 5))
    for _ in range(3):
        # Numbers for the batch normalisation to store.
        network(torch.rand(16, 3, 20, 20))
    (code,) = re.findall(r"```python\n(import torch\n.*?)```", PAGE.read_text("utf-8"), re.S)
    exec(code, {"network": network})
    content = (tmp_path / "network.onnx").read_bytes()
    _, _, layers = listed_layers(content)
    flat = next(layer.name for layer in layers if layer.kind == "Flatten")
    images = random.uniform(size=(4, 3 * 32 * 32))
    made = OnnxEncoder(
        layer=flat, resize=[224, 224], mean=[0.4, 0.5, 0.6], deviation=[0.2, 0.3, 0.4], whiten=False
    ).read(content, images.shape[1])
    pixels = torch.nn.functional.interpolate(
        torch.tensor(images.reshape(4, 3, 32, 32)).float(), size=(224, 224), mode="bilinear", antialias=True
    )
    scaled = (pixels - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / torch.tensor([0.2, 0.3, 0.4])[:, None, None]
    with torch.no_grad():
        theirs = features(scaled).numpy()
    np.testing.assert_allclose(
        made.transform(images), theirs / np.linalg.norm(theirs, axis=1, keepdims=True), atol=1e-5
    )
