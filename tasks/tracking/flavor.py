"""The MLflow flavor: a released model saved, loaded again and asked about rows, in memory or of a file.

Stored models name this module by its path as what loads them, so the module and ``_load_pyfunc`` stay where they are.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpalgos.conformal import SIMULATED, HeldOutErrors, HeldOutScores
from dpalgos.measured import in_digits
from dpalgos.pipeline import TRUSTED_TYPES, BoundedRegressor, ScoredClassifier
from dpalgos.rows import Floats
from storage.atomic import PREFIX
from storage.cells import column_name
from storage.encoder import Clipped, Encoder, PictureEncoder, TableEncoder
from storage.errors import InputError, StorageError
from storage.frames import number_rows
from storage.hidden_cells import cells_hidden
from storage.names import SCORED, require_kept
from storage.readers.picture_files import PATH, asked_pictures, count_asked, passed_over
from storage.readers.raw_tables import PARQUET, expected_rows, names_of, raw_rows
from storage.schema import Table
from storage.source import predicting
from tasks.datasets.schedules import FEATURES, require_columns
from tasks.runtime.progress import report_progress

if TYPE_CHECKING:
    from mlflow.models import Model, ModelSignature
    from sklearn.pipeline import Pipeline


_ENCODERS = (TableEncoder, PictureEncoder)
TRUSTED = (*TRUSTED_TYPES, *(f"{cls.__module__}.{cls.__qualname__}" for cls in _ENCODERS))
"""Our own classes in stored models; scikit-learn's are trusted by skops itself."""

DIGEST = "unitball.digest"
"""Name of the digest of the model's file among what MLflow shows of a model."""

_FILE = "model.skops"


def save_model(
    path: str,
    mlflow_model: Model,
    *,
    pipeline: Pipeline,
    classes: Sequence[str],
    dimension: int,
    requirements: Sequence[str],
) -> None:
    """Save a model as MLflow's scikit-learn flavor, loaded by this module where it is asked for predictions.

    Parameters
    ----------
    path : str
    mlflow_model : mlflow.models.Model
    pipeline : sklearn.pipeline.Pipeline
    classes : sequence of str
        Empty for a regression.
    dimension : int
        Features of a raw row, where the pipeline takes arrays.
    requirements : sequence of str
        Packages that are on an index. Unitball is not: whoever loads the model has it, and a bare name would fetch
        whatever somebody else calls so.
    """
    import mlflow.sklearn

    with taken_as_installed():
        mlflow.sklearn.save_model(
            pipeline,
            path,
            mlflow_model=mlflow_model,
            serialization_format="skops",
            skops_trusted_types=list(TRUSTED),
            pip_requirements=list(requirements),
            # Written by hand: MLflow would infer it from example rows.
            signature=signature_of(pipeline, classes, dimension),
        )
    mlflow_model.flavors["python_function"]["loader_module"] = __name__
    mlflow_model.metadata = {DIGEST: model_digest(path)}
    mlflow_model.save(str(Path(path) / "MLmodel"))


_UNCHECKED = threading.Lock()


@contextmanager
def taken_as_installed() -> Iterator[None]:
    """Let MLflow believe that the requirements are installed, from which they were read.

    To compare them it reads the list of files of every package that there is, which takes longer than all the rest.
    """
    from mlflow.utils import environment

    name = "warn_dependency_requirement_mismatches"
    with _UNCHECKED:
        honest = getattr(environment, name, None)
        setattr(environment, name, lambda requirements: None)
        try:
            yield
        finally:
            setattr(environment, name, honest)


