"""Write synthetic images in CIFAR-10's own format, to time what takes its 5 × 10,000 rows of 3,072 features.

``python benchmarks/synthetic_cifar10.py FOLDER``, then
``unitball reproduce wang2024-table3 --scale full --dataset cifar10 --path FOLDER``. An image is its class's own
image, faded, its own brightness, and noise; times are those of the format and the sizes, accuracies say nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

_CLASSES, _PIXELS, _BATCH = 10, 3 * 32 * 32, 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    centres = random.uniform(0, 255, (_CLASSES, _PIXELS))
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        labels = random.integers(0, _CLASSES, _BATCH)
        images = 0.15 * centres[labels] + 0.85 * random.uniform(0, 255, (_BATCH, 1))
        images += random.normal(0, 40, images.shape)
        records = np.column_stack([labels, np.clip(images, 0, 255)]).astype(np.uint8)
        (folder / name).write_bytes(records.tobytes())


if __name__ == "__main__":
    main()
