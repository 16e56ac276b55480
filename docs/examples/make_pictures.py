"""Write the folder of docs/your-pictures.md: small signs of any number of classes, photographed several times each.

python docs/examples/make_pictures.py signs
python docs/examples/make_pictures.py scans --classes 4 --each 60 --side 40 --depth 16

Each class is a shape on its own ground; each sign (a person of the table) is photographed up to five times. The
folder has train/ and test/ with a folder a class, and table.csv with path, label and person of each picture.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from PIL import Image


def drawn(number: int, side: int, shift: tuple[float, float], random: np.random.Generator) -> np.ndarray:
    """Return a sign's brightness, red, green and blue in [0, 1], (side, side, 3)."""
    across, down = np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side))
    across, down = across - shift[0], down - shift[1]
    angle, distance = np.arctan2(down, across), np.hypot(across, down)
    # As many corners as the number says, turned by it, on a ground of another colour.
    corners, turn = 3 + number % 5, 0.6 * (number // 5 % 3)
    inside = distance < 0.55 + 0.2 * np.cos(corners * (angle + turn))
    ground = 0.5 + 0.35 * np.cos(2.4 * number + np.array([0.0, 2.1, 4.2]))
    picture = np.where(inside[:, :, None], 0.95 - 0.6 * ground, ground)
    return np.clip(picture * random.uniform(0.7, 1.0) + random.normal(0, 0.04, picture.shape), 0, 1)


def write(folder: Path, classes: int, each: int, side: int, depth: int) -> None:
    """Write so many pictures of each class, a fifth of them for testing."""
    random, rows = np.random.default_rng(7), list[tuple[str, str, str]]()
    # Names of files say the sign and the photograph, and nothing that tells the class.
    signs = iter(random.permutation(np.arange(10_000, 10_000 + classes * each)).tolist())
    for number in range(classes):
        sign, whose, photographs, shift = 0, 0, 0, (0.0, 0.0)
        for place in range(each):
            if photographs == 0:
                sign, whose, photographs = sign + 1, next(signs), int(random.integers(1, 6))
                shift = (float(random.normal(0, 0.08)), float(random.normal(0, 0.08)))
            photographs -= 1
            label, part = f"sign-{number:02d}", "test" if sign % 5 == 0 else "train"
            name = f"{part}/{label}/{whose}_{place}.png"
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            picture = drawn(number, side, shift, random)
            if depth == 16:
                Image.fromarray(np.uint16(picture.mean(axis=2) * 65535)).save(path)
            else:
                Image.fromarray(np.uint8(picture * 255)).save(path)
            rows.append((name, label, str(whose)))
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "person"), *rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--classes", type=int, default=6)
    parser.add_argument("--each", type=int, default=150, help="pictures of a class")
    parser.add_argument("--side", type=int, default=40, help="pixels of a side")
    parser.add_argument("--depth", type=int, choices=(8, 16), default=8, help="colour of 8 bits, or grey of 16")
    given = parser.parse_args()
    write(given.folder, given.classes, given.each, given.side, given.depth)
