"""Requests for column statistics (descriptions, components, synthetic rows), and plans that are charged as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt

from storage.refs import DatasetRef
from tasks.planning.plans import DESCRIBE
from tasks.planning.releases import Planned, PlannedCombination, PlannedRelease
from tasks.planning.rows import Partition

REDUCTION, SYNTHESIS = "reduce", "synthesise"
"""What plans are called in the ledger."""

Node = Partition | PlannedRelease | PlannedCombination


class StatisticsRequest(BaseModel, frozen=True, extra="forbid"):
    """The settings of every command that releases column statistics."""

    dataset: Annotated[str, Field(description="Registered data set.")]
    epsilon: Annotated[
        float | None,
        Field(
            description="Epsilon of all releases together, per row or person. Without it the command prints a price."
        ),
    ] = None
    delta: Annotated[
        float | None, Field(description="Delta of that epsilon. Default: 82 % of the cap's delta; 1e-5 on public rows.")
    ] = None
    trust: Annotated[
        str | None,
        Field(description="Trust model, if parties have their own files: local, secagg, central. Default: local."),
    ] = None


class StatisticsPlan(Planned):
    """Releases over a version's rows that are charged together.

    Attributes
    ----------
    dataset : DatasetRef
        As registered.
    partition : Partition
        Its training rows are read.
    epsilon, delta : float
        Of what the plan charges.
    """

    dataset: DatasetRef
    partition: Partition
    epsilon: float
    delta: float

    @property
    def system(self) -> str:
        """Name of the plan."""
        raise NotImplementedError

    @property
    def sound_counterpart(self) -> None:
        """None: it is proved."""
        return None

    @property
    def label(self) -> str:
        """For people: what is released."""
        return " and ".join(one.label for one in self.releases)

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """All releases that the plan makes, in order."""
        return tuple(one for one in self.nodes.values() if isinstance(one, PlannedRelease))

    @property
    def earlier(self) -> tuple[PlannedRelease, ...]:
        """Stored releases that the plan uses: they are not among :attr:`nodes`."""
        return ()

    @property
    def rests_on(self) -> tuple[PlannedRelease, ...]:
        """All releases of rows that the result is made of."""
        return (*self.earlier, *self.releases)

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes of the plan by key, each after its inputs."""
        raise NotImplementedError


def _by_key(*nodes: Node | None) -> dict[str, Node]:
    return {one.key: one for one in nodes if one is not None}


class DescriptionRequest(StatisticsRequest, frozen=True, extra="forbid"):
    """The settings of a description; see ``unitball describe --help``."""

    pairs: Annotated[
        tuple[str, ...], Field(description="Pairs of columns to count instead of single ones, a,b each.")
    ] = ()
    by: Annotated[str | None, Field(description="Count each other column, and the label, by this column's groups.")] = (
        None
    )
    version: Annotated[str | None, Field(description="A version of the data set. Default: the newest.")] = None


class DescriptionPlan(StatisticsPlan):
    """Everything that a description releases: of all rows that are in no test file.

    Attributes
    ----------
    counts : PlannedRelease
        Of single columns, or of pairs.
    one_way : tuple of PlannedRelease
        Released before, which the numbers of pairs rest on too.
    """

    counts: PlannedRelease
    one_way: tuple[PlannedRelease, ...] = ()

    @property
    def system(self) -> str:
        """Name of the plan."""
        return DESCRIBE

    @property
    def earlier(self) -> tuple[PlannedRelease, ...]:
        """One-way counts that were released before."""
        return self.one_way

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes of the plan by key, each after its inputs."""
        return _by_key(self.partition, self.counts)


class ReductionRequest(StatisticsRequest, frozen=True, extra="forbid"):
    """The settings of a reduction; see ``unitball reduce --help``."""

    components: Annotated[
        PositiveInt | None, Field(description="Number of components. Default: those above the noise.")
    ] = None
    score_counts: Annotated[
        bool,
        Field(
            description="Also release a two-way histogram of the scores along components 1 and 2, for 10 % of the "
            "budget (in "
            "mu squared)."
        ),
    ] = False
    center: Annotated[
        bool, Field(description="On: centre rows at a released mean. Off: at the middle of the declared ranges.")
    ] = True
    version: Annotated[str | None, Field(description="Version of the data set. Default: the newest.")] = None
    replicate: Annotated[
        NonNegativeInt, Field(description="Another number makes another release, with fresh noise and a new charge.")
    ] = 0


class ReductionPlan(StatisticsPlan):
    """Everything that a reduction releases: of all rows.

    Attributes
    ----------
    moments : PlannedRelease
        Second moments, and the mean about which they are.
    plane : PlannedCombination or None
        The map onto the leading two components, scaled for the counts; None where no scores are counted.
    scores : PlannedRelease or None
        Counts of the rows seen through that map.
    """

    moments: PlannedRelease
    plane: PlannedCombination | None = None
    scores: PlannedRelease | None = None

    @property
    def system(self) -> str:
        """Name of the plan."""
        return REDUCTION

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes of the plan by key, each after its inputs."""
        return _by_key(self.partition, self.moments, self.plane, self.scores)


class SynthesisRequest(StatisticsRequest, frozen=True, extra="forbid"):
    """The settings of a synthesis; see ``unitball synthesise --help``."""

    pairs: Annotated[
        tuple[str, ...],
        Field(
            description="Pairs of columns (a,b) from which the tree is chosen. Default: all pairs, up to 60 columns."
        ),
    ] = ()
    test_fraction: Annotated[
        float | None,
        Field(description="Fraction of rows held out and not counted in any stage. Default: that of a run."),
    ] = None
    rows: Annotated[
        PositiveInt | None, Field(description="Number of rows to draw. Default: the number of counted rows.")
    ] = None
    seed: Annotated[int, Field(description="Public seed; the same seed draws the same rows.")] = 0
    name: Annotated[
        str | None, Field(description="Name of the derived data set. Default: the data set's with -synthetic.")
    ] = None
    output: Annotated[Path | None, Field(description="Also write the rows to a file: .csv or .parquet.")] = None

    @property
    def called(self) -> str:
        """The name of the derived data set."""
        return self.name or f"{self.dataset}-synthetic"


class SynthesisPlan(StatisticsPlan):
    """Everything that a synthesis will release, and what is made of it.

    Attributes
    ----------
    counts : tuple of PlannedRelease
        Histograms of the columns: a new one, or those that were released before.
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
    """

    counts: tuple[PlannedRelease, ...]
    before: tuple[str, ...] = ()
    pair_groups: PlannedCombination | None = None
    pairs: PlannedRelease | None = None
    tree_groups: PlannedCombination
    tables: PlannedRelease
    synthesis: PlannedCombination
    reason: str

    @property
    def system(self) -> str:
        """Name of the plan."""
        return SYNTHESIS

    @property
    def earlier(self) -> tuple[PlannedRelease, ...]:
        """Histograms that were released before."""
        return tuple(one for one in self.counts if one.key in self.before)

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes of the plan by key, each after its inputs, without the histograms that exist already."""
        own = [one for one in self.counts if one.key not in self.before]
        return _by_key(
            self.partition, *own, self.pair_groups, self.pairs, self.tree_groups, self.tables, self.synthesis
        )
