"""Rows as they came, encoded as is declared: the first step of a model that takes raw columns, or images.

Stored models name these classes by their path, so the module and their names stay where they are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from storage.cells import canonical_texts
from storage.columns.person import Person
from storage.errors import InputError
from storage.frames import find_frame, frame_of
from storage.hidden_cells import cells_hidden, shown_cell
from storage.pictures.declaration import Pictures
from storage.pictures.decoding import PictureError
from storage.pictures.reading import read_contents, read_files
from storage.raw_cells import pieces_of
from storage.refs import OnViolation
from storage.schema import Schema, Table, parse_schema


@dataclass(frozen=True, slots=True)
class Clipped:
    """Cells of a column that are outside the schema and were clipped; for the owner of the rows alone.

    Attributes
    ----------
    cells : int
        How many there are, in rows that are not refused.
    row : int
        The first one's, from 0.
    value : str
        What the first one holds.
    """

    cells: int
    row: int
    value: str


@dataclass(frozen=True, slots=True)
class Encoding:
    """Encoded rows, and why some of them were refused.

    Attributes
    ----------
    features : array (m, d)
        Zeros for rows that were refused.
    refusals : tuple of str or None
        For each row its first fault: column, value, bound; None where it is in order.
    clipped : mapping of column to Clipped
        Of columns that have any.
    """

    features: NDArray[np.float64]
    refusals: tuple[str | None, ...]
    clipped: Mapping[str, Clipped] = field(default_factory=dict)

    def or_raise(self) -> Self:
        """Return it where no row is refused; an InputError names the first that is, from 1, and why."""
        for row, refusal in enumerate(self.refusals, start=1):
            if refusal is not None:
                raise InputError(f"row {row}, {refusal}")
        return self


class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Encode rows of raw columns as the ingestion of a data set did: clipping, categories and missing cells alike.

    It learns nothing: everything is declared.

    Parameters
    ----------
    schema : mapping
        The document of a :class:`storage.schema.Schema`.
    on_violation : {"refuse", "clip", "drop", "clip-or-drop"}
        What happened at ingestion to rows outside the schema. Under ``"clip"`` numbers go to the nearest end of their
        range and an unknown category is none; otherwise such a row is refused, as is one with a missing cell unless the
        schema says ``indicator`` or ``constant``.
    """

    def __init__(self, schema: dict[str, Any] | None = None, on_violation: str = "refuse") -> None:
        self.schema = schema
        self.on_violation = on_violation

    @cached_property
    def declared(self) -> Schema:
        """The declared schema."""
        return parse_schema(self.schema, "the model's schema")

    def __getstate__(self) -> dict[str, Any]:
        """Return what is stored: what is declared, not what was made of it."""
        return {key: value for key, value in super().__getstate__().items() if key != "declared"}

    def __sklearn_is_fitted__(self) -> bool:
        """There is nothing to learn."""
        return True

    @property
    def n_features_in_(self) -> int:
        """Number of columns that it reads."""
        return len(self.feature_names_in_)

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """The columns it reads; others are ignored."""
        names = dict.fromkeys(name for column in self.declared.inputs for name in column.reads)
        return np.array([*names], dtype=object)

    @property
    def _n_features_out(self) -> int:
        return self.declared.dimension

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the features' names."""
        return np.array(self.declared.feature_names, dtype=object)

    def fit(self, X: Any, y: object = None) -> Self:
        """Learn nothing."""
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the encoded rows.

        Parameters
        ----------
        X : frame
            As of :func:`storage.frames.frame_of`.

        Returns
        -------
        array (m, d)

        Raises
        ------
        InputError
            If a column is missing, or for the first row that is refused, naming row (from 1), column and bound.
        """
        return self.encode_or_raise(X).features

    def encode_or_raise(self, X: Any) -> Encoding:
        """Encode rows none of which is refused; raises as :meth:`transform` does."""
        with cells_hidden():
            return self.encode(X).or_raise()

    def encode(self, X: Any) -> Encoding:
        """Encode rows one by one: one that is refused does not stop the others.

        Parameters
        ----------
        X : frame
            As of :func:`storage.frames.frame_of`.

        Raises
        ------
        InputError
            If a column is missing or named twice.
        """
        schema = self.declared
        batch = frame_of(X).batch(self.feature_names_in_.tolist())
        rows = batch.num_rows
        cells = dict(zip(batch.schema.names, batch.columns, strict=True))
        examined = schema.examine(Table(cells, np.arange(rows), "rows", unit="row"), schema.inputs)
        refusals: list[str | None] = [None] * rows
        for column in examined:
            wrong = column.encoded.unclippable if OnViolation(self.on_violation).clips else column.encoded.outside
            for row in np.flatnonzero(wrong if schema.rule(column.column).keeps else wrong | column.missing).tolist():
                fault = f"{shown_cell(column.shown(row), 'the cell')} is not {column.column.bound}"
                fault = "the value is missing" if column.missing[row] else fault
                refusals[row] = refusals[row] or f"column {column.column.name}: {fault}"
        features, refused = schema.features(examined), np.array([refusal is not None for refusal in refusals], bool)
        features[refused] = 0.0
        # What is outside and not refused has been clipped.
        outside = {one.column.name: (one, np.flatnonzero(one.encoded.outside & ~refused)) for one in examined}
        clipped = {
            name: Clipped(len(places), int(places[0]), column.shown(int(places[0]))[:60])
            for name, (column, places) in outside.items()
            if len(places)
        }
        return Encoding(features, tuple(refusals), clipped)

    def labels(self, y: Any) -> NDArray[Any]:
        """Return labels, written as in the table, as the schema names them: numbers, or classes.

        A label outside the classes is its text, and a value that is not a number is NaN.

        Parameters
        ----------
        y : column (m,)
            Of any container, see :func:`storage.raw_cells.pieces_of`.
        """
        label, cells = self.declared.label, pieces_of(y).array()
        read = label.read(cells)
        if isinstance(read, np.ndarray):
            return read
        encoded = label.encode(read)
        texts = canonical_texts(cells).fill_null("NaN").to_numpy(zero_copy_only=False)
        return np.where(encoded.unclippable, texts, encoded.values[:, 0])

    def people(self, X: Any) -> NDArray[np.object_]:
        """Return whose rows they are by the column that names people, (m,), None for ambiguous ones.

        Raises
        ------
        InputError
            If there is no such column.
        """
        schema = self.declared
        column = next(one for one in schema.columns if isinstance(one, Person))
        return schema.whose(frame_of(X).batch([column.name]).column(0))


PICTURE = "picture"
"""The column of images' files, each its bytes."""


class PictureEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Read images as the ingestion of a data set did; it learns nothing: everything is declared.

    Parameters
    ----------
    pictures : mapping
        The document of :class:`storage.pictures.declaration.Pictures`.
    """

    def __init__(self, pictures: dict[str, Any] | None = None) -> None:
        self.pictures = pictures

    @property
    def declared(self) -> Pictures:
        """The declaration."""
        return Pictures.from_document(self.pictures or {})

    def __sklearn_is_fitted__(self) -> bool:
        """There is nothing to learn."""
        return True

    @property
    def n_features_in_(self) -> int:
        """Number of columns that it reads."""
        return 1

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """The column it reads; others are ignored."""
        return np.array([PICTURE], dtype=object)

    @property
    def _n_features_out(self) -> int:
        return self.declared.dimension

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the features' names: pixels, channel by channel, row by row."""
        return np.array([f"pixel {place}" for place in range(self._n_features_out)], dtype=object)

    def fit(self, X: Any, y: object = None) -> Self:
        """Learn nothing."""
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return images as numbers.

        Parameters
        ----------
        X : frame with the column "image", sequence of bytes, or array (m, d)
            Each cell the bytes of a file. An array holds numbers in [0, 1]. No path is opened: otherwise a client of a
            served model could choose among the files of the serving machine.

        Returns
        -------
        array (m, d)

        Raises
        ------
        InputError
            For the first image that cannot be taken, naming its row (from 1) and why.
        """
        return self.encode_or_raise(X).features

    def encode_or_raise(self, X: Any) -> Encoding:
        """Read images all of which can be taken; raises as :meth:`transform` does."""
        with cells_hidden():
            return self.encode(X).or_raise()

    def encode(self, X: Any) -> Encoding:
        """Read images one by one: one that is refused does not stop the others."""
        if isinstance(X, np.ndarray) and X.dtype.kind in "fiu":
            return self._numbers(X)
        cells = _pictures_of(X)
        return self._encoding(len(cells), read_contents(cells, self.declared))

    def encode_files(self, paths: Sequence[str]) -> Encoding:
        """Read images from files, one by one."""
        return self._encoding(len(paths), read_files(paths, self.declared))

    def _encoding(self, rows: int, pictures: Iterable[NDArray[np.float64] | PictureError]) -> Encoding:
        features = np.zeros((rows, self.declared.dimension))
        refusals: list[str | None] = [None] * rows
        for row, found in enumerate(pictures):
            if isinstance(found, PictureError):
                refusals[row] = f"the image {found}"
            else:
                features[row] = found
        return Encoding(features, tuple(refusals))

    def _numbers(self, X: NDArray[Any]) -> Encoding:
        width = self.declared.dimension
        if X.ndim != 2 or X.shape[1] != width:
            raise InputError(
                f"the images have shape {X.shape}; give an array (m, {width}) of numbers in [0, 1], channel by "
                "channel, row by row"
            )
        features = np.asarray(X, dtype=np.float64)
        finite = np.asarray(np.isfinite(features).all(axis=1))
        # Pixels of 0 to 255 would be answered all the same, and wrongly.
        sound = finite & (features >= 0.0).all(axis=1) & (features <= 1.0).all(axis=1)
        refusals: list[str | None] = [None] * len(features)
        for row in np.flatnonzero(~sound).tolist():
            outside = features[row][~((features[row] >= 0.0) & (features[row] <= 1.0))][0]
            refusals[row] = (
                f"a number of the image is {outside:g}; they are in [0, 1]: divide by the largest of the depth"
                if finite[row]
                else "a number of the image is missing or not finite"
            )
        return Encoding(np.where(sound[:, None], features, 0.0), tuple(refusals))


def _pictures_of(X: Any) -> list[Any]:
    """Return the cells of the column of images, or of a sequence of them."""
    if isinstance(X, (str, bytes)):
        raise InputError(f"a single {type(X).__name__} is given; give a list with the bytes of each image file")
    frame = find_frame(X)
    return list(X) if frame is None else frame.objects(PICTURE)


Encoder = TableEncoder | PictureEncoder


def encoder_of(declared: Mapping[str, Any] | None) -> Encoder | None:
    """Return what encodes raw rows as a stored version's were (:func:`storage.datasets.declared_table`).

    None of rows that were numbers already.
    """
    if declared is None:
        return None
    if "pictures" in declared:
        return PictureEncoder(dict(declared["pictures"]))
    return TableEncoder(dict(declared["schema"]), declared["on_violation"])
