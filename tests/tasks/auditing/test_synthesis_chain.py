"""A whole synthesis observed: neighbours that no release counts differently look alike, and planted leaks are seen."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpalgos.audit.bounds import compare
from dpalgos.audit.experiment import AuditOptions, Verdict
from dpalgos.guarantees import Neighbours
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.synthesis.makers import OfTree
from flows.column_statistics import DRAWING
from storage.errors import InputError, RefusedError
from tasks.auditing import synthesis_chain
from tasks.auditing.chain import ChainReport, Tables, request_of
from tasks.auditing.synthesis_chain import audit_synthesis, base_tables, neighbouring_tables, synthesise_once
from tasks.datasets import synthetic_cells
from tasks.planning.rows import Shards
from tests.support.nights import by_night
from tests.support.noise import differing_each_time


def unseen() -> tuple[Tables, Tables]:
    """Return tables whose every release counts alike: they differ within a bin, by undeclared values, and held out.

    Of the weights in one bin half are 90.001 and half 90.002; the first row decides which is more frequent.
    """
    base = base_tables()
    train = base["train"].assign(weight=["90.001", "90.002"] * (len(base["train"]) // 2))
    left, right = train.copy(), train.copy()
    left.loc[1, "weight"], right.loc[0, "weight"] = "90.001", "90.002"
    left.loc[2, "ward"], right.loc[2, "ward"] = "Atlantis", "Utopia"
    held_out = [base["test"].copy() for _ in range(2)]
    held_out[0].loc[0, ["age", "weight", "ward"]] = [18, 40.0, "north"]
    held_out[1].loc[0, ["age", "weight", "ward"]] = [98, 140.0, "east"]
    return {"train": left, "test": held_out[0]}, {"train": right, "test": held_out[1]}


def drawn_once(tables: Tables, epsilon: float = 4.0) -> dict[str, Any]:
    return synthesise_once(tables, epsilon, 1e-5, Neighbours.REPLACE_ONE, DRAWING.chain_inline)[0]


def differing(pair: tuple[Tables, Tables]) -> tuple[str, ...]:
    """Return what tells two worlds apart where releases have no noise, so that two runs of one look alike."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundedGaussian, "sample", lambda self, count, stream: np.zeros(count, dtype=np.int64))
        return compare(
            *[[drawn_once(tables) for _ in range(2)] for tables in pair], delta=1e-5, confidence=0.99
        ).differing


def test_what_no_release_counts_is_not_seen(root: Path) -> None:
    """Besides the releases nothing tells of rows: not a cell, a text, a size, the held-out rows."""
    assert differing(unseen()) == ()


@pytest.mark.nightly
def test_a_training_row_is_seen_where_there_is_no_noise(root: Path) -> None:
    """The comparison has the power: an opposite row moves the counts."""
    found = differing(neighbouring_tables(Neighbours.REPLACE_ONE, "train"))
    assert any(name.endswith("values") for name in found), found