def signature_of(pipeline: Pipeline, classes: Sequence[str], dimension: int) -> ModelSignature:
    """Return what goes into a model and what comes out.

    A model of a table with a declared schema takes its columns by name, each of type ``any``: MLflow converts nothing
    (it refuses whole numbers where ``double`` is declared, numbers where ``long`` is, and days and pandas' categories
    where ``string`` is), while a data frame's own types depend on which rows it holds and on where it came from; the
    pipeline's encoder holds each cell against its declaration. Names of columns are texts, spelled as in the signature
    (``frame.columns.map(str)`` after ``read_csv(header=None)``). A served model reads such rows as JSON; MLflow's
    server refuses CSV for them. No rows are ``{"dataframe_split": {"columns": [...], "data": []}}``: it refuses
    ``dataframe_records: []``, which names no columns. A model of images takes the bytes of their files in one column,
    in JSON as base64 (:data:`storage.encoder.PICTURE`). What comes out is a data frame, see :class:`Scorer`. The
    parameter ``interval`` of a regression and ``set`` of a classifier asks for intervals or sets at a coverage.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec
    from mlflow.types.schema import AnyType, Array, DataType

    encoder = pipeline[0]
    if isinstance(encoder, _ENCODERS):
        outputs = [ColSpec(DataType.string if classes else DataType.double, "prediction")]
        outputs += [ColSpec(DataType.double, name) for name in _score_names(pipeline, classes)]
        params = None
        if _released(pipeline) is not None:
            # Null asks for none.
            params = ParamSchema([ParamSpec(SETS if classes else INTERVALS, DataType.double, None)])
            ends = [ColSpec(DataType.double, name, required=False) for name in ENDS]
            outputs += [ColSpec(Array(DataType.string), SET, required=False)] if classes else ends
        kind = DataType.binary if isinstance(encoder, PictureEncoder) else AnyType()
        names = encoder.feature_names_in_.tolist()
        return ModelSignature(Schema([ColSpec(kind, name) for name in names]), Schema(outputs), params)
    output = np.dtype(np.str_) if classes else np.dtype(np.float64)
    return ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(np.float64), (-1, dimension))]), outputs=Schema([TensorSpec(output, (-1,))])
    )


def inputs_of(pipeline: Pipeline, dimension: int, scores: int) -> ModelSignature:
    """Return what goes into a transformer, as into a model of such rows, and the scores that come out.

    Parameters
    ----------
    pipeline : sklearn.pipeline.Pipeline
    dimension : int
        Features of a raw row, where the pipeline takes arrays.
    scores : int
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec
    from mlflow.types.schema import AnyType, DataType

    encoder, numbers = pipeline[0], np.dtype(np.float64)
    out = Schema([TensorSpec(numbers, (-1, scores))])
    if not isinstance(encoder, _ENCODERS):
        return ModelSignature(Schema([TensorSpec(numbers, (-1, dimension))]), out)
    kind = DataType.binary if isinstance(encoder, PictureEncoder) else AnyType()
    return ModelSignature(Schema([ColSpec(kind, name) for name in encoder.feature_names_in_.tolist()]), out)


def _score_names(pipeline: Pipeline, classes: Sequence[str]) -> list[str]:
    """Return the columns beside the prediction: a score a class (of two, the second), a calibrated probability."""
    score, probability = SCORED
    scores = [f"{score}{name}" for name in (classes[1:] if len(classes) == 2 else classes)]
    return [*scores, f"{probability}{classes[-1]}"] if hasattr(pipeline, "predict_proba") else scores


INTERVALS, SETS = "interval", "set"
"""What a logged model is asked for by name: intervals of a number, or sets of classes, at a coverage."""
ENDS, SET = ("prediction_low", "prediction_high"), "prediction_set"
"""Columns that hold the ends of an interval, and a set of classes."""


@dataclass(frozen=True, slots=True)
class Covering:
    """Which coverage is asked for, of intervals or of sets; the default asks for neither.

    Attributes
    ----------
    interval, sets : float or None
        From 0.5 to below 1.
    """

    interval: float | None = None
    sets: float | None = None

    def __post_init__(self) -> None:
        if self.interval is not None and self.sets is not None:
            raise InputError(
                f"interval is {self.interval} and set is {self.sets}; intervals apply to numeric labels and "
                f"sets to classes: give one of them"
            )

    @classmethod
    def of(cls, pipeline: Pipeline, coverage: float | None) -> Covering:
        """Return a coverage as what a model's predictions can have: intervals of numbers, sets of classes."""
        return cls(sets=coverage) if hasattr(pipeline[-1], "classes_") else cls(interval=coverage)

    @property
    def coverage(self) -> float | None:
        """The one that is asked for."""
        return self.sets if self.interval is None else self.interval


