"""Ranges drawn privately before a table has a schema: public bins, one charged release, exactly once."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dpalgos.errors import ParameterError
from dpalgos.evaluators.bin_counts import BinCounts, occupied
from dpalgos.evaluators.key_selection import KeySelection
from dpalgos.guarantees import ApproximateDP, Guarantee, Neighbours, PureEpsilon, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.mechanisms.discrete_laplace import DiscreteLaplace
from dpalgos.rows import ArrayRows
from storage.errors import InputError, RefusedError
from storage.readers.bins import BINS, bins_of, range_of_bins
from tasks.accounts.budget import open_ledger
from tasks.datasets.drafting import draft_schema, fill_ranges, fill_values
from tasks.datasets.request import IngestRequest
from tasks.release.ranges import private_ranges, private_values


def test_bins_are_powers_of_two_of_either_sign() -> None:
    numbers = np.array([-np.inf, -1e30, -3.0, -2.0, -1e-9, 0.0, 1e-9, 2.0**-10, 1.0, 1.999, 2.0, 1e30, np.inf, np.nan])
    bins = bins_of(numbers)
    assert (np.diff(bins[:-1]) >= 0).all()
    assert bins[-1] == -1
    assert (bins[0], bins[-2]) == (0, BINS - 1)
    assert bins[4] == bins[5] == bins[6] == BINS // 2
    for number, place in zip(numbers[2:12], bins[2:12].astype(int), strict=True):
        low, high = range_of_bins(place, place)
        assert low < high
        assert abs(number) < 2.0**-10 or low <= number <= high or abs(number) > 2.0**41
    assert range_of_bins(int(bins[8]), int(bins[10])) == (1.0, 4.0)
    assert range_of_bins(BINS // 2, int(bins[8])) == (0.0, 2.0)
    assert range_of_bins(int(bins[2]), BINS // 2) == (-4.0, 0.0)
    assert range_of_bins(int(bins[2]), int(bins[8])) == (-4.0, 2.0)


@pytest.mark.parametrize("relation", [Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL])
def test_counts_and_what_one_row_moves(relation: Neighbours) -> None:
    setting = Setting(sizes=(6,), dimension=2, classes=1, neighbours=relation, trust=Trust.CENTRAL)
    algorithm = BinCounts(budget=PureEpsilon(0.5), bins=3)
    rows = np.array([[0, 2], [0, 3], [-1, 2], [1, 1], [2, 2], [np.nan, 0]])
    counts = algorithm.statistic(ArrayRows(rows, np.zeros(6)), setting)
    assert counts.tolist() == [[2, 1, 1], [0, 1, 3]]
    pair = algorithm.neighbouring_pair(setting)
    moved = np.abs(algorithm.statistic(pair.left, setting) - algorithm.statistic(pair.right, setting)).sum()
    # By hand: a column loses one count and gains another, or only loses one against a null record.
    assert moved == algorithm.sensitivity(setting) == (4 if relation is Neighbours.REPLACE_ONE else 2)
    assert algorithm.law(setting).scale == pytest.approx(moved / 0.5)


def test_an_empty_bin_rarely_counts_as_occupied(random: np.random.Generator) -> None:
    """A column of noise alone passes in at most 1 % of cases; the exact chance follows from the law.

    P(X >= 57 of 2,000) at 1 % is below 1e-9; a threshold without the bins' number would pass in most of them.
    """
    scale, bins = 4.0, 103
    p = math.exp(-1 / scale)
    threshold = scale * math.log(bins / 0.01)
    chance = 1 - (1 - p ** (math.floor(threshold) + 1) / (1 + p)) ** bins
    assert chance < 0.01
    law = DiscreteLaplace(scale)
    magnitudes = random.geometric(1 - p, size=(2, 2000, bins)) - 1
    noise = magnitudes[0] - magnitudes[1]
    assert abs(noise.var() - 2 * p / (1 - p) ** 2) < 1.0
    assert law.scale == scale
    passed = sum(occupied(column.astype(float), scale) is not None for column in noise)
    assert passed < 57
    noise[:, 50] += 200
    assert sum(occupied(column.astype(float), scale) == (50, 50) for column in noise) > 1900


def _rows(folder: Path, count: int = 400) -> Path:
    path = folder / "rows.csv"
    lines = [
        f"p{row},{20 + row % 60},{(-1) ** row * (row % 7)},{'' if row % 5 else 'x'},{row % 2}" for row in range(count)
    ]
    path.write_text("\n".join(["id,age,shift,odd,y", *lines, "1,2"]) + "\n")
    return path


def _request(draft: Path, path: Path, cap: float = 3.0) -> IngestRequest:
    return IngestRequest(
        name="draft-bins",
        format="table-bins",
        path=path,
        schema_path=draft,
        account="people",
        epsilon_cap=cap,
        delta_cap=1e-6,
    )


def test_ranges_are_charged_once_and_written_into_the_draft(root: Path, tmp_path: Path) -> None:
    path, draft = _rows(tmp_path), tmp_path / "draft.yaml"
    draft_schema(path, draft, numeric=["age", "shift", "odd"])
    found = private_ranges(_request(draft, path), 2.0, 1e-9)
    assert found == {"age": (16.0, 128.0), "shift": (-8.0, 8.0), "odd": None}
    assert private_ranges(_request(draft, path), 2.0, 1e-9) == found
    charges = open_ledger().charges("people")
    assert len(charges) == 1
    assert Guarantee.from_json(dict(charges[0].guarantee)).losses == (PureEpsilon(2.0),)
    fill_ranges(draft, found, (-1.0, 1.0))
    lines = draft.read_text().splitlines()
    assert '  - {name: "age", type: numeric, range: [16, 128]}' in lines
    assert (
        '  - {name: "odd", type: numeric, range: [-1, 1]}  # no bin stood out of the noise: the declared fallback'
        in lines
    )
    with pytest.raises(RefusedError, match=r"cap|left"):
        private_ranges(_request(draft, path), 1.5, 1e-9)
    assert len(open_ledger().charges("people")) == 1


def test_what_cannot_be_drawn_is_said_before_anything_is_charged(root: Path, tmp_path: Path) -> None:
    path, draft = _rows(tmp_path), tmp_path / "draft.yaml"
    with pytest.raises(InputError, match="has no column 'weight'; it has: id, age"):
        draft_schema(path, draft, numeric=["weight"])
    draft_schema(path, draft)
    with pytest.raises(InputError, match="has no column of type numeric that could be drawn"):
        private_ranges(_request(draft, path), 1.0, 1e-9)
    draft.write_text("columns: [age]")
    with pytest.raises(InputError, match="is not a schema"):
        private_ranges(_request(draft, path), 1.0, 1e-9)


def _selection(relation: Neighbours, columns: int, epsilon: float, delta: float) -> tuple[KeySelection, Setting]:
    setting = Setting(sizes=(50,), dimension=2 * columns, classes=2, neighbours=relation, trust=Trust.CENTRAL)
    return KeySelection(budget=ApproximateDP(epsilon, delta), columns=columns), setting


@pytest.mark.parametrize("relation", [Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-9), (3.0, 1e-3)])
def test_a_key_of_one_row_is_released_as_rarely_as_delta_says(
    relation: Neighbours, columns: int, epsilon: float, delta: float
) -> None:
    """The law's tail, exactly: all keys of one row together within delta, and the proof's condition holds."""
    algorithm, setting = _selection(relation, columns, epsilon, delta)
    changes = columns * (2 if relation is Neighbours.REPLACE_ONE else 1)
    scale = algorithm.law(setting).scale
    assert scale == pytest.approx(changes / epsilon)
    assert scale * epsilon >= changes
    p = math.exp(-1 / scale)
    tail = p ** algorithm.threshold(setting) / (1 + p)
    assert changes * tail <= delta
    assert 1 - tail >= p
    # One less than two below would be too much: the threshold is not merely large.
    assert changes * p ** (algorithm.threshold(setting) - 3) > delta


def test_frequent_keys_are_released_and_rare_ones_are_not() -> None:
    """With 1,000 noises: a key of one row passes with probability below 1e-9 each, one of 200 nearly always."""
    algorithm, setting = _selection(Neighbours.REPLACE_ONE, 1, 1.0, 1e-9)
    rows = np.zeros((202, 2))
    rows[:200] = [65 / 255, 66 / 255]
    rows[200] = [67 / 255, 0]
    given = ArrayRows(rows, np.zeros(202, dtype=np.int64))
    for seed in range(1000):
        values = algorithm.fit([given], setting, KeyedNoise(public_secret(seed), "keys")).values
        assert values[0, 0, 1:].tolist() == [65, 66]
        assert abs(values[0, 0, 0] - 200) < 100
        assert (values[0, 1:] == -1).all()
    with pytest.raises(ParameterError, match="cannot be 3 columns of equal width"):
        KeySelection(budget=ApproximateDP(1.0, 1e-6), columns=3).guarantee(setting)
    with pytest.raises(ParameterError, match="too large for the proof"):
        _selection(Neighbours.REPLACE_ONE, 1, 0.01, 0.9)[0].guarantee(setting)


def test_values_are_charged_once_and_written_into_the_draft(root: Path, tmp_path: Path) -> None:
    path, draft = tmp_path / "rows.csv", tmp_path / "draft.yaml"
    wards = ["Süd"] * 180 + ["nord"] * 180 + ["geheim"] + [""] * 39
    path.write_text("ward,rare,y\n" + "".join(f"{ward},r{row},0\n" for row, ward in enumerate(wards)))
    draft_schema(path, draft, categories=["ward", "rare"])
    request = _request(draft, path).model_copy(update={"format": "table-keys"})
    found = private_values(request, 2.0, 1e-7)
    assert found == {"ward": ["Süd", "nord"], "rare": []}
    assert private_values(request, 2.0, 1e-7) == found
    (charge,) = open_ledger().charges("people")
    assert Guarantee.from_json(dict(charge.guarantee)).losses == (ApproximateDP(2.0, 1e-7),)
    fill_values(draft, found)
    assert '  - {name: "ward", type: category, values: ["Süd", "nord"]}' in draft.read_text("utf-8").splitlines()
    assert '  - {name: "rare", type: category}' in draft.read_text("utf-8").splitlines()
