"""What a reduction is asked for, and its plan: second moments, and counts of the scores along their components."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt

from storage.refs import DatasetRef
from tasks.planning.releases import Planned, PlannedCombination, PlannedRelease
from tasks.planning.rows import Partition

SYSTEM = "reduce"
"""What its plans are called in the ledger."""

Node = Partition | PlannedRelease | PlannedCombination


class ReductionRequest(BaseModel, frozen=True, extra="forbid"):
    """What is asked of a reduction; see ``unitball reduce --help``."""

    dataset: Annotated[str, Field(description="A registered data set.")]
    epsilon: Annotated[
        float | None,
        Field(description="Epsilon of the plan, per row or person. Without it private rows are priced at 0.5."),
    ] = None
    components: Annotated[
        PositiveInt | None, Field(description="How many components. Default: those above the noise.")
    ] = None
    score_counts: Annotated[
        bool,
        Field(
            description="Also count the scores along components 1 and 2, two-way, for 10 % of the budget in mu squared."
        ),
    ] = False
    delta: Annotated[float | None, Field(description="Default: 105/128 of the cap's delta, 1e-5 on public rows.")] = (
        None
    )
    center: Annotated[bool, Field(description="Centre rows at a released mean, or at the declared middle.")] = True
    trust: Annotated[
        str | None, Field(description="Trust model of several parties' own files (local, secagg, central).")
    ] = None
    version: Annotated[str | None, Field(description="A version of the data set. Default: the newest.")] = None
    replicate: Annotated[
        NonNegativeInt, Field(description="Another number is another release, drawn and charged again.")
    ] = 0


class ReductionPlan(Planned):
    """Everything that a reduction releases.

    Attributes
    ----------
    dataset : DatasetRef
        As registered.
    partition : Partition
        All rows of it are read.
    moments : PlannedRelease
        Second moments, and the mean about which they are.
    plane : PlannedCombination or None
        The map onto the leading two components, scaled for the counts; None where no scores are counted.
    scores : PlannedRelease or None
        Counts of the rows seen through that map.
    epsilon, delta : float
        Of the plan.
    """

    dataset: DatasetRef
    partition: Partition
    moments: PlannedRelease
    plane: PlannedCombination | None = None
    scores: PlannedRelease | None = None
    epsilon: float
    delta: float

    @property
    def system(self) -> str:
        """What the plan is called."""
        return SYSTEM

    @property
    def label(self) -> str:
        """For people: what is released."""
        return " and ".join(one.label for one in self.releases)

    @property
    def sound_counterpart(self) -> None:
        """None: it is proved."""
        return None

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """All releases that the plan makes, in order."""
        return (self.moments,) if self.scores is None else (self.moments, self.scores)

    @property
    def nodes(self) -> dict[str, Node]:
        """What is to be made, by key, each after its inputs."""
        made: list[Node | None] = [self.partition, self.moments, self.plane, self.scores]
        return {one.key: one for one in made if one is not None}
