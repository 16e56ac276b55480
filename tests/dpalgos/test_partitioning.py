"""Partitions: disjoint, complete, repeatable, and marked where they look at labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpalgos.parameters import ParameterError
from dpalgos.partitioning import ByLabel, Dirichlet, Even, Sized
from dpalgos.registry import lookup, names

LABELS = np.random.default_rng(0).integers(0, 4, 103)
CASES: list[Any] = [
    Even(parties=5, seed=3),
    Sized(sizes=(10, 20, 73), seed=3),
    Dirichlet(parties=5),
    ByLabel(parties=5),
]


def test_every_registered_partition_is_tested() -> None:
    assert {lookup("partitions", name) for name in names("partitions")} == {type(case) for case in CASES}


@pytest.mark.parametrize("partition", CASES, ids=lambda case: type(case).__name__)
def test_parts_are_disjoint_complete_and_repeatable(partition: Any) -> None:
    parts = partition.assign(103, LABELS)
    assert list(parts) == list(range(len(parts)))
    together = np.concatenate(list(parts.values()))
    np.testing.assert_array_equal(np.sort(together), np.arange(103))
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts.values())
    again = partition.assign(103, LABELS)
    assert all(np.array_equal(parts[party], again[party]) for party in parts)


@pytest.mark.parametrize("partition", CASES, ids=lambda case: type(case).__name__)
def test_content_dependence_is_told_truly(partition: Any) -> None:
    parts, others = partition.assign(103, LABELS), partition.assign(103, (LABELS + 1 + np.arange(103) % 2) % 4)
    same = all(np.array_equal(parts[party], others[party]) for party in parts)
    assert same is not partition.content_dependent


def test_even_shares_differ_by_one_and_follow_the_seed() -> None:
    parts = Even(parties=5, seed=1).assign(103)
    assert sorted(len(part) for part in parts.values()) == [20, 20, 21, 21, 21]
    assert not np.array_equal(parts[0], Even(parties=5, seed=2).assign(103)[0])
    assert [len(part) for part in Even(parties=5, rows_per_party=7).assign(103).values()] == [7] * 5


def test_sizes_are_kept() -> None:
    assert [len(part) for part in Sized(sizes=(1, 50, 2)).assign(103).values()] == [1, 50, 2]


def test_label_skew_is_what_it_says() -> None:
    def classes(parts: dict[int, Any]) -> float:
        return float(np.mean([len(np.unique(LABELS[part])) for part in parts.values()]))

    assert classes(ByLabel(parties=4).assign(103, LABELS)) <= 2.5
    assert classes(Dirichlet(parties=4, concentration=0.05).assign(103, LABELS)) < classes(
        Dirichlet(parties=4, concentration=100.0).assign(103, LABELS)
    )


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        (Even(parties=104), "104 parties"),
        (Even(parties=5, rows_per_party=21), "105 rows.*20 rows"),
        (Sized(sizes=(100, 4)), "104 rows.*103"),
        (Dirichlet(parties=104), "104 parties"),
        (ByLabel(parties=104), "104 parties"),
    ],
    ids=str,
)
def test_too_few_rows_are_refused_with_the_way_out(partition: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        partition.assign(103, LABELS)


def test_parameters_are_validated() -> None:
    for make in (
        lambda: Even(parties=0),
        lambda: Even(rows_per_party=0),
        lambda: Sized(sizes=()),
        lambda: Sized(sizes=(3, 0)),
        lambda: Dirichlet(concentration=0.0),
        lambda: ByLabel(parties=-1),
    ):
        with pytest.raises(ParameterError):
            make()
    with pytest.raises(ParameterError, match="labels"):
        ByLabel(parties=2).assign(103)
