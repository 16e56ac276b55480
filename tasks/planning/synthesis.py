"""What a synthesis is asked for, and its plan: releases of three stages, what the server makes of them, by keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, PositiveInt

from storage.refs import DatasetRef
from tasks.planning.releases import Planned, PlannedCombination, PlannedRelease
from tasks.planning.rows import Partition

SYSTEM = "synthesise"
"""What its plans are called in the ledger."""

Node = Partition | PlannedRelease | PlannedCombination


class SynthesisRequest(BaseModel, frozen=True, extra="forbid"):
    """What is asked of a synthesis; see ``unitball synthesise --help``."""

    dataset: Annotated[str, Field(description="A registered table.")]
    epsilon: Annotated[
        float | None,
        Field(description="Epsilon of all stages together, per row or person. Private rows are priced at 1 without."),
    ] = None
    delta: Annotated[
        float | None, Field(description="Delta of that epsilon. Default: 105/128 of the cap's; 1e-5 on public rows.")
    ] = None
    trust: Annotated[
        str | None, Field(description="Trust model of several parties' own files: local, secagg or central.")
    ] = None
    pairs: Annotated[
        tuple[str, ...],
        Field(description="Pairs of columns from which the tree is chosen, a,b each. Default: all up to 60 columns."),
    ] = ()
    test_fraction: Annotated[
        float | None, Field(description="Share of rows held out and counted in no stage. Default: that of a run.")
    ] = None
    rows: Annotated[PositiveInt | None, Field(description="Rows to draw. Default: as many as were counted.")] = None
    seed: Annotated[int, Field(description="Public seed of the drawing; the same seed draws the same rows.")] = 0
    name: Annotated[
        str | None, Field(description="Name of the derived data set. Default: the data set's with -synthetic.")
    ] = None
    output: Annotated[Path | None, Field(description="Write the rows to a file too: .csv or .parquet.")] = None

    @property
    def called(self) -> str:
        """The name of the derived data set."""
        return self.name or f"{self.dataset}-synthetic"


class SynthesisPlan(Planned):
    """Everything that a synthesis will release, and what is made of it.

    Attributes
    ----------
    dataset : DatasetRef
        As registered.
    partition : Partition
        Its training rows are counted.
    counts : tuple of PlannedRelease
        Histograms of the columns: one of its own, or those that were released before.
    before : tuple of str
        The keys of those that were released before.
    pair_groups, pairs : PlannedCombination and PlannedRelease, or None
        None where no pairs are counted.
    tree_groups : PlannedCombination
    tables : PlannedRelease
    synthesis : PlannedCombination
        What rows are drawn by.
    reason : str
        Why there is a tree, or none.
    epsilon, delta : float
        Of what the plan charges.
    """

    dataset: DatasetRef
    partition: Partition
    counts: tuple[PlannedRelease, ...]
    before: tuple[str, ...] = ()
    pair_groups: PlannedCombination | None = None
    pairs: PlannedRelease | None = None
    tree_groups: PlannedCombination
    tables: PlannedRelease
    synthesis: PlannedCombination
    reason: str
    epsilon: float
    delta: float

    @property
    def system(self) -> str:
        """What the plan is called."""
        return SYSTEM

    @property
    def sound_counterpart(self) -> None:
        """None: it is proved."""
        return None

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """All releases that the plan makes, in order."""
        own = tuple(one for one in self.counts if one.key not in self.before)
        return (*own, *([] if self.pairs is None else [self.pairs]), self.tables)

    @property
    def rests_on(self) -> tuple[PlannedRelease, ...]:
        """All releases of rows that the synthesis is made of, those that were there before among them."""
        return (*(one for one in self.counts if one.key in self.before), *self.releases)

    @property
    def nodes(self) -> dict[str, Node]:
        """What is to be made, by key, each after its inputs; histograms that were there before are not among it."""
        own: list[Node | None] = [one for one in self.counts if one.key not in self.before]
        made: list[Node | None] = [self.pair_groups, self.pairs, self.tree_groups, self.tables, self.synthesis]
        return {one.key: one for one in (self.partition, *own, *made) if one is not None}
