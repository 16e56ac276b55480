"""Schedules of training and scoring, one a data set: kept in the catalogue, applied whenever flows are served.

What is kept is tried before: an expression of cron that never comes stops whoever serves it. What is kept nevertheless
and cannot be served, because something it names has gone or is another now, is left out and said by name.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple, Self
from zoneinfo import ZoneInfo

from pydantic import BaseModel, Field, ValidationError, model_validator

from dpalgos.parameters import ParameterError
from storage.datasets import dataset_ref, declared_table
from storage.encoder import Encoder, PictureEncoder, encoder_of
from storage.errors import InputError, StorageError
from storage.readers.picture_files import asked_pictures
from storage.readers.raw_tables import PARQUET, names_of, raw_rows
from tasks.planning.configuration import TrainingConfig, faults
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog

NIGHTLY = "0 3 * * *"
"""Every night at three."""
FEATURES = "features"
"""The column of a Parquet file that holds a row's numbers as a list, where a data set has no schema."""
_FIELDS = ("minute", "hour", "day", "month", "weekday")
_SHOWN_DATES = 3


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

    def next_dates(self, count: int = _SHOWN_DATES) -> list[datetime]:
        """Return when it starts next; nothing where no clock starts it.

        Raises
        ------
        ParameterError
            If it never does, or the time zone is none.
        """
        dates = next_dates(NIGHTLY if self.cron is None else self.cron, self.timezone, count, fields=True)
        return [] if self.cron is None else dates


def next_dates(cron: str, timezone: str, count: int, *, fields: bool = False) -> list[datetime]:
    """Return the next dates of an expression of cron.

    Parameters
    ----------
    cron, timezone : str
    count : int
        At most 1000.
    fields : bool
        Refuse all but five fields: what has six (seconds) or a word (``@daily``) is not what was promised.

    Raises
    ------
    ParameterError
        If it is no expression, no date fits it within fifty years, or there is no such time zone.
    """
    # Prefect's own, so that what is tried is what will run; it takes a second to import.
    from prefect.server.schemas.schedules import CronSchedule

    parts = cron.split()
    if fields and len(parts) != len(_FIELDS):
        raise ParameterError(
            f"cron {cron!r}: {len(parts)} fields, and there are five ({', '.join(_FIELDS)}), as in {NIGHTLY!r}"
        )
    try:
        ZoneInfo(timezone)
    except (ValueError, KeyError, OSError):
        raise ParameterError(
            f"timezone {timezone!r}: there is none of this name; write it as in Europe/Berlin or UTC"
        ) from None
    try:
        schedule = CronSchedule(cron=cron, timezone=timezone)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ParameterError(f"cron {cron!r}: {message}; there are five fields, as in {NIGHTLY!r}") from None
    try:
        return list(asyncio.run(schedule.get_dates(count)))
    except (ValueError, OverflowError):
        # croniter's error of an expression without a date is a ValueError.
        named = ", ".join(f"{name} {part}" for name, part in zip(_FIELDS, parts, strict=False))
        raise ParameterError(
            f"cron {cron!r}: no date within fifty years fits it ({named}); correct the day or the month"
        ) from None


class BrokenSchedule(NamedTuple):
    """What is kept for a data set and cannot be served.

    Attributes
    ----------
    dataset : str
    problem : str
        With the expression or the field, and why.
    """

    dataset: str
    problem: str


@dataclass(frozen=True, slots=True)
class Kept:
    """The schedules that stand, by name of their data sets.

    Attributes
    ----------
    sound : tuple of Schedule
    broken : tuple of BrokenSchedule
        Nothing of them is served.
    """

    sound: tuple[Schedule, ...]
    broken: tuple[BrokenSchedule, ...]


def _read(dataset: str, kept: Mapping[str, object]) -> Schedule | BrokenSchedule:
    try:
        return Schedule.model_validate(kept)
    except ValidationError as error:
        return BrokenSchedule(dataset, "; ".join(faults(error)))


