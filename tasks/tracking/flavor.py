"""The MLflow flavor: a released model saved, loaded again and asked for predictions by MLflow.

Stored models name this module by its path as what loads them, so the module and ``_load_pyfunc`` stay where they are.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dpalgos.pipeline import TRUSTED_TYPES
from dpalgos.rows import Floats
from storage.encoder import PictureEncoder
from storage.errors import StorageError
from storage.hidden_cells import cells_hidden
from tasks.tracking.coverings import ENDS, INTERVALS, SET, SETS, Covering, released_counts
from tasks.tracking.row_scores import ENCODERS, predictions_of, score_names, scores_of

if TYPE_CHECKING:
    from mlflow.models import Model, ModelSignature
    from sklearn.pipeline import Pipeline


TRUSTED = (*TRUSTED_TYPES, *(f"{cls.__module__}.{cls.__qualname__}" for cls in ENCODERS))
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
        Packages that are on an index. Unitball is not: the process that loads the model has it, and a bare name could
        install an unrelated package of that name.
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
    if isinstance(encoder, ENCODERS):
        outputs = [ColSpec(DataType.string if classes else DataType.double, "prediction")]
        outputs += [ColSpec(DataType.double, name) for name in score_names(pipeline, classes)]
        params = None
        if released_counts(pipeline) is not None:
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
    if not isinstance(encoder, ENCODERS):
        return ModelSignature(Schema([TensorSpec(numbers, (-1, dimension))]), out)
    kind = DataType.binary if isinstance(encoder, PictureEncoder) else AnyType()
    return ModelSignature(Schema([ColSpec(kind, name) for name in encoder.feature_names_in_.tolist()]), out)


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
        raise StorageError(f"{path} holds no {_FILE}, so it is not a Unitball model; log the model again")
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
        # skops follows what a file nests without its own bound.
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
            if isinstance(self.pipeline[0], ENCODERS):
                interval, sets = ((params or {}).get(name) for name in (INTERVALS, SETS))
                return scores_of(self.pipeline, data, covering=Covering(interval, sets))
            return predictions_of(self.pipeline, data)


def _load_pyfunc(path: str) -> Scorer:
    return Scorer(load_pipeline(path))