class _Leaking:
    """Cells that are written with a look at the rows that are brought in."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows = pd.DataFrame()

        def noting(tables: Tables, *given: Any, **more: Any) -> Any:
            self.rows = tables["train"]
            return request_of(tables, *given, **more)

        patch.setattr(synthesis_chain, "request_of", noting)
        self.numbers, self.written = synthetic_cells._numbers, synthetic_cells._written

    def spike(self, scale: Any, *given: Any) -> Any:
        """Return the most frequent weight in place of a point of the grid."""
        numbers = self.numbers(scale, *given)
        if scale.whole:
            return numbers
        weights = self.rows["weight"]
        often = weights[weights != ""].astype(float).mode()[0]
        return np.where(np.abs(numbers - often) < 1.0, often, numbers)

    def undeclared(self, recoding: Any, values: Any) -> list[str]:
        """Return a value of the rows in place of the last declared one."""
        found = self.written(recoding, values)
        more = sorted(set(self.rows["ward"]) - {"north", "south", "east"})
        return [*found[:-1], *more[:1]] if "north" in found and more else found


_SPIKE, _UNDECLARED, _HELD_OUT = "a spike of the rows", "a category that is not declared", "held-out rows"


@pytest.mark.parametrize("mutant", by_night([_SPIKE, _UNDECLARED, _HELD_OUT], {_UNDECLARED, _HELD_OUT}))
def test_what_reads_rows_beside_the_releases_is_seen(mutant: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaking = _Leaking(monkeypatch)
    if mutant == _HELD_OUT:
        monkeypatch.setattr(Shards, "of", lambda self, parties: [self.held_out])
    else:
        leaks = {_SPIKE: ("_numbers", leaking.spike), _UNDECLARED: ("_written", leaking.undeclared)}
        monkeypatch.setattr(synthetic_cells, *leaks[mutant])
    # The schema of drawn rows refuses the value; the door refuses rows of other parties than are planned.
    refused = {_UNDECLARED: (InputError, "Atlantis"), _HELD_OUT: (RefusedError, "the rows of test")}
    if mutant not in refused:
        assert differing(unseen())
        return
    error, value = refused[mutant]
    with pytest.raises(error, match=value):
        differing(unseen())


def test_a_tree_of_exact_tables_is_refused_by_verify(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's tree is made again from what is stored; that of the tables before their noise is another one."""
    sampled: list[Any] = []
    honest_parents, noises = OfTree.parents, np.random.default_rng(1)

    def sample(self: RoundedGaussian, count: int, stream: Any) -> Any:
        """Draw noise that hides the tree of exact tables each time: the door's does so in most runs."""
        sampled.append(np.rint(noises.normal(0.0, self.sigma, count)).astype(np.int64))
        return sampled[-1]

    def parents(self: Any, weights: Any, tables: Any) -> Any:
        exact = [table - next(one for one in sampled if one.size == table.size) for table in tables[:1]]
        return honest_parents(dataclasses.replace(self, pair_deviation=1e-3), weights, [*exact, *tables[1:]])

    def mutated(*given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RoundedGaussian, "sample", sample)
            patch.setattr(OfTree, "parents", parents)
            return DRAWING.chain_inline(*given)

    # Dependence that all rows show, and that the noise of pairs at epsilon 1 hides.
    random, tables = np.random.default_rng(2), base_tables()
    rows = len(tables["train"])
    weight = 40.0 + 0.4 * tables["train"]["age"] + random.uniform(0.0, 60.0, rows)
    ward = np.where(random.random(rows) < tables["train"]["age"] / 150.0, "north", "south")
    tables["train"] = tables["train"].assign(weight=weight, ward=ward)
    synthesise_once(tables, 1.0, 1e-5, Neighbours.REPLACE_ONE, DRAWING.chain_inline)
    with pytest.raises(RefusedError, match="synthesis"):
        synthesise_once(tables, 1.0, 1e-5, Neighbours.REPLACE_ONE, mutated)


# What is computed from noise: the released numbers, and what is drawn and reported by them.
_OF_RELEASES = re.compile(
    r"arrays\.npz|parquet|: rows|tables\.json|report\.md|note|result tree|metrics|manifest\.json output|digest"
)


@pytest.mark.nightly
@pytest.mark.parametrize("neighbours", list(Neighbours)[:2])
def test_nothing_beside_the_releases_of_a_synthesis_differs(neighbours: Neighbours, root: Path) -> None:
    """Two runs a world show every field without noise; what is measured with noise is for the nightly test."""
    reports: list[ChainReport] = []

    def compared() -> list[str]:
        options = AuditOptions(trials=2, neighbours=neighbours, confidence=1 - 1e-9)
        reports.append(audit_synthesis(options, chain=DRAWING.chain_inline))
        return [name for name in reports[-1].differing if not _OF_RELEASES.search(name)]

    assert differing_each_time(compared) == []
    assert reports[0].verdict is Verdict.CONSISTENT
    assert reports[0].fields > 400
    assert reports[0].proved_epsilon == pytest.approx(1.0)


@pytest.mark.nightly
def test_the_chain_of_a_synthesis_is_consistent(root: Path) -> None:
    report = audit_synthesis(AuditOptions(trials=40, confidence=1 - 1e-9), chain=DRAWING.chain_inline)
    assert report.verdict is Verdict.CONSISTENT, report
    assert report.differing == (), report
