"""The parameters of a training run, validated by name before anything is read or charged."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dpalgos.guarantees import Neighbours, Trust

__all__ = ["TrainingConfig"]

Scalar = str | int | float | bool | None


class TrainingConfig(BaseModel):
    """One training run: which rows, which algorithm, which budget."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: Annotated[str, Field(min_length=1, description="Name of a registered data set.", examples=["digits"])] = (
        "digits"
    )
    algorithm: Annotated[
        str | None, Field(description="A named system (`unitball algorithms`).", examples=["fed-dpdr-dpml", "noisy-gd"])
    ] = "noisy-gd"
    projection: Annotated[str | None, Field(description="A registered projection instead of the system's.")] = None
    trainer: Annotated[str | None, Field(description="A registered trainer instead of the system's.")] = None
    aggregation: Annotated[
        str | None, Field(description="How per-party models become one, instead of the system's.")
    ] = None
    epsilon: Annotated[
        float | None,
        Field(
            gt=0,
            le=1000,
            allow_inf_nan=False,
            description="Total epsilon of the run per party; not needed where no noise is drawn.",
            examples=[1.0],
        ),
    ] = None
    delta: Annotated[float, Field(gt=0, lt=1, description="Total delta of the run per party.", examples=[1e-5])] = 1e-5
    trust: Annotated[Trust | None, Field(description="Trust model; the algorithm's first if empty.")] = None
    neighbours: Annotated[
        Neighbours,
        Field(description="Neighbouring relation: replace-one, or replace-special (one row against a null record)."),
    ] = Neighbours.REPLACE_ONE
    dropouts: Annotated[int, Field(ge=0, description="secagg: parties that may be lost during the run.")] = 0
    colluders: Annotated[int, Field(ge=0, description="secagg: parties that may pool what they know.")] = 0
    absent: Annotated[
        tuple[Annotated[str, Field(pattern=r"^\d{1,7}:(advertise|share|mask|unmask)$")], ...],
        Field(
            description="secagg, simulated: who is gone from which round on (advertise, share, mask, unmask).",
            examples=[["2:mask"]],
        ),
    ] = ()
    parties: Annotated[int, Field(ge=1, le=1_000_000, description="Number of simulated parties.", examples=[5])] = 5
    sizes: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...] | None, Field(description="Rows of each party (an uneven split).")
    ] = None
    rows_per_party: Annotated[int | None, Field(ge=1, description="Rows of each party; all if empty.")] = None
    dimension: Annotated[
        int | None, Field(ge=1, description="Target dimension k of the projection; min(20, d) if empty.", examples=[20])
    ] = None
    partition: Annotated[
        str, Field(description="How rows are dealt to the parties (`even`, `sized`, `dirichlet`, `by-label`, `own`).")
    ] = "even"
    normalisation: Annotated[str | None, Field(description="Row-local map; the system's if empty.")] = None
    test_fraction: Annotated[
        float, Field(ge=0, lt=1, description="Share of rows held out where the set has no test rows of its own.")
    ] = 0.2
    partition_seed: Annotated[int, Field(ge=0, description="Seed of the public permutation that deals rows.")] = 0
    seed: Annotated[
        int | None, Field(ge=0, description="Public noise seed, for papers and tests: public data only.")
    ] = None
    repetition: Annotated[
        int,
        Field(ge=0, description="The same words name the same releases; a new number: a fresh charge."),
    ] = 0
    evaluate_privately: Annotated[
        bool, Field(description="Spend the hold-out rows' budget on a noisy confusion matrix (private data).")
    ] = False
    parameters: Annotated[
        dict[str, Any],
        Field(description="Fields of the parts, dotted where ambiguous.", examples=[{"trainer.regularisation": 0.01}]),
    ] = {}

    @field_validator("neighbours")
    @classmethod
    def _relation_in_force(cls, neighbours: Neighbours) -> Neighbours:
        return neighbours.in_force()

    @model_validator(mode="after")
    def _consistent(self) -> TrainingConfig:
        if self.algorithm is None and self.trainer is None:
            raise ValueError("name an algorithm, or a trainer (with or without a projection)")
        if self.sizes is not None and self.rows_per_party is not None:
            raise ValueError("give sizes or rows_per_party, not both")
        return self
