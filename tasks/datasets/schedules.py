"""Schedules of training and scoring, each with its name: kept in the catalogue, applied while flows are served.

What is kept is tried before: a cron expression without a date stops the process that serves it. What is kept
nevertheless and cannot be served, because something it names has gone or is another now, is left out and said by name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from dpalgos.parameters import ParameterError
from storage.datasets import dataset_ref, declared_table
from storage.errors import InputError, StorageError
from storage.names import require_kept
from storage.readers.picture_files import PATH, asked_pictures
from storage.readers.raw_tables import PARQUET, names_of, raw_rows
from storage.refs import DatasetRef
from tasks.planning.configuration import TrainingConfig, faults
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog

if TYPE_CHECKING:
    # It imports scikit-learn, which only a schedule with rows to score needs.
    from storage.encoder import Encoder

NIGHTLY = "0 3 * * *"
"""Every night at three."""
FEATURES = "features"
"""The column of a Parquet file that holds a row's numbers as a list, where a data set has no schema."""
_FIELDS = ("minute", "hour", "day", "month", "weekday")
_SHOWN_DATES = 3


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")


def _called(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("use 1 to 60 letters (A to z), digits, - and _, beginning with a letter or digit")
    return name


Charged = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
"""An epsilon that held-out rows are charged."""
Coverage = Annotated[float, Field(ge=0.5, lt=1, allow_inf_nan=False)]
"""The probability with which an interval holds a number, or a set the class."""
COVERED = "Coverage, such as 0.9: add intervals to predicted numbers, or sets to predicted classes."
"""What a coverage adds to scored rows."""


class Schedule(BaseModel, frozen=True, extra="forbid"):
    """A schedule: the triggers of runs on one data set, and their configuration.

    A repeated run on the same version is served from the cache without a charge; a new version is charged
    in full, and so is a run whose releases another version of Unitball or of a library computes otherwise.
    """

    name: Annotated[
        str,
        AfterValidator(_called),
        Field(description="Name of the schedule, unique per data set: letters, digits, - and _."),
    ] = ""
    paused: Annotated[bool, Field(description="Whether it is paused; a paused schedule starts no run.")] = False
    config: TrainingConfig
    cron: Annotated[str | None, Field(description="Cron expression of five fields.", examples=[NIGHTLY])] = None
    timezone: Annotated[str, Field(description="Time zone of --cron.", examples=["Europe/Berlin"])] = "UTC"
    on_new_version: Annotated[bool, Field(description="Start when a new version of the data set is registered.")] = (
        False
    )
    scoring_input: Annotated[
        str | None, Field(description="Rows to score after each training, with the champion if there is one.")
    ] = None
    comparison_epsilon: Annotated[
        Charged | None, Field(description="Epsilon that compares a trained model with the champion.")
    ] = None
    promote: Annotated[bool, Field(description="Make a better model champion.")] = False
    scoring_id: Annotated[str | None, Field(description="Column of these rows to copy.")] = None
    scoring_coverage: Annotated[Coverage | None, Field(description=COVERED)] = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: object) -> object:
        """Call it by what starts it, where it is given no name."""
        if not isinstance(values, dict) or values.get("name"):
            return values
        usual = (
            (values.get("cron") == NIGHTLY, "nightly"),
            (values.get("cron") is not None, "cron"),
            (values.get("on_new_version"), "on-new-version"),
        )
        return {**values, "name": next((name for holds, name in usual if holds), "scoring")}

    @model_validator(mode="after")
    def _starts(self) -> Self:
        if self.cron is None and not self.on_new_version and self.scoring_input is None:
            raise ParameterError(
                "the schedule has no trigger: give --nightly, --cron, --on-new-version or --score-input (or --remove)"
            )
        for option, value in (("--score-id", self.scoring_id), ("--score-coverage", self.scoring_coverage)):
            if value is not None and self.scoring_input is None:
                raise ParameterError(f"{option} {value} applies to rows to score: add --score-input")
        return self

    @property
    def trains(self) -> bool:
        """Whether it starts trainings."""
        return self.cron is not None or self.on_new_version

    @property
    def dataset(self) -> str:
        """The data set's name."""
        return self.config.dataset

    @property
    def full_name(self) -> str:
        """Its name among those of all data sets: a schedule's own name has no dot."""
        return full_name(self.dataset, self.name)

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
        If the expression is invalid, no date fits it within fifty years, or the time zone is unknown.
    """
    # Prefect's own, so that what is tried is what will run; it takes a second to import.
    from prefect.server.schemas.schedules import CronSchedule

    parts = cron.split()
    if fields and len(parts) != len(_FIELDS):
        raise ParameterError(f"cron {cron!r}: {len(parts)} fields; give five ({', '.join(_FIELDS)}), as in {NIGHTLY!r}")
    try:
        ZoneInfo(timezone)
    except (ValueError, KeyError, OSError):
        raise ParameterError(
            f"timezone {timezone!r}: this time zone is unknown; write it as in Europe/Berlin or UTC"
        ) from None
    try:
        schedule = CronSchedule(cron=cron, timezone=timezone)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ParameterError(f"cron {cron!r}: {message}; give five fields, as in {NIGHTLY!r}") from None
    try:
        return list(asyncio.run(schedule.get_dates(count)))
    except (ValueError, OverflowError):
        # croniter's error of an expression without a date is a ValueError.
        named = ", ".join(f"{name} {part}" for name, part in zip(_FIELDS, parts, strict=False))
        raise ParameterError(
            f"cron {cron!r}: no date within fifty years matches ({named}); correct the day or the month"
        ) from None


def full_name(dataset: str, name: str) -> str:
    """Return a schedule's name among those of all data sets."""
    return f"{dataset}.{name}"


