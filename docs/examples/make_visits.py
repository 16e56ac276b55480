"""Write the messy table of docs/your-data.md: 5,000 synthetic visits of some 1,800 patients, as hospitals export them.

python docs/examples/make_visits.py visits.csv new_visits.csv
"""

from __future__ import annotations

import csv
import random
import sys

WARDS = ("Nord", "Süd", "Ost", "Tagesklinik")


def patient(number: int, draw: random.Random) -> list[tuple[int, float, bool]]:
    """Return a patient's number, age and whether they smoke, once for each of 1 to 40 visits; most have one."""
    known = (70_000 + number, draw.gauss(58, 17), draw.random() < 0.3)
    return [known] * min(int(draw.paretovariate(1.3)), 40)


def visit(number: int, who: int, age: float, smoker: bool, draw: random.Random) -> dict[str, str]:
    """Return one row; who is old, smokes and stayed long comes back more often."""
    stay, pressure = draw.expovariate(1 / 6), draw.gauss(130, 20)
    risk = 0.05 * (age - 58) + 0.16 * (stay - 6) + 1.3 * smoker + 0.02 * (pressure - 130) - 0.6
    back = draw.random() < 1 / (1 + 2.718281828 ** (-1.6 * risk))
    row = {
        "Fallnummer": f"F{number:06d}",
        "Patient": str(who),
        "Alter": str(round(min(max(age, 18), 101))),
        "Blutdruck": f"{pressure:.1f}".replace(".", ","),
        "Liegetage": f"{stay:.1f}".replace(".", ","),
        "Raucher": draw.choice(("ja", "Ja")) if smoker else "nein",
        "Station": draw.choice(WARDS),
        "Aufnahme": f"{draw.randint(1, 28):02d}.{draw.randint(1, 12):02d}.{draw.randint(2021, 2025)}",
        "Bemerkung": draw.choice(("", "Kontrolle; Labor", 'sagt "gut"', "verlegt\nvon Ost")),
        "Wiederkehr": "1" if back else "0",
    }
    for name, share in (("Blutdruck", 0.1), ("Raucher", 0.06), ("Liegetage", 0.02)):
        if draw.random() < share:
            row[name] = draw.choice(("", "k.A."))
    return row


def write(path: str, rows: list[dict[str, str]], encoding: str = "cp1252") -> None:
    """Write semicolons, decimal commas and an encoding of the last century."""
    with open(path, "w", encoding=encoding, newline="") as file:  # noqa: PTH123 - a script for whoever reads it
        writer = csv.DictWriter(file, list(rows[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    draw = random.Random(7)
    people = [one for number in range(5_200) for one in patient(number, draw)][:5_200]
    draw.shuffle(people)
    visits = [visit(number, *who, draw) for number, who in enumerate(people)]
    write(sys.argv[1], visits[:5_000])
    write(sys.argv[2], [{name: cell for name, cell in row.items() if name != "Wiederkehr"} for row in visits[5_000:]])
