"""The interface of a type of column, and cells as it encodes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.cells import canonical_texts

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class MissingRows(StrEnum):
    """Treatment of a row with a missing cell."""

    REFUSE = "refuse"
    """The ingestion stops, naming line and column."""
    DROP = "drop"
    """The row is left out; of private rows, it becomes a null record, which is counted and contributes nothing."""
    CONSTANT = "constant"
    """A missing number counts as the middle of its range (or the declared centre), a missing category as none."""
    INDICATOR = "indicator"
    """As ``constant``, and one more feature of the column says that the cell is missing."""

    @property
    def keeps(self) -> bool:
        """Whether a row with a missing cell is a row like others."""
        return self in (MissingRows.CONSTANT, MissingRows.INDICATOR)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Cells of a column as numbers in [0, 1].

    Attributes
    ----------
    values : array (m, width)
        Zero where nothing can be said.
    outside : bool array (m,)
        Cells the schema does not admit.
    unclippable : bool array (m,)
        Those of them that cannot be clipped either.
    """

    values: NDArray[Any]
    outside: Flags
    unclippable: Flags

    def at(self, places: NDArray[Any]) -> Encoded:
        """Return some cells, any of them as often as it is named."""
        return Encoded(self.values[places], self.outside[places], self.unclippable[places])


class Column(ABC):
    """One declared column of a table.

    Attributes
    ----------
    name : str
    missing : MissingRows or None
        What happens to rows where it is missing; the schema's rule where None.
    """

    keys: ClassVar[tuple[str, ...]] = ()
    """What a schema may say of a column of this type beside ``name``, ``type`` and ``missing``."""
    used: ClassVar[bool] = True
    """Whether its cells are looked at."""
    essential: ClassVar[bool] = False
    """Whether it says what a row is, and is no feature: a row without it is of no use."""

    name: str
    missing: MissingRows | None

    @classmethod
    @abstractmethod
    def parse(cls, name: str, missing: MissingRows | None, declaration: Mapping[str, Any], place: str) -> Column:
        """Return the column that a schema's mapping declares; raise an InputError that names the key otherwise."""

    @property
    @abstractmethod
    def bound(self) -> str:
        """Admitted values, for messages."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of the file that it reads; of several, a cell is what they hold together."""
        return (self.name,)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its features; the first ``numbers`` of them are numbers, the others belong to one-hot groups."""
        return (self.name,) if self.used and not self.essential else ()

    @property
    def numbers(self) -> int:
        """Number of numeric features."""
        return len(self.features)

    @property
    def groups(self) -> tuple[int, ...]:
        """Number of its other features in each one-hot group, in order."""
        return ()

    @property
    def width(self) -> int:
        """Number of features of the column."""
        return len(self.features)

    @property
    def written(self) -> frozenset[str]:
        """Canonical texts that are values of it even where they mark a missing cell elsewhere."""
        return frozenset()

    def read(self, cells: Any, decimal: str = ".") -> pa.StringArray | Floats:
        """Return what cells of one of the columns that it reads are to it: by this they are compared.

        Parameters
        ----------
        cells : Arrow array, or sequence of cells of any types
        decimal : {".", ","}
            What separates whole numbers from their fraction in text.

        Returns
        -------
        pyarrow.StringArray or float array, (m,)
            Canonical texts, unless it is a column of numbers (NaN where a cell is none) or of days (likewise, since
            1970-01-01).
        """
        return canonical_texts(cells, decimal)

    def taken(self, texts: pa.StringArray) -> dict[str, int]:
        """Return how many canonical texts each rule takes by which the column recodes; for their owner alone."""
        return {}

    @abstractmethod
    def encode(self, *values: Any) -> Encoded:
        """Encode what :meth:`read` gives of each column that it reads. Total.

        What is outside is clipped where that can be, what stands for a missing cell is not used. Where one is missing
        the result's values may be written to.
        """

    def place(self, values: Floats) -> Floats:
        """Return encoded numbers on [-1, 1] with the middle of the range at 0; one-hot features as they are."""
        numbers, others = np.split(np.asarray(values, dtype=np.float64), [self.numbers], axis=1)
        return np.concatenate([2.0 * numbers - 1.0, others], axis=1)

    def unplace(self, placed: Floats) -> Floats:
        """Return what :meth:`place` made its result from."""
        numbers, others = np.split(np.asarray(placed, dtype=np.float64), [self.numbers], axis=1)
        return np.concatenate([(numbers + 1.0) / 2.0, others], axis=1)
