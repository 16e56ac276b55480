"""The recommended map of images with the encoder beside it, made small: of a few synthetic pictures, few directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BOTH = 7
"""Directions of both."""


def small_encoder(shape: Sequence[int], mirror: bool = False) -> dict[str, Any]:
    """Return parameters of ``side-by-side`` for images of a shape."""
    own = {"shape": list(shape), "images": 20, "processes": ["strokes"], "mirror": mirror}
    scattering = {"scales": 1, "angles": 2, "places": 1}
    maps = {
        "public-whitening": {**own, "components": 3, "feature_parameters": scattering},
        "encoder": {**own, "components": BOTH - 3, "net": "small"},
    }
    return {"maps": maps, "weights": {"public-whitening": 1.0, "encoder": 0.7}}


def encoder_run(shape: Sequence[int]) -> dict[str, Any]:
    """Return what a run's configuration says that has this map and class means."""
    given = {f"projection.{name}": value for name, value in small_encoder(shape).items()}
    return {"trainer": "class-means", "projection": "side-by-side", "parameters": given}