def counts_in(pipeline: Pipeline, covering: Covering) -> HeldOutErrors | HeldOutScores:
    """Return the released counts of held-out rows from which a model's intervals or sets follow.

    Raises
    ------
    InputError
        If it predicts the other kind of labels, or was logged without such counts.
    """
    last = pipeline[-1]
    asked = INTERVALS if covering.sets is None else SETS
    if (asked == SETS) != hasattr(last, "classes_"):
        other = SETS if asked == INTERVALS else INTERVALS
        raise InputError(
            f"{asked} is {covering.coverage:g}; intervals apply to numeric labels and sets to classes: give {other} "
            "for this model"
        )
    found = _released(pipeline)
    if found is None:
        raise InputError(f"{asked} is {covering.coverage:g}; {_NO_COUNTS[asked]}")
    return found


def _released(pipeline: Pipeline) -> HeldOutErrors | HeldOutScores | None:
    last = pipeline[-1]
    return last.released() if isinstance(last, BoundedRegressor | ScoredClassifier) else None


_NO_COUNTS = {
    INTERVALS: "this model has no released distribution of errors: train on private rows with held-out rows "
    "(--test-fraction) and a delta above 0. Nights release none, since rows of one night need not be like the next",
    SETS: "this model has no released distribution of scores: train on private rows with held-out rows "
    "(--test-fraction), a delta above 0 and --roc. Nights release none, since rows of one night need not be like the "
    "next",
}


# From a model's last steps and their features to the columns that intervals or sets add to predictions.
_Cover = Callable[["Pipeline", "Floats"], dict[str, Sequence[object]]]


def _cover(pipeline: Pipeline, covering: Covering) -> _Cover:
    """Return what makes the columns of intervals or sets: their ends and limits are computed once."""
    if covering.coverage is None:
        return lambda steps, features: {}
    found = counts_in(pipeline, covering)
    if isinstance(found, HeldOutErrors):
        errors, distances = found, found.distances(covering.coverage)

        def intervals(steps: Pipeline, features: Floats) -> dict[str, Sequence[object]]:
            return dict(zip(ENDS, errors.around(steps.predict(features), distances).T, strict=True))

        return intervals
    limits, names = found.limits(covering.coverage), [str(name) for name in pipeline.classes_]

    def sets(steps: Pipeline, features: Floats) -> dict[str, Sequence[object]]:
        scores = np.asarray(steps.decision_function(features), dtype=np.float64).reshape(len(features), -1)
        inside = found.inside(scores, limits)
        return {SET: [[name for name, there in zip(names, row, strict=True) if there] for row in inside]}

    return sets


def promised_by(pipeline: Pipeline, covering: Covering) -> list[str]:
    """Return what is claimed of the intervals or sets that are asked for, in sentences; none where none are.

    Raises
    ------
    InputError
        As :func:`counts_in` does.
    dpalgos.conformal.UnreachableError
        If the released counts do not admit the coverage.
    """
    if covering.coverage is None:
        return []
    names = [str(name) for name in getattr(pipeline[-1], "classes_", ())]
    return promised(counts_in(pipeline, covering), covering.coverage, names)