class BrokenSchedule(NamedTuple):
    """A stored schedule of a data set that cannot be served.

    Attributes
    ----------
    dataset : str
    name : str
    problem : str
        With the expression or the field, and why.
    """

    dataset: str
    name: str
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


def _read(which: tuple[str, str], kept: Mapping[str, object]) -> Schedule | BrokenSchedule:
    try:
        schedule = Schedule.model_validate(kept)
    except ValidationError as error:
        return BrokenSchedule(*which, "; ".join(faults(error)))
    if (found := (schedule.dataset, schedule.name)) != which:
        return BrokenSchedule(*which, f"it is kept under this name and is {'.'.join(found)}")
    return schedule


def _tried(which: tuple[str, str], kept: Mapping[str, object]) -> Schedule | BrokenSchedule:
    entry = _read(which, kept)
    if isinstance(entry, Schedule):
        try:
            open_catalog().get(entry.dataset)
            entry.next_dates(1)
        except (InputError, ParameterError) as error:
            return BrokenSchedule(*which, str(error))
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


def schedules_of(dataset: str) -> list[Schedule]:
    """Return a data set's schedules that can be read, those that are paused among them."""
    return [schedule for schedule in schedules().sound if schedule.dataset == dataset]


def allowed_comparison(dataset: str, system: str) -> tuple[float | None, bool]:
    """Return what the owner lets a comparison with the champion cost, and whether the better model is promoted.

    What schedules say that train this system and are not paused; of several prices the lowest, so that no comparison
    costs more than one of them has said.
    """
    speaking = [one for one in schedules_of(dataset) if one.config.system == system and not one.paused]
    prices = [one.comparison_epsilon for one in speaking if one.comparison_epsilon is not None]
    return min(prices, default=None), any(one.promote for one in speaking)


def set_schedule(schedule: Schedule) -> tuple[list[datetime], Schedule | None]:
    """Try a schedule and record it; return when it starts next, and what stood under its name before.

    Raises
    ------
    storage.errors.InputError
        If there is no such data set, or its rows to score cannot be read or lack the column to keep.
    ParameterError
        If it would never start, or the time zone is none.
    """
    dates = schedule.next_dates()
    require_scorable(schedule)
    before = next((one for one in schedules_of(schedule.dataset) if one.name == schedule.name), None)
    # Whole, so that another default of a later version changes no schedule.
    open_catalog().set_schedule(schedule.dataset, schedule.name, schedule.model_dump(mode="json"))
    return dates, before


def _one_of(dataset: str, name: str | None) -> tuple[str, Mapping[str, object]]:
    """Return the name and the entry of a data set's schedule: the one that is named, or its only one."""
    catalog = open_catalog()
    catalog.get(dataset)
    kept = {called: entry for (owner, called), entry in catalog.schedules().items() if owner == dataset}
    if not kept:
        raise InputError(f"{dataset} has no schedule; create one: unitball schedule {dataset} --nightly --epsilon …")
    if name is None and len(kept) > 1:
        raise InputError(f"{dataset} has several schedules: choose one with --name: {', '.join(kept)}")
    if name is not None and name not in kept:
        raise InputError(f"{dataset} has no schedule {name!r}; it has: {', '.join(kept)}")
    called = next(iter(kept)) if name is None else name
    return called, kept[called]


