"""When a data set is trained on without being asked: kept in the catalogue, applied whenever flows are served."""

from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from dpalgos.parameters import ParameterError
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.stores import open_catalog

NIGHTLY = "0 3 * * *"
"""Every night at three."""


Charged = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
"""An epsilon that held-out rows are charged."""


class Schedule(BaseModel, frozen=True, extra="forbid"):
    """What starts runs on one data set, and which.

    A run on a version that it was made on before is served from the cache and charges nothing; a new version is charged
    in full, and so is a run whose releases another version of Unitball or of a library computes otherwise.
    """

    config: TrainingConfig
    cron: Annotated[str | None, Field(description="When, as five fields of cron.", examples=[NIGHTLY])] = None
    timezone: Annotated[str, Field(description="Time zone of --cron.", examples=["Europe/Berlin"])] = "UTC"
    on_new_version: Annotated[bool, Field(description="Whenever a new version of the data set is registered.")] = False
    scoring_input: Annotated[
        str | None, Field(description="Rows that are scored after each training, by the champion where there is one.")
    ] = None
    comparison_epsilon: Annotated[
        Charged | None, Field(description="Charged to compare a trained model with the champion.")
    ] = None
    promote: Annotated[bool, Field(description="A trained model that is better becomes champion.")] = False
    scoring_id: Annotated[str | None, Field(description="A column of these rows that is kept.")] = None

    @model_validator(mode="after")
    def _starts(self) -> Self:
        if self.cron is None and not self.on_new_version and self.scoring_input is None:
            raise ParameterError(
                "nothing starts it: give --nightly, --cron, --on-new-version or --score-input (or --remove)"
            )
        if self.scoring_id is not None and self.scoring_input is None:
            raise ParameterError("--score-id is a column of rows to score: say which with --score-input")
        return self

    @property
    def trains(self) -> bool:
        """Whether it starts trainings."""
        return self.cron is not None or self.on_new_version

    @property
    def dataset(self) -> str:
        """The data set's name."""
        return self.config.dataset


def set_schedule(schedule: Schedule) -> None:
    """Record a schedule in the place of the data set's earlier one.

    Raises
    ------
    storage.errors.InputError
        If there is no such data set.
    """
    # Whole, so that another default of a later version changes no schedule.
    open_catalog().set_schedule(schedule.dataset, schedule.model_dump(mode="json"))


def remove_schedule(dataset: str) -> None:
    """End a data set's schedule.

    Raises
    ------
    storage.errors.InputError
        If there is no such data set.
    """
    open_catalog().set_schedule(dataset, {})


def schedules() -> list[Schedule]:
    """Return the schedules that stand, by name of their data sets."""
    return [Schedule.model_validate(kept) for kept in open_catalog().schedules().values()]


def schedule_of(dataset: str) -> Schedule | None:
    """Return a data set's schedule, or None."""
    return next((schedule for schedule in schedules() if schedule.dataset == dataset), None)