def promised(found: HeldOutErrors | HeldOutScores, coverage: float, classes: Sequence[str] = ()) -> list[str]:
    """Return what is claimed of intervals or sets at a coverage, in sentences.

    Parameters
    ----------
    found : HeldOutErrors or HeldOutScores
        See :func:`counts_in`.
    coverage : float
    classes : sequence of str
        Their names, of sets.
    """
    people = found.held_out.people
    rows = "people (each person counts as one)" if people else "rows"
    drawn = f"a new {'person' if people else 'row'} drawn as the {found.held_out.count:,} held-out {rows} were"
    if isinstance(found, HeldOutErrors):
        below, above = found.distances(coverage)
        claim = (
            f"intervals from {in_digits(below)} below to {in_digits(above)} above the prediction, within the declared "
            f"range: with probability 0.95 over noise and held-out rows, {drawn} has its label in the interval with "
            f"probability {coverage:g} or more"
        )
    else:
        claim = (
            f"sets: with probability 0.95 over noise and held-out rows, for every class at once, {drawn} has its class "
            f"in the set with probability {coverage:g} or more"
        )
    lines = [f"{claim}. This holds for one coverage, chosen beforehand"]
    if isinstance(found, HeldOutScores):
        open_ended = [name for name, limit in zip(classes, found.limits(coverage), strict=True) if math.isinf(limit)]
        if open_ended:
            lines.append(
                f"in every set: {', '.join(open_ended)}; too few of its held-out {rows} for this noise and coverage. A "
                "larger --test-fraction or ε, or a smaller coverage, bounds its scores"
            )
    if found.reread:
        lines.append(
            "measured, not proved: the model rests on counts of columns that include the held-out rows. In simulations "
            f"the claim held in {100 * SIMULATED:g} % of the runs"
        )
    return lines


