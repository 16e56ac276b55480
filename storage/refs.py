"""References that flow between the stages: what Prefect may store and show, never rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer


class Visibility(StrEnum):
    """Whether rows are private."""

    PRIVATE = "private"
    PUBLIC = "public"
    DERIVED = "derived"
    """Drawn from releases of private rows: used as public ones are, and all that is made with them rests on these."""


class Labels(StrEnum):
    """The kind of the label column."""

    CLASSES = "classes"
    """Class indices 0 … K − 1; the data set's manifest names the classes."""
    REAL = "real"
    """Real targets in a declared range."""


class OnViolation(StrEnum):
    """The treatment of a row outside the declared schema."""

    REFUSE = "refuse"
    """The whole ingestion stops, naming line and column."""
    CLIP = "clip"
    """A number goes to the nearest end of its range; an unknown category becomes all zeros."""
    DROP = "drop"
    """The row is left out; of private rows, it becomes a null record, which is counted and contributes nothing."""
    CLIP_OR_DROP = "clip-or-drop"
    """What can be clipped is; a row with a cell that cannot be, or with another number of cells, is dropped."""

    @property
    def clips(self) -> bool:
        """Whether what can be clipped is."""
        return self in (OnViolation.CLIP, OnViolation.CLIP_OR_DROP)

    @property
    def drops(self) -> bool:
        """Whether what cannot be taken is dropped instead of refused."""
        return self in (OnViolation.DROP, OnViolation.CLIP_OR_DROP)


class Scaling(StrEnum):
    """The scaling of a table's numbers."""

    CENTRED = "centred"
    """[-1, 1] with the middle of the declared range at 0, blocks of columns weighted, and an intercept's coordinate."""
    UNIT_INTERVAL = "unit-interval"
    """[0, 1], as several papers have it: no weights, no intercept's coordinate."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The protected unit, in words: one row, or a person with all rows.

    Parameters
    ----------
    person : str
        The column that names people; empty where each row counts by itself.
    """

    person: str = ""

    def __str__(self) -> str:
        """Return the singular."""
        return f"person (column {self.person})" if self.person else "row"

    @property
    def several(self) -> str:
        """The plural."""
        return "people" if self.person else "rows"

    def meaning(self, group: str = "", size: int = 5) -> str:
        """Return what it means for a person with several rows.

        Parameters
        ----------
        group : str
            The loss of a group of so many rows, where it is known.
        size : int
        """
        if self.person:
            return f"The unit of protection is a {self}: a person with {size} rows has the same ε as a person with one."
        return (
            f"The unit of protection is a row: a person with {size} rows is a group of {size}, "
            + (group or "whose ε is larger")
            + "."
        )


class TableColumn(BaseModel, frozen=True, extra="forbid"):
    """The features of a declared column in a row, with their values at the ends of its range; all of it public.

    Attributes
    ----------
    at : int
        The feature of a number, or the first of a category's, one a declared value.
    values : int or None
        How many values a category has; None for a number.
    missing : int or None
        The feature that is above the middle of its range where the column's cell is missing.
    low, high : float
        A number's feature at the ends of its declared range; a category's where it has another value, and this one.
    """

    at: int
    values: int | None = None
    missing: int | None = None
    low: float = 0.0
    high: float = 1.0


class DatasetRef(BaseModel, frozen=True, extra="forbid"):
    """One stored version of a data set.

    Attributes
    ----------
    name : str
        The name its owner chose.
    version : str
        Content digest for public data; random for private data (a digest would be an oracle for guesses).
    account : str
        The population whose budget its releases spend.
    rows, test_rows : int
        Records to train on, and records of its own test part (0 where it has none): rows, or people.
    dimension : int
        Features a row.
    classes : tuple of str
        Class names in index order; empty for numeric labels.
    label_range : (float, float) or None
        Declared range of numeric labels.
    normalisation : str
        Which row-local map was applied; ``"none"`` right after ingestion.
    image_shape : tuple of int or None
        (height, width) or (channels, height, width) where rows are images.
    person : str
        The column that names the people who are the records; empty where each row is one.
    rows_per_person : int
        The most rows of one person that are taken.
    maps : tuple of str
        Keys of the public maps that the version's rows are seen through, in turn; then ``dimension`` is that of what
        comes out.
    columns : tuple of TableColumn
        The declared columns of a table, in the schema's order, where rows have their features as they were encoded;
        empty otherwise.
    synthesis : str
        Of derived rows, the key of the synthesis that they are drawn from; empty of others.
    """

    name: str
    version: str
    account: str
    visibility: Visibility
    rows: int
    test_rows: int
    dimension: int
    labels: Labels = Labels.CLASSES
    classes: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None
    normalisation: str = "none"
    image_shape: tuple[int, ...] | None = None
    person: str = ""
    rows_per_person: int = 1
    maps: tuple[str, ...] = ()
    columns: tuple[TableColumn, ...] = ()
    synthesis: str = ""

    @model_serializer(mode="wrap")
    def _without_what_is_not_drawn(self, dumped: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Leave out the synthesis of rows that are not drawn from one: their reference says what it said."""
        return {name: value for name, value in dumped(self).items() if name != "synthesis" or value}

    def seen_through(self, maps: Sequence[str], dimension: int) -> Self:
        """Return the reference to these rows as public maps show them: their keys, and the features that come out."""
        # Features of images are no images.
        return self.model_copy(
            update={"maps": (*self.maps, *maps), "dimension": dimension, "image_shape": None, "columns": ()}
        )

    @property
    def drawn_from(self) -> tuple[str, ...]:
        """The key of the synthesis, of derived rows."""
        return (self.synthesis,) if self.synthesis else ()

    @property
    def unit(self) -> Unit:
        """The protected unit."""
        return Unit(self.person)

    @property
    def most_rows(self) -> int:
        """Rows to train on at most: public where how many people have is not."""
        return self.rows * self.rows_per_person

    @property
    def private(self) -> bool:
        """Whether the rows are private."""
        return self.visibility is Visibility.PRIVATE


class ShardRef(BaseModel, frozen=True, extra="forbid"):
    """One party's rows under one partition.

    Attributes
    ----------
    partition : str
        Identity of the partition; fixed before any row is read. Random-looking but deterministic.
    party : str
        ``"0"``, ``"1"``, … or the party's own name; ``"test"`` for held-out rows.
    """

    dataset: DatasetRef
    partition: str
    party: str
    rows: int


class ReleaseRef(BaseModel, frozen=True, extra="forbid"):
    """One release.

    Attributes
    ----------
    key : str
        Its identity: a digest of data version, algorithm, parameters, code, upstream releases and replicate.
    kind : str
        What it decodes to: ``"projection"``, ``"linear-model"``, ``"statistic"``.
    party : str
        Whose rows it read, or ``"all"``, or ``"server"`` for post-processing.
    """

    key: str
    kind: str
    party: str
