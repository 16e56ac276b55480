"""Write the table of docs/coded-columns.md: 9,000 synthetic hospital encounters of some 4,700 diabetics.

python docs/examples/make_encounters.py encounters.csv new_encounters.csv
"""

from __future__ import annotations

import csv
import math
import random
import sys

DRUGS = (
    "metformin", "repaglinide", "nateglinide", "chlorpropamide", "glimepiride", "acetohexamide", "glipizide",
    "glyburide", "tolbutamide", "pioglitazone", "rosiglitazone", "acarbose", "miglitol", "troglitazone", "tolazamide",
    "examide", "citoglipton", "insulin", "glyburide-metformin", "glipizide-metformin", "glimepiride-pioglitazone",
    "metformin-rosiglitazone", "metformin-pioglitazone",
)  # fmt: skip
USUAL = {"metformin": 0.2, "insulin": 0.53, "glipizide": 0.12, "glyburide": 0.1, "pioglitazone": 0.07}
RACES = (("Caucasian", 74), ("AfricanAmerican", 19), ("Hispanic", 2), ("Asian", 1), ("Other", 2), ("?", 2))
# ICD-9, and how often.
CODES = {
    "428.0": 6, "414.01": 6, "410.71": 3, "427.31": 4, "434.91": 2, "486": 4, "491.21": 3, "250.02": 4, "250.6": 3,
    "250.83": 2, "574.1": 2, "562.11": 1, "820.21": 2, "996.62": 2, "V57.89": 2, "682.6": 1, "599": 1, "780.2": 1,
}  # fmt: skip


def patient(number: int, draw: random.Random) -> dict[str, object]:
    """Return who a patient is; how often they come varies, most come once."""
    return {
        "patient_nbr": str(8_000_000 + 37 * number),
        "race": draw.choices(*zip(*RACES, strict=True))[0],
        "gender": draw.choices(("Female", "Male", "Unknown/Invalid"), (537, 462, 1))[0],
        "decade": min(max(round(draw.gauss(6.6, 1.6)), 0), 9),
        "frail": draw.gauss(0, 1),
        "weight": "[75-100)" if draw.random() < 0.03 else "?",
        "payer_code": draw.choice(("MC", "HM", "SP", "?")),
    }


def encounter(number: int, who: dict[str, object], draw: random.Random) -> dict[str, str]:
    """Return one row; who was in hospital before, is frail and on insulin comes back more often."""
    frail, decade = float(str(who["frail"])), int(str(who["decade"]))
    before = min(int(draw.expovariate(1 / (0.5 * math.exp(0.8 * frail)))), 15)
    days = min(1 + int(draw.expovariate(1 / (3.4 * math.exp(0.15 * frail)))), 14)
    drugs = {
        drug: draw.choices(("Steady", "Up", "Down"), (7, 2, 1))[0] if draw.random() < USUAL.get(drug, 0.01) else "No"
        for drug in DRUGS
    }
    codes = draw.choices(list(CODES), list(CODES.values()), k=3)
    risk = -2.1 + 0.3 * frail + 1.1 * before + 0.4 * (decade - 6) + 1.1 * (drugs["insulin"] != "No")
    risk += 0.15 * (days - 4) + 0.9 * any(code.startswith("428") for code in codes) - 0.8 * (codes[0] == "820.21")
    again = draw.random() < 1 / (1 + math.exp(-1.3 * risk))
    changed = any(state in ("Up", "Down") for state in drugs.values())
    return {
        "encounter_id": str(2_000_000 + number),
        **{name: str(who[name]) for name in ("patient_nbr", "race", "gender")},
        "age": f"[{decade}0-{decade + 1}0)" if decade else "[0-10)",
        "weight": str(who["weight"]),
        "time_in_hospital": str(days),
        "payer_code": str(who["payer_code"]),
        "num_medications": str(min(max(round(draw.gauss(15 + 2 * frail, 7)), 1), 80)),
        "number_outpatient": str(min(int(draw.expovariate(1 / 0.6)), 20)),
        "number_emergency": str(min(int(draw.expovariate(1 / 0.4)), 20)),
        "number_inpatient": str(before),
        "diag_1": codes[0],
        "diag_2": codes[1] if draw.random() > 0.02 else "?",
        "diag_3": codes[2] if draw.random() > 0.06 else "?",
        **drugs,
        "change": "Ch" if changed else "No",
        "diabetesMed": "Yes" if any(state != "No" for state in drugs.values()) else "No",
        "readmitted": draw.choices(("<30", ">30"), (1, 2))[0] if again else "NO",
    }


def write(path: str, rows: list[dict[str, str]]) -> None:
    """Write a CSV file."""
    with open(path, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123 - a script for whoever reads it
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    draw = random.Random(11)
    people = [patient(number, draw) for number in range(6_000)]
    visits = [one for one in people for _ in range(min(int(draw.paretovariate(1.6)), 25))]
    draw.shuffle(visits)
    rows = [encounter(number, who, draw) for number, who in enumerate(visits[:9_200])]
    write(sys.argv[1], rows[:9_000])
    new = [{name: cell for name, cell in row.items() if name != "readmitted"} for row in rows[9_000:]]
    # What another system writes.
    new[11]["age"], new[40]["num_medications"] = "75", "99"
    write(sys.argv[2], new)