def scores_of(
    pipeline: Pipeline,
    features: Floats | pd.DataFrame,
    threshold: float | None = None,
    covering: Covering = Covering(),
) -> pd.DataFrame:
    """Return predictions and, beside classes, the scores they come from.

    Parameters
    ----------
    pipeline : sklearn.pipeline.Pipeline
        A logged model, or its steps after the first.
    features : array or data frame (m, d)
    threshold : float, optional
        Probability from which on the second class is predicted; the model's own threshold where left out.
    covering : Covering, optional
        Whether intervals or sets are asked for.

    Returns
    -------
    data frame
        ``prediction``; ``score CLASS`` for each class, of two classes for the second one, above 0 where the model
        predicts it: distances from a boundary. ``probability CLASS`` where released sums have calibrated them. As asked
        for, ``prediction_low`` and ``prediction_high``, or ``prediction_set``, a list of classes.

    Raises
    ------
    InputError
        If a threshold is asked of a model without probabilities, or intervals or sets of one that has none.
    dpalgos.conformal.UnreachableError
        If the noise or the number of held-out rows does not admit the coverage.
    """
    found = encoded(pipeline, features)
    return _scored(found.rest, found.features, threshold, _cover(pipeline, covering))


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as numbers, and the steps of a model that take them.

    Attributes
    ----------
    rest : sklearn.pipeline.Pipeline
    features : array (m, d)
    clipped : mapping of column to Clipped
    """

    rest: Pipeline
    features: Floats
    clipped: Mapping[str, Clipped] = field(default_factory=dict)


def encoded(pipeline: Pipeline, rows: Floats | pd.DataFrame) -> EncodedRows:
    """Return rows as a model's first step encodes them; rows of numbers as an array.

    Raises
    ------
    InputError
        If a column is missing, or for the first row that is refused.
    """
    encoder = pipeline[0]
    if not isinstance(encoder, _ENCODERS):
        return EncodedRows(pipeline, number_rows(rows))
    encoding = encoder.encode_or_raise(rows)
    return EncodedRows(pipeline[1:], encoding.features, encoding.clipped)


def _scored(pipeline: Pipeline, features: Floats, threshold: float | None, cover: _Cover) -> pd.DataFrame:
    if not len(features):
        return _scored(pipeline, _one_row(pipeline, features), threshold, cover).iloc[:0]
    covered = cover(pipeline, features)
    calibrated = hasattr(pipeline, "predict_proba")
    if threshold is not None and not calibrated:
        raise InputError(
            f"threshold is {threshold:g}, and this model has no probabilities: train two classes with --roc, whose "
            "running sums calibrate the scores"
        )
    if not hasattr(pipeline, "decision_function"):
        return pd.DataFrame({"prediction": pipeline.predict(features), **covered})
    classes = [str(name) for name in pipeline.classes_]
    scores = np.asarray(pipeline.decision_function(features), dtype=np.float64).reshape(len(features), -1)
    chosen = (scores[:, 0] > 0).astype(int) if len(classes) == 2 else scores.argmax(axis=1)
    if calibrated:
        probabilities = pipeline.predict_proba(features)[:, 1]
        scores = np.column_stack([scores, probabilities])
        chosen = chosen if threshold is None else (probabilities >= threshold).astype(int)
    columns = dict(zip(_score_names(pipeline, classes), scores.T, strict=True))
    return pd.DataFrame({"prediction": np.array(classes, dtype=object)[chosen], **columns, **covered})


def predictions_of(pipeline: Pipeline, rows: Floats | pd.DataFrame) -> NDArray[np.float64] | NDArray[np.str_]:
    """Return what a logged model predicts of each row, (m,); of no rows nothing, of the same type.

    A nightly delivery may be empty, and scikit-learn's own steps refuse that.
    """
    found = encoded(pipeline, rows)
    if len(found.features):
        return np.asarray(found.rest.predict(found.features))
    return np.asarray(found.rest.predict(_one_row(found.rest, found.features)))[:0]


def _one_row(pipeline: Pipeline, rows: Floats) -> Floats:
    """Return a row of zeros in place of no rows.

    Raises
    ------
    InputError
        If these are of another width.
    """
    given, width = np.shape(rows), int(pipeline[0].n_features_in_)
    if given not in ((0,), (0, width)):
        raise InputError(f"the rows have shape {given}; the model takes (m, {width})")
    return np.zeros((1, width))


def model_digest(path: str | Path) -> str:
    """Return the SHA-256 of the file that is loaded of a saved model; of nothing where there is none."""
    file = Path(path) / _FILE
    return hashlib.sha256(file.read_bytes() if file.is_file() else b"").hexdigest()


def is_model(path: str | Path) -> bool:
    """Whether a folder holds the file of a saved model."""
    return (Path(path) / _FILE).is_file()


def load_pipeline(path: str | Path, check: Callable[[str], None] | None = None) -> Pipeline:
    """Return the pipeline of a saved model.

    Parameters
    ----------
    path : path
        The model's folder.
    check : callable, optional
        Is given the SHA-256 of exactly the bytes that are loaded, before they are, and raises to refuse them.

    Raises
    ------
    StorageError
        If there is no model of ours, or it holds types that are neither scikit-learn's nor ours: which types are
        trusted is decided here and not by the model's files.
    """
    import skops.io

    file = Path(path) / _FILE
    if not file.is_file():
        raise StorageError(f"{path} holds no {_FILE}; it is not a model of Unitball; log it again")
    # Once: what is checked and what is loaded are the same bytes, whoever writes there meanwhile.
    content = file.read_bytes()
    if check is not None:
        check(hashlib.sha256(content).hexdigest())
    try:
        foreign = sorted(set(skops.io.get_untrusted_types(data=content)) - set(TRUSTED))
        if foreign:
            raise StorageError(
                f"{file} holds objects of types that are not trusted ({', '.join(foreign)}); do not load it"
            )
        return skops.io.loads(content, trusted=list(TRUSTED))
    except RecursionError:
        # skops follows what a file nests without a bound of its own.
        raise StorageError(f"{file} is nested deeper than any model of Unitball; do not load it") from None


class Scorer:
    """A model that MLflow asks for predictions.

    Parameters
    ----------
    pipeline : sklearn.pipeline.Pipeline
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def get_raw_model(self) -> Pipeline:
        """Return the pipeline."""
        return self.pipeline

    def predict(
        self, data: pd.DataFrame | Floats, params: dict[str, float | None] | None = None
    ) -> pd.DataFrame | Floats:
        """Return predictions with scores for rows of a table's columns, or of images; classes for arrays.

        See :func:`scores_of`.

        Parameters
        ----------
        data : data frame, or array (m, d)
        params : mapping, optional
            ``interval`` or ``set``: a coverage.

        Raises
        ------
        InputError
            For the first row that the schema refuses, or image that cannot be taken.
        """
        with cells_hidden():
            if isinstance(self.pipeline[0], _ENCODERS):
                interval, sets = ((params or {}).get(name) for name in (INTERVALS, SETS))
                return scores_of(self.pipeline, data, covering=Covering(interval, sets))
            return predictions_of(self.pipeline, data)


def _load_pyfunc(path: str) -> Scorer:
    return Scorer(load_pipeline(path))


