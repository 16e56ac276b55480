"""Maps of a table's rows as aggregators: from released counts alone, JSON and public, of known dimension."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpalgos.algorithms import TrustedSummation, run_sums
from dpalgos.column_maps import LearntColumns, UnitNormRows, decoded_counts, how_counted
from dpalgos.columns import Column, columns_of
from dpalgos.evaluators.column_histograms import ColumnHistograms
from dpalgos.features.column_functions import LEVELS, column_functions
from dpalgos.features.unit_rows import UnitRows
from dpalgos.guarantees import GaussianMu, Neighbours, Setting
from dpalgos.histograms import ColumnCounts, combined
from dpalgos.keystream import KeyedNoise
from dpalgos.models import Statistic, decode, require_planned
from dpalgos.normalisation import UnitNorm
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import NULL_LABEL, ArrayRows, sanitise
from tests.dpalgos.test_column_functions import CATEGORIES, COLUMNS, rows_of

NONE = np.zeros(0)


def spec_of(level: str, **given: Any) -> AlgorithmSpec:
    """Return a plan's spec: as it comes back from JSON."""
    columns = [column.to_json() for column in (CATEGORIES if level == "categories" else COLUMNS)]
    parameters = {"level": level, "columns": columns, "dimension": 8, "classes": 2, **given}
    return AlgorithmSpec("aggregators", "column-functions", json.loads(json.dumps(parameters)))


def released(mu: float, bins: int = 64, run: str = "0", **facts: Any) -> tuple[Statistic, ColumnHistograms, Setting]:
    rows = rows_of()
    setting = Setting(**{"sizes": (300, 200), "dimension": 8, "classes": 2, "trust": "central", **facts})
    labels = np.zeros(500, dtype=np.int64) if setting.classes > 1 else np.linspace(10, 20, 500)
    algorithm = ColumnHistograms(budget=GaussianMu(mu), columns=COLUMNS, bins=bins, label_range=(0.0, 100.0))
    parties = [ArrayRows(rows[:300], labels[:300]), ArrayRows(rows[300:], labels[300:])]
    return run_sums(algorithm, parties, setting, TrustedSummation(KeyedNoise(bytes(32), run))), algorithm, setting


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "categories"])
def test_a_map_is_that_of_the_released_counts(level: str) -> None:
    """From JSON alone; the draw decides, and nothing of the rows."""
    maps = []
    for run in ("0", "1"):
        statistic, algorithm, setting = released(0.5, run=run)
        made = spec_of(level, releases=[how_counted(algorithm, setting)]).build().combine([statistic], np.ones(1))
        counts = ColumnCounts.of_release(statistic.values, algorithm, setting)
        expected = column_functions(COLUMNS, level, counts)
        assert all(np.array_equal(made.arrays()[name], array) for name, array in expected.arrays().items())
        maps.append(made)
    assert not np.array_equal(maps[0].tables, maps[1].tables)
    # The mutant from exact counts is another map.
    statistic, algorithm, setting = released(1e6)
    exact = column_functions(COLUMNS, level, ColumnCounts.of_release(statistic.values, algorithm, setting))
    assert np.abs(exact.tables - maps[0].tables).max() > 0.01


def test_several_releases_are_combined_by_their_noise() -> None:
    releases = [released(0.5, 64, "0"), released(2.0, 128, "1", noise_factor=1.5)]
    spec = spec_of("univariate", releases=[how_counted(algorithm, setting) for _, algorithm, setting in releases])
    made = spec.build().combine([statistic for statistic, *_ in releases], np.full(2, 0.5))
    counts = combined(
        [ColumnCounts.of_release(statistic.values, algorithm, setting) for statistic, algorithm, setting in releases]
    )
    assert made.bins == 64
    assert np.array_equal(made.tables, column_functions(COLUMNS, "univariate", counts).tables)
    # A release of a hundredth of the noise decides; one taken for what the other is would not.
    releases[1] = released(50.0, 64, "1")
    wrong = [how_counted(algorithm, setting) for _, algorithm, setting in releases][::-1]
    swapped = spec_of("univariate", releases=wrong).build().combine([one for one, *_ in releases], np.full(2, 0.5))
    right = spec_of("univariate", releases=wrong[::-1]).build().combine([one for one, *_ in releases], np.full(2, 0.5))
    statistic, algorithm, setting = releases[1]
    alone = column_functions(COLUMNS, "univariate", ColumnCounts.of_release(statistic.values, algorithm, setting))
    near, far = (float(np.abs(one.tables[:, 1] - alone.tables[:, 1]).max()) for one in (right, swapped))
    assert 10 * near < far