def remove_schedule(dataset: str, name: str | None = None) -> str:
    """End one of a data set's schedules, whether it can be read or not; return its name.

    Raises
    ------
    storage.errors.InputError
        If there is no such data set or schedule, or there are several and none is named.
    """
    called, _ = _one_of(dataset, name)
    open_catalog().set_schedule(dataset, called, {})
    return called


def pause_schedule(dataset: str, name: str | None = None, *, paused: bool) -> Schedule:
    """Pause one of a data set's schedules, or resume it, and return it as it is now.

    Raises
    ------
    storage.errors.InputError
        If there is no such data set or schedule, if there are several and none is named, or if it cannot be read.
    ParameterError
        If what is resumed would never start.
    """
    called, entry = _one_of(dataset, name)
    kept = _read((dataset, called), entry)
    if isinstance(kept, BrokenSchedule):
        raise InputError(
            f"{full_name(dataset, called)} cannot be read: {kept.problem}; create it again, or --remove it"
        )
    if not paused:
        kept.next_dates(1)
    changed = kept.model_copy(update={"paused": paused})
    if changed != kept:
        open_catalog().set_schedule(dataset, called, changed.model_dump(mode="json"))
    return changed


def require_scorable(schedule: Schedule) -> None:
    """Look at the rows that a schedule scores: that they can be read as the data set's, and have the column to keep.

    A coverage needs models that release counts of held-out rows.

    Raises
    ------
    storage.errors.InputError
        Otherwise.
    """
    if schedule.scoring_input is None:
        return
    from storage.encoder import encoder_of

    registration = open_catalog().get(schedule.dataset)
    layout = current_layout()
    dataset = dataset_ref(layout, registration.version)
    if schedule.scoring_coverage is not None and schedule.trains:
        _require_counts(schedule.config, dataset, schedule.scoring_coverage)
    encoder = encoder_of(declared_table(layout, dataset))
    require_columns(Path(schedule.scoring_input), encoder, schedule.scoring_id)


def _require_counts(config: TrainingConfig, dataset: DatasetRef, coverage: float) -> None:
    """Refuse a coverage where the schedule's own models will have no intervals or sets."""
    if config.horizon is not None:
        raise InputError(
            f"--score-coverage is {coverage:g} and --horizon {config.horizon}; nights release no counts for intervals "
            "or sets: omit one of them"
        )
    if dataset.classes and not config.roc:
        raise InputError(
            f"--score-coverage is {coverage:g}; prediction sets need released scores of held-out rows: add --roc"
        )
    if not dataset.private or not config.evaluation:
        raise InputError(
            f"--score-coverage is {coverage:g}; intervals and sets need a charged release of held-out rows: omit "
            "--no-evaluation"
        )


def require_columns(source: Path, encoder: Encoder | None, id_column: str | None) -> None:
    """Look at the first row of a file that a model is to predict; of images, at the first of them.

    Parameters
    ----------
    source : Path
    encoder : TableEncoder, PictureEncoder or None
        Of a table or of images; None for a model of arrays, which takes Parquet with the column :data:`FEATURES`
        alone.
    id_column : str, optional
        A column that is kept.

    Raises
    ------
    storage.errors.InputError
        If it cannot be read or lacks a column, or the column that is kept is called as one that is written.
    """
    from storage.encoder import PictureEncoder

    if id_column is not None:
        # The column of paths is an image's own.
        require_kept(id_column, *([PATH] if isinstance(encoder, PictureEncoder) and id_column != PATH else []))
    if isinstance(encoder, PictureEncoder):
        next(asked_pictures(source, 1, id_column), None)
        return
    declared = None if encoder is None else encoder.declared
    if declared is None and source.suffix not in PARQUET:
        raise InputError(f"{source}: this model needs arrays; give a Parquet file with a column {FEATURES!r} of lists")
    first = next(raw_rows(source, declared, 1), None)
    # A nightly delivery may be empty.
    columns = list(first.columns) if first is not None else names_of(source, declared)
    if id_column is not None and id_column not in columns:
        raise InputError(f"{source} has no column {id_column!r}; it has: {', '.join(columns)}")
    if declared is None and FEATURES not in columns:
        raise InputError(f"the rows have no column {FEATURES!r}, they have: {', '.join(columns)}")


def problems() -> list[BrokenSchedule]:
    """Return what is wrong with the schedules that stand; rows to score that are gone, too."""
    kept = sound_schedules()
    found = list(kept.broken)
    for schedule in kept.sound:
        try:
            require_scorable(schedule)
        except (InputError, StorageError) as error:
            found.append(BrokenSchedule(schedule.dataset, schedule.name, f"rows to score: {error}"))
    return found