_ROWS = 4096
# Numbers of pictures at once.
_NUMBERS = 1 << 22
# What an output is not written as, though its name would say so.
_OTHER_FORMATS = frozenset((".csv", ".tsv", ".txt", ".json", ".jsonl", ".xls", ".xlsx"))


@dataclass(frozen=True, slots=True)
class Predicted:
    """How many rows there were.

    Attributes
    ----------
    rows : int
    refused : int
        Those that have a reason in the column ``refusal`` instead of a prediction.
    clipped : mapping of column to Clipped
        Cells outside the schema that rows were predicted with, clipped: what they hold and how many they are is for
        whoever asked alone, and goes to no log, artifact or file. Rows as in the file.
    passed_over : str
        Which files of a folder are not images, in a sentence; for the caller alone as well.
    """

    rows: int
    refused: int
    clipped: Mapping[str, Clipped] = field(default_factory=dict)
    passed_over: str = ""


class Why(Protocol):
    """What says of each row why it has its score."""

    @property
    def rows_at_once(self) -> int:
        """How many rows are explained at a time."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that it writes."""

    def columns(self, features: Floats) -> dict[str, pa.Array]:
        """Return these columns of some encoded rows."""


@predicting()
def predict_file(
    pipeline: Pipeline,
    source: Path,
    output: Path,
    *,
    id_column: str | None = None,
    threshold: float | None = None,
    covering: Covering = Covering(),
    why: Why | None = None,
) -> Predicted:
    """Predict each row of a file and write a Parquet file beside it, streaming.

    Post-processing of a release: it costs nothing. What it writes is about the rows that were given, and so is for
    their owner alone: the file is readable by nobody else, and no count goes to a log, a tracker or an event.

    Parameters
    ----------
    pipeline : sklearn.pipeline.Pipeline
        A logged model. One of a table takes the table's columns, whose layout in text is that of the table it was
        trained on; one of images a folder of them, whatever folders are in it, one file, or a table with a column
        ``path``; any other takes a Parquet file with a column ``features`` of lists.
    source : Path
    output : Path
        Gets ``row`` (the line of text, or the row of Parquet, from 1), of images ``path``, the id column,
        ``prediction``, the scores, and ``refusal``: why a row has no prediction. It appears when it is whole.
    id_column : str, optional
        A column of the source that is kept as it is.
    threshold : float, optional
        See :func:`scores_of`.
    covering : Covering, optional
        Whether intervals or sets are asked for.
    why : Why, optional
        Adds, after the scores, the columns that say why a row has its score.

    Raises
    ------
    InputError
        If the source cannot be read or lacks a column, or there is an output already. One without rows is read: its
        output has the same columns, and no rows. If the output's name is that of another format. If the id column is
        called as a column that is written.
    StorageError
        If the output cannot be written.
    """
    asked = _Asked(
        pipeline=pipeline,
        source=source,
        id_column=None if id_column is None else column_name(id_column),
        threshold=threshold,
        cover=_cover(pipeline, covering),
        why=why,
    )
    if why is not None and asked.id_column is not None:
        require_kept(asked.id_column, *why.names)
    require_columns(source, asked.encoder, asked.id_column)
    if output.suffix.lower() in _OTHER_FORMATS:
        raise InputError(
            f"{output}: predictions are written as Parquet; name an output for that, such as {output.stem}.parquet"
        )
    if output.exists():
        raise InputError(f"{output} exists; name another output, or remove it first")
    done = refused = 0
    clipped: dict[str, Clipped] = {}
    passed = Counter[str]()
    pictures = isinstance(asked.encoder, PictureEncoder)
    expected = count_asked(source, passed) if pictures else expected_rows(source)
    tables = _predicted(asked, clipped)
    aside = output.parent / f"{PREFIX}{output.name}-{os.getpid()}"
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise StorageError(
            f"cannot write {output}: {error.strerror}; name an output in a folder where you can write"
        ) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            first = next(tables, None)
            if first is None:
                first = _of_no_rows(asked)
            with pq.ParquetWriter(file, first.schema) as writer:
                for table in itertools.chain([first], tables):
                    writer.write_table(table)
                    done += table.num_rows
                    refused += table.num_rows - table["refusal"].null_count
                    report_progress("predicting", f"{done:,} rows", done / expected if expected else None)
        aside.replace(output)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageError(
            f"cannot write {output}: {os.strerror(error.errno)}; free some space there, or name an output elsewhere"
        ) from error
    finally:
        aside.unlink(missing_ok=True)
    return Predicted(done, refused, clipped, passed_over(str(source), passed))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is asked of a model about a file."""

    pipeline: Pipeline
    source: Path
    id_column: str | None
    threshold: float | None
    cover: _Cover
    why: Why | None = None

    @property
    def rows_at_once(self) -> int:
        """How many rows are read at a time."""
        return _ROWS if self.why is None else min(_ROWS, self.why.rows_at_once)

    @property
    def encoder(self) -> Encoder | None:
        """What encodes raw rows; None of a model of numbers."""
        return self.pipeline[0] if isinstance(self.pipeline[0], _ENCODERS) else None

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        encoder = self.encoder
        return int(self.pipeline[0].n_features_in_) if encoder is None else encoder.declared.dimension

    def scores(self, features: Floats) -> pd.DataFrame:
        """Return predictions and scores of encoded rows."""
        return _scored(
            self.pipeline if self.encoder is None else self.pipeline[1:], features, self.threshold, self.cover
        )

    def explained(self, features: Floats, refused: NDArray[np.bool_]) -> dict[str, pa.Array]:
        """Return why rows have their scores, empty for those that are refused."""
        if self.why is None:
            return {}
        places = pa.array(np.cumsum(~refused) - 1, pa.int64(), mask=refused)
        return {name: cells.take(places) for name, cells in self.why.columns(features[~refused]).items()}


@dataclass(frozen=True, slots=True)
class _Given:
    """Some rows of a file, as numbers.

    Attributes
    ----------
    lines : int array (m,)
    kept : mapping of column to cells
    features : array (m, d)
        Zeros for rows that are refused.
    reasons : sequence of str or None
        Why a row is.
    clipped : mapping of column to Clipped
    """

    lines: NDArray[np.int64]
    kept: Mapping[str, pa.Array]
    features: Floats
    reasons: Sequence[str | None]
    clipped: Mapping[str, Clipped] = field(default_factory=dict)


def _predicted(asked: _Asked, clipped: dict[str, Clipped]) -> Iterator[pa.Table]:
    """Yield tables of one schema, of some thousand rows each; ``clipped`` gets the cells that were."""
    for given in _given(asked):
        for name, more in given.clipped.items():
            first = clipped.get(name, Clipped(0, int(given.lines[more.row]), more.value))
            clipped[name] = replace(first, cells=first.cells + more.cells)
        refused = np.array([reason is not None for reason in given.reasons])
        scores = asked.scores(given.features)
        yield pa.table(
            {
                "row": pa.array(given.lines, pa.int64()),
                **given.kept,
                **{name: _column(name, scores[name], refused) for name in scores.columns},
                **asked.explained(given.features, refused),
                "refusal": pa.array(given.reasons, pa.string()),
            }
        )


def _given(asked: _Asked) -> Iterator[_Given]:
    """Yield the rows of a file as numbers, some at once: a table's, images, or lists of numbers."""
    encoder, source, id_column = asked.encoder, asked.source, asked.id_column
    if isinstance(encoder, PictureEncoder):
        for some in asked_pictures(source, max(16, min(_ROWS, _NUMBERS // asked.width)), id_column):
            encoding = encoder.encode_files(some.paths)
            kept = {PATH: pa.array(some.names, pa.string())}
            if id_column is not None and id_column != PATH:
                kept[id_column] = _as_array(some.cells)
            yield _Given(some.lines, kept, encoding.features, encoding.refusals)
        return
    for rows in raw_rows(source, None if encoder is None else encoder.declared, asked.rows_at_once):
        kept = {} if id_column is None else {id_column: _as_array(rows.columns[id_column])}
        if encoder is None:
            features, reasons = _lists(asked.width, rows)
            yield _Given(rows.lines, kept, features, reasons)
        else:
            encoding = encoder.encode(rows.columns)
            faults = zip(rows.faults or [None] * len(rows.lines), encoding.refusals, strict=True)
            yield _Given(rows.lines, kept, encoding.features, [fault or why for fault, why in faults], encoding.clipped)


def _of_no_rows(asked: _Asked) -> pa.Table:
    """Return the table of a file without rows: the columns of any other, and none in them."""
    encoder, source, id_column = asked.encoder, asked.source, asked.id_column
    if isinstance(encoder, TableEncoder):
        # Refused for its columns, as with rows.
        encoder.encode({name: [] for name in names_of(source, encoder.declared)})
    scores = asked.scores(np.zeros((0, asked.width)))
    kept = {PATH: pa.array([], pa.string())} if isinstance(encoder, PictureEncoder) else {}
    if id_column is not None:
        typed = source.suffix in PARQUET and id_column in pq.read_schema(source).names
        kept[id_column] = pa.array([], pq.read_schema(source).field(id_column).type if typed else pa.string())
    texts = {"prediction"} if hasattr(asked.pipeline, "classes_") else set()
    return pa.table(
        {
            "row": pa.array([], pa.int64()),
            **kept,
            **{name: pa.array([], _typed(name, texts)) for name in scores.columns},
            **asked.explained(np.zeros((0, asked.width)), np.zeros(0, dtype=bool)),
            "refusal": pa.array([], pa.string()),
        }
    )


_LIST = pa.list_(pa.string())


def _column(name: str, cells: pd.Series, refused: NDArray[np.bool_]) -> pa.Array:
    """Return a column of predictions, empty for rows that are refused."""
    if name == SET:
        return pa.array([None if bad else of for of, bad in zip(cells, refused, strict=True)], _LIST)
    return pa.array(cells.to_numpy(), mask=refused)


def _typed(name: str, texts: set[str]) -> pa.DataType:
    if name == SET:
        return _LIST
    return pa.string() if name in texts else pa.float64()


def _as_array(cells: Sequence[object] | pa.Array) -> pa.Array:
    return cells if isinstance(cells, pa.Array) else pa.array(cells, pa.string())


def _lists(width: int, rows: Table) -> tuple[Floats, list[str | None]]:
    """Return the features of rows that are lists of numbers, and why some have none."""
    cells = rows.columns[FEATURES]
    features, sizes = _numbers(cells, width) if _holds_numbers(cells.type) else _parsed(cells, width)
    fits, finite = sizes == width, np.isfinite(features).all(axis=1)
    features[~finite] = 0.0
    reasons: list[str | None] = [None] * len(features)
    for row in np.flatnonzero(~(fits & finite)):
        reasons[row] = (
            f"column {FEATURES}: a number is missing or not finite"
            if fits[row]
            else f"column {FEATURES}: {sizes[row]} numbers, the model takes {width}"
        )
    return features, reasons


def _holds_numbers(kind: pa.DataType) -> bool:
    types = pa.types
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)))


def _numbers(cells: pa.Array, width: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return lists of numbers as rows, NaN where one is missing and zeros for another width, and each list's length."""
    sizes = np.asarray(pc.fill_null(pc.list_value_length(cells), 0), dtype=np.int64)
    features = np.zeros((len(sizes), width))
    whole = sizes == width
    flat = pc.list_flatten(cells.filter(pa.array(whole)))
    features[whole] = flat.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).reshape(-1, width)
    return features, sizes


def _parsed(cells: pa.Array, width: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return the same of cells of any other type, one after the other: texts of numbers, decimals."""
    features, sizes = np.zeros((len(cells), width)), np.zeros(len(cells), dtype=np.int64)
    for row, cell in enumerate(cells.to_pylist()):
        try:
            numbers = np.asarray([] if cell is None else cell, dtype=np.float64)
        except (TypeError, ValueError):
            numbers = np.full(width, np.nan)
        sizes[row] = numbers.size
        # A table of as many numbers is no list of them.
        features[row] = numbers if numbers.shape == (width,) else np.nan
    return features, sizes
