"""Contact sheets of the random processes that public maps are made from: pairs side by side.

python benchmarks/contact_sheets.py docs/images
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.image
import numpy as np

from dpalgos.registry import lookup, names

PAIRS, ACROSS = 20, 10
SHAPES = {"dead-leaves": (3, 32, 32)}


def main() -> None:
    """Write one image per process, each next to a random change of it."""
    for name in names("processes"):
        channels, height, width = SHAPES.get(name, (1, 28, 28))
        drawn = lookup("processes", name)().pairs(PAIRS, channels, height, width, np.random.default_rng(0))
        pairs = np.clip(np.stack(drawn, axis=1), 0.0, 1.0).reshape(-1, 2 * ACROSS, channels, height, width)
        sheet = pairs.transpose(0, 3, 1, 4, 2).reshape(-1, 2 * ACROSS * width, channels)
        given = {"cmap": "gray", "vmin": 0.0, "vmax": 1.0} if channels == 1 else {}
        matplotlib.image.imsave(Path(sys.argv[1]) / f"process-{name}.png", np.squeeze(sheet), **given)


if __name__ == "__main__":
    main()
