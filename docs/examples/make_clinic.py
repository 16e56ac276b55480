"""Write the table of README: 4,000 synthetic patients of a clinic, 43 % of whom came back.

python docs/examples/make_clinic.py clinic.csv
"""

from __future__ import annotations

import csv
import math
import random
import sys

WARDS = ("north", "south", "east")


def patient(draw: random.Random) -> dict[str, str]:
    """Return one row; age, smoking, a high pressure and cholesterol make a second stay more likely."""
    age, pressure = min(max(draw.gauss(58, 17), 18), 100), min(max(draw.gauss(131, 21), 60), 240)
    cholesterol, smoker = min(max(draw.gauss(5.3, 1.2), 0), 15), draw.random() < 0.3
    ward = draw.choice(WARDS)
    risk = 0.11 * (age - 58) + 0.05 * (pressure - 131) + 0.6 * (cholesterol - 5.3)
    risk += 2.6 * (smoker - 0.3) + 0.8 * (ward == "north") - 0.8
    back = draw.random() < 1 / (1 + math.exp(-risk))
    return {
        "age": str(round(age)),
        "blood_pressure": str(round(pressure)),
        "cholesterol": f"{cholesterol:.2f}",
        "smoker": "yes" if smoker else "no",
        "ward": ward,
        "outcome": "readmitted" if back else "well",
    }


if __name__ == "__main__":
    draw = random.Random(1)
    rows = [patient(draw) for _ in range(4_000)]
    with open(sys.argv[1], "w", encoding="utf-8", newline="") as file:  # noqa: PTH123 - an example script
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
