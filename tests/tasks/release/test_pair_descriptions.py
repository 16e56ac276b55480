"""`unitball describe --pairs` and `--by`: one charged release, found again, whose tables are those of the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import unitball
from dpalgos.accounting.profiles import epsilon_of_mu
from dpalgos.evaluators.pair_counts import PairCounts
from storage.errors import InputError
from storage.refs import DatasetRef
from tasks.accounts.ledger import open_ledger
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.release.column_pairs import counted_pairs, named_pairs, plan_pairs
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.usefixtures("unlogged")

CLINIC = Path("docs/examples/clinic.csv")
WORDS = ("--format", "csv", "--schema", "docs/examples/clinic.yaml", "--account", "clinic-2026")
CAP = ("--epsilon-cap", 3, "--delta-cap", "1e-6")
SCHEMA = """\
format_version: 1
missing: {marker: "", rows: indicator}
columns:
  - {name: "age, years", type: numeric, range: [0, 80], whole: true}
  - {name: stage, type: numeric, ordered: [none, mild, severe]}
  - {name: ward, type: category, values: [north, south, east, attic, roof]}
  - {name: code, type: category, hash: 2000}
  - {name: dose, type: numeric, range: [0, 8]}
  - {name: outcome, type: label, LABEL}
"""


def table(rows: int = 900) -> pd.DataFrame:
    random = np.random.default_rng(4)
    age = random.integers(0, 81, rows)
    return pd.DataFrame(
        {
            "age, years": age,
            "stage": random.choice(["none", "mild", "severe"], rows, p=[0.5, 0.3, 0.2]),
            "ward": random.choice(["north", "south", "east", "attic", "roof"], rows, p=[0.5, 0.3, 0.196, 0.002, 0.002]),
            "code": random.choice(["a", "b", "c"], rows),
            "dose": np.where(random.random(rows) < 0.25, "", (age / 10).round(1).astype(str)),
            "outcome": np.where(random.random(rows) < age / 80, "ill", "well"),
        }
    )


def brought_in(folder: Path, visibility: str = "private", *, real: bool = False) -> DatasetRef:
    frame = table()
    if real:
        frame["outcome"] = frame["age, years"] / 8
    path, schema = folder / "ward.csv", folder / "ward.yaml"
    frame.to_csv(path, index=False)
    schema.write_text(SCHEMA.replace("LABEL", "range: [0, 10]" if real else 'classes: ["well", "ill"]'))
    caps = {"epsilon_cap": 50.0, "delta_cap": 1e-6} if visibility == "private" else {}
    return ingest(
        IngestRequest(name="ward", format="csv", path=path, schema_path=schema, visibility=visibility, **caps)
    )


def charges() -> int:
    return len(open_ledger().charges("clinic-2026"))


def test_pairs_are_charged_once_whatever_their_order_and_rest_on_one_way_counts(
    commands: CommandLine, tmp_path: Path
) -> None:
    commands.succeeds("ingest", "clinic", "--path", CLINIC, *WORDS, *CAP)
    asked = ("describe", "clinic", "--epsilon", 0.5, "--pairs")
    plan = commands.succeeds(*asked, "age,outcome", "--plan")
    assert (plan["tables"], plan["cells"], plan["paid"], charges()) == (1, 16, False, 0)
    first = commands.succeeds(*asked, "age,outcome")
    assert first["terms"]["rests_on"] == []
    assert first["terms"]["epsilon_together"] == 0.5
    again = commands.succeeds(*asked, "outcome,age", "--pairs", "age,outcome")
    assert again["terms"]["key"] == first["terms"]["key"]
    assert again["terms"]["paid"] is True
    assert charges() == 1
    (turned, same) = again["pairs"]
    assert same == first["pairs"][0]
    assert (turned["groups"], turned["cells"]) == (same["cells"], same["groups"])
    # One-way counts that come later change no release, and its tables are consistent with them then.
    counts = commands.succeeds("describe", "clinic", "--epsilon", 0.5)["terms"]
    after = commands.succeeds(*asked, "age,outcome")
    assert after["terms"]["key"] == first["terms"]["key"]
    assert after["terms"]["rests_on"] == [counts["key"]]
    together = epsilon_of_mu(np.sqrt(2) * counts["mu"], counts["delta"])
    assert after["terms"]["epsilon_together"] == pytest.approx(together)
    widths = [
        sum(one["high"] - one["low"] for one in found["pairs"][0]["figures"] if one["what"] == "total")
        for found in (first, after)
    ]
    assert widths[1] < widths[0]
    assert charges() == 2
    # Tables that are planned with one-way counts have parts of about equal mass.
    frame = unitball.describe("clinic", epsilon=0.5, by="ward", plot=tmp_path / "ward.png")
    assert charges() == 3
    assert frame.attrs["rests_on"] == (counts["key"],)
    assert set(frame["second"]) == {"age", "blood_pressure", "cholesterol", "smoker", "outcome"}
    shares = frame[(frame["second"] == "age") & (frame["what"] == "share")]
    assert shares["value"].between(0.03, 0.3).all()
    assert (tmp_path / "ward.png").read_bytes()[:4] == b"\x89PNG"
    out = commands("describe", "clinic", "--by", "ward", "--epsilon", 0.5)
    assert "ward × smoker: Cramér's V" in out.out
    assert "together epsilon" in out.out
    assert "charged before" in out.out
    assert "counts of pairs of columns" in commands("budget", "clinic").out
    assert charges() == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pairs", "age,nowhere"), "nowhere"),
        (("--pairs", "age,age"), "age,age"),
        (("--pairs", "age"), "'age'"),
        (("--by", "nowhere"), "nowhere"),
        (("--pairs", "age,ward", "--against", "abc"), "--against"),
        (("--pairs", "age,ward", "--trust", "secagg"), "one party's rows"),
    ],
)
def test_bad_pairs_are_one_clear_line_and_charge_nothing(commands: CommandLine, words: Any, said: str) -> None:
    commands.succeeds("ingest", "clinic", "--path", CLINIC, *WORDS, *CAP)
    commands("describe", "clinic", "--epsilon", 1, *words).refused(2, said)
    assert charges() == 0


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.usefixtures("root")
def test_tables_are_those_of_the_rows(real: bool, tmp_path: Path) -> None:
    """Every cell of mixed columns, with hardly any noise; names with commas, missing cells, groups of rare values."""
    dataset, frame = brought_in(tmp_path, real=real), table()
    assert named_pairs(dataset, ["age, years,ward", ("ward", "age, years")]) == ((0, 2), (2, 0))
    with pytest.raises(InputError, match=r"code.*1024"):
        unitball.describe("ward", epsilon=1.0, pairs=["code,age, years"])
    pairs = ["dose,outcome", "outcome,stage"]
    if real:
        frame["outcome"] = frame["age, years"] / 8
    else:
        pairs += ["age, years,ward", "stage,dose"]
    for epsilon in (20.0, 19.0):
        if epsilon < 20:
            # They are counted in parts of equal mass then.
            unitball.describe("ward", epsilon=21.0)
        found = unitball.describe("ward", epsilon=epsilon, pairs=pairs)
        counts = found[found["what"] == "count"]
        for first, second in (pair.rsplit(",", 1) for pair in pairs):
            part = counts[(counts["first"] == first) & (counts["second"] == second)]
            for line in part.itertuples():
                here = holds(frame[first], str(line.group)) & holds(frame[second], str(line.of))
                assert line.low - 3 <= here.sum() <= line.high + 3, (first, second, line)
            assert part["value"].sum() == pytest.approx(900, abs=60)
    found = unitball.describe("ward", epsilon=0.8, pairs=["ward,outcome"])
    assert [name for name in found["group"].unique() if name.startswith("other")] == ["other (2 values)"]


def holds(cells: pd.Series[Any], name: str) -> pd.Series[Any]:
    """Return whether each cell lies in the part of that name."""
    if name.startswith("("):
        return cells == ""
    if " to " not in name:
        return cells == (float(name) if name.replace(".", "").isdigit() else name)
    low, high = map(float, name.split(" to "))
    numbers = pd.to_numeric(cells, errors="coerce")
    whole = bool((numbers.dropna() % 1 == 0).all())
    # A part holds its upper end only where numbers are whole, or at the end of the range.
    return (numbers >= low) & ((numbers <= high) if whole or high in (8.0, 10.0) else (numbers < high))


@pytest.mark.parametrize("trust", [None, "secagg", "central"])
def test_parties_own_files_are_summed_and_each_pays(commands: CommandLine, tmp_path: Path, trust: str | None) -> None:
    head, *lines = CLINIC.read_text().splitlines()
    parties = []
    for party, part in (("north", lines[:100]), ("south", lines[100:])):
        path = tmp_path / f"{party}.csv"
        path.write_text("\n".join([head, *part]) + "\n")
        parties += ["--party", f"{party}={path}"]
    named = [] if trust is None else ["--trust", trust]
    asked = ("describe", "clinic", "--epsilon", 2, "--pairs", "smoker,outcome")
    found = commands.succeeds(*asked, *parties, *WORDS, *CAP, *named)
    assert found["terms"]["trust"] == (trust or "local")
    assert {party: len(paid) for party, paid in open_ledger().charges_by_party("clinic-2026").items()} == {
        "north": 1,
        "south": 1,
    }
    dataset = find_dataset("clinic")
    plan = plan_pairs(dataset, named_pairs(dataset, ["smoker,outcome"]), 2.0, trust=trust)
    (counted,) = counted_pairs(plan)
    assert plan.counts.paid
    own = plan.counts.planned.build()
    assert isinstance(own, PairCounts)
    factor = plan.counts.planned.setting.noise_factor
    assert counted.table.deviation == pytest.approx(factor * own.deviation(plan.counts.planned.setting))
    # Six cells: 4,000 rows within 7 deviations of their total.
    assert abs(counted.table.counts.sum() - 4000) < 7 * np.sqrt(6) * counted.table.deviation < 400
    assert commands.succeeds(*asked, *named)["terms"]["paid"] is True


def test_people_count_once_each(commands: CommandLine, tmp_path: Path) -> None:
    """A person with sixty rows weighs as much as one with one."""
    path, schema = tmp_path / "visits.csv", tmp_path / "visits.yaml"
    rows = [f"p{row},{row % 2},a" for row in range(400)] + ["p0,1,b"] * 60
    path.write_text("\n".join(["id,y,c", *rows]) + "\n")
    schema.write_text(
        "format_version: 1\ncolumns:\n  - {name: id, type: person}\n  - {name: y, type: label, classes: ['0', '1']}\n"
        "  - {name: c, type: category, values: [a, b]}\n"
    )
    words = ("--format", "csv", "--path", path, "--schema", schema, "--epsilon-cap", 9, "--delta-cap", "1e-6")
    outcome = commands("describe", "visits", "--epsilon", 8, "--pairs", "c,y", *words)
    assert "400 people" in outcome.out
    assert "1/k" in outcome.out
    commands("describe", "visits", "--epsilon", 1, "--by", "id").refused(2, "'id' is the person column")
    dataset = find_dataset("visits")
    (counted,) = counted_pairs(plan_pairs(dataset, named_pairs(dataset, ["c,y"]), 8.0))
    expected = [[200.0 - 60 / 61, 200.0], [0.0, 60 / 61], [0.0, 0.0]]
    assert np.abs(counted.table.counts - expected).max() < 7 * counted.table.deviation < 30


def test_a_release_that_fails_says_nothing_of_rows_and_is_paid_once(
    commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.succeeds("ingest", "clinic", "--path", CLINIC, *WORDS, *CAP)

    def failing(self: object, features: Any, labels: Any, parts: Any, setting: object) -> Any:
        raise ValueError(f"a cell is {features[0, 0]:.17g}")

    with monkeypatch.context() as patch:
        patch.setattr(PairCounts, "of_block", failing)
        outcome = commands("describe", "clinic", "--epsilon", 0.5, "--pairs", "age,outcome")
    assert outcome.code == 1
    assert "a cell is" not in outcome.err + outcome.out
    assert charges() == 1
    commands.succeeds("describe", "clinic", "--epsilon", 0.5, "--pairs", "outcome,age")
    assert charges() == 1