def _tried(dataset: str, kept: Mapping[str, object]) -> Schedule | BrokenSchedule:
    entry = _read(dataset, kept)
    if isinstance(entry, Schedule):
        try:
            entry.next_dates(1)
        except ParameterError as error:
            return BrokenSchedule(dataset, str(error))
    return entry


def _kept(entries: list[Schedule | BrokenSchedule]) -> Kept:
    return Kept(
        tuple(one for one in entries if isinstance(one, Schedule)),
        tuple(one for one in entries if isinstance(one, BrokenSchedule)),
    )


def schedules() -> Kept:
    """Return the schedules that stand; broken are those that cannot be read. Dates are not looked for."""
    return _kept([_read(*entry) for entry in open_catalog().schedules().items()])


def sound_schedules() -> Kept:
    """Return the schedules that stand, each tried as it is when it is set: broken are those without a date, too."""
    return _kept([_tried(*entry) for entry in open_catalog().schedules().items()])


def schedule_of(dataset: str) -> Schedule | None:
    """Return a data set's schedule, or None where there is none that can be read."""
    return next((schedule for schedule in schedules().sound if schedule.dataset == dataset), None)


def set_schedule(schedule: Schedule) -> list[datetime]:
    """Try a schedule, record it in the place of the data set's earlier one, and return when it starts next.

    Raises
    ------
    storage.errors.InputError
        If there is no such data set, or its rows to score cannot be read or lack the column to keep.
    ParameterError
        If it would never start, or the time zone is none.
    """
    dates = schedule.next_dates()
    require_scorable(schedule)
    # Whole, so that another default of a later version changes no schedule.
    open_catalog().set_schedule(schedule.dataset, schedule.model_dump(mode="json"))
    return dates


def remove_schedule(dataset: str) -> None:
    """End a data set's schedule.

    Raises
    ------
    storage.errors.InputError
        If there is no such data set.
    """
    open_catalog().set_schedule(dataset, {})


def require_scorable(schedule: Schedule) -> None:
    """Look at the rows that a schedule scores: that they can be read as the data set's, and have the column to keep.

    Raises
    ------
    storage.errors.InputError
        Otherwise.
    """
    if schedule.scoring_input is None:
        return
    registration = open_catalog().get(schedule.dataset)
    layout = current_layout()
    encoder = encoder_of(declared_table(layout, dataset_ref(layout, registration.version)))
    require_columns(Path(schedule.scoring_input), encoder, schedule.scoring_id)


def require_columns(source: Path, encoder: Encoder | None, id_column: str | None) -> None:
    """Look at the first row of a file that a model is to predict; of pictures, at the first of them.

    Parameters
    ----------
    source : Path
    encoder : TableEncoder, PictureEncoder or None
        Of a table or of pictures; None for a model of arrays, which takes Parquet with the column :data:`FEATURES`
        alone.
    id_column : str, optional
        A column that is kept.

    Raises
    ------
    storage.errors.InputError
        If it cannot be read or lacks a column.
    """
    if isinstance(encoder, PictureEncoder):
        next(asked_pictures(source, 1, id_column), None)
        return
    declared = None if encoder is None else encoder.declared
    if declared is None and source.suffix not in PARQUET:
        raise InputError(f"{source}: this model takes arrays; give a Parquet file with a column {FEATURES!r} of lists")
    first = next(raw_rows(source, declared, 1), None)
    # A nightly delivery may be empty.
    columns = list(first.columns) if first is not None else names_of(source, declared)
    if id_column is not None and id_column not in columns:
        raise InputError(f"{source} has no column {id_column!r}; it has: {', '.join(columns)}")
    if declared is None and FEATURES not in columns:
        raise InputError(f"the rows have no column {FEATURES!r}, they have: {', '.join(columns)}")


def problems() -> list[tuple[str, str]]:
    """Return what is wrong with the schedules that stand: the data set, and what; rows to score that are gone, too."""
    kept = sound_schedules()
    found = [(one.dataset, one.problem) for one in kept.broken]
    for schedule in kept.sound:
        try:
            require_scorable(schedule)
        except (InputError, StorageError) as error:
            found.append((schedule.dataset, f"rows to score: {error}"))
    return found
