"""Write the table of docs/rare-classes.md: 20,000 synthetic insurance claims of 6,300 customers, 3.9 % of them fraud.

python docs/examples/make_claims.py claims.csv new_claims.csv
"""

from __future__ import annotations

import csv
import math
import random
import sys

CHANNELS = ("agent", "phone", "web", "workshop")
REGIONS = ("north", "east", "south", "west", "abroad")
CUSTOMERS = 6_600


def customers(draw: random.Random) -> list[dict[str, float]]:
    """Return people, a few of whom cheat more often than others."""
    return [
        {"age": draw.gauss(46, 15), "years": draw.expovariate(1 / 6), "bent": draw.gauss(0, 0.8)}
        for _ in range(CUSTOMERS)
    ]


def claim(number: int, who: int, person: dict[str, float], draw: random.Random) -> dict[str, str]:
    """Return one row: late reports, early claims, few witnesses and round sums are more often fraud."""
    amount, delay = draw.lognormvariate(7.3, 0.9), draw.expovariate(1 / 9)
    witnesses, earlier = min(int(draw.expovariate(1 / 1.2)), 5), min(int(draw.expovariate(1 / 1.5)), 12)
    channel, region = draw.choice(CHANNELS), draw.choice(REGIONS)
    police, night = draw.random() < 0.35, draw.random() < 0.2
    risk = -5.7 + 0.055 * (delay - 9) - 0.16 * (person["years"] - 6) + 0.75 * (math.log(amount) - 7.3)
    risk += 0.3 * (earlier - 1) - 0.45 * (witnesses - 1) + 1.1 * (channel == "web") + 1.2 * (region == "abroad")
    risk += 0.8 * night - 1.1 * police + person["bent"]
    fraud = draw.random() < 1 / (1 + math.exp(-1.25 * risk - 1.62))
    return {
        "claim": f"C{number:06d}",
        "customer": f"K{who:05d}",
        "age": str(round(min(max(person["age"], 18), 95))),
        "years insured": f"{min(person['years'], 40):.1f}",
        "amount": f"{amount:.2f}",
        "days until reported": str(round(min(delay, 90))),
        "witnesses": str(witnesses),
        "earlier claims": str(earlier),
        "channel": channel,
        "region": region,
        "police report": "yes" if police else "no",
        "at night": "yes" if night else "no",
        "verdict": "fraud" if fraud else "honest",
    }


def write(path: str, rows: list[dict[str, str]]) -> None:
    """Write a CSV file."""
    with open(path, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123 - a script for whoever reads it
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    draw = random.Random(20)
    people = customers(draw)
    rows = []
    for number in range(40_000):
        who = draw.randrange(CUSTOMERS)
        rows.append(claim(number, who, people[who], draw))
    write(sys.argv[1], rows[:20_000])
    write(sys.argv[2], rows[20_000:])