@pytest.mark.parametrize(
    "facts",
    [
        {"trust": "secagg", "noise_factor": 1.5},
        {"neighbours": Neighbours.REPLACE_SPECIAL, "rows_per_person": 3},
        {"classes": 1},
    ],
)
def test_how_counts_were_made_is_read_back_from_json(facts: dict[str, Any]) -> None:
    statistic, algorithm, setting = released(0.3, **facts)
    how = json.loads(json.dumps(how_counted(algorithm, setting)))
    learnt: LearntColumns = spec_of("scores", classes=setting.classes, label_range=[0.0, 100.0], releases=[how]).build()
    found = decoded_counts(columns_of(learnt.columns, learnt.dimension), statistic.values, how)
    expected = ColumnCounts.of_release(statistic.values, algorithm, setting)
    assert found.layout == expected.layout
    assert found.deviation == expected.deviation
    assert np.array_equal(found.sums, expected.sums)
    assert np.array_equal(found.covariance, expected.covariance)
    made = learnt.combine([statistic], np.ones(1))
    assert made.label_range.shape == ((2,) if setting.classes == 1 else (0,))


@pytest.mark.parametrize("level", LEVELS)
def test_what_comes_out_is_public(level: str) -> None:
    """Dimension without releases, and kind, types and shapes of a map of no rows: whatever the counts are."""
    aggregator = spec_of(level).build()
    if level == "categories":
        made = planned = aggregator.combine([], NONE)
    else:
        statistic, algorithm, setting = released(0.5)
        aggregator = spec_of(level, releases=[how_counted(algorithm, setting)]).build()
        made = aggregator.combine([statistic], np.ones(1))
        planned = aggregator.combine([Statistic(values=np.zeros_like(statistic.values))], np.ones(1))
    assert spec_of(level).build().output_dimension(8) == made.dimension == made.transform(rows_of()).shape[1]
    assert require_planned(made.kind, made.arrays(), planned).dimension == made.dimension


def test_what_does_not_fit_is_refused() -> None:
    statistic, algorithm, setting = released(0.5)
    how = how_counted(algorithm, setting)
    with pytest.raises(ParameterError, match="'linear'"):
        spec_of("linear").build()
    with pytest.raises(ParameterError, match=r"feature 7.*7"):
        spec_of("scores", dimension=7).build()
    with pytest.raises(ParameterError, match=r"^0 releases.*how_counted"):
        spec_of("scores").build().combine([], NONE)
    with pytest.raises(ParameterError, match=r"^1 releases.*how_counted"):
        spec_of("categories", releases=[how]).build().combine([statistic], np.ones(1))
    with pytest.raises(ParameterError, match=r"^1 releases.*2 described"):
        spec_of("scores", releases=[how, how]).build().combine([statistic], np.ones(1))
    with pytest.raises(ParameterError, match=r"\(200,\).*201"):
        spec_of("scores", releases=[how]).build().combine([Statistic(values=statistic.values[1:])], np.ones(1))
    other = {**how, "budget": {"kind": "pure-epsilon", "epsilon": 1.0}}
    with pytest.raises(ParameterError, match="Gaussian"):
        spec_of("scores", releases=[other]).build().combine([statistic], np.ones(1))


def test_unit_rows_are_those_of_the_normalisation() -> None:
    made = UnitNormRows(dimension=8).combine([], NONE)
    rows = np.random.default_rng(0).normal(size=(50, 8))
    rows[0], rows[1, 3], rows[2, 0] = 0.0, np.nan, np.inf
    mapped = made.apply(rows)
    assert np.array_equal(np.delete(mapped, [1, 2], axis=0), np.delete(UnitNorm()(rows), [1, 2], axis=0))
    assert np.isnan(mapped[1:3]).all()
    # A zero row with a label would count.
    assert sanitise(mapped, np.ones(50), 2)[1][:4].tolist() == [1, NULL_LABEL, NULL_LABEL, 1]
    assert np.array_equal(np.concatenate([made.apply(rows[place : place + 1]) for place in range(3, 50)]), mapped[3:])
    again = decode("unit-rows", made.arrays())
    assert isinstance(again, UnitRows)
    assert again.dimension == UnitNormRows(dimension=8).output_dimension(8) == 8
    with pytest.raises(ParameterError, match=r"^1 releases.*norm"):
        UnitNormRows(dimension=8).combine([Statistic(values=NONE)], np.ones(1))


def test_a_mapping_of_other_ends_reads_other_cells() -> None:
    """What a feature is at the ends of the declared range is the column's, in the counts and in the map alike."""
    statistic, algorithm, setting = released(5.0)
    how = [how_counted(algorithm, setting)]
    made = spec_of("scores", releases=how).build().combine([statistic], np.ones(1))
    moved = [replace(column, high=column.high * 2) if column.is_number else column for column in COLUMNS]
    assert all(isinstance(column, Column) for column in moved)
    other = spec_of("scores", columns=[column.to_json() for column in moved], releases=how).build()
    assert not np.array_equal(other.combine([statistic], np.ones(1)).transform(rows_of()), made.transform(rows_of()))
